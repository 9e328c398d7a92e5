"""Trainings against each other: the ratio of their rates, its interval, and the judgement.

In one run each experiment is compared with the first one of its model that trained as asked; of two
runs each with the one of the same name.  A training's trials are its rounds, and without them its
steps.  What a ratio rests on, the best first:

- interleaved rounds: both were trained in turn in three rounds or more.  Each round is one sample,
  by fresh processes, and the ratios of the rounds are judged.  A noisy round is left out.
- rounds: both have three quiet rounds or more, in two runs: the rounds' rates, each side's alone.
- steps: those of a few processes (`stats.mean_step`), which are no independent samples.

Trainings that were not interleaved met different background load: there the interval is widened by
what trainings differ by anyway (`stats.run_to_run_margin`).  Where the machine was busy beside
either of them, nothing is judged.  What differs between the two comes first: where it is more than
one thing, the ratio is of all of them.  Samples of another model or length are other work, and have
no ratio; on another model of device speeds stand beside each other and are not judged.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from trainrig.analysis import training_results
from trainrig.analysis.training_results import BENCHMARK, TrainingResult
from trainrig.errors import DataError
from trainrig.record import RunView
from trainrig.stats import (
    LEAST_STEPS,
    Change,
    Comparison,
    compare,
    compare_pairs,
    compare_steps,
    judge_changes,
    run_to_run_margin,
    trimmed,
)
from trainrig.units import one_line
from trainrig.workload.layout import Layout
from trainrig.workload.rank_layout import RANK_KEYS

LEAST_ROUNDS = 3
INTERLEAVED, ROUNDS, STEPS = "interleaved rounds", "rounds", "steps"

_OBSERVED = ("threads", "transport", "wrapped", "state_precision", "num_parameters")
"""Keys of an observed layout that bear on speed and are no settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speedup:
    """One experiment against another."""

    name: str
    base: str
    differences: tuple[str, ...]
    """``name: base's value → its own``."""
    ratio: float | None = None
    """Samples a second, over the base's."""
    low: float | None = None
    high: float | None = None
    change: Change = Change.CANNOT_TELL
    reason: str | None = None
    """Reason that the change was not judged, or of the failure."""
    is_judged: bool = False
    """False where the change was not judged: the machine was busy, or a device differs."""
    basis: str | None = None
    """``interleaved rounds``, ``rounds`` or ``steps``; None without a ratio."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingComparison:
    """The experiments of two runs."""

    compared: tuple[Speedup, ...]
    """Experiments that both runs have, in the order of the new one."""
    old: tuple[TrainingResult, ...]
    """The results of those that both have, in the old run."""
    new: tuple[TrainingResult, ...]
    alone: tuple[tuple[str, str], ...]
    """Names that one run has, and why the other has not."""

    def count(self, change: Change) -> int:
        """Return the number of experiments with this change."""
        return sum(speedup.change is change for speedup in self.compared)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pair:
    """Two experiments that are to be compared."""

    base: TrainingResult
    own: TrainingResult
    differences: tuple[str, ...]
    two_runs: bool = False
    """One experiment at two times; else two of one run, which are interleaved."""
    not_judged: str | None = None
    """Reason that the speeds are only shown beside each other; None where they are compared."""

    @property
    def base_name(self) -> str:
        """Name of the experiment that is compared with."""
        return "old run" if self.two_runs else self.base.name

    @property
    def is_interleaved(self) -> bool:
        """True where rounds of both experiments took turns, so that each pair met one machine."""
        num_rounds = min(len(self.base.timing.rounds), len(self.own.timing.rounds))
        return not self.two_runs and num_rounds >= LEAST_ROUNDS

    @property
    def is_other_work(self) -> bool:
        """True where a sample is another amount of work in the two experiments."""
        tokens = {_tokens(self.base), _tokens(self.own)} - {None}
        return self.base.model != self.own.model or len(tokens) > 1

    def speedup(self, **fields_of_speedup: Any) -> Speedup:
        """Return the comparison as a `Speedup`."""
        return Speedup(
            name=self.own.name,
            base=self.base_name,
            differences=self.differences,
            **fields_of_speedup,
        )


# ---- experiments of one run


def speedups(results: Sequence[TrainingResult]) -> tuple[Speedup, ...]:
    """Compare each experiment with the first of its model that passed, else with the first."""
    passed = [result for result in results if result.passed]
    if not passed:
        return ()
    bases = {result.model: result for result in reversed(passed)}
    pairs = [(bases.get(result.model, passed[0]), result) for result in results]
    return _judge(
        [
            _Pair(base=base, own=result, differences=setting_differences(base, result))
            for base, result in pairs
            if result is not base
        ]
    )


def compare_with(base: TrainingResult, others: Sequence[TrainingResult]) -> tuple[Speedup, ...]:
    """Compare ``others`` with one experiment of their run; None stands for the base itself."""
    return _judge(
        [
            _Pair(base=base, own=other, differences=setting_differences(base, other))
            for other in others
        ]
    )


FUSED = {
    "unfused = norm": "norm",
    "unfused = gelu": "GELU",
    "unfused = loss": "head and loss",
    "unfused = pad": "rows of logits padded",
    "unfused = clip": "clip inside of AdamW",
    "unfused = foreach": "copies of many tensors at once",
    "unfused = chunk": "loss's chunk compiled",
    "unfused = sdpa": "attention's kernels in the order of speed",
    "unfused = segments": "segments that grow",
    "unfused = omp": "OMP_NUM_THREADS",
    "unfused = numa": "processors beside the GPU",
    "attention = plain": "softmax",
    "optimizer = adamw": "AdamW",
}
"""Operations that a training computes one at a time, by the only setting that differs."""
_FUSING = ("unfused", "attention", "optimizer")


def fused_speedups(results: Sequence[TrainingResult]) -> tuple[tuple[str, Speedup], ...]:
    """Return what is computed unfused, and the fused training's speed over it, by fusion."""
    pairs: list[tuple[str, _Pair]] = []
    for result in results:
        written = [f"{key} = {result.settings.get(key)}" for key in _FUSING]
        written = [
            setting for setting in written if setting in FUSED or setting.startswith("unfused = ")
        ]
        written = [
            setting for setting in written if setting not in ("unfused = ", "unfused = None")
        ]
        same = _unfused_apart(result)
        fused = (
            candidate
            for candidate in results
            if candidate.passed
            and _unfused_apart(candidate) == same
            and not candidate.settings.get("unfused")
            and all(f"{key} = {candidate.settings.get(key)}" not in FUSED for key in _FUSING)
        )
        is_one = len(written) == 1 and written[0] in FUSED
        if is_one and result.passed and (base := next(fused, None)) is not None:
            pairs.append((FUSED[written[0]], _Pair(base=result, own=base, differences=())))
    return tuple(zip([name for name, _ in pairs], _judge([p for _, p in pairs]), strict=True))


