"""Run against run as a document: what differs, what changed, what was not judged.

One table a device, the device with the largest loss first; within it worse before better before the
rest.  Cases that hardly moved are counted in a line below the table; JSON has them all.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from trainrig.analysis.best import value_text
from trainrig.analysis.compare import (
    Difference,
    Judged,
    Pair,
    RunComparison,
    differences,
    is_same_run,
)
from trainrig.analysis.compare_training import Speedup, TrainingComparison, compare_trainings
from trainrig.analysis.rows import name_devices
from trainrig.analysis.training_results import TrainingResult
from trainrig.benchmarks.spec import case_text
from trainrig.errors import DataError
from trainrig.record import Record, RunView
from trainrig.report import document as doc
from trainrig.report.document import column, table, words
from trainrig.report.speedup_report import speedup_table
from trainrig.stats import AGREEMENT, RUN_TO_RUN, SMALLEST_CHANGE, Change, grouped, median
from trainrig.units import (
    capital,
    counted,
    format_memory,
    format_quantity,
    format_share,
    signed_share,
)

_Compared = TypeVar("_Compared", Judged, Speedup)
RULE = (
    f"Better and worse: changed by more than {format_share(SMALLEST_CHANGE)}; at most 5 % of such "
    "calls are expected to be false. Ratio: new over old, the 95 % interval. Could see: the "
    "smallest change that would have been called."
)
TRAINING_RULE = (
    "Experiments are better or worse where the 95 % interval of the ratio of their samples/s lies "
    "on one side of 1; it is widened by what trainings at two times differ by anyway: "
    f"{format_share(AGREEMENT)}, on processors {format_share(RUN_TO_RUN['cpu'])}."
)
_CHANGES: dict[Change, tuple[str, doc.Tone]] = {
    Change.WORSE: ("worse", "bad"),
    Change.BETTER: ("better", "good"),
    Change.SAME: ("the same", ""),
    Change.CANNOT_TELL: ("cannot tell", "dim"),
}


def headline(comparison: RunComparison) -> str:
    """``1 worse, 2 better, 5 the same, 12 cannot tell; 3 not judged``."""
    left = len(comparison.unjudged) + len(comparison.side_by_side)
    counts = _counts(comparison.count) or "nothing was compared"
    return counts + (f"; {left} not judged" if left else "")


def _counts(count: Callable[[Change], int]) -> str:
    numbers = ((count(change), word) for change, (word, _) in _CHANGES.items())
    return ", ".join(f"{number} {word}" for number, word in numbers if number)


def comparison_document(comparison: RunComparison) -> doc.Document:
    """The whole comparison of two runs; a page begins with what came out, text ends with it."""
    names = doc.Facts((("old", comparison.old), ("new", comparison.new)))
    blocks: list[doc.Block] = [
        doc.Group("page", (doc.Group("card", (*_head(comparison), names)),)),
        doc.Group("text", (names,)),
        *_difference_table([comparison.differences]),
    ]
    if comparison.trainings is not None:
        blocks += _training_tables(comparison.trainings)
    blocks += _judged_tables(comparison.judged)
    if comparison.side_by_side:
        beside = table(
            comparison.side_by_side,
            words("case", lambda pair: _label(pair.record)),
            column("old", lambda pair: _value_on(pair.old)),
            column("new", lambda pair: _value_on(pair.new)),
            column("new ÷ old", lambda pair: f"{pair.ratio:.2f}" if pair.ratio else ""),
            title="Different devices, side by side, not judged",
        )
        blocks.append(beside)
    if comparison.patterns:
        items = tuple(
            doc.Item(label=where, text=pattern.text) for where, pattern in comparison.patterns
        )
        blocks.append(doc.Section("Explanations", (doc.Findings(items),)))
    blocks += _reasons("case", _unjudged(comparison.unjudged), "Not judged")
    if comparison.judged:
        blocks.append(doc.Paragraph(RULE, "dim"))
    blocks.append(doc.Group("text", (doc.Paragraph(capital(headline(comparison)), "strong"),)))
    title = f"{comparison.new} against {comparison.old}"
    return doc.Document(title=title, blocks=tuple(blocks))


def _head(comparison: RunComparison) -> Iterator[doc.Block]:
    """Outcome, counts, the change of each benchmark, and what changed most."""
    word, tone = _outcome(comparison)
    yield doc.Badge("New run against old run", word, headline(comparison), tone)
    decided = _moved(comparison.judged)
    trained = comparison.trainings.compared if comparison.trainings else ()
    if decided:
        most = max(decided, key=_weight)
        yield doc.Paragraph(f"Changed most: {_changed(most)}.", "strong")
    elif ratios := _moved(trained):
        far = max(ratios, key=lambda one: abs(math.log(one.ratio or 1.0)))
        yield doc.Paragraph(
            f"Changed most: {far.name}, {signed_share((far.ratio or 1.0) - 1.0)}.", "strong"
        )
    groups = grouped(comparison.judged, lambda one: one.pair.record.benchmark)
    tiles = []
    for name, own in list(groups.items())[:_MOST_TILES]:
        change = signed_share(median([one.comparison.ratio for one in own]) - 1.0)
        counts = _counts(lambda kind, own=own: sum(one.change is kind for one in own))  # type: ignore[misc]
        tiles.append(doc.Tile(name, change, ("median of new ÷ old", counts)))
    if tiles:
        yield doc.Tiles(tuple(tiles))
    seen: dict[tuple[object, ...], doc.Item] = {}
    for one in sorted(decided, key=_weight, reverse=True):
        record = one.pair.record
        place = record.benchmark, record.case.get("dtype"), record.device_index
        seen.setdefault(place, _change_item(one))
    if len(seen) > 1:
        yield doc.Findings(tuple(seen.values())[:_MOST_TILES], "Largest changes")


def _moved(found: Sequence[_Compared]) -> list[_Compared]:
    """What got better or worse."""
    return [one for one in found if one.change in (Change.WORSE, Change.BETTER)]


def _change_item(one: Judged, run: str = "") -> doc.Item:
    label = run + signed_share(one.decisive_ratio - 1.0)
    return doc.Item(text=_changed(one), label=label, tone=_CHANGES[one.change][1])


def _weight(one: Judged) -> tuple[bool, float, float]:
    """Worse before better, then by how far it moved; of equals the fastest case."""
    far = round(abs(math.log(one.decisive_ratio)), 2)
    return one.change is Change.WORSE, far, one.pair.record.value or 0.0


def _outcome(comparison: RunComparison) -> tuple[str, doc.Tone]:
    for change, word, tone in _OUTCOMES:
        if comparison.count(change):
            return word, tone
    return "CANNOT TELL", "warn"


_MOST_TILES, _MOST_RUNS = 4, 8
_OUTCOMES: tuple[tuple[Change, str, doc.Tone], ...] = (
    (Change.WORSE, "WORSE", "bad"),
    (Change.BETTER, "BETTER", "good"),
    (Change.SAME, "THE SAME", "good"),
)


def _changed(one: Judged) -> str:
    """``matmul bf16 4096³ on RTX 4090 #0: 157 TFLOPS → 132 TFLOPS``."""
    record = one.pair.record
    where = f" on {record.device}" if record.device else ""
    where += f" #{record.device_index}" if record.device_index is not None else ""
    moved = f"{_value(one.pair.old)} → {_value(one.pair.new)}"
    return f"{_label(record)}{where}: {moved}{_behind(one)}"


