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
    """Whether one way to train fits."""

    method: str
    """One of `adapters.METHODS`."""
    question: Question
    memory: Memory
    verdict: str
    """One of `verdict.VERDICTS`."""
    tokens_per_s: float | None
    """Of all GPUs; None where it does not fit."""
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

    asked: Fit
    method: str
    """The way that was asked about."""
    methods: tuple[MethodFit, ...]
    refused: dict[str, str]
    """Ways that the program or the model does not have, and why."""
    plan_line: str | None = None
    """Command that searches all splits over the GPUs, where the asked layout does not fit."""

    @property
    def verdict(self) -> str:
        """Of the way that was asked about."""
        return self.asked.verdict


def fits(given: Options, measured: Measured = NOTHING) -> FitAnswer:
    """Answer whether a training fits, in each of the three ways.

    Args:
        given: Options by their names with underscores, as ``trainrig fits`` takes them.
        measured: Rates of a run, in place of the catalog's.

    Raises:
        UsageError: What is asked cannot be.
    """
    asked = question(given, measured)
    method = method_of(asked)
    found, refused = [], {}
    for name in METHODS:
        try:
            one = asked if name == method else question(_by(given, name), measured)
        except UsageError as error:
            refused[name] = error.message
        else:
            found.append(method_fit(name, one))
    answer = fit(asked)
    return FitAnswer(
        asked=answer,
        method=method,
        methods=tuple(found),
        refused=refused,
        plan_line=None if answer.verdict == FITS else _plan_line(given, asked, method),
    )


def _plan_line(given: Options, asked: Question, method: str) -> str | None:
    """Return a ``trainrig plan`` about the same training; None for one GPU or unnamed machines."""
    if asked.layout.mesh.gpus == 1 or given.get("on") is None:
        return None
    options = {name: given[name] for name in _PLANNED if given.get(name) is not None}
    options |= {"gpus": asked.layout.mesh.gpus, "global_batch": int(asked.layout.global_batch)}
    if method != "full":
        options["method"] = method
    words = (f"--{name.replace('_', '-')} {shlex.quote(str(options[name]))}" for name in options)
    return " ".join(["trainrig plan", *words])


_PLANNED = (
    *("model", "on", "gpus", "gpus_per_node", "link", "framework", "method", "lora_rank"),
    *("quantize", "seq_len", "precision", "kernels", "optimizer", "offload", "global_batch"),
)
"""Options of ``fits`` that say which training and which machines, not how it is split."""


def method_of(asked: Question) -> str:
    """Return which of `METHODS` a question is about."""
    lora = asked.layout.lora
    return "full" if not lora.rank else "lora" if lora.quantize == "none" else "qlora"


def _by(given: Options, method: str) -> dict[str, Any]:
    """The same options for another method: what belongs to adapters alone goes with them."""
    kept = {name: value for name, value in given.items() if name not in ("method", "quantize")}
    if method == "full":
        kept = {name: value for name, value in kept.items() if name not in _OF_ADAPTERS}
    elif method == "qlora" and given.get("quantize") not in (None, "none"):
        kept["quantize"] = given["quantize"]
    elif not kept.get("lora_rank"):
        kept.pop("lora_rank", None)
    return kept | {"method": method}


_OF_ADAPTERS = ("lora_rank", "lora_on")


def method_fit(method: str, asked: Question) -> MethodFit:
    """Return whether one question's training fits, and how far it goes."""
    shape, layout, rates = asked.shape, asked.layout, asked.cluster.rates()
    needed = memory(shape, layout)
    verdict = verdict_of(needed.needed_interval, rates.memory_bytes, host=asked.host_verdict)
    tokens = None
    if verdict != DOES_NOT_FIT:
        seconds = float(predict_step(shape, layout, rates).total)
        tokens = int(layout.global_batch) * layout.batch.seq_len / seconds
    return MethodFit(
        method=method,
        question=asked,
        memory=needed,
        verdict=verdict,
        tokens_per_s=tokens,
        micro_batch=largest_micro_batch(asked),
        seq_len=longest_sequence(asked),
        host_memory=int(host_bytes(shape, layout)),
    )


def largest_micro_batch(asked: Question) -> Reach:
    """Return how many samples at once fit, the sequence as asked."""
    return _reach(asked, MOST_SAMPLES, lambda samples: {"batch_size": samples})


def longest_sequence(asked: Question) -> Reach:
    """Return how many tokens of a sample fit, the micro-batch as asked."""
    step = _SEQUENCE_STEP * asked.layout.mesh.cp
    most = asked.shape.position.max_positions // step
    found = _reach(asked, most, lambda n: {"seq_len": n * step})
    return Reach(fits=found.fits * step, borderline=found.borderline * step)


def _reach(asked: Question, most: int, size: Callable[[int], dict[str, int]]) -> Reach:
    """Return the largest numbers by both ends of the interval; more never needs less."""
    if asked.host_verdict == DOES_NOT_FIT:
        return Reach(fits=0, borderline=0)
    offered = asked.cluster.rates().memory_bytes

    def largest(end: int) -> int:
        def fits(number: int) -> bool:
            layout = asked.layout.replace(**size(number))
            return float(memory(asked.shape, layout).needed_interval[end]) <= offered

        return largest_fitting(most, fits)

    return Reach(fits=largest(1), borderline=largest(0))
