"""Find the formats in a file, and cut it into the runs of each.

A format has patterns of its lines (`Marks`): of what only it prints, of the head of a run, of the
results below it.  A head behind results begins the next run.  Where the results of a format stand
behind several labels (ranks, hosts), the lines of each label are runs of their own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

from trainrig.importers.file import MOST_BYTES, FileLine, FilePart, ToolFile, json_parts
from trainrig.units import format_memory

T = TypeVar("T")
SEARCHED_BYTES = 1 << 26
"""Size in bytes of the part that is searched for further formats once one was found."""
MOST_LINES = 400_000
"""Limit of the lines that are kept in memory at once."""
_WINDOW = 4000
"""Lines behind a line of a format that may belong to it, in a file too large to be held."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """Marks by which a format is recognised: patterns of single lines, keys of JSON values."""

    near: tuple[str, ...] = ()
    """Plain texts of which each recognised line has one: they are searched for first."""
    line: str = ""
    """Pattern of a line that this format alone prints; ^ and $ are the line's ends."""
    head: str = ""
    """Pattern of lines at the beginning of a run."""
    body: str = ""
    """Pattern of lines with results; empty: `line`."""
    keys: tuple[tuple[str, ...], ...] = ()
    """Alternatives of keys that a JSON value of this format has, at any depth."""
    whole: Callable[[ToolFile], bool] | None = None
    """Function that returns whether a file as a whole is of this format."""
    is_stream: bool = False
    """True where lines are read by `Importer.stream` instead of run by run."""


class _Compiled:
    """The patterns of a format, ready to search."""

    def __init__(self, marks: Marks) -> None:
        self.marks = marks

    @cached_property
    def line(self) -> re.Pattern[str]:
        return re.compile(self.marks.line, re.MULTILINE)

    @cached_property
    def head(self) -> re.Pattern[str] | None:
        return re.compile(self.marks.head) if self.marks.head else None

    @cached_property
    def body(self) -> re.Pattern[str]:
        return re.compile(self.marks.body or self.marks.line)


def find_formats(file: ToolFile, marks: Mapping[T, Marks]) -> list[T]:
    """Return the formats whose lines or JSON values the file has, in the order given.

    All of a file is searched; once a format is found, no more than `SEARCHED_BYTES` of it.
    """
    undecided = {
        name: _Compiled(format_marks)
        for name, format_marks in marks.items()
        if not format_marks.whole
    }
    present: set[T] = set()
    searched = 0
    for piece in file.pieces():
        text = "\n".join([line.text for line in piece])
        for name, compiled in tuple(undecided.items()):
            if _is_in(text, compiled):
                present.add(name)
                del undecided[name]
        searched += len(text)
        if not undecided or (present and searched > SEARCHED_BYTES):
            break
    return [name for name in marks if name in present]


def _is_in(text: str, format_marks: _Compiled) -> bool:
    marks = format_marks.marks
    if any(all(f'"{key}"' in text for key in keys) for keys in marks.keys):
        return True
    return (
        bool(marks.line)
        and any(near in text for near in marks.near)
        and format_marks.line.search(text) is not None
    )


def find_runs(file: ToolFile, marks: Mapping[T, Marks]) -> dict[T, list[FilePart]]:
    """Return the runs of each format, in the order of the file; each JSON value is one.

    Raises DataError where the lines that may belong to them are more than can be held.
    """
    formats = {
        name: _Compiled(format_marks)
        for name, format_marks in marks.items()
        if not format_marks.is_stream or format_marks.keys
    }
    if not formats:
        return {}
    lines = _held_lines(file, tuple(formats.values()))
    runs: dict[T, list[FilePart]] = {name: [] for name in formats}
    json_lines: set[int] = set()
    if any(compiled.marks.keys for compiled in formats.values()):
        for part in json_parts(file, lines):
            owner = next(
                (e for e, compiled in formats.items() if _has_keys(part.text, compiled)), None
            )
            if owner is not None:
                runs[owner].append(part)
                json_lines.update(line.number for line in part.all)
    text_lines = [line for line in lines if line.number not in json_lines] if json_lines else lines
    for name, compiled in formats.items():
        if compiled.marks.line and not compiled.marks.is_stream:
            runs[name] += _split(file, text_lines, compiled)
        if not runs[name] and len(formats) == 1 and not compiled.marks.is_stream:
            runs[name].append(FilePart(file, text_lines))
        for part in runs[name]:
            part.is_only = len(runs[name]) == 1
    return runs


def _has_keys(text: str, compiled: _Compiled) -> bool:
    return any(all(f'"{key}"' in text for key in keys) for keys in compiled.marks.keys)


def _held_lines(file: ToolFile, formats: Sequence[_Compiled]) -> list[FileLine]:
    """Return the lines of a file, of a large one those near to a line of one of the formats."""
    lines: list[FileLine] = []
    size, last = 0, 0
    is_json = any(compiled.marks.keys for compiled in formats)
    for piece in file.pieces():
        text = "\n".join([line.text for line in piece])
        is_near = any(near in text for compiled in formats for near in compiled.marks.near)
        if is_near:
            last = len(lines) + len(piece)
        lines += piece
        size += len(text)
        if size > MOST_BYTES or len(lines) > MOST_LINES:
            if is_json or last + _WINDOW > len(lines) - len(piece):
                most = format_memory(MOST_BYTES)
                problem = f"more than {most} or {MOST_LINES} lines of results"
                raise file.refuse(None, problem, "import the part with results")
            lines = lines[: last + _WINDOW]
            size = sum(len(line.text) for line in lines)
    return lines


def _split(file: ToolFile, lines: Sequence[FileLine], compiled: _Compiled) -> Iterator[FilePart]:
    """Yield the runs of a format, each from its head to the next run's."""
    body = compiled.body
    labels = {line.label for line in lines if line.label and body.search(line.text)}
    if len(labels) > 1:
        streams = [[ln for ln in lines if ln.label in (None, label)] for label in sorted(labels)]
    else:
        streams = [list(lines)]
    for stream in streams:
        run: list[FileLine] = []
        has_results = False
        for line in stream:
            if has_results and compiled.head is not None and compiled.head.search(line.text):
                yield FilePart(file, run)
                run, has_results = [], False
            run.append(line)
            has_results = has_results or body.search(line.text) is not None
        if has_results:
            yield FilePart(file, run)
