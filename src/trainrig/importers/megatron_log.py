"""Megatron-LM's and Megatron-DeepSpeed's logs: iterations, their timers, memory.

An iteration line has the wall time of an iteration, averaged over those since the line before.
Timers are read in both of their forms: ``time (ms) | forward: …`` and the newer table of least and
largest time across ranks, of which the largest counts.  A timer that is not printed is missing; one
that reads 0 timed nothing and is missing too.  TFLOPS that the log prints are by its own formula,
and are shown beside ours.

Source: NVIDIA/Megatron-LM megatron/training/training.py and core/timers.py (read 2026-11-22).
"""

from __future__ import annotations

import re
from typing import Any

from trainrig.importers.extract import TERA, device_name, take_lines, to_count, to_number, word
from trainrig.importers.importer import Given, Importer, Reading, ToolFile
from trainrig.importers.training_log import Log, read_settings, records_of
from trainrig.stats import median

_ITERATION = re.compile(r"\biteration\s+(\d+)\s*/\s*(\d+)\s*\|(.*)$")
_ELAPSED = "elapsed time per iteration (ms)"
_TFLOPS = frozenset(["TFLOPs", "throughput per GPU (TFLOP/s/GPU)"])
_SAMPLES = frozenset(["samples per second", "samples per second (global)"])
_LOSSES = frozenset(["lm loss", "lm-loss"])
_SUMMED = ("forward_backward", "communication", "optimizer")
_BREAKDOWN = re.compile(
    r"Time breakdown\s*:\s*forward\+backward (\S+?),\s*communication (\S+?),\s*optimizer (\S+)"
)
_TIMERS = re.compile(r"time \(ms\)\s*\|(.*)$")
_TABLE = re.compile(r"^\s*(?:\S+:\s+)?([\w/-]+)\s\.{2,}:\s*\(([\d.]+),\s*([\d.]+)\)")
_MEMORY = re.compile(r"memory \(MB\) \| allocated: \S+ \| max allocated: (\S+) \| reserved: \S+")
_PARTS = {
    "forward": "forward",
    "forward-compute": "forward",
    "backward": "backward",
    "backward-compute": "backward",
    "optimizer": "optimizer",
    "batch generator": "data_wait",
    "batch-generator": "data_wait",
    "backward-allreduce": "communication",
    "backward-params-all-reduce": "communication",
    "all-grads-sync": "communication",
    "grads-all-reduce": "communication",
    "grads-reduce-scatter": "communication",
    "params-all-gather": "communication",
    "backward-embedding-all-reduce": "communication",
    "embedding-grads-all-reduce": "communication",
}
_DEVICE = re.compile(r"\b((?:NVIDIA )?(?:A100|H100|H200|B200|V100)-[\w-]+)")
_WORLD = re.compile(r"using world size:\s*(\d+)", re.IGNORECASE)


