"""Who computes on this machine: processes by their share of a processor between two looks.

From /proc alone (the kernel's proc(5)): times in ticks, resident pages; nothing is signalled or
attached to.  A process of another user is seen by its name and its times.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass

from trainrig.machine.snapshot import Missing
from trainrig.machine.system_access import Host
from trainrig.units import one_line

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_LONGEST = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessLoad:
    """One process between two looks."""

    pid: int
    cpus: float
    """Processors' worth of time that it used."""
    memory_bytes: int
    """Resident."""
    command: str
    run: str = ""
    """Run that the process or a parent of it writes; empty where it writes none."""


class ProcessWatch:
    """The processes of a host, look by look."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._ticks: dict[int, int] = {}
        self._at = 0.0

    def look(self, writers: Mapping[int, str], most: int = 12) -> tuple[ProcessLoad, ...]:
        """Return the busiest processes; those of runs (``writers``: pid → run) before all others.

        The first look has no time between it and another: every share is 0.
        """
        now, before = time.monotonic(), self._ticks
        elapsed, self._at = now - self._at, now
        listed = self._host.names("/proc")
        pids = [int(n) for n in listed if n.isdigit()] if not isinstance(listed, Missing) else []
        parents: dict[int, int] = {}
        loads: dict[int, tuple[float, int]] = {}
        self._ticks = {}
        for pid in pids:
            stat = self._host.read(f"/proc/{pid}/stat")
            words = [] if isinstance(stat, Missing) else stat.rpartition(")")[2].split()
            if len(words) < 22 or not words[1].isdigit():
                continue
            ticks = int(words[11]) + int(words[12])
            used = (ticks - before[pid]) / _TICKS_PER_S / elapsed if pid in before else 0.0
            parents[pid], self._ticks[pid] = int(words[1]), ticks
            loads[pid] = (max(0.0, used), int(words[21]) * _PAGE)
        runs = {pid: _run_of(pid, parents, writers) for pid in loads}
        order = sorted(loads, key=lambda pid: (not runs[pid], -loads[pid][0], -loads[pid][1]))
        busy = [pid for pid in order if runs[pid] or loads[pid][1] > 0][:most]
        return tuple(
            ProcessLoad(
                pid=pid,
                cpus=loads[pid][0],
                memory_bytes=loads[pid][1],
                command=self._command(pid),
                run=runs[pid],
            )
            for pid in busy
        )

    def _command(self, pid: int) -> str:
        """Return the command line as it was typed; a kernel thread has a name alone."""
        line = self._host.read(f"/proc/{pid}/cmdline")
        if isinstance(line, Missing) or not line.strip("\0"):
            line = self._host.read(f"/proc/{pid}/comm")
        return "?" if isinstance(line, Missing) else one_line(line.replace("\0", " "))[:_LONGEST]


def _run_of(pid: int, parents: Mapping[int, int], writers: Mapping[int, str]) -> str:
    """Return the run that a process works for: it or one of its parents writes it."""
    visited: set[int] = set()
    while pid > 1 and pid not in visited:
        if pid in writers:
            return writers[pid]
        visited.add(pid)
        pid = parents.get(pid, 0)
    return ""
