"""What every benchmark family provides; the families are matmul, vector and copy.

The half that the parent needs (version, work, metrics) imports no torch.  The
half that the worker needs (`prepare`) imports it when called.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass

from trainrig.errors import TrainrigError, UsageError
from trainrig.record import Case
from trainrig.workload import Work

FAMILIES = ("matmul", "vector", "copy")


class Unsupported(TrainrigError):
    """This device or this torch has no such operation; the case is skipped with the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A case ready to be timed in a worker."""

    call: Callable[[], object]
    """One operation; device work may still be in flight when it returns."""
    wrong: Callable[[], str | None]
    """Runs the operation once more and says what is wrong with the answer, or None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A rate that is derived from the time: amount per call over seconds per call."""

    name: str
    unit: str
    amount: float
    formula: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One benchmark family."""

    name: str
    version: int
    """Raised whenever what is timed or counted changes: versions are never compared."""
    check: Callable[[Case], None]
    """Raises UsageError when the case is not one of this family's."""
    work: Callable[[Case], Work]
    """FLOPs and counted bytes of one call."""
    metrics: Callable[[Case], tuple[Metric, ...]]
    """The rates of a case; the first one is the case's headline."""
    memory: Callable[[Case], int]
    """Bytes the case needs on its device, the answer's check included."""
    prepare: Callable[[Case, str], Prepared]
    """(case, torch device) → what to time.  Raises Unsupported, or torch's out-of-memory error."""


def family(name: str) -> Family:
    """The family called ``name``.  Raises UsageError if there is none."""
    if name not in FAMILIES:
        raise UsageError(f"unknown family {name!r}", "one of: " + ", ".join(FAMILIES))
    found: Family = importlib.import_module(f"trainrig.measure.{name}").FAMILY
    return found
