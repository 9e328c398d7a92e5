"""Expectations: which grounds win, and that small or unlike cases are no grounds."""

from __future__ import annotations

from dataclasses import replace

import pytest

import machine_fakes
from runner_fakes import planned, point
from trainrig.benchmarks.copy import copy_case
from trainrig.benchmarks.matmul import matmul_case
from trainrig.benchmarks.spec import Role
from trainrig.catalog.host_parts import pcie_bandwidth
from trainrig.catalog.load import load_chips
from trainrig.catalog.lookup import find_chip, require_chip
from trainrig.catalog.published import published_records
from trainrig.machine.snapshot import Missing, PcieLink, unknown_link
from trainrig.prediction.expected import (
    Demands,
    ceiling,
    expect,
    gpu_claims,
    host_claims,
    link_claims,
    of_device,
)
from trainrig.prediction.rates.from_chip import rates_of_chip, unsure_of
from trainrig.record import Kind, Limit, Record, Status
from trainrig.runner.plan import qualify_plan
from trainrig.runner.targets import Target

LIMIT = Limit(value=165.2e12, source="RTX 4090 data sheet, fp16 dense, fp32 accumulation")
CHIP = require_chip("RTX 4090")


def wanted(size=8192, **changes):
    return planned(point(1.0, size=size), 0, 0, value=None, interval=None, **changes)


def published(value, device="RTX 4090", size=8192, kind=""):
    record = point(value, device=device, index=None, size=size, kind=Kind.BASELINE)
    return record.replace(conditions={"kind": kind})


def cases_of(chip, *, large_only=True):
    """What `qualify` plans on a GPU that is one of ``chip``, as points without a value."""
    gpu = Target(torch_device="cuda:0", name=chip.name, index=0, memory_bytes=1 << 37, chip=chip)
    for block in qualify_plan((gpu,), 240.0):
        for task in block.tasks:
            if task.target.is_gpu and (task.spec.is_large(task.case) or not large_only):
                yield task


def runs(*values, size=8192, **changes):
    """One point of each of several earlier runs."""
    return [point(v, size=size, run=f"run-{n}", **changes) for n, v in enumerate(values)]


def own_rate(chip, dtype, power=None):
    rates = rates_of_chip(chip, power=power)
    return 2.0 * 8192**3 / float(rates.matmul(8192, 8192, 8192, dtype=dtype))


ONE_OF_EACH_ARCHITECTURE = list({chip.product.architecture: chip for chip in load_chips()}.values())


@pytest.mark.parametrize("chip", ONE_OF_EACH_ARCHITECTURE, ids=lambda chip: chip.name)
def test_a_chip_that_does_what_is_predicted_is_in_its_band(chip):
    """Every claimed dtype, every stream, at its own power and limited; nothing without a claim."""
    for share in (1.0, 0.6):
        check_bands(chip, share)


@pytest.mark.acceptance
def test_every_chip_that_does_what_is_predicted_is_in_its_band():
    for chip in load_chips():
        for share in (1.0, 0.6):
            check_bands(chip, share)


def check_bands(chip, share):
    power = share * chip.board.tdp if chip.board.tdp else None
    claims = gpu_claims(chip, 0)
    rates = rates_of_chip(chip, power=power)
    judged = set()
    for task in cases_of(chip):
        metric = task.spec.metrics(task.case)[0]
        bare = wanted().replace(
            benchmark=task.benchmark, case=task.case, metric=metric.name, device=chip.name,
            unit=metric.unit, version=task.spec.version, device_count=1,
        )  # fmt: skip
        limit = ceiling(claims, task.benchmark, task.case)
        found = expect(bare, limit, [], published_records(), chip, power)
        if limit is None:
            assert found.status is Status.MISSING, task.case
        if found.interval is None or task.spec.role not in (Role.PRODUCT, Role.STREAM):
            continue
        if task.spec.role is Role.STREAM:
            own = rates.streams.bandwidth
        else:
            assert task.case["dtype"] != "fp64" or task.case["dtype"] in rates.matmuls.sustained
            m = task.case["m"]
            own = 2.0 * m**3 / float(rates.matmul(m, m, m, dtype=task.case["dtype"]))
        low, high = found.interval
        assert low <= own * 1.0001 and own <= 1.0001 * high, (task.case, own, found)
        assert found.value <= own * 1.0001, "never above the model's own number"
        judged.add(task.case.get("dtype") if task.spec.role is Role.PRODUCT else "stream")
    claimed = {p.dtype for p in chip.peaks if ceiling(claims, "matmul", matmul_case(p.dtype, 8192))}
    assert judged >= (claimed & {"fp32", "tf32", "bf16", "fp16", "fp8", "int8"})
    assert ("stream" in judged) == (chip.memory.bandwidth is not None)


