"""Rates of the machine in the room: measured where it was, the rule elsewhere, and said which."""

from __future__ import annotations

import random
from typing import Any

import pytest

from trainrig.catalog import find_chip
from trainrig.errors import UnavailableError, UsageError
from trainrig.prediction.rates.from_chip import rates_of_chip
from trainrig.prediction.rates.from_records import rates_of_records
from trainrig.record import Kind, Record, Status

GPU = find_chip("RTX 4090") or pytest.fail("no RTX 4090")
RULE = rates_of_chip(GPU)


def point(benchmark: str, metric: str, value: float | None, **more: Any) -> Record:
    case = {key: more.pop(key) for key in list(more) if key not in ("device", "disturbed")}
    return Record(
        kind=Kind.MEASURED,
        benchmark=benchmark,
        case=case,
        metric=metric,
        unit="FLOP/s" if metric == "flop_rate" else "B/s",
        value=value,
        status=Status.OK if value else Status.SKIPPED,
        device=more.get("device", GPU.name),
        disturbed=more.get("disturbed"),
    )


def product(size: int, rate: float | None, dtype: str = "bf16", **more: Any) -> Record:
    sizes = {"m": size, "k": size, "n": size}
    return point("matmul", "flop_rate", rate, dtype=dtype, cache="hot", **sizes, **more)


def stream(rate: float, op: str = "scale", **more: Any) -> Record:
    case = {"op": op, "dtype": "fp32", "num_elements": 1 << 24, "cache": "cold"}
    return point("vector", "byte_rate", rate, **case, **more)


def cpu(*records: Record) -> list[Record]:
    return [r.replace(device="EPYC") for r in records]


def rate(rates: Any, size: int, dtype: str = "bf16") -> float:
    return float(2.0 * size**3 / rates.matmul(size, size, size, dtype=dtype))


def test_measured_products_come_out_as_measured() -> None:
    points = [product(1024, 60e12), product(4096, 140e12), product(8192, 150e12)]
    rates = rates_of_records(points, GPU)
    for size, measured in ((1024, 60e12), (4096, 140e12), (8192, 150e12)):
        assert rate(rates, size) == pytest.approx(measured, rel=1e-3)
    assert rate(rates, 16384) < rate(RULE, 16384)  # like its neighbour
    assert 60e12 < rate(rates, 2048) < 140e12


def test_what_was_not_measured_keeps_the_rule_and_says_so() -> None:
    rates = rates_of_records([product(4096, 100e12)], GPU)
    assert rate(rates, 4096, "fp8") == rate(RULE, 4096, "fp8")
    assert rates.streams == RULE.streams
    assert "measured on this machine: bf16" in rates.provenance["matmul"]
    assert rates.provenance["stream"] == RULE.provenance["stream"]
    assert rates.spread["matmul"] < RULE.spread["matmul"]
    assert rates.spread["stream"] == RULE.spread["stream"]


def test_no_records_are_the_rule() -> None:
    assert rates_of_records([], GPU, link="pcie") == rates_of_chip(GPU, link="pcie")
    other = [product(4096, 1e12, device="RTX 3090"), product(4096, None)]
    assert rates_of_records(other, GPU) == RULE


def test_a_long_run_outweighs_a_short_one() -> None:
    short = [product(4096, 150e12), product(8192, 160e12)]
    rates = rates_of_records([*short, product(8192, 120e12, sustained=True)], GPU)
    assert rate(rates, 8192) == pytest.approx(120e12, rel=1e-3)
    assert rate(rates, 4096) == pytest.approx(150e12 * 120 / 160, rel=1e-3)


def test_disturbed_points_only_where_there_are_no_others() -> None:
    noisy = product(4096, 50e12, disturbed="something ran")
    assert rate(rates_of_records([noisy, product(8192, 160e12)], GPU), 8192) > 150e12
    rates = rates_of_records([noisy], GPU)
    assert rate(rates, 4096) == pytest.approx(50e12, rel=1e-3)
    assert "while something else ran" in rates.provenance["matmul"]
    assert rates.spread["matmul"] > 0.1


def test_the_smallest_product_says_what_a_launch_takes() -> None:
    small = product(128, 2.0 * 128**3 / 8e-6)
    rates = rates_of_records([small, product(8192, 160e12)], GPU)
    assert rates.launch == pytest.approx(8e-6, rel=0.01)
    # Waiting for a launch is no property of products: they stay as the large one has them.
    assert rate(rates, 128) > 1.5 * 2.0 * 128**3 / 8e-6


def test_links_and_disks() -> None:
    points = [
        point("copy", "byte_rate", 24e9, direction="h2d", memory="pinned", bytes=1 << 28),
        point("storage", "byte_rate", 7e9, op="read", device="some disk"),
        stream(900e9),
        stream(600e9, "add"),
    ]
    rates = rates_of_records(points, GPU)
    assert (rates.host_link, rates.disk) == (24e9, 7e9)
    assert rates.streams.bandwidth == pytest.approx(720e9)  # the harmonic mean
    assert rates.offload(7e9, to="disk") == pytest.approx(1.0)


def test_streams_rest_on_what_moves_bytes_noisy_or_not() -> None:
    """Cold scale and add were noisy once, and a gelu that computes was all of the stream."""
    gelu, copied = stream(9.5e9, "gelu"), point("copy", "byte_rate", 30e9, direction="triad")
    noisy = [stream(38e9, disturbed="busy"), stream(38e9, "add", disturbed="busy")]
    products = product(512, 165e9, "fp32")
    for streams, bandwidth in (
        ([*noisy, gelu], 38e9),
        ([noisy[0], stream(36e9, "add"), gelu], 36e9),
        ([gelu, copied], 30e9),
    ):
        rates = rates_of_records(cpu(products, *streams))
        assert rates.streams.bandwidth == pytest.approx(bandwidth)
    with pytest.raises(UnavailableError):
        rates_of_records(cpu(products, gelu))


def test_a_processor_has_what_was_measured_on_it() -> None:
    points = cpu(product(512, 165e9, "fp32"), product(128, 130e9, "fp32"), stream(30e9))
    rates = rates_of_records(points)
    assert rates.device == "EPYC"
    assert rate(rates, 512, "fp32") == pytest.approx(165e9, rel=0.02)
    assert rate(rates, 128, "fp32") == pytest.approx(130e9, rel=0.02)
    with pytest.raises(UsageError, match="no rate of bf16 products"):  # it may emulate that
        rate(rates, 512, "bf16")
    assert 30e9 / rates.stream(30e9) == pytest.approx(30e9, rel=0.01)
    assert rates.launch == 0.0
    assert set(rates.spread) == set(rates.provenance)


@pytest.mark.parametrize("missing", ["products", "streams", "all"])
def test_a_processor_without_measurements_has_no_rates(missing: str) -> None:
    points = {"products": cpu(stream(30e9)), "streams": cpu(product(512, 1e11)), "all": []}
    with pytest.raises(UnavailableError) as caught:
        rates_of_records(points[missing])
    assert "trainrig qualify" in (caught.value.hint or "")


def test_the_order_of_records_does_not_matter() -> None:
    points = [product(size, 1e11 * size) for size in (512, 1024, 2048)] + [stream(9e11)]
    shuffled = random.Random(3).sample(points, len(points))
    assert rates_of_records(points, GPU) == rates_of_records(shuffled, GPU)
