"""Reading a run, from its folder or its bundle, as far as it was written."""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from trainrig.errors import DataError, reading
from trainrig.record import Record, RunView, from_json, verdict_from_json
from trainrig.store.bundle import is_bundle, open_bundle
from trainrig.store.run_folder import (
    CONFIG,
    MACHINE,
    RECORDS,
    SERIES,
    VERDICT,
    parse_config,
    read_file,
)

_SERIES_FILE = re.compile(rf"{SERIES}/[^/]+\.jsonl")


def read_run(path: Path) -> RunView:
    """The run at ``path``: its folder, its bundle, or a folder that holds one run.

    A bare name that is not here is looked for in runs/.

    Raises DataError for what is not a run, was written under another schema, or
    has a damaged line before its last.
    """
    with reading(path, "check its permissions"):
        if path.parent == Path() and not path.exists() and (Path("runs") / path).exists():
            path = Path("runs") / path
        if path.is_dir():
            folder = path if (path / CONFIG).is_file() else _only_run(path)
            names = [CONFIG, MACHINE, RECORDS, VERDICT]
            series = sorted((folder / SERIES).glob("[!.]*.jsonl"))
            names += [f"{SERIES}/{file.name}" for file in series]
            read = {name: read_file(folder / name) for name in names}
            files = {name: data for name, data in read.items() if data is not None}
            return _parse(folder.resolve().name, folder, files)
        exists = path.exists()
    if is_bundle(path):
        name, files = open_bundle(path)
        return _parse(name, path, files)
    if exists:
        raise DataError(f"neither a run nor a bundle: {path}", "name a folder inside runs/")
    raise DataError(
        f"no such run: {path}", "trainrig qualify makes one in runs/ and prints its path"
    )


def find_runs(parent: Path) -> tuple[Path, ...]:
    """The run folders in ``parent``, oldest first; empty if there is no such folder."""
    if not parent.is_dir():
        return ()
    return tuple(sorted((entry.parent for entry in parent.glob(f"[!.]*/{CONFIG}")), key=_age))


def _age(run: Path) -> tuple[str, str]:
    """When a run began: by its run.toml, to the microsecond, else by its name."""
    try:
        started = parse_config(read_file(run / CONFIG), run).get("started")
    except DataError:
        started = None
    is_time = isinstance(started, datetime.datetime)
    return f"{started:%Y%m%dT%H%M%S.%f}" if is_time else run.name, run.name


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
        verdict = verdict_from_json(files[VERDICT])
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
        found = json.loads(files[name], parse_constant=_refuse)
    except (ValueError, RecursionError):
        raise DataError(f"{name} is damaged: not JSON") from None
    if not isinstance(found, dict):
        raise DataError(f"{name} is damaged: not an object")
    return found


def _parse_records(data: bytes, path: Path) -> tuple[Record, ...]:
    """The records; a torn last line is left out."""
    records = []
    for number, line in enumerate(data.split(b"\n")[:-1], start=1):
        try:
            records.append(from_json(line))
        except DataError as error:
            raise DataError(f"{path} {RECORDS}:{number}: {error.message}", error.hint) from None
    return tuple(records)


def _parse_series(data: bytes) -> tuple[Mapping[str, Any], ...]:
    """Samples of a series; a damaged line is left out, since no number rests on it alone."""
    rows = []
    for line in data.split(b"\n")[:-1]:
        try:
            row = json.loads(line, parse_constant=_refuse)
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict):
            rows.append(row)
    return tuple(rows)


def _refuse(constant: str) -> NoReturn:
    """NaN and the infinities are no JSON, though Python reads them."""
    raise ValueError(constant)
