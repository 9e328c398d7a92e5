"""Facts for `doctor` from earlier runs on this machine: their GPUs, and a crash.

Only machine.json and the ends of logs are read, so that hundreds of runs cost nothing.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from trainrig.doctor.crash import parse_crash
from trainrig.machine import Snapshot
from trainrig.machine.health import Crash, EarlierGpu
from trainrig.machine.snapshot import Missing
from trainrig.store import find_runs
from trainrig.store.run_folder import LOGS, MACHINE

_MOST_RUNS = 20
_MOST_BYTES = 4_000_000
_TAIL = 262_144
_MOST_LOGS = 64


def with_history(snapshot: Snapshot, folder: Path, besides: str = "") -> Snapshot:
    """Return the snapshot with GPUs and a crash that earlier runs on this machine show.

    ``folder`` holds the runs; ``besides`` names one that is not an earlier one.
    """
    if isinstance(snapshot.health, Missing):
        return snapshot
    runs = [run for run in find_runs(folder)[-_MOST_RUNS:] if run.name != besides]
    if not runs:
        no_runs = Missing(f"no runs in {folder}/")
        health = dataclasses.replace(snapshot.health, earlier_gpus=no_runs, crash=no_runs)
    else:
        health = dataclasses.replace(
            snapshot.health, earlier_gpus=_earlier_gpus(runs, snapshot), crash=_crash(runs[-1])
        )
    return dataclasses.replace(snapshot, health=health)


def _earlier_gpus(runs: list[Path], snapshot: Snapshot) -> tuple[EarlierGpu, ...] | Missing:
    """Return the GPUs of the newest run that was made on this machine."""
    if isinstance(snapshot.host.machine, Missing):
        return snapshot.host.machine
    for run in reversed(runs):
        machine = _machine_of(run / MACHINE)
        host, gpus = machine.get("host"), machine.get("gpus")
        if not isinstance(host, dict) or host.get("machine") != snapshot.host.machine:
            continue
        listed = [gpu for gpu in gpus if isinstance(gpu, dict)] if isinstance(gpus, list) else []
        return tuple(
            EarlierGpu(
                name=str(gpu.get("name")),
                pci_address=str(gpu.get("pci_address")),
                uuid=str(gpu.get("uuid")),
                run=run.name,
            )
            for gpu in listed
            if isinstance(gpu.get("uuid"), str) and isinstance(gpu.get("pci_address"), str)
        )
    return Missing("no earlier run of this machine")


def _machine_of(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > _MOST_BYTES:
            return {}
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _crash(run: Path) -> Crash | None:
    for log in sorted((run / LOGS).rglob("*.log"))[:_MOST_LOGS]:
        crash = parse_crash(_tail_of(log), run.name, log.name)
        if crash is not None:
            return crash
    return None


def _tail_of(path: Path) -> str:
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _TAIL))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""
