"""What stands for options that were not given: what people run, overridden by every flag."""

from __future__ import annotations

from typing import Any

import pytest

from trainrig.errors import UsageError
from trainrig.prediction.as_json import fits_dict, prediction_dict
from trainrig.prediction.fit.methods import fits
from trainrig.prediction.prediction import predict
from trainrig.prediction.scenario import Question, question
from trainrig.report.presumed_text import program_text
from trainrig.runner.layout_search import plan
from trainrig.workload.layout import PLACES

ADAPTED = {"model": "qwen2.5-7B", "on": "RTX 4090", "lora_rank": 16}
LARGE = {"model": "llama-7B", "on": "A100 SXM4 80GB"}


def asked(given: dict[str, Any], **more: Any) -> Question:
    return question(given | more)


def text(found: Question) -> str:
    assert found.presumed is not None
    return program_text(found.presumed, found.layout)


@pytest.mark.parametrize("gpus", [1, 2, 8])
def test_adapters_are_hugging_face_s_with_checkpointing_on_any_number_of_gpus(gpus: int) -> None:
    found = asked(ADAPTED, gpus=gpus, quantize="nf4")
    assert (found.program.key, found.layout.memory.recompute) == ("huggingface", "full")
    assert "adapters" in text(found)


@pytest.mark.parametrize("gpus", [1, 2, 8])
def test_a_large_model_on_one_machine_is_tuned_with_checkpointing(gpus: int) -> None:
    found = asked(LARGE, gpus=gpus)
    assert (found.program.key, found.layout.memory.recompute) == ("huggingface", "full")


def test_a_small_model_on_one_card_is_trained_by_hugging_face_without_it() -> None:
    found = asked({"model": "gpt2-medium", "on": "RTX 3090"})
    assert (found.program.key, found.layout.memory.recompute) == ("huggingface", "none")


@pytest.mark.parametrize(
    ("layout", "program", "zero"),
    [({"zero": 3}, "torchtitan", 3), ({"tp": 8}, "megatron-lm", 1), ({}, "megatron-lm", 1)],
)
def test_over_machines_the_layout_tells_the_program(
    layout: dict[str, Any], program: str, zero: int
) -> None:
    found = asked(LARGE, gpus=64, gpus_per_node=8, **layout)
    assert (found.program.key, found.layout.sharding.zero) == (program, zero)


def test_one_machine_is_as_many_gpus_as_its_server_has() -> None:
    on_one = asked(LARGE, gpus=16, gpus_per_node=16)
    on_two = asked(LARGE, gpus=16, gpus_per_node=8)
    assert (on_one.program.key, on_two.program.key) == ("huggingface", "megatron-lm")


def test_unsloth_is_qlora_unless_told_otherwise() -> None:
    bare = {"model": "qwen2.5-7B", "on": "RTX 4090", "framework": "unsloth"}
    found = asked(bare)
    assert (found.layout.lora.rank, found.layout.lora.quantize) == (16, "nf4")
    assert found.layout.batch.seq_len == 2048
    assert text(found).startswith("Unsloth: QLoRA nf4 rank 16, gradient checkpointing, sequence")
    assert asked(bare, lora_rank=8).layout.lora.quantize == "none"
    assert asked(bare, method="full").layout.lora.rank == 0
    assert asked(bare, method="lora").layout.lora.quantize == "none"


def test_a_program_s_rank_stands_where_adapters_have_none() -> None:
    found = asked({"model": "qwen2.5-7B", "on": "RTX 4090", "framework": "axolotl"}, method="lora")
    assert found.layout.lora.rank == 32


def test_zero_of_llama_factory_is_deepspeed_s() -> None:
    tuned = {"model": "qwen2.5-7B", "on": "A100 SXM4 80GB", "gpus": 8}
    assert asked(tuned, framework="llamafactory").layout.framework == "huggingface"
    assert asked(tuned, framework="llamafactory", zero=3).layout.framework == "deepspeed"
    assert asked(tuned, framework="huggingface", zero=3).layout.framework == "huggingface"


def test_tensor_parallel_torchtitan_and_megatron_split_the_sequence() -> None:
    for framework in ("torchtitan", "megatron"):
        found = asked(LARGE, gpus=8, tp=8, framework=framework)
        assert found.layout.mesh.sequence_parallel == 1, framework
        assert asked(LARGE, gpus=8, tp=8, framework=framework, sequence_parallel=0).layout
    assert asked(LARGE, gpus=8, tp=8, framework="native").layout.mesh.sequence_parallel == 0


