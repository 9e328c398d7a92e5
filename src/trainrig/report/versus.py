"""Experiment against experiment: the ratio of their rates, its interval, and what can be said.

Each row is held against the first one that trained as asked.  Where both were trained in turns, in
three rounds or more, each round is one sample, by fresh processes, and the ratios of the rounds are
judged; a round in which the machine was busy is left out.  Else a row is one process or one team of
ranks, whose steps are no independent samples: consecutive steps are taken together in a few blocks,
and the interval is widened by what two fresh processes differ by anyway (`stats.AGREEMENT`).  Where
the machine was busy beside either of them, nothing is said.  What differs between the two comes
first: where it is more than one thing, the ratio is of all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from statistics import fmean
from typing import Any

from trainrig.stats import (
    AGREEMENT,
    Change,
    Comparison,
    adjust_for_many,
    compare,
    compare_pairs,
    judge_change,
)

Summary = Mapping[str, Any]
BLOCKS = 4
"""Consecutive steps are taken together in so many blocks at the most."""
_LEAST_STEPS = 4
LEAST_ROUNDS = 3


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
    turns = _turns(base, own)
    if turns is not None and len(turns) < LEAST_ROUNDS:
        return f"the machine was busy in all but {len(turns)} of {len(own['rounds'])} rounds"
    return None


def _ratio(base: Summary, own: Summary) -> Comparison:
    turns = _turns(base, own)
    if turns is None:
        return compare(_block_rates(base), _block_rates(own))
    return compare_pairs(*zip(*turns, strict=True))


def _in_turns(base: Summary, own: Summary) -> bool:
    return min(len(each.get("rounds", ())) for each in (base, own)) >= LEAST_ROUNDS


def _turns(base: Summary, own: Summary) -> list[tuple[float, float]] | None:
    """Samples a second of both in each quiet round; None where they were not trained in turns."""
    if not _in_turns(base, own):
        return None
    rounds = zip(base["rounds"], own["rounds"], strict=False)
    return [
        (_rate(base, ours), _rate(own, theirs))
        for ours, theirs in rounds
        if not ours["disturbed"] and not theirs["disturbed"]
    ]


def _rate(each: Summary, one: Mapping[str, Any]) -> float:
    """Samples a second of a round: over the steps that are not among its fastest or slowest."""
    times = sorted(float(value) for value in one["step_times_s"])
    quarter = len(times) // 4
    return _samples(each) / fmean(times[quarter : len(times) - quarter])


def _samples(each: Summary) -> float:
    """Of a step, on all ranks."""
    return float(each["samples_per_s"] * each["step_time_s"])


def _block_rates(each: Summary) -> list[float]:
    """Samples a second of each block of consecutive steps."""
    times = [float(value) for value in each["step_times_s"]]
    count = min(BLOCKS, len(times) // 2)
    edges = [round(n * len(times) / count) for n in range(count + 1)]
    return [_samples(each) / fmean(times[a:b]) for a, b in pairwise(edges)]


def _said(base: Summary, own: Summary, found: Comparison | None, level: float) -> Versus:
    heads = {"name": own["name"], "base": base["name"], "unlike": unlike(base, own)}
    if found is None:
        return Versus(**heads, why=_why_not(base, own))
    unknown = 0.0 if _in_turns(base, own) else AGREEMENT
    low = found.interval.low / (1.0 + unknown)
    high = found.interval.high * (1.0 + unknown)
    change, why = judge_change(found, level, higher_is_better=True), None
    if low <= 1.0 <= high and change is not Change.CANNOT_TELL:
        change = Change.CANNOT_TELL
    if change is Change.CANNOT_TELL:
        why = "the intervals overlap"
    for each in (base, own):
        if each.get("disturbed"):
            change, why = Change.CANNOT_TELL, f"{each['name']}: {each['disturbed']}"
    return Versus(**heads, ratio=found.ratio, low=low, high=high, says=change.value, why=why)
