"""What tables say of memory: kinds of figures, recomputation, what stays on the host."""

from __future__ import annotations

import pytest
from validation.normalise.answers import memory_of
from validation.normalise.case import case_of

from trainrig.workload.model_lookup import spelled
from trainrig.workload.numerics import has_dropout

ROW = {"chip": "A100 SXM4 80GB", "num_gpus": "8", "layers": "32", "hidden": "4096", "seq": "2048"}
ROW |= {"heads": "32", "ffn": "11008", "vocab": "32000", "global_batch": "64", "micro_batch": "1"}


def test_a_program_s_log_tells_whose_bytes_it_prints_where_a_row_does_not() -> None:
    kinds = {
        case_of(ROW | {"framework": name, "memory_kind": kind}).memory_kind
        for name, kind in (("Megatron-LM", ""), ("torchtitan", "max_memory_allocated"))
    }
    assert kinds == {"allocated"}
    assert case_of(ROW | {"framework": "torchtitan"}).memory_kind == "reserved"


@pytest.mark.parametrize(
    ("words", "policy"),
    [("full, block, 4 layers", "none"), ("block 28", "full"), ("full, uniform, 1 layer", "full")],
)
def test_some_layers_of_a_stage_are_computed_again(words: str, policy: str) -> None:
    assert (
        case_of(ROW | {"framework": "Megatron-LM", "recompute": words}).layout.memory.recompute
        == policy
    )


def test_megatron_s_gpt_has_dropout_with_experts_too() -> None:
    row = ROW | {
        "framework": "Megatron-LM",
        "kernel_stack": "Transformer Engine, unfused attention",
    }
    mixed = {"model": "gpt3_moe", "num_experts": "8", "topk": "2"}
    found, other = (case_of(row | mixed | {"model": n}) for n in ("gpt3_moe", "mixtral_moe"))
    assert has_dropout(found.shape, found.layout) and not has_dropout(other.shape, other.layout)


@pytest.mark.parametrize("words", ["eager, from-scratch attention", "naive self-attention"])
def test_attention_written_by_hand_has_its_scores_in_memory(words: str) -> None:
    row = ROW | {"framework": "PyTorch 2.6 script", "date": "2025-03"}
    assert case_of(row | {"kernel_stack": words}).layout.kernels.stack == "eager"
    assert case_of(row | {"kernel_stack": "eager"}).layout.kernels.is_flash


def test_no_run_prints_more_than_its_card_has() -> None:
    row = {"model": "Llama 2 7B", "hardware": "H100 SXM5 80GB", "num_gpus": "1", "seq": "8192"}
    row |= {"micro_batch": "16", "recompute": "none", "kernel_stack": "flash", "precision": "bf16"}
    case = case_of(row)
    low, middle, high = memory_of(case)
    assert low <= 0.5 * case.rates.memory_bytes < middle <= high <= case.rates.memory_bytes


def test_inputs_that_wait_on_the_host_are_not_on_the_device() -> None:
    row = {"model": "Qwen3 8B", "hardware": "GB200", "num_gpus": "1", "seq": "8192", "kind": "lora"}
    row |= {"micro_batch": "1", "recompute": "full", "precision": "bf16", "framework": "Axolotl"}
    here, away = (
        memory_of(case_of(row | {"offload": where}))[1] for where in ("none", "activations to host")
    )
    assert here - away > 0.9 * 34 * 2 * 8192 * 4096


def test_deepspeed_deals_fp32_states_beside_bf16_at_any_stage() -> None:
    row = {"model": "Llama 2 7B", "hardware": "MI250X GCD", "num_gpus": "16", "zero_stage": "0"}
    row |= {"seq": "2048", "framework": "Megatron-DeepSpeed", "micro_batch": "1"}
    stages = (case_of(row | {"precision": name}).layout.sharding.zero for name in ("bf16", "fp16"))
    assert tuple(stages) == (1, 0)


def test_prime_rl_has_no_whole_logits_of_what_models_wrote() -> None:
    row = {"model": "Qwen3 0.6B", "hardware": "H100 SXM5 80GB", "num_gpus": "1", "seq": "16384"}
    row |= {"micro_batch": "1", "recompute": "full", "kind": "finetune"}
    names = ("prime-rl RL trainer", "prime-rl SFT trainer")
    written, read = (memory_of(case_of(row | {"framework": name}))[1] for name in names)
    assert read - written > 10 * 16384 * 151936


def test_what_does_not_fit_has_no_scores_in_memory() -> None:
    row = {"model": "GPT 7B", "layers": "32", "hidden": "4096", "hardware": "A100 40GB, SXM4"}
    row |= {"num_gpus": "32", "tp": "2", "zero_stage": "2", "framework": "Megatron-DeepSpeed"}
    row |= {"seq": "4096", "precision": "fp16", "date": "2022-03"}
    few, many = (case_of(row | {"micro_batch": size}).layout.kernels.stack for size in ("1", "8"))
    assert (few, many) == ("fused", "flash")


def test_a_part_of_the_activations_is_not_all_of_them() -> None:
    row = {"model": "Qwen3 8B", "hardware": "GB200", "num_gpus": "1", "seq": "8192", "kind": "lora"}
    words = (
        "activations to host",
        "expert-FC1 activations to host",
        "Adam to host, activations to host",
    )
    assert [case_of(row | {"offload": one}).offloads_checkpoints for one in words] == [
        True,
        False,
        True,
    ]


def test_experts_that_stay_on_the_host_are_not_on_the_device() -> None:
    row = {"model": "DeepSeek-V2-Lite", "hardware": "RTX 4090", "num_gpus": "1", "kind": "lora"}
    row |= {"seq": "512", "micro_batch": "1", "precision": "bf16", "framework": "LLaMA-Factory"}
    middle = memory_of(case_of(row | {"offload": "experts on the CPU (AMX)"}))[1]
    assert 2e9 < middle < 8e9
    here = memory_of(case_of(row | {"offload": "optimizer to host, experts in bf16"}))[1]
    assert here > 2.0 * middle, "of a format, not of a place"


def test_gradients_are_summed_in_what_is_said() -> None:
    row = ROW | {"framework": "Megatron-Bridge", "precision": "bf16"}
    words = {"": 0, "+ bf16 gradient reduction": 2, "fp32 grad reduce": 4}
    found = [case_of(row | {"kernel_stack": name}).layout.precision.reduce_bytes for name in words]
    assert found == list(words.values())


def test_a_family_s_name_may_have_its_size_behind_it() -> None:
    texts = ("GLM-5.1 757B MoE", "GLM 5 744B-A40B", "GLM-5 9B", "GLM-5 0B")
    named = [spelled(text) for text in texts]
    assert [shape and shape.name for shape in named] == ["glm-5", "glm-5", None, None]


def test_gradients_on_the_host_leave_fsdp_s_weights_on_the_device() -> None:
    row = {"model": "Qwen3 4B", "hardware": "H200", "num_gpus": "8", "seq": "2048", "kind": "sft"}
    row |= {"micro_batch": "1", "recompute": "full", "precision": "bf16", "framework": "FSDP2"}
    places = ("optimizer and gradients to host", "parameters, gradients and optimizer to host")
    stay, leave = (memory_of(case_of(row | {"offload": where}))[1] for where in places)
    assert 0.8 * 4.0e9 * 2 / 8 < stay - leave < 1.6 * 4.4e9 * 2 / 8
