"""Hugging Face's Trainer: trainer_state.json, train_results.json and all_results.json.

Rates are the Trainer's own: samples and steps over ``train_runtime``, the wall time of the whole
training with its evaluations, logging and checkpoints, all GPUs together.  ``total_flos`` is the
Trainer's estimate (6 · parameters · tokens): it is no rate of ours.  What the Trainer prints is
read by `training_lines`.

Source: huggingface/transformers trainer.py and trainer_utils.speed_metrics (read 2026-11-22).
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from trainrig.importers.extract import EXTERNAL, fitted
from trainrig.importers.file import FilePart
from trainrig.importers.importer import ImportHints, Reading
from trainrig.importers.training_log import Log, records_of
from trainrig.record import read_by

_FRAMEWORK = "huggingface"
_RATE = "train_samples_per_second"


@read_by({"extra": "ignore"})
class _State:
    log_history: tuple[Mapping[str, Any], ...]
    train_batch_size: Annotated[int, Field(ge=1)] | None = None


@read_by(EXTERNAL)
class _Results:
    train_samples_per_second: Annotated[float, Field(ge=0.0)]
    train_steps_per_second: Annotated[float, Field(ge=0.0)] | None = None
    train_runtime: Annotated[float, Field(ge=0.0)] | None = None
    train_loss: float | None = None


def read_json(file: FilePart, hints: ImportHints) -> Reading:
    """Read a state or results of the Trainer.  Raises DataError with the line that is wrong."""
    if '"log_history"' in file.text:
        return _read_state(file, hints)
    results = fitted(file, _Results)
    log = Log(framework=_FRAMEWORK, has_timers=False, loss=results.train_loss)
    log.samples_per_s = (file.lines[0][0], results.train_samples_per_second)
    _step_time(log, file, results.train_steps_per_second)
    return Reading(records=tuple(records_of(file, log, hints)), notes=["it states no memory"])


def _read_state(file: FilePart, hints: ImportHints) -> Reading:
    state = fitted(file, _State)
    log = Log(framework=_FRAMEWORK, has_timers=False)
    log.settings.batch_size = state.train_batch_size
    rows = [_row(entry) for entry in state.log_history]
    steps = [row for row in rows if "loss" in row and "step" in row]
    last = next((row for row in reversed(rows) if _RATE in row), {})
    notes = ["it states no memory"]
    if _RATE in last:
        log.samples_per_s = (file.lines[0][0], last[_RATE])
        _step_time(log, file, last.get("train_steps_per_second"))
    else:
        notes.append("it has no train_runtime: the training was not finished, its rate is missing")
    log.loss = last.get("train_loss", steps[-1]["loss"] if steps else None)
    if any(not math.isfinite(logged) for row in rows for logged in row.values()):
        notes.append("a loss in it is not finite")
    return Reading(
        records=tuple(records_of(file, log, hints)),
        steps=[{key: row[key] for key in row if math.isfinite(row[key])} for row in steps],
        notes=notes,
    )


def _row(entry: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of an entry of the history; what is not finite is nan."""
    return {
        str(key): float(value) if abs(value) < 1e300 else math.nan
        for key, value in entry.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }


def _step_time(log: Log, file: FilePart, steps_per_s: float | None) -> None:
    """Return the time of a step; a rate such as 0.007 steps/s has too few digits for it."""
    if steps_per_s and steps_per_s >= 0.1:
        log.series["time"] = array("d", [1.0 / steps_per_s])
        log.line = file.lines[0][0]
