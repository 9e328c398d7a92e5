"""The ledger of a folder of runs: reading it, its sentence, and its stored corrections.

`analysis.prediction_error` says what counts and how it is summed up.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from trainrig.analysis.judge_imported import is_imported
from trainrig.analysis.machine_key import host_name, machine_key
from trainrig.analysis.prediction_error import Correction, Ledger, entries_of
from trainrig.analysis.run_to_run import run_to_run
from trainrig.errors import DataError, TrainrigError
from trainrig.record import RunView, began
from trainrig.runner.view import with_reports
from trainrig.stats import median
from trainrig.store import find_runs, read_run, write_atomic
from trainrig.units import format_share

CALIBRATION = "calibration.json"
"""File name of stored corrections, in the folder of runs."""
LAST = 12
_GLANCE = 3 * LAST
"""Runs that are read for the sentence: some predicted nothing."""
_SCHEMA = 1


def read_ledger(parent: Path, machine: str | None = None, newest: int | None = None) -> Ledger:
    """Read the ledger of ``machine_key`` in a folder of runs; by default of the newest run.

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
            runs.append(with_reports(read_run(path)))
        except TrainrigError as error:
            unread.append(error.message)
    # A file names no machine: what was imported counts to the one whose devices it names.
    measured = [run for run in runs if not is_imported(run.config)]
    newest_one = next(reversed(measured or runs), None)
    usual = machine_key(newest_one.machine) if newest_one is not None else ""
    chosen = usual if machine is None else machine
    of_machine = [run for run in measured or runs if machine_key(run.machine) == chosen]
    devices = {record.device for run in of_machine for record in run.records}
    device_rows = [
        run
        for run in runs
        if (
            any(record.device in devices for record in run.records)
            if is_imported(run.config)
            else machine_key(run.machine) == chosen
        )
    ]
    hosts = [host_name(run.machine) for run in device_rows if not is_imported(run.config)]
    host = hosts[-1] if hosts else "imported"
    return Ledger(
        host=host,
        machine=chosen,
        entries=tuple(e for run in device_rows for e in entries_of(run.name, host, run.records)),
        num_runs=len(device_rows),
        others=len(runs) - len(device_rows),
        unread=tuple(unread),
    )


def runs_of(machine: str, paths: Iterable[Path]) -> Iterator[RunView]:
    """Yield the runs of the machine with that key; one that cannot be read is passed over."""
    for path in paths:
        with suppress(TrainrigError):
            if machine_key((run := read_run(path)).machine) == machine:
                yield run


def earlier_runs_of(view: RunView, base: RunView) -> tuple[RunView, ...]:
    """Return runs beside this one by the same machine and verb, up to its baseline."""
    if view.machine is None or not view.path.is_dir():
        return ()
    candidates = find_runs(view.path.parent, began(base.config, base.name))
    paths = [path for path in candidates if path.name != view.path.name]
    machine, verb = machine_key(view.machine), view.config.get("verb")
    runs = runs_of(machine, paths[-2 * run_to_run().most_runs :])
    return tuple(run for run in runs if run.config.get("verb") == verb)


def ledger_sentence(parent: Path) -> str | None:
    """Return ``last 12 runs: median error 6 %``, or None without predictions to compare."""
    try:
        ledger = read_ledger(parent, newest=_GLANCE)
    except TrainrigError:
        return None
    last_runs = set(ledger.runs[-LAST:])
    errors = [abs(entry.error) for entry in ledger.entries if entry.run in last_runs]
    if not errors:
        return None
    runs = f"last {len(last_runs)} runs" if len(last_runs) > 1 else "last run"
    return (
        f"{runs}: median error {format_share(median(errors))} of {len(errors)} predictions, "
        f"worst {format_share(max(errors))}"
    )


def store_corrections(parent: Path, machine: str, corrections: Iterable[Correction]) -> Path:
    """Store those that help for this machine's next predictions; return the file."""
    path = parent / CALIBRATION
    hosts = dict(_stored(parent)) | {machine: {c.part: c.factor for c in corrections if c.helps}}
    content = {"schema": _SCHEMA, "hosts": hosts}
    write_atomic(path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    return path


def corrections_of(parent: Path, machine: str) -> dict[str, float]:
    """Return the factors stored for a machine; empty if there are none or the file is unusable."""
    factors = _stored(parent).get(machine, {})
    if not isinstance(factors, Mapping):
        return {}
    return {
        part: float(factor)
        for part, factor in factors.items()
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
