"""A document in the language that is shown: every text that its blocks hold is looked up.

What a block is (its kind, tone, colour) and the names of runs stay; so does everything in English.
"""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import TypeVar

from trainrig.language import ENGLISH, tag, translate
from trainrig.report.document import Document

_NOT_TEXT = frozenset(["kind", "tone", "fold", "direction", "colour", "names", "chart_kind"])
_Value = TypeVar("_Value")


def translated(document: Document) -> Document:
    """The document with its texts translated."""
    return document if tag() == ENGLISH else _translated(document)


def _translated(value: _Value) -> _Value:
    new: object = value
    if isinstance(value, str):
        new = translate(value)
    elif isinstance(value, tuple):
        new = tuple(map(_translated, value))
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        old = {name: getattr(value, name) for name in _texts(type(value))}
        found = {name: _translated(each) for name, each in old.items()}
        changed = {name: each for name, each in found.items() if each is not old[name]}
        new = dataclasses.replace(value, **changed) if changed else value
    return new  # type: ignore[return-value]


@cache
def _texts(kind: type) -> tuple[str, ...]:
    """The fields of a dataclass that may hold text, however deep."""
    return tuple(each.name for each in dataclasses.fields(kind) if each.name not in _NOT_TEXT)
