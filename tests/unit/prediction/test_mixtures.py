"""Mixtures of experts: their parameters, what a rank has of them, and the way of the tokens."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from validation.normalise.answers import time_of
from validation.normalise.case import case_of

from trainrig.catalog import require_chip
from trainrig.errors import UsageError
from trainrig.prediction.rates.from_chip import rates_of_chip
from trainrig.prediction.search import search
from trainrig.prediction.search.space import Space, layouts
from trainrig.prediction.step import predict_step
from trainrig.workload.blocks import block
from trainrig.workload.layout import Layout, check_layout
from trainrig.workload.memory import memory
from trainrig.workload.model import block_parameters, expert_parameters, parameters
from trainrig.workload.model_lookup import find, spelled
from trainrig.workload.operators import Operator
from trainrig.workload.presets import custom, named

H100 = rates_of_chip(require_chip("H100 SXM5 80GB"), link="nvlink", fabric=400e9)
MIXTRAL, DEEPSEEK = named("mixtral-8x7B"), named("deepseek-v3")
MEGATRON = Layout.of(
    gpus=64, seq_len=4096, grad_accum=8, framework="megatron", kernels="flash+fused", zero=1
)


@pytest.mark.parametrize(
    ("name", "billions", "active"),
    [  # as their reports and cards state them
        ("mixtral-8x7B", 46.7, 12.9),
        ("mixtral-8x22B", 141.0, 39.0),
        ("grok-1", 314.0, None),
        ("dbrx", 132.0, 36.0),
        ("deepseek-v2", 236.0, 21.0),
        ("deepseek-v3", 671.0, 37.0),
        ("kimi-k2", 1040.0, 32.0),
        ("qwen3-30B-A3B", 30.5, 3.3),
        ("qwen3-235B-A22B", 235.0, 22.0),
        ("gpt-oss-120B", 116.8, 5.7),
        ("llama4-maverick", 400.0, 17.0),
        ("olmoe-1B-7B", 6.9, 1.3),
    ],
)
def test_published_mixtures_have_as_many_parameters_as_they_say(
    name: str, billions: float, active: float | None
) -> None:
    shape = named(name)
    assert parameters(shape).total / 1e9 == pytest.approx(billions, rel=0.02)
    if active:
        used = shape.replace(num_experts=shape.moe.experts_per_token)
        assert parameters(used).total / 1e9 == pytest.approx(active, rel=0.04)


def flops(parts: list[Operator]) -> int:
    return sum(part.forward.flops for part in parts if part.name.startswith("ffn."))


def test_a_token_is_computed_by_its_experts_and_the_shared_ones() -> None:
    layout = Layout.of(seq_len=128)
    h, tokens = DEEPSEEK.hidden, 128
    experts = 2 * tokens * 3 * h * 2048 * (8 + 1) + 2 * tokens * h * 256
    assert flops(block(DEEPSEEK, layout)) == experts
    assert flops(block(DEEPSEEK, layout, dense=True)) == 2 * tokens * 3 * h * 18432


@pytest.mark.parametrize(("tp", "ep"), [(1, 8), (2, 4), (8, 8), (4, 2)])
def test_ranks_share_the_work_of_experts_whichever_way_they_split_them(tp: int, ep: int) -> None:
    layout = MEGATRON.replace(tp=tp, ep=ep, sequence_parallel=int(tp > 1))
    whole, share = block(MIXTRAL, MEGATRON), block(MIXTRAL, layout)
    routed = ("ffn.up", "ffn.gate", "ffn.down", "ffn.activation")
    for one, part in zip(whole, share, strict=True):
        if one.name in routed:
            assert part.forward.flops * tp == one.forward.flops, one.name


def test_matrices_of_experts_are_dealt_whole_where_too_few_ranks_could_split_them() -> None:
    assert MEGATRON.replace(tp=8, ep=8).mesh.expert_tp == 8
    assert MEGATRON.replace(tp=8, pp=2, ep=8).mesh.expert_tp == 1


def test_memory_of_experts_is_that_of_the_ranks_that_share_them() -> None:
    """Eight ranks that share all experts: an eighth of them each, and the rest whole."""
    alone, shared = memory(MIXTRAL, MEGATRON), memory(MIXTRAL, MEGATRON.replace(ep=8))
    experts = MIXTRAL.num_layers * expert_parameters(MIXTRAL)
    saved = 2 * experts * 7 / 8  # two bytes each
    assert alone.weights - shared.weights == pytest.approx(saved, rel=1e-6)
    # Sharded over all 64 ranks before, over the eight with the same experts then: as many bytes.
    assert shared.optimizer == pytest.approx(alone.optimizer, rel=1e-6)


def test_tokens_travel_only_where_experts_are_elsewhere() -> None:
    alone = predict_step(MIXTRAL, MEGATRON, H100)
    inside = predict_step(MIXTRAL, MEGATRON.replace(ep=8), H100)
    across = predict_step(named("deepseek-v2"), MEGATRON.replace(ep=16), H100)
    within = predict_step(named("deepseek-v2"), MEGATRON.replace(ep=8), H100)
    assert alone.expert_comm == 0.0 < inside.expert_comm < 0.3 * inside.total
    assert across.expert_comm > 2 * within.expert_comm
    assert inside.data_comm < alone.data_comm  # gradients of an eighth of the experts


def test_all_ranks_of_a_node_send_through_its_fabric_at_once() -> None:
    """All-to-all of 16 ranks of two nodes: half of each rank's bytes leave the node."""
    size, links = 1 << 30, H100.links
    seconds = links.collective("all_to_all", size, 16, 8)
    least = 8 * size / 2 / links.between.bandwidth
    assert least < seconds < 1.2 * least