def _behind(one: Judged) -> str:
    """``, 4.1 % behind its siblings``; empty where its own change was judged."""
    if one.behind_siblings is None:
        return ""
    share = 1.0 - one.gain  # a longer time is behind, too
    return f", {format_share(share)} behind its siblings"


def comparisons_document(found: Sequence[RunComparison]) -> doc.Document:
    """One run against its baseline; or several, each against the same one, in one table."""
    if len(found) == 1:
        return comparison_document(found[0])
    base = found[0].old
    names = tuple((str(n), one.new) for n, one in enumerate(found, start=1))
    runs = doc.Facts((("baseline", base), *names))
    blocks: list[doc.Block] = [
        doc.Group("page", (doc.Group("card", (*_several_head(found), runs)),)),
        doc.Group("text", (runs,)),
        table(
            enumerate(found, start=1),
            column("run", lambda pair: str(pair[0]), kind="code"),
            words("against the baseline", lambda pair: capital(headline(pair[1]))),
            title="All in all",
        ),
        *_difference_table([one.differences for one in found], "baseline", [n for n, _ in names]),
    ]
    for number, one in enumerate(found, start=1):
        if one.trainings is not None:
            blocks.append(
                doc.Section(f"Experiments of {number}", (*_training_tables(one.trainings),))
            )
    blocks += _several_tables(found)
    blocks.append(doc.Paragraph(RULE, "dim"))
    return doc.Document(title=f"{len(found)} runs against {base}", blocks=tuple(blocks))


