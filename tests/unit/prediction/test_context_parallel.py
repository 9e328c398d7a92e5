"""Ranks that share a sequence: a part of its tokens each, all of its keys, the same weights."""

from __future__ import annotations

import dataclasses

import pytest
from validation.normalise.case import case_of

from trainrig.catalog import require_chip
from trainrig.errors import UsageError
from trainrig.prediction.rates import Rates
from trainrig.prediction.rates.from_chip import rates_of_chip
from trainrig.prediction.step import StepTime, predict_step
from trainrig.workload.blocks import block
from trainrig.workload.layout import Layout, check_layout
from trainrig.workload.layout.groups import CP_COMM
from trainrig.workload.memory import memory
from trainrig.workload.memory.pipeline_stage import stage_of
from trainrig.workload.presets import named

SHAPE = named("llama-8B")
H100 = rates_of_chip(require_chip("H100 SXM5 80GB"))
ONE = Layout.of(
    gpus=8, seq_len=8192, grad_accum=4, framework="megatron", kernels="flash+fused", zero=1
)


def test_each_rank_computes_its_share_of_a_sequence() -> None:
    for part, share in zip(block(SHAPE, ONE), block(SHAPE, ONE.replace(cp=4)), strict=True):
        assert share.forward.flops * 4 == part.forward.flops, part.name


def test_ranks_that_share_a_sequence_share_weights_like_those_of_data_parallel() -> None:
    split = ONE.replace(cp=4)
    assert (split.mesh.dp, split.shards, split.global_batch) == (2, 8, 8)
    whole, part = memory(SHAPE, ONE), memory(SHAPE, split)
    assert part.optimizer == whole.optimizer and part.weights == whole.weights
    assert part.activations < 0.3 * whole.activations


def test_keys_and_values_pass_round_and_mostly_beside_attention() -> None:
    """As much work for each rank: four times the sequence on four ranks that share it."""
    alone = predict_step(SHAPE, ONE.replace(gpus=2, gpus_per_node=2), H100)
    shared = predict_step(SHAPE, ONE.replace(cp=4, seq_len=4 * 8192), H100)
    assert alone.tensor_comm == 0.0 < shared.tensor_comm < 0.1 * shared.total
    more = dataclasses.replace(H100.links.inside, bandwidth=H100.links.inside.bandwidth / 10)
    slow = H100.replace(links=dataclasses.replace(H100.links, inside=more))
    slower = predict_step(SHAPE, ONE.replace(cp=4, seq_len=4 * 8192), slow)
    assert slower.tensor_comm > 5 * shared.tensor_comm


def test_only_what_exchanges_heads_needs_some_for_each_rank() -> None:
    split = ONE.replace(gpus=64, tp=8, cp=2)  # eight heads of keys
    check_layout(SHAPE, split)
    with pytest.raises(UsageError, match="16 devices that share a sequence"):
        check_layout(SHAPE, split.replace(framework="native", kernels="flash", zero=0))


SHARED = ONE.replace(cp=8, seq_len=65536)


def seconds(layout: Layout, rates: Rates = H100) -> StepTime:
    return predict_step(SHAPE, layout, rates)


def test_an_unbalanced_ring_waits_for_its_last_rank() -> None:
    """Of eight stretches the last one's queries look at 7½, on average at 4: 2 - 1/8."""
    ring, zigzag = (seconds(SHARED.replace(cp_comm=kind)) for kind in ("ring", "zigzag"))
    bert = named("bert-base")
    both = SHARED.replace(framework="huggingface", seq_len=512, cp=2, zero=0)
    assert 1.4 < ring.total / zigzag.total < 2.0 - 1.0 / 8
    whole = [
        float(predict_step(bert, both.replace(cp_comm=kind), H100).forward)
        for kind in ("ring", "zigzag")
    ]
    assert whole[0] == whole[1], "attention to both sides is dealt evenly"


def test_what_runs_beside_attention_and_what_does_not() -> None:
    kinds = {kind: seconds(SHARED.replace(cp_comm=kind)) for kind in CP_COMM[1:]}
    assert kinds["all-gather"].tensor_comm > 3.0 * kinds["zigzag"].tensor_comm
    assert kinds["all-gather"].forward == kinds["zigzag"].forward
    # Grouped heads: 8 of keys beside 32 of queries; by heads each rank sends an eighth of both.
    assert kinds["ulysses"].tensor_comm < kinds["all-gather"].tensor_comm
    kept, whole = (
        stage_of(SHAPE, SHARED.replace(cp_comm=kind), "last").in_block()
        for kind in ("zigzag", "all-gather")
    )
    assert whole - kept == 4 * 2 * 65536 * 8 * 128, "keys, values and their gradients, in bf16"


@pytest.mark.parametrize(
    ("framework", "kind"),
    [
        ("megatron", "zigzag"),
        ("torchtitan", "all-gather"),
        ("deepspeed", "ulysses"),
        ("native", "ulysses"),
    ],
)
def test_defaults_are_the_frameworks_and_a_table_may_say_it(framework: str, kind: str) -> None:
    usual = ONE.replace(cp=2, framework=framework, zero=3 if framework == "torchtitan" else 1)
    assert usual.context == kind
    assert seconds(usual).total == seconds(usual.replace(cp_comm=kind)).total
    row = {"chip": "H100", "num_gpus": "8", "model": "llama-8B", "global_batch": "8", "cp": "4"}
    row |= {"framework": "Megatron-Core", "seq": "32768"}
    for word, meant in (("a2a", "ulysses"), ("p2p", "zigzag"), ("allgather", "all-gather")):
        assert case_of(row | {"cp_comm": word}).layout.context == meant


def test_heads_are_exchanged_where_there_are_enough() -> None:
    with pytest.raises(UsageError, match="8 heads of keys and values") as refused:
        check_layout(SHAPE, ONE.replace(gpus=16, cp=16, cp_comm="ulysses"))
    assert "--cp-comm ring" in str(refused.value.hint)
