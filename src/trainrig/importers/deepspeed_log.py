"""DeepSpeed's log: samples a second, step by step, timers and memory.

``RunningAvgSamplesPerSec`` is samples of all GPUs over the time from step to step, on average
since the second one; ``CurrSamplesPerSec`` is of the steps since the line before.  The last running
average counts, and every current one is a sample.  Memory is the allocator's, GB of 2³⁰.

Source: deepspeedai/DeepSpeed deepspeed/utils/timer.py (read 2026-11-22).
"""

from __future__ import annotations

import re
from typing import Any

from trainrig.importers.extract import take_lines, to_count, to_number
from trainrig.importers.importer import Given, Importer, Reading, ToolFile
from trainrig.importers.training_log import Log, read_settings, records_of

_SPEED = re.compile(
    r"global_step=(?P<step>\d+), RunningAvgSamplesPerSec=(?P<mean>[^,\s]+), "
    r"CurrSamplesPerSec=(?P<now>[^,\s]+), MemAllocated=(?P<memory>[^G,\s]+)GB, "
    r"MaxMemAllocated=(?P<peak>[^G,\s]+)GB"
)
_OLDER = re.compile(r"\b(?P<step>\d+)/\d+, SamplesPerSec=(?P<mean>[\d.eE+-]+)")
_TORN = re.compile(r"RunningAvgSamplesPerSec|\b\d+/\d+, SamplesPerSec")
_TIMERS = re.compile(r"time \(ms\) \| (.*(?:fwd|bwd|step).*)$")
_LOSS = re.compile(r"\bloss[:=]\s*(-?\d+\.?\d*(?:[eE][-+]?\d+)?)")
_PARTS = {
    "fwd": "forward",
    "fwd_microstep": "forward",
    "forward_microstep": "forward",
    "forward": "forward",
    "bwd": "backward",
    "bwd_microstep": "backward",
    "backward_microstep": "backward",
    "backward": "backward",
    "step": "optimizer",
    "step_microstep": "optimizer",
    "bwd_allreduce": "communication",
    "bwd_allreduce_microstep": "communication",
    "backward_allreduce": "communication",
    "backward_allreduce_microstep": "communication",
}


class _Lines:
    """What the lines so far say."""

    def __init__(self, file: ToolFile, log: Log) -> None:
        self.file, self.log = file, log
        self.steps: list[dict[str, Any]] = []
        self.timed: dict[tuple[str, bool], list[float]] = {}
        """By part, and whether it is of a micro-batch and not of a whole step."""

    def speed(self, number: int, found: re.Match[str]) -> None:
        file, log, facts = self.file, self.log, found.groupdict()
        rate = to_number(file, number, found["mean"], "samples a second")
        now = to_number(file, number, facts.get("now") or found["mean"], "samples a second")
        if min(rate, now) < 0.0:
            raise file.refuse(number, "samples a second below zero")
        log.samples_per_s = (number, rate)
        step = to_count(file, number, found["step"], "step")
        self.steps.append({"step": step, "samples_per_s": now})
        if facts.get("peak"):
            log.peak_memory = to_number(file, number, facts["peak"], "memory") * 2.0**30
            log.memory_kind = "allocated by torch, GB of 2³⁰"

    def torn(self, number: int, _: re.Match[str]) -> None:
        raise self.file.refuse(number, "a line of speeds that is broken off")

    def timers(self, number: int, found: re.Match[str]) -> None:
        for part in found[1].split("|"):
            name, _, value = (each.strip() for each in part.partition(":"))
            if name in _PARTS:
                seconds = to_number(self.file, number, value, f"timer {name}") * 1e-3
                kind = _PARTS[name], name.endswith("_microstep")
                self.timed.setdefault(kind, []).append(seconds)

    def loss(self, number: int, found: re.Match[str]) -> None:
        self.log.loss = to_number(self.file, number, found[1], "loss")


def _read(file: ToolFile, given: Given) -> Reading:
    log = Log(framework="deepspeed")
    read_settings(file.head, log)
    if found := re.search(r"world[_ ]size\D{1,4}(\d{1,6})", file.head):
        log.num_gpus = max(1, to_count(file, None, found[1], "world size"))
    lines = _Lines(file, log)
    take_lines(
        file,
        (
            (_SPEED, lines.speed),
            (_OLDER, lines.speed),
            (_TORN, lines.torn),
            (_TIMERS, lines.timers),
            (_LOSS, lines.loss),
        ),
    )
    for (part, is_micro), times in lines.timed.items():
        if not is_micro or (part, False) not in lines.timed:
            log.timers[part] = times
    if log.samples_per_s and log.global_batch and log.samples_per_s[1] > 0.0:
        log.step_times.append((log.samples_per_s[0], log.global_batch / log.samples_per_s[1]))
    notes = [] if log.timers else ['it has no timers: "wall_clock_breakdown": true prints them']
    return Reading(records=tuple(records_of(file, log, given)), steps=lines.steps, notes=notes)


IMPORTER = Importer(
    name="deepspeed",
    title="DeepSpeed's log of a training",
    order=100,
    recognises=lambda file: file.begins("SamplesPerSec="),
    read=_read,
    definition="samples of all GPUs over the time between steps, on average since the second one",
    judged_by="no claim unless the model is known: --model; timers that are absent are missing",
    source="github.com/deepspeedai/DeepSpeed deepspeed/utils/timer.py",
    tested_on=("deepspeed-sft.txt",),
)
