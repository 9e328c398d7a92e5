"""Width of text in a terminal, and where it may be broken: Chinese has no spaces."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

_NOT_FIRST = "，。；：、？！）》」』】〉”’%"
_NOT_LAST = "（《「『【〈“"
_CHUNK = re.compile(r"\s+|[^\s\u2e80-\u9fff\uf900-\ufaff\uff00-\uffef]+|.", re.DOTALL)
_PART = re.compile(r"[^,:/]*[,:/]+\s*|[^,:/]+")
"""A part of a long word, with the mark behind which a line may end."""


def is_wide(letter: str) -> bool:
    """Return whether a letter takes two columns; False for an empty text."""
    return bool(letter) and unicodedata.east_asian_width(letter) in "WF"


def width(text: str) -> int:
    """Columns of a terminal that the text takes."""
    if text.isascii():
        return len(text)
    return sum(2 if is_wide(letter) else not unicodedata.combining(letter) for letter in text)


def wrap(text: str, columns: int) -> list[str]:
    """Return text in lines of at most so many columns, broken at spaces and between wide letters.

    No line begins with a closing mark or ends with an opening one.  A word that is longer than a
    line (a list of settings, a path) is broken behind its commas, colons and slashes; what is still
    longer has its own line.
    """
    lines, line = [], ""
    for chunk in _pieces(text, columns):
        if line and width(line + chunk.rstrip()) > columns:
            lines.append(line.rstrip())
            line = chunk.lstrip()
        else:
            line += chunk
    return [*lines, line.rstrip()] if line.strip() or not lines else lines


def _pieces(text: str, columns: int) -> Iterator[str]:
    """Yield the parts of a text that no line break divides."""
    for chunk in unbroken(text):
        yield from _PART.findall(chunk) if width(chunk.strip()) > columns else (chunk,)


def unbroken(text: str) -> Iterator[str]:
    """Yield words, and wide letters with the marks that belong to them."""
    pending = ""
    for piece in _CHUNK.findall(text):
        sticks = piece.isspace() or piece[0] in _NOT_FIRST or pending[-1:] in tuple(_NOT_LAST)
        if pending and not sticks:
            yield pending
            pending = ""
        pending += piece
    if pending:
        yield pending


def cut(text: str, columns: int) -> str:
    """Return the beginning of the text that takes at most so many columns."""
    while width(text) > columns:
        text = text[: min(columns, len(text) - 1)]
    return text


def padded(text: str, columns: int) -> str:
    """Return the text with spaces behind it, so many columns wide or wider."""
    return text + " " * max(0, columns - width(text))
