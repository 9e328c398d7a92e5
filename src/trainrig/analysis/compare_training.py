"""Experiment against experiment: the ratio of their rates, its interval, and what can be said.

Of one run each row is held against the first one of its model that trained as asked; of two runs
(`across`) each against its own of the other run.  What the ratio rests on, the best first:

- Both were trained in turns, in three rounds or more: each round is one sample, by fresh processes,
  and the ratios of the rounds are judged.  A round in which the machine was busy is left out.
- Both have three quiet rounds or more, of two runs: the rounds' rates, each side's by themselves.
- Else the steps of a few processes (`stepwise`), which are no independent samples.

Two that did not take turns met the machine in different moods: there the interval is widened by
what trainings differ by anyway (`stepwise.DIFFER`).  Where the machine was busy beside either of
them, nothing is said.  What differs between the two comes first: where it is more than one thing,
the ratio is of all of them.  Samples of another model or length are other work, and have no ratio.

Experiments of two runs: each against the one of the same name, and first what is unlike.

Two are the same experiment when name and settings are: the whole of what was resolved, the text's
digest instead of its folder.  Those whose settings differ are listed first and compared with that
said.  On another model of device speeds stand beside each other and are not judged.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from trainrig.analysis import training_results
from trainrig.analysis.run_view import RunView
from trainrig.analysis.training_results import BENCHMARK, Summary
from trainrig.errors import DataError
from trainrig.stats import (
    LEAST,
    Change,
    Comparison,
    adjust_for_many,
    apart,
    by_t,
    compare,
    compare_pairs,
    compare_steps,
    judge_change,
    middle,
)
from trainrig.units import one_line

LEAST_ROUNDS = 3
_PASS = "PASS"
TURNS, ROUNDS, STEPS = "turns", "rounds", "steps"


@dataclass(frozen=True, slots=True, kw_only=True)
class Versus:
    """One experiment against another."""

    name: str
    base: str
    unlike: tuple[str, ...]
    """What differs, ``name: base → own``."""
    ratio: float | None = None
    """Samples a second, over the base's."""
    low: float | None = None
    high: float | None = None
    says: str = Change.CANNOT_TELL.value
    why: str | None = None
    """Why nothing can be told, or what is worse than being slow."""
    rests_on: str | None = None
    """``turns``, ``rounds`` or ``steps``, as above; None without a ratio."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Two:
    """What is held against what."""

    base: Summary
    own: Summary
    base_name: str
    unlike: tuple[str, ...]
    of_two_runs: bool = False
    """The same experiment at two times; else two of one run, which are trained in turns."""
    not_judged: str | None = None
    """Why their speeds may stand beside each other and no more."""

    @property
    def in_turns(self) -> bool:
        """Whether a round of one and a round of the other met the machine together."""
        return not self.of_two_runs and _has_rounds(self.base) and _has_rounds(self.own)

    @property
    def is_other_work(self) -> bool:
        """Whether a sample of one is another amount of work than a sample of the other."""
        return self.base["model"] != self.own["model"] or _differ(self.base, self.own)


def against_first(summaries: Sequence[Summary]) -> tuple[Versus, ...]:
    """Each experiment against the first of its model that passed, else against the first of all."""
    passed = [each for each in summaries if each["row_verdict"] == _PASS]
    if not passed:
        return ()
    bases = {each["model"]: each for each in reversed(passed)}
    pairs = [(bases.get(each["model"], passed[0]), each) for each in summaries]
    return judge(
        [
            Two(base=base, own=own, base_name=base["name"], unlike=unlike(base, own))
            for base, own in pairs
            if own is not base
        ]
    )


def as_dicts(summaries: Sequence[Summary]) -> list[dict[str, Any]]:
    """For ``--json``."""
    return [as_dict(each) for each in against_first(summaries)]


def as_dict(each: Versus) -> dict[str, Any]:
    """For ``--json``."""
    return {**asdict(each), "unlike": list(each.unlike)}


def judge(pairs: Sequence[Two]) -> tuple[Versus, ...]:
    """All of them at once: of what is called, 5 % at the most are false."""
    reasons = [_why_not(two) for two in pairs]
    found = {n: _ratio(two) for n, two in enumerate(pairs) if reasons[n] is None}
    levels = adjust_for_many([each.p_value for each in found.values()])
    judged = dict(zip(found, levels, strict=True))
    return tuple(
        _said(two, found[n], judged[n], len(found)) if n in found else _not_said(two, reasons[n])
        for n, two in enumerate(pairs)
    )


# ---- what differs


def unlike(base: Summary, own: Summary) -> tuple[str, ...]:
    """What they ran on and asked for differently; a key that only one of them knows is none."""
    whole = all(each.get("settings") for each in (base, own))
    old, new = (asked(each, whole=whole) for each in (base, own))
    return tuple(
        f"{name}: {' → '.join(shortened([text(old[name]), text(new[name])]))}"
        for name in old
        if name in new and old[name] != new[name]
    )


def asked(each: Summary, *, whole: bool) -> dict[str, Any]:
    """Every setting by its name in an experiment file, or what an older run kept of them."""
    own = {name: each[name] for name in ("backend", "model", "batch_size") if name in each}
    return {**software(each), **own, **each["settings" if whole else "layout_asked"]}


def software(each: Summary) -> dict[str, Any]:
    """Versions that its ranks told: what differs in them differs beyond all that was asked for."""
    found = each.get("software_found") or {}
    return {name: version for name, version in found.items() if name != "interpreter"}


def text(value: object) -> str:
    """A setting's value as an experiment file spells it."""
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else str(value)


