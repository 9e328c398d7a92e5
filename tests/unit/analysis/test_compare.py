"""Two runs: what is joined, what is judged, what is said of the rest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from compared_runs import AMOUNT, changes, matmul, near, point, reasons, run, show
from trainrig.analysis.compare import Pair, compare_runs, differences
from trainrig.analysis.run_to_run import margins_for
from trainrig.record import Derivation, RunView, Status
from trainrig.report.compare_report import comparison_document, headline
from trainrig.report.render.markdown import to_markdown
from trainrig.stats import Change

# ---------------------------------------------------------------- what is judged


def test_better_worse_same_and_cannot_tell() -> None:
    old = run(*(point(matmul(size), near(1e14, size)) for size in range(20)))
    rates = {3: 0.9e14, 5: 1.2e14}
    new = run(*(point(matmul(size), near(rates.get(size, 1e14), 99 + size)) for size in range(20)))
    comparison = compare_runs(old, new)
    found = changes(comparison)
    assert (found[3, 0], found[5, 0]) == (Change.WORSE, Change.BETTER)
    assert comparison.is_worse
    assert comparison.count(Change.WORSE) == comparison.count(Change.BETTER) == 1
    assert comparison.count(Change.SAME) > 10  # 0.2 % of scatter is enough to say so
    # Worse first, then better, whatever the size of the change.
    assert [each.change for each in comparison.judged[:2]] == [Change.WORSE, Change.BETTER]
    worst = comparison.judged[0]
    assert worst.comparison.ratio == pytest.approx(0.9, rel=0.01)
    assert worst.smallest_visible < 0.07
    assert not compare_runs(new, new).is_worse


def test_two_noisy_workers_cannot_tell_a_small_change() -> None:
    old = run(*(point(matmul(size), near(1e14, size, 0.02)) for size in range(20)))
    rates = {3: 0.99e14}
    new = run(
        *(point(matmul(size), near(rates.get(size, 1e14), size + 50, 0.02)) for size in range(20))
    )
    comparison = compare_runs(old, new)
    assert set(changes(comparison).values()) == {Change.CANNOT_TELL}
    assert not comparison.is_worse
    assert all(each.smallest_visible > 0.04 for each in comparison.judged)


def test_a_shorter_time_is_better() -> None:
    old = run(point(matmul(1), (1e14, 1.001e14), metrics=["time"]))
    new = run(point(matmul(1), (2e14, 2.001e14), metrics=["time"]))
    (judged,) = compare_runs(old, new).judged
    assert judged.change is Change.BETTER
    assert judged.comparison.ratio == pytest.approx(0.5, rel=0.01)
    assert judged.gain == pytest.approx(2.0, rel=0.01)


def test_two_metrics_of_the_same_times_are_one_comparison() -> None:
    both = ["byte_rate", "flop_rate"]
    old = run(point(matmul(1), near(1e12, 1), metrics=both))
    new = run(point(matmul(1), near(1e12, 2), metrics=both))
    (judged,) = compare_runs(old, new).judged
    assert judged.pair.record.metric == "byte_rate"


def test_the_values_are_those_of_the_workers_that_the_point_names() -> None:
    """A third worker that was outvoted is not in the ratio."""
    outvoted = point(matmul(1), (5e13,))[0].replace(attempt=3)
    old = run(point(matmul(1), (1e14, 1.001e14)), [outvoted])
    new = run(point(matmul(1), (1e14, 1.001e14)))
    (judged,) = compare_runs(old, new).judged
    assert judged.comparison.ratio == pytest.approx(1.0)


def test_points_whose_workers_disagreed_make_the_others_less_sure() -> None:
    """Never judged, but to leave them out would make the rest look better known than it is."""

    def whole(seed: int, *, noisy: bool) -> RunView:
        quiet = [point(matmul(size), near(1e14, seed + size, 0.004)) for size in range(10)]
        wild = [
            point(matmul(100 + size), (1e14, 1.1e14), disturbed="2 workers disagree by 9 %")
            for size in range(10)
        ]
        return run(*quiet, *(wild if noisy else []))

    calm = compare_runs(whole(0, noisy=False), whole(50, noisy=False))
    rough = compare_runs(whole(0, noisy=True), whole(50, noisy=True))
    assert len(calm.judged) == len(rough.judged) == 10
    sure = {each.pair.record.case["m"]: each.smallest_visible for each in calm.judged}
    assert all(each.smallest_visible > sure[each.pair.record.case["m"]] for each in rough.judged)


def test_workers_that_were_outvoted_make_the_others_less_sure() -> None:
    def whole(seed: int, *, third: bool) -> RunView:
        own = [point(matmul(size), near(1e14, seed + size, 0.004)) for size in range(10)]
        odd = [
            [records[0].replace(id=f"{seed}o{size}", value=AMOUNT / 0.9e14, attempt=3)]
            for size, records in enumerate(own)
        ]
        return run(*own, *(odd if third else []))

    calm = compare_runs(whole(0, third=False), whole(50, third=False))
    split = compare_runs(whole(0, third=True), whole(50, third=True))
    sure = {each.pair.record.case["m"]: each.smallest_visible for each in calm.judged}
    assert all(each.smallest_visible > sure[each.pair.record.case["m"]] for each in split.judged)


def test_attempts_of_a_search_and_on_a_busy_machine_say_nothing_of_the_scatter() -> None:
    def whole(seed: int, *, more: bool) -> RunView:
        own = [point(matmul(size), near(1e14, seed + size, 0.004)) for size in range(10)]
        extra = [
            [
                records[0].replace(id=f"{seed}s{size}", value=9.0, conditions={"search": 1}),
                records[0].replace(id=f"{seed}b{size}", value=9.0, disturbed="load 9"),
            ]
            for size, records in enumerate(own)
        ]
        return run(*own, *(extra if more else []))

    plain = compare_runs(whole(0, more=False), whole(50, more=False))
    again = compare_runs(whole(0, more=True), whole(50, more=True))
    assert [each.comparison for each in plain.judged] == [each.comparison for each in again.judged]


# ---------------------------------------------------------------- which cards meet


def test_one_card_of_eight_that_got_slower_is_seen() -> None:
    def whole(seed: int, slow: float) -> RunView:
        return run(
            *(
                point(
                    matmul(size),
                    near(1e14 * (slow if index == 3 else 1.0), seed * 999 + size * 8 + index),
                    device_index=index,
                )
                for size in range(6)
                for index in range(8)
            )
        )

    found = changes(compare_runs(whole(1, 1.0), whole(2, 0.95)))
    worse = {place for place, change in found.items() if change is Change.WORSE}
    assert worse == {(size, 3) for size in range(6)}
    assert len(found) == 48


def test_a_single_card_meets_itself_in_another_slot() -> None:
    old = run(point(matmul(1), near(1e14, 1), device_index=0))
    new = run(point(matmul(1), near(1e14, 2), device_index=5))
    assert len(compare_runs(old, new).judged) == 1


def test_a_card_that_is_gone_is_said() -> None:
    old = run(*(point(matmul(1), near(1e14, index), device_index=index) for index in (0, 1)))
    new = run(point(matmul(1), near(1e14, 2), device_index=0))
    comparison = compare_runs(old, new)
    # The one card left may be either of the two: the number tells.
    assert [each.pair.record.device_index for each in comparison.judged] == [0]
    assert reasons(comparison) == ["only in the old run"]


def test_cards_with_other_numbers_do_not_meet_where_there_were_several() -> None:
    old = run(*(point(matmul(1), near(1e14, index), device_index=index) for index in (0, 1)))
    new = run(point(matmul(1), near(1e14, 2), device_index=2))
    comparison = compare_runs(old, new)
    assert (comparison.judged, comparison.side_by_side) == ((), ())
    assert len(comparison.unjudged) == 3


def test_alone_and_all_at_once_do_not_meet() -> None:
    old = run(point(matmul(1), near(1e14, 1), device_count=1))
    new = run(point(matmul(1), near(1e14, 2), device_count=2))
    comparison = compare_runs(old, new)
    assert comparison.judged == ()
    assert reasons(comparison) == ["only in the new run", "only in the old run"]


# ---------------------------------------------------------------- what is never judged


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ({"disturbed": "load 3.2 on 2 cores"}, "new: noisy: load 3.2 on 2 cores"),
        ({"status": Status.OOM, "value": None, "reason": "24 GiB"}, "new: oom: 24 GiB"),
        ({"status": Status.SKIPPED, "value": None}, "new: skipped: no reason given"),
        ({"derived": None}, "new: 0 workers' values in the run, 2 are needed"),
        (
            {"derived": Derivation(ids=("gone", "lost"), formula="f")},
            "new: 0 workers' values in the run, 2 are needed",
        ),
    ],
)
def test_a_bad_point_is_listed_with_its_reason(fault: Mapping[str, Any], reason: str) -> None:
    good, bad = point(matmul(1), near(1e14, 1)), point(matmul(1), near(5e13, 2))
    bad[-1] = bad[-1].replace(**fault)
    comparison = compare_runs(run(good), run(bad))
    assert (comparison.judged, reasons(comparison)) == ((), [reason])
    assert not comparison.is_worse
    turned = compare_runs(run(bad), run(good))
    assert reasons(turned) == [reason.replace("new:", "old:", 1)]


@pytest.mark.parametrize("time", [5e-324, 1e-16, 1e13, 1.7e308, -1.0, 0.0])
def test_a_time_that_no_call_takes_is_no_worker(time: float) -> None:
    absurd = [record.replace(value=time) for record in point(matmul(1), near(1e14, 1))]
    comparison = compare_runs(run(absurd), run(point(matmul(1), near(1e14, 2))))
    assert reasons(comparison) == ["old: 0 workers' values in the run, 2 are needed"]
    show(comparison)


def test_values_too_far_apart_for_a_ratio_have_none() -> None:
    one, other = point(matmul(1), near(1e14, 1)), point(matmul(1), near(1e14, 2), device="H200")
    tiny, huge = one[-1].replace(value=1e-300), other[-1].replace(value=1e300)
    assert Pair(old=tiny, new=huge).ratio is None
    show(compare_runs(run([*one[:2], tiny]), run([*other[:2], huge])))


def test_one_worker_is_not_enough() -> None:
    one = point(matmul(1), (1e14,))
    two = point(matmul(1), near(1e14, 1))
    assert reasons(compare_runs(run(two), run(one))) == [
        "new: 1 workers' values in the run, 2 are needed"
    ]


def test_a_case_that_failed_is_listed_once_though_it_has_two_metrics() -> None:
    both = ["byte_rate", "flop_rate"]
    good = point(matmul(1), near(1e14, 1), metrics=both)
    bad = good[:2] + [good[2].replace(status=Status.FAILED, value=None, reason="wrong answer")]
    assert reasons(compare_runs(run(good), run(bad))) == ["new: failed: wrong answer"]


def test_versions_of_a_benchmark_are_never_compared() -> None:
    old = run(point(matmul(1), near(1e14, 1)))
    new = run(point(matmul(1), near(5e13, 2), version=2))
    comparison = compare_runs(old, new)
    assert (comparison.judged, comparison.side_by_side) == ((), ())
    assert set(reasons(comparison)) == {
        "version 1 and 2 of the benchmark: different versions are never compared"
    }


def test_a_repeated_point_counts_once_with_its_last_value() -> None:
    busy = point(matmul(1), (3e13, 9e13), disturbed="load 4")
    calm = point(matmul(1), near(1e14, 1))
    comparison = compare_runs(run(busy, calm), run(point(matmul(1), near(1e14, 2))))
    assert len(comparison.judged) == 1
    assert comparison.unjudged == ()


def test_different_device_models_stand_side_by_side_unjudged() -> None:
    host = {"device": "EPYC 7B12", "device_index": None}
    old = run(
        *(point(matmul(1), near(1e14, index), device_index=index) for index in range(2)),
        point(matmul(1), near(1e11, 3), **host),
    )
    new = run(
        point(matmul(1), near(3e14, 4), device="H200"), point(matmul(1), near(1e11, 5), **host)
    )
    comparison = compare_runs(old, new)
    assert [each.pair.record.device for each in comparison.judged] == ["EPYC 7B12"]
    ((pair),) = comparison.side_by_side
    assert pair.old is not None
    assert (pair.old.device, pair.old.device_index, pair.record.device) == ("RTX 4090", 0, "H200")
    assert pair.ratio == pytest.approx(3.0, rel=0.02)
    assert not comparison.is_worse
    assert "measured devices" in [each.what for each in comparison.differences]


def test_a_cut_off_run_and_an_empty_one_compare_to_nothing() -> None:
    empty, some = RunView(name="empty"), run(point(matmul(1), near(1e14, 1)))
    for old, new in ((empty, empty), (some, empty), (empty, some)):
        comparison = compare_runs(old, new)
        assert comparison.judged == ()
        assert headline(comparison).startswith("nothing was compared")
        assert not comparison.has_compared
        show(comparison)


# ---------------------------------------------------------------- what is unlike

MACHINE = {
    "host": {"hostname": "a", "kernel": "6.1", "os": {"missing": "no os-release"}},
    "cpu": {"model": "EPYC", "quota_cpus": None},
    "memory": {"total_bytes": 64 * 2**30},
    "software": {
        "torch": "2.13.0",
        "torch_cuda": None,
        "nvidia_driver": "580.1",
        "packages": {"torch": "2.13.0", "triton": "3.1"},
        "environment": {"OMP_NUM_THREADS": "2"},
    },
    "gpus": [
        {"name": "RTX 4090", "power_limit_w": 450.0, "ecc": False},
        {"name": "RTX 4090", "power_limit_w": 450.0, "ecc": {"missing": "no"}},
    ],
}


def unlike(change: Mapping[str, Any], **config: Any) -> dict[str, tuple[str, str]]:
    def merged(old: Any, new: Any) -> Any:
        if not isinstance(old, Mapping) or not isinstance(new, Mapping) or "missing" in new:
            return new
        return {**old, **{name: merged(old.get(name), value) for name, value in new.items()}}

    old = RunView(name="old", machine=MACHINE, config={"trainrig": "0.1.0", "budget_s": 60.0})
    new = RunView(name="new", machine=merged(MACHINE, change), config={**old.config, **config})
    return {each.what: (each.old, each.new) for each in differences(old, new)}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, {}),
        ({"host": {"hostname": "b"}}, {"host": ("a", "b")}),
        ({"host": {"kernel": {"missing": "?"}}}, {}),  # unknown is no difference
        ({"host": {"os": "Debian 12"}}, {}),
        ({"cpu": {"quota_cpus": 2.0}}, {"CPU quota": ("none", "2.0")}),
        ({"memory": {"total_bytes": 2**30}}, {"memory": ("64.0 GiB", "1.0 GiB")}),
        ({"software": {"torch": "2.12.0"}}, {"torch": ("2.13.0", "2.12.0")}),
        ({"software": {"torch_cuda": "13.0"}}, {"torch's CUDA": ("none", "13.0")}),
        ({"software": {"nvidia_driver": "590.2"}}, {"driver": ("580.1", "590.2")}),
        ({"software": {"packages": {"triton": "3.2"}}}, {"package triton": ("3.1", "3.2")}),
        (
            {"software": {"environment": {"NVIDIA_TF32_OVERRIDE": "0"}}},
            {"variable NVIDIA_TF32_OVERRIDE": ("none", "0")},
        ),
        ({"gpus": MACHINE["gpus"][:1]}, {"number of GPUs": ("2", "1")}),
        (
            {"gpus": [{**MACHINE["gpus"][0], "power_limit_w": 300.0, "ecc": True}] * 2},
            {"power limit": ("450 W", "300 W"), "ECC": ("off", "on")},
        ),
        ({"gpus": {"missing": "no driver"}}, {}),
        ({"gpus": [3, [4]], "software": 5, "cpu": [], "host": {"hostname": [1]}}, ...),
    ],
)
def test_what_is_unlike_is_said_with_both_values(change: Any, expected: Any) -> None:
    found = unlike(change)
    assert expected is ... or found == expected


def test_the_program_and_its_budget_are_part_of_it() -> None:
    assert unlike({}, trainrig="0.2.0", budget_s=240.0) == {
        "trainrig": ("0.1.0", "0.2.0"),
        "budget": ("1 min", "4 min"),
    }


def test_a_digest_that_nothing_explains_is_shown_itself() -> None:
    old = run(point(matmul(1), near(1e14, 1), environment="aaaa"))
    new = run(point(matmul(1), near(1e14, 2), environment="bbbb"))
    (only,) = differences(old, new)
    assert (only.what, only.old, only.new) == ("environment digest", "aaaa", "bbbb")


# ---------------------------------------------------------------- what runs differ by anyway


def night(number: int, factor: float = 1.0, machine: str = "one") -> RunView:
    points = (point(matmul(size), near(1e14 * factor, 100 * number + size)) for size in range(6))
    name = f"2026-01-{number:02d}"
    return run(*points, name=name, machine={"host": {"machine": machine}})


def called(old: RunView, new: RunView, earlier: Sequence[RunView]) -> set[Change]:
    return set(changes(compare_runs(old, new, earlier)).values())


def test_a_lasting_regression_stays_seen_though_its_own_runs_are_known() -> None:
    golden = night(1)
    slow = [night(number, 0.7) for number in range(2, 8)]
    for number, new in enumerate(slow):
        assert called(golden, new, [golden, *slow[:number]]) == {Change.WORSE}
    good = [night(number) for number in range(1, 12)]
    bad = [night(number, 0.7) for number in range(12, 16)]
    for number, new in enumerate(bad):
        assert called(good[-1], new, [*good, *bad[:number]]) == {Change.WORSE}


def test_a_step_before_the_baseline_does_not_widen_the_margin() -> None:
    for place in range(1, 4):
        before = [night(number, 1.0 if number <= place else 0.7) for number in range(1, 5)]
        (first, *_) = compare_runs(before[-1], night(5, 0.6), before).judged
        assert (first.change, first.margin.runs) == (Change.WORSE, 4)
        assert first.margin.value < 0.05


def test_runs_of_another_machine_teach_nothing() -> None:
    own = [night(number) for number in range(1, 4)]
    other = night(4, 1.3, "two")
    strangers = [night(number, 1.0 + 0.2 * (number % 2), "two") for number in range(5, 9)]
    (first, *_) = compare_runs(other, night(9), [*own, *strangers]).judged
    assert (first.change, first.margin.runs) == (Change.WORSE, 0), "three of its own are too few"


# ---------------------------------------------------------------- a card and its siblings


@pytest.mark.parametrize(
    ("others", "one", "is_worse"),
    [
        (1.05, 1.005, True),  # the laggard of a change for the better
        (0.96, 0.998, False),  # ahead of the others: no change of its own
        (1.0, 0.96, True),
        (1.0, 1.04, False),
    ],
)
@pytest.mark.parametrize("metric", ["flop_rate", "time"])
def test_behind_its_siblings_is_worse_and_ahead_of_them_is_no_change(
    others: float, one: float, is_worse: bool, metric: str
) -> None:
    def whole(seed: int, *, is_new: bool) -> RunView:
        return run(
            *(
                point(
                    matmul(1),
                    near(
                        1e14 * (1.0 if not is_new else one if index == 3 else others), seed + index
                    ),
                    device_index=index,
                    metrics=(metric,),
                )
                for index in range(8)
            )
        )

    comparison = compare_runs(whole(100, is_new=False), whole(200, is_new=True))
    found = changes(comparison)
    moved = {place: c for place, c in found.items() if c in (Change.BETTER, Change.WORSE)}
    assert moved == ({(1, 3): Change.WORSE} if is_worse else {})
    shares = {case.pair.record.device_index: case.behind_siblings for case in comparison.judged}
    named = {index for index, share in shares.items() if share is not None}
    assert named == ({3} if is_worse else set())
    assert ("behind its siblings" in to_markdown(comparison_document(comparison))) == is_worse


# ---------------------------------------------------------------- the level of earlier runs

_SHIFTS = (0.98, 1.02, 0.99, 1.01, 1.0, 0.985, 1.015)


def test_a_baseline_that_was_slow_by_chance_makes_no_run_better() -> None:
    before = [night(number + 1, shift) for number, shift in enumerate((*_SHIFTS, 0.965))]
    usual = night(20)
    assert called(before[-1], usual, before) <= {Change.SAME, Change.CANNOT_TELL}
    assert called(before[-1], night(21, 0.9), before) == {Change.WORSE}


def test_the_first_run_after_a_change_is_a_level_of_its_own() -> None:
    before = [night(number + 1, shift) for number, shift in enumerate((*_SHIFTS, 1.4))]
    assert called(before[-1], night(20, 1.4), before) <= {Change.SAME, Change.CANNOT_TELL}
    assert called(before[-1], night(21), before) == {Change.WORSE}


def test_no_case_is_presumed_calmer_than_half_of_its_class() -> None:
    quiet, rough = matmul(1), matmul(2)
    cases = [
        (point(case, near(1e14, 1))[-1], [1.0 + share * (-1) ** number for number in range(6)])
        for case, share in ((quiet, 1e-5), (rough, 0.02), (matmul(3), 0.02))
    ]
    spreads = [margin.spread for margin in margins_for(cases)]
    assert spreads[0] == spreads[1] == pytest.approx(0.022, rel=0.05)


def test_cases_that_moved_alike_are_judged_by_their_mean() -> None:
    """Of many cases one is always far out; one that moved by itself is judged by itself."""
    old = run(*(point(matmul(size), near(1e14, size)) for size in range(40)))
    margin = 1.0 / 1.054  # within what two runs differ by, though some cases are beyond it
    new = run(*(point(matmul(size), near(1e14 * margin, 99 + size)) for size in range(40)))
    assert Change.WORSE not in changes(compare_runs(old, new)).values()
    rates = {7: 0.85e14}
    alone = run(*(point(matmul(n), near(rates.get(n, 1e14), 99 + n)) for n in range(40)))
    found = changes(compare_runs(old, alone))
    assert [place for place, change in found.items() if change is Change.WORSE] == [(7, 0)]
