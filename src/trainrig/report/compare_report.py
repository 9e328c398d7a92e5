"""A comparison in words and tables: terminal, markdown, JSON.

One table a device, the device with the largest loss first; within it worse
before better before the rest.  Cases that hardly moved are counted in a line
below the table; JSON has them all.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from trainrig.analysis.compare import Judged, Pair, RunComparison, Unjudged
from trainrig.analysis.compare_training import across_dict
from trainrig.benchmarks.labels import case_text, name_devices
from trainrig.record import Record
from trainrig.report.columns import plain
from trainrig.report.experiments.across_show import across_lines, across_markdown
from trainrig.stats import SMALLEST_CHANGE, Change
from trainrig.units import format_quantity, format_share, one_line, signed_share

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

RULE = (
    f"Better and worse: changed by more than {format_share(SMALLEST_CHANGE)}; at most 5 % of such "
    "calls are expected to be false. Could see: the smallest change that would have been called."
)
_STYLE = {Change.WORSE: "red", Change.BETTER: "green", Change.CANNOT_TELL: "dim", Change.SAME: ""}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """A table as plain data: what terminal and markdown print."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    styles: tuple[str, ...] = ()
    """Of each row, for the terminal."""
    notes: tuple[str, ...] = ()
    """Lines below it."""


def headline(comparison: RunComparison) -> str:
    """``1 worse, 2 better, 5 the same, 12 cannot tell; 3 not judged``."""
    counts = [
        (comparison.count(Change.WORSE), "worse"),
        (comparison.count(Change.BETTER), "better"),
        (comparison.count(Change.SAME), "the same"),
        (comparison.count(Change.CANNOT_TELL), "cannot tell"),
    ]
    said = ", ".join(f"{count} {word}" for count, word in counts if count)
    left = len(comparison.unjudged) + len(comparison.side_by_side)
    return (said or "nothing could be judged") + (f"; {left} not judged" if left else "")


def sheets(comparison: RunComparison) -> Iterator[Sheet]:
    """What is unlike, what was judged, what stands side by side, and what was not judged."""
    yield from unlike_sheets(comparison)
    yield from judged_sheets(comparison)


def unlike_sheets(comparison: RunComparison) -> Iterator[Sheet]:
    """What is unlike about machine, settings and software: to be read before anything else."""
    if comparison.differences:
        rows = tuple((d.what, d.old, d.new) for d in comparison.differences)
        yield Sheet(title="Unlike", headings=("", "old", "new"), rows=rows)


def judged_sheets(comparison: RunComparison) -> Iterator[Sheet]:
    """What was judged, what stands side by side, and what was not judged."""
    yield from _judged_sheets(comparison.judged)
    if comparison.side_by_side:
        yield Sheet(
            title="Different devices, side by side, not judged",
            headings=("case", "old", "new", "new ÷ old"),
            rows=tuple(_beside(pair) for pair in comparison.side_by_side),
        )
    if comparison.said:
        yield Sheet(
            title="Explanations",
            headings=("", "in words"),
            rows=tuple((where, answer.text) for where, answer in comparison.said),
        )
    if comparison.unjudged:
        yield Sheet(
            title="Not judged",
            headings=("case", "why"),
            rows=tuple(_reasons(comparison.unjudged)),
        )


def _judged_sheets(judged: Sequence[Judged]) -> Iterator[Sheet]:
    names = name_devices((each.record.device, each.record.device_index) for each in _pairs(judged))
    places: dict[_Place, list[Judged]] = {}
    for each in judged:  # the most important first, so the places come in that order too
        places.setdefault(_place(each.pair.record), []).append(each)
    for (device, index, count), own in places.items():
        name = names[device, index] + (f", {count} at once" if count > 1 else "")
        yield _judged_sheet(name, own)


def _pairs(judged: Sequence[Judged]) -> Iterator[Pair]:
    return (each.pair for each in judged)


_Place = tuple[str | None, int | None, int]


