"""Trays that a link joins to one node, as a GB200 NVL72's of four: asked for by flags."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainrig.catalog.lookup import require_chip
from trainrig.errors import UsageError
from trainrig.prediction.prediction import Prediction, predict
from trainrig.prediction.rates.from_chip import joined_trays
from trainrig.prediction.scenario import one_node, question, space
from trainrig.prediction.search.upgrades import parse
from trainrig.runner.layout_search import plan

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
    assert asked.layout.mesh.gpus_per_node == 4
    assert any("leaves the node of 4" in warning for warning in predict(asked).warnings)


def test_what_is_said_of_a_tray_is_said_of_each() -> None:
    own = {"host_memory": 900.0, "fabric_gbps": 1600.0}
    for node in ({"gpus_per_node": 4}, {"gpus_per_node": 64}, {}):
        found = question(DENSE | {"on": "GB200"} | own | node).cluster
        assert found.trays == 16 and found.host_memory == 16 * 900 * 2**30
        assert found.fabric == 16 * 200e9
    tray = question(DENSE | {"on": "GB200", "gpus": 64, "link": "pcie"}).cluster
    assert tray.gpus_per_node == 4 and tray.trays == 1
    assert found.rates().host_memory == 16 * tray.rates().host_memory


OFFLOADED = {
    "model": "llama2-70B",
    "framework": "deepspeed",
    "zero": 3,
    "offload": "host",
    "host_memory": 4000.0,
    "fabric_gbps": 800.0,
}


@pytest.mark.parametrize("gpus", [6, 8, 36, 72, 80, 144, 256])
def test_a_rack_is_one_rack_however_it_is_named(gpus: int) -> None:
    asked = OFFLOADED | {"gpus": gpus}
    plain = predict(question(asked | {"on": "GB200"}))
    for other in ({"on": "GB200 NVL72"}, {"on": "GB200", "gpus_per_node": 4}):
        found = predict(question(asked | other))
        assert found.question.cluster == plain.question.cluster
        assert found.step == plain.step and found.warnings == plain.warnings
    assert plain.question.cluster.trays == -(-plain.layout.mesh.gpus_per_node // 4)


def test_what_a_file_says_of_its_rack_is_said_of_the_rack(tmp_path: Path) -> None:
    path = tmp_path / "rack.toml"
    for chips in (72, 4):
        says = f"gbps = {400 * chips}\n[cpu]\nmemory_gib = {chips}\nmemory_gb_s = {chips}"
        head = f'[chips]\nname = "GB200"\n[node]\nchips = {chips}\n[fabric]\n'
        path.write_text(head + says, encoding="utf-8")
        found = question(
            OFFLOADED | dict.fromkeys(NOTHING) | {"on": str(path), "gpus": 144}
        ).cluster
        assert (found.gpus_per_node, found.trays) == (72, 18)
        assert found.fabric == 72 * 50e9 and found.host_memory == 72 * 2**30
        assert found.rates().host_memory == pytest.approx(72e9)


NOTHING = ("host_memory", "fabric_gbps")


@pytest.mark.parametrize("gpus", [76, 92, 148, 150])
@pytest.mark.parametrize("node", [{}, {"gpus_per_node": 4}])
def test_racks_are_not_taken_apart_silently(gpus: int, node: dict[str, int]) -> None:
    asked = OFFLOADED | {"on": "GB200"} | node
    with pytest.raises(UsageError, match="equal parts of racks") as refused:
        question(asked | {"gpus": gpus})
    hint = refused.value.hint
    assert hint is not None
    for count in re.findall(r"\d+", hint):
        assert question(asked | {"gpus": int(count)}).cluster.gpus_per_node >= 36


def test_a_cluster_scaled_has_the_trays_of_its_size() -> None:
    asked = {"model": "llama3-8B", "fabric_gbps": 800.0, "host_memory": 900.0}
    for on in ("GB200", "H100 SXM5 80GB", "TPU v5p"):
        clusters = {n: question(asked | {"on": on, "gpus": n}).cluster for n in (8, 64, 72, 144)}
        for n, cluster in clusters.items():
            assert clusters[72].on(n) == cluster, on
            assert cluster.tray >= 1
    assert (
        question(asked | {"on": "GB200", "gpus": 1}).cluster.on(72)
        == question(asked | {"on": "GB200", "gpus": 72}).cluster
    )


def test_a_search_of_fewer_trays_has_the_memory_of_their_hosts() -> None:
    asked = {"model": "llama3-8B", "on": "GB200", "host_memory": 900.0, "global_batch": 72}
    every, cluster = space(asked | {"gpus": 72, "offload": "host"})
    for gpus in (1, 4, 8, 72, 144):
        assert every.on(cluster.on(gpus)) == space(asked | {"gpus": gpus, "offload": "host"})[0]


@pytest.mark.parametrize("on", ["GB200", "H100 SXM5 80GB"])
def test_an_upgrade_is_what_its_flag_is(on: str) -> None:
    """Ports of a rack are its trays', and PCIe joins no trays."""
    asked = {"model": "llama3-8B", "on": on, "gpus": 144}
    for word, flag in (("8xib-400", {"fabric_gbps": 3200.0}), ("pcie", {"link": "pcie"})):
        (_, (_, apply)) = parse(word)[0]
        assert apply(question(asked).cluster) == question(asked | flag).cluster


def test_days_are_of_racks() -> None:
    assert [one_node({"on": on}) for on in ("GB200", "GB200 NVL72", "H100", "Polaris")] == [
        *(72, 72, 8, 4)
    ]
    assert one_node({"on": "GB200", "gpus_per_node": 4}) == 72
    assert one_node({"on": "GB200", "link": "pcie"}) == 4
    options = {"model": "llama3-8B", "global_batch": 128, "framework": "native"}
    options |= {"recompute": "full"}
    found = [
        plan(options | {"on": "GB200"} | node, tokens=4e11, days=20.0).budget
        for node in ({}, {"gpus_per_node": 4}, {"on": "GB200 NVL72"})
    ]
    assert found[0] is not None and found[0].cluster.trays > 1
    assert found[0].cluster.trays * 4 == found[0].cluster.gpus_per_node
    assert [one and (one.cluster.gpus, one.days) for one in found] == [
        (found[0].cluster.gpus, found[0].days)
    ] * 3


def test_an_instance_that_nobody_counted_is_named() -> None:
    asked = {"model": "gpt2-medium", "on": "g5.12xlarge"}
    assert "g5.12xlarge has is not known: 1 in all" in predict(question(asked)).warnings[0]
    counted = predict(question(asked | {"gpus": 4}))
    assert not any("g5.12xlarge" in warning for warning in counted.warnings)
    assert question({"model": "gpt2-medium", "on": "p5en.48xlarge"}).cluster.gpus == 8


@given(st.sampled_from(["GB200", "H100 SXM5 80GB", "TPU v5p", "A100 PCIe 80GB"]), st.data())
def test_joined_trays_fill_a_domain_and_divide_the_chips(name: str, data: st.DataObject) -> None:
    chip = require_chip(name)
    tray = data.draw(st.integers(1, 16))
    gpus = tray * data.draw(st.integers(1, 300))
    trays = joined_trays(chip, tray, gpus)
    assert trays >= 1 and gpus % (tray * trays) == 0
    if chip.link.domain:
        assert trays == 1 or tray * trays <= chip.link.domain
    elif chip.link.name != "ICI":
        assert trays == 1
