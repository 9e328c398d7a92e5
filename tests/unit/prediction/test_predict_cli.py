"""`trainrig predict`: what is told, what is presumed, what is refused, what upgrades are worth."""

from __future__ import annotations

import json
import re

import pytest

from trainrig.catalog import require_chip
from trainrig.errors import UsageError
from trainrig.prediction.as_json import prediction_dict
from trainrig.prediction.cluster import Cluster
from trainrig.prediction.prediction import predict
from trainrig.prediction.scenario import Measured, question
from trainrig.prediction.search.upgrades import parse, rank
from trainrig.prediction.step import PARTS
from trainrig.units import DAY

TWO = {"model": "gpt2-medium", "on": "RTX 3090 Ti", "gpus": 2, "batch_size": 5}


def words_of(asked: dict[str, object]) -> list[str]:
    pairs = ((f"--{k.replace('_', '-')}", str(v)) for k, v in asked.items())
    return ["predict", *(word for pair in pairs for word in pair)]


def test_a_prediction_as_json(trainrig) -> None:
    code, out, _ = trainrig(*words_of(TWO | {"tokens": "1e9"}), "--link", "nvlink", "--json")
    told = json.loads(out)
    assert code == 0
    assert sum(told["parts_s"].values()) == pytest.approx(told["step_time_s"])
    assert list(told["parts_s"]) == list(PARTS)
    assert sum(told["memory_parts_bytes"].values()) == told["memory_bytes_per_gpu"]
    low, high = told["interval"]["step_time_s"]
    assert low < told["step_time_s"] < high
    assert told["tokens_per_step"] == 2 * 5 * 1024
    assert told["tokens_per_day"] == pytest.approx(told["tokens_per_s"] * DAY)
    assert told["days"] == pytest.approx(1e9 / told["tokens_per_day"])
    assert told["kwh"] == pytest.approx(told["days"] * 24 * 2 * 0.45)  # 450 W each
    assert 0.2 < told["mfu"] < 0.9 and told["hfu"] >= told["mfu"]
    assert told["layout"]["parallel"] == "ddp" and told["layout"]["dp"] == 2
    assert set(told["provenance"]) >= {"matmul", "stream", "collective"}


@pytest.mark.parametrize("width", [60, 80])
def test_a_prediction_for_people(trainrig, monkeypatch, width) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    code, out, _ = trainrig(*words_of(TWO | {"tokens": "10e9", "what-if": "nvlink, power=300W"}))
    assert code == 0
    joined = " ".join(out.split())
    program = "Hugging Face Trainer with PEFT"
    assert joined.startswith(f"gpt2-medium on 2 × RTX 3090 Ti, {program}: 380 ms a step")
    assert f"{program} (presumed: one machine): " in joined
    for said in (
        "forward",
        "backward",
        "optimizer",
        "MFU",
        "80 % between",
        "days",
        "a GPU offers",
        "matmul:",
    ):
        assert said in out
    assert "RTX 3090 Ti: bf16 claimed" in " ".join(out.split())
    assert "collective:" in out and "disk:" not in out
    assert "…" not in out
    assert all(len(line) <= width for line in out.splitlines())


def test_a_pipeline_is_answered_as_a_plan_ranks_it(trainrig) -> None:
    asked = {"model": "gpt2-medium", "on": "8x A100", "pp": 4, "grad-accum": 8, "zero": 1}
    code, out, _ = trainrig(*words_of(asked), "--framework", "megatron", "--json")
    told = json.loads(out)
    assert code == 0 and told["on"] == "A100 SXM4 80GB"
    assert any("A100 is presumed to be A100 SXM4 80GB" in said for said in told["warnings"])
    found = predict(question({**asked, "grad_accum": 8, "framework": "megatron"}))
    assert told["simulated_step_time_s"] == pytest.approx(found.simulated)
    assert told["simulated_step_time_s"] == pytest.approx(told["step_time_s"], rel=0.2)
    assert predict(question(TWO)).simulated is None


def test_what_does_not_fit_is_a_finding(trainrig) -> None:
    code, out, _ = trainrig(*words_of({"model": "llama-7B", "on": "RTX 4090"}), "--json")
    assert code == 1
    assert json.loads(out)["fits"] is False


