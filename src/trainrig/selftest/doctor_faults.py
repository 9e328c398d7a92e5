"""The doctor's checks on whole machines as data: each with its fault, and the same repaired.

The fault lies in files, in what programs print and in NVML's answers, below every probe.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from trainrig.doctor import CHECKS
from trainrig.selftest.fault_hosts import FaultHost, fault_hosts
from trainrig.selftest.registry import HEALTHY, Fault


@dataclass(frozen=True, slots=True)
class _Scene:
    host: FaultHost
    state: Any
    folder: Path


def faults() -> Iterator[Fault]:
    """One for each fault host; the healthy bases are twins of the first fault of each."""
    owner = {finding: check.id for check in CHECKS for finding in check.finds}
    seen: set[str] = set()
    for host in fault_hosts():
        name = host.name if host.name != host.finding else host.evidence
        name = f"{host.finding}: {name}"
        if name in seen:
            name = f"{name} ({host.base})"
        seen.add(name)
        yield Fault(
            name=name,
            check=f"doctor.{owner[host.finding]}",
            finds=host.finding,
            says=host.evidence,
            inject=partial(_open, host),
            observe=_diagnose,
        )


@contextmanager
def _open(host: FaultHost, folder: Path, variant: Any) -> Iterator[_Scene]:
    yield _Scene(host, host.repaired if variant is HEALTHY else host.fault, folder)


def _diagnose(scene: _Scene) -> Iterable[str]:
    found = scene.host.findings(scene.state, scene.folder)
    if scene.state is scene.host.repaired:
        found = tuple(one for one in found if one.id not in scene.host.allowed)
    return [f"{one.id}: {one.evidence}" for one in found]
