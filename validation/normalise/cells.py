"""One row's cells: what is blank, and words, numbers and ranges as tables write them.

What is presumed in place of a cell is noted (`Cells.presume`) and widens the step's interval.  What
words mean is answered by the modules that ask for them (`validation.normalise` lists them).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import cache, cached_property, lru_cache
from pathlib import Path

from trainrig.errors import UsageError
from trainrig.record import read_toml
from trainrig.workload.programs.program import Program, Since
from validation.normalise.dates import named_month, released
from validation.normalise.training_programs import (
    Submissions,
    affirmed,
    benchmarks,
    program_of,
)

Row = Mapping[str, str]

UNSURE = {
    "recompute": 0.15,
    "kernel_stack": 0.15,
    "micro_batch": 0.15,
    "precision": 0.25,
    "fabric_gbps_per_node": 0.1,
    "grad_accum": 0.05,
    "seq": 0.15,
    "link": 0.05,
    "chip": 0.25,
    "zero_stage": 0.1,
    "offload": 0.15,
    "heads": 0.05,
    "ffn": 0.1,
    "vocab": 0.05,
    "params_b": 0.15,
    "vpp": 0.1,
    "layers": 0.25,
    "seq_len": 0.5,
    "mean_seq": 0.4,
    "num_gpus": 0.2,
    "nodes": 1.0,  # one device or a node of them, beside a batch of all
    "dp": 0.1,
    "ep": 0.2,
    "tp": 0.2,
    "pp": 0.2,
    "cp": 0.1,
    "cp_comm": 0.05,
    "framework": 0.3,
    "kind": 0.5,
    "model": 0.8,
    "gpus_per_node": 0.1,
    "seq_parallel": 0.05,
    "states": 0.1,
    "global_batch": 0.3,
    "num_experts": 0.3,
}
"""What a cell that is not stated adds to the half width of the 80 % interval of a step's time
(natural logarithm; each from 0 to 1, they add up as squares).