def _unfused_apart(result: TrainingResult) -> dict[str, Any]:
    """Return every setting but those that take kernels apart."""
    names = result.settings.keys() - {*_FUSING, "bar", "why", "comparable"}
    return {"model": result.model, "framework": result.framework} | {
        n: result.settings[n] for n in names
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """A goal of a training against another framework, with its result."""

    name: str
    base: str
    """The row that ours is measured against, or the matrix product."""
    kernels: str
    """Attention kernel of the base training that ran, and the other fused operations in it."""
    ratio: float | None
    least: float
    is_met: bool | None
    """None: not judged, with the reason in ``reason``."""
    reason: str | None = None


_MATMUL = "matrix product measured beside it"


def reached_goals(results: Sequence[TrainingResult]) -> tuple[Goal, ...]:
    """Return the trainings that have a ``bar``, each beside our fastest of its model."""
    goals = []
    for result in results:
        least = result.settings.get("bar")
        if not isinstance(least, float | int) or not least:
            continue
        if result.framework == Layout().framework:
            base, ratio, reason = (
                _MATMUL,
                result.throughput.mfu_of_measured_matmul,
                result.timing.disturbed,
            )
            if ratio is not None and ratio > 1.0:
                ratio, reason = None, f"it is faster than the {_MATMUL}, which says nothing then"
            goals.append(_bar(result.name, base, "", ratio, least, reason))
            continue
        native = [
            candidate
            for candidate in results
            if candidate.model == result.model
            and candidate.passed
            and candidate.framework == Layout().framework
        ]
        best = max(
            native, key=lambda candidate: candidate.throughput.samples_per_s or 0.0, default=None
        )
        if best is None or not result.throughput.samples_per_s:
            reason = (
                f"{result.name}: {result.problem or 'not trained'}"
                if best
                else "ours did not train"
            )
            goals.append(_bar(best.name if best else "ours", result.name, "", None, least, reason))
            continue
        ratio = (best.throughput.samples_per_s or 0.0) / result.throughput.samples_per_s
        noisy = best.timing.disturbed or result.timing.disturbed
        goals.append(_bar(best.name, result.name, _kernels(result), ratio, least, noisy))
    return tuple(goals)


def _bar(
    name: str, base: str, kernels: str, ratio: float | None, least: float, reason: str | None
) -> Goal:
    is_met = None if ratio is None or reason else ratio >= least
    if ratio is None and reason is None:
        reason = "no matrix product was measured"
    how: dict[str, Any] = {"name": name, "base": base, "kernels": kernels, "reason": reason}
    return Goal(ratio=ratio, least=float(least), is_met=is_met, **how)


def _kernels(result: TrainingResult) -> str:
    if result.layout.found is None:
        return ""
    kernels = result.layout.found.kernels
    own_kernels = result.software_found.get("kernels")  # Megatron's: fused, of Transformer Engine
    named = (kernels.attention_kernel or kernels.attention, kernels.replaced, own_kernels)
    return ", ".join(name for name in named if name)


# ---- experiments of two runs


def has_trainings(view: RunView) -> bool:
    """Return whether a run was made for experiments, even where none finished."""
    return bool(training_results.planned(view)) or training_results.has_results(view)


def compare_trainings(old: RunView, new: RunView) -> TrainingComparison | None:
    """Compare the experiments of the same name; None where neither run has any.

    Raises DataError where a run is damaged, was cut off before its first experiment, or is of
    another kind than the other.
    """
    sides = (old, new)
    if not any(map(has_trainings, sides)):
        return None
    for view in sides:
        if not has_trainings(view):
            raise DataError(
                f"{view.name} has no experiments, and the other run has",
                "compare two runs of trainrig train, or two of trainrig qualify",
            )
    before, after = (_results(view) for view in sides)
    names = [name for name in after if name in before]
    planned = dict.fromkeys(name for view in sides for name in training_results.planned(view))
    neither = [name for name in planned if name not in before and name not in after]
    return TrainingComparison(
        compared=_judge([_pair(before[name], after[name], sides) for name in names]),
        old=tuple(before[name] for name in names),
        new=tuple(after[name] for name in names),
        alone=(
            *((name, _why_alone(new, "new")) for name in before if name not in after),
            *((name, _why_alone(old, "old")) for name in after if name not in before),
            *((name, "in neither run's results") for name in neither),
        ),
    )


def _results(view: RunView) -> dict[str, TrainingResult]:
    """Return the run's experiments, their folder of data replaced by the digest of its text."""
    try:
        results = training_results.results(view)
    except DataError as error:
        raise DataError(f"{view.name}: {error.message}", error.hint) from None
    if not results:
        raise DataError(
            f"{view.name} was cut off before its first experiment was trained",
            "train again, or compare another run",
        )
    cases = [record.case for record in view.records if record.benchmark == BENCHMARK]
    texts = {str(case.get("experiment")): case["data"] for case in cases if "data" in case}
    results_by_name = {result.name: result for result in results}
    for name, result in results_by_name.items():
        if result.settings and name in texts:
            results_by_name[name] = replace(
                result, settings={**result.settings, "data": texts[name]}
            )
    return results_by_name


def _pair(base: TrainingResult, result: TrainingResult, sides: Sequence[RunView]) -> _Pair:
    old, new = (_devices(view, result.name) for view in sides)
    other = old and new and old != new
    return _Pair(
        base=base,
        own=result,
        differences=(*setting_differences(base, result), *_observed_differences(base, result)),
        two_runs=True,
        not_judged=f"another device: {one_line(old)} → {one_line(new)}" if other else None,
    )


def _devices(view: RunView, name: str) -> str:
    """Return the models of device that an experiment ran on."""
    points = [r for r in view.records if r.benchmark == BENCHMARK and r.is_point]
    device_names = {point.device for point in points if point.case.get("experiment") == name}
    return ", ".join(sorted(device for device in device_names if device))


def _why_alone(view: RunView, side: str) -> str:
    return f"not in the {side} run" + (", which was cut off" if view.verdict is None else "")


# ---- what differs


def setting_differences(base: TrainingResult, other: TrainingResult) -> tuple[str, ...]:
    """Return the device and the settings that differ; a key that only one side has is left out."""
    whole = bool(base.settings and other.settings)
    old, new = settings_of(base, whole=whole), settings_of(other, whole=whole)
    return _different((name, old[name], new[name]) for name in old if name in new and name != "bar")


def _different(facts: Iterable[tuple[str, Any, Any]]) -> tuple[str, ...]:
    """Return ``name: old → new`` for each fact that differs."""
    return tuple(
        f"{name}: {' → '.join(shortened([_setting_text(old), _setting_text(new)]))}"
        for name, old, new in facts
        if old != new
    )


def settings_of(result: TrainingResult, *, whole: bool) -> dict[str, Any]:
    """Return versions that its ranks reported, and every setting by its name in an experiment file.

    Without ``whole`` the settings are what an older run stored of them.
    """
    software = {name: v for name, v in result.software_found.items() if name != "interpreter"}
    settings = {
        "framework": result.framework,
        "model": result.model,
        "batch_size": result.layout.batch_size,
    }
    return {**software, **settings, **(result.settings if whole else result.layout.requested)}


def _setting_text(value: object) -> str:
    """Return a setting's value as an experiment file spells it."""
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else str(value)


def shortened(texts: Sequence[str]) -> list[str]:
    """Return different values of a setting without the numbers that all models have: ``gpt2:…``."""
    parts = [(name, numbers.split(",")) for name, _, numbers in (t.partition(":") for t in texts)]
    shared = set.intersection(*(set(numbers) for _, numbers in parts)) - {""}
    if not shared:
        return list(texts)
    return [
        f"{name}:{','.join([*(number for number in numbers if number not in shared), '…'])}"
        for name, numbers in parts
    ]


def _observed_differences(base: TrainingResult, other: TrainingResult) -> tuple[str, ...]:
    """Return differences observed under equal settings: devices, threads, transport."""
    pairs = [
        (
            "cuda_visible_devices",
            base.layout.cuda_visible_devices,
            other.layout.cuda_visible_devices,
        )
    ]
    layouts = [side.layout.found for side in (base, other) if side.layout.found is not None]
    if len(layouts) == 2:
        pairs += [
            (f"observed {key}", *(RANK_KEYS.get(layout, key) for layout in layouts))
            for key in _OBSERVED
        ]
    return _different(fact for fact in pairs if None not in fact)


# ---- what can be compared


def _why_not(pair: _Pair) -> str | None:
    """Return why two experiments have no ratio; empty where they have one."""
    if pair.is_other_work:
        return "samples of another model or length are other work"
    for result in (pair.own, pair.base):
        if not result.passed:
            return result.row_verdict
    own_name = "new run" if pair.two_runs else pair.own.name
    untimed = _untimed(pair.base, pair.base_name) or _untimed(pair.own, own_name)
    if untimed is not None or not pair.is_interleaved:
        return untimed
    clean, count = len(_interleaved(pair)), len(pair.own.timing.rounds)
    if clean >= LEAST_ROUNDS:
        return None
    return f"the machine was busy in {f'all but {clean} of' if clean else 'all'} {count} rounds"


def _untimed(result: TrainingResult, name: str) -> str | None:
    if len(result.timing.step_times_s) < LEAST_STEPS:
        return f"{name}: fewer than {LEAST_STEPS} steps that count"
    if (
        min(result.timing.step_times_s) <= 0.0
        or not result.throughput.samples_per_s
        or not result.timing.step_time_s
    ):
        return f"{name}: its steps have no times"
    return None


def _tokens(result: TrainingResult) -> int | None:
    """Return tokens of a sample."""
    rate, tokens = result.throughput.samples_per_s, result.throughput.tokens_per_s
    return round(tokens / rate) if rate and tokens else None


def _samples(result: TrainingResult) -> float:
    """Return samples of a step, on all ranks."""
    return float((result.throughput.samples_per_s or 0.0) * (result.timing.step_time_s or 0.0))


def _rates(result: TrainingResult) -> list[float | None]:
    """Return samples a second of each round; None where it was noisy or has no times."""
    samples = _samples(result)
    return [
        samples / fmean(trimmed(training_round.step_times_s))
        if training_round.disturbed is None and min(training_round.step_times_s, default=0.0) > 0.0
        else None
        for training_round in result.timing.rounds
    ]


def _interleaved(pair: _Pair) -> list[tuple[float, float]]:
    """Return samples a second of both in each round that was clean for both."""
    rounds = zip(_rates(pair.base), _rates(pair.own), strict=False)
    return [(old, new) for old, new in rounds if old is not None and new is not None]


def _clean_rates(result: TrainingResult) -> list[float]:
    """Return samples a second of each clean round, where there are three or more."""
    rates = [rate for rate in _rates(result) if rate is not None]
    return rates if len(rates) >= LEAST_ROUNDS else []


# ---- the ratio and its judgement


def _ratio(pair: _Pair) -> tuple[Comparison, str]:
    """Return the ratio of their rates, and what it rests on."""
    if pair.is_interleaved:
        return compare_pairs(*zip(*_interleaved(pair), strict=True)), INTERLEAVED
    kinds = [str(result.layout.requested.get("device")) for result in (pair.base, pair.own)]
    margin = max(map(run_to_run_margin, kinds))
    old, new = _clean_rates(pair.base), _clean_rates(pair.own)
    if old and new:
        return compare(old, new, margin=margin), ROUNDS
    amount = _samples(pair.own) / _samples(pair.base)
    return compare_steps(
        pair.base.timing.step_times_s, pair.own.timing.step_times_s, amount, margin
    ), STEPS


def _judge(pairs: Sequence[_Pair]) -> tuple[Speedup, ...]:
    """Judge all pairs at once: of the changes that are called, at most 5 % are false."""
    reasons = [_why_not(pair) for pair in pairs]
    ratios = {n: _ratio(pair) for n, pair in enumerate(pairs) if reasons[n] is None}
    changes = judge_changes([(comparison, True) for comparison, _ in ratios.values()])
    judged = dict(zip(ratios, (change for change, _ in changes), strict=True))
    return tuple(
        _with_ratio(pair, *ratios[n], judged[n], len(ratios))
        if n in ratios
        else _without_ratio(pair, reasons[n])
        for n, pair in enumerate(pairs)
    )


def _with_ratio(
    pair: _Pair, comparison: Comparison, basis: str, change: Change, count: int
) -> Speedup:
    base_noise = pair.base.timing.disturbed and f"{pair.base_name}: {pair.base.timing.disturbed}"
    reason = pair.own.timing.disturbed or base_noise or pair.not_judged
    is_judged = not reason
    if is_judged and change is Change.CANNOT_TELL:
        inside = comparison.interval.low <= 1.0 <= comparison.interval.high
        unclear = f"not clear enough for one of {count} comparisons"
        reason = "the interval holds 1" if inside else unclear
    return pair.speedup(
        ratio=comparison.ratio,
        low=comparison.interval.low,
        high=comparison.interval.high,
        change=change if is_judged else Change.CANNOT_TELL,
        reason=reason,
        is_judged=is_judged,
        basis=basis,
    )


def _without_ratio(pair: _Pair, reason: str | None) -> Speedup:
    """Return the speedup without a ratio: one that trained before and fails now is worse."""
    if not pair.two_runs or pair.base.passed == pair.own.passed or pair.is_other_work:
        return pair.speedup(reason=reason)
    reason = f"{pair.base.row_verdict} → {pair.own.row_verdict}"
    if pair.own.problem and not pair.own.passed:
        reason += f": {pair.own.problem}"
    change = Change.BETTER if pair.own.passed else Change.WORSE
    return pair.speedup(change=change, reason=reason, is_judged=True)
