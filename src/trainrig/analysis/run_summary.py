"""One run in a few words: verdict, largest gap, findings, patterns, what is missing.

What ``report --json`` prints, and what every page of a run begins with.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from trainrig.analysis.answer import RunAnswer, answer_of
from trainrig.analysis.first_screen import (
    Action,
    KeyNumber,
    RunMetadata,
    actions,
    headline,
    key_numbers,
    run_metadata,
)
from trainrig.analysis.imported_facts import (
    NamedNumber,
    imported_devices,
    imported_headline,
    named_numbers,
)
from trainrig.analysis.judge_imported import is_imported
from trainrig.analysis.normal import PublishedRange
from trainrig.analysis.patterns import Pattern, find_patterns
from trainrig.analysis.rows import at_path, is_published, rows
from trainrig.analysis.training_results import fault, readable_results
from trainrig.analysis.waterfall import Waterfall, build_waterfalls, largest_gap
from trainrig.benchmarks.spec import Role
from trainrig.record import Finding, RunView
from trainrig.units import amount_of, capital, signed_share


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """Summary of a run for lists and for the index."""

    run: str
    answer: RunAnswer
    """Normal, slow, faulty or cannot tell, and what that was compared with."""
    verdict: str
    """The verdict's outcome, or what stands in for a verdict."""
    reason: str
    headline: str
    """One plain sentence: what it trains, how fast, and what is not explained."""
    key_numbers: tuple[KeyNumber, ...]
    actions: tuple[Action, ...]
    largest_gap: str
    """One sentence, with the cause."""
    findings: tuple[Finding, ...]
    patterns: tuple[Pattern, ...]
    missing: tuple[str, ...]
    """Parts of the run that are missing or damaged."""
    waterfalls: tuple[Waterfall, ...]
    taken: RunMetadata


def summarise(view: RunView) -> RunSummary:
    """Look at one run from every side."""
    waterfalls = build_waterfalls(view)
    word, reason = verdict_of(view)
    only_trainings = bool(readable_results(view)) and all(
        row.role is Role.STEP for row in rows(view) if row.measured is not None
    )
    findings = view.verdict.findings if view.verdict else ()
    is_read = is_imported(view.config)
    largest = _gap_sentence(view, waterfalls, only_trainings=only_trainings)
    return RunSummary(
        run=view.name,
        answer=answer_of(view),
        verdict=word,
        reason=reason,
        headline=imported_headline(view) if is_read else headline(view, waterfalls) or largest,
        key_numbers=(
            tuple(map(_read_number, named_numbers(view)))
            if is_read
            else key_numbers(view, waterfalls)
        ),
        actions=actions(view, waterfalls, findings),
        largest_gap=largest,
        findings=findings,
        patterns=find_patterns(view),
        missing=missing(view),
        waterfalls=waterfalls,
        taken=run_metadata(view),
    )


def _read_number(number: NamedNumber) -> KeyNumber:
    """Return an imported number beside what others published of the same operation."""
    place = number.number.place
    others = PublishedRange(low=place.low, high=place.high, num=place.num) if place else None
    return KeyNumber(
        name=number.name,
        value=number.number.value,
        unit=number.number.record.unit,
        what=number.number.what,
        others=others,
        text=number.number.text,
    )


def device_names(view: RunView) -> str:
    """Return the devices that were measured: ``2 × RTX 4090``, or the processor's name."""
    if is_imported(view.config):
        return imported_devices(view)
    pairs = {
        (row.device or "unknown device", row.index)
        for row in rows(view)
        if row.measured and row.role is not Role.DISK  # a disk does not name a machine
    }
    gpus = Counter(device for device, index in pairs if index is not None)
    for row in rows(view):  # what ran on several at once is told once, of the first
        name = row.device or "unknown device"
        if row.index is not None and row.measured and list(gpus) == [name]:
            gpus[name] = max(gpus[name], row.count)
    names = [f"{n} × {device}" if n > 1 else device for device, n in sorted(gpus.items())]
    names = names or sorted(device for device, _ in pairs)
    return ", ".join(names or [str(at_path(view.machine, "cpu", "model") or view.name)])


def verdict_of(view: RunView) -> tuple[str, str]:
    """Return the verdict and its reason, one sentence."""
    if view.verdict is not None:
        return str(view.verdict.outcome), view.verdict.reason
    if is_published(view):
        return "NOT JUDGED", "published figures, not measured by trainrig: nothing to judge"
    return "NO VERDICT", "the run was cut off before it was judged; what it measured is below"


def _gap_sentence(view: RunView, waterfalls: Sequence[Waterfall], *, only_trainings: bool) -> str:
    """Return the largest gap in one sentence, or why there is none."""
    if (gap := largest_gap(waterfalls)) is not None:
        level = gap.level
        band = ", below its expected band" if level.is_below else ""
        reached = amount_of(level.value or 0.0, gap.ceiling, level.unit)
        return (
            f"{capital(gap.waterfall.title)}: {level.name[0].lower()}{level.name[1:]} reaches "
            f"{reached} ({signed_share(gap.gap.share)}){band}. {capital(gap.gap.cause)}."
        )
    levels = [
        level
        for waterfall in waterfalls
        for level in waterfall.levels[1:]
        if level.value is not None
    ]
    if not levels and not only_trainings:
        has_values = any(row.value for row in rows(view))
        bare = "No point has a value, so there is no level to compare."
        return "No claim is known that bounds these numbers." if has_values else bare
    if levels and all(level.note for level in levels):
        return "No level can be judged: every point was noisy."
    if any(level.gap is not None and level.note is None for level in levels):
        return "No level that can be judged is clearly more than 3 % below its ceiling."
    if only_trainings:
        return "Trainings are compared with each other, not with a ceiling."
    is_noisy = any(level.note for level in levels)
    why = "Every other point was noisy" if is_noisy else "No claim is known for this device"
    return f"{why}, so no level has a ceiling to compare with."


def missing(view: RunView) -> tuple[str, ...]:
    """Return the parts of a run that are missing or damaged."""
    problems = list(view.problems)
    if (reason := fault(view)) is not None:
        problems.append(f"the comparison of experiments: {reason}")
    if view.machine is None and not any("machine" in problem for problem in problems):
        problems.append("the machine was not described")
    everything = _cases(view)
    unseen = sum(not is_seen for is_seen in everything.values())
    if is_imported(view.config):  # cards and the paths between them may be all that a file has
        return tuple(problems)
    if unseen == len(everything) and not (not everything and readable_results(view)):
        problems.append("nothing was measured")
    elif unseen:
        problems.append(f"{unseen} of {len(everything)} planned cases have no result")
    return tuple(problems)


def _cases(view: RunView) -> dict[tuple[object, ...], bool]:
    """Return each planned case on its device, and whether it has a result."""
    results: dict[tuple[object, ...], bool] = {}
    for row in rows(view):
        place = (row.benchmark, tuple(sorted(row.case.items())), row.device, row.index, row.count)
        results[place] = results.get(place, False) or row.measured is not None
    return results
