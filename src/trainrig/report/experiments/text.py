"""Experiments side by side in a terminal of any width, and in markdown.

What differs comes first, then the ratios, bars of what they reached, what a step's time is made of,
and what came out.  `side` says what is shown, `columns` how it fits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from textwrap import wrap

from trainrig.analysis.training_results import Series, Summary
from trainrig.report.columns import bar, columns
from trainrig.report.experiments import published
from trainrig.report.experiments.forest import Forest, Mark
from trainrig.report.experiments.side import Panel, Side, Split, Table, side_of
from trainrig.units import one_line

WIDTH = 100
"""Characters of a line where nothing says how many there are."""
_LETTERS = {
    "data": "d",
    "forward": "f",
    "backward": "b",
    "communication": "c",
    "optimizer": "o",
    "other": ".",
}
_WORDS = {"experiment", published.CASE, "layout as found", "verdict", "says"}
_WORDS |= {"what differs", "devices", "why"}
_MOST_NAME = 30
_LESS_NAME = 18
"""A name's characters, on wide terminals and on others, before it wraps."""
_BARS = (4, 14)
"""A bar's least and most characters."""
_LEAST_WIDE = 76
"""Narrower terminals get the ratios row by row instead of in columns."""


def lines(
    summaries: Sequence[Summary], width: int = WIDTH, series: Series | None = None
) -> Iterator[str]:
    """Everything, in lines of at most ``width`` characters; ``series``: what else the run keeps."""
    side = side_of(summaries, series)
    if side is None:
        return
    blocks = [
        _unlike_lines(side, width),
        *(forest_lines(forest, width) for forest in side.forests),
        _panel_lines(side.panels, width),
        _split_lines(side.splits, width),
        *(table_lines(table, width) for table in side.tables),
    ]
    for block in blocks:
        shown = list(block)
        if shown:
            yield from (*shown, "")
    for why in side.reasons:
        yield from wrap(why, width, subsequent_indent="  ")


def _unlike_lines(side: Side, width: int) -> Iterator[str]:
    if not side.unlike:
        return
    yield "What differs:"
    longest = max(len(name) for name, _ in side.unlike)
    for name, values in side.unlike:
        indent = " " * (longest + 4)
        text = f"  {name:<{longest}}  {values}"
        yield from wrap(text, width, subsequent_indent=indent, drop_whitespace=True)


# ---- ratios


def forest_lines(forest: Forest, width: int, title: str = "") -> Iterator[str]:
    """The ratios with what differs before them, and where there is room their intervals drawn."""
    yield from wrap(title or f"Samples/s against {forest.base!r}, 95 % interval:", width)
    if width < _LEAST_WIDE:
        for mark in forest.marks:
            yield from _stacked(mark, width)
        yield from wrap(forest.hint, width)
        return
    drawn = [_plot(forest, mark, _PLOT) for mark in forest.marks]
    heads = ["experiment", "what differs", "ratio", "interval", "says"]
    rows = [[m.name, m.unlike, m.ratio, m.interval, _says(m)] for m in forest.marks]
    left = {0, 1, 4}
    if width >= _ROOMY:
        heads.insert(4, "")
        for row, plot in zip(rows, drawn, strict=True):
            row.insert(4, plot)
        left = {0, 1, 5}
    yield from columns(heads, rows, width, left)
    if forest.hint:
        yield from wrap(f"  {forest.hint}", width, subsequent_indent="  ")


_PLOT = 21
_ROOMY = 110


def _says(mark: Mark) -> str:
    return f"{mark.says}: {mark.why}" if mark.why else mark.says


def _stacked(mark: Mark, width: int) -> Iterator[str]:
    yield from wrap(mark.name, width)
    yield from wrap(mark.unlike, width, initial_indent="  ", subsequent_indent="  ")
    numbers = f"{mark.ratio}, {mark.interval}: " if mark.at is not None else ""
    yield from wrap(numbers + _says(mark), width, initial_indent="  ", subsequent_indent="  ")


def _plot(forest: Forest, mark: Mark, width: int) -> str:
    """``   │  ├──●──┤``: the line is a ratio of 1."""
    cells = [" "] * width

    def cell(place: float) -> int:
        return min(width - 1, round(place * (width - 1) / 100.0))

    cells[cell(forest.one)] = "│"
    if mark.at is not None:
        low, middle, high = map(cell, mark.at)
        for place in range(low, high + 1):
            cells[place] = "─"
        cells[low], cells[high] = "├", "┤"
        cells[middle] = "●"
    return "".join(cells)


# ---- bars


