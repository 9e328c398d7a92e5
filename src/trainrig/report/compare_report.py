"""Run against run as a document: what differs, what changed, what was not judged.

One table a device, the device with the largest loss first; within it worse before better before the
rest.  Cases that hardly moved are counted in a line below the table; JSON has them all.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from trainrig.analysis.compare import (
    Difference,
    Judged,
    RunComparison,
    Unjudged,
    differences,
    is_same_run,
)
from trainrig.analysis.compare_training import TrainingComparison, compare_trainings
from trainrig.analysis.match import name_devices
from trainrig.analysis.run_view import RunView
from trainrig.analysis.training_results import TrainingResult
from trainrig.benchmarks.spec import case_text
from trainrig.errors import DataError
from trainrig.record import Record
from trainrig.report.document import (
    Block,
    Cell,
    Column,
    Document,
    Facts,
    Findings,
    Item,
    Paragraph,
    Section,
    Table,
    Tone,
)
from trainrig.report.training_report import speedup_table
from trainrig.stats import AGREEMENT, RUN_TO_RUN, SMALLEST_CHANGE, Change
from trainrig.units import capital, format_memory, format_quantity, format_share, signed_share

RULE = (
    f"Better and worse: changed by more than {format_share(SMALLEST_CHANGE)}; at most 5 % of such "
    "calls are expected to be false. Could see: the smallest change that would have been called."
)
TRAINING_RULE = (
    "Experiments are better or worse where the 95 % interval of the ratio of their samples/s lies "
    "on one side of 1; it is widened by what trainings at two times differ by anyway: "
    f"{format_share(AGREEMENT)}, on processors {format_share(RUN_TO_RUN['cpu'])}."
)
_TONES: dict[Change, Tone] = {
    Change.WORSE: "bad",
    Change.BETTER: "good",
    Change.CANNOT_TELL: "dim",
    Change.SAME: "",
}


def headline(comparison: RunComparison) -> str:
    """``1 worse, 2 better, 5 the same, 12 cannot tell; 3 not judged``."""
    left = len(comparison.unjudged) + len(comparison.side_by_side)
    counts = _counts(comparison.count) or "nothing was compared"
    return counts + (f"; {left} not judged" if left else "")


def _counts(count: Callable[[Change], int]) -> str:
    words = {
        Change.WORSE: "worse",
        Change.BETTER: "better",
        Change.SAME: "the same",
        Change.CANNOT_TELL: "cannot tell",
    }
    return ", ".join(f"{count(change)} {word}" for change, word in words.items() if count(change))


def comparison_document(comparison: RunComparison) -> Document:
    """The whole comparison of two runs."""
    blocks: list[Block] = [
        Facts((("old", comparison.old), ("new", comparison.new))),
        *_difference_table(comparison.differences),
    ]
    if comparison.trainings is not None:
        blocks += training_tables(comparison.trainings)
    blocks += _judged_tables(comparison.judged)
    if comparison.side_by_side:
        blocks.append(
            Table(
                (Column("case", "words"), *map(Column, ("old", "new", "new ÷ old"))),
                tuple(
                    (
                        _label(pair.record),
                        *(
                            f"{_value(side)} ({side.device})" if side else ""
                            for side in (pair.old, pair.new)
                        ),
                        f"{pair.ratio:.2f}" if pair.ratio else "",
                    )
                    for pair in comparison.side_by_side
                ),
                title="Different devices, side by side, not judged",
            )
        )
    if comparison.patterns:
        items = tuple(
            Item(label=where, text=pattern.text) for where, pattern in comparison.patterns
        )
        blocks.append(Section("Explanations", (Findings(items),)))
    if comparison.unjudged:
        blocks.append(
            Table(
                (Column("case", "words"), Column("reason", "words")),
                tuple(_reasons(comparison.unjudged)),
                title="Not judged",
            )
        )
    if comparison.judged:
        blocks.append(Paragraph(RULE, "dim"))
    blocks.append(Paragraph(capital(headline(comparison)), "strong"))
    return Document(title=f"{comparison.new} against {comparison.old}", blocks=tuple(blocks))


def training_comparison_blocks(old: RunView, new: RunView) -> tuple[Block, ...]:
    """The experiments of two runs for the page of both; none where they cannot be compared."""
    if is_same_run(old, new):
        return ()
    try:
        found = compare_trainings(old, new)
    except DataError:  # a damaged run says so on its own page
        return ()
    if found is None:
        return ()
    counts = _counts(found.count) or "none in both"
    note = f"The same experiment in {old.name} and in {new.name}. {capital(counts)}."
    blocks = (*_difference_table(differences(old, new)), *training_tables(found))
    return (Section("Old run against new run", blocks, note=note),)


def _difference_table(found: Sequence[Difference]) -> Iterator[Table]:
    """What differs about machine, settings and software: to be read before anything else."""
    if found:
        yield Table(
            tuple(Column(head, "words") for head in ("", "old", "new")),
            tuple((each.what, each.old, each.new) for each in found),
            title="Setup differences",
        )


# ---- experiments


def training_tables(found: TrainingComparison) -> Iterator[Block]:
    """Setting differences first, then the ratios, then the numbers of both runs."""
    changed = tuple(
        (one.name, "; ".join(one.differences)) for one in found.compared if one.differences
    )
    if changed:
        yield Table(
            (Column("experiment", "words"), Column("what differs", "words")),
            changed,
            title="Different under one name: the ratio is of what differs, too",
        )
    if found.compared:
        yield speedup_table(found.compared, "Samples/s, new over old, 95 % interval")
        heads = ("samples/s old", "new", "memory old", "new", "loss old", "new")
        yield Table(
            (Column("experiment", "words"), *map(Column, heads), Column("verdict", "words")),
            tuple(map(_training_row, found.old, found.new)),
            title="The numbers of both runs",
        )
    if found.alone:
        yield Table(
            (Column("experiment", "words"), Column("reason", "words")),
            found.alone,
            title="Not compared",
        )
    if found.compared:
        yield Paragraph(TRAINING_RULE, "dim")


def _training_row(old: TrainingResult, new: TrainingResult) -> tuple[str, ...]:
    verdicts = dict.fromkeys((old.row_verdict, new.row_verdict))
    cells: list[str] = []
    for side in (old, new):
        rate, memory = side.samples_per_s, side.peak_memory_bytes
        cells.append("-" if rate is None else format_quantity(rate, ""))
        cells.append("-" if memory is None else format_memory(memory))
        cells.append(f"{side.losses[-1]:.4f}" if side.losses else "-")
    beside = [cell for pair in zip(cells[:3], cells[3:], strict=True) for cell in pair]
    return (new.name, *beside, " → ".join(verdicts))


# ---- points

_NUMBERS = re.compile(r"[\d.]+")
_CUBE = re.compile(r"\b(\d+) × \1 × \1\b")


def _judged_tables(judged: Sequence[Judged]) -> Iterator[Table]:
    places: dict[tuple[str | None, int | None, int], list[Judged]] = {}
    for each in judged:  # the most important first, so the places come in that order too
        record = each.pair.record
        place = record.device, record.device_index, record.device_count
        places.setdefault(place, []).append(each)
    names = name_devices((device, index) for device, index, _ in places)
    for (device, index, count), own in places.items():
        listed = [each for each in own if not _hardly_moved(each)]
        yield Table(
            (
                Column("", "words"),
                Column("case", "words"),
                *map(Column, ("old", "new", "change", "could see")),
            ),
            tuple(_judged_row(each) for each in listed),
            title=names[device, index] + (f", {count} at once" if count > 1 else ""),
            notes=tuple(_counted([each for each in own if _hardly_moved(each)])),
        )


def _judged_row(each: Judged) -> tuple[str | Cell, ...]:
    return (
        Cell(str(each.change), _TONES[each.change]),
        _label(each.pair.record),
        _value(each.pair.old),
        _value(each.pair.new),
        signed_share(each.comparison.ratio - 1.0),
        format_share(each.smallest_visible),
    )


def _hardly_moved(judged: Judged) -> bool:
    within = abs(judged.comparison.ratio - 1.0) <= SMALLEST_CHANGE
    return judged.change is Change.SAME or (judged.change is Change.CANNOT_TELL and within)


def _counted(judged: Sequence[Judged]) -> Iterator[str]:
    """``30 cannot tell: moved by 1.0 % at most; could see 2.8 % to 14 %``."""
    for change, word in ((Change.CANNOT_TELL, "cannot tell"), (Change.SAME, "the same")):
        seen = sorted(each.smallest_visible for each in judged if each.change is change)
        if seen:
            reach = " to ".join(dict.fromkeys(format_share(end) for end in (seen[0], seen[-1])))
            moved = format_share(SMALLEST_CHANGE)
            yield f"{len(seen)} {word}: moved by {moved} at most; could see {reach}"


def _reasons(unjudged: Sequence[Unjudged]) -> Iterator[tuple[str, str]]:
    """One row a reason; cases whose reasons differ in their numbers alone are counted."""
    groups: dict[str, list[Unjudged]] = {}
    for each in unjudged:
        groups.setdefault(_NUMBERS.sub("", each.reason), []).append(each)
    for group in groups.values():
        more = f" and {len(group) - 1} more" if len(group) > 1 else ""
        similar = "; the others alike" if len({each.reason for each in group}) > 1 else ""
        yield _label(group[0].pair.record) + more, group[0].reason + similar


def _label(record: Record) -> str:
    """``matmul bf16 4096³``: short, since a table has 80 columns."""
    text = case_text(record.benchmark, record.case)
    return f"{record.benchmark} {_CUBE.sub(lambda shape: shape[1] + '³', text)}".strip()


def _value(record: Record | None) -> str:
    if record is None or record.value is None:
        return "none"
    return format_quantity(record.value, record.unit)
