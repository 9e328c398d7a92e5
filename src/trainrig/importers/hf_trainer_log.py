"""Hugging Face's Trainer: trainer_state.json, train_results.json, and what it prints.

Rates are the Trainer's own: samples and steps over ``train_runtime``, the wall time of the whole
training with its evaluations, logging and checkpoints, all GPUs together.  Also read are the lines
that benchmark notebooks print around it (``Total samples / second``, ``Per GPU memory (GB)`` of
10⁹ bytes, ``Per GPU TFLOPs``).  ``total_flos`` is the Trainer's estimate (6 · parameters · tokens):
it is shown beside and is no rate of ours.

Source: huggingface/transformers trainer.py and trainer_utils.speed_metrics (read 2026-11-22).
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import Field

from trainrig.importers.extract import EXTERNAL, GIGA, TERA, fitted, take_lines, to_count, to_number
from trainrig.importers.importer import Given, Importer, Reading, ToolFile
from trainrig.importers.training_log import Log, read_settings, records_of
from trainrig.record import read_by

_NUMBER = r"(-?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|nan|inf|-inf)"
_PAIR = re.compile(rf"['\"](\w+)['\"]:\s*['\"]?{_NUMBER}['\"]?(?=[,}}\s])")
_DICTIONARY = re.compile(r"\{\s*['\"]\w+['\"]:.*\}")
_TORN = re.compile(r"\{'(?:loss|train_runtime|eval_loss)':[^}]*$")
_METRICS = re.compile(rf"^\s*(train_\w+|epoch|eval_\w+)\s+=\s+{_NUMBER}\s*$")
_PRINTED = re.compile(
    r"(?P<what>Total samples / second|Per GPU memory \(GB\)|Per GPU TFLOPs)\s*:\s*(?P<value>\S+)"
)
_STATED = {
    "batch_size": "Instantaneous",
    "global_batch": "Total train",
    "grad_accum": "Gradient",
}
_SETTING = re.compile(
    r"(Instantaneous batch size per device|Total train batch size|Gradient Accumulation steps)"
    r"[^=]*=\s*([\d,]+)"
)
_RATE = "train_samples_per_second"


@read_by({"extra": "ignore"})
class _State:
    log_history: tuple[Mapping[str, Any], ...]
    global_step: Annotated[int, Field(ge=0)] = 0
    train_batch_size: Annotated[int, Field(ge=1)] | None = None
    num_input_tokens_seen: int | None = None
    total_flos: float | None = None


@read_by(EXTERNAL)
class _Results:
    train_samples_per_second: Annotated[float, Field(ge=0.0)]
    train_steps_per_second: Annotated[float, Field(ge=0.0)] | None = None
    train_runtime: Annotated[float, Field(ge=0.0)] | None = None
    train_loss: float | None = None


def _read(file: ToolFile, given: Given) -> Reading:
    if file.is_json and file.begins('"log_history"'):
        return _read_state(file, given)
    if file.is_json and file.begins(f'"{_RATE}"'):
        found = fitted(file, _Results)
        log = Log(framework="huggingface", has_timers=False, loss=found.train_loss)
        log.samples_per_s = (1, found.train_samples_per_second)
        _step_time(log, 1, found.train_steps_per_second)
        return Reading(records=tuple(records_of(file, log, given)), notes=_no_memory(log))
    return _read_text(file, given)


def _read_state(file: ToolFile, given: Given) -> Reading:
    state = fitted(file, _State)
    log = Log(framework="huggingface", has_timers=False, batch_size=state.train_batch_size)
    rows = [_row(entry) for entry in state.log_history]
    steps = [row for row in rows if "loss" in row and "step" in row]
    last = next((row for row in reversed(rows) if _RATE in row), {})
    if _RATE in last:
        log.samples_per_s = (1, last[_RATE])
        _step_time(log, 1, last.get("train_steps_per_second"))
    log.loss = last.get("train_loss", steps[-1]["loss"] if steps else None)
    notes = _no_memory(log)
    if _RATE not in last:
        notes.append("it has no train_runtime: the training was not finished, its rate is missing")
    if any(not math.isfinite(each) for row in rows for each in row.values()):
        notes.append("a loss in it is not finite")
    return Reading(
        records=tuple(records_of(file, log, given)),
        steps=[{key: row[key] for key in row if math.isfinite(row[key])} for row in steps],
        notes=notes,
    )


def _row(entry: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of an entry of the history."""
    return {
        str(key): float(value)
        for key, value in entry.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300
    } | {
        str(key): math.nan
        for key, value in entry.items()
        if isinstance(value, float) and not math.isfinite(value)
    }


def _no_memory(log: Log) -> list[str]:
    return [] if log.peak_memory is not None else ["it states no memory"]


def _step_time(log: Log, line: int, steps_per_s: float | None) -> None:
    """A rate of 0.007 steps a second has one digit: the time is not taken from it."""
    if steps_per_s and steps_per_s >= 0.1:
        log.step_times.append((line, 1.0 / steps_per_s))


