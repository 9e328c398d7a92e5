"""Expectations: which grounds win, and that small or unlike cases are no grounds."""

from __future__ import annotations

import pytest

from runner_fakes import planned, point
from trainrig.catalog.lookup import find_chip
from trainrig.predict.expected import Published, ceiling, expect, gpu_claims, of_device
from trainrig.record import Kind, Limit, Record, Status

LIMIT = Limit(value=165.2e12, source="RTX 4090 data sheet, fp16 dense, fp32 accumulation")


def wanted(size=8192, **changes):
    return planned(point(1.0, size=size), 0, 0, value=None, interval=None, **changes)


def published(value, device, size=8192, claim=None):
    record = point(value, device=device, index=None, size=size, kind=Kind.BASELINE)
    return Published(record=record, limit=None if claim is None else Limit(value=claim, source="x"))


def runs(*values, size=8192, **changes):
    """One point of each of several earlier runs."""
    return [point(v, size=size, run=f"run-{n}", **changes) for n, v in enumerate(values)]


def test_history_wins_over_everything():
    history = runs(170e12, 171e12, 172e12)
    found = expect(wanted(), LIMIT, history, [published(160e12, "RTX 4090")])
    assert found.value == 171e12
    assert found.source == "3 earlier runs on this machine"
    assert found.interval == pytest.approx((170e12 * 0.92, 172e12 * 1.08))


def test_a_machine_does_not_become_right_by_being_slow_three_times():
    found = expect(wanted(), LIMIT, runs(70e12, 70e12, 70e12), [published(160e12, "RTX 4090")])
    assert found.source == "published for RTX 4090, n = 1"
    assert found.interval is not None
    assert found.interval[0] > 130e12


@pytest.mark.parametrize(
    "history",
    [
        runs(170e12, 170e12),
        runs(170e12, 170e12, 170e12, disturbed="busy"),
        runs(170e12, 170e12, 170e12, size=4096),
        runs(170e12, 170e12, 170e12, version=2),
        runs(170e12, 170e12, 170e12, device="RTX 3090"),
        [point(170e12, size=8192, index=card, run="one") for card in range(8)],
    ],
    ids=["too few", "disturbed", "other case", "other version", "other device", "one run"],
)
def test_what_does_not_count_as_history(history):
    assert expect(wanted(), None, history, []).status is Status.MISSING


def test_published_for_the_same_device_gives_their_range():
    rows = [published(value, "RTX 4090") for value in (161e12, 169e12, 172e12)]
    found = expect(wanted(), LIMIT, [], rows)
    assert found.source == "published for RTX 4090, n = 3"
    assert found.interval == pytest.approx((161e12 * 0.92, 172e12 * 1.08))


def test_otherwise_the_claim_is_derated_by_what_others_reach():
    others = {"A": 0.7, "B": 0.8, "C": 0.9}
    rows = [published(share * 100e12, name, claim=100e12) for name, share in others.items()]
    found = expect(wanted(), LIMIT, [], rows)
    assert found.value == pytest.approx(0.8 * LIMIT.value)
    assert "median of 3 published devices" in (found.source or "")
    assert found.interval is not None
    assert found.interval[0] == pytest.approx(0.72 * 0.92 * LIMIT.value)


def test_many_rows_of_one_device_count_once():
    rows = [published(70e12 + n, "A", claim=100e12) for n in range(50)]
    assert expect(wanted(), LIMIT, [], rows).status is Status.MISSING


def test_small_cases_have_no_target_from_other_devices():
    rows = [published(50e12, name, size=128, claim=100e12) for name in "ABCD"]
    assert expect(wanted(size=128), LIMIT, [], rows).status is Status.MISSING


def test_a_small_case_has_no_target_even_where_it_was_published():
    rows = [published(1.1e12, "RTX 4090", size=128), published(160e12, "RTX 4090", size=8192)]
    assert expect(wanted(size=128), LIMIT, [], rows).status is Status.MISSING


def test_a_medium_size_is_not_held_to_what_large_ones_reach():
    rows = [published(160e12, "RTX 4090", size=8192)]
    assert expect(wanted(size=4096), LIMIT, [], rows).status is Status.MISSING


def test_a_lone_figure_gives_a_wide_band():
    found = expect(wanted(), LIMIT, [], [published(160e12, "RTX 4090")])
    assert found.interval == pytest.approx((160e12 * 0.85, 160e12 * 1.15))


def test_a_processors_range_is_not_derated_by_gpus():
    host = planned(point(1.0, device="EPYC", index=None, size=8192), 0, 0)
    rows = [published(80e12, name, claim=100e12) for name in "ABC"]
    assert expect(host, LIMIT, [], rows).status is Status.MISSING


def test_a_simulators_factors_are_no_measurements():
    fitted = published(160e12, "RTX 4090")
    kind = {"kind": "GEMM per shape, layout TN"}
    fitted = Published(record=fitted.record.replace(conditions=kind), limit=None)
    assert expect(wanted(), None, [], [fitted]).status is Status.MISSING


def test_fp16_and_bf16_are_one_rate():
    record = point(160e12, index=None, size=8192, kind=Kind.BASELINE)
    bf16 = record.replace(case={**record.case, "dtype": "bf16"})
    assert expect(wanted(), None, [], [Published(record=bf16, limit=None)]).value == 160e12


def test_another_vendors_shares_do_not_carry_over():
    rows = [published(60e12, name, claim=100e12) for name in "ABC"]
    theirs = [Published(record=r.record, limit=r.limit, vendor="AMD") for r in rows]
    assert expect(wanted(), LIMIT, [], theirs, "NVIDIA").status is Status.MISSING
    assert expect(wanted(), LIMIT, [], theirs, "AMD").status is Status.OK


def test_no_grounds_is_said_with_the_reason():
    found = expect(wanted(), None, [], [])
    assert found.status is Status.MISSING
    assert (found.reason or "").startswith("no target known: no claim and nothing published")


def test_each_card_has_the_claim_of_its_own_slot():
    narrow, wide = (
        Record(
            kind=Kind.CLAIMED,
            benchmark="link",
            case={"direction": "h2d"},
            metric="byte_rate",
            unit="B/s",
            value=value,
            source="PCIe",
            device="RTX 4090",
            device_index=index,
        )
        for index, value in ((0, 7.9e9), (1, 31.5e9))
    )
    case = {"direction": "h2d", "bytes": 1 << 28, "memory": "pinned", "cache": "cold"}
    own = of_device([narrow, wide], "RTX 4090", 1)
    limit = ceiling(own, "copy", case)
    assert limit is not None
    assert limit.value == 31.5e9


def test_the_ceiling_keeps_accumulate_types_apart():
    chip = find_chip("RTX 4090")
    assert chip is not None
    limit = ceiling(gpu_claims(chip, 0), "matmul", point(1.0).case)
    assert limit is not None
    assert limit.value == pytest.approx(165.2e12, rel=1e-3)
    assert "fp32 accumulation" in limit.source


def test_memory_bounds_cold_cases_and_no_hot_ones():
    chip = find_chip("RTX 4090")
    assert chip is not None
    claims = gpu_claims(chip, 0)
    cold = {"op": "scale", "dtype": "fp32", "num_elements": 1 << 24, "cache": "cold"}
    limit = ceiling(claims, "vector", cold)
    assert limit is not None
    assert limit.value == pytest.approx(1008e9)
    assert ceiling(claims, "vector", {**cold, "cache": "hot"}) is None
    assert ceiling(claims, "copy", {"direction": "h2d", "cache": "cold"}) is None
