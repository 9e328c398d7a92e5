"""The ledger of a folder of runs: reading it, its sentence, and its stored corrections.

`analysis.prediction_error` says what counts and how it is summed up.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from trainrig.analysis.prediction_error import Correction, Ledger, entries_of
from trainrig.errors import DataError, TrainrigError
from trainrig.stats import median
from trainrig.store import RunData, find_runs, read_run, write_atomic
from trainrig.units import format_share

CALIBRATION = "calibration.json"
"""In the folder of runs."""
LAST = 12
_GLANCE = 3 * LAST
"""Runs that are read for the sentence: some predicted nothing."""
_SCHEMA = 1


def read_ledger(parent: Path, host: str | None = None, newest: int | None = None) -> Ledger:
    """The ledger of ``host`` in a folder of runs; by default that of the newest run.

    ``newest``: how many runs are read (default: all).
    Raises DataError where the folder holds no run.
    """
    paths = find_runs(parent)
    paths = paths if newest is None else paths[-newest:]
    if not paths:
        raise DataError(f"no runs in {parent}", "trainrig qualify and trainrig train make them")
    runs, unread = [], []
    for path in paths:
        try:
            runs.append(read_run(path))
        except TrainrigError as error:
            unread.append(error.message)
    hosts = [host_of(run) for run in runs]
    chosen = host if host is not None else (hosts[-1] if hosts else "")
    own = [run for run, name in zip(runs, hosts, strict=True) if name == chosen]
    return Ledger(
        host=chosen,
        entries=tuple(e for run in own for e in entries_of(run.name, chosen, run.records)),
        num_runs=len(own),
        others=len(runs) - len(own),
        unread=tuple(unread),
    )


def host_of(run: RunData) -> str:
    """The name of the machine that a run was made on; empty where it was not read."""
    found = (run.machine or {}).get("host", {})
    name = found.get("hostname") if isinstance(found, Mapping) else None
    return name if isinstance(name, str) else ""


def runs_of(host: str, paths: Iterable[Path]) -> Iterator[RunData]:
    """The runs of a host; one that cannot be read is passed over."""
    for path in paths:
        with suppress(TrainrigError):
            if host_of(run := read_run(path)) == host:
                yield run


def ledger_sentence(parent: Path, host: str | None = None) -> str | None:
    """``last 12 runs: median error 6 %``; None where nothing was predicted and measured yet."""
    try:
        ledger = read_ledger(parent, host, newest=_GLANCE)
    except TrainrigError:
        return None
    last = set(ledger.runs[-LAST:])
    errors = [abs(entry.error) for entry in ledger.entries if entry.run in last]
    if not errors:
        return None
    runs = f"last {len(last)} runs" if len(last) > 1 else "last run"
    return (
        f"{runs}: median error {format_share(median(errors))} of {len(errors)} predictions, "
        f"worst {format_share(max(errors))}"
    )


def store_corrections(parent: Path, host: str, found: Iterable[Correction]) -> Path:
    """Store those that help for this host's next predictions; return the file."""
    path = parent / CALIBRATION
    hosts = dict(_stored(parent)) | {host: {c.part: c.factor for c in found if c.helps}}
    content = {"schema": _SCHEMA, "hosts": hosts}
    write_atomic(path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    return path


def corrections_of(parent: Path, host: str) -> dict[str, float]:
    """The factors stored for a host; empty where there are none, or the file cannot be used."""
    found = _stored(parent).get(host, {})
    if not isinstance(found, Mapping):
        return {}
    return {
        part: float(factor)
        for part, factor in found.items()
        if isinstance(factor, int | float) and 0.05 < factor < 20.0
    }


def _stored(parent: Path) -> Mapping[str, Any]:
    try:
        content = json.loads((parent / CALIBRATION).read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(content, dict) or content.get("schema") != _SCHEMA:
        return {}
    hosts = content.get("hosts")
    return hosts if isinstance(hosts, dict) else {}
