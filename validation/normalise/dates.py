"""When a row ran, of which a table's ``date`` says it and most tables have none.

Answers the month that words name (of a source, a program, a container, a benchmark's round) and the
earliest that a model or a program allows.  Which defaults changed in which month is said where they
are (`workload.programs`, and the readers of single columns).
"""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path

from trainrig.record import read_toml

_FILE = Path(__file__).with_name("releases.toml")
_MONTH = re.compile(r"(?<![\d.])(20[12]\d)[-/._]?(0[1-9]|1[0-2])(?:[-/._]?[0-3]\d)?(?!\d|\.\d)")
_CALENDAR = re.compile(
    r"(?:\bv|@v?|release|container|ngc|nemo|torch|tensorflow|jax|paddle|primus|docker)"
    r"[ :/@v-]{0,3}(1[89]|2\d)\.(0?[1-9]|1[0-2])(?!\d)"
    r"|(?<![\w.-])(1[89]|2\d)\.(0[1-9]|1[0-2])(?:-py3|\)| container)"
)
"""Versions that are months: ``NeMo 25.04``, ``@v25.04.02``, ``pytorch:23.10-py3``."""


@lru_cache(maxsize=1 << 12)
def named_month(words: str) -> str:
    """The latest month that words in small letters name, ``2024-12``; "": none.

    >>> named_month("NVIDIA/dgxc-benchmarking@v25.04.02 llama3.1/readme.md".lower())
    '2025-04'
    >>> named_month("pytorch/torchtitan benchmarks/llama3_h100_202412_torchtitan.md")
    '2024-12'
    """
    months = [f"{one[1]}-{one[2]}" for one in _MONTH.finditer(words)]
    calendar_dates = _CALENDAR.finditer(words)
    months.extend(f"20{one[1] or one[3]}-{int(one[2] or one[4]):02d}" for one in calendar_dates)
    months.append(released("software", words))
    return max(months, default="")


@lru_cache(maxsize=1 << 12)
def released(what: str, words: str) -> str:
    """The month in which a ``model`` or the ``software`` that words name came out; "": not known.

    >>> released("model", "meta-llama/Llama-3.1-8B".lower())
    '2024-07'
    """
    words = re.sub(r"[\s_-]+", "-", words)
    months = (month for pattern, month in _releases()[what] if re.search(pattern, words))
    return next(months, "")


@lru_cache(maxsize=1)
def _releases() -> dict[str, list[tuple[str, str]]]:
    return read_toml(_FILE, dict[str, list[tuple[str, str]]], _FILE.name)
