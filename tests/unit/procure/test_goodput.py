"""The closed form of checkpoints and failures, against failures drawn and followed one by one."""

from __future__ import annotations

import pytest

from trainrig.errors import UsageError
from trainrig.procure.goodput import (
    Failures,
    daly_interval,
    goodput,
    simulate_goodput,
    young_interval,
)

CASES = [
    # a cluster that fails twice a day, once an hour, every ten minutes; a calm one
    Failures(mtbf_s=43_200, checkpoint_s=120, restart_s=600),
    Failures(mtbf_s=3_600, checkpoint_s=60, restart_s=120),
    Failures(mtbf_s=600, checkpoint_s=60, restart_s=120),
    Failures(mtbf_s=2e6, checkpoint_s=300, restart_s=900),
]


@pytest.mark.parametrize("failures", CASES, ids=lambda one: f"{one.mtbf_s:g}s")
@pytest.mark.parametrize("times", [0.3, 1.0, 3.0])
def test_simulation_and_formula_agree_within_2_per_cent(failures: Failures, times: float) -> None:
    interval = times * daly_interval(failures)
    simulated = simulate_goodput(failures, interval)
    assert simulated == pytest.approx(goodput(failures, interval), rel=0.02)


@pytest.mark.parametrize("failures", CASES, ids=lambda one: f"{one.mtbf_s:g}s")
def test_the_simulation_knows_no_better_interval_than_daly_s(failures: Failures) -> None:
    best = daly_interval(failures)
    there = simulate_goodput(failures, best)
    for times in (0.25, 0.5, 2.0, 4.0):
        assert simulate_goodput(failures, times * best) < there * 1.003


def test_a_wrong_formula_would_be_seen() -> None:
    """Without the restart, or with Young's expectation, the simulation disagrees."""
    failures = CASES[2]
    best = daly_interval(failures)
    without = goodput(Failures(mtbf_s=600, checkpoint_s=60), best)
    assert without != pytest.approx(simulate_goodput(failures, best), rel=0.02)


def test_daly_and_young_meet_where_failures_are_rare() -> None:
    rare = Failures(mtbf_s=1e8, checkpoint_s=60)
    assert daly_interval(rare) == pytest.approx(young_interval(rare), rel=0.01)
    assert daly_interval(Failures(mtbf_s=10, checkpoint_s=60)) == 10


@pytest.mark.parametrize("bad", [(0, 60, 0), (100, 0, 0), (100, 60, -1), (float("inf"), 60, 0)])
def test_times_that_cannot_be_are_refused(bad) -> None:
    mtbf, saving, restart = bad
    with pytest.raises(UsageError):
        Failures(mtbf_s=mtbf, checkpoint_s=saving, restart_s=restart).check()