REFUSED = [
    ({}, "missing --model", "--model gpt2-medium"),
    ({"model": "gpt2"}, "missing --on", "--on"),
    ({"model": "gpt2-medum", "on": "RTX 4090"}, "unknown model 'gpt2-medum'", "gpt2-medium"),
    ({"model": "gpt2", "on": "RTX 4091"}, "unknown chip: RTX 4091", "RTX 4090"),
    ({"model": "gpt2", "on": "RTX"}, "RTX is one of:", "the whole name"),
    (TWO | {"precision": "bf61"}, "unknown precision 'bf61'", "bf16"),
    (TWO | {"recompute": "selectiv"}, "unknown recompute 'selectiv'", "selective"),
    (TWO | {"kernels": "flush"}, "unknown kernels 'flush'", "flash"),
    (TWO | {"parallel": "dataparallel", "zero": 1}, "every weight on every GPU", "--zero 0"),
    (TWO | {"parallel": "dataparallel", "gpus": 16}, "on several nodes", "--gpus 8"),
    (TWO | {"framework": "megatrn"}, "unknown framework 'megatrn'", "megatron"),
    (TWO | {"optimizer": "adamm"}, "unknown optimizer 'adamm'", "adamw"),
    (TWO | {"schedule": "zigzag", "pp": 2}, "unknown schedule 'zigzag'", "1f1b"),
    (TWO | {"offload": "cloud"}, "unknown offload 'cloud'", "host"),
    (TWO | {"link": "nvlnk"}, "unknown link 'nvlnk'", "nvlink"),
    (TWO | {"tp": 3, "gpus": 3}, "16 heads cannot be split over 3", "1, 2, 4"),
    (TWO | {"pp": 32, "gpus": 32}, "24 layers are too few for 32 stages", "26 at most"),
    (TWO | {"gpus": -1}, "gpus = -1", "from 1"),
    (TWO | {"gpus": 0}, "gpus = 0", "from 1"),
    (TWO | {"gpus": 10**15}, "gpus = 1000000000000000", "from 1"),
    (TWO | {"batch_size": 0}, "batch-size = 0", "from 1"),
    (TWO | {"zero": 7}, "zero = 7", "0 to 3"),
    (TWO | {"seq_len": 4096}, "knows 1024 positions, not 4096", "--seq-len 1024"),
    (TWO | {"fabric_gbps": -3}, "a fabric of -3 Gb/s", "400"),
    (TWO | {"fabric_gbps": "nan"}, "a fabric of nan Gb/s", "400"),
    (TWO | {"fabric_gbps": 1e12}, "a fabric of 1e+12 Gb/s", "Gb/s"),
    (TWO | {"tokens": 0}, "not a number of tokens: '0'", "above 0"),
    (TWO | {"tokens": "inf"}, "not a number of tokens: 'inf'", "above 0"),
    (TWO | {"ep": 8}, "is dense: it has no experts to share", "--ep 1"),
    (TWO | {"cp": 3}, "2 GPUs cannot be divided", "3"),
    (TWO | {"what-if": "nvlnk"}, "unknown upgrade 'nvlnk'", "nvlink"),
    (TWO | {"what-if": "nvlink,,p2p"}, "an upgrade is missing", "ib-400"),
    (TWO | {"what-if": "+0gpu"}, "+0gpu adds nothing", "+1gpu"),
    (TWO | {"rates": "no-such-run"}, "no such run", "qualify"),
    (TWO | {"gpus": "two"}, "'two' is not a valid integer", "--help"),
    (TWO | {"lora_rank": -1}, "lora-rank = -1", "from 0"),
]


@pytest.mark.parametrize(("asked", "says", "hint"), REFUSED, ids=lambda v: str(v)[:50])
def test_bad_input_is_one_line_and_a_hint(trainrig, asked, says, hint) -> None:
    code, out, err = trainrig(*words_of(asked))
    assert code == 2
    assert out == ""
    message, told = err.splitlines()
    assert message.startswith("trainrig: ") and says in message
    assert told.startswith("  hint: ") and hint in told


def test_what_is_not_said_is_presumed() -> None:
    asked = question({"model": "gpt3-175B", "on": "A100 SXM4 80GB", "tp": 8, "pp": 4})
    layout = asked.layout
    assert (layout.mesh.gpus, layout.mesh.dp, layout.framework) == (32, 1, "megatron")
    assert (layout.batch.seq_len, layout.precision.compute, layout.kernels.stack) == (
        2048,
        "bf16",
        "flash+fused",
    )
    old = question({"model": "gpt2", "on": "V100 SXM2 16GB"}).layout
    assert (old.precision.compute, old.kernels.stack) == ("fp16", "eager")
    assert old.framework == "huggingface"
    sharded = question({"model": "gpt2", "on": "RTX 4090", "gpus": 4, "parallel": "fsdp"}).layout
    assert sharded.sharding.zero == 3
    counted = [{"on": "8x H100 SXM", "tp": 2}, {"on": "DGX H100", "tp": 8, "pp": 4}]
    found = [question({"model": "llama-7B"} | one).layout.mesh.gpus for one in counted]
    assert found == [8, 32]  # what is named is used, and more of it where that is not enough
    racks = [question({"model": "gpt2", "on": "GB200", "gpus": n}).layout for n in (72, 144, 128)]
    assert [one.mesh.gpus_per_node for one in racks] == [72, 72, 64]
    assert question({"model": "llama-8B", "on": "RTX 4090"}).layout.batch.seq_len == 4096


