"""Blocks of a page, in order; terminal, markdown and HTML render the same Document.

A builder (`run_report` and its siblings) decides what is said and in which order; a renderer in
`report.render` decides how it looks.  Blocks hold finished text and lengths as shares of 1, so
nothing here knows about characters, pixels or markup, and every renderer escapes what it prints.
A renderer first asks for the document in the language that is shown (`translated`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal, TypeVar

from trainrig.language import ENGLISH, tag, translate
from trainrig.language.width import is_wide
from trainrig.lazy import Later
from trainrig.report.charts.link_diagram import LinkDiagram
from trainrig.report.charts.svg import Chart

Tone = Literal["", "good", "bad", "warn", "dim", "strong"]
Row = TypeVar("Row")
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Section:
    """A heading, on a page a sentence under it, and the blocks that belong to it; they nest.

    One that is ``open`` or ``closed`` lies behind a line to click on, and is left out of text.
    """

    title: str
    blocks: tuple[Block, ...]
    note: str = ""
    fold: Literal["", "open", "closed"] = ""


@dataclass(frozen=True, slots=True)
class Group:
    """Blocks without a heading.

    A page frames a ``card`` and sets blocks side by side where they are ``beside`` each other; text
    prints both one after the other.  ``page`` and ``text`` say which of the two has the blocks.
    """

    kind: Literal["card", "beside", "page", "text"]
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Paragraph:
    """A line of text; ``label`` stands before it: ``Largest gap: …``."""

    text: str
    tone: Tone = ""
    label: str = ""
    files: tuple[str, ...] = ()
    """Paths of files in the run's folder, which a page links to."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Pairs of what and value, for a machine or for the origin of a number."""

    pairs: tuple[tuple[str, str], ...]
    title: str = ""


@dataclass(frozen=True, slots=True)
class Tile:
    """A number that stands for a machine: its name, and below it what it is of."""

    name: str
    value: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Tiles:
    """A few numbers, on a page in a row."""

    tiles: tuple[Tile, ...]


@dataclass(frozen=True, slots=True)
class Strip:
    """A bar in a table's cell, from ``start`` to ``end`` of the cell's width, 0 to 1."""

    start: float
    end: float
    muted: bool = False


@dataclass(frozen=True, slots=True)
class Stack:
    """A bar of named parts, one after the other; shares of the cell's width, 0 to 1 in sum.

    ``hidden`` runs beside the parts and is in none of them: overlapped communication.
    """

    parts: tuple[tuple[str, float], ...]
    hidden: float = 0.0


@dataclass(frozen=True, slots=True)
class Whisker:
    """An interval on an axis, 0 to 1 of the cell's width; ``line`` marks "no difference"."""

    line: float
    low: float | None = None
    middle: float | None = None
    high: float | None = None
    tone: Tone = ""


Drawing = Strip | Stack | Whisker


@dataclass(frozen=True, slots=True)
class Cell:
    """A table's cell where plain text is not enough."""

    text: str
    tone: Tone = ""
    small: str = ""
    """Beside or below the text, smaller."""
    shade: int | None = None
    """Background of a heat map, 0 (palest) to 5."""
    drawing: Drawing | None = None
    marked: bool = False
    """Outlined in a heat map; the table's notes say why."""
    is_name: bool = False
    """A name that is typed or searched for: never translated."""


@dataclass(frozen=True, slots=True)
class Line:
    """A table's row, where it has more than its cells."""

    cells: tuple[str | Cell, ...]
    tone: Tone = ""
    note: str = ""
    """A sentence below the cells: why a number is not judged."""
    details: tuple[tuple[str, str], ...] = ()
    """Details that a page shows on request: the provenance of the row's number."""


@dataclass(frozen=True, slots=True)
class Column:
    """A table's column.

    ``words`` wrap; ``number`` (right-aligned) and ``code`` (something to copy) are never broken;
    ``drawing`` holds drawings.  ``optional`` columns are left out where the line is too narrow,
    the highest number first; what is still too wide goes on in a second table below.
    """

    head: str
    kind: Literal["words", "number", "code", "drawing"] = "number"
    optional: int = 0