def test_what_is_presumed_gives_way_where_it_cannot_be() -> None:
    found = asked(LARGE, gpus=8, tp=8, framework="megatron", seq_len=1001)
    assert found.layout.mesh.sequence_parallel == 0
    assert found.presumed is not None
    assert "sequence_parallel" not in found.presumed.fields()


GIVEN: dict[str, Any] = {
    "seq_len": 1024,
    "batch_size": 2,
    "precision": "bf16",
    "kernels": "flash",
    "recompute": "selective",
    "zero": 1,
    "optimizer": "adamw",
    "states": "masters",
    "lora_rank": 0,
    "quantize": "none",
    "loss": "whole",
    "moments": "fp32",
    "overlap": "none",
    "grad_reduce": "fp32",
    "cuda_graphs": "none",
    "software": "current",
}


@pytest.mark.parametrize("program", ["unsloth", "trl", "axolotl", "torchtune", "nanogpt", "mlx"])
def test_no_flag_is_overridden(program: str) -> None:
    found = asked(LARGE, gpus=8, framework=program, **GIVEN)
    assert {key: found.layout.get(key) for key in GIVEN} == GIVEN
    assert found.presumed is not None
    assert not GIVEN.keys() & found.presumed.fields().keys()


def test_programs_of_one_engine_differ_in_nothing_where_all_is_given() -> None:
    names = ("huggingface", "trl", "torchtune")
    times = {predict(asked(LARGE, gpus=8, framework=name, **GIVEN)).time for name in names}
    assert len(times) == 1


@pytest.mark.parametrize(
    "given", [ADAPTED, {**LARGE, "gpus": 64, "gpus_per_node": 8}, {**LARGE, "framework": "trl"}]
)
def test_json_says_the_program_and_what_is_presumed(given: dict[str, Any]) -> None:
    found = prediction_dict(predict(question(given)))
    assert found["program"]
    assert (found["program_because"] is None) == ("framework" in given)
    assert {one["key"] for one in found["presumed"]} >= {"recompute", "kernels", "batch_size"}
    assert all(one["because"] and one["key"] in PLACES for one in found["presumed"])
    assert not {one["key"] for one in found["presumed"]} & given.keys()


def test_fits_names_it_likewise() -> None:
    found = fits_dict(fits({"model": "qwen2.5-7B", "on": "RTX 4090", "framework": "unsloth"}))
    assert found["program"] == "unsloth"
    assert found["method"] == "qlora"


def test_a_plan_s_best_layout_asked_by_flags_takes_the_same_time() -> None:
    model = {"model": "llama-7B", "on": "A100 SXM4 80GB", "gpus": 16, "gpus_per_node": 8}
    found = plan({**model, "global_batch": 64})
    best = found.answer.layout
    sizes = ("tp", "pp", "cp", "interleave", "batch_size", "grad_accum", "zero", "shard_size")
    flags = {key: best.get(key) for key in (*sizes, "sequence_parallel", "recompute", "schedule")}
    alike = predict(question({**model, **flags}))
    assert alike.layout == best
    assert alike.time == pytest.approx(found.answer.time)


# ---- the software of a year


def test_a_year_has_the_kernels_of_its_time() -> None:
    small = {"model": "gpt2-medium", "on": "A100 SXM4 80GB"}
    stacks = {
        year: asked(small, software=year).layout.kernels.stack
        for year in ("2020", "2021", "2022", "2023", "2024", "2026")
    }
    assert stacks == {
        **dict.fromkeys(("2020", "2021", "2022", "2023"), "eager"),
        **dict.fromkeys(("2024", "2026"), "flash"),
    }
    assert asked(small, software="2020").layout.precision.compute == "fp16"
    assert asked(small, software="2022").layout.kernels.software == "torch1"
    found = asked(small, software="2022", framework="megatron")
    assert found.layout.kernels.stack == "fused"


def test_a_program_s_traits_are_those_of_the_year() -> None:
    split = {**LARGE, "gpus": 64, "gpus_per_node": 8, "tp": 2, "framework": "megatron"}
    assert asked(split, software="2022").layout.sharding.zero == 0
    assert asked(split, software="2025").layout.sharding.zero == 1


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"software": "2021", "kernels": "flash"}, "--kernels flash and --software 2021"),
        ({"software": "2022", "quantize": "nf4"}, "--quantize nf4 and --software 2022"),
        ({"software": "2022", "framework": "unsloth"}, "--framework unsloth and --software 2022"),
        ({"software": "2019"}, "unknown software '2019'"),
    ],
)
def test_what_came_later_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message) as refused:
        asked(LARGE, **given)
    assert refused.value.hint
