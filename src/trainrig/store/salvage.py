"""The rest of a damaged run: its files without what cannot be read, and a word on each loss.

A disk that fails, a copy that was cut off or an editor may damage any file of a run.  A verb that
computes from it refuses it (`reader.read_run`); one that shows it goes on with the rest.  A file of
another schema version is no damage: it is left for the reader to refuse.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import tomli_w

from trainrig.errors import DataError
from trainrig.record import SCHEMA_VERSION, from_json, verdict_from_json
from trainrig.safe_read import parse_toml
from trainrig.store.run_folder import CONFIG, MACHINE, RECORDS, VERDICT, parse_object

_NAME = re.compile(r"\d{8}T\d{6}Z-.+-(?P<verb>[a-z]+)-[^-]+")
"""Pattern of the name of a run's folder."""
_MOST_TRIES = 64
"""Lines that are taken off the end of a damaged run.toml, one after the other."""
_NOT_WHOLE = "is damaged"


def salvage(name: str, files: Mapping[str, bytes]) -> tuple[dict[str, bytes], list[str]]:
    """Return the files that can be read, and what was lost of the others, a clause each."""
    whole, lost = dict(files), []
    if RECORDS in files and not is_whole_config(files.get(CONFIG, b"")):
        whole[CONFIG] = tomli_w.dumps(_config(name, files.get(CONFIG, b""))).encode()
        lost.append(f"{CONFIG} {_NOT_WHOLE if CONFIG in files else 'is gone'}")
    if MACHINE in files and not _is_object(files[MACHINE]):
        del whole[MACHINE]
        lost.append(f"{MACHINE} {_NOT_WHOLE}")
    if VERDICT in files and not _is_verdict(files[VERDICT]):
        del whole[VERDICT]
        lost.append(f"{VERDICT} {_NOT_WHOLE}")
    if RECORDS in files:
        whole[RECORDS], damaged = _records(files[RECORDS])
        if damaged:
            lines = "line" if len(damaged) == 1 else f"{len(damaged)} lines, the first"
            lost.append(f"{RECORDS} {_NOT_WHOLE} in {lines} {damaged[0]}")
    return whole, lost


def is_whole_config(data: bytes) -> bool:
    """Return whether a run.toml can be read and names its run, or is another version's."""
    try:
        config = parse_toml(data)
        if config.get("schema", SCHEMA_VERSION) != SCHEMA_VERSION:
            return True
        return {"schema", "name", "verb"} <= config.keys()
    except (ValueError, RecursionError):
        return False


def _config(name: str, data: bytes) -> dict[str, Any]:
    """Return what the lines before the damage say, completed by what the run is called."""
    lines = data.decode("utf-8", "replace").splitlines()
    ends = [*range(len(lines), max(0, len(lines) - _MOST_TRIES), -1)]
    ends += [n for n, line in enumerate(lines) if line.startswith("[")][:1]  # the head alone
    config: dict[str, Any] = {}
    for end in ends:
        try:
            config = parse_toml("\n".join(lines[:end]).encode())
            break
        except (ValueError, RecursionError):
            continue
    known = _NAME.fullmatch(name)
    return {"schema": SCHEMA_VERSION, "name": name, "verb": known["verb"] if known else ""} | config


def _is_object(data: bytes) -> bool:
    try:
        parse_object(data)
    except (ValueError, RecursionError):
        return False
    return True


def _is_of_another_version(data: bytes) -> bool:
    """Return whether a whole JSON object states another schema."""
    with suppress(ValueError, RecursionError):
        return bool(parse_object(data).get("schema", SCHEMA_VERSION) != SCHEMA_VERSION)
    return False


def _is_verdict(data: bytes) -> bool:
    """Return whether a verdict.json can be read, or is another version's."""
    with suppress(DataError):
        verdict_from_json(data)
        return True
    return _is_of_another_version(data)


def _records(data: bytes) -> tuple[bytes, list[int]]:
    """Return the lines without damage, and the numbers of the others; a torn last line stays."""
    *lines, last = data.split(b"\n")
    whole, damaged = [], []
    for number, line in enumerate(lines, start=1):
        try:
            from_json(line)
        except DataError:
            if not _is_of_another_version(line):
                damaged.append(number)
                continue
        whole.append(line)
    return b"\n".join([*whole, last]), damaged
