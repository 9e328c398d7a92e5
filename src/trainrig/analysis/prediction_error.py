"""The ledger: predictions beside what was measured, and what they teach.

Answers how far off predictions were, by part and by run, and fits a correction for each part on the
older runs that is tried on the newest.  A prediction counts if it had a value before its point was
measured, the point is usable (not noisy), and it was no bound.

Error is of the time: predicted / measured − 1 for times and sizes, measured / predicted − 1 for
rates, so that above zero is always "took less than was predicted".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from trainrig.record import Kind, Record
from trainrig.stats import ErrorSummary, grouped, median, summarise_errors

MIN_RUNS = 4
"""Runs with a part, before a correction of it is fitted: three to fit, one to hold out."""
HELD_OUT = 0.25
FROM_RATES = {"from": "rates"}
"""A condition of predictions that the step's model made, and history or publications did not."""


def _error(predicted: float, measured: float, unit: str) -> float:
    return measured / predicted - 1.0 if "/" in unit else predicted / measured - 1.0


def part_of(record: Record) -> str:
    """Return the key of a correction: device, benchmark and metric, and the tool of an import."""
    return f"{record.device} {record.benchmark} {record.metric}{_tool(record)}"


def _tool(record: Record) -> str:
    """Return the tool of another's measurement: `` (nccl-tests 2.13)``; empty for our own."""
    words = [
        str(record.conditions[key]) for key in ("tool", "tool_version") if key in record.conditions
    ]
    return f" ({' '.join(words)})" if words else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One prediction and what came of it."""

    run: str
    host: str
    predicted: Record
    measured: Record

    @property
    def error(self) -> float:
        """Relative error of the predicted time: see the module's paragraph."""
        predicted, measured = self.predicted.value or 0.0, self.measured.value or 0.0
        return _error(predicted, measured, self.predicted.unit)

    @property
    def inside(self) -> bool | None:
        """True where the measured value lies in the prediction's interval; None without one."""
        band, value = self.predicted.interval, self.measured.value
        return None if band is None or value is None else band[0] <= value <= band[1]

    @property
    def part(self) -> str:
        """Key of the correction that applies."""
        return part_of(self.predicted)

    @property
    def name(self) -> str:
        """Name for a reader: ``step time.forward``."""
        return f"{self.predicted.benchmark} {self.predicted.metric}{_tool(self.measured)}"

    @property
    def is_from_rates(self) -> bool:
        """True where the model of a step made the prediction."""
        return self.predicted.conditions.get("from") == FROM_RATES["from"]

    @property
    def factor(self) -> float:
        """Measured over what was predicted before any correction."""
        correction = float(str(self.predicted.conditions.get("correction", 1.0)))
        return float(self.measured.value or 0.0) / (float(self.predicted.value or 1.0) / correction)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """Predictions of one machine, oldest first."""

    host: str
    """Name of the machine."""
    machine: str
    """Identity of the machine, by which corrections are kept."""
    entries: tuple[Entry, ...]
    num_runs: int
    """Number of runs that were read, with predictions or without."""
    others: int
    """Runs of other machines in the same folder."""
    unread: tuple[str, ...] = ()
    """Runs that could not be read, with the reason."""

    @property
    def runs(self) -> tuple[str, ...]:
        """Return names of the runs that have entries, oldest first."""
        return tuple(dict.fromkeys(entry.run for entry in self.entries))


def entries_of(run: str, host: str, records: Iterable[Record]) -> tuple[Entry, ...]:
    """Return predictions of a run that were written before what they predict was measured.

    A rate beside the time that it was worked out from would count one error twice: it is left out.
    """
    waiting: dict[tuple[object, ...], Record] = {}
    points: dict[tuple[object, ...], Entry] = {}
    for record in records:
        if record.kind is Kind.PREDICTED:
            if (record.value or 0.0) <= 0.0 or "bound" in record.conditions:
                continue
            waiting[(*record.key, record.device_index)] = record
            waiting.setdefault((*record.key, None), record)
        elif record.is_point:
            place = (*record.key, record.device_index)
            predicted = waiting.get(place) or waiting.get((*record.key, None))
            points.pop(place, None)  # measured again: the last counts
            if predicted is not None and record.is_usable and record.value:
                points[place] = Entry(run=run, host=host, predicted=predicted, measured=record)
    timed = {_subject(e.measured) for e in points.values() if e.measured.metric == "time"}
    return tuple(
        entry
        for entry in points.values()
        if "/" not in entry.measured.unit or _subject(entry.measured) not in timed
    )