def _place(record: Record) -> _Place:
    return record.device, record.device_index, record.device_count


def _judged_sheet(name: str, judged: Sequence[Judged]) -> Sheet:
    listed = [each for each in judged if not _hardly_moved(each)]
    return Sheet(
        title=name,
        headings=("", "case", "old", "new", "change", "could see"),
        rows=tuple(
            (
                str(each.change),
                _label(each.pair.record),
                _value(each.pair.old),
                _value(each.pair.new),
                signed_share(each.comparison.ratio - 1.0),
                format_share(each.smallest_visible),
            )
            for each in listed
        ),
        styles=tuple(_STYLE[each.change] for each in listed),
        notes=tuple(_counted([each for each in judged if _hardly_moved(each)])),
    )


def _hardly_moved(judged: Judged) -> bool:
    within = abs(judged.comparison.ratio - 1.0) <= SMALLEST_CHANGE
    return judged.change is Change.SAME or (judged.change is Change.CANNOT_TELL and within)


def _counted(judged: Sequence[Judged]) -> Iterator[str]:
    """``30 more cannot tell: moved by 1.0 % at most, could see 2.8 % to 14 %``."""
    for change, word in ((Change.CANNOT_TELL, "cannot tell"), (Change.SAME, "the same")):
        seen = sorted(each.smallest_visible for each in judged if each.change is change)
        if seen:
            reach = " to ".join(dict.fromkeys(format_share(each) for each in (seen[0], seen[-1])))
            moved = format_share(SMALLEST_CHANGE)
            yield f"{len(seen)} {word}: moved by {moved} at most; could see {reach}"


def _beside(pair: Pair) -> tuple[str, ...]:
    label = _label(pair.record)
    sides = [f"{_value(side)} ({side.device})" if side else "" for side in (pair.old, pair.new)]
    return (label, *sides, f"{pair.ratio:.2f}" if pair.ratio else "")


def _reasons(unjudged: Sequence[Unjudged]) -> Iterator[tuple[str, str]]:
    """One row a reason; cases whose reasons differ in their numbers alone are counted."""
    groups: dict[str, list[Unjudged]] = {}
    for each in unjudged:
        groups.setdefault(_NUMBERS.sub("", each.reason), []).append(each)
    for group in groups.values():
        more = f" and {len(group) - 1} more" if len(group) > 1 else ""
        alike = "; the others alike" if len({each.reason for each in group}) > 1 else ""
        yield _label(group[0].pair.record) + more, group[0].reason + alike


_NUMBERS = re.compile(r"[\d.]+")
_CUBE = re.compile(r"\b(\d+) × \1 × \1\b")


def _label(record: Record) -> str:
    """``matmul bf16 4096³``: short, since a table has 80 columns."""
    text = case_text(record.benchmark, record.case)
    return f"{record.benchmark} {_CUBE.sub(lambda shape: shape[1] + '³', text)}".strip()


def _value(record: Record | None) -> str:
    if record is None or record.value is None:
        return "none"
    return format_quantity(record.value, record.unit)


def comparison_tables(
    comparison: RunComparison, width: int = 80, *, ascii_only: bool = False
) -> Iterator[Table | Text | str]:
    """For the terminal: tables and the lines below them; readable at 80 columns."""
    from rich.text import Text

    yield from _drawn(unlike_sheets(comparison))
    if comparison.experiments is not None:
        for line in across_lines(comparison.experiments, width):
            yield Text(plain(line) if ascii_only else line, no_wrap=True)
        yield ""
    yield from _drawn(judged_sheets(comparison))


def _drawn(sheets: Iterable[Sheet]) -> Iterator[Table | Text | str]:
    from rich.text import Text

    for sheet in sheets:
        yield _table(sheet) if sheet.rows else Text(one_line(sheet.title), style="bold")
        yield from sheet.notes
        yield ""


