"""A document in a terminal: 80 columns or more, with or without colour, in plain letters if need.

rich wraps and aligns.  What it may not do is to cut a number, a heading or an option: `_fit` gives
each column its width, leaves optional columns out where the line is too narrow, and moves what is
still too wide to a second table below, with the first column again.  Text from records is cleaned
of control characters: a name in a stranger's bundle must not be able to move the cursor.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Literal

from trainrig.language import ENGLISH, tag, translate
from trainrig.language.width import unbroken, wrap
from trainrig.language.width import width as width_of
from trainrig.report import document as doc
from trainrig.units import capital, one_line

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

_STYLES = {"good": "green", "bad": "red", "warn": "yellow", "dim": "dim", "strong": "bold", "": ""}
_GAP = 2
_TRAILING = re.compile(r" +((?:\x1b\[[0-9;]*m)*)$", re.MULTILINE)
"""Blanks at a line's end, before the codes that end its colour."""
_LEAST_WORDS = 14
_LONGEST_WORD = 26
"""A column of words is not made narrower than the first, nor than its longest word up to this."""
_LONG_HEAD = 24
"""A head of a column of numbers that is longer may take several lines."""
_STRIP, _STACK, _WHISKER = 14, 40, 21
"""Characters of a drawing."""
LETTERS = "dfbco."
"""Letters that the parts of a stacked bar are drawn with, in their order."""
_PLAIN = str.maketrans(
    {"█": "#", "×": "x", "→": ">", "│": "|", "●": "o", "─": "-", "├": "[", "┤": "]", "…": "."}
    | {"−": "-", "≥": ">=", "±": "+", "µ": "u", "³": "^3", "°": " ", "–": "-"}
    | dict.fromkeys("▋▊▉", "#")
    | dict.fromkeys("▏▎▍▌", " ")
)


def print_document(document: doc.Document, console: Console) -> None:
    """Print every block that text can hold, each as soon as it is made."""
    document = doc.translated(document)
    banner = (doc.Paragraph(document.banner, "warn"),) if document.banner else ()
    printer = _Printer(console)
    for _, block in doc.text_blocks(itertools.chain(banner, document.blocks)):
        with console.capture() as captured:
            printer.block(block)
        console.file.write(_TRAILING.sub(r"\1", captured.get()))