Presumed, by how much of a step each decides.  `python -m validation.widths` prints what residuals
of five tables say: together these hold 84 % of a cell's rows, none at all 77 %, and those that fit
best 81 %.  One by one residuals tell few of them: who leaves one cell blank leaves others, and the
interval of a program that was not compared on the chip is wide already.  Layers, tokens in a batch,
stages and experts fit wider than this; links, kernels and the lengths of tunings narrower.
"""
_WITH_NONE = ("link", "recompute", "offload")
"""Columns in which ``none`` is a word."""
_BLANK = (
    *("nan", "none", "null", "n/a", "na", "-", "–", "—", "?", "auto", "default", "unknown"),
    *("variable", "varies", "dynamic", "max", "not stated", "unspecified"),
)
_MAY_BE_ZERO = ("zero_stage", "dp", "cp", "ep")
_BINARY = ("seq", "mean_seq", "global_batch", "micro_batch")
_NUMBER = re.compile(
    r"(?:[tpdcev]p\s*=?)?\s*[~≈]?\s*(\d[\d,_]*(?:\.\d+)?)\s*([kmb]?)\s*"
    r"(?:tokens|gpus|chips|seqs|sequences|samples|layers|gbps|gb/s)?\s*(?:\([^()]*\))?"
)
"""Ways of writing a number: ``1,024``, ``4k``, ``~7B``, ``TP8``, ``64 (8x8)``."""
_RANGE = re.compile(
    r"(?:\d[\d.,]*[kmb]?\s*(?:-+>?|/|→|to|\.\.+|–)|up to|max\.?|<=?|≤)\s*"
    r"(\d[\d.,]*\s*[kmb]?\D*)"
)
"""Two ends of a number, ``512-2048``, or the upper one alone, ``up to 8192``."""


_FIRST_NUMBER = re.compile(r"(?<![\w.])(\d[\d,_]*(?:\.\d+)?) ?([km]?)(?![a-z\d.])")
"""Of a text the first number that stands alone."""
_OF_LOSS = re.compile(
    r"\b(?:compiled|fused|eager|chunked)(?:[- ](?:linear|backward))*"
    r"[- ](?:loss|cross[- ]?entropy|ce)\b"
    r"|\b(?:fused|foreach|apex)[ _-]?(?:fused)?[ _-]?(?:adam\w*|lamb|sgd|optimi[sz]er)\b"
)
"""What is said of the loss (`loss_of`) or the optimizer alone, not of layers."""


class Cells:
    """The cells of one row, and which of them are presumed: noted by whoever reads them so."""

    def __init__(self, row: Row) -> None:
        self._presumed: dict[str, None] = {}
        self._row = row
        self._read: dict[str, str] = {}
        self._words: dict[str, str] = {}

    def __getitem__(self, name: str) -> str:
        """What stands there, one space between words; what tables write for nothing is nothing."""
        if (text := self._read.get(name)) is None:
            text = " ".join((self._row.get(name) or "").split())
            is_word = text.lower() == "none" and name in _WITH_NONE
            if text.lower() in _BLANK and not is_word:
                text = ""
            self._read[name] = text
        return text

    def presume(self, *columns: str) -> None:
        """Note that a default stands for these, or another reading than the printed."""
        self._presumed |= dict.fromkeys(columns)

    @property
    def presumed(self) -> tuple[str, ...]:
        """Columns that are presumed so far, each once, as they came."""
        return tuple(self._presumed)

    def word(self, name: str) -> str:
        """Return what stands there, in small letters."""
        if (word := self._words.get(name)) is None:
            word = self._words[name] = self[name].lower()
        return word

    def text_of(self, *names: str) -> str:
        """What stands in several cells, in small letters, apart by ``; ``: no word is of two."""
        return "; ".join(map(self.word, names))

    def whole(self, name: str, default: int | None = None) -> int:
        """A whole number from 0.  UsageError where it is none, or blank without default."""
        text = self[name]
        if not text:
            if default is None:
                raise UsageError(f"{name}: not stated")
            return default
        value = self.number(name)
        most = 100_000 if name == "layers" else 2**31  # each of these is looked at
        if value != value or value != int(min(max(value, -1e18), 1e18)) or not 0 <= value < most:
            raise UsageError(f"{name} = {text[:40]}: a whole number from 0 was expected")
        if value == 0 and name not in _MAY_BE_ZERO:
            if default is None or name == "num_gpus":
                raise UsageError(f"{name} = 0: a whole number from 1 was expected")
            return default  # of what there is none of: tables write a zero
        return int(value)

    def number(self, name: str) -> float:
        """A number of a cell that is not blank.  UsageError where it is none."""
        text = self[name]
        try:
            return float(text)
        except ValueError:
            pass
        match = _NUMBER.fullmatch(text.lower())
        if match is None and (ends := _RANGE.fullmatch(text.lower())):
            self.presume(name if name in UNSURE else "global_batch")
            match = _NUMBER.fullmatch(ends[1])  # a ramp's end, or the longest
        if match is None and (power := re.search(r"\b2 ?(?:\^|\*\*) ?(\d{1,2})\b", text)):
            return 2.0 ** int(power[1])
        if match is None and name in _BINARY:  # `bs 4 per GPU`, `4096 packed`, `2M tokens/step`
            self.presume(name)
            match = _FIRST_NUMBER.search(text.lower())
        if match is None:
            raise UsageError(f"{name} = {text[:40]!r}: not a number")
        thousand = 1024 if name in _BINARY else 1000
        factor = {"": 1, "k": thousand, "m": thousand**2, "b": 1 if name == "params_b" else 1e9}
        value = float(match[1].replace(",", "").replace("_", "")) * factor[match[2]]
        return float(round(value)) if match[2] and name in _BINARY else value

    def choice(
        self, name: str, known: tuple[str, ...], default: str, *, is_unsure: bool = True
    ) -> str:
        """One of ``known``; ``is_unsure``: a default for a blank cell widens the interval.

        A word that is none of them nor means one (`meanings`) says nothing: it is as a blank cell.
        """
        word = self.word(name)
        if name == "kernel_stack":
            word = _OF_LOSS.sub("", affirmed(word)).strip(" ,;+")
        if word and word not in known:
            also = means(name, word) if name in meanings() else None
            word, is_unsure = also if also in known else "", True
        if not word and is_unsure:
            self.presume(name)
        return word or default

    @cached_property
    def program(self) -> Program:
        """What trains, and what it does by default: a benchmark's rows as its submissions do."""
        program = named = program_of(self.word("framework"))
        for benchmark in benchmarks():
            if self._is_of(benchmark, named):
                program = benchmark.laid_over(program)
        return program

    def _is_of(self, benchmark: Submissions, named: Program) -> bool:
        """Return whether a row that names a program is of a benchmark, or of its task."""
        is_other = named.trains_as in ("fsdp", "deepspeed") or named.code.transformers_models
        if benchmark.runs and (is_other or named.code.other_runtime):
            return False
        words = self._described
        if benchmark.unless and re.search(benchmark.unless, words):
            return False
        if re.search(benchmark.pattern, words):
            return True
        is_task = benchmark.task and self.is_adapted and re.search(benchmark.task, words)
        return bool(is_task and self.whole("seq", 0) == benchmark.task_seq)

    @cached_property
    def _described(self) -> str:
        """The cells that tell a benchmark."""
        return self.text_of("framework", "hardware", "chip", "model")

    @cached_property
    def is_transformers_5(self) -> bool:
        """Say whether transformers' models are those of its version 5, which is of January 2026."""
        is_named = mentions("transformers5", self.text_of("framework", "kernel_stack", "model"))
        return self.program.code.transformers_models is True and (
            is_named or self.is_since("2026-01")
        )

    @property
    def splits_models(self) -> bool:
        """Return whether the program is of Megatron's family, whose ranks may share a sample."""
        return self.program.trains_as == "megatron"

    @property
    def is_fsdp(self) -> bool:
        """Return whether the program shards weights by default, or is named with what does."""
        return self.program.spreading.shards_weights is True

    def does(self, trait: Since, *, undated: bool = False) -> bool:
        """Whether the program has a trait, perhaps since a month; ``undated``: a row without date.

        What is not stated it has not.
        """
        if isinstance(trait, str):
            return self.is_since(trait) or (undated and not self._dated)
        return trait is True

    def is_since(self, month: str) -> bool:
        """Whether the row is of that month (``2024-01``) or later, by its date or its model's."""
        return (self._stated or max(self._dated, self._released)) >= month

    def is_before(self, month: str) -> bool:
        """Return whether the row is dated, and of an earlier month."""
        return "" < self._dated < month and not self.is_since(month)

    @cached_property
    def _stated(self) -> str:
        """Year and month of the row's date; a year alone is its first."""
        match = re.match(r"(20\d\d)(-[01]\d)?", self["date"])
        return match[1] + (match[2] or "-01") if match else ""

    @cached_property
    def _dated(self) -> str:
        """The month as stated, else in what is said of the programs; "": none."""
        return self._stated or named_month(self.text_of("framework", "kernel_stack", "hardware"))

    @cached_property
    def _released(self) -> str:
        """The month in which the model came out, "": not known."""
        return released("model", self.word("model"))

    @property
    def is_xla(self) -> bool:
        """Return whether a program is of those that XLA compiles."""
        return self.program.code.xla is True

    @cached_property
    def _kind(self) -> str:
        """The kind of training, however its words are joined: ``pre-training`` as ``pretrain``."""
        return re.sub("[-_ ]", "", self.word("kind"))

    @cached_property
    def is_pretraining(self) -> bool:
        """Return whether a model is trained from its beginning."""
        return "pretrain" in self._kind

    @property
    def is_finetuning(self) -> bool:
        """Say whether all weights of a trained model are trained further, and no more is said."""
        return re.fullmatch(r"(full(parameter)?)?(finetun\w*|ft)", self._kind) is not None

    @property
    def is_more(self) -> bool:
        """Say whether pairs, a second model, or text that is made first belong to a step, too."""
        return mentions("besides", self.word("kind"))

    @cached_property
    def is_tuning(self) -> bool:
        """Return whether a trained model is trained further, on examples of a task."""
        return mentions("tuning", self.word("kind"))

    @cached_property
    def adapters(self) -> str:
        """The cells that adapters are named in, in small letters."""
        return self.text_of("kind", "model", "dtype")

    @cached_property
    def is_adapted(self) -> bool:
        """Return whether adapters are trained beside frozen weights."""
        return any(word in self.adapters for word in ("lora", "peft", "adapter", "dora"))

    @property
    def spread(self) -> float:
        """What blank cells add to the interval's half width, each once; they err by themselves."""
        return math.hypot(*(UNSURE[name] for name in self._presumed))


@cache
def meanings() -> dict[str, list[tuple[str, str]]]:
    """What cells contain, by their column, and the word for it: the first that is found counts."""
    return read_toml(_WORDS, dict[str, list[tuple[str, str]]], _WORDS.name)


@lru_cache(maxsize=1 << 14)
def means(name: str, word: str) -> str | None:
    """The word for the first of a column's patterns that is found in a text; None: none is."""
    return next((to for pattern, to in meanings()[name] if re.search(pattern, word)), None)


def mentions(name: str, text: str) -> bool:
    """Return whether any of a column's patterns is found in a text."""
    return means(name, text) is not None


_WORDS = Path(__file__).with_name("words.toml")