def test_no_band_for_a_dtype_that_is_not_claimed():
    chip = require_chip("V100 SXM2 16GB")
    bare = wanted(device=chip.name)
    bf16 = bare.replace(case={**bare.case, "dtype": "bf16"})
    assert ceiling(gpu_claims(chip, 0), "matmul", bf16.case) is None
    rows = [published(95e12, chip.name)]
    assert expect(bf16, None, [], rows, chip).status is Status.MISSING
    assert expect(bare, LIMIT, [], rows, chip).status is Status.OK


def test_history_wins_over_what_is_published():
    history = runs(170e12, 171e12, 172e12)
    found = expect(wanted(), LIMIT, history, [published(160e12)], CHIP)
    assert found.value == 171e12
    assert found.source == "3 earlier runs on this machine"
    assert found.interval == pytest.approx((170e12 * 0.92, 172e12 * 1.08))


def test_a_machine_does_not_become_right_by_being_slow_three_times():
    found = expect(wanted(), LIMIT, runs(70e12, 70e12, 70e12), [published(160e12)])
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
    rows = [published(value) for value in (161e12, 169e12, 172e12)]
    found = expect(wanted(), LIMIT, [], rows)
    assert found.source == "published for RTX 4090, n = 3"
    assert found.interval == pytest.approx((161e12 * 0.92, 172e12 * 1.08))


def test_the_chips_own_rate_is_the_centre_and_no_floor_is_above_it():
    own = own_rate(CHIP, "fp16")
    near, above = (
        expect(wanted(), LIMIT, [], [published(f * own) for f in (share, share)], CHIP)
        for share in (0.95, 1.3)
    )
    assert near.value == above.value == pytest.approx(own)
    assert near.interval == pytest.approx((0.95 * 0.92 * own, 0.95 * 1.08 * own))
    assert above.interval == pytest.approx((own, 1.3 * 1.08 * own))


def test_without_figures_a_band_is_as_wide_as_predictions_were_off():
    found = expect(wanted(), LIMIT, [], [], CHIP)
    own, off = own_rate(CHIP, "fp16"), unsure_of(CHIP, "fp16")
    assert found.source == "predicted for RTX 4090"
    assert found.interval == pytest.approx((own * (1 - off), own * (1 + off)))
    assert 0.1 < off < 0.5
    assert unsure_of(require_chip("T4"), "fp16") == pytest.approx(2 * off), "nobody published one"
    assert unsure_of(require_chip("L4"), "int8") == pytest.approx(2 * off)


def test_a_power_limit_lowers_what_products_should_do_and_no_stream():
    limited = 0.5 * CHIP.board.tdp
    for rows in ([], [published(160e12), published(165e12)]):
        full, less = (expect(wanted(), LIMIT, [], rows, CHIP, p) for p in (CHIP.board.tdp, limited))
        assert less.value == pytest.approx(full.value * 0.5**0.6, rel=5e-3)
        assert less.interval[0] == pytest.approx(full.interval[0] * 0.5**0.6, rel=5e-3)
        assert "at 225 W" in less.source and "W" not in full.source
    assert expect(wanted(), LIMIT, [], [], CHIP, 2 * CHIP.board.tdp).value == pytest.approx(
        own_rate(CHIP, "fp16")
    )
    cold = {"op": "scale", "dtype": "fp32", "num_elements": 1 << 24, "cache": "cold"}
    stream = wanted().replace(benchmark="vector", case=cold, metric="byte_rate", unit="B/s")
    full, less = (expect(stream, LIMIT, [], [], CHIP, p) for p in (CHIP.board.tdp, limited))
    assert full.value == less.value == pytest.approx(1008e9 * 0.919, rel=0.02)


