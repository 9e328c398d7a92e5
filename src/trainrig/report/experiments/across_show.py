"""Experiments of two runs, as `across` found them: for terminal, markdown and HTML.

Those that are not the same experiment come first, then the ratios on one axis, then the numbers of
both runs, then those that only one of them has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import Any

from trainrig.analysis.compare_training import Across
from trainrig.analysis.environment_diff import Difference
from trainrig.analysis.training_results import Summary
from trainrig.report.experiments.forest import Forest, forest
from trainrig.report.experiments.side import Table
from trainrig.report.experiments.text import (
    forest_lines,
    markdown_forest,
    markdown_table,
    table_lines,
)
from trainrig.stats import AGREEMENT, DIFFER, Change
from trainrig.units import format_memory, format_quantity, format_share, one_line

RULE = (
    "Experiments are better or worse where the 95 % interval of the ratio of their samples/s lies "
    "on one side of 1; it is widened by what trainings at two times differ by anyway: "
    f"{format_share(AGREEMENT)}, on processors {format_share(DIFFER['cpu'])}."
)
_TITLE = "Samples/s, new over old, 95 % interval"


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossed:
    """What the page shows of two runs' experiments."""

    old: str
    new: str
    headline: str
    first: tuple[Table, ...]
    forest: Forest | None
    rest: tuple[Table, ...]


def crossed(found: Across, old: str, new: str, differences: Sequence[Difference] = ()) -> Crossed:
    """Arranged for every output; what is unlike about the machines comes first, where given."""
    machines = tuple((each.what, each.old, each.new) for each in differences)
    before = (Table(("what", "old", "new"), machines, "Unlike machines"),) if machines else ()
    return Crossed(
        old=one_line(old),
        new=one_line(new),
        headline=headline(found),
        first=(*before, *_not_the_same(found)),
        forest=forest(found.rows, "the old run"),
        rest=tuple(_numbers(found)),
    )


def headline(found: Across) -> str:
    """``1 worse, 2 better, 7 cannot tell``."""
    counts = [(found.count(change), change.value) for change in _ORDER]
    return ", ".join(f"{count} {word}" for count, word in counts if count) or "none in both"


_ORDER = (Change.WORSE, Change.BETTER, Change.SAME, Change.CANNOT_TELL)


def across_lines(found: Across, width: int) -> Iterator[str]:
    """For a terminal."""
    shown = crossed(found, "", "")
    for table in shown.first:
        yield from (*table_lines(table, width), "")
    if shown.forest is not None:
        yield from (*forest_lines(shown.forest, width, f"{_TITLE}:"), "")
    for table in shown.rest:
        yield from (*table_lines(table, width), "")
    if found.rows:
        yield from wrap(RULE, width)


def across_markdown(found: Across, escape: Callable[[str], str]) -> Iterator[str]:
    """For a forum or an issue: blocks."""
    shown = crossed(found, "", "")
    for table in shown.first:
        yield from markdown_table(table, escape)
    if shown.forest is not None:
        yield from markdown_forest(shown.forest, escape, _TITLE)
    for table in shown.rest:
        yield from markdown_table(table, escape)
    if found.rows:
        yield escape(RULE)


def _not_the_same(found: Across) -> Iterator[Table]:
    rows = tuple(
        (one_line(each.name), one_line("; ".join(each.unlike)))
        for each in found.rows
        if each.unlike
    )
    if rows:
        title = "Unlike under one name: the ratio is of what differs, too"
        yield Table(("experiment", "what differs"), rows, title)


def _numbers(found: Across) -> Iterator[Table]:
    rows = tuple(map(_row, found.old, found.new))
    if rows:
        heads = ("experiment", "samples/s old", "new", "memory old", "new", "loss old", "new")
        yield Table((*heads, "verdict"), rows, "The numbers of both runs")
    if found.alone:
        alone = tuple((one_line(name), why) for name, why in found.alone)
        yield Table(("experiment", "why"), alone, "Not compared")


def _row(old: Summary, new: Summary) -> tuple[str, ...]:
    sides = (old, new)
    words = [each["row_verdict"] for each in sides]
    return (
        one_line(new["name"]),
        *(_value(each["samples_per_s"], lambda rate: format_quantity(rate, "")) for each in sides),
        *(_value(each["peak_memory_bytes"], format_memory) for each in sides),
        *(_value(_last(each), lambda loss: f"{loss:.4f}") for each in sides),
        one_line(words[1] if words[0] == words[1] else f"{words[0]} → {words[1]}"),
    )


def _last(each: Summary) -> float | None:
    return each["losses"][-1] if each["losses"] else None


def _value(value: Any, words: Callable[[Any], str]) -> str:
    return "-" if value is None else words(value)
