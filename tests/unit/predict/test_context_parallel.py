"""Ranks that share a sequence: a part of its tokens each, all of its keys, the same weights."""

from __future__ import annotations

import dataclasses

import pytest

from trainrig.catalog import require_chip
from trainrig.errors import UsageError
from trainrig.predict.rates.from_chip import rates_of_chip
from trainrig.predict.step import predict_step
from trainrig.workload.blocks import block
from trainrig.workload.layout import Layout, check_layout
from trainrig.workload.memory import memory
from trainrig.workload.presets import named

SHAPE = named("llama-8B")
H100 = rates_of_chip(require_chip("H100 SXM5 80GB"))
ONE = Layout(
    gpus=8, seq_len=8192, grad_accum=4, framework="megatron", kernels="flash+fused", zero=1
)


def test_each_rank_computes_its_share_of_a_sequence() -> None:
    for part, share in zip(block(SHAPE, ONE), block(SHAPE, ONE.replace(cp=4)), strict=True):
        assert share.forward.flops * 4 == part.forward.flops, part.name


def test_ranks_that_share_a_sequence_share_weights_like_those_of_data_parallel() -> None:
    split = ONE.replace(cp=4)
    assert (split.dp, split.shards, split.global_batch) == (2, 8, 8)
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
