"""Texts in columns for a terminal of some width: words wrap, and numbers move below, never cut.

A table that is too wide first narrows its columns of words, each word on a line of its own at the
worst; what still does not fit is printed as a second table below, with the first column again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from textwrap import wrap

GAP = 2
_LEAST = 14
_LONGEST = 26
"""Columns of words are not made narrower than the first, nor than their longest word, up to the
second."""

Rows = Sequence[Sequence[str]]


def columns(heads: Sequence[str], rows: Rows, width: int, left: Collection[int]) -> Iterator[str]:
    """Lines of at most ``width`` characters; the columns ``left`` are words, others numbers."""
    everything = [heads, *rows]
    natural = [max(map(len, column)) for column in zip(*everything, strict=True)]
    least = [
        _least(column) if n in left else natural[n]
        for n, column in enumerate(zip(*everything, strict=True))
    ]
    for number, chosen in enumerate(_chunks(least, width)):
        if number:
            yield ""
        widths = _fitted([natural[n] for n in chosen], [least[n] for n in chosen], width)
        for row in everything:
            yield from _row([row[n] for n in chosen], widths, [n in left for n in chosen])


def _least(column: Sequence[str]) -> int:
    """How narrow a column of words may be."""
    words = (len(word) for cell in column for word in cell.split())
    return min(max(map(len, column)), max(_LEAST, min(_LONGEST, max(words, default=0))))


def _chunks(least: Sequence[int], width: int) -> list[list[int]]:
    """Which columns stand beside each other: all, or as many as fit, the first one in each."""
    chunks, used = [[0]], least[0]
    for n in range(1, len(least)):
        if used + GAP + least[n] > width and len(chunks[-1]) > 1:
            chunks.append([0])
            used = least[0]
        chunks[-1].append(n)
        used += GAP + least[n]
    return chunks


def _fitted(natural: Sequence[int], least: Sequence[int], width: int) -> list[int]:
    """Columns of words, the widest first, give up what is too much."""
    sizes = list(natural)
    while sum(sizes) + GAP * (len(sizes) - 1) > width:
        wide = [n for n, size in enumerate(sizes) if size > least[n]]
        if not wide:
            break
        sizes[max(wide, key=lambda n: sizes[n])] -= 1
    return sizes


def _row(cells: Sequence[str], widths: Sequence[int], words: Sequence[bool]) -> Iterator[str]:
    """One row, as many lines high as its highest cell."""
    stacks = [
        (wrap(cell, width) or [""]) if is_words else [cell]
        for cell, width, is_words in zip(cells, widths, words, strict=True)
    ]
    for n in range(max(map(len, stacks))):
        parts = [stack[n] if n < len(stack) else "" for stack in stacks]
        yield (
            (" " * GAP)
            .join(
                part.ljust(width) if is_words else part.rjust(width)
                for part, width, is_words in zip(parts, widths, words, strict=True)
            )
            .rstrip()
        )


def bar(share: float, width: int) -> str:
    """A bar of ``share`` per cent of ``width`` characters, to an eighth of one."""
    eighths = max(1, round(8 * width * share / 100.0)) if share > 0.0 else 0
    whole, rest = divmod(min(eighths, 8 * width), 8)
    return "█" * whole + ("▏▎▍▌▋▊▉"[rest - 1] if rest else "")


_PLAIN = str.maketrans(
    {"█": "#", "×": "x", "→": ">", "│": "|", "●": "o", "─": "-", "├": "[", "┤": "]", "…": "."}
    | dict.fromkeys("▋▊▉", "#")
    | dict.fromkeys("▏▎▍▌", " ")
)


def plain(text: str) -> str:
    """The same in letters that every terminal has."""
    return text.translate(_PLAIN)
