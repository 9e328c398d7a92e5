"""Names of a run's files, and the reading of run.toml, which every run has."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, NoReturn

from trainrig.errors import DAMAGED_RUN, DataError
from trainrig.record import check_schema
from trainrig.safe_read import parse_toml, read_plain

CONFIG = "run.toml"
MACHINE = "machine.json"
RECORDS = "records.jsonl"
VERDICT = "verdict.json"
REPORT = "report.html"
SERIES = "series"
LOGS = "logs"


def host_in_name(host: str) -> str:
    """Return a host's name as it stands in the names of its runs."""
    return re.sub(r"[^A-Za-z0-9]+", "-", host).strip("-")[:32]


def parse_config(data: bytes | None, path: Path) -> dict[str, Any]:
    """Return run.toml's content; ``data`` is None where there is no such file, ``path`` is the run.

    Raises DataError for no run.toml, a damaged one, or one of another schema.
    """
    if data is None:
        raise DataError(f"not a run: {path} has no {CONFIG}", "name a folder inside runs/")
    try:
        config = parse_toml(data)
    except (ValueError, RecursionError):
        raise DataError(f"{path}/{CONFIG} is damaged: not TOML", DAMAGED_RUN) from None
    check_schema(config.get("schema"), str(path))
    return config


def read_file(path: Path) -> bytes | None:
    """Return the bytes of a plain file; None where there is none, or a pipe or folder instead.

    Raises DataError for a link, for more than a run may hold, and when it cannot be read.
    """
    return read_plain(path)


def parse_object(data: bytes) -> dict[str, Any]:
    """Return the JSON object in ``data``.  ValueError or RecursionError for anything else."""
    content = json.loads(data, parse_constant=_refuse)
    if not isinstance(content, dict):
        raise ValueError("not an object")
    return content


def _refuse(constant: str) -> NoReturn:
    """NaN and the infinities are no JSON, though Python reads them."""
    raise ValueError(constant)