def _several_head(found: Sequence[RunComparison]) -> Iterator[doc.Block]:
    """Which of the runs are worse than their baseline, and how much."""
    outcomes = [_outcome(one)[0] for one in found]
    counts = Counter(outcomes)
    word, tone = next((word, tone) for _, word, tone in _ENDS if counts[word])
    each = [(word, counts[word]) for _, word, _ in _ENDS if counts[word]]
    reason = ", ".join(f"{number} {word.lower()}" for word, number in each)
    title = f"{counted(len(found), 'run')} against a baseline"
    yield doc.Badge(
        title, word if counts[word] == len(found) else f"{counts[word]} {word}", reason, tone
    )
    tiles = []
    for number, one in enumerate(found[:_MOST_RUNS], start=1):
        ratios = [each.comparison.ratio for each in one.judged]
        change = signed_share(median(ratios) - 1.0) if ratios else "-"
        tiles.append(doc.Tile(f"Run {number}, median", change, (_counts(one.count),)))
    decided = [
        (max(moved, key=_weight), number)
        for number, one in enumerate(found, start=1)
        if (moved := _moved(one.judged))
    ]
    decided.sort(key=lambda pair: _weight(pair[0]), reverse=True)
    if decided:
        yield doc.Paragraph(f"Changed most: {_changed(decided[0][0])}.", "strong")
    yield doc.Tiles(tuple(tiles))
    if decided:
        items = tuple(_change_item(far, f"{number}: ") for far, number in decided[:_MOST_TILES])
        yield doc.Findings(items, "Largest changes")


_ENDS = (*_OUTCOMES, (Change.CANNOT_TELL, "CANNOT TELL", "warn"))


def _several_tables(found: Sequence[RunComparison]) -> Iterator[doc.Table]:
    """A line a case, a column a run: its value, and below it the change where it is one."""
    judged: dict[tuple[object, ...], dict[int, Judged]] = {}
    for number, one in enumerate(found):
        for each in one.judged:
            record = each.pair.record
            place = (*record.key, record.device_index)
            judged.setdefault(place, {})[number] = each
    worst = {change: n for n, change in enumerate(_CHANGES)}
    lines = sorted(judged.values(), key=lambda own: min(worst[e.change] for e in own.values()))
    groups = grouped(lines, lambda own: _device_of(next(iter(own.values()))))
    names = name_devices(groups)

    def run(number: int) -> doc.Shown[dict[int, Judged]]:
        return column(str(number + 1), lambda own: own.get(number), _several_cell)

    for device, own in groups.items():
        shown = [each for each in own if not all(map(_hardly_moved, each.values()))]
        left = len(own) - len(shown)
        note = (
            f"{counted(left, 'case')} moved by {format_share(SMALLEST_CHANGE)} at most in all runs"
        )
        yield table(
            shown,
            words("case", lambda each: _label(next(iter(each.values())).pair.record)),
            column("baseline", lambda each: _value(next(iter(each.values())).pair.old)),
            *map(run, range(len(found))),
            title=names[device],
            notes=[note] if left else (),
        )