def test_utilisation_is_none_where_it_is_not_defined() -> None:
    adapters = predict(question(TWO | {"lora_rank": 8}))
    assert adapters.mfu is None and adapters.hfu is None
    assert prediction_dict(adapters)["mfu"] is None


def test_recomputation_adds_to_hfu_alone() -> None:
    kernels = {"kernels": "fused"}
    plain, some, full = (
        predict(question(TWO | kernels | {"recompute": how}))
        for how in ("none", "selective", "full")
    )
    assert plain.model_flops == some.model_flops == full.model_flops
    assert plain.hardware_flops == plain.model_flops
    # Scores and values once more, of 24 layers, 10 samples: 4·b·s²·h each.
    assert some.hardware_flops - some.model_flops == 24 * 4 * 10 * 1024**2 * 1024
    assert some.hardware_flops < full.hardware_flops < plain.model_flops * 4 / 3


def test_local_layers_of_gpt_neo_are_computed_again_as_they_were_before() -> None:
    asked = {"model": "gpt-neo-1.3B", "on": "A100 SXM4 80GB", "seq_len": 2048}
    plain, full, eager = (
        predict(question(asked | {"recompute": how, "kernels": kernels}))
        for how, kernels in (("none", "flash"), ("full", "flash"), ("full", "eager"))
    )
    assert full.hardware_flops - plain.hardware_flops == eager.hardware_flops - eager.model_flops


SITE = Cluster(chip=require_chip("RTX 3090 Ti"), gpus=2, gpus_per_node=2)


@pytest.mark.parametrize(
    ("word", "changed"),
    [
        ("nvlink", {"link": "nvlink"}),
        ("pcie", {"link": "pcie"}),
        ("p2p", {"p2p": True}),
        ("no-p2p", {"p2p": False}),
        ("ib-400", {"fabric": 50e9}),
        ("8xib-400", {"fabric": 400e9}),
        ("eth-100", {"fabric": 12.5e9}),
        ("+1gpu", {"gpus": 3, "gpus_per_node": 3}),
        ("+3 nodes", {"gpus": 8}),
    ],
)
def test_an_upgrade_changes_the_site(word, changed) -> None:
    ((_, (_, apply)),) = parse(word)
    assert apply(SITE) == SITE.replace(**changed)


def test_an_upgrade_changes_the_chip() -> None:
    slot, memory, power = (apply(SITE).chip for _, (_, apply) in parse("pcie5, +24GB, power=300W"))
    assert slot is not None and slot.pcie.generation == 5
    assert memory is not None and memory.memory.size == 48 * 2**30
    assert power is not None and power.board.tdp == 300.0


@pytest.mark.parametrize(
    ("chip", "word", "why"),
    [
        ("RTX 4090", "nvlink", "RTX 4090 has no NVLink"),
        ("RTX 4090", "power=3000W", "3000 W is no limit that RTX 4090"),
        ("RTX 4090", "power=10W", "10 W is no limit"),
    ],
)
def test_what_cannot_be_had_is_last_with_its_reason(chip, word, why) -> None:
    cluster = Cluster(chip=require_chip(chip))
    first, last = rank(cluster, f"{word}, +1gpu", lambda there: 10.0 * there.gpus, before=10.0)
    assert (first.name, first.tokens_per_s, first.gain) == ("+1gpu", 20.0, 1.0)
    assert last.tokens_per_s is None and why in (last.reason or "")


def test_upgrades_are_ranked_by_what_they_bring(trainrig) -> None:
    asked = {"model": "gpt2-medium", "on": "RTX 3090 Ti", "gpus": 2, "batch_size": 5}
    words = [*words_of(asked), "--framework", "megatron", "--kernels", "fused", "--link", "pcie"]
    _, out, _ = trainrig(*words, "--what-if", "power=200W,nvlink,+24GB", "--json")
    upgrades = json.loads(out)["upgrades"]
    assert [one["name"] for one in upgrades] == ["nvlink", "+24GB", "power=200W"]
    assert upgrades[0]["gain"] > 0.1 > upgrades[1]["gain"] >= 0.0 > upgrades[2]["gain"]


def test_what_is_not_in_the_catalog_cannot_be_upgraded() -> None:
    with pytest.raises(UsageError, match="cannot be upgraded"):
        ((_, (_, apply)),) = parse("+24GB")
        apply(Cluster(chip=None))


