"""Tables by size of a machine that is not here, and how far layers lie from published ones."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from trainrig.benchmarks.layer import LAYERS, PARTS
from trainrig.benchmarks.spec import Role
from trainrig.catalog.load import load_chips
from trainrig.catalog.lookup import require_chip
from trainrig.catalog.published import published_for
from trainrig.prediction.grids import (
    OF_ONE_CALL,
    layer_error,
    layer_errors,
    layer_grid,
    matmul_grid,
    usual_layer,
    vector_grid,
)
from trainrig.prediction.rates import Rates
from trainrig.prediction.rates.from_chip import rates_of_chip
from trainrig.report.notebook_tables import notebook_tables

SIZE = 32768


@pytest.fixture(scope="module")
def rates() -> Rates:
    return rates_of_chip(require_chip("RTX 4090"))


def test_products_reach_32768_and_stay_below_what_is_sustained(rates: Rates) -> None:
    found = {(r.case["dtype"], r.case["m"]): r for r in matmul_grid(rates)}
    assert found["fp16", SIZE].value == pytest.approx(rates.matmuls.sustained["fp16"], rel=0.05)
    assert (found["fp16", 128].value or 0.0) < 0.05 * (found["fp16", SIZE].value or 0.0)
    published = {
        r.case["m"]: r.value
        for r in published_for("matmul", "RTX 4090")
        if r.case["dtype"] == "fp16"
    }
    assert found["fp16", 8192].value == pytest.approx(published[8192], rel=0.15)


def test_small_vectors_are_faster_hot_and_large_ones_are_not(rates: Rates) -> None:
    found = {
        (r.case["cache"], r.case["num_elements"]): r.value or 0.0
        for r in vector_grid(rates)
        if r.case["op"] == "scale"
    }
    assert found["hot", 1 << 22] > 2.0 * found["cold", 1 << 22]
    assert found["hot", 1 << 26] == pytest.approx(found["cold", 1 << 26], rel=0.05)


def test_layers_are_all_models_both_passes_and_all_parts(rates: Rates) -> None:
    found = list(layer_grid(rates, "fp16", "eager", batches=(64,), sequences=(128,)))
    assert {(r.case["layer"], r.case["pass"]) for r in found} == {
        (name, how) for name in (*LAYERS, *PARTS) for how in ("forward", "forward+backward")
    }
    value = {(r.case["layer"], r.case["pass"]): r.value or 0.0 for r in found}
    # Attention is what holds a layer back, the plain product what it could reach.
    assert value["attention block", "forward"] < value["FFN", "forward"]
    assert value["FFN", "forward"] < value["dense h->4h", "forward"]
    tables = notebook_tables(found)
    assert len(tables) == 1
    assert len(tables[0].rows) == 2 * (len(LAYERS) + len(PARTS))


def test_fused_attention_is_quicker_than_plain(rates: Rates) -> None:
    def bert(kernels: str) -> float:
        found = layer_grid(rates, "fp16", kernels, batches=(32,), sequences=(512,))
        return next(r.value or 0.0 for r in found if r.case["layer"] == "BERT-large layer")

    assert bert("flash") > 1.2 * bert("eager")


def test_the_error_against_published_layers_is_stated() -> None:
    found = layer_error()
    assert found is not None
    assert found.num > 250
    assert 0.02 < found.median < 0.15
    assert found.inside < 0.6


def test_what_suits_a_machine(rates: Rates) -> None:
    assert usual_layer(rates) == ("bf16", "flash")
    assert usual_layer(rates_of_chip(require_chip("V100 SXM2 16GB"))) == ("fp16", "eager")


@pytest.mark.parametrize("name", ["matmul", "vector", "layer"])
def test_the_verb_prints_80_columns_and_json(trainrig: Any, name: str) -> None:
    code, out, _ = trainrig("predict", name, "--on", "RTX 5090")
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80
    code, out, _ = trainrig("predict", name, "--on", "RTX 5090", "--on", "RTX 4090", "--json")
    content = json.loads(out)
    assert [one["machine"] for one in content["machines"]] == ["RTX 5090", "RTX 4090"]
    assert all(case["interval"][0] < case["value"] for case in content["machines"][0]["cases"])


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (("matmul",), "missing --on"),
        (("matmul", "--on", "RTX 40900"), "did you mean"),
        (("layer", "--on", "RTX 4090", "--kernels", "flashy"), "did you mean flash"),
        (("layer", "--on", "RTX 4090", "--precision", "fp64"), "precision"),
        (("--on", "RTX 4090", "matmul"), "predict matmul --on"),
        (("matmull", "--on", "RTX 4090"), "No such command"),
    ],
)
def test_bad_words_are_one_line(trainrig: Any, words: tuple[str, ...], part: str) -> None:
    code, out, err = trainrig("predict", *words)
    assert (code, out) == (2, "")
    assert part in err
    assert len(err.splitlines()) <= 2


def test_predict_by_itself_is_as_before(trainrig: Any) -> None:
    code, out, _ = trainrig("predict", "--model", "gpt2", "--on", "RTX 4090", "--json")
    assert code == 0
    assert "time_s" in json.loads(out) or "step_time_s" in out
    code, out, _ = trainrig("predict", "--help")
    assert "trainrig predict matmul" in out
    assert "layer" in out


def _key(record: Any) -> tuple:
    return tuple(sorted((name, str(value)) for name, value in record.case.items()))


@pytest.mark.parametrize(("kind", "grid"), [("matmul", matmul_grid), ("vector", vector_grid)])
def test_intervals_hold_what_they_state_on_published_points(kind: str, grid: Any) -> None:
    """Four in five: that of 64 Ki elements was a fifth of what is published."""
    inside, num = 0, 0
    for chip in load_chips():
        if not (published := list(published_for(kind, chip.name))):
            continue
        predicted = {_key(one): one for one in grid(rates_of_chip(chip))}
        for record in published:
            if (found := predicted.get(_key(record))) is not None and found.interval:
                low, high = found.interval
                inside, num = inside + (low <= (record.value or 0.0) <= high), num + 1
    assert num >= 20 and 0.75 <= inside / num <= 0.92


def test_intervals_of_layers_hold_what_they_state() -> None:
    inside, num = 0, 0
    for record, error in layer_errors():
        rates = rates_of_chip(require_chip(str(record.device)))
        value = (record.value or 0.0) * (1.0 + error)
        ideal = value / rates.matmuls.sustained[str(record.case["dtype"])]
        wide = rates.spread["matmul"] + OF_ONE_CALL[Role.BLOCK] * max(0.0, 1.0 - ideal)
        inside, num = inside + (abs(math.log1p(error)) <= 1.28 * wide), num + 1
    assert num > 250 and 0.75 <= inside / num <= 0.92


def test_small_calls_are_less_sure_than_large_ones(rates: Rates) -> None:
    found = {r.case["m"]: r for r in matmul_grid(rates) if r.case["dtype"] == "fp16"}
    small, large = (found[n].interval[1] / found[n].value for n in (128, SIZE))
    assert small > 2.0 and large < 1.2
