"""Medians, intervals and rules: exact where they can be, by simulation where not."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, false_discovery_control, ttest_ind

from trainrig.scatter import shared_scatter
from trainrig.stats import (
    AGREEMENT,
    SMALLEST_CHANGE,
    Attempt,
    Change,
    Combined,
    Interval,
    adjust_for_many,
    combine_attempts,
    compare,
    judge_change,
    launch_bound,
    median,
    median_interval,
    smallest_visible,
)

# ---------------------------------------------------------------- the interval of a median


@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=60))
def test_the_interval_holds_the_median_and_ends_in_samples(samples: list[float]) -> None:
    interval = median_interval(samples)
    assert interval.low <= median(samples) <= interval.high
    assert {interval.low, interval.high} <= set(samples)


@pytest.mark.parametrize("count", [1, 2, 5, 6, 7, 8, 9, 20, 63, 100, 500, 1000])
@pytest.mark.parametrize("confidence", [0.8, 0.95, 0.99])
def test_the_confidence_is_the_binomials_and_no_narrower_interval_reaches_it(
    count: int, confidence: float
) -> None:
    ordered = [float(number) for number in range(1, count + 1)]
    interval = median_interval(ordered, confidence)
    rank = int(interval.low)
    assert interval.high == count + 1 - rank  # symmetric: k-th smallest, k-th largest
    assert interval.confidence == pytest.approx(1.0 - 2.0 * binom.cdf(rank - 1, count, 0.5))
    whole_range = 1.0 - 2.0 * 0.5**count
    assert interval.confidence >= min(confidence, whole_range)
    assert 1.0 - 2.0 * binom.cdf(rank, count, 0.5) < confidence or 2 * rank >= count


def test_below_six_samples_the_whole_range_says_what_it_has() -> None:
    assert median_interval([3.0]) == Interval(low=3.0, high=3.0, confidence=0.0)
    assert median_interval([5.0, 1.0, 2.0, 4.0, 3.0]) == Interval(
        low=1.0, high=5.0, confidence=0.9375
    )
    assert median_interval([6.0, 5.0, 1.0, 2.0, 4.0, 3.0]).confidence == 0.96875


@pytest.mark.parametrize("count", [1001, 1234, 2000])
def test_many_samples_use_an_approximation_that_reaches_the_confidence(count: int) -> None:
    interval = median_interval([float(number) for number in range(1, count + 1)])
    reached = 1.0 - 2.0 * binom.cdf(interval.low - 1.0, count, 0.5)
    assert 0.95 <= reached < 0.96


@pytest.mark.parametrize("count", [6, 10, 17, 50, 200])
@pytest.mark.parametrize(
    ("draw", "true_median"),
    [
        (lambda rng, shape: rng.exponential(1.0, shape), math.log(2.0)),
        (lambda rng, shape: rng.normal(10.0, 1.0, shape), 10.0),
        (lambda rng, shape: rng.pareto(0.8, shape), 2.0**1.25 - 1.0),  # it has no mean
    ],
    ids=["exponential", "normal", "pareto"],
)
def test_the_interval_covers_whatever_the_distribution(
    count: int,
    draw: Callable[[np.random.Generator, tuple[int, int]], np.ndarray],
    true_median: float,
) -> None:
    trials = 4000
    rows = draw(np.random.default_rng(20260101), (trials, count))
    stated = median_interval(rows[0].tolist()).confidence
    rank = round(binom.ppf((1.0 - stated) / 2.0 + 1e-9, count, 0.5))
    ordered = np.sort(rows, axis=1)
    covered = (ordered[:, rank - 1] <= true_median) & (true_median <= ordered[:, count - rank])
    # The array code above must be the function under test, or it proves nothing.
    ours = median_interval(rows[1].tolist())
    assert (ours.low, ours.high) == (ordered[1, rank - 1], ordered[1, count - rank])
    noise = math.sqrt(stated * (1.0 - stated) / trials)
    assert abs(covered.mean() - stated) < 4.0 * noise
    assert covered.mean() > 0.94


def test_half_a_width_is_a_share_of_the_value() -> None:
    assert Interval(low=9.0, high=11.0, confidence=0.95).half_width(10.0) == pytest.approx(0.1)
    assert Interval(low=-1.0, high=1.0, confidence=0.95).half_width(0.0) == math.inf


# ---------------------------------------------------------------- what workers say together


def attempts(values: Sequence[float], busy: Sequence[int] = ()) -> list[Attempt]:
    """Two a round."""
    return [
        Attempt(
            value=value,
            interval=Interval(low=value * 0.99, high=value * 1.01, confidence=0.95),
            disturbed="load 3.2 on 2 cores" if index in busy else None,
            round=index // 2,
        )
        for index, value in enumerate(values)
    ]


def test_two_quiet_workers_that_agree_make_a_point() -> None:
    combined = combine_attempts(attempts([1.0, 1.03125]))
    assert combined == Combined(
        value=1.015625,
        # The hull of both, without a level: nobody else says how far workers scatter.
        interval=Interval(low=0.99, high=1.03125 * 1.01, confidence=0.0),
        disturbed=None,
        used=(0, 1),
        rounds=1,
        reached=1.03125 * 1.01,
    )


def test_agreement_ends_where_it_is_said_to() -> None:
    limit = 1.0 / (1.0 - AGREEMENT)
    assert combine_attempts(attempts([1.0, limit * 0.9999])).disturbed is None
    assert (
        combine_attempts(attempts([1.0, limit * 1.0001])).disturbed == "2 workers disagree by 5 %"
    )
    assert combine_attempts(attempts([limit * 1.0001, 1.0])).disturbed is not None


def test_tight_workers_that_differ_by_a_factor_of_a_thousand_do_not_agree() -> None:
    # Seen on a busy machine: 0.07 GB/s and 60 GB/s, each with an interval under 1 %.
    combined = combine_attempts(attempts([1 / 0.07, 1 / 60.0]))
    assert combined.disturbed == "2 workers disagree by 100 %"
    assert combined.used == (0, 1)
    assert combined.reached == 1 / 0.07 * 1.01


def test_two_of_three_outvote_the_odd_one() -> None:
    combined = combine_attempts(attempts([1 / 60.0, 1 / 0.07, 1 / 59.0]))
    assert (combined.disturbed, combined.used, combined.rounds) == (None, (0, 2), 2)
    assert 59.0 < 1.0 / combined.value < 60.0


def test_two_that_are_fast_count_for_more_than_three_that_are_slow() -> None:
    combined = combine_attempts(attempts([2.0, 2.01, 1.0, 2.02, 1.01]))
    assert (combined.disturbed, combined.used) == (None, (2, 4))
    # Seen: four workers near 98 us, and two quiet ones that were much faster.
    combined = combine_attempts(attempts([98.5, 98.6, 98.4, 68.0, 98.5, 72.7]))
    assert combined.value == pytest.approx(70.35)
    assert combined.disturbed == "6 workers disagree by 31 %"


def test_fast_workers_count_though_the_machine_was_busy() -> None:
    combined = combine_attempts(attempts([1.0, 1.01, 3.0, 3.0], busy=[0]))
    assert (combined.value, combined.used) == (1.005, (0, 1))
    assert combined.disturbed == "load 3.2 on 2 cores"  # it may do better than that


def test_two_quiet_workers_are_enough_where_a_busy_one_agrees() -> None:
    combined = combine_attempts(attempts([1.0, 1.01, 1.02], busy=[0]))
    assert (combined.disturbed, combined.used) == (None, (1, 2))


def test_one_that_is_ahead_of_all_others_is_no_value_and_leaves_a_doubt() -> None:
    combined = combine_attempts(attempts([1.0, 2.0, 2.01, 2.02]))
    assert combined.used == (1, 2, 3)
    assert combined.disturbed == "one worker took 50 % less time than all others"
    assert combined.reached == 2.0 * 1.01


def test_what_two_reached_is_not_less_for_a_third_that_is_slower() -> None:
    combined = combine_attempts(attempts([1.0, 1.01, 1.04]))
    assert combined.used == (0, 1, 2)
    assert (combined.reached, combined.interval.high) == (1.01 * 1.01, 1.04 * 1.01)


def test_three_that_only_overlap_in_pairs_rest_on_the_pair() -> None:
    combined = combine_attempts(attempts([1.00, 1.04, 1.08]))
    assert combined.disturbed is None
    assert combined.used == (0, 1)  # 1.04 is within reach of both; the faster pair is taken


def test_one_worker_is_not_enough() -> None:
    combined = combine_attempts(attempts([1.0]))
    assert combined.disturbed == "only 1 of 2 workers measured it"
    assert combined.reached is None
    assert combine_attempts(attempts([1.0]), required=1).disturbed is None
    assert combine_attempts(attempts([1.0]), required=1).reached == 1.01


def test_no_attempt_is_no_point() -> None:
    with pytest.raises(ValueError, match="no attempt"):
        combine_attempts([])


def test_where_a_cache_may_answer_the_majority_of_quiet_workers_counts() -> None:
    fast = attempts([1.0, 2.0, 2.01, 1.01, 2.02])
    combined = combine_attempts(fast, two_sided=True)
    assert (combined.disturbed, combined.used) == (None, (1, 2, 4))
    assert combined.reached == 2.01 * 1.01
    combined = combine_attempts(fast[:4], two_sided=True)
    assert combined.disturbed == "4 workers disagree by 50 %"
    assert combined.used == (0, 1, 2, 3)
    assert combined.reached is None
    combined = combine_attempts(attempts([1.0, 1.0, 3.0], busy=[0, 1]), two_sided=True)
    assert combined.disturbed == "load 3.2 on 2 cores"
    assert combine_attempts(attempts([1.0, 1.0, 3, 3], busy=[0, 1]), two_sided=True).value == 3.0


@given(
    st.lists(st.tuples(st.floats(1e-6, 1e3), st.booleans()), min_size=1, max_size=7), st.booleans()
)
def test_a_value_lies_in_its_interval_and_rests_on_who_it_names(
    workers: list[tuple[float, bool]], two_sided: bool
) -> None:
    given_attempts = attempts(
        [value for value, _ in workers],
        [index for index, (_, is_busy) in enumerate(workers) if is_busy],
    )
    combined = combine_attempts(given_attempts, two_sided=two_sided)
    assert combined.interval.low <= combined.value <= combined.interval.high
    assert combined.value == statistics.median(workers[index][0] for index in combined.used)
    if not two_sided and len(workers) > 1:  # no slower than what two workers showed
        assert combined.reached is not None
        assert combined.value <= sorted(value for value, _ in workers)[-1]
        assert sum(value * 1.01 <= combined.reached for value, _ in workers) >= 2
    if combined.disturbed is None:
        values = [workers[index][0] for index in combined.used]
        assert min(values) >= max(values) * (1.0 - AGREEMENT) * (1.0 - 1e-12)
        assert not any(workers[index][1] for index in combined.used)


# ---------------------------------------------------------------- two runs


def test_a_ratio_is_of_new_over_old_in_any_unit() -> None:
    slow, fast = [1.0, 1.01], [2.0, 2.02]
    comparison = compare(slow, fast)
    assert comparison.ratio == pytest.approx(2.0)
    assert comparison.interval.low < 2.0 < comparison.interval.high
    other_unit = compare([value * 1e9 for value in slow], [value * 1e9 for value in fast])
    assert other_unit.ratio == pytest.approx(2.0)
    assert other_unit.p_value == pytest.approx(comparison.p_value)
    back = compare(fast, slow)
    assert back.ratio == pytest.approx(0.5)
    assert back.p_value == pytest.approx(comparison.p_value)


def test_without_a_prior_it_is_students_t() -> None:
    rng = np.random.default_rng(3)
    for _ in range(20):
        old, new = rng.lognormal(0.0, 0.05, 3), rng.lognormal(0.2, 0.05, 4)
        ours = compare(old.tolist(), new.tolist())
        theirs = ttest_ind(np.log(new), np.log(old)).confidence_interval(0.95)
        assert ours.interval.low == pytest.approx(math.exp(theirs.low))
        assert ours.interval.high == pytest.approx(math.exp(theirs.high))
        shifted = ttest_ind(np.log(new) - math.log1p(SMALLEST_CHANGE), np.log(old))
        if ours.ratio > 1.0 + SMALLEST_CHANGE:
            assert ours.p_value == pytest.approx(shifted.pvalue)


@pytest.mark.parametrize(
    ("old", "new"), [([1.0], [1.0, 1.0]), ([1.0, 1.0], [1.0]), ([1.0, 0.0], [1.0, 1.0])]
)
def test_one_worker_a_side_or_no_time_is_no_comparison(old: list[float], new: list[float]) -> None:
    with pytest.raises(ValueError, match="two positive values"):
        compare(old, new)


def verdict(old: list[float], new: list[float], *, higher_is_better: bool = True) -> Change:
    comparison = compare(old, new)
    return judge_change(comparison, comparison.p_value, higher_is_better=higher_is_better)


@pytest.mark.parametrize(
    ("new", "rate", "time"),
    [
        ([1.3, 1.301], Change.BETTER, Change.WORSE),
        ([0.7, 0.701], Change.WORSE, Change.BETTER),
        ([1.0, 1.0005], Change.SAME, Change.SAME),
        ([1.3, 0.9], Change.CANNOT_TELL, Change.CANNOT_TELL),
        ([1.008, 1.009], Change.CANNOT_TELL, Change.CANNOT_TELL),
    ],
)
def test_better_or_worse_depends_on_what_is_wanted(
    new: list[float], rate: Change, time: Change
) -> None:
    old = [1.0, 1.001]
    assert verdict(old, new) is rate
    assert verdict(old, new, higher_is_better=False) is time


def test_two_noisy_workers_cannot_tell_ten_per_cent() -> None:
    comparison = compare([1.0, 1.05], [0.9, 0.945])
    assert judge_change(comparison, comparison.p_value, higher_is_better=True) is Change.CANNOT_TELL
    assert smallest_visible(comparison) > 0.15


def test_equal_clocks_are_not_taken_for_perfect_knowledge() -> None:
    assert verdict([1.0, 1.0], [1.0, 1.0]) is Change.SAME
    assert verdict([1.0, 1.0], [1.012, 1.012]) is Change.CANNOT_TELL
    assert smallest_visible(compare([1.0, 1.0], [1.0, 1.0])) > SMALLEST_CHANGE


@given(st.floats(0.0, 0.06), st.floats(0.001, 0.3))
def test_the_smallest_visible_change_is_where_the_verdict_turns(
    spread: float, level: float
) -> None:
    old = [math.exp(-spread), math.exp(spread)]
    reach = smallest_visible(compare(old, old), level)
    for factor, is_seen in ((1.0001, True), (0.9999, False)):
        shift = 1.0 + reach * factor
        assert (compare(old, [value * shift for value in old]).p_value <= level) is is_seen


def test_an_adjustment_for_many_is_benjamini_and_hochbergs() -> None:
    rng = np.random.default_rng(4)
    for count in (1, 2, 7, 60):
        p_values = rng.uniform(0.0, 1.0, count) ** 3
        ours = adjust_for_many(p_values.tolist())
        assert ours == pytest.approx(false_discovery_control(p_values).tolist())
    assert adjust_for_many([]) == ()


def _calls(
    sds: np.ndarray, effect: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Which of many points are called changed, and which could be judged, as a run would."""
    logs = rng.normal(0.0, 1.0, (2, 2, len(sds))) * sds
    logs[1] += effect
    sides = [
        (np.exp(logs[0, :, i]).tolist(), np.exp(logs[1, :, i]).tolist()) for i in range(len(sds))
    ]
    agree = (np.abs(logs[:, 0] - logs[:, 1]) < -math.log(1.0 - AGREEMENT)).all(axis=0)
    scatter = shared_scatter(sides)
    found = [compare(*sides[i], scatter).p_value for i in np.flatnonzero(agree)]
    called = np.zeros(len(sds), dtype=bool)
    called[np.flatnonzero(agree)] = np.array(adjust_for_many(found)) <= 0.05
    return called, agree


