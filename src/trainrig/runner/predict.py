"""Predictions for people and for runs: measured rates from a run, upgrades ranked, steps foretold.

Answers which records of a run are rates, and what a step should take on the machine in the room
before it is trained.  The numbers themselves are `predict`'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from trainrig.errors import DataError
from trainrig.record import Record
from trainrig.store import read_run


def rates_of_run(path: Path) -> tuple[tuple[Record, ...], str]:
    """The measured points of a run, and the device that they are of: its GPU, else the host.

    Raises DataError where nothing usable was measured.
    """
    points = [r for r in read_run(path).records if r.is_point and r.is_usable and r.device]
    gpus = [r for r in points if r.device_index is not None]
    chosen = gpus or points
    if not chosen:
        raise DataError(f"{path} has no measured rates", "measure them: trainrig qualify")
    device = chosen[0].device
    assert device is not None
    return tuple(r for r in chosen if r.device == device), device


def measured(path: Path | None) -> tuple[Sequence[Record], str | None]:
    """As `rates_of_run`, and nothing where no run is named."""
    return ((), None) if path is None else rates_of_run(path)