@dataclass(frozen=True, slots=True)
class Table:
    """Cells in columns; a column without any text is left out everywhere."""

    columns: tuple[Column, ...]
    rows: tuple[Line | tuple[str | Cell, ...], ...]
    title: str = ""
    notes: tuple[str, ...] = ()
    """Sentences below it."""

    def used(self) -> tuple[Column, ...]:
        """Return the columns in which any row has something."""
        return tuple(self.columns[n] for n in self._used())

    def lines(self) -> Iterator[tuple[Line, tuple[Cell, ...]]]:
        """Yield each row with its cells, of the used columns."""
        used = self._used()
        for row in self.rows:
            line = row if isinstance(row, Line) else Line(row)
            cells = [cell if isinstance(cell, Cell) else Cell(cell) for cell in line.cells]
            yield line, tuple(cells[n] for n in used)

    def part_names(self) -> tuple[str, ...]:
        """Return the parts of its stacked bars, in their order; empty where it has none."""
        for _, cells in self.lines():
            for cell in cells:
                if isinstance(cell.drawing, Stack):
                    return tuple(name for name, _ in cell.drawing.parts)
        return ()

    def _used(self) -> list[int]:
        cells = [row.cells if isinstance(row, Line) else row for row in self.rows]
        empty = ("", Cell(""))
        return [
            n
            for n in range(len(self.columns))
            if not cells or any(row[n] not in empty for row in cells)
        ]


Shown = tuple[Column, Callable[[Row], str | Cell]]
"""A column and the cell that it has for a row."""


def column(
    head: str,
    value: Callable[[Row], Value | None],
    form: Callable[[Value], str | Cell] = str,
    kind: Literal["words", "number", "code", "drawing"] = "number",
    optional: int = 0,
) -> Shown[Row]:
    """Return a column of a table: ``head``, and each row's value as ``form`` writes it."""

    def cell(row: Row) -> str | Cell:
        content = value(row)
        return content if isinstance(content, Cell) else "-" if content is None else form(content)

    return Column(head, kind, optional), cell


def words(head: str, value: Callable[[Row], str | Cell | None]) -> Shown[Row]:
    """Return a `column` of text, which wraps."""
    return column(head, value, kind="words")


def table(
    rows: Iterable[Row],
    *columns: Shown[Row],
    title: str = "",
    notes: Iterable[str] = (),
    line: Callable[[Row, tuple[str | Cell, ...]], Line] | None = None,
    sums: Sequence[Line] = (),
) -> Table:
    """Return a table with a line for each row, and ``sums`` below them.

    ``line`` adds a tone, a note or details to the cells of a row.
    """
    listed = [(row, tuple(cell(row) for _, cell in columns)) for row in rows]
    lines = tuple(line(row, cells) if line else cells for row, cells in listed)
    return Table(tuple(head for head, _ in columns), (*lines, *sums), title, tuple(notes))


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One number of a waterfall: its bar, what was lost above it, and where it comes from."""

    name: str
    value: str
    length: float
    """Share of the waterfall's widest number, as are ``lost`` and ``band``."""
    kind: str
    """Name of the colour: claimed, measured, published or muted."""
    has_value: bool = True
    lost: float = 0.0
    band: tuple[float, float] | None = None
    """Expected before it was measured."""
    expected: str = ""
    """The band in words."""
    is_below: bool = False
    """Below the band."""
    gap: str = ""
    """The difference from the bar above: ``−51.0 TFLOPS``."""
    share: str = ""
    direction: Literal["", "down", "up", "level"] = ""
    cause: str = ""
    parts: tuple[tuple[str, str], ...] = ()
    """The gap by cause, as (size, cause), where it has several."""
    fix: str = ""
    note: str = ""
    """Reason that there is no value, or why it is not judged."""
    doubt: str = ""
    """Name of the bar above that bounds it and was not measured well enough for that."""
    source: str = ""
    details: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WaterfallBars:
    """From a claim down to what was reached; each bar's ceiling is the bar above it."""

    title: str
    subtitle: str
    bars: tuple[Bar, ...]
    is_wide: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A drawing; only a page can show it."""

    chart: Chart | LinkDiagram
    caption: str = ""
    is_wide: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A finding or an explanation: what was seen, and the next thing to do."""

    text: str
    fix: str = ""
    label: str = ""
    tone: Tone = ""
    command: str = ""
    """To copy whole."""