class _Printer:
    """Prints blocks with one empty line between those that stand apart."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._is_plain = not console.encoding.lower().startswith("utf")
        self._is_first = True

    def block(self, block: doc.Block) -> None:
        if isinstance(block, doc.Section | doc.Badge | doc.WaterfallBars | doc.Table):
            self._gap()
        match block:
            case doc.Section():
                self._line(block.title, "strong")
                self._is_first = True
                return
            case doc.Paragraph():
                label = f"{block.label}: " if block.label else ""
                self._line(" ".join([label + block.text, *block.files]), block.tone)
            case doc.Badge():
                self._verdict(block)
            case doc.Facts():
                self._facts(block)
            case doc.Tiles():
                self._tiles(block)
            case doc.Findings():
                self._findings(block)
            case doc.WaterfallBars():
                self._waterfall(block)
            case doc.Table():
                self._table(block)
        self._is_first = False

    def _gap(self) -> None:
        if not self._is_first:
            self._console.print()
        self._is_first = True

    def _line(self, text: str, tone: doc.Tone = "", indent: int = 0) -> None:
        from rich.padding import Padding

        lines = self._broken(self._text(text, tone), self._console.width - indent)
        self._console.print(Padding(lines, (0, 0, 0, indent), expand=False) if indent else lines)

    def _broken(self, text: Text, width: int) -> Text:
        """Return text with line breaks where rich, which breaks at spaces alone, would cut it."""
        from rich.text import Text

        if width_of(text.plain) <= width:
            return text
        if tag() == ENGLISH and all(width_of(word) <= width for word in text.plain.split()):
            return text
        return Text("\n".join(wrap(text.plain, width)), style=text.style)

    def _text(self, text: str, tone: str = "") -> Text:
        from rich.text import Text

        text = one_line(text)
        return Text(text.translate(_PLAIN) if self._is_plain else text, style=_STYLES[tone])

    def _verdict(self, block: doc.Badge) -> None:
        from rich.text import Text

        if block.answer is None:
            self._line(block.title, "strong")
        else:
            self._answer(block.title, block.answer)
        word = Text(one_line(block.word), style=f"bold {_STYLES[block.tone]}".strip())
        verdict = Text.assemble(word, "  ", self._text(capital(block.reason)))
        self._console.print(self._broken(verdict, self._console.width))

    def _answer(self, title: str, answer: doc.AnswerLine) -> None:
        from rich.text import Text

        line = Text.assemble(
            self._text(title + answer.colon, "strong"),
            Text(one_line(answer.word), style=f"bold {_STYLES[answer.tone]}".strip()),
            self._text(answer.compared),
        )
        self._console.print(self._broken(line, self._console.width))
        self._line(capital(answer.reason))

    def _facts(self, block: doc.Facts) -> None:
        if block.title:
            self._gap()
            self._line(block.title, "strong")
        pairs = tuple((doc.Cell(f"{name}:", "dim"), value) for name, value in block.pairs)
        self._rows(doc.Table((doc.Column("", "code"), doc.Column("", "words")), pairs))

    def _tiles(self, block: doc.Tiles) -> None:
        self._rows(
            doc.table(
                block.tiles,
                doc.column("", lambda tile: doc.Cell(f"{tile.name}:", "dim"), kind="code"),
                doc.column("", lambda tile: doc.Cell(tile.value, "strong"), kind="code"),
                doc.words("", lambda tile: "; ".join(tile.notes)),
            )
        )

    def _findings(self, block: doc.Findings) -> None:
        if block.title:
            self._line(block.title, "strong")
        for item in block.items:
            label = f"{item.label}: " if item.label else ""
            self._line(label + item.text, item.tone, indent=2)
            if item.fix:
                self._line(translate("next: {text}").format(text=item.fix), indent=4)
            for line in command_lines(item.command, self._console.width - 4):
                self._line(line, indent=4)

    def _waterfall(self, block: doc.WaterfallBars) -> None:
        def remark(bar: doc.Bar) -> doc.Cell:
            text = bar.note or (bar.cause if bar.gap else bar.source.partition(";")[0])
            text += f"; {bar.doubt}" if bar.doubt else ""
            return doc.Cell(
                text + (translate("; below its expected band") if bar.is_below else ""), tone(bar)
            )

        def tone(bar: doc.Bar) -> doc.Tone:
            return "bad" if bar.is_below else "warn" if bar.note else ""

        def drawn(bar: doc.Bar) -> doc.Cell:
            return doc.Cell("", "dim", drawing=doc.Strip(0.0, bar.length))

        self._line(waterfall_title(block), "strong")
        table = doc.table(
            block.bars,
            doc.words("", lambda bar: f"  {bar.name}"),
            doc.column("", lambda bar: doc.Cell(bar.value, "strong")),
            doc.column("", drawn, kind="drawing"),
            doc.column("", lambda bar: doc.Cell(bar.share, tone(bar))),
            doc.words("", remark),
        )
        self._rows(table)

    def _table(self, block: doc.Table) -> None:
        if block.title:
            self._line(block.title, "strong")
        if key := stack_key(block):
            self._line(key, "dim")
        self._rows(block)
        for line, cells in block.lines():
            if line.note:
                self._line(f"  {cells[0].text}: {line.note}", "dim")
        for note in block.notes:
            self._line(note, "dim")

    def _rows(self, block: doc.Table) -> None:
        """The cells, in as many tables below each other as the width asks for."""
        from rich.table import Table

        columns, lines = block.used(), list(block.lines())
        texts = [[self._cell(cell) for cell in cells] for _, cells in lines]
        for number, chunk in enumerate(_chunks(columns, texts, self._console.width)):
            if number:
                self._console.print()
            heads = any(columns[n].head for n, _ in chunk)
            table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), show_header=heads)
            for n, width in chunk:
                right = columns[n].kind == "number"
                head = self._broken(self._text(columns[n].head), width)
                justify: Literal["left", "right"] = "right" if right else "left"
                table.add_column(head, justify=justify, width=width, overflow="fold")
            for (line, _), row in zip(lines, texts, strict=True):
                cells = [self._broken(row[n], width) for n, width in chunk]
                table.add_row(*cells, style=_STYLES[line.tone])
            self._console.print(table)

    def _cell(self, cell: doc.Cell) -> Text:
        text = draw(cell.drawing) if cell.drawing is not None else ""
        text += " " * bool(text and cell.text) + cell.text
        if cell.small:
            text += f" {cell.small}"
        return self._text(text + ("*" if cell.marked else ""), cell.tone)


def waterfall_title(block: doc.WaterfallBars) -> str:
    """Return ``fp16 compute of RTX 4090 #1``."""
    if not block.subtitle:
        return block.title
    form = translate("{quantity} of {name}")
    return form.format(quantity=block.title, name=block.subtitle)


def stack_key(table: doc.Table) -> str:
    """Return ``f forward, b backward``: what the letters of stacked bars mean."""
    return ", ".join(
        f"{letter} {name}" for letter, name in zip(LETTERS, table.part_names(), strict=False)
    )


def command_lines(command: str, width: int) -> Iterator[str]:
    """Yield a command in lines that a shell takes together, broken before options."""
    words = re.split(r" (?=--)", command) if command else []
    line = ""
    for word in words:
        if line and len(line) + len(word) + 3 > width:
            yield f"{line} \\"
            line = f"    {word}"
        else:
            line = f"{line} {word}" if line else word
    if line:
        yield line