def test_a_table_prints_its_predictions_and_takes_no_other_options(trainrig, tmp_path) -> None:
    path = tmp_path / "cases.csv"
    path.write_text(
        "model,on,batch_size,seq_len,tp\ngpt2-medium,RTX 4090,4,1024,\ngpt2,RTX 4090,,,8\n"
    )
    code, out, _ = trainrig("predict", "--cases", str(path))
    assert code == 0
    text = " ".join(out.split())
    for words in ("row", "step", "80 % interval", " ms to ", " GiB", "memory a GPU"):
        assert words in text
    assert "12 heads" in text  # why eight GPUs cannot share them
    code, out, err = trainrig("predict", "--cases", str(path), "--precision", "fp8")
    assert (code, out) == (2, "") and "--precision beside --cases" in err


def test_a_table_that_is_none_is_one_line_and_a_hint(trainrig, tmp_path) -> None:
    path = tmp_path / "cases.csv"
    for content, says in (("a,b\n1,2\n", "unknown column 'a'"), (None, "cannot read")):
        path.unlink(missing_ok=True)
        if content is not None:
            path.write_text(content)
        code, out, err = trainrig("predict", "--cases", str(path), "--json")
        message, hint = err.splitlines()
        assert code == 2 and says in message and hint.startswith("  hint: ")
        assert says in json.loads(out)["error"]


def test_a_plan_that_cannot_be_written_is_shown_all_the_same(trainrig, tmp_path) -> None:
    """A search may take minutes: a full disk or a file in the way costs the files alone."""
    (tmp_path / "plans").write_text("a file, no folder", encoding="utf-8")
    words = ("--model", "gpt2", "--on", "RTX 4090", "--gpus", "2", "--global-batch", "8")
    asked = ("plan", *words, "--write", str(tmp_path / "plans"))
    code, out, err = trainrig(*asked)
    assert code == 3 and "layouts in" in out and "tokens/s" in out
    assert err.startswith("trainrig: cannot write ")
    code, out, _ = trainrig(*asked, "--json")
    assert code == 3 and json.loads(out)["schema"] == "trainrig.error/1"


def test_a_precision_that_a_chip_lacks_is_told() -> None:
    def told(chip: str, precision: str) -> tuple[str, ...]:
        return predict(question({"model": "gpt2", "on": chip, "precision": precision})).warnings

    assert "no bf16 rate is claimed of V100" in told("V100 SXM2 32GB", "bf16")[0]
    assert told("V100 SXM2 32GB", "fp16") == told("RTX 4090", "fp8") == ()


def test_fp8_on_a_chip_without_it_is_refused() -> None:
    with pytest.raises(UsageError, match="RTX 3090 has no fp8 products") as caught:
        question({"model": "gpt2", "on": "RTX 3090", "precision": "fp8"})
    assert caught.value.hint == "--precision bf16"


def test_measured_rates_of_another_device_are_refused() -> None:
    asked = {"model": "gpt2", "on": "RTX 4090"}
    with pytest.raises(UsageError, match="those of EPYC, not of RTX 4090"):
        question(asked, Measured(device="EPYC"))
    assert (
        question(asked, Measured(device="NVIDIA GeForce RTX 4090")).cluster.chip.name == "RTX 4090"
    )


def test_two_chips_are_refused_not_the_last_one_taken(trainrig) -> None:
    code, out, err = trainrig("plan", "--model", "gpt2", "--on", "RTX 4090", "--on", "RTX 3090")
    assert (code, out) == (2, "")
    assert "2 machines" in err and "hint: " in err


LONG = {"on": "H100 SXM5 80GB", "kernels": "flash+fused", "seq_len": 65536}


@pytest.mark.parametrize(
    "model",
    [
        *("nemotron-nano-9B-v2", "nemotron-h-8B", "qwen3-next-80B-A3B", "qwen3.5-9B"),
        *("nemotron-3-nano-30B-A3B", "deepseek-v4-flash", "modernbert-large", "llama3-8B"),
        *("mistral-7B-v0.1", "gemma-3-12B", "gemma-2-9B", "gpt-oss-20B"),
    ],
)
def test_no_model_computes_more_than_the_chip_can(model: str) -> None:
    found = predict(question({**LONG, "model": model}))
    assert found.mfu is not None and found.mfu_half is not None and found.hfu_half is not None
    assert 0.0 < found.mfu_half < found.hfu_half < 1.0
    assert found.mfu_half < found.mfu < 2.0 * found.mfu_half
    told = prediction_dict(found)
    assert told["mfu_causal_half"] == found.mfu_half
    assert told["hfu_causal_half"] == found.hfu_half


def test_causal_attention_by_half_is_said_beside_it(trainrig) -> None:
    asked = {"model": "llama3-8B", "on": "8x H100 SXM", "seq-len": 131072, "recompute": "full"}
    _, out, _ = trainrig(*words_of(asked | {"cp": 8}))
    assert re.search(r"causal half: +MFU \d+ %, HFU \d+ %", out)
    _, out, _ = trainrig(*words_of({"model": "bert-large", "on": "RTX 4090"}))
    assert "MFU" in out and "causal half" not in out
