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
    JudgedCase,
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

_Compared = TypeVar("_Compared", JudgedCase, Speedup)
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
    """Return ``1 worse, 2 better, 5 the same, 12 cannot tell; 3 not judged``."""
    num_left = len(comparison.unjudged) + len(comparison.side_by_side)
    counts = _counts(comparison.count) or "nothing was compared"
    return counts + (f"; {num_left} not judged" if num_left else "")


def _counts(count: Callable[[Change], int]) -> str:
    numbers = ((count(change), word) for change, (word, _) in _CHANGES.items())
    return ", ".join(f"{number} {word}" for number, word in numbers if number)


def comparison_document(comparison: RunComparison) -> doc.Document:
    """Return whole comparison of two runs; a page begins with what came out, text ends with it."""
    names = doc.Facts((("old", comparison.old), ("new", comparison.new)))
    blocks: list[doc.Block] = [
        doc.Group("page", (doc.Group("card", (*_first_blocks(comparison), names)),)),
        doc.Group("text", (names,)),
        *_difference_table([comparison.differences]),
    ]
    if comparison.trainings is not None:
        blocks += _training_tables(comparison.trainings)
    blocks += _judged_tables(comparison.judged)
    if comparison.side_by_side:
        plain_table = table(
            comparison.side_by_side,
            words("case", lambda pair: _label(pair.record)),
            column("old", lambda pair: _value_on(pair.old)),
            column("new", lambda pair: _value_on(pair.new)),
            column("new ÷ old", lambda pair: f"{pair.ratio:.2f}" if pair.ratio else ""),
            title="Different devices, side by side, not judged",
        )
        blocks.append(plain_table)
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


def _first_blocks(comparison: RunComparison) -> Iterator[doc.Block]:
    """Outcome, counts, the change of each benchmark, and what changed most."""
    word, tone = _outcome(comparison)
    yield doc.Badge("New run against old run", word, headline(comparison), tone)
    decided = _changed_cases(comparison.judged)
    trained = comparison.trainings.compared if comparison.trainings else ()
    if decided:
        most = max(decided, key=_weight)
        yield doc.Paragraph(f"Changed most: {_change_text(most)}.", "strong")
    elif ratios := _changed_cases(trained):
        far = max(ratios, key=lambda judged_case: abs(math.log(judged_case.ratio or 1.0)))
        yield doc.Paragraph(
            f"Changed most: {far.name}, {signed_share((far.ratio or 1.0) - 1.0)}.", "strong"
        )
    groups = grouped(comparison.judged, lambda judged_case: judged_case.pair.record.benchmark)
    tiles = []
    for name, group in list(groups.items())[:_MOST_TILES]:
        change = signed_share(median([judged_case.comparison.ratio for judged_case in group]) - 1.0)
        changes = [judged_case.change for judged_case in group]
        counts = _counts(changes.count)
        tiles.append(doc.Tile(name, change, ("median of new ÷ old", counts)))
    if tiles:
        yield doc.Tiles(tuple(tiles))
    items_by_case: dict[tuple[object, ...], doc.Item] = {}
    for judged_case in sorted(decided, key=_weight, reverse=True):
        record = judged_case.pair.record
        place = record.benchmark, record.case.get("dtype"), record.device_index
        items_by_case.setdefault(place, _change_item(judged_case))
    if len(items_by_case) > 1:
        yield doc.Findings(tuple(items_by_case.values())[:_MOST_TILES], "Largest changes")


def _changed_cases(compared: Sequence[_Compared]) -> list[_Compared]:
    """Return the cases that got better or worse."""
    return [change for change in compared if change.change in (Change.WORSE, Change.BETTER)]


def _change_item(judged: JudgedCase, run: str = "") -> doc.Item:
    label = run + signed_share(judged.decisive_ratio - 1.0)
    return doc.Item(text=_change_text(judged), label=label, tone=_CHANGES[judged.change][1])