def _table(sheet: Sheet) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title=Text(one_line(sheet.title)),
        title_justify="left",
        title_style="bold",
        box=None,
        pad_edge=False,
    )
    for heading in sheet.headings:
        is_words = heading in ("", "case", "why") or len(sheet.headings) < 4
        table.add_column(
            heading,
            justify="left" if is_words else "right",
            no_wrap=not is_words or heading == "",
            overflow="fold",
        )
    for number, row in enumerate(sheet.rows):
        style = sheet.styles[number] if sheet.styles else ""
        table.add_row(*(Text(one_line(cell)) for cell in row), style=style)
    return table


def comparison_markdown(comparison: RunComparison) -> str:
    """For a forum or an issue."""
    lines = [f"## {_plain(comparison.new)} against {_plain(comparison.old)}", ""]
    lines += [f"**{headline(comparison)}**", ""]
    lines += _piped(unlike_sheets(comparison))
    if comparison.experiments is not None:
        lines += ["### Experiments", ""]
        for block in across_markdown(comparison.experiments, _plain):
            lines += [block, ""]
    lines += _piped(judged_sheets(comparison))
    if comparison.judged or comparison.experiments is None:
        lines += [RULE, ""]
    return "\n".join(lines)


def _piped(sheets: Iterable[Sheet]) -> Iterator[str]:
    for sheet in sheets:
        yield from (f"### {_plain(sheet.title)}", "")
        if sheet.rows:
            yield from (_cells(sheet.headings), _cells(["---"] * len(sheet.headings)))
            yield from (*(_cells(row) for row in sheet.rows), "")
        yield from (f"- {note}" for note in sheet.notes)
        yield from [""] * bool(sheet.notes)


def _cells(row: Sequence[str]) -> str:
    return "| " + " | ".join(_plain(cell) for cell in row) + " |"


_MARKS = str.maketrans({mark: "\\" + mark for mark in "\\|*_`<>[]"})


def _plain(text: str) -> str:
    """Without what markdown would read as a mark, or the page as a tag."""
    return one_line(text).translate(_MARKS)


def comparison_dict(comparison: RunComparison) -> dict[str, Any]:
    """For JSON: everything, in base units."""
    return {
        "old": comparison.old,
        "new": comparison.new,
        "result": "worse" if comparison.is_worse else "not worse",
        "counts": {change.value: comparison.count(change) for change in Change},
        "differences": [asdict(each) for each in comparison.differences],
        "judged": [_judged_dict(each) for each in comparison.judged],
        "side_by_side": [
            {**_pair_dict(pair), "ratio": pair.ratio} for pair in comparison.side_by_side
        ],
        "experiments": across_dict(comparison.experiments) if comparison.experiments else None,
        "said": [{"run": where, **asdict(answer)} for where, answer in comparison.said],
        "unjudged": [
            {**_pair_dict(each.pair), "reason": each.reason} for each in comparison.unjudged
        ],
    }


def _judged_dict(judged: Judged) -> dict[str, Any]:
    found = judged.comparison
    return {
        **_pair_dict(judged.pair),
        "change": judged.change.value,
        "ratio": found.ratio,
        "interval": [found.interval.low, found.interval.high],
        "confidence": found.interval.confidence,
        "p_value": found.p_value,
        "adjusted_p": judged.adjusted_p,
        "smallest_visible": judged.smallest_visible,
    }


def _pair_dict(pair: Pair) -> dict[str, Any]:
    record = pair.record
    return {
        "benchmark": record.benchmark,
        "version": record.version,
        "case": dict(record.case),
        "metric": record.metric,
        "unit": record.unit,
        "device_count": record.device_count,
        **{name: _side_dict(side) for name, side in (("old", pair.old), ("new", pair.new))},
    }


def _side_dict(record: Record | None) -> dict[str, Any] | None:
    if record is None:
        return None
    return {
        "id": record.id,
        "value": record.value,
        "device": record.device,
        "device_index": record.device_index,
        "status": record.status.value,
        "disturbed": record.disturbed,
    }