def test_small_shares_of_many_experts_run_slower_than_a_few_large_ones() -> None:
    """As many FLOPs for each token in 64 narrow experts of 256 tokens as in 8 of 2,048."""
    sizes = {"num_layers": 8, "hidden": 2048, "num_heads": 16}
    few = custom("llama", **sizes, ffn=8192, num_experts=8, experts_per_token=2)
    many = custom("llama", **sizes, ffn=1024, num_experts=64, experts_per_token=16)
    layout = Layout.of(seq_len=2048, kernels="flash+fused")
    slower = predict_step(many, layout, H100).forward / predict_step(few, layout, H100).forward
    assert 1.02 < slower < 3.0


def test_experts_are_not_dealt_to_more_ranks_than_there_are() -> None:
    with pytest.raises(UsageError, match="8 experts cannot be dealt to 16 ranks"):
        check_layout(MIXTRAL, MEGATRON.replace(ep=16))
    with pytest.raises(UsageError, match="dense"):
        check_layout(named("llama-7B"), MEGATRON.replace(ep=8))


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Grok 1 314b Dev", "grok-1"),
        ("Deepseek V3", "deepseek-v3"),
        ("LLAMA4 maverick 400b", "llama4-maverick"),
        ("DeepSeek-V2-Lite", "deepseek-v2-lite"),
        ("Llama 2 7B", "llama-7B"),
    ],
)
def test_models_are_known_as_people_write_them(text: str, name: str) -> None:
    assert spelled(text) == named(name)


def test_a_model_may_be_asked_for_in_another_spelling() -> None:
    assert find("llama-2-7b") == named("llama-7B")
    assert spelled("some model of 7B") is None


ROW = {
    "chip": "H100 SXM5 80GB",
    "num_gpus": "512",
    "gpus_per_node": "8",
    "link": "nvlink",
    "fabric_gbps_per_node": "3200",
    "framework": "NVIDIA NeMo",
    "model": "Deepseek V3",
    "seq": "4096",
    "global_batch": "4096",
    "micro_batch": "1",
    "tp": "2",
    "pp": "8",
    "ep": "64",
    "zero_stage": "1",
    "seq_parallel": "True",
    "dtype": "bf16",
    "kernel_stack": "flash+fused",
}


def test_a_row_may_leave_a_models_numbers_to_its_name() -> None:
    case = case_of(ROW)
    assert (case.shape, case.layout.mesh.ep) == (DEEPSEEK, 64)
    low, middle, high = time_of(case)
    assert low < 48.948 < high and middle == pytest.approx(48.948, rel=0.25)