def _device_of(each: Judged) -> tuple[str | None, int | None]:
    return each.pair.record.device, each.pair.record.device_index


def _several_cell(each: Judged) -> doc.Cell:
    word, tone = _CHANGES[each.change]
    change = signed_share(each.comparison.ratio - 1.0)
    return doc.Cell(
        _value(each.pair.new),
        tone if _moved([each]) else "",
        change if each.change is Change.SAME else f"{change} {word}{_behind(each)}",
    )


def training_comparison_blocks(old: RunView, new: RunView) -> tuple[doc.Block, ...]:
    """The experiments of two runs for the page of both; none where they cannot be compared."""
    try:
        found = None if is_same_run(old, new) else compare_trainings(old, new)
    except DataError:  # a damaged run says so on its own page
        return ()
    if found is None:
        return ()
    counts = _counts(found.count) or "none in both"
    note = f"The same experiment in {old.name} and in {new.name}. {capital(counts)}."
    blocks = (*_difference_table([differences(old, new)]), *_training_tables(found))
    return (doc.Section("Old run against new run", blocks, note=note),)


def _difference_table(
    runs: Sequence[Sequence[Difference]], base: str = "old", heads: Sequence[str] = ("new",)
) -> Iterator[doc.Table]:
    """What differs about machine, settings and software: to be read before anything else.

    A line a difference, a column a run; what is as in the baseline is empty.
    """
    listed: dict[tuple[str, str, int], dict[int, str]] = {}
    for number, found in enumerate(runs):
        seen: Counter[tuple[str, str]] = Counter()  # of several GPUs each has a line
        for each in found:
            place = each.what, each.old
            listed.setdefault((*place, seen[place]), {})[number] = each.new
            seen[place] += 1
    if listed:
        columns = [
            words(head, lambda row, number=number: row[1].get(number, ""))  # type: ignore[misc]
            for number, head in enumerate(heads)
        ]
        yield table(
            listed.items(),
            words("", lambda row: row[0][0]),
            words(base, lambda row: row[0][1]),
            *columns,
            title="Setup differences",
        )


def _reasons(
    head: str, pairs: Iterable[tuple[str, str]], title: str, reason: str = "reason"
) -> Iterator[doc.Table]:
    """A table of what, and why; none where there is nothing."""
    rows = list(pairs)
    if rows:
        yield table(
            rows, words(head, lambda row: row[0]), words(reason, lambda row: row[1]), title=title
        )


# ---- experiments


def _training_tables(found: TrainingComparison) -> Iterator[doc.Block]:
    """Setting differences first, then the ratios, then the numbers of both runs."""
    yield from _reasons(
        "experiment",
        ((one.name, "; ".join(one.differences)) for one in found.compared if one.differences),
        "Different under one name: the ratio is of what differs, too",
        "what differs",
    )
    everyone = list(zip(found.compared, found.old, found.new, strict=True))
    ran = [
        each
        for each in everyone
        if any(one.throughput.samples_per_s is not None for one in each[1:])
    ]
    if ran:
        speedups = [speedup for speedup, _, _ in ran]
        yield speedup_table(speedups, "Samples/s, new over old, 95 % interval")
        yield _training_numbers([(old, new) for _, old, new in ran])
    neither = [
        (new.name, _verdicts(old, new))
        for each, old, new in everyone
        if (each, old, new) not in ran
    ]
    yield from _reasons("experiment", (*found.alone, *neither), "Not compared")
    if ran:
        yield doc.Paragraph(TRAINING_RULE, "dim")