class _Lines:
    """What the lines so far say."""

    def __init__(self, file: ToolFile, log: Log) -> None:
        self.file, self.log = file, log
        self.rows: list[dict[str, Any]] = []
        self.flops: list[float] = []
        self.rates: list[tuple[int, float]] = []
        self.memory: list[float] = []

    def iteration(self, number: int, found: re.Match[str]) -> None:
        fields = dict(_field(part) for part in found[3].split("|") if ":" in part)
        step = to_count(self.file, number, found[1], "iteration")
        if _ELAPSED not in fields:
            raise self.file.refuse(number, "an iteration without its time: the line is broken off")
        seconds = self._number(number, fields, _ELAPSED) * 1e-3
        if seconds <= 0.0:
            raise self.file.refuse(number, f"an iteration of {word(fields[_ELAPSED])} ms")
        self.log.step_times.append((number, seconds))
        row = {"step": step, "time": seconds}
        for name in _TFLOPS.intersection(fields):
            self.flops.append(self._number(number, fields, name) * TERA)
        for name in _SAMPLES.intersection(fields):
            self.rates.append((number, self._number(number, fields, name)))
        for name in _LOSSES.intersection(fields):
            if fields[name].lower() not in ("nan", "inf"):
                self.log.loss = row["loss"] = self._number(number, fields, name)
        if text := fields.get("global batch size"):
            self.log.global_batch = max(1, to_count(self.file, number, text, "global batch size"))
        if (text := fields.get("actual seqlen")) and self.log.seq_len is None:
            self.log.seq_len = max(1, to_count(self.file, number, text, "sequence length"))
        self.rows.append(row)

    def _number(self, number: int, fields: dict[str, str], name: str) -> float:
        return to_number(self.file, number, fields[name], name)

    def timers(self, number: int, found: re.Match[str]) -> None:
        for part in found[1].split("|"):
            name, value = _field(part)
            if name in _PARTS and value:
                self._timed(name, to_number(self.file, number, value, f"timer {name}"))

    def table(self, number: int, found: re.Match[str]) -> None:
        self._timed(found[1], to_number(self.file, number, found[3], f"timer {found[1]}"))

    def _timed(self, name: str, milliseconds: float) -> None:
        """Add to the part that a timer is of; several all-reduces are one part together."""
        step = len(self.log.step_times)
        if name not in _PARTS or not step:  # before the first iteration: the set-up's
            return
        times = self.log.timers.setdefault(_PARTS[name], [])
        if len(times) >= step:
            times[-1] += milliseconds * 1e-3
        else:
            times.append(milliseconds * 1e-3)

    def breakdown(self, number: int, found: re.Match[str]) -> None:
        for part, text in zip(_SUMMED, found.groups(), strict=True):
            seconds = to_number(self.file, number, text, part)
            self.log.timers.setdefault(part, []).append(seconds)

    def allocated(self, number: int, found: re.Match[str]) -> None:
        self.memory.append(to_number(self.file, number, found[1], "memory") * 2.0**20)


def _read(file: ToolFile, given: Given) -> Reading:
    log = Log(framework="megatron")
    read_settings(file.head, log)
    if found := _WORLD.search(file.text):
        log.num_gpus = max(1, to_count(file, None, found[1], "world size"))
    if found := _DEVICE.search(file.head):
        log.device = device_name(found[1])
    lines = _Lines(file, log)
    take_lines(
        file,
        (
            (_ITERATION, lines.iteration),
            (_TIMERS, lines.timers),
            (_TABLE, lines.table),
            (_BREAKDOWN, lines.breakdown),
            (_MEMORY, lines.allocated),
        ),
    )
    if lines.flops:
        log.printed_flops = (median(lines.flops), 0.0)
    if lines.rates:
        log.samples_per_s = (lines.rates[-1][0], median([rate for _, rate in lines.rates]))
    if lines.memory:
        log.peak_memory = max(lines.memory)
        log.memory_kind = "allocated, largest of the ranks printed"
    notes = _notes(log, bool(lines.rows))
    return Reading(records=tuple(records_of(file, log, given)), steps=lines.rows, notes=notes)


def _notes(log: Log, has_rows: bool) -> list[str]:
    notes = []
    zero = sorted(p for p, times in log.timers.items() if not any(t > 0.0 for t in times))
    if zero:
        notes.append(
            f"timers that read 0 and are missing: {', '.join(zero)}; newer Megatrons print others: "
            "--timing-log-level 1"
        )
    if has_rows and not log.timers:
        notes.append("it has no timers: --timing-log-level 1 prints them")
    return notes


def _field(part: str) -> tuple[str, str]:
    name, _, value = part.partition(":")
    return " ".join(name.split()), value.strip()


IMPORTER = Importer(
    name="megatron",
    title="Megatron-LM's and Megatron-DeepSpeed's log",
    order=90,
    recognises=lambda file: (
        file.begins("elapsed time per iteration (ms)")
        or file.matches(r"^Time breakdown : forward\+backward")
    ),
    read=_read,
    definition="wall time of an iteration, mean since the line before, all GPUs; timers: the "
    "slowest rank's",
    judged_by="no claim unless the model is known: --model; timers that are absent or read 0 are "
    "missing",
    source="github.com/NVIDIA/Megatron-LM megatron/training/training.py",
    tested_on=("megatron-timers.txt", "megatron-new-format.txt", "megatron-zero-timers.txt"),
)
