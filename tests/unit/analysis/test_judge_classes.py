"""Classes without a target: layers against products, types against their claim, what is named."""

from __future__ import annotations

from typing import Any

import pytest

from trainrig.analysis.judge_classes import (
    class_rules,
    far_below_claim,
    slow_layers,
    without_target,
)
from trainrig.analysis.rows import Row
from trainrig.benchmarks.collective import collective_case
from trainrig.record import Kind, Limit, Record, Status

PRODUCT: dict[str, Any] = {"dtype": "bf16", "m": 8192, "k": 8192, "n": 8192, "cache": "hot"}
LAYER: dict[str, Any] = {
    "layer": "GPT-2 medium block",
    "dtype": "bf16",
    "pass": "forward+backward",
    "batch_size": 16,
    "seq_len": 1024,
    "hidden": 1024,
    "heads": 16,
    "ffn": 4096,
    "code": "trainrig",
    "attention": "sdpa",
}
LEAST = class_rules().layers.least_of_products
(FP64,) = class_rules().claim
CLAIM = Limit(value=67e12, source="data sheet")


def row(benchmark: str, case: dict[str, Any], rate: float, **changes: Any) -> Row:
    point = {"value": rate, "interval": (0.999 * rate, 1.001 * rate)} | changes.pop("point", {})
    keys = {"metric": "flop_rate", "index": 0, "count": 1, "device": "H100", "predicted": None}
    keys |= changes
    measured = Record(
        kind=Kind.MEASURED,
        benchmark=benchmark,
        case=case,
        metric=keys["metric"],
        unit="FLOP/s",
        device=keys["device"],
        device_index=keys["index"],
        **point,
    )
    keys.setdefault("measured", measured)
    key = (benchmark, tuple(case.items()))
    return Row(key=key, case=case, benchmark=benchmark, unit="FLOP/s", baselines=(), **keys)


def product(rate: float = 1e14, case: dict[str, Any] | None = None, **changes: Any) -> Row:
    return row("matmul", {**PRODUCT, **(case or {})}, rate, **changes)


def layer(share: float, case: dict[str, Any] | None = None, **changes: Any) -> Row:
    return row("layer", {**LAYER, **(case or {})}, share * 1e14, **changes)


SLOW = 0.9 * LEAST


@pytest.mark.parametrize(
    ("rows", "is_slow"),
    [
        ([product(), layer(SLOW)], True),
        ([product(), layer(1.1 * LEAST)], False),
        ([layer(SLOW), product()], True),
        ([product(), product(1e13), layer(SLOW)], True),  # the best product counts
        ([layer(SLOW)], False),
        ([product(case={"dtype": "fp16"}), layer(SLOW)], True),  # at one rate
        ([product(case={"dtype": "fp32"}), layer(SLOW)], False),
        ([product(index=1), layer(SLOW)], False),
        ([product(index=None), layer(SLOW, index=None)], False),
        ([product(count=2), layer(SLOW)], False),
        ([product(count=2, index=0), layer(SLOW, count=2)], False),
        ([product(), layer(SLOW, {"code": "torch"})], False),
        ([product(), layer(SLOW, {"attention": "eager"})], False),
        ([product(), layer(SLOW, {"pass": "forward"})], False),
        ([product(), layer(SLOW, metric="byte_rate")], False),
        ([product(metric="byte_rate"), layer(SLOW)], False),
        ([product(case={"m": 64, "k": 64, "n": 64}), layer(SLOW)], False),
        ([product(), layer(SLOW, {"batch_size": 1, "seq_len": 8})], False),
        (
            [
                product(point={"value": None, "interval": None, "status": Status.SKIPPED}),
                layer(0.1),
            ],
            False,
        ),
        ([product(measured=None), layer(SLOW)], False),
        ([product(), layer(SLOW, point={"interval": (0.0, 1e14)})], False),
        ([product(), layer(SLOW, point={"interval": None})], True),
        ([product(), layer(1.1 * LEAST, point={"interval": None})], False),
        ([product(), product(1e12, {"n": 9000})], False),
    ],
)
def test_a_layer_is_held_against_its_cards_best_product(rows: list[Row], is_slow: bool) -> None:
    found = list(slow_layers(rows))
    assert [(f.id, f.severity) for f in found] == [("layers-slow", "warning")] * is_slow


def test_the_worst_layer_of_a_card_is_named() -> None:
    rows = [product(), layer(SLOW), layer(0.1, {"batch_size": 32}), layer(0.2, {"batch_size": 64})]
    (found,) = slow_layers(rows)
    assert ": 10 % of its best product" in found.evidence
    assert found.records == tuple(r.measured.id for r in rows[1:] if r.measured)
    others = [product(index=1), layer(SLOW, index=1)]
    assert len(list(slow_layers([*rows, *others]))) == 2


def doubles(share: float, case: dict[str, Any] | None = None, **changes: Any) -> Row:
    point = {"limit": CLAIM} | changes.pop("point", {})
    case = {"dtype": FP64.dtype} | (case or {})
    return product(share * CLAIM.value, case, point=point, **changes)


BAND = Record(
    kind=Kind.PREDICTED,
    benchmark="matmul",
    case=PRODUCT,
    metric="flop_rate",
    unit="FLOP/s",
    value=1e13,
    interval=(1e13, 2e13),
)


@pytest.mark.parametrize(
    ("seen", "is_below"),
    [
        (doubles(0.9 * FP64.least), True),
        (doubles(1.1 * FP64.least), False),
        (doubles(0.9 * FP64.least, {"dtype": "bf16"}), False),
        (doubles(0.9 * FP64.least, predicted=BAND), False),
        (doubles(0.9 * FP64.least, point={"limit": None}), False),
        (doubles(0.9 * FP64.least, point={"disturbed": "others"}), False),
        (doubles(0.9 * FP64.least, point={"interval": None}), True),
        (doubles(1.1 * FP64.least, point={"interval": None}), False),
        (doubles(0.9 * FP64.least, point={"interval": (0.0, CLAIM.value)}), False),
        (doubles(0.9 * FP64.least, measured=None), False),
        (doubles(0.9 * FP64.least, index=None), False),
        (row("layer", {**LAYER, "dtype": FP64.dtype}, 1e12, point={"limit": CLAIM}), False),
    ],
)
def test_a_type_that_nobody_predicts_is_held_against_its_claim(seen: Row, is_below: bool) -> None:
    found = list(far_below_claim([seen]))
    assert [(f.id, f.severity) for f in found] == [("below-claim", "error")] * is_below


def exchange(device: str = "RTX 4090", value: float = 1e9) -> Row:
    case = collective_case("all_reduce", 8, 1 << 28, "nccl")
    return row("collective", case, value, metric="bus_rate", count=8, device=device)


@pytest.mark.parametrize(
    ("rows", "named"),
    [
        ([product()], ["16 bit products"]),
        ([product(), product(1e13, {"n": 9000})], ["16 bit products"]),
        ([product(predicted=BAND)], []),
        ([product(), product(1e13, {"n": 9000}, predicted=BAND)], []),
        ([product(case={"dtype": "fp32"})], ["fp32 products"]),
        ([doubles(1.0)], []),
        ([layer(1.0)], []),
        ([exchange()], ["what GPUs exchange"]),
        ([exchange("H100 SXM5 80GB")], []),
        ([exchange("H100 SXM5 80GB"), exchange()], []),
        ([exchange(value=0.0)], []),
        ([product(), exchange()], ["16 bit products", "what GPUs exchange"]),
    ],
)
def test_classes_that_nothing_bounds_are_named(rows: list[Row], named: list[str]) -> None:
    assert without_target(rows) == named
