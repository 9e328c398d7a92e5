"""Runs the families of faults: each in a process of its own, two at a time, under a time limit.

A fault may break the process that it is planted in, and must not take the others with it: what a
family had proved until then stands, and the rest of it counts as missed.

    python -m trainrig.selftest.run FILE FAMILY CLEAN-RUNS [NAME ...]     one family, lines to FILE
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from trainrig.process.child import PARENT, die_with_parent
from trainrig.process.supervisor import Child
from trainrig.selftest.registry import (
    CLEAN_RUNS,
    SEED,
    Alarm,
    Event,
    Fault,
    FaultResult,
    SelfTest,
    all_faults,
    families,
    plant_seed,
    prove,
)

AT_ONCE = 2
"""Families at a time: a machine that trains has as many cores, and timings are none of theirs."""
FAMILY_LIMIT_S = 400.0
_POLL_S = 0.05
Watch = Callable[[Event], None]


@dataclass(slots=True, kw_only=True)
class _Family:
    """A family that runs in a child."""

    name: str
    faults: tuple[Fault, ...]
    child: Child
    lines: Path
    deadline: float
    read: int = 0
    done: set[str] = field(default_factory=set)
    results: list[Event] = field(default_factory=list)

    def news(self) -> list[Event]:
        """Return the events that its child has written since the last look."""
        data = self.lines.read_bytes() if self.lines.exists() else b""
        whole = data[self.read : data.rfind(b"\n") + 1]
        self.read += len(whole)
        events = [_event(line) for line in whole.splitlines()]
        self.results += events
        self.done |= {event.fault for event in events if isinstance(event, FaultResult)}
        return events

    def lost(self, why: str) -> list[Event]:
        """Return the faults that it did not come to."""
        lost_results: list[Event] = [
            FaultResult(
                fault=fault.name,
                check=fault.check,
                finds=fault.finds,
                caught=False,
                seconds=None,
                reason=why,
            )
            for fault in self.faults
            if fault.name not in self.done
        ]
        self.results += lost_results
        return lost_results


def run_all(
    only: Sequence[str] = (),
    clean_runs: int = CLEAN_RUNS,
    watch: Watch = lambda _: None,
    limit_s: float = FAMILY_LIMIT_S,
    seed: int | None = None,
) -> SelfTest:
    """Plant every fault, and look at every healthy twin.

    Args:
        only: Names of families, checks or findings, or beginnings of faults' names; empty: all.
        clean_runs: How often each healthy twin is looked at.
        watch: Called with each result as it comes.
        limit_s: Seconds that a family may take.
        seed: Seed of the random places; None for one of `plant_seed`.

    Raises:
        UsageError: A word of ``only`` names none.
    """
    start = time.monotonic()
    seed = plant_seed() if seed is None else seed
    waiting = list(all_faults(only).items())
    waiting.sort(key=lambda row: -_weight(row[0]))
    running: list[_Family] = []
    ended: dict[str, _Family] = {}
    with tempfile.TemporaryDirectory(prefix="trainrig-selftest-") as folder:
        try:
            while waiting or running:
                while waiting and _may_start(waiting[0][0], running):
                    name, faults = waiting.pop(0)
                    running.append(
                        _start(name, faults, Path(folder), clean_runs, only, limit_s, seed)
                    )
                time.sleep(_POLL_S)
                for family in list(running):
                    news, has_ended = _look_at(family, limit_s)
                    for event in news:
                        watch(event)
                    if has_ended:
                        running.remove(family)
                        ended[family.name] = family
        finally:
            for family in running:
                family.child.end()
    events = [event for name in sorted(ended) for event in ended[name].results]
    return SelfTest(
        results=tuple(event for event in events if isinstance(event, FaultResult)),
        alarms=tuple(event for event in events if isinstance(event, Alarm)),
        clean_runs=clean_runs,
        seconds=time.monotonic() - start,
        seed=seed,
    )


def _look_at(family: _Family, limit_s: float) -> tuple[Sequence[Event], bool]:
    """Return a family's new events, and whether it has ended."""
    code = family.child.process.poll()
    news = family.news()
    if code is None and time.monotonic() > family.deadline:
        family.child.end()
        return [*news, *family.lost(f"not done within {limit_s:.0f} s")], True
    if code:
        return [*news, *family.lost(family.child.how_it_ended("its process").reason or "")], True
    return news, code is not None


def _may_start(name: str, running: Sequence[_Family]) -> bool:
    """Return whether a family may start beside those that run; some run alone."""
    if not running:
        return True
    names = (name, *(family.name for family in running))
    wants_room = any(getattr(families()[family_name], "ALONE", False) for family_name in names)
    return len(running) < AT_ONCE and not wants_room


def _weight(name: str) -> float:
    """Return the seconds that a family states to take: the longest begin first."""
    return float(getattr(families()[name], "TAKES_S", 1.0))


def _start(
    name: str,
    faults: tuple[Fault, ...],
    folder: Path,
    clean_runs: int,
    only: Sequence[str],
    limit_s: float,
    seed: int,
) -> _Family:
    lines = folder / f"{name}.jsonl"
    module = "trainrig.selftest.run"
    command = [sys.executable, "-m", module, str(lines), name, str(clean_runs), *only]
    env = {**os.environ, PARENT: str(os.getpid()), SEED: str(seed)}
    return _Family(
        name=name,
        faults=faults,
        child=Child(command, folder / f"{name}.log", env),
        lines=lines,
        deadline=time.monotonic() + limit_s,
    )


def _event(line: bytes) -> Event:
    content = json.loads(line)
    return FaultResult(**content) if "caught" in content else Alarm(**content)


def main() -> None:
    """Prove one family in this process."""
    die_with_parent()
    path, family, clean_runs, *only = sys.argv[1:]
    with Path(path).open("a", encoding="utf-8") as file:

        def write(event: Event) -> None:
            file.write(json.dumps(asdict(event)) + "\n")
            file.flush()

        faults = all_faults(only)[family]
        family_prove = getattr(families()[family], "prove", None)
        (family_prove or prove)(faults, write, int(clean_runs))


if __name__ == "__main__":
    main()