def _weight(judged: JudgedCase) -> tuple[bool, float, float]:
    """Worse before better, then by how far it moved; of equals the fastest case."""
    far = round(abs(math.log(judged.decisive_ratio)), 2)
    return judged.change is Change.WORSE, far, judged.pair.record.value or 0.0


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


def _change_text(judged: JudgedCase) -> str:
    """Return ``matmul bf16 4096³ on RTX 4090 #0: 157 TFLOPS → 132 TFLOPS``."""
    record = judged.pair.record
    where = f" on {record.device}" if record.device else ""
    where += f" #{record.device_index}" if record.device_index is not None else ""
    moved = f"{_value(judged.pair.old)} → {_value(judged.pair.new)}"
    return f"{_label(record)}{where}: {moved}{_behind_text(judged)}"


def _behind_text(judged: JudgedCase) -> str:
    """Return ``, 4.1 % behind its siblings``; empty where its own change was judged."""
    if judged.behind_siblings is None:
        return ""
    share = 1.0 - judged.gain  # a longer time is behind, too
    return f", {format_share(share)} behind its siblings"


def comparisons_document(comparisons: Sequence[RunComparison]) -> doc.Document:
    """Return one run against its baseline; or several, each against the same one, in one table."""
    if len(comparisons) == 1:
        return comparison_document(comparisons[0])
    base = comparisons[0].old
    names = tuple((str(n), comparison.new) for n, comparison in enumerate(comparisons, start=1))
    runs = doc.Facts((("baseline", base), *names))
    blocks: list[doc.Block] = [
        doc.Group("page", (doc.Group("card", (*_runs_first_blocks(comparisons), runs)),)),
        doc.Group("text", (runs,)),
        table(
            enumerate(comparisons, start=1),
            column("run", lambda pair: str(pair[0]), kind="code"),
            words("against the baseline", lambda pair: capital(headline(pair[1]))),
            title="All in all",
        ),
        *_difference_table(
            [comparison.differences for comparison in comparisons],
            "baseline",
            [n for n, _ in names],
        ),
    ]
    for number, comparison in enumerate(comparisons, start=1):
        if comparison.trainings is not None:
            blocks.append(
                doc.Section(f"Experiments of {number}", (*_training_tables(comparison.trainings),))
            )
    blocks += _runs_tables(comparisons)
    blocks.append(doc.Paragraph(RULE, "dim"))
    return doc.Document(title=f"{len(comparisons)} runs against {base}", blocks=tuple(blocks))


def _runs_first_blocks(comparisons: Sequence[RunComparison]) -> Iterator[doc.Block]:
    """Yield the runs that are worse than their baseline, and by how much."""
    outcomes = [_outcome(comparison)[0] for comparison in comparisons]
    counts = Counter(outcomes)
    word, tone = next((word, tone) for _, word, tone in _ENDS if counts[word])
    each = [(word, counts[word]) for _, word, _ in _ENDS if counts[word]]
    reason = ", ".join(f"{number} {word.lower()}" for word, number in each)
    title = f"{counted(len(comparisons), 'run')} against a baseline"
    yield doc.Badge(
        title, word if counts[word] == len(comparisons) else f"{counts[word]} {word}", reason, tone
    )
    tiles = []
    for number, comparison in enumerate(comparisons[:_MOST_RUNS], start=1):
        ratios = [each.comparison.ratio for each in comparison.judged]
        change = signed_share(median(ratios) - 1.0) if ratios else "-"
        tiles.append(doc.Tile(f"Run {number}, median", change, (_counts(comparison.count),)))
    decided = [
        (max(moved, key=_weight), number)
        for number, comparison in enumerate(comparisons, start=1)
        if (moved := _changed_cases(comparison.judged))
    ]
    decided.sort(key=lambda pair: _weight(pair[0]), reverse=True)
    if decided:
        yield doc.Paragraph(f"Changed most: {_change_text(decided[0][0])}.", "strong")
    yield doc.Tiles(tuple(tiles))
    if decided:
        items = tuple(_change_item(far, f"{number}: ") for far, number in decided[:_MOST_TILES])
        yield doc.Findings(items, "Largest changes")


