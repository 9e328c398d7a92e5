"""Choose runs where none is named: the newest, and the one before it of its kind.

Two runs are of a kind where the same verb made them on the same machine for the same benchmark, the
same tools' files or the same models.  Only run.toml and machine.json are read, so that hundreds of
runs cost little.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainrig.analysis.machine_key import machine_key
from trainrig.errors import DAMAGED_RUN, DataError
from trainrig.store import find_runs, read_what_is_left
from trainrig.store.redact import REDACTED, redacted_machine
from trainrig.store.run_folder import CONFIG, MACHINE, RECORDS, parse_config, read_file

RUNS = Path("runs")
"""Folder of runs without --out."""


def newest_run(parent: Path = RUNS) -> Path:
    """Return the run in a folder that began last.  Raises DataError where it holds none."""
    runs = find_runs(parent)
    if not runs:
        raise DataError(
            f"there are no runs in {parent}/ here",
            "name a run or its folder; trainrig qualify makes one",
        )
    return runs[-1]


def newest_pair(parent: Path = RUNS) -> tuple[Path, Path]:
    """Return the newest run with records, preceded by the run of its kind before it.

    Raises DataError where there are no two, or where it cannot be read of what kind the newest is.
    """
    newest_run(parent)
    runs = [run for run in find_runs(parent) if _has_records(run)]
    if not runs:
        raise DataError(f"no run in {parent}/ has records", "measure: trainrig qualify")
    new = runs[-1]
    kind = _kind(new)
    for old in reversed(runs[:-1]):
        if _is_of_kind(old, kind):
            return old, new
    raise DataError(
        f"no earlier run of this kind and machine to compare {new.name} with",
        "name two runs: trainrig compare OLD NEW; or measure again",
    )


def newest_like(old: Path, parent: Path | None = None) -> Path:
    """Return the newest run of ``old``'s kind that began after it, by default from its folder.

    A bundle has no neighbours: the newest run in runs/ of its kind is meant.

    Raises DataError where there is none, or where it cannot be read of what kind ``old`` is.
    """
    old_run = read_what_is_left(old)  # whatever a run may lie in
    is_redacted = bool(old_run.config.get(REDACTED))
    kind, old_path = _kind_of(old_run.config, old_run.machine), old_run.path.resolve()
    runs = find_runs(parent or (old_path.parent if old_path.is_dir() else RUNS))
    for new in reversed(runs):
        if new.resolve() == old_path or new.name == old_run.name:
            break
        if _has_records(new) and _is_of_kind(new, kind, is_redacted=is_redacted):
            return new
    raise DataError(
        f"no later run of its kind and machine to compare {old} with",
        "name two runs: trainrig compare OLD NEW; or measure again",
    )


def _has_records(run: Path) -> bool:
    try:
        return (run / RECORDS).stat().st_size > 0
    except OSError:
        return False


def _is_of_kind(run: Path, kind: tuple[object, ...], *, is_redacted: bool = False) -> bool:
    try:
        return _kind(run, is_redacted=is_redacted) == kind
    except DataError:
        return False


def _kind(run: Path, *, is_redacted: bool = False) -> tuple[object, ...]:
    """Return the kind of a run's folder.

    ``is_redacted``: as a redacted bundle of this user would have it.  Raises DataError where it
    cannot be read.
    """
    config = parse_config(read_file(run / CONFIG), run)
    try:
        machine = json.loads(read_file(run / MACHINE) or b"null")
    except (ValueError, RecursionError):
        raise DataError(f"{run}/{MACHINE} is damaged: not JSON", DAMAGED_RUN) from None
    if not isinstance(machine, Mapping):
        return _kind_of(config, None)
    is_plain = is_redacted and not config.get(REDACTED)
    return _kind_of(config, redacted_machine(machine) if is_plain else machine)


def _kind_of(config: Mapping[str, Any], machine: Mapping[str, Any] | None) -> tuple[object, ...]:
    """Return what two runs share that can be compared."""
    tools = sorted({str(row.get("tool")) for row in _tables(config, "imported")})
    models = sorted({str(row.get("model")) for row in _tables(config, "experiments")})
    return config.get("verb"), config.get("benchmark"), tools, models, machine_key(machine)


def _tables(config: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    value = config.get(name)
    rows = value if isinstance(value, list) else []
    return [row for row in rows if isinstance(row, Mapping)]