def _panel_lines(panels: Sequence[Panel], width: int) -> Iterator[str]:
    if not panels:
        return
    names = [bar.name for bar in panels[0].bars]
    values = [max(len(each.value) for each in panel.bars) for panel in panels]
    name = _name_column(names, width)
    room = width - name - sum(value + 3 for value in values)
    length = max(_BARS[0], min(_BARS[1], room // len(panels)))
    if room // len(panels) < _BARS[0]:  # below each other
        length = max(_BARS[0], min(_BARS[1], width - name - max(values) - 3))
    cells = [
        [
            f"{bar(each.length or 0.0, length):<{length}} {each.value:>{value}}"
            for each in panel.bars
        ]
        for panel, value in zip(panels, values, strict=True)
    ]
    heads = ["experiment", *(panel.title for panel in panels)]
    size = length + 1
    heads[1:] = [_head(text, size + value) for text, value in zip(heads[1:], values, strict=True)]
    rows = list(zip(names, *cells, strict=True))
    yield "Side by side, bars as shares of the largest:"
    yield from columns(heads, rows, width, {0})


def _name_column(names: Sequence[str], width: int) -> int:
    """The characters that names are given before they wrap: their heading's at least."""
    longest = max(map(len, ["experiment", *names]))
    return min(longest, _MOST_NAME if width >= WIDTH else _LESS_NAME)


def _head(text: str, width: int) -> str:
    """The panel's title, shortened to its column."""
    short = {"model FLOP/s of a device": "FLOP/s a device", "peak memory of a device": "memory"}
    return (text if len(text) <= width else short.get(text, text)).ljust(width)


def _split_lines(splits: Sequence[Split], width: int) -> Iterator[str]:
    """A letter for each part, as long as its share of the slowest experiment's time."""
    if not splits:
        return
    yield "Time for a sample, by what it goes to:"
    used = {name for split in splits for name, share, _ in split.parts if share > 0.0}
    key = ", ".join(f"{_LETTERS[name]} {name}" for name in _LETTERS if name in used)
    yield from wrap(f"  {key}", width, subsequent_indent="  ")
    name = _name_column([split.name for split in splits], width)
    room = max(10, min(60, width - name - 2 * 2 - 9))
    rows = []
    for split in splits:
        rows.append((split.name, _letters(split, room).ljust(room), split.sample))
        if split.hidden is not None:
            share, words = split.hidden
            text = f"{'~' * max(1, round(room * share / 100.0))} {words}"
            rows.append(("", text[:room].ljust(room), ""))
    yield from columns(("experiment", "".ljust(room), "a sample"), rows, width, {0})
    if any(split.hidden for split in splits):
        said = "  ~ communication behind other parts, and its share of a step: in none of them"
        yield from wrap(said, width, subsequent_indent="  ")


def _letters(split: Split, room: int) -> str:
    """Parts at their places; each edge is rounded, so that the whole is as long as its sum."""
    text, at = "", 0.0
    for name, share, _ in split.parts:
        at = min(100.0, at + share)
        text += _LETTERS[name] * (round(room * at / 100.0) - len(text))
    return text[:room]


def table_lines(table: Table, width: int) -> Iterator[str]:
    """A table under its title."""
    if table.title:
        yield from wrap(f"{table.title}:", width)
    left = {0, *(n for n, name in enumerate(table.columns) if name in _WORDS)}
    yield from columns(table.columns, table.rows, width, left)
    for note in table.notes:
        yield from wrap(note, width, subsequent_indent="  ")


# ---- markdown


def markdown(
    summaries: Sequence[Summary], escape: Callable[[str], str], series: Series | None = None
) -> str:
    """What differs, then tables, then the drawn split: as a forge shows them."""
    side = side_of(summaries, series)
    if side is None:
        return ""
    blocks = ["#### Experiments"]
    if side.unlike:
        found = (f"- {escape(name)}: {escape(values)}" for name, values in side.unlike)
        blocks += ["**What differs**", "\n".join(found)]
    for forest in side.forests:
        blocks += markdown_forest(forest, escape)
    blocks += _markdown_panels(side.panels, escape)
    blocks += _markdown_splits(side.splits)
    for table in side.tables:
        blocks += markdown_table(table, escape)
    return "\n\n".join([*blocks, *(f"- {escape(text)}" for text in side.reasons)])


def markdown_forest(
    forest: Forest, escape: Callable[[str], str], title: str | None = None
) -> list[str]:
    """The ratios as a table."""
    rows = [(m.name, m.unlike, m.ratio, m.interval, _says(m)) for m in forest.marks]
    heads = ("experiment", "what differs", "ratio", "95 % interval", "says")
    words = title or f"Samples/s against {forest.base}"
    said = [escape(forest.hint)] if forest.hint else []
    return [f"**{escape(words)}**", _pipes(heads, rows, escape), *said]


def markdown_table(table: Table, escape: Callable[[str], str]) -> list[str]:
    """A table under its title."""
    notes = map(escape, table.notes)
    return [f"**{escape(table.title)}**", _pipes(table.columns, table.rows, escape), *notes]


_MARKDOWN_BAR = 10
_MARKDOWN_WIDTH = 100


def _markdown_panels(panels: Sequence[Panel], escape: Callable[[str], str]) -> list[str]:
    """A number and its bar beside it, a pair of columns a panel."""
    if not panels:
        return []
    heads = ["experiment"]
    for panel in panels:
        heads += [panel.title, panel.note]
    lines = [_cells([escape(head) for head in heads])]
    lines.append(_cells(["---", *(mark for _ in panels for mark in ("---:", ":---"))]))
    for n, first in enumerate(panels[0].bars):
        cells = [escape(first.name)]
        for panel in panels:
            own = panel.bars[n]
            drawn = bar(own.length or 0.0, _MARKDOWN_BAR)
            cells += [escape(own.value), f"`{drawn}`" if drawn else ""]
        lines.append(_cells(cells))
    return ["**Side by side**", "\n".join(lines)]


def _markdown_splits(splits: Sequence[Split]) -> list[str]:
    """Drawn in letters of one width; a name must not end the block."""
    if not splits:
        return []
    drawn = (line.replace("`", "'") for line in _split_lines(splits, _MARKDOWN_WIDTH))
    return ["```text\n" + "\n".join(drawn) + "\n```"]


def _pipes(
    heads: Sequence[str], rows: Iterable[Sequence[str]], escape: Callable[[str], str]
) -> str:
    rule = ["---" if n == 0 or head in _WORDS else "---:" for n, head in enumerate(heads)]
    texts = [_cells([escape(cell) for cell in row]) for row in (heads, *rows)]
    return "\n".join([texts[0], _cells(rule), *texts[1:]])


def _cells(cells: Iterable[str]) -> str:
    return one_line(f"| {' | '.join(cells)} |")
