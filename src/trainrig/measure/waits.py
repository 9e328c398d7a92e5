"""Time that our own threads were ready to run without a processor: the best sign of noise.

A team of threads is as slow as its last member.  The kernel counts each one's waiting in
nanoseconds (/proc/self/task/*/schedstat).
"""

from __future__ import annotations

from dataclasses import dataclass

from trainrig.machine.parse import integer
from trainrig.machine.snapshot import Missing, value_or
from trainrig.machine.system_access import Host

# Shares of the window.  Waiting for a share w of the time slows a team by at most w / (1 - w): both
# stand at what two workers may differ by anyway (stats.AGREEMENT).
MAX_THREAD_WAIT = 0.05
MIN_MAIN_THREAD = 0.95
MANY_THREADS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnThreads:
    """Running and waiting time of this process's threads in a window, as shares of it."""

    main_ran: float
    """Share of the window that the measuring thread was on a processor."""
    worst_wait: float | Missing
    """Time the unluckiest thread was ready to run and had no processor; of many, one in ten."""


def is_held_up(threads: OwnThreads) -> bool:
    """Return whether a thread waited for a core, or the measuring thread slept or lost time."""
    waited = value_or(threads.worst_wait, 0.0)
    return waited > MAX_THREAD_WAIT or threads.main_ran < MIN_MAIN_THREAD


def thread_waits(host: Host) -> dict[int, float]:
    """Return thread id → seconds spent ready to run without a processor; empty if not counted."""
    wait_by_thread = {}
    names = host.names("/proc/self/task")
    for name in () if isinstance(names, Missing) else names:
        content = host.read(f"/proc/self/task/{name}/schedstat")
        words = [] if isinstance(content, Missing) else content.split()
        waited = integer(words[1], "nanoseconds") if len(words) == 3 else None
        if isinstance(waited, int):
            wait_by_thread[int(name)] = waited * 1e-9
    return wait_by_thread


def compare_waits(
    before: dict[int, float], after: dict[int, float], *, main_ran: float, wall: float
) -> OwnThreads:
    """Compare two readings of thread waits; a thread started in between counts from its start."""
    if not before or not after:
        unknown = Missing("the kernel does not count the waiting of threads")
        return OwnThreads(main_ran=main_ran, worst_wait=unknown)
    waits = sorted(max(total - before.get(thread, 0.0), 0.0) for thread, total in after.items())
    # Of hundreds of threads one waits somewhere on a quiet machine, too: then the 90 % quantile.
    worst = len(waits) - 1 if len(waits) <= MANY_THREADS else round(0.9 * (len(waits) - 1))
    return OwnThreads(main_ran=main_ran, worst_wait=waits[worst] / wall)