def test_a_searched_maximum_is_no_floor():
    searched = published(300e12, kind="max achievable (search over shapes)")
    found = expect(wanted(), LIMIT, [], [searched], CHIP)
    bare = expect(wanted(), LIMIT, [], [], CHIP)
    assert (found.value, found.interval[0]) == (bare.value, bare.interval[0])
    assert found.interval[1] == pytest.approx(300e12 * 1.08)
    assert expect(wanted(), LIMIT, [], [searched]).status is Status.MISSING


def test_a_long_run_may_be_slower():
    bare = wanted()
    long = bare.replace(case={**bare.case, "sustained": True})
    short, found = (expect(one, LIMIT, [], [], CHIP) for one in (bare, long))
    assert found.interval[0] == pytest.approx(0.9 * short.interval[0])
    assert found.interval[1] == short.interval[1]


def test_figures_of_judged_sizes_count_where_there_are_any():
    small, large = published(80e12, size=2048), published(96e12, size=8192)
    both = expect(wanted(), LIMIT, [], [small, large])
    assert (both.value, both.source) == (96e12, "published for RTX 4090, n = 1")
    assert expect(wanted(), LIMIT, [], [small]).value == 80e12


def test_small_cases_have_no_target():
    rows = [published(1.1e12, size=128), published(160e12, size=8192)]
    assert expect(wanted(size=128), LIMIT, [], rows, CHIP).status is Status.MISSING
    assert expect(wanted(size=4096), LIMIT, [], rows, CHIP).status is Status.MISSING
    cold = {"op": "scale", "dtype": "fp32", "num_elements": 1 << 16, "cache": "cold"}
    short = wanted().replace(benchmark="vector", case=cold, metric="byte_rate", unit="B/s")
    assert expect(short, LIMIT, [], [], CHIP).status is Status.MISSING


def test_a_lone_figure_gives_a_wide_band():
    found = expect(wanted(), LIMIT, [], [published(160e12)])
    assert found.interval == pytest.approx((160e12 * 0.85, 160e12 * 1.15))


def test_other_devices_say_nothing():
    rows = [published(160e12, name) for name in ("RTX 3090", "RTX 3090 Ti", "A100 SXM4 80GB")]
    assert expect(wanted(), LIMIT, [], rows).status is Status.MISSING
    host = planned(point(1.0, device="EPYC", index=None, size=8192), 0, 0)
    assert expect(host, LIMIT, [], rows).status is Status.MISSING


def test_a_simulators_factors_are_no_measurements():
    fitted = published(160e12, kind="GEMM per shape, layout TN")
    assert expect(wanted(), LIMIT, [], [fitted]).status is Status.MISSING


def test_fp16_and_bf16_are_one_rate():
    record = published(160e12)
    bf16 = record.replace(case={**record.case, "dtype": "bf16"})
    assert expect(wanted(), LIMIT, [], [bf16]).value == 160e12


# ---------------------------------------------------------------- demands


def test_what_the_user_demands_comes_first():
    demands = Demands(least={"fp16": 150e12, "memory": 3e12})
    history = runs(170e12, 171e12, 172e12)
    found = expect(wanted(), LIMIT, history, [], CHIP, demands=demands)
    assert (found.interval[0], found.source) == (150e12, "--min fp16")
    assert found.value == 171e12
    bare = expect(wanted(device="RTX 3060"), None, [], [], demands=demands)
    assert (bare.value, bare.interval) == (150e12, (150e12, 150e12))
    assert expect(wanted(size=512), None, [], [], demands=demands).status is Status.MISSING
    cold = {"op": "scale", "dtype": "fp32", "num_elements": 1 << 24, "cache": "cold"}
    stream = wanted().replace(benchmark="vector", case=cold, metric="byte_rate", unit="B/s")
    assert expect(stream, None, [], [], demands=demands).interval[0] == 3e12
    layer = wanted().replace(benchmark="layer", case={"dtype": "fp16", "m": 8192})
    assert expect(layer, None, [], [], demands=demands).status is Status.MISSING


