"""Experiment against experiment: the ratio of their rates, its interval, and what can be said.

Each row is held against the first one that trained as asked.  A row is one process or one team of
ranks, so its steps are no independent samples: consecutive steps are taken together in a few
blocks, and the interval is widened by what two fresh processes differ by anyway
(`stats.AGREEMENT`).  Where the machine was busy beside either of them, nothing is said.  What
differs between the two comes first: where it is more than one thing, the ratio is of all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from statistics import fmean
from typing import Any

from trainrig.stats import AGREEMENT, Change, Comparison, adjust_for_many, compare, judge_change

Summary = Mapping[str, Any]
BLOCKS = 4
"""Consecutive steps are taken together in so many blocks at the most."""
_LEAST_STEPS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Versus:
    """One experiment against another."""

    name: str
    base: str
    unlike: tuple[str, ...]
    """What was asked for differently, ``name: base → own``."""
    ratio: float | None = None
    """Samples a second, over the base's."""
    low: float | None = None
    high: float | None = None
    says: str = Change.CANNOT_TELL.value
    why: str | None = None
    """Why nothing can be told."""


def against_first(summaries: Sequence[Summary]) -> tuple[Versus, ...]:
    """Each experiment against the first that passed."""
    base = next((each for each in summaries if each["row_verdict"] == "PASS"), None)
    if base is None:
        return ()
    others = [each for each in summaries if each is not base]
    known = {n: _ratio(base, each) for n, each in enumerate(others) if _why_not(base, each) is None}
    levels = adjust_for_many([found.p_value for found in known.values()])
    judged = dict(zip(known, levels, strict=True))
    return tuple(
        _said(base, each, known.get(n), judged.get(n, 1.0)) for n, each in enumerate(others)
    )


def as_dicts(summaries: Sequence[Summary]) -> list[dict[str, Any]]:
    """For ``--json``."""
    return [{**asdict(each), "unlike": list(each.unlike)} for each in against_first(summaries)]


def unlike(base: Summary, own: Summary) -> tuple[str, ...]:
    """What two experiments asked for differently."""
    old, new = _asked(base), _asked(own)
    return tuple(
        f"{name}: {old[name]} → {new.get(name)}" for name in old if old[name] != new.get(name)
    )


def _asked(each: Summary) -> dict[str, Any]:
    own = {name: each[name] for name in ("backend", "model", "batch_size") if name in each}
    return {**own, **each["layout_asked"]}


def _why_not(base: Summary, own: Summary) -> str | None:
    """Why two experiments are not held against each other."""
    if own["row_verdict"] != "PASS":
        return str(own["row_verdict"])
    for each in (base, own):
        if len(each.get("step_times_s") or ()) < _LEAST_STEPS:
            return f"{each['name']}: fewer than {_LEAST_STEPS} steps that count"
        if min(each["step_times_s"]) <= 0.0 or not each["samples_per_s"]:
            return f"{each['name']}: its steps have no times"
    return None


def _ratio(base: Summary, own: Summary) -> Comparison:
    return compare(_block_rates(base), _block_rates(own))


def _block_rates(each: Summary) -> list[float]:
    """Samples a second of each block of consecutive steps."""
    times = [float(value) for value in each["step_times_s"]]
    count = min(BLOCKS, len(times) // 2)
    edges = [round(n * len(times) / count) for n in range(count + 1)]
    samples = each["samples_per_s"] * each["step_time_s"]
    return [samples / fmean(times[a:b]) for a, b in pairwise(edges)]


def _said(base: Summary, own: Summary, found: Comparison | None, level: float) -> Versus:
    heads = {"name": own["name"], "base": base["name"], "unlike": unlike(base, own)}
    if found is None:
        return Versus(**heads, why=_why_not(base, own))
    low = found.interval.low / (1.0 + AGREEMENT)
    high = found.interval.high * (1.0 + AGREEMENT)
    change, why = judge_change(found, level, higher_is_better=True), None
    if low <= 1.0 <= high and change is not Change.CANNOT_TELL:
        change = Change.CANNOT_TELL
    if change is Change.CANNOT_TELL:
        why = "the intervals overlap"
    for each in (base, own):
        if each.get("disturbed"):
            change, why = Change.CANNOT_TELL, f"{each['name']}: {each['disturbed']}"
    return Versus(**heads, ratio=found.ratio, low=low, high=high, says=change.value, why=why)
