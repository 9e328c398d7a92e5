"""Reading a run, from its folder or its bundle, as far as it was written."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from trainrig.errors import DAMAGED_RUN, DataError, reading
from trainrig.record import Record, RunView, began, from_json, verdict_from_json
from trainrig.store.bundle import is_bundle, open_bundle
from trainrig.store.run_folder import (
    CONFIG,
    MACHINE,
    RECORDS,
    SERIES,
    VERDICT,
    parse_config,
    parse_object,
    read_file,
)
from trainrig.store.salvage import is_whole_config, salvage

_SERIES_FILE = re.compile(rf"{SERIES}/[^/]+\.jsonl")


def read_run(path: Path) -> RunView:
    """Return the run at ``path``: its folder, its bundle, or a folder that holds one run.

    A bare name that is not here is looked for in runs/, as `place_of` does.

    Raises DataError for what is not a run, was written under another schema, or
    has a damaged line before its last.
    """
    return _parse(*_files_of(path))


def read_what_is_left(path: Path) -> RunView:
    """Return the run at ``path`` as far as it can be read, for somebody who looks at it.

    What is damaged is left out and named in ``problems`` and ``lost``, where `read_run` refuses the
    run: numbers may not be computed from what is left as if it were all.

    Raises DataError for what is not a run, or was written under another schema.
    """
    name, place, files = _files_of(path)
    if is_whole_config(files.get(CONFIG, b"")):
        with suppress(DataError):
            return _parse(name, place, files)
    whole, damage = salvage(name, files)
    view = _parse(name, place, whole)
    lost = "; ".join([*damage, *filter(None, [view.lost])]) or None
    return dataclasses.replace(view, problems=(*damage, *view.problems), lost=lost)


def _files_of(path: Path) -> tuple[str, Path, dict[str, bytes]]:
    """Return a run's name, where it lies, and its files by their names."""
    with reading(path, "check its permissions"):
        path = place_of(path)
        if path.is_dir():
            is_run = any((path / name).is_file() for name in (CONFIG, RECORDS))
            folder = path if is_run else _only_run(path)
            names = [CONFIG, MACHINE, RECORDS, VERDICT]
            series = sorted((folder / SERIES).glob("[!.]*.jsonl"))
            names += [f"{SERIES}/{file.name}" for file in series]
            read = {name: read_file(folder / name) for name in names}
            files = {name: data for name, data in read.items() if data is not None}
            return folder.resolve().name, folder, files
        exists = path.exists()
    if is_bundle(path):
        name, files = open_bundle(path)
        return name, path, files
    if exists:
        raise DataError(f"neither a run nor a bundle: {path}", "name a folder inside runs/")
    raise DataError(
        f"no such run: {path}", "trainrig qualify makes one in runs/ and prints its path"
    )


def place_of(path: Path) -> Path:
    """Return where a run lies: the path, or the run in runs/ of that name or with that in its name.

    Raises DataError where a part of a name fits several runs.
    """
    with reading(path, "check its permissions"):
        if path.parent != Path() or path == Path() or path.exists():
            return path
        if (_HOME / path).exists():
            return _HOME / path
    fitting = [run for run in find_runs(_HOME) if path.name in run.name]
    if len(fitting) > 1:
        listed = ", ".join(run.name for run in fitting[: -1 - _MOST_LISTED : -1])
        words = f"{path.name!r} fits {len(fitting)} runs in {_HOME}/, the newest {listed}"
        raise DataError(words, "give more of the name")
    return fitting[0] if fitting else path


_HOME = Path("runs")
"""Where runs are made without --out."""
_MOST_LISTED = 3


def find_runs(parent: Path, until: tuple[str, str] | None = None) -> tuple[Path, ...]:
    """Return the run folders in ``parent``, oldest first; empty if there is no such folder.

    ``until``: as `began` says it; what began later is left out.
    """
    if not parent.is_dir():
        return ()
    aged = sorted((_age(entry.parent), entry.parent) for entry in parent.glob(f"[!.]*/{CONFIG}"))
    return tuple(path for age, path in aged if until is None or age <= until)


def _age(run: Path) -> tuple[str, str]:
    try:
        config = parse_config(read_file(run / CONFIG), run)
    except DataError:
        config = {}
    return began(config, run.name)


def _only_run(parent: Path) -> Path:
    runs = find_runs(parent)
    if len(runs) == 1:
        return runs[0]
    if runs:
        hint = f"name one, the newest is {runs[-1]}; all side by side: trainrig report {parent}/*"
        raise DataError(f"{parent} holds {len(runs)} runs", hint)
    if below := find_runs(parent / "runs"):
        raise DataError(f"not a run: {parent} has no {CONFIG}", f"the newest in it is {below[-1]}")
    raise DataError(f"not a run: {parent} has no {CONFIG}", "name a folder inside runs/")


def _parse(name: str, path: Path, files: Mapping[str, bytes]) -> RunView:
    problems: list[str] = []
    config = parse_config(files.get(CONFIG), path)
    machine = _parse_object(MACHINE, files, problems)
    lost = None
    if RECORDS not in files:
        lost = f"{RECORDS} is gone"
    elif files[RECORDS][-1:] not in (b"\n", b""):
        lost = "the last record was cut off while it was written"
    problems += [lost] if lost else []
    records = _parse_records(files.get(RECORDS, b""), path)
    series = {
        Path(file).stem: _parse_series(data)
        for file, data in files.items()
        if _SERIES_FILE.fullmatch(file)
    }
    verdict = None
    if VERDICT in files:
        try:
            verdict = verdict_from_json(files[VERDICT])
        except DataError as error:
            raise DataError(error.message, error.hint or DAMAGED_RUN) from None
        num_gone = (verdict.num_records or 0) - len(records)
        if num_gone > 0 and lost is None:
            lost = f"{num_gone} of its {verdict.num_records} records are gone"
            problems.append(lost)
    else:
        problems.append("the run was cut off before its verdict")
    return RunView(
        name=name,
        path=path,
        config=config,
        machine=machine,
        records=records,
        series=series,
        verdict=verdict,
        problems=tuple(problems),
        lost=lost,
    )


def _parse_object(
    name: str, files: Mapping[str, bytes], problems: list[str]
) -> Mapping[str, Any] | None:
    if name not in files:
        problems.append(f"the run was cut off before its {name}")
        return None
    try:
        return parse_object(files[name])
    except (ValueError, RecursionError):
        raise DataError(f"{name} is damaged: not a JSON object", DAMAGED_RUN) from None


def _parse_records(data: bytes, path: Path) -> tuple[Record, ...]:
    """Return the records; a torn last line is left out."""
    records = []
    for number, line in enumerate(data.split(b"\n")[:-1], start=1):
        try:
            records.append(from_json(line))
        except DataError as error:
            hint = error.hint or DAMAGED_RUN
            raise DataError(f"{path} {RECORDS}:{number}: {error.message}", hint) from None
    return tuple(records)


def _parse_series(data: bytes) -> tuple[Mapping[str, Any], ...]:
    """Return samples of a series; a damaged line is left out, since no number rests on it alone."""
    rows = []
    for line in data.split(b"\n")[:-1]:
        with suppress(ValueError, RecursionError):
            rows.append(parse_object(line))
    return tuple(rows)