def _subject(record: Record) -> tuple[object, ...]:
    """Return what was measured, whatever the metric."""
    return record.replace(metric="time").key, record.device_index


def errors_of(name: str, entries: Sequence[Entry]) -> ErrorSummary:
    """Return the errors of one entry or more.  Bias above zero: it took less than predicted."""
    inside = [entry.inside for entry in entries if entry.inside is not None]
    return summarise_errors(name, [entry.error for entry in entries], inside)


def by_part(ledger: Ledger) -> tuple[ErrorSummary, ...]:
    """Return a summary for each part, those that the step's model made first."""
    groups = grouped(ledger.entries, lambda entry: (not entry.is_from_rates, entry.name))
    return tuple(errors_of(name, entries) for (_, name), entries in sorted(groups.items()))


def by_run(ledger: Ledger) -> tuple[ErrorSummary, ...]:
    """Return a summary for each run, oldest first."""
    groups = grouped(ledger.entries, lambda entry: entry.run)
    return tuple(errors_of(run, entries) for run, entries in groups.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """A factor on a part, and whether it helped where it was not fitted."""

    part: str
    factor: float
    fitted: int
    """Points that it was fitted on."""
    held_out: int
    median_error_before: float
    """Median error of the newest runs without the correction."""
    median_error_after: float

    @property
    def helps(self) -> bool:
        """True where the correction lowers the error of the runs that it was not learned from."""
        return self.median_error_after < self.median_error_before


def calibrate(ledger: Ledger) -> tuple[Correction, ...]:
    """Return a correction for each part that a step's model predicts, fitted on older runs.

    The factor is the median of measured over predicted (uncorrected) of all but the newest quarter
    of the runs that have the part.
    """
    modelled = (entry for entry in ledger.entries if entry.is_from_rates)
    parts = grouped(modelled, lambda entry: entry.part)
    return tuple(c for part, entries in sorted(parts.items()) if (c := _correction(part, entries)))


def _correction(part: str, entries: Sequence[Entry]) -> Correction | None:
    runs = list(dict.fromkeys(entry.run for entry in entries))
    if len(runs) < MIN_RUNS:
        return None
    newest = set(runs[-max(1, round(HELD_OUT * len(runs))) :])
    old = [entry.factor for entry in entries if entry.run not in newest]
    new = [entry for entry in entries if entry.run in newest]
    factor = median(old)
    unit = entries[0].predicted.unit
    return Correction(
        part=part,
        factor=factor,
        fitted=len(old),
        held_out=len(new),
        median_error_before=median([abs(_error(1.0, e.factor, unit)) for e in new]),
        median_error_after=median([abs(_error(factor, e.factor, unit)) for e in new]),
    )


def ledger_dict(ledger: Ledger, corrections: Sequence[Correction] | None) -> dict[str, Any]:
    """Return the object that ``ledger --json`` prints."""
    result: dict[str, Any] = {
        "host": ledger.host,
        "runs": ledger.num_runs,
        "runs_of_others": ledger.others,
        "unread": list(ledger.unread),
        "predictions": len(ledger.entries),
        "all": asdict(errors_of("all", ledger.entries)) if ledger.entries else None,
        "parts": [asdict(part) for part in by_part(ledger)],
        "by_run": [asdict(run) for run in by_run(ledger)],
    }
    if corrections is not None:
        result["corrections"] = [
            asdict(correction) | {"kept": correction.helps} for correction in corrections
        ]
    return result