def shortened(texts: Sequence[str]) -> list[str]:
    """Different values of a setting; numbers that all models have are left out: ``gpt2:…``."""
    parts = [(name, numbers.split(",")) for name, _, numbers in (t.partition(":") for t in texts)]
    shared = set.intersection(*(set(numbers) for _, numbers in parts)) - {""}
    if not shared:
        return list(texts)
    own = [(name, [each for each in numbers if each not in shared]) for name, numbers in parts]
    return [f"{name}:{','.join([*numbers, '…'])}" for name, numbers in own]


# ---- what can be compared


def _why_not(two: Two) -> str | None:
    """Why two experiments have no ratio."""
    base, own = two.base, two.own
    if two.is_other_work:
        return "samples of another model or length are other work"
    for each in (own, base):
        if each["row_verdict"] != _PASS:
            return str(each["row_verdict"])
    own_name = "new run" if two.of_two_runs else own["name"]
    return _untimed(base, two.base_name) or _untimed(own, own_name) or _too_busy(two)


def _differ(base: Summary, own: Summary) -> bool:
    """In the length of their samples."""
    known = [tokens for tokens in (_tokens(base), _tokens(own)) if tokens is not None]
    return len(set(known)) > 1


def _untimed(each: Summary, name: str) -> str | None:
    times = each.get("step_times_s") or []
    if len(times) < LEAST:
        return f"{name}: fewer than {LEAST} steps that count"
    if min(times) <= 0.0 or not each["samples_per_s"] or not each["step_time_s"]:
        return f"{name}: its steps have no times"
    return None


def _too_busy(two: Two) -> str | None:
    turns = _turns(two) if two.in_turns else None
    if turns is None or len(turns) >= LEAST_ROUNDS:
        return None
    count, left = len(two.own["rounds"]), f"all but {len(turns)} of" if turns else "all"
    return f"the machine was busy in {left} {count} rounds"


def _tokens(each: Summary) -> int | None:
    """Tokens of a sample."""
    rate, tokens = each["samples_per_s"], each.get("tokens_per_s")
    return round(tokens / rate) if rate and tokens else None


def _has_rounds(each: Summary) -> bool:
    return len(each.get("rounds") or ()) >= LEAST_ROUNDS


def _quiet(each: Summary) -> list[float]:
    """Samples a second of each quiet round, where there are three or more."""
    rounds = [one for one in each.get("rounds") or () if not one["disturbed"]]
    rates = [_rate(each, one) for one in rounds if _is_timed(one)]
    return rates if len(rates) >= LEAST_ROUNDS else []