def _training_numbers(pairs: Sequence[tuple[TrainingResult, TrainingResult]]) -> doc.Table:
    def both(
        head: str,
        value: Callable[[TrainingResult], float | None],
        form: Callable[[float], str],
    ) -> Iterator[doc.Shown[tuple[TrainingResult, TrainingResult]]]:
        yield column(f"{head} old", lambda pair: value(pair[0]), form)
        yield column("new", lambda pair: value(pair[1]), form)

    return table(
        pairs,
        words("experiment", lambda pair: pair[1].name),
        *both(
            "samples/s",
            lambda r: r.throughput.samples_per_s,
            lambda rate: format_quantity(rate, ""),
        ),
        *both("memory", lambda r: r.memory.peak_bytes, format_memory),
        *both("loss", lambda r: r.loss.losses[-1] if r.loss.losses else None, "{:.4f}".format),
        words("verdict", lambda pair: _verdicts(*pair)),
        title="The numbers of both runs",
    )


def _verdicts(old: TrainingResult, new: TrainingResult) -> str:
    """``skipped``, or ``passed → failed``."""
    return " → ".join(dict.fromkeys(each.row_verdict for each in (old, new)))


# ---- points

_NUMBERS = re.compile(r"[\d.]+")
_CUBE = re.compile(r"\b(\d+) × \1 × \1\b")


def _judged_tables(judged: Sequence[Judged]) -> Iterator[doc.Table]:
    def place(each: Judged) -> tuple[str | None, int | None, int]:
        record = each.pair.record
        return record.device, record.device_index, record.num_devices

    places = grouped(judged, place)  # the most important first, so the places come in that order
    names = name_devices((device, index) for device, index, _ in places)
    for (device, index, count), own in places.items():
        yield table(
            (each for each in own if not _hardly_moved(each)),
            words("", lambda each: doc.Cell(str(each.change), _CHANGES[each.change][1])),
            words("case", lambda each: _label(each.pair.record) + _behind(each)),
            column("old", lambda each: _value(each.pair.old)),
            column("new", lambda each: _value(each.pair.new)),
            column("change", lambda each: signed_share(each.comparison.ratio - 1.0)),
            column("ratio, 95 %", _interval_text),
            title=names[device, index] + (f", {count} at once" if count > 1 else ""),
            notes=_counted([each for each in own if _hardly_moved(each)]),
        )


def _interval_text(each: Judged) -> str:
    """The interval of the ratio, new over old: ``0.93–0.97``."""
    interval = each.comparison.interval
    return f"{interval.low:.2f}–{interval.high:.2f}"


def _hardly_moved(judged: Judged) -> bool:
    within = abs(judged.comparison.ratio - 1.0) <= SMALLEST_CHANGE
    return judged.change is Change.SAME or (judged.change is Change.CANNOT_TELL and within)


def _counted(judged: Sequence[Judged]) -> Iterator[str]:
    """``30 cannot tell: moved by 1.0 % at most; could see 2.8 % to 14 %``."""
    for change in (Change.CANNOT_TELL, Change.SAME):
        seen = sorted(each.smallest_visible for each in judged if each.change is change)
        if seen:
            reach = " to ".join(dict.fromkeys(format_share(end) for end in (seen[0], seen[-1])))
            moved = f"{_CHANGES[change][0]}: moved by {format_share(SMALLEST_CHANGE)} at most"
            yield f"{len(seen)} {moved}; could see {reach}"


def _unjudged(pairs: Iterable[Pair]) -> Iterator[tuple[str, str]]:
    """One row a reason; cases whose reasons differ in their numbers alone are counted."""
    for group in grouped(pairs, lambda pair: _NUMBERS.sub("", pair.reason)).values():
        more = f" and {len(group) - 1} more" if len(group) > 1 else ""
        similar = "; the others alike" if len({pair.reason for pair in group}) > 1 else ""
        yield _label(group[0].record) + more, group[0].reason + similar


def _label(record: Record) -> str:
    """``matmul bf16 4096³``: short, since a table has 80 columns."""
    text = case_text(record.benchmark, record.case)
    return f"{record.benchmark} {_CUBE.sub(lambda shape: shape[1] + '³', text)}".strip()


def _value(record: Record | None) -> str:
    if record is None or record.value is None:
        return "none"
    return value_text(record)


def _value_on(record: Record | None) -> str:
    return f"{_value(record)} ({record.device})" if record else ""