# ---- what it prints


class _Lines:
    """What the lines so far say; several trainings may stand in one file."""

    def __init__(self, file: ToolFile) -> None:
        self.file = file
        self.shared = Log(framework="huggingface", has_timers=False)
        self.logs: list[Log] = []
        self.steps: list[dict[str, float]] = []
        self.metrics: dict[str, tuple[int, float]] = {}
        self.runtimes: list[tuple[float, float]] = []

    def new(self) -> Log:
        """A training with what the file states of all of them."""
        log = dataclasses.replace(self.shared, number=len(self.logs), step_times=[], timers={})
        self.logs.append(log)
        return log

    def stated(self, number: int, found: re.Match[str]) -> None:
        name = next(key for key, mark in _STATED.items() if found[1].startswith(mark))
        value = to_count(self.file, number, found[2].replace(",", ""), name)
        setattr(self.shared, name, max(1, value))

    def printed(self, number: int, found: re.Match[str]) -> None:
        value = to_number(self.file, number, found["value"], found["what"])
        if value < 0.0:
            raise self.file.refuse(number, f"{found['what']} is below zero")
        off = 0.5 * 10.0 ** -len(found["value"].partition(".")[2])
        is_rate = found["what"].startswith("Total")
        log = self.new() if is_rate or not self.logs else self.logs[-1]
        if is_rate:
            log.samples_per_s, log.digits = (number, value), off
        elif "memory" in found["what"]:
            log.peak_memory, log.memory_kind = value * GIGA, "as printed, GB of 10⁹"
        else:
            log.printed_flops = value * TERA, off * TERA

    def metric(self, number: int, found: re.Match[str]) -> None:
        self.metrics[found[1]] = (number, to_number(self.file, number, found[2], found[1]))

    def dictionary(self, number: int, found: re.Match[str]) -> None:
        pairs = {key: float(value) for key, value in _PAIR.findall(found[0])}
        if _RATE in pairs:
            self._end(number, pairs)
        elif "loss" in pairs:
            row = {key: value for key, value in pairs.items() if math.isfinite(value)}
            self.steps.append({"step": float(len(self.steps) + 1), **row})

    def _end(self, number: int, pairs: dict[str, float]) -> None:
        runtime, rate = pairs.get("train_runtime", 0.0), pairs[_RATE]
        # Every rank prints the end of one training: their clocks differ by parts of a percent.
        if any(abs(runtime - each[0]) <= 0.01 * each[0] for each in self.runtimes):
            return
        self.runtimes.append((runtime, rate))
        log = self.new()
        log.samples_per_s = (number, to_number(self.file, number, str(rate), _RATE))
        _step_time(log, number, pairs.get("train_steps_per_second"))
        log.loss = pairs.get("train_loss")

    def torn(self, number: int, _: re.Match[str]) -> None:
        raise self.file.refuse(number, "a line of the Trainer's that is broken off")

    def finish(self) -> Iterator[str]:
        """Trainings that only the metrics at the end or the steps speak of; what is missing."""
        if not self.logs and _RATE in self.metrics:
            log = self.new()
            log.samples_per_s = self.metrics[_RATE]
            if "train_steps_per_second" in self.metrics:
                _step_time(log, *self.metrics["train_steps_per_second"])
            log.loss = self.metrics.get("train_loss", (0, None))[1]
        if not self.logs and self.steps:
            log = self.new()
            log.loss = self.steps[-1].get("loss")
            yield "it has no train_runtime: the training was not finished, its rate is missing"
        if self.logs and all(log.peak_memory is None for log in self.logs):
            yield "it states no memory"


def _read_text(file: ToolFile, given: Given) -> Reading:
    lines = _Lines(file)
    read_settings(file.head, lines.shared)
    take_lines(
        file,
        (
            (_SETTING, lines.stated),
            (_PRINTED, lines.printed),
            (_METRICS, lines.metric),
            (_DICTIONARY, lines.dictionary),
            (_TORN, lines.torn),
        ),
    )
    notes = tuple(lines.finish())
    records = [record for log in lines.logs for record in records_of(file, log, given)]
    return Reading(records=records, steps=lines.steps, notes=notes)


def _recognises(file: ToolFile) -> bool:
    return (
        (file.is_json and file.begins('"log_history"'))
        or file.begins(_RATE)
        or file.matches(r"Total samples / second\s*:|Per GPU TFLOPs\s*:")
        or file.matches(r"^\{'loss': .*'learning_rate': ")
    )


IMPORTER = Importer(
    name="huggingface",
    title="Trainer's trainer_state.json, results and log",
    order=110,
    recognises=_recognises,
    read=_read,
    definition="samples and steps over the wall time of the whole training, all GPUs; FLOP/s by "
    "this program's formula where the model is known",
    judged_by="published trainings of the same model: one that is half as fast is a finding",
    source="github.com/huggingface/transformers trainer_utils.py",
    tested_on=("hf-bert-large-4090.txt", "hf-trainer-state.json", "hf-trainer-16-ranks.txt"),
)