def _turns(two: Two) -> list[tuple[float, float]]:
    """Samples a second of both in each round that was quiet for both."""
    rounds = zip(two.base["rounds"], two.own["rounds"], strict=False)
    return [
        (_rate(two.base, ours), _rate(two.own, theirs))
        for ours, theirs in rounds
        if not ours["disturbed"] and not theirs["disturbed"]
        if _is_timed(ours) and _is_timed(theirs)
    ]


def _is_timed(one: Mapping[str, Any]) -> bool:
    return min(one["step_times_s"], default=0.0) > 0.0


def _rate(each: Summary, one: Mapping[str, Any]) -> float:
    return _samples(each) / fmean(middle(one["step_times_s"]))


def _samples(each: Summary) -> float:
    """Of a step, on all ranks."""
    return float(each["samples_per_s"] * each["step_time_s"])


# ---- the ratio, and what is said of it


def _ratio(two: Two) -> Comparison:
    kind = _rests_on(two)
    if kind == TURNS:
        return compare_pairs(*zip(*_turns(two), strict=True))
    if kind == ROUNDS:
        found = compare(_quiet(two.base), _quiet(two.own))
    else:
        amount = _samples(two.own) / _samples(two.base)
        found = compare_steps(two.base["step_times_s"], two.own["step_times_s"], amount)
    kinds = [each["layout_asked"].get("device") for each in (two.base, two.own)]
    return by_t(math.log(found.ratio), found.error, found.freedom, max(map(apart, map(str, kinds))))


def _rests_on(two: Two) -> str:
    if two.in_turns:
        return TURNS
    return ROUNDS if _quiet(two.base) and _quiet(two.own) else STEPS


def _said(two: Two, found: Comparison, level: float, count: int) -> Versus:
    change, why = judge_change(found, level, higher_is_better=True), two.not_judged
    if change is Change.CANNOT_TELL and why is None:
        why = _too_wide(found, count)
    if two.base.get("disturbed"):
        why = f"{two.base_name}: {two.base['disturbed']}"
    if two.own.get("disturbed"):
        why = two.own["disturbed"]
    return Versus(
        **_heads(two),
        ratio=found.ratio,
        low=found.interval.low,
        high=found.interval.high,
        says=(change if why is None else Change.CANNOT_TELL).value,
        why=why,
        rests_on=_rests_on(two),
    )


def _too_wide(found: Comparison, count: int) -> str:
    if found.interval.low <= 1.0 <= found.interval.high:
        return "the interval holds 1"
    return f"not clear enough for one of {count} comparisons"


def _not_said(two: Two, why: str | None) -> Versus:
    """Without a ratio; what trained in one run and fails in the other is worse all the same."""
    says = Change.CANNOT_TELL
    passes = [each["row_verdict"] == _PASS for each in (two.base, two.own)]
    if two.of_two_runs and passes[0] != passes[1] and not two.is_other_work:
        says = Change.BETTER if passes[1] else Change.WORSE
        why = f"{two.base['row_verdict']} → {two.own['row_verdict']}"
        reason = two.own["reason"] or two.own["parity"]["not_comparable"]
        why += f": {reason}" if reason and not passes[1] else ""
    return Versus(**_heads(two), says=says.value, why=why)


def _heads(two: Two) -> dict[str, Any]:
    return {"name": two.own["name"], "base": two.base_name, "unlike": two.unlike}


_MACHINE = ("threads", "transport", "wrapped", "state_precision", "num_parameters")
"""Of a layout as found, what bears on speed and is no setting."""
_VISIBLE = "cuda_visible_devices"


@dataclass(frozen=True, slots=True, kw_only=True)
class Across:
    """What can be said of the experiments of two runs."""

    rows: tuple[Versus, ...]
    """Those that both have, in the order of the new run."""
    old: tuple[Summary, ...]
    new: tuple[Summary, ...]
    """The same ones, as either run keeps them."""
    alone: tuple[tuple[str, str], ...]
    """Those that one run has, and why the other has not."""

    def count(self, change: Change) -> int:
        """How many came out so."""
        return sum(each.says == change.value for each in self.rows)


def is_of_experiments(view: RunView) -> bool:
    """Whether a run was made for experiments, however far it came."""
    return bool(training_results.planned(view)) or training_results.SERIES in view.series


