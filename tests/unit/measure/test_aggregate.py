"""From replies to attempts to points: what settles, what is disturbed, what fails."""

from __future__ import annotations

from typing import Any

import pytest

from trainrig.benchmarks.spec import Ability, ability
from trainrig.measure.aggregate import (
    Subject,
    attempt_record,
    point_records,
    scatters,
    skipped_record,
)
from trainrig.process.worker import Reply, Request
from trainrig.record import Kind, Record, Status, from_json, to_json

SUBJECT = Subject(device="RTX 4090", index=1, count=2, environment="abc")
CASES: dict[str, dict[str, Any]] = {
    "matmul": {"dtype": "fp16", "m": 100, "k": 100, "n": 100, "cache": "hot"},
    "vector": {"op": "scale", "dtype": "fp32", "num_elements": 1000, "cache": "cold"},
    "copy": {"direction": "triad", "bytes": 8000, "memory": "host", "cache": "cold"},
}


def reply(seconds: float = 1e-3, **changes: Any) -> Reply:
    samples = tuple(seconds * (1.0 + 0.001 * i) for i in range(-5, 6))
    given = {"status": Status.OK, "samples": samples, "stop": "converged", "duration": 0.5}
    return Reply(**{**given, **changes})


def attempts(*replies: Reply, name: str = "matmul") -> list[Record]:
    request = Request(benchmark=name, case=CASES[name], settings={"max_time": 1.0}, timeout=9.0)
    return [attempt_record(request, r, SUBJECT, i) for i, r in enumerate(replies, start=1)]


def failed(reason: str, status: Status = Status.FAILED) -> Reply:
    return Reply(status=status, reason=reason, duration=0.1)


def test_an_attempt_keeps_its_samples() -> None:
    (record,) = attempts(reply(2e-3))
    assert (record.metric, record.unit, record.attempt) == ("time", "s", 1)
    assert record.value == pytest.approx(2e-3)
    assert record.interval is not None
    assert record.interval[0] <= record.value <= record.interval[1]
    assert record.confidence is not None
    assert record.confidence >= 0.95
    assert len(record.samples or ()) == 11
    assert (record.device, record.device_index, record.device_count) == ("RTX 4090", 1, 2)
    assert from_json(to_json(record)) == record


def test_two_quiet_workers_that_agree_settle_a_point() -> None:
    both = attempts(reply(1.00e-3), reply(1.02e-3))
    (point,) = point_records(both)
    assert point.disturbed is None
    assert point.kind is Kind.MEASURED
    assert point.is_point
    assert point.unit == "FLOP/s"
    assert point.value == pytest.approx(2e6 / 1.01e-3)
    assert point.interval is not None
    # Two that only know each other state no level: the hull of both workers' intervals, and the
    # longest time is the lowest rate.
    assert point.confidence is None
    assert point.interval[0] < 2e6 / 1.02e-3 < point.value < 2e6 / 1.00e-3 < point.interval[1]
    assert point.derived is not None
    assert point.derived.ids == tuple(record.id for record in both)
    assert point.duration == 1.0
    assert from_json(to_json(point)) == point


def test_every_metric_of_a_family_becomes_a_point() -> None:
    rates = point_records(attempts(reply(), reply(), name="vector"))
    assert [(p.metric, p.unit) for p in rates] == [("byte_rate", "B/s"), ("flop_rate", "FLOP/s")]
    assert rates[0].value == pytest.approx(8000 / 1e-3)
    assert rates[1].value == pytest.approx(1000 / 1e-3)
    (rate,) = point_records(attempts(reply(), reply(), name="copy"))
    assert rate.value == pytest.approx(24_000 / 1e-3)


def test_workers_that_disagree_are_not_judged() -> None:
    (point,) = point_records(attempts(reply(1e-3), reply(2e-3)))
    assert point.disturbed == "2 workers disagree by 50 %"
    assert point.status is Status.OK
    assert point.value is not None


def test_a_third_worker_settles_what_two_could_not() -> None:
    three = attempts(reply(1e-3), reply(200e-3), reply(1.01e-3))
    (point,) = point_records(three)
    assert point.disturbed is None
    assert point.derived is not None
    assert point.derived.ids == (three[0].id, three[2].id)


def test_a_busy_machine_is_said_however_well_workers_agree() -> None:
    busy = "a thread waited for a core 98 % of the time"
    (point,) = point_records(attempts(*[reply(8e-3, disturbed=busy)] * 5))
    assert point.disturbed == busy
    (point,) = point_records(attempts(reply(8e-3, disturbed=busy), reply(1e-3), reply(1e-3)))
    assert point.disturbed is None
    assert point.value == pytest.approx(2e6 / 1e-3)


def test_workers_of_a_class_share_how_far_they_scatter() -> None:
    cases = [attempts(reply(1e-3), reply(1e-3 * (1.0 + 0.002 * n))) for n in range(1, 7)]
    known = scatters(cases)
    (alone,), (shared,) = point_records(cases[0]), point_records(cases[0], known)
    assert alone.confidence is None
    assert shared.confidence == 0.95
    assert shared.interval is not None
    assert 0.002 < (shared.interval[1] - shared.interval[0]) / 2.0 / (shared.value or 1.0) < 0.02
    # Another size, another benchmark and another device are other classes.
    other = [r.replace(device="RTX 3090") for r in cases[0]]
    assert point_records(other, known)[0].confidence is None


