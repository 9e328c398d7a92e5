"""Patterns by which formats are recognised, from formats.toml."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from trainrig.importers.runs import Marks
from trainrig.record import read_by, read_toml


@read_by({"extra": "forbid"})
class _Format:
    source: str
    near: tuple[str, ...] = ()
    line: str = ""
    head: str = ""
    body: str = ""
    keys: tuple[tuple[str, ...], ...] = ()


@cache
def _formats() -> dict[str, _Format]:
    path = Path(__file__).with_name("formats.toml")
    return read_toml(path, dict[str, _Format], "formats.toml")


def marks_of(name: str) -> Marks:
    """Return the marks by which the format ``name`` is recognised."""
    spelling = _formats()[name]
    return Marks(
        near=spelling.near,
        line=spelling.line,
        head=spelling.head,
        body=spelling.body,
        keys=spelling.keys,
    )
