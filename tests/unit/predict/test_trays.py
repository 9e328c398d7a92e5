"""Trays that a link joins to one node, as a GB200 NVL72's of four: asked for by flags."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainrig.catalog.lookup import require_chip
from trainrig.predict.prediction import Prediction, predict
from trainrig.predict.rates.from_chip import joined_trays
from trainrig.predict.scenario import question

DENSE = {"model": "llama3-405B", "gpus": 512, "tp": 8, "pp": 8, "framework": "megatron", "zero": 1}
MIXTURE = {"model": "deepseek-v3", "gpus": 256, "pp": 4, "ep": 64, "framework": "megatron"}


def _of(asked: dict[str, object], node: int, on: str = "GB200") -> Prediction:
    return predict(question(asked | {"on": on, "gpus_per_node": node, "grad_accum": 8}))


@pytest.mark.parametrize("asked", [DENSE, MIXTURE])
@pytest.mark.parametrize("chip", ["GB200", "GB300"])
def test_trays_cost_what_their_rack_costs(asked: dict[str, object], chip: str) -> None:
    trays, rack = _of(asked, 4, chip), _of(asked, 64, chip)
    assert trays.step == rack.step
    assert "16 trays of 4 are one node of 64: NVLink joins them" in trays.warnings
    assert not any("leaves the node" in warning for warning in trays.warnings)


def test_without_the_link_a_tray_is_a_node() -> None:
    asked = question(DENSE | {"on": "GB200", "gpus_per_node": 4, "link": "pcie"})
    assert asked.layout.gpus_per_node == 4
    assert any("leaves the node of 4" in warning for warning in predict(asked).warnings)


def test_what_is_said_of_a_tray_is_said_of_each() -> None:
    own = {"gpus_per_node": 4, "host_memory": 900.0, "fabric_gbps": 1600.0}
    found = question(DENSE | {"on": "GB200"} | own).cluster
    assert found.trays == 16 and found.host_memory == 16 * 900 * 2**30
    assert found.fabric == 16 * 200e9
    one = question(DENSE | {"on": "GB200", "gpus_per_node": 64}).cluster
    assert found.rates().host_memory == 16 * one.rates().host_memory


@given(st.sampled_from(["GB200", "H100 SXM5 80GB", "TPU v5p", "A100 PCIe 80GB"]), st.data())
def test_joined_trays_fill_a_domain_and_divide_the_chips(name: str, data: st.DataObject) -> None:
    chip = require_chip(name)
    tray = data.draw(st.integers(1, 16))
    gpus = tray * data.draw(st.integers(1, 300))
    trays = joined_trays(chip, tray, gpus)
    assert trays >= 1 and gpus % (tray * trays) == 0
    if chip.link_domain:
        assert trays == 1 or tray * trays <= chip.link_domain
    elif chip.link != "ICI":
        assert trays == 1