def test_what_was_noisy_says_nothing_of_how_far_workers_scatter() -> None:
    busy = [attempts(reply(1e-3), reply(3e-3, disturbed="busy")) for _ in range(6)]
    assert scatters(busy) == {}


BAND = (2e6 / 1.1e-3, 2e6 / 0.9e-3)


@pytest.mark.parametrize(
    ("seconds", "busy", "found"),
    [
        ([1.0, 1.05], (), Ability.ABLE),
        ([1.0, 1.05, 9.0, 9.0], (0, 1), Ability.ABLE),  # what slowed them does not matter
        ([0.8, 1.05, 1.5], (), Ability.ABLE),  # they need not agree
        ([1.0, 1.2], (), Ability.UNDECIDED),  # one alone proves nothing
        ([1.2, 1.2], (), Ability.UNDECIDED),  # nor does one round
        ([1.2, 1.2, 1.2, 1.2], (), Ability.NOT_ABLE),
        ([1.2, 1.2, 1.2], (), Ability.UNDECIDED),
        ([1.2, 1.2, 1.2, 1.2], (0,), Ability.UNDECIDED),  # noise may have slowed them
        ([1.2, 1.2, 1.2, 1.2, 1.2], (0,), Ability.NOT_ABLE),
        ([1.0, 1.2, 1.2, 1.2, 1.2], (), Ability.UNDECIDED),  # one was faster
        ([1.11, 1.12, 1.13, 1.104], (), Ability.UNDECIDED),  # its interval reaches into the band
    ],
)
def test_noise_only_slows(seconds: list[float], busy: tuple[int, ...], found: Ability) -> None:
    replies = [
        reply(each * 1e-3, disturbed="busy" if place in busy else None)
        for place, each in enumerate(seconds)
    ]
    (point,) = point_records(attempts(*replies))
    assert ability(point, BAND) is found


def test_few_samples_prove_no_fault() -> None:
    few = Reply(status=Status.OK, samples=(1.2e-3, 1.2e-3), stop="time", duration=0.5)
    (point,) = point_records(attempts(few, few, few, few))
    assert ability(point, BAND) is Ability.UNDECIDED
    (point,) = point_records(attempts(few, few))
    assert ability(point, (2e6 / 1.3e-3, BAND[1])) is Ability.ABLE


def test_one_worker_is_not_enough() -> None:
    (point,) = point_records(attempts(reply()))
    assert point.disturbed == "only 1 of 2 workers measured it"
    (point,) = point_records(attempts(failed("the worker died with signal SIGSEGV"), reply()))
    assert point.disturbed == "only 1 of 2 workers measured it"


@pytest.mark.parametrize("first", [True, False])
def test_a_wrong_answer_in_one_attempt_fails_the_point(first: bool) -> None:
    wrong = failed("wrong answer after timing: 1 of 8 rows")
    order = [wrong, reply(), reply()] if first else [reply(), reply(), wrong]
    (point,) = point_records(attempts(*order))
    assert point.status is Status.FAILED
    assert point.value is None
    assert point.samples is None
    assert "wrong answer" in str(point.reason)
    assert from_json(to_json(point)) == point


@pytest.mark.parametrize("status", [Status.OOM, Status.TIMEOUT, Status.SKIPPED, Status.FAILED])
def test_without_a_good_attempt_the_last_reason_stands(status: Status) -> None:
    (point,) = point_records(attempts(failed("first"), failed("last", status)))
    assert (point.status, point.reason) == (status, "last")
    assert point.attempt is None
    assert point.metric == "flop_rate"


def test_a_point_that_ran_out_of_time_says_so() -> None:
    (point,) = point_records(attempts(reply(), reply(stop="time")))
    assert point.stop == "time"
    (point,) = point_records(attempts(reply(stop="time"), reply()))
    assert point.stop == "time"
    (point,) = point_records(attempts(reply(), reply()))
    assert point.stop == "converged"


def test_workers_that_converged_apart_make_no_converged_point() -> None:
    (point,) = point_records(attempts(reply(1.00e-3), reply(1.045e-3)))
    assert point.disturbed is None  # within what workers may differ by
    assert point.stop == "spread"
    (point,) = point_records(attempts(reply(1.00e-3), reply(1.02e-3)))
    assert point.stop == "converged"


def test_common_conditions_are_kept_and_numbers_are_their_median() -> None:
    one = reply(conditions={"threads": 2, "load_1m": 1.0, "clock": "host", "power_w": 90.0})
    two = reply(conditions={"threads": 2, "load_1m": 3.0, "clock": "other"})
    (point,) = point_records(attempts(one, two))
    assert point.conditions == {"threads": 2, "load_1m": 2.0}


def test_a_skipped_case_is_a_record() -> None:
    record = skipped_record("vector", CASES["vector"], SUBJECT, "would not fit the budget")
    assert (record.status, record.reason) == (Status.SKIPPED, "would not fit the budget")
    assert (record.metric, record.unit, record.value) == ("byte_rate", "B/s", None)
    assert from_json(to_json(record)) == record


def test_a_later_failure_does_not_hide_a_wrong_answer() -> None:
    wrong = failed("wrong answer after timing: 1 of 8 rows")
    (point,) = point_records(attempts(reply(), wrong, failed("the worker died")))
    assert point.is_wrong_answer