_ENDS = (*_OUTCOMES, (Change.CANNOT_TELL, "CANNOT TELL", "warn"))


def _runs_tables(comparisons: Sequence[RunComparison]) -> Iterator[doc.Table]:
    """Yield a line a case, a column a run: its value, and below it the change where it is one."""
    judged: dict[tuple[object, ...], dict[int, JudgedCase]] = {}
    for number, comparison in enumerate(comparisons):
        for judged_case in comparison.judged:
            record = judged_case.pair.record
            place = (*record.key, record.device_index)
            judged.setdefault(place, {})[number] = judged_case
    worst = {change: n for n, change in enumerate(_CHANGES)}
    lines = sorted(
        judged.values(), key=lambda by_run: min(worst[e.change] for e in by_run.values())
    )
    groups = grouped(lines, lambda by_run: _device_of(next(iter(by_run.values()))))
    names = name_devices(groups)

    def run(number: int) -> doc.Shown[dict[int, JudgedCase]]:
        return column(str(number + 1), lambda by_run: by_run.get(number), _run_change_cell)

    for device, by_run in groups.items():
        shown_lines = [
            judged_case
            for judged_case in by_run
            if not all(map(_hardly_moved, judged_case.values()))
        ]
        num_hidden = len(by_run) - len(shown_lines)
        cases = counted(num_hidden, "case")
        note = f"{cases} moved by {format_share(SMALLEST_CHANGE)} at most in all runs"
        yield table(
            shown_lines,
            words("case", lambda judged_case: _label(next(iter(judged_case.values())).pair.record)),
            column(
                "baseline", lambda judged_case: _value(next(iter(judged_case.values())).pair.old)
            ),
            *map(run, range(len(comparisons))),
            title=names[device],
            notes=[note] if num_hidden else (),
        )


def _device_of(judged: JudgedCase) -> tuple[str | None, int | None]:
    return judged.pair.record.device, judged.pair.record.device_index


def _run_change_cell(judged: JudgedCase) -> doc.Cell:
    word, tone = _CHANGES[judged.change]
    change = signed_share(judged.comparison.ratio - 1.0)
    return doc.Cell(
        _value(judged.pair.new),
        tone if _changed_cases([judged]) else "",
        change if judged.change is Change.SAME else f"{change} {word}{_behind_text(judged)}",
    )


def training_comparison_blocks(old: RunView, new: RunView) -> tuple[doc.Block, ...]:
    """Return experiments of two runs for the page of both; none where they cannot be compared."""
    try:
        comparison = None if is_same_run(old, new) else compare_trainings(old, new)
    except DataError:  # a damaged run says so on its own page
        return ()
    if comparison is None:
        return ()
    counts = _counts(comparison.count) or "none in both"
    note = f"The same experiment in {old.name} and in {new.name}. {capital(counts)}."
    blocks = (*_difference_table([differences(old, new)]), *_training_tables(comparison))
    return (doc.Section("Old run against new run", blocks, note=note),)


def _difference_table(
    runs: Sequence[Sequence[Difference]], base: str = "old", heads: Sequence[str] = ("new",)
) -> Iterator[doc.Table]:
    """Yield differences of machine, settings and software: to be read before anything else.

    A line a difference, a column a run; what is as in the baseline is empty.
    """
    listed: dict[tuple[str, str, int], dict[int, str]] = {}
    for number, run_differences in enumerate(runs):
        counts: Counter[tuple[str, str]] = Counter()  # of several GPUs each has a line
        for difference in run_differences:
            place = difference.what, difference.old
            listed.setdefault((*place, counts[place]), {})[number] = difference.new
            counts[place] += 1
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
    """Yield a table of what, and why; none where there is nothing."""
    rows = list(pairs)
    if rows:
        yield table(
            rows, words(head, lambda row: row[0]), words(reason, lambda row: row[1]), title=title
        )


# ---- experiments