def draw(drawing: doc.Drawing) -> str:
    """Return a drawing in characters, as wide as its kind is."""
    match drawing:
        case doc.Strip(start, end):  # to an eighth of a character
            first = min(round(start * _STRIP), _STRIP - 1)
            eighths = max(1, round(8 * _STRIP * end) - 8 * first) if end > start else 0
            full, eighths_left = divmod(min(eighths, 8 * (_STRIP - first)), 8)
            text = " " * first + "█" * full + ("▏▎▍▌▋▊▉"[eighths_left - 1] if eighths_left else "")
            return text.ljust(_STRIP)
        case doc.Stack(parts):  # each edge is rounded, so that all together are as long as the sum
            text, at = "", 0.0
            for letter, (_, share) in zip(itertools.cycle(LETTERS), parts, strict=False):
                at = min(1.0, at + share)
                text += letter * (round(_STACK * at) - len(text))
            return text.ljust(_STACK)
        case doc.Whisker():
            return _whisker(drawing)


def _whisker(whisker: doc.Whisker) -> str:
    """Return ``   │  ├──●──┤``: the line is "no difference"."""
    cells = [" "] * _WHISKER

    def place(share: float) -> int:
        return min(_WHISKER - 1, max(0, round(share * (_WHISKER - 1))))

    cells[place(whisker.line)] = "│"
    if whisker.low is not None and whisker.middle is not None and whisker.high is not None:
        low, middle, high = place(whisker.low), place(whisker.middle), place(whisker.high)
        cells[low : high + 1] = "├" + "─" * (high - low - 1) + "┤" * (high > low)
        cells[middle] = "●"
    return "".join(cells)


# ---- columns


def _chunks(
    columns: Sequence[doc.Column], texts: Sequence[Sequence[Text]], width: int
) -> Iterator[list[tuple[int, int]]]:
    """Columns of each table below the other, as (number, width)."""
    sizes = [_sizes(column, [row[n].plain for row in texts]) for n, column in enumerate(columns)]
    shown_columns = list(range(len(columns)))
    while sum(sizes[n][0] + _GAP for n in shown_columns) - _GAP > width:
        optional = [n for n in shown_columns if columns[n].optional]
        if not optional:
            break
        shown_columns.remove(max(optional, key=lambda n: (columns[n].optional, n)))
    keys = _row_keys(columns, texts, shown_columns)
    while shown_columns:
        chunk, used = shown_columns[:1], sizes[shown_columns[0]][0]
        for n in shown_columns[1:]:
            if used + _GAP + sizes[n][0] > width and len(chunk) > len(keys):
                break
            chunk.append(n)
            used += _GAP + sizes[n][0]
        yield list(zip(chunk, _fit([sizes[n] for n in chunk], width), strict=True))
        others = [n for n in shown_columns if n not in chunk]
        shown_columns = [*keys, *others] if others else []


def _row_keys(
    columns: Sequence[doc.Column], texts: Sequence[Sequence[Text]], shown_columns: Sequence[int]
) -> list[int]:
    """Return first columns, as many as tell each row from the others; one where words do not."""
    words = list(itertools.takewhile(lambda n: columns[n].kind == "words", shown_columns))
    for num in range(1, len(words) + 1):
        if len({tuple(row[n].plain for n in words[:num]) for row in texts}) == len(texts):
            return words[:num]
    return list(shown_columns[:1])


def _sizes(column: doc.Column, texts: Sequence[str]) -> tuple[int, int]:
    """Return a column's least and its natural width."""
    cells = [column.head, *texts]
    natural = max(map(width_of, cells))
    if column.kind != "words":
        if width_of(column.head) <= _LONG_HEAD:
            return natural, natural
        words = [width_of(word.strip()) for word in unbroken(column.head)]
        return min(natural, max(_LEAST_WORDS, *words, *map(width_of, texts))), natural
    longest = max((width_of(word.strip()) for cell in cells for word in unbroken(cell)), default=0)
    if not all(map(str.isascii, cells)) and tag() != ENGLISH:
        longest = max(longest, _LONGEST_WORD)  # broken between any two letters, it reads badly
    return min(natural, max(_LEAST_WORDS, min(_LONGEST_WORD, longest))), natural


def _fit(sizes: Sequence[tuple[int, int]], width: int) -> list[int]:
    """Return the widest columns of words give up what is too much."""
    widths = [natural for _, natural in sizes]
    while sum(widths) + _GAP * (len(widths) - 1) > width:
        wide = [n for n, (least, _) in enumerate(sizes) if widths[n] > least]
        if not wide:
            break
        widths[max(wide, key=lambda n: widths[n])] -= 1
    return widths