def test_a_baseline_judges_the_same_case_on_the_same_model_of_card():
    points = [
        *runs(171e12),
        *runs(1e12, size=512),
        *runs(1e11, size=512, device="EPYC", index=None),
    ]
    demands = Demands(baseline=tuple(points), name="accepted-card")
    found = expect(wanted(), None, [], [], demands=demands)
    assert found.interval == pytest.approx((171e12 * 0.92, 171e12 * 1.08))
    assert "accepted-card" in found.source
    small = expect(wanted(size=512), None, [], [], demands=demands)
    assert small.status is Status.MISSING, "the host decides that"
    host = planned(point(1.0, device="EPYC", index=None, size=512), 0, 0)
    assert expect(host, None, [], [], demands=demands).value == 1e11
    other = wanted(device="RTX 3090")
    assert expect(other, None, [], [], demands=demands).status is Status.MISSING


# ---------------------------------------------------------------- links


def link(generation, width, most_generation=4, most_width=16):
    return PcieLink(
        generation=generation, width=width, max_generation=most_generation, max_width=most_width
    )


def claimed_link(card, *, pci=None, chip=None):
    gpu = machine_fakes.gpu(0, link=card)
    return [claim.value for claim in link_claims(gpu, "RTX 4090", pci, chip)]


def test_a_links_claim_is_what_card_and_slot_can_do_not_what_it_does_at_rest():
    full, unread = pcie_bandwidth(4, 16).high, unknown_link("no driver")
    assert claimed_link(link(1, 4)) == [full, full]
    on_bus = machine_fakes.pci_device("0000:01:00.0", "10de:2684", link=link(1, 4), slot=link(1, 4))
    assert claimed_link(link(1, 4, 4, 4), pci=on_bus) == [full, full], "the driver sees less"
    narrow = replace(on_bus, slot=link(1, 4, 3, 4))
    assert claimed_link(link(1, 4), pci=narrow)[0] == pcie_bandwidth(3, 4).high
    assert claimed_link(unread) == []
    assert claimed_link(unread, chip=CHIP) == [full, full]
    assert claimed_link(link(1, 4, 0, 255)) == []


def test_pinned_copies_have_a_share_of_their_link_as_target():
    limit = Limit(value=31.5e9, source="PCIe")
    for way, share in (("h2d", 0.75), ("d2h", 0.65)):
        bare = wanted().replace(
            benchmark="copy", case=copy_case(way, memory="pinned"), metric="byte_rate", unit="B/s"
        )
        found = expect(bare, limit, [], [], CHIP)
        assert found.interval == pytest.approx((share * 31.5e9, 31.5e9))
        assert share > 0.5, "half of the lanes, or a generation less, is below"
        pageable = bare.replace(case=copy_case(way, memory="pageable"))
        assert expect(pageable, limit, [], [], CHIP).status is Status.MISSING
        assert expect(bare, None, [], [], CHIP).status is Status.MISSING


# ---------------------------------------------------------------- claims


def test_a_processors_units_are_what_its_vendor_documents():
    """Zen 4 runs a 512-bit operation as two halves: half of what the flags alone allow."""
    snapshot = machine_fakes.healthy(0)

    def peaks(vendor, family):
        cpu = replace(
            snapshot.cpu,
            model="EPYC",
            vendor=vendor,
            family=family,
            flags=("avx512f", "avx512_bf16"),
            cores=8,
            usable_threads=16,
            max_clock_hz=3e9,
        )
        return {
            c.case.get("dtype"): c
            for c in host_claims(replace(snapshot, cpu=cpu), "EPYC")
            if c.benchmark == "matmul"
        }

    zen4, unknown = peaks("AuthenticAMD", "25"), peaks(Missing("no lscpu"), Missing("no lscpu"))
    for dtype in ("fp32", "fp64", "bf16"):
        assert zen4[dtype].value == pytest.approx(0.5 * unknown[dtype].value)
        assert zen4[dtype].interval is None and unknown[dtype].interval is not None


def test_no_grounds_is_said_with_the_reason():
    found = expect(wanted(), None, [], [])
    assert found.status is Status.MISSING
    assert (found.reason or "").startswith("no target known: nothing is claimed")


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
    assert limit.value == pytest.approx(165.2e12, rel=5e-3)
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