def _training_tables(comparison: TrainingComparison) -> Iterator[doc.Block]:
    """Setting differences first, then the ratios, then the numbers of both runs."""
    yield from _reasons(
        "experiment",
        (
            (training.name, "; ".join(training.differences))
            for training in comparison.compared
            if training.differences
        ),
        "Different under one name: the ratio is of what differs, too",
        "what differs",
    )
    everyone = list(zip(comparison.compared, comparison.old, comparison.new, strict=True))
    ran = [
        each
        for each in everyone
        if any(training.throughput.samples_per_s is not None for training in each[1:])
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
    yield from _reasons("experiment", (*comparison.alone, *neither), "Not compared")
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
    """Return ``skipped``, or ``passed → failed``."""
    return " → ".join(dict.fromkeys(training.row_verdict for training in (old, new)))


# ---- points

_NUMBERS = re.compile(r"[\d.]+")
_CUBE = re.compile(r"\b(\d+) × \1 × \1\b")


def _judged_tables(judged: Sequence[JudgedCase]) -> Iterator[doc.Table]:
    def place(case: JudgedCase) -> tuple[str | None, int | None, int]:
        record = case.pair.record
        return record.device, record.device_index, record.num_devices

    places = grouped(judged, place)  # the most important first, so the places come in that order
    names = name_devices((device, index) for device, index, _ in places)
    for (device, index, count), cases in places.items():
        yield table(
            (case for case in cases if not _hardly_moved(case)),
            words("", lambda case: doc.Cell(str(case.change), _CHANGES[case.change][1])),
            words("case", lambda case: _label(case.pair.record) + _behind_text(case)),
            column("old", lambda case: _value(case.pair.old)),
            column("new", lambda case: _value(case.pair.new)),
            column("change", lambda case: signed_share(case.comparison.ratio - 1.0)),
            column("ratio, 95 %", _interval_text),
            title=names[device, index] + (f", {count} at once" if count > 1 else ""),
            notes=_counted_changes([case for case in cases if _hardly_moved(case)]),
        )


def _interval_text(judged: JudgedCase) -> str:
    """Return the interval of the ratio, new over old: ``0.93–0.97``."""
    interval = judged.comparison.interval
    return f"{interval.low:.2f}–{interval.high:.2f}"


def _hardly_moved(judged: JudgedCase) -> bool:
    within = abs(judged.comparison.ratio - 1.0) <= SMALLEST_CHANGE
    return judged.change is Change.SAME or (judged.change is Change.CANNOT_TELL and within)


def _counted_changes(judged: Sequence[JudgedCase]) -> Iterator[str]:
    """Yield ``30 cannot tell: moved by 1.0 % at most; could see 2.8 % to 14 %``."""
    for change in (Change.CANNOT_TELL, Change.SAME):
        smallest_changes = sorted(case.smallest_visible for case in judged if case.change is change)
        if smallest_changes:
            reach = " to ".join(
                dict.fromkeys(
                    format_share(end) for end in (smallest_changes[0], smallest_changes[-1])
                )
            )
            moved = f"{_CHANGES[change][0]}: moved by {format_share(SMALLEST_CHANGE)} at most"
            yield f"{len(smallest_changes)} {moved}; could see {reach}"


def _unjudged(pairs: Iterable[Pair]) -> Iterator[tuple[str, str]]:
    """Yield one row a reason; cases whose reasons differ in their numbers alone are counted."""
    for group in grouped(pairs, lambda pair: _NUMBERS.sub("", pair.reason)).values():
        more = f" and {len(group) - 1} more" if len(group) > 1 else ""
        similar = "; the others alike" if len({pair.reason for pair in group}) > 1 else ""
        yield _label(group[0].record) + more, group[0].reason + similar


def _label(record: Record) -> str:
    """Return ``matmul bf16 4096³``: short, since a table has 80 columns."""
    text = case_text(record.benchmark, record.case)
    return f"{record.benchmark} {_CUBE.sub(lambda shape: shape[1] + '³', text)}".strip()


def _value(record: Record | None) -> str:
    if record is None or record.value is None:
        return "none"
    return value_text(record)


def _value_on(record: Record | None) -> str:
    return f"{_value(record)} ({record.device})" if record else ""
