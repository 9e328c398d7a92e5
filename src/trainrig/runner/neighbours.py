"""Did others use the machine while an experiment trained?

A rank cannot tell: beside it other ranks of the same training run, and to its own counters they
are strangers.  The parent can: what all processors did, less what this process and the children
that it has waited for used, is what others took.  It works for every engine.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from trainrig.machine.snapshot import Missing
from trainrig.machine.telemetry import HostConditions, HostLoad, between
from trainrig.measure.sampler import MAX_OTHER, MAX_STEAL

_TICK_S = 0.01


@dataclass(slots=True)
class Watched:
    """Filled in at the end: why what ran must not be judged by its speed, or None."""

    disturbed: str | None = None


@contextmanager
def watch() -> Iterator[Watched]:
    """Read the host's counters around a body that starts processes and waits for them."""
    watched, load = Watched(), HostLoad()
    before = load.read(_own_seconds())
    yield watched
    watched.disturbed = judge(between(before, load.read(_own_seconds())))


def judge(host: HostConditions) -> str | None:
    """Why a training must not be judged, or None."""
    grain = _TICK_S / host.wall_s
    rules = (
        (host.busy_other_fraction, MAX_OTHER, "other processes used {:.0%} of the processors"),
        (host.steal_fraction, MAX_STEAL, "the hypervisor took {:.0%} of the processors"),
    )
    for value, most, words in rules:
        if not isinstance(value, Missing) and value > most + grain:
            return words.format(value).replace("%", " %")
    return None


def _own_seconds() -> float:
    """Processor time of this process and of the children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)