def experiments_of_two(old: RunView, new: RunView) -> Across | None:
    """Compare them; None where neither run has any.

    Raises DataError where a run is damaged, was cut off before its first experiment, or is of
    another kind than the other.
    """
    sides = (old, new)
    kinds = [is_of_experiments(view) for view in sides]
    if not any(kinds):
        return None
    for view, has in zip(sides, kinds, strict=True):
        if not has:
            raise DataError(
                f"{view.name} has no experiments, and the other run has",
                "compare two runs of trainrig train FILE, or two of trainrig qualify",
            )
    found = [_summaries(view) for view in sides]
    met = [name for name in found[1] if name in found[0]]
    return Across(
        rows=judge([_two(name, sides, found) for name in met]),
        old=tuple(found[0][name] for name in met),
        new=tuple(found[1][name] for name in met),
        alone=(
            *((name, _why_alone(new, "new")) for name in found[0] if name not in found[1]),
            *((name, _why_alone(old, "old")) for name in found[1] if name not in found[0]),
            *_never_came(sides, found),
        ),
    )


def _summaries(view: RunView) -> dict[str, Summary]:
    """The run's experiments, with the digest of their text."""
    try:
        found = {each["name"]: each for each in training_results.read(view.series)}
    except DataError as error:
        raise DataError(f"{view.name}: {error.message}", error.hint) from None
    if not found:
        raise DataError(
            f"{view.name} was cut off before its first experiment was trained",
            "train again, or compare another run",
        )
    texts = _texts(view)
    return {
        name: {**each, "settings": {**each["settings"], "data": texts[name]}}
        if each.get("settings") and name in texts
        else each
        for name, each in found.items()
    }


def _texts(view: RunView) -> dict[str, Any]:
    """The digest of the text that each was trained on, from the records."""
    cases = [record.case for record in view.records if record.benchmark == BENCHMARK]
    return {str(case.get("experiment")): case["data"] for case in cases if "data" in case}


def _devices(view: RunView, name: str) -> str:
    """The models of device that an experiment ran on."""
    found = {
        record.device
        for record in view.records
        if record.benchmark == BENCHMARK and record.is_point and record.device
        if record.case.get("experiment") == name
    }
    return ", ".join(sorted(found))


def _two(name: str, sides: Sequence[RunView], found: Sequence[Mapping[str, Summary]]) -> Two:
    base, own = found[0][name], found[1][name]
    old, new = (_devices(view, name) for view in sides)
    other = old and new and old != new
    return Two(
        base=base,
        own=own,
        base_name="old run",
        unlike=(*unlike(base, own), *_as_found(base, own)),
        of_two_runs=True,
        not_judged=f"another device: {one_line(old)} → {one_line(new)}" if other else None,
    )


def _as_found(base: Summary, own: Summary) -> list[str]:
    """What was found differently where the same was asked for: devices, threads, transport."""
    old, new = base.get("layout_found") or {}, own.get("layout_found") or {}
    seen = [each.get(_VISIBLE) for each in (base, own)]
    other = None not in seen and seen[0] != seen[1]
    return [
        *([f"{_VISIBLE}: {seen[0]} → {seen[1]}"] if other else []),
        *_differ_by(old, new),
    ]


def _differ_by(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    return [
        f"found {name}: {text(old[name])} → {text(new[name])}"
        for name in _MACHINE
        if name in old and name in new and old[name] != new[name]
    ]


def _why_alone(view: RunView, which: str) -> str:
    return f"not in the {which} run" + (", which was cut off" if view.verdict is None else "")


def _never_came(
    sides: Sequence[RunView], found: Sequence[Mapping[str, Summary]]
) -> list[tuple[str, str]]:
    """What was planned and never came to be in either run."""
    names = dict.fromkeys(name for view in sides for name in training_results.planned(view))
    return [
        (name, "in neither run's results")
        for name in names
        if name not in found[0] and name not in found[1]
    ]


def across_dict(found: Across) -> dict[str, Any]:
    """For JSON."""
    return {
        "compared": [as_dict(each) for each in found.rows],
        "alone": [{"name": name, "why": why} for name, why in found.alone],
    }
