"""A document as markdown: short enough to paste into a forum or an issue.

Text from records is escaped: it cannot open a table cell, a link, or HTML.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator

from trainrig.language import translate
from trainrig.report import document as doc
from trainrig.report.render.terminal import draw, stack_key, waterfall_title
from trainrig.units import capital, one_line

_SPECIAL = re.compile(r"([\\`*_\[\]|<>#~])")
_MAX_ITEMS = 12
_MAX_ROWS = 200


def to_markdown(document: doc.Document) -> str:
    """Return every block that text can hold, ending in a newline."""
    document = doc.translated(document)
    parts = [_escape(document.banner)]
    for level, block in doc.text_blocks(document.blocks):
        parts += _block(block, level + 3)
    return "\n\n".join(part for part in parts if part) + "\n"


def _block(block: doc.Block, level: int) -> Iterator[str]:
    match block:
        case doc.Section():
            yield f"{'#' * (level + 1)} {_escape(block.title)}"
        case doc.Paragraph():
            label = f"**{_escape(block.label)}.** " if block.label else ""
            links = "".join(f" [{_escape(path)}]({path})" for path in block.files)
            yield label + _escape(block.text) + links
        case doc.Badge():
            yield from _badge(block, level)
        case doc.Facts():
            title = [f"**{_escape(block.title)}**", ""] if block.title else []
            pairs = [f"- {_escape(name)}: {_escape(value)}" for name, value in block.pairs]
            yield "\n".join(title + pairs)
        case doc.Tiles():
            yield "\n".join(
                f"- {_escape(tile.name)}: **{_escape(tile.value)}**"
                + "".join(f"; {_escape(note)}" for note in tile.notes)
                for tile in block.tiles
            )
        case doc.Findings():
            yield "\n".join(_items(block))
        case doc.WaterfallBars():
            yield f"**{_escape(waterfall_title(block))}**"
            rows = []
            for bar in block.bars:
                gap = f"{bar.gap} ({bar.share})" if bar.gap else ""
                why = bar.cause if bar.gap else bar.note or bar.source
                why += f"; {bar.doubt}" if bar.doubt else ""
                rows.append([_escape(cell) for cell in (bar.name, bar.value, gap, why)])
            yield _pipes(
                map(translate, ["level", "value", "gap", "cause"]), rows, left_aligned=(0, 3)
            )
        case doc.Table():
            yield from _table(block)


def _badge(block: doc.Badge, level: int) -> Iterator[str]:
    line, head = block.answer, "#" * level
    if line is None:
        yield f"{head} {_escape(block.title)}: {_escape(block.word)}"
        yield _escape(capital(block.reason))
        return
    title = f"{_escape(block.title)}{line.colon}{_escape(line.word)}"
    yield f"{head} {title}{_escape(line.compared)}"
    yield _escape(capital(line.reason))
    yield f"**{_escape(block.word)}**: {_escape(capital(block.reason))}"


def _items(block: doc.Findings) -> Iterator[str]:
    if block.title:
        yield f"**{_escape(block.title)}**\n"
    for item in block.items[:_MAX_ITEMS]:
        label = f"{_escape(capital(item.label))}: " if item.label else ""
        yield f"- {label}{_escape(item.text)}"
        if item.fix:
            yield f"  - {translate('Next:')} {_escape(item.fix)}"
        if item.command:
            yield f"    `{one_line(item.command).replace('`', '')}`"
    if len(block.items) > _MAX_ITEMS:
        yield translate(f"- and {len(block.items) - _MAX_ITEMS} more")


def _table(block: doc.Table) -> Iterator[str]:
    if block.title:
        yield f"**{_escape(block.title)}**"
    if key := stack_key(block):
        yield _escape(key)
    columns, rows = block.used(), list(block.lines())
    if rows:
        yield _pipes(
            [column.head for column in columns],
            [[_cell(cell) for cell in cells] for _, cells in rows[:_MAX_ROWS]],
            left_aligned=[n for n, column in enumerate(columns) if column.kind != "number"],
        )
    notes = [f"{cells[0].text}: {line.note}" for line, cells in rows if line.note]
    if len(rows) > _MAX_ROWS:
        notes.append(translate(f"and {len(rows) - _MAX_ROWS} more rows"))
    if notes or block.notes:
        yield "\n".join(f"- {_escape(note)}" for note in (*notes, *block.notes))


def _cell(cell: doc.Cell) -> str:
    drawn = f"`{draw(cell.drawing).rstrip()}`" if cell.drawing is not None else ""
    parts = [drawn, _escape(cell.text), _escape(cell.small), r"\*" if cell.marked else ""]
    return " ".join(part for part in parts if part and part != "``")


def _pipes(
    heads: Iterable[str], rows: Iterable[Iterable[str]], left_aligned: Collection[int]
) -> str:
    """Return a table of escaped cells; the columns ``left`` are aligned so."""
    names = [_escape(head) for head in heads]
    rule = ["---" if n in left_aligned else "---:" for n in range(len(names))]
    return "\n".join(f"| {' | '.join(row)} |" for row in (names, rule, *rows))


def _escape(text: str) -> str:
    """Return one line, printable, with markdown's own characters made plain."""
    return _SPECIAL.sub(r"\\\1", " ".join(one_line(text).split()))
