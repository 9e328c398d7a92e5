"""What every benchmark family provides: matmul, vector, copy, layer, storage and step.

The half that the parent needs (version, work, metrics) imports no torch.  The
half that the worker needs (`prepare`) imports it when called.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass

from trainrig.errors import TrainrigError, UsageError
from trainrig.measure.timing import Samples, Settings
from trainrig.record import Case
from trainrig.stats import AGREEMENT
from trainrig.workload import Work

SERVER = "trainrig.measure.worker_main"
FAMILIES = ("matmul", "vector", "copy", "layer", "storage", "step")


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
class SelfTimed:
    """A case that a program times which has its own loop: fio.

    The one timing loop cannot look into such a program, and starting it for each
    call would time the start.  So it runs once per worker and hands over its raw
    samples in the loop's own terms, seconds a call; all that follows (two workers,
    their agreement, the interval, what disturbs) is the same for both.
    """

    sample: Callable[[Settings], Samples]
    """Runs the program within the time that is given."""
    wrong: Callable[[], str | None]
    """What is wrong with what it read or wrote, or None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """What is derived from the time of a call: a rate, or the time itself."""

    name: str
    unit: str
    amount: float | None
    """Per call; its rate is this over the seconds of a call.  None: those seconds."""
    formula: str

    def of(self, seconds: float) -> float:
        """Its value where a call takes ``seconds``."""
        return seconds if self.amount is None else self.amount / seconds


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
    prepare: Callable[[Case, str], Prepared | SelfTimed]
    """(case, device) → what to time.  Raises Unsupported, or torch's out-of-memory error."""
    server: str = SERVER
    """The program whose workers run this family's cases."""
    results: tuple[tuple[str, str], ...] = ()
    """Conditions of an attempt that are results of their own, as (name, unit): each becomes a
    point beside the metrics, the median of the attempts'."""
    agreement: float = AGREEMENT
    """How far apart the medians of two workers on a quiet machine may lie, as a share."""


def family(name: str) -> Family:
    """The family called ``name``.  Raises UsageError if there is none."""
    if name not in FAMILIES:
        raise UsageError(f"unknown family {name!r}", "one of: " + ", ".join(FAMILIES))
    found: Family = importlib.import_module(f"trainrig.measure.{name}").FAMILY
    return found