@dataclass(frozen=True, slots=True)
class Findings:
    """Items, the worst first."""

    items: tuple[Item, ...]
    title: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerLine:
    """Answer that a report begins with: a word, what it was compared with, and why."""

    word: str
    comparison: str
    """``compared with the data sheet of RTX 4090``; may be empty."""
    reason: str
    tone: Tone = ""

    @property
    def colon(self) -> str:
        """Colon between a name and the word, as the word's language has it."""
        return "：" if is_wide(self.word[:1]) else ": "

    @property
    def compared(self) -> str:
        """Return ``, compared with …``, to follow the word; empty where there is no comparison."""
        mark = "，" if is_wide(self.word[:1]) else ", "
        return f"{mark}{self.comparison}" if self.comparison else ""


@dataclass(frozen=True, slots=True)
class Badge:
    """A badge and its reason: PASS, MEASURED, FAIL, INCOMPLETE; before it the answer of a run."""

    title: str
    word: str
    reason: str
    tone: Tone = ""
    answer: AnswerLine | None = None


_Words = Section | Group | Paragraph | Facts | Tiles | Findings | Badge
Block = _Words | Table | WaterfallBars | Figure


def text_blocks(blocks: Iterable[Block], level: int = 0) -> Iterator[tuple[int, Block]]:
    """Yield the blocks that text can hold, each with the depth of its section.

    A page alone shows figures and what is folded away; a section without text has no heading.
    """
    for block in blocks:
        match block:
            case Section(fold="open" | "closed") | Figure() | Group(kind="page"):
                continue
            case Section():
                if inside := list(text_blocks(block.blocks, level + 1)):
                    yield level, block
                    yield from inside
            case Group():
                yield from text_blocks(block.blocks, level)
            case _:
                yield level, block


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """Everything that is shown, in order."""

    title: str
    """Title of the page's tab; what is printed is in the blocks."""
    blocks: Sequence[Block]
    """In a terminal each is printed before the next one is made."""
    names: tuple[str, ...] = ()
    """Above everything on a page: the runs that it shows."""
    banner: str = ""
    """A warning above everything."""
    foot: tuple[str, ...] = ()
    """Definitions at a page's end."""


# ---- in the language that is shown

_NOT_TEXT = frozenset(
    ["kind", "tone", "fold", "direction", "colour", "names", "chart_kind", "command"]
)
"""Fields that are not translated: kinds and tones of blocks, names of runs, commands to copy."""


def translated(document: Document) -> Document:
    """Return the document with its texts translated."""
    return document if tag() == ENGLISH else _translated(document)


def _translated(value: Value) -> Value:
    new: object = value
    if isinstance(value, str):
        new = translate(value)
    elif isinstance(value, tuple):
        new = tuple(map(_translated, value))
    elif isinstance(value, Later):
        new = Later(map(_translated, value))
    elif isinstance(value, Cell) and value.is_name:
        new = value
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        old = {name: getattr(value, name) for name in _texts(type(value))}
        new_values = {name: _translated(text) for name, text in old.items()}
        changed = {name: text for name, text in new_values.items() if text is not old[name]}
        new = dataclasses.replace(value, **changed) if changed else value
    return new  # type: ignore[return-value]


@cache
def _texts(kind: type) -> tuple[str, ...]:
    """Return the fields of a dataclass that may hold text, however deep."""
    return tuple(field.name for field in dataclasses.fields(kind) if field.name not in _NOT_TEXT)
