"""The program is written in the field's plain words: names, docstrings, messages.

A name is made of words (`snake_case` and `CamelCase` are split), and none of them may be one of
REFUSED: a reader who searches for "prediction" or "noise" must not have to guess the word that was
used for it here.  Help texts are `test_help`'s.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SRC = ROOT / "src" / "trainrig"

# Word: what to write instead.
REFUSED = {
    "alike": "autocorrelation, similar",
    "asked": "requested, question",
    "foreign": "external",
    "foretell": "predict",
    "foretold": "predicted",
    "hear": "on_event",
    "heard": "on_event",
    "hopeless": "states_do_not_fit",
    "kept": "saved, selected, remaining",
    "knob": "option",
    "knobs": "options",
    "ladder": "waterfall",
    "mood": "background load",
    "moods": "background load",
    "moot": "n/a",
    "nobody": "null",
    "odd": "outlier, unexpected",
    "ours": "native",
    "quiet": "clean, idle",
    "rung": "level",
    "rungs": "levels",
    "said": "message, text, text_of",
    "settle": "combine, warm_up",
    "settled": "combined",
    "sitting": "session",
    "sittings": "sessions",
    "stranger": "external, unknown",
    "strangers": "external, unknown",
    "tell": "emit, report",
    "teller": "events",
    "telling": "explanation, events",
    "tells": "emits",
    "theirs": "hf, other",
    "told": "shown, message",
}
# A verdict's word (docs/definitions.md), and a key in the manifest of every prepared text.
ALLOWED = frozenset(["CANNOT_TELL", "vocab_asked"])
# A docstring is read alone, in an editor's hover.
OPENINGS = ("The same", "Of those", "Of these", "Those ", "What it ", "The other ")

# Rooms that are still being rewritten; none is ever added.
PENDING = frozenset([])

FILES = {
    path.relative_to(SRC).as_posix(): ast.parse(path.read_text()) for path in SRC.rglob("*.py")
}
_WORDS = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+")
_REFUSED_TEXT = re.compile(
    r"\b(foret(?:ell\w*|old)|told|tells?|said|heard|sittings?|strangers?|moot|hopeless|moods?"
    r"|rungs?|knobs?|ladder|makes no sense|not to be had)\b"
)


def words_of(name: str) -> list[str]:
    """The words that a name is made of, in small letters."""
    return [word.lower() for word in _WORDS.findall(name)]


def names_in(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and name of what a file defines or assigns."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.lineno, node.name
            case ast.Name(ctx=ast.Store()):
                yield node.lineno, node.id
            case ast.Attribute(ctx=ast.Store()):
                yield node.lineno, node.attr
            case ast.arg():
                yield node.lineno, node.arg
            case ast.alias(asname=str(renamed)):
                yield node.lineno, renamed


def messages_in(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and text of each string in what a file raises."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and node.exc is not None:
            for part in ast.walk(node.exc):
                if isinstance(part, ast.Constant) and isinstance(part.value, str):
                    yield part.lineno, part.value


def docstrings_in(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and text of the docstrings of a file, its classes, functions and fields."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr):
            match node.value:
                case ast.Constant(value=str(text)):
                    yield node.lineno, text


def room_of(name: str) -> str:
    return name.split("/")[0]


ROOMS = sorted({room_of(name) for name in FILES})


def refused_names(name: str, tree: ast.Module) -> list[str]:
    stem = Path(name).stem
    found = [(0, stem), *names_in(tree)]
    return sorted(
        f"{name}:{line}: {text}: {word}: {REFUSED[word]}"
        for line, text in set(found)
        if text not in ALLOWED
        for word in words_of(text)
        if word in REFUSED
    )


@pytest.mark.parametrize("room", [room for room in ROOMS if room not in PENDING])
def test_names_are_plain(room: str) -> None:
    found = [
        line
        for name, tree in FILES.items()
        if room_of(name) == room
        for line in refused_names(name, tree)
    ]
    assert not found, "\n".join(["", *found])


@pytest.mark.parametrize("room", ROOMS)
def test_messages_are_plain(room: str) -> None:
    found = [
        f"{name}:{line}: {text!r}"
        for name, tree in FILES.items()
        if room_of(name) == room
        for line, text in messages_in(tree)
        if _REFUSED_TEXT.search(text)
    ]
    assert not found, "\n".join(["", *found])


@pytest.mark.parametrize("room", ROOMS)
def test_docstrings_stand_alone(room: str) -> None:
    found = [
        f"{name}:{line}: {text.splitlines()[0]}"
        for name, tree in FILES.items()
        if room_of(name) == room
        for line, text in docstrings_in(tree)
        if text.startswith(OPENINGS)
    ]
    assert not found, "\n".join(["", *found])


def test_the_check_sees_every_kind_of_name() -> None:
    planted = ast.parse(
        "import x as told\nclass Foretold:\n  def kept_rows(self, ours): self.moot = 1\n"
        "for odd in (): pass\n"
        "def f():\n  '''The same.'''\n  raise ValueError(f'nothing said {1}')\n"
    )
    assert len(refused_names("room/tell.py", planted)) == 7
    assert [text for _, text in messages_in(planted) if _REFUSED_TEXT.search(text)]
    assert [text for _, text in docstrings_in(planted) if text.startswith(OPENINGS)]
