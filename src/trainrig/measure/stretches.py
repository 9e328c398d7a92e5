"""Stretches of a measurement on the host: which were quiet, and what happened in those.

A neighbour that comes and goes spoils a whole window of samples for a part of it.  So the timing
loop asks at the end of each stretch of samples whether it was quiet, by the two witnesses that
resolve nanoseconds: how long our threads were ready to run and had no processor, and how much of
the time the measuring thread ran.  Samples of other stretches are left out, whatever they say: it
is never their time that decides.  The rules that count in ticks of 10 ms are judged over all quiet
stretches together, as they are over a whole window.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from trainrig.machine.counters import HostConditions, HostLoad, HostReading, between, rise
from trainrig.machine.snapshot import Missing, value_or
from trainrig.machine.system_access import Host
from trainrig.measure.waits import OwnThreads, compare_waits, is_held_up, thread_waits


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reading:
    host: HostReading
    waits: dict[int, float]
    main_ran_s: float
    at_s: float


class Stretches:
    """Reads the counters at the end of each stretch."""

    def __init__(self, load: HostLoad, host: Host) -> None:
        """The first stretch begins now."""
        self._load, self._host = load, host
        self._quiet: list[tuple[_Reading, _Reading]] = []
        self._last = self._read()

    def is_quiet(self) -> bool:
        """Return whether no own thread was held up since the last call; start the next stretch."""
        before, self._last = self._last, self._read()
        pair = (before, self._last)
        is_quiet = not is_held_up(_threads([pair]))
        if is_quiet:
            self._quiet.append(pair)
        self._last = self._read()
        return is_quiet

    def conditions(self) -> tuple[HostConditions, OwnThreads]:
        """Sum up the quiet stretches.  Raises ValueError where there is none."""
        first, last = self._quiet[0][0].host, self._quiet[-1][1].host
        pairs = [(before.host, after.host) for before, after in self._quiet]
        summed = replace(
            last,
            time_s=first.time_s + sum(after.time_s - before.time_s for before, after in pairs),
            own_cpu_s=first.own_cpu_s + sum(b.own_cpu_s - a.own_cpu_s for a, b in pairs),
            busy_s=_sum(first.busy_s, [rise(a.busy_s, b.busy_s) for a, b in pairs]),
            steal_s=_sum(first.steal_s, [rise(a.steal_s, b.steal_s) for a, b in pairs]),
            throttled_s=_sum(
                first.throttled_s, [rise(a.throttled_s, b.throttled_s) for a, b in pairs]
            ),
        )
        return between(first, summed), _threads(self._quiet)

    def _read(self) -> _Reading:
        return _Reading(
            host=self._load.read(),
            waits=thread_waits(self._host),
            main_ran_s=time.thread_time(),
            at_s=time.perf_counter(),
        )


def _sum(first: float | Missing, rises: list[float | Missing]) -> float | Missing:
    missing = next((value for value in (first, *rises) if isinstance(value, Missing)), None)
    return missing or value_or(first, 0.0) + sum(value_or(value, 0.0) for value in rises)


def _threads(pairs: list[tuple[_Reading, _Reading]]) -> OwnThreads:
    """Return how long our threads ran and waited over several stretches together."""
    wall = max(sum(after.at_s - before.at_s for before, after in pairs), 1e-9)
    ran = sum(after.main_ran_s - before.main_ran_s for before, after in pairs)
    waits: dict[int, float] = {}
    for before, after in pairs:
        for thread, total in after.waits.items():
            waited = max(total - before.waits.get(thread, total), 0.0)
            waits[thread] = waits.get(thread, 0.0) + waited
    return compare_waits(dict.fromkeys(waits, 0.0), waits, main_ran=ran / wall, wall=wall)
