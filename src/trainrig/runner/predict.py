"""Predictions for people and for runs: measured rates from a run, steps foretold before training.

Answers which records of a run are rates, and what a step should take on the machine in the room
before it is trained; corrections that `trainrig ledger --calibrate` stored are applied.  The
numbers themselves are `predict`'s.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from trainrig.analysis.prediction_error import FROM_RATES, part_of
from trainrig.errors import DataError
from trainrig.predict.prediction import CONFIDENCE, PredictedMetric
from trainrig.predict.scenario import Measured
from trainrig.record import Record, new_id
from trainrig.store import RunData, read_run

if TYPE_CHECKING:  # a prediction does not wait for what plans measurements
    pass

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


def corrected(bare: Record, one: PredictedMetric, source: str, corrections: Corrections) -> Record:
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
