"""Workers whose clocks are not the parent's, and classes that no target is known of."""

from __future__ import annotations

import pytest

from trainrig.analysis.judge import judge
from trainrig.analysis.watched_rules import watch_rules
from trainrig.record import PARENT_CLOCK, TOLD_SHARE, WORKER_CLOCK, Outcome, Record
from trainrig.selftest.judge_faults import healthy_records


def healthy() -> list[Record]:
    return list(healthy_records())


def with_conditions(records: list[Record], **conditions: float) -> list[Record]:
    """Those of one worker of the third card."""
    chosen = next(r for r in records if r.attempt == 2 and r.device_index == 3)
    return [
        r.replace(conditions={**r.conditions, **conditions}) if r is chosen else r for r in records
    ]


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_a_clock_that_is_off_decides_from_two_per_cent_on(sign: float) -> None:
    passed, apart = 400.0, watch_rules().clocks_apart * 400.0
    for factor, outcome in ((1.1, Outcome.INCOMPLETE), (0.9, Outcome.PASS)):
        told = passed + sign * (factor * apart + 0.3)
        clocks = {WORKER_CLOCK: told, PARENT_CLOCK: passed}
        verdict = judge(with_conditions(healthy(), **clocks))
        assert verdict.outcome is outcome
        assert ("clock-wrong" in {one.id for one in verdict.findings}) is (factor > 1.0)


def test_samples_that_do_not_fill_their_time_are_not_believed() -> None:
    apart = watch_rules().samples_apart
    short = judge(with_conditions(healthy(), **{TOLD_SHARE: 1.0 - 1.1 * apart}))
    assert short.outcome is Outcome.INCOMPLETE
    assert "#3" in short.reason
    whole = judge(with_conditions(healthy(), **{TOLD_SHARE: 1.0 - 0.9 * apart}))
    assert whole.outcome is Outcome.PASS
