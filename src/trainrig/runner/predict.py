"""Predictions for people and for runs: measured rates from a run, steps foretold before training.

Answers which records of a run are rates, and what a step should take on the machine in the room
before it is trained; corrections that `trainrig ledger --calibrate` stored are applied.  The
numbers themselves are `predict`'s.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from trainrig.analysis.prediction_error import FROM_RATES, part_of
from trainrig.benchmarks import training
from trainrig.errors import DataError, TrainrigError
from trainrig.predict.prediction import CONFIDENCE, Foretold, foretell
from trainrig.predict.rates.from_records import rates_of_records
from trainrig.predict.scenario import Measured
from trainrig.record import Record, Status, new_id
from trainrig.store import RunData, read_run
from trainrig.workload.model_lookup import find

if TYPE_CHECKING:  # a prediction does not wait for what plans measurements
    from trainrig.runner.plan import Task

Corrections = Mapping[str, float]
"""By `part_of`: measured over predicted."""


def rates_of_run(path: Path) -> Measured:
    """The measured points of a run's GPU, else of its host.

    Raises DataError where nothing usable was measured.
    """
    run = read_run(path)
    points = [r for r in run.records if r.is_point and r.is_usable and r.device]
    gpus = [r for r in points if r.device_index is not None]
    chosen = gpus or points
    if not chosen:
        raise DataError(f"{path} has no measured rates", "measure them: trainrig qualify")
    device = chosen[0].device
    assert device is not None
    own = tuple(r for r in chosen if r.device == device)
    return Measured(records=own, device=device, memory=None if gpus else _host_memory(run))


def _host_memory(run: RunData) -> float | None:
    """B that the host has, or that its container may take."""
    found = (run.machine or {}).get("memory")
    sizes = found if isinstance(found, Mapping) else {}
    known = [sizes.get(name) for name in ("total_bytes", "limit_bytes")]
    return min((float(size) for size in known if isinstance(size, int) and size > 0), default=None)


def measured(path: Path | None) -> Measured:
    """As `rates_of_run`, and nothing where no run is named."""
    return Measured() if path is None else rates_of_run(path)


def predict_training(
    task: Task, expected: Record, points: Iterable[Record], corrections: Corrections | None = None
) -> tuple[Record, ...]:
    """What a training step should be, as records to write before it is trained.

    ``expected`` is the prediction that `expectations` made for the step's FLOP/s: where that had
    grounds it stays.  ``points`` are what was measured on this machine so far, the newest last;
    of the device's they make the rates.  Without grounds the one record has status missing.
    """
    bare = expected.replace(limit=None, interval=None, status=Status.OK, reason=None, value=None)
    bare = bare.replace(source=None)
    own = _newest(r for r in points if r.device == task.target.name and r.is_usable)
    try:
        rates = rates_of_records(own, task.target.chip)
        found = foretell(find(str(task.case["model"])), training.layout_of(task.case), rates)
    except TrainrigError as error:
        reason = f"no target known: {error.message}"
        missing = bare.replace(id=new_id(), metric="time", unit="s", conditions=FROM_RATES)
        return (missing.replace(status=Status.MISSING, reason=reason),)
    source = "; ".join(f"{name}: {rates.provenance[name]}" for name in ("matmul", "stream"))
    records = [corrected(bare, one, source, corrections or {}) for one in found]
    has_grounds = expected.value is not None
    return tuple(r for r in records if r.metric != "flop_rate" or not has_grounds)


def _newest(points: Iterable[Record]) -> list[Record]:
    """Of several points of one case the last: rates are the machine's as it is now."""
    return list({record.key: record for record in points}.values())


def corrected(bare: Record, one: Foretold, source: str, corrections: Corrections) -> Record:
    """A prediction of the step's model as a record, with what the ledger taught."""
    # The plan's own record says what is required; those beside it require nothing.
    planned = bare.conditions if one.metric == bare.metric else {}
    conditions = {**planned, **FROM_RATES}
    named = bare.replace(id=new_id(), metric=one.metric, unit=one.unit)
    factor = corrections.get(part_of(named), 1.0)
    low, high = one.interval
    if factor != 1.0:
        conditions |= {"correction": factor}
        source += f"; corrected by {factor:.3f}, from this machine's ledger"
    return named.replace(
        value=one.value * factor,
        interval=(low * factor, high * factor),
        confidence=CONFIDENCE,
        source=source,
        conditions=conditions,
    )
