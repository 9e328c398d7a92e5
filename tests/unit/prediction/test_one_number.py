"""One number for one thing: a layout's step, days and network are alike wherever they are told."""

from __future__ import annotations

import json

import pytest

from trainrig.prediction.scenario import question
from trainrig.prediction.setting import setting_of, stage_layers

PIPELINE = (
    *("--model", "gpt2-xl", "--on", "RTX 3090 Ti", "--gpus", "16"),
    *("--framework", "megatron", "--tokens", "1e10"),
)


def told(trainrig, *words):
    return json.loads(trainrig(*words, "--json")[1])


def flags_of(layout: dict) -> list[str]:
    """A layout of a plan as options of predict."""
    keys = {
        "tp": "tp",
        "pp": "pp",
        "cp": "cp",
        "zero": "zero",
        "shard_size": "shard-size",
        "batch_size": "batch-size",
        "grad_accum": "grad-accum",
        "interleave": "interleave",
        "schedule": "schedule",
        "recompute": "recompute",
    }
    words = [f"--{flag}={layout[key]}" for key, flag in keys.items() if layout[key]]
    return words + ["--sequence-parallel"] * bool(layout["sequence_parallel"])


def test_a_plan_s_layout_takes_as_long_in_predict(trainrig) -> None:
    plan = told(trainrig, "plan", *PIPELINE, "--global-batch", "128")
    pipelines = [one for one in plan["best"] if one["layout"]["pp"] > 1][:2]
    assert pipelines
    for one in pipelines:
        found = told(trainrig, "predict", *PIPELINE, *flags_of(one["layout"]))
        assert found["step_time_s"] == pytest.approx(one["step_time_s"])
        assert found["step_time_by"] == one["step_time_by"] == "simulation"
        assert sum(found["parts_s"].values()) == pytest.approx(found["step_time_s"])
        assert sum(one["parts_s"].values()) == pytest.approx(one["step_time_s"])
        assert found["tokens_per_s"] == pytest.approx(one["tokens_per_s"])


def test_a_plan_has_one_step_time_and_one_list_of_days(trainrig) -> None:
    plan = told(trainrig, "plan", *PIPELINE, "--global-batch", "128")
    assert plan["prediction"]["step_time_s"] == pytest.approx(plan["best"][0]["step_time_s"])
    days = 1e10 / plan["best"][0]["tokens_per_s"] / 86400
    assert plan["prediction"]["days"] == pytest.approx(days)


def test_days_of_a_budget_are_the_plan_s(trainrig) -> None:
    words = ("--model", "gpt2-xl", "--on", "RTX 3090 Ti", "--global-batch", "128")
    plan = told(trainrig, "plan", *words, "--tokens", "2e10", "--days", "5")
    assert plan["budget"]["days"] == pytest.approx(plan["prediction"]["days"])


def test_a_closed_form_says_so(trainrig) -> None:
    words = ("predict", "--model", "gpt2", "--on", "RTX 4090")
    assert told(trainrig, *words)["step_time_by"] == "closed form"
    assert "by the closed form" in " ".join(trainrig(*words)[1].split())


def test_a_cost_s_days_are_a_plan_s(trainrig) -> None:
    words = ("--model", "gpt2-xl", "--on", "A100 SXM4 40GB", "--gpus", "16", "--tokens", "1e10")
    words = (*words, "--global-batch", "64")
    plan = told(trainrig, "plan", *words)
    cost = told(trainrig, "cost", *words, "--rent-per-gpu-hour", "1")
    assert cost["training"]["days"] == pytest.approx(plan["prediction"]["days"])


# ---- what an answer stands on


def setting(**given) -> dict[str, str]:
    found = question({"model": "llama-7B", "recompute": "full", **given})
    return {one.name: one.text for one in setting_of(found.shape, found.layout, found.cluster)}


def test_one_node_of_64_and_eight_of_eight_are_told() -> None:
    one = setting(on="64x H100 SXM5 80GB")
    eight = setting(on="H100 SXM5 80GB", gpus=64)
    assert one["machines"].startswith("1 node of 64 GPUs")
    assert eight["machines"].startswith("8 nodes of 8 GPUs")
    assert "network" not in one and "3,200 Gb/s a node, 400 Gb/s a GPU" in eight["network"]


def test_a_network_that_is_meant_by_the_card_is_asked_about() -> None:
    found = setting(on="H100 SXM5 80GB", gpus=64, fabric_gbps=400)["network"]
    assert "400 Gb/s a node, 50 Gb/s a GPU" in found and "usually have 3,200" in found
    assert "--fabric-gbps 3200" in found
    assert "usually" not in setting(on="H100 SXM5 80GB", gpus=64, fabric_gbps=3200)["network"]


def test_uneven_stages_are_told(trainrig) -> None:
    words = ("--model", "llama-7B", "--on", "H100 SXM5 80GB", "--gpus", "88")
    words = (*words, "--pp", "11", "--framework", "megatron", "--grad-accum", "22")
    _, out, _ = trainrig("predict", *words)
    text = " ".join(out.split())
    assert "10 stages of 3 layers, 1 stage of 2 layers" in text and "Gb/s a node" in text


@pytest.mark.parametrize("pp", [2, 3, 4, 5, 7, 8, 11, 16, 31, 32])
def test_stages_hold_all_layers(pp: int) -> None:
    given = {"model": "llama-7B", "on": "H100 SXM5 80GB", "gpus": pp, "pp": pp, "recompute": "full"}
    found = question({**given, "framework": "megatron", "gpus_per_node": pp})
    layers = stage_layers(found.shape, found.layout)
    assert sum(layers) == 32 and len(layers) == pp and max(layers) - min(layers) <= 1


# ---- what if


def test_what_if_shows_what_is_there_now_and_says_slower(trainrig) -> None:
    words = ("--model", "gpt2-xl", "--on", "RTX 3090 Ti", "--gpus", "16", "--global-batch", "64")
    found = told(trainrig, "plan", *words, "--what-if", "eth-1,nvlink,+24GB,power=400W,pcie5")
    by_name = {one["name"]: one for one in found["upgrades"]}
    assert by_name["eth-1"]["verdict"] == "slower" and by_name["eth-1"]["gain"] < 0
    assert by_name["eth-1"]["present"] == "100 Gb/s a node, 12.5 Gb/s a GPU"
    assert by_name["+24GB"]["present"].endswith("GiB")
    assert by_name["power=400W"]["present"] == "450 W"
    assert by_name["pcie5"]["present"] == "PCIe 4.0"
    assert "PCIe" in by_name["nvlink"]["present"]
    _, out, _ = trainrig("plan", *words, "--what-if", "eth-1")
    assert "slower" in out and "100 Gb/s a node" in " ".join(out.split())


def test_what_is_there_already_changes_nothing(trainrig) -> None:
    words = ("--model", "gpt2-xl", "--on", "H100 SXM5 80GB", "--gpus", "8", "--global-batch", "64")
    found = told(trainrig, "plan", *words, "--what-if", "nvlink")
    assert found["upgrades"][0]["verdict"] == "no change"