@pytest.mark.parametrize("sd", [0.004, 0.02, 0.05, None], ids=["0.4 %", "2 %", "5 %", "mixed"])
def test_false_calls_stay_rare_though_only_points_that_agree_are_judged(sd: float | None) -> None:
    rng = np.random.default_rng(7)
    trials, false_shares, any_false, found, real = 120, [], 0, 0, 0
    for _ in range(trials):
        sds = np.full(40, sd) if sd else np.exp(rng.uniform(math.log(2e-3), math.log(0.05), 40))
        called, _ = _calls(sds, np.zeros(40), rng)
        any_false += called.any()
        effect = np.where(np.arange(40) < 8, -0.12, 0.0)
        called, agree = _calls(sds, effect, rng)
        false_shares.append(called[8:].sum() / max(called.sum(), 1))
        found += called[:8].sum()
        real += agree[:8].sum()
    noise = 3.0 * math.sqrt(0.05 * 0.95 / trials)
    assert any_false / trials < 0.05 + noise  # nothing changed: almost never a call
    assert statistics.fmean(false_shares) < 0.05 + noise
    if sd is None or sd <= 0.02:
        assert found / real > 0.8  # and a change of 12 % is still seen


# ---------------------------------------------------------------- launch-bound rows


def test_times_that_do_not_grow_are_launch_bound() -> None:
    flat = {2: 6.305, 4: 6.22, 8: 6.30, 16: 6.30, 32: 6.36, 64: 6.33, 128: 12.4}
    assert launch_bound(flat) == (2, 64)
    assert launch_bound({4: 2.90, 8: 2.92, 16: 2.97, 32: 5.3, 64: 9.8}) == (4, 16)


@pytest.mark.parametrize(
    "times",
    [
        {2: 0.47, 4: 0.59, 8: 0.97, 16: 1.37, 32: 2.6},  # grows, though less than the batch
        {2: 6.3, 4: 6.3, 8: 7.2, 16: 12.0},  # two points are no row
        {2: 6.3, 3: 6.3, 4: 6.3},  # the work only doubled
        {2: 6.3, 64: 6.3},
        {1: 0.0, 2: 0.0, 4: 0.0},
        {},
    ],
)
def test_times_that_grow_are_not(times: dict[int, float]) -> None:
    assert launch_bound(times) is None
