"""Does a training fit: all weights, adapters, or adapters beside weights in four bits.

`fits` asks one question three times, each time by the defaults of the program that runs it so:
full, lora (adapters of rank 16) and qlora (their frozen weights in NF4).  Of each it says what one
GPU needs, one of three words (`prediction.verdict`), tokens/s, and how far it goes: the largest
micro-batch and the longest sequence that fit, and those that are borderline.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trainrig.errors import UsageError
from trainrig.prediction.fit.memory_options import Fit, fit, largest_fitting
from trainrig.prediction.scenario import NOTHING, Measured, Options, Question, question
from trainrig.prediction.step import predict_step
from trainrig.prediction.verdict import DOES_NOT_FIT, FITS, verdict_of
from trainrig.workload.adapters import METHODS
from trainrig.workload.memory import Memory, host_bytes, memory

MOST_SAMPLES = 1 << 12
"""Micro-batches are not searched beyond it."""
_SEQUENCE_STEP = 128
"""Tokens: sequences are searched in multiples of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """The largest value of a size that fits, and the largest that is borderline; 0: none does."""

    fits: int
    borderline: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodFit:
    """Verdict on one way to train: all weights, LoRA or QLoRA."""

    method: str
    """One of `adapters.METHODS`."""
    question: Question
    memory: Memory
    verdict: str
    """One of `verdict.VERDICTS`."""
    tokens_per_s: float | None
    """Tokens/s of all GPUs; None where it does not fit."""
    micro_batch: Reach
    """Samples at once on a rank, the sequence as asked."""
    seq_len: Reach
    """Tokens of a sample, the micro-batch as asked, at most as many as the model was made for."""
    host_memory: int
    """B of a node's own memory, for what is offloaded."""

    @property
    def interval(self) -> tuple[float, float]:
        """80 % interval of what one GPU needs, in bytes."""
        low, high = self.memory.needed_interval
        return float(low), float(high)


@dataclass(frozen=True, slots=True, kw_only=True)
class FitAnswer:
    """Three ways to train, and the one that was asked about with what each option saves."""

    asked_fit: Fit
    method: str
    """The way that was asked about."""
    methods: tuple[MethodFit, ...]
    refused: dict[str, str]
    """Ways that the program or the model does not have, and why."""
    plan_line: str | None = None
    """Command that searches all splits over the GPUs, where the asked layout does not fit."""

    @property
    def verdict(self) -> str:
        """Verdict of the method that was asked about."""
        return self.asked_fit.verdict


def fits(options: Options, measured: Measured = NOTHING) -> FitAnswer:
    """Answer whether a training fits, in each of the three ways.

    Args:
        given: Options by their names with underscores, as ``trainrig fits`` takes them.
        measured: Rates of a run, in place of the catalog's.

    Raises:
        UsageError: What is asked cannot be.
    """
    asked = question(options, measured)
    method = method_of(asked)
    methods, refused = [], {}
    for name in METHODS:
        try:
            method_question = asked if name == method else question(_by(options, name), measured)
        except UsageError as error:
            refused[name] = error.message
        else:
            methods.append(method_fit(name, method_question))
    answer = fit(asked)
    return FitAnswer(
        asked_fit=answer,
        method=method,
        methods=tuple(methods),
        refused=refused,
        plan_line=None if answer.verdict == FITS else _plan_line(options, asked, method),
    )


def _plan_line(stated: Options, question: Question, method: str) -> str | None:
    """Return a ``trainrig plan`` about the same training; None for one GPU or unnamed machines."""
    if question.layout.mesh.gpus == 1 or stated.get("on") is None:
        return None
    options = {name: stated[name] for name in _PLANNED if stated.get(name) is not None}
    options |= {
        "gpus": question.layout.mesh.gpus,
        "global_batch": int(question.layout.global_batch),
    }
    if method != "full":
        options["method"] = method
    words = (f"--{name.replace('_', '-')} {shlex.quote(str(options[name]))}" for name in options)
    return " ".join(["trainrig plan", *words])


_PLANNED = (
    *("model", "on", "gpus", "gpus_per_node", "link", "framework", "method", "lora_rank"),
    *("quantize", "seq_len", "precision", "kernels", "optimizer", "offload", "global_batch"),
)
"""Options of ``fits`` that say which training and which machines, not how it is split."""


def method_of(question: Question) -> str:
    """Return which of `METHODS` a question is about."""
    lora = question.layout.lora
    return "full" if not lora.rank else "lora" if lora.quantize == "none" else "qlora"


def _by(options: Options, method: str) -> dict[str, Any]:
    """Return the options for another method: what belongs to adapters alone goes with them."""
    remaining = {
        name: value for name, value in options.items() if name not in ("method", "quantize")
    }
    if method == "full":
        remaining = {name: value for name, value in remaining.items() if name not in _OF_ADAPTERS}
    elif method == "qlora" and options.get("quantize") not in (None, "none"):
        remaining["quantize"] = options["quantize"]
    elif not remaining.get("lora_rank"):
        remaining.pop("lora_rank", None)
    return remaining | {"method": method}


_OF_ADAPTERS = ("lora_rank", "lora_on")


def method_fit(method: str, question: Question) -> MethodFit:
    """Return whether one question's training fits, and how far it goes."""
    shape, layout, rates = question.shape, question.layout, question.cluster.rates()
    needed = memory(shape, layout)
    verdict = verdict_of(needed.needed_interval, rates.memory_bytes, host=question.host_verdict)
    tokens = None
    if verdict != DOES_NOT_FIT:
        seconds = float(predict_step(shape, layout, rates).total)
        tokens = int(layout.global_batch) * layout.batch.seq_len / seconds
    return MethodFit(
        method=method,
        question=question,
        memory=needed,
        verdict=verdict,
        tokens_per_s=tokens,
        micro_batch=largest_micro_batch(question),
        seq_len=longest_sequence(question),
        host_memory=int(host_bytes(shape, layout)),
    )


def largest_micro_batch(question: Question) -> Reach:
    """Return how many samples at once fit, the sequence as asked."""
    return _reach(question, MOST_SAMPLES, lambda samples: {"batch_size": samples})


def longest_sequence(question: Question) -> Reach:
    """Return how many tokens of a sample fit, the micro-batch as asked."""
    step = _SEQUENCE_STEP * question.layout.mesh.cp
    most = question.shape.position.max_positions // step
    steps = _reach(question, most, lambda n: {"seq_len": n * step})
    return Reach(fits=steps.fits * step, borderline=steps.borderline * step)


def _reach(question: Question, most: int, size: Callable[[int], dict[str, int]]) -> Reach:
    """Return the largest numbers by both ends of the interval; more never needs less."""
    if question.host_verdict == DOES_NOT_FIT:
        return Reach(fits=0, borderline=0)
    offered = question.cluster.rates().memory_bytes

    def largest(end: int) -> int:
        def fits(number: int) -> bool:
            layout = question.layout.replace(**size(number))
            return float(memory(question.shape, layout).needed_interval[end]) <= offered

        return largest_fitting(most, fits)

    return Reach(fits=largest(1), borderline=largest(0))
