"""Beside which matrices adapters lie: by choice, and by what each program does of itself."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainrig.catalog import require_chip
from trainrig.prediction.rates.from_chip import rates_of_chip
from trainrig.prediction.step import predict_step
from trainrig.workload import named
from trainrig.workload.adapters import adapter_parameters
from trainrig.workload.layout import Layout
from trainrig.workload.layout.groups import LORA_ON
from trainrig.workload.memory import memory
from trainrig.workload.memory.pipeline_stage import stage_of
from trainrig.workload.model import matrices

MIXTURE = named("gpt-oss-120B")
CHOICES = [on for on in LORA_ON if on != "auto"]


def _trained(**layout: object) -> float:
    found = Layout.of(lora_rank=16, seq_len=128, **layout)  # type: ignore[arg-type]
    return float(stage_of(MIXTURE, found, "last").num_trained)


def test_each_program_finds_the_matrices_that_its_library_does() -> None:
    """peft's all-linear sees no experts that are one tensor; Megatron-Bridge's share one pair."""
    attention = _trained(lora_on="attention")
    assert _trained(framework="huggingface") == _trained(framework="deepspeed") == attention
    assert _trained(framework="huggingface", experts="modules") == _trained(lora_on="all")
    experts = 36 * 16 * 3 * (MIXTURE.hidden + MIXTURE.expert_width)
    assert _trained(framework="megatron") == pytest.approx(attention + experts)
    assert _trained(lora_on="all") > attention + 128 * experts


def test_known_to_train_in_the_memory_of_one_card() -> None:
    tuned = {"lora_rank": 16, "quantize": "fp4", "recompute": "full", "framework": "huggingface"}
    assert memory(MIXTURE, Layout.of(**tuned, seq_len=1024)).total < 80 * 2**30  # type: ignore[arg-type]


@given(st.sampled_from(["llama-8B", "deepseek-v3", "gpt-oss-120B"]), st.integers(1, 128))
def test_each_choice_takes_no_more_than_the_next_wider_one(model: str, rank: int) -> None:
    shape = named(model)
    sizes = {on: float(adapter_parameters(shape, rank, on=on)) for on in CHOICES}
    assert sizes["qkv"] < sizes["attention"] <= sizes["linear"] <= sizes["shared"] <= sizes["all"]
    if not shape.moe.num_experts:
        by_hand = rank * sum(each.wide_in + each.wide_out for each in matrices(shape))
        assert sizes["linear"] == sizes["shared"] == sizes["all"] == by_hand


@given(st.sampled_from([1, 2, 4, 8, 16, 32]))
def test_ranks_share_the_adapters_of_experts_and_no_others(ep: int) -> None:
    one, part = (_trained(lora_on="all", gpus=32, ep=size) for size in (1, ep))
    rest = _trained(lora_on="linear") + 36 * 16 * (MIXTURE.hidden + MIXTURE.moe.num_experts)
    assert part - rest == pytest.approx((one - rest) / ep)
    assert _trained(lora_on="shared", gpus=32, ep=ep) == _trained(lora_on="shared", gpus=32)


def test_rows_as_many_as_the_rank_are_no_adapters() -> None:
    """Four samples of 512 tokens, 8 of 256 experts each: 64 rows an expert, and a rank of 64."""
    shape, rates = named("deepseek-v3"), rates_of_chip(require_chip("MI300X"))
    one = Layout.of(
        batch_size=4,
        seq_len=512,
        precision="fp8",
        kernels="flash+fused",  # type: ignore[arg-type]
        lora_rank=64,
        lora_on="all",
        framework="megatron",  # type: ignore[arg-type]
    )
    both = one.replace(batch_size=np.array([4, 4]))
    assert predict_step(shape, both, rates).forward == pytest.approx(
        predict_step(shape, one, rates).forward
    )


def test_shared_experts_keep_what_their_adapters_read() -> None:
    shape = named("deepseek-v3")
    layouts = {
        on: Layout.of(gpus=8, seq_len=512, lora_rank=8, lora_on=on, framework="huggingface")
        for on in ("attention", "linear", "all")
    }
    held = {on: float(memory(shape, layout).activations) for on, layout in layouts.items()}
    assert held["attention"] < held["linear"] < held["all"]