def test_what_a_row_states_of_a_mixture_counts() -> None:
    stated = {"layers": "16", "hidden": "2048", "heads": "16", "ffn": "8192", "ep": "8"}
    stated |= {"num_experts": "64", "topk": "6", "moe_ffn": "1408", "shared_experts": "2"}
    shape = case_of(ROW | stated | {"model": "ours", "first_dense_layers": "1"}).shape
    assert (shape.moe.num_experts, shape.moe.experts_per_token, shape.expert_width) == (64, 6, 1408)
    assert (shape.moe.shared_experts, shape.moe.dense_layers, shape.ffn.width) == (2, 1, 8192)
    assert block_parameters(shape) > block_parameters(shape, dense=True) > 0


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"num_gpus": "16", "pp": "1", "ep": "8"}, "layers: not stated, and deepseek-v3 whole"),
        ({"model": "our MoE"}, "layers: not stated"),
        ({"hidden": "5120"}, "hidden = 5120: deepseek-v3 has 7168"),
    ],
)
def test_a_row_that_cannot_be_what_it_is_named_is_refused(
    changed: dict[str, str], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        case_of(ROW | changed)


def test_mixtures_that_were_measured_are_predicted() -> None:
    """Whole models of the published rows, none of which fitted a constant: half within 15 %."""
    table = Path(__file__).parents[3] / "validation" / "published" / "training-2.csv"
    with table.open() as file:
        rows = [row for row in csv.DictReader(file) if row["ep"] not in ("", "1")]
    whole = [row for row in rows if int(row["num_gpus"]) >= 512]  # others are cut down unsaid
    pairs = [(time_of(case_of(row))[1], float(row["step_time_s"])) for row in whole]
    off = sorted(abs(predicted / measured - 1.0) for predicted, measured in pairs)
    assert len(off) > 20 and off[len(off) // 2] < 0.15


def test_a_search_deals_experts_to_ranks_where_they_fit_nowhere_else() -> None:
    """On 16 GPUs of 80 GB, of which one holds no block of 46.7 billion parameters by itself."""
    base = Layout.of(gpus=16, seq_len=2048, kernels="flash+fused", framework="megatron")
    space = Space(shape=MIXTRAL, base=base, global_batch=64, framework="megatron")
    found = search(space, H100)
    assert {int(ep) for group in layouts(space) for ep in group.mesh.ep} == {1, 2, 4, 8}
    assert found.best[0].layout.mesh.ep > 1
    dense = search(space.replace(shape=named("llama-7B")), H100)
    assert {one.layout.mesh.ep for one in dense.best} == {1}


def test_each_expert_of_a_grouped_product_is_a_call_of_the_host() -> None:
    row = {"chip": "H100", "model": "Qwen3-30B-A3B", "num_gpus": "16", "framework": "Megatron-Core"}
    row |= {"date": "2026-01", "seq": "512", "micro_batch": "1", "global_batch": "16"}
    few, many = (case_of(row | {"ep": ep}) for ep in ("16", "2"))
    gaps = [predict_step(case.shape, case.layout, case.rates).gaps for case in (few, many)]
    assert gaps[0] < 0.8 * gaps[1]


def test_a_printed_size_may_be_of_the_dense_model_that_experts_were_put_into() -> None:
    row = {"chip": "A100", "num_gpus": "8", "layers": "24", "hidden": "1024", "heads": "16"}
    row |= {"vocab": "50432", "params_b": "0.41", "model": "open_lm_410m"}
    dense, mixed = (case_of(row | more).shape for more in ({}, {"num_experts": "8", "topk": "2"}))
    assert mixed.expert_width == dense.ffn.width
    whole = case_of(row | {"num_experts": "8", "topk": "2", "params_b": "1.2"}).shape
    assert whole.expert_width < dense.ffn.width, "a mixture's own"


def test_a_router_fills_some_rank_more_than_others_unless_tokens_are_dealt_evenly() -> None:
    row = {"chip": "H100", "model": "Qwen3-30B-A3B", "num_gpus": "16", "ep": "16", "seq": "4096"}
    real, even = (case_of(row | {"framework": name}) for name in ("Pai-Megatron", "NeMo"))
    assert even.layout.most_routed(128) == 1.0
    assert 1.2 < real.layout.most_routed(128) < 1.3
    parts = (sum(op.forward.flops for op in block(c.shape, c.layout)) for c in (real, even))
    assert next(parts) > 1.05 * next(parts)


def test_a_stated_spread_of_the_router_costs_a_layout_and_a_search_the_same() -> None:
    layout = MEGATRON.replace(ep=8, pp=2, router_spread=0.3)
    times = [
        float(predict_step(MIXTRAL, layout.replace(router_spread=spread), H100).total)
        for spread in (0.0, 0.1, 0.3, 0.9)
    ]
    assert times == sorted(set(times)), "slower the less evenly tokens are dealt"
    assert predict_step(MIXTRAL, layout.replace(ep=1), H100).total == pytest.approx(
        predict_step(MIXTRAL, layout.replace(ep=1, router_spread=0.0), H100).total
    ), "one rank has all experts"
    many = layout.replace(ep=np.array([1, 2, 4, 8]))
    alone = [predict_step(MIXTRAL, many.at(place), H100).total for place in range(4)]
    assert predict_step(MIXTRAL, many, H100).total == pytest.approx(alone)
    assert many.most_routed(2)[1] <= 2.0, "a rank has no more than all tokens"


@pytest.mark.parametrize("split", [{"tp": "1", "pp": "16"}, {"tp": "8", "pp": "8"}, {}])
def test_experts_are_spread_as_far_as_memory_asks_where_a_row_does_not_say(split) -> None:
    row = {"chip": "H800", "model": "deepseek-v3", "num_gpus": "2048", "precision": "fp8"}
    row |= {
        "framework": "Megatron-Core",
        "seq": "4096",
        "global_batch": "15360",
        "kind": "pretrain",
    }
    found = case_of(row | split)
    assert found.layout.mesh.ep >= 16 and "ep" in found.presumed
    assert all(found.layout.get(name) == int(size) for name, size in split.items())
    stated = case_of(row | split | {"ep": str(found.layout.mesh.ep)})
    assert stated.layout == found.layout or not split


def test_a_dense_row_has_no_router() -> None:
    row = {"chip": "H100", "model": "llama3-8b", "num_gpus": "8", "framework": "Pai-Megatron"}
    assert case_of(row | {"seq": "4096"}).layout.moe.router_spread == 0.0


def test_torch_sorts_tokens_slower_than_a_kernel_of_its_own() -> None:
    shape = named("qwen3-30B-A3B")
    layout = Layout.of(gpus=8, ep=8, seq_len=4096, batch_size=4, zero=3, kernels="compiled")
    plain = predict_step(shape, layout, H100)
    fused = predict_step(shape, layout.replace(experts="sorted"), H100)
    elements = 4 * 4096 * shape.moe.experts_per_token * shape.hidden * shape.num_layers
    most = (50 + 88) * elements / (0.8 * 3.35e12)
    assert 0.2 * most < plain.forward + plain.backward - fused.forward - fused.backward < most


def test_a_sparse_model_looks_at_all_where_no_kernel_is_named() -> None:
    row = {"hardware": "8x B300", "model": "GLM-5.2", "seq": "131072", "cp": "8", "kind": "lora"}
    row |= {"framework": "Megatron-LM", "global_batch": "8", "ep": "8"}
    plain, named_one = (
        case_of(row | {"kernel_stack": words}).shape for words in ("alltoall", "DSA (cuDNN)")
    )
    assert (plain.attention.windows, set(named_one.attention.windows)) == ((), {0, 2048})
    assert spelled("deepseek_v3 16B") == spelled("DeepSeek-V2-Lite")


def test_packed_tokens_are_a_sequence_s_length() -> None:
    row = {"model": "Qwen3.5-9B", "hardware": "16 GH200", "framework": "torchtitan", "kind": "sft"}
    packed = case_of(row | {"kernel_stack": "compiled, packed 32,768 tokens a rank"})
    assert packed.timed.batch.seq_len == 32768


def test_liger_brings_no_attention_and_a_cut_chip_no_later_one() -> None:
    row = {"model": "Qwen3-8B", "seq": "16384", "framework": "TRL", "kind": "sft"}
    row |= {"hardware": "8x H100", "global_batch": "8"}
    shares = [
        case_of(row | {"kernel_stack": words}).rates.attentions.generation[0].share
        for words in ("Liger, FlashAttention-3", "Liger, SDPA")
    ]
    assert shares[0] > 1.5 * shares[1]
    h20 = case_of(row | {"hardware": "8x H20", "kernel_stack": "SDPA"}).rates.attentions
    assert h20.forward == h20.generation[0]


def test_experts_without_a_gate_are_answered_where_their_products_are_kept() -> None:
    row = {"hardware": "8x H200", "model": "Nemotron 3 Nano 30B-A3B", "framework": "torchtitan"}
    row |= {"seq": "4096", "global_batch": "64", "num_gpus": "64", "dtype": "bf16"}
    none, some, full = (
        time_of(case_of(row | {"recompute": how}))[1] for how in ("none", "selective", "full")
    )
    assert none < some < full
