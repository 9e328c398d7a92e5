"""What must hold of experts and of shared sequences, whatever the numbers.

More work is not quicker, a shorter way not slower, and what is shared by more ranks is no more on
each of them.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainrig.catalog import require_chip
from trainrig.prediction.rates import Rates
from trainrig.prediction.rates.from_chip import rates_of_chip
from trainrig.prediction.step import StepTime, predict_step
from trainrig.workload.layout import Layout, is_legal
from trainrig.workload.layout.groups import CP_COMM
from trainrig.workload.memory import memory
from trainrig.workload.memory.pipeline_stage import stage_of
from trainrig.workload.model import ModelShape
from trainrig.workload.presets import named

FEW = settings(max_examples=12, deadline=None)
CHIPS = st.sampled_from(["A100 SXM4 80GB", "H100 SXM5 80GB", "B200 SXM", "MI300X"])
MIXTURES = st.sampled_from(["mixtral-8x7B", "qwen3-30B-A3B", "deepseek-v2-lite"])
KINDS = st.sampled_from(CP_COMM[1:])
FRAMEWORKS = st.sampled_from(["megatron", "torchtitan", "deepspeed", "native"])
LONG = named("llama-8B")
SLACK = 1.0 + 1e-9


def rates(name: str) -> Rates:
    return rates_of_chip(require_chip(name))


def unbound(found: Rates) -> Rates:
    """Links that take no time to speak of."""
    links = found.links
    free: dict[str, Any] = {"bandwidth": 1e30, "latency": 0.0, "hop": 0.0, "ramp": 1e-30}
    ends = {
        name: dataclasses.replace(getattr(links, name), **free) for name in ("inside", "between")
    }
    return found.replace(links=dataclasses.replace(links, **ends))


def in_nodes_of(size: int, found: Rates) -> Rates:
    """As much of the network for each device as in nodes of eight."""
    between = found.links.between
    share = dataclasses.replace(between, bandwidth=between.bandwidth * size / 8)
    return found.replace(links=dataclasses.replace(found.links, between=share))


def step(shape: ModelShape, layout: Layout, found: Rates) -> StepTime:
    return predict_step(shape, layout, found)


mixed = st.builds(
    lambda ep, tp, batch, overlap, recompute, seq: Layout.of(
        gpus=64, tp=tp, ep=ep, batch_size=batch, grad_accum=2, zero=1, seq_len=seq,
        sequence_parallel=int(tp > 1), framework="megatron", kernels="flash+fused",
        overlap=overlap, recompute=recompute,
    ),
    st.sampled_from([1, 2, 4, 8]),
    st.sampled_from([1, 2]),
    st.sampled_from([1, 2, 4]),
    st.sampled_from(["none", "data", "all", "experts"]),
    st.sampled_from(["none", "full"]),
    st.sampled_from([1024, 4096]),
)  # fmt: skip


@given(model=MIXTURES, layout=mixed, chip=CHIPS)
@FEW
def test_more_experts_for_a_token_are_never_quicker(model: str, layout: Layout, chip: str) -> None:
    shape, found = named(model), rates(chip)
    if not is_legal(shape, layout):
        return
    more = shape.replace(experts_per_token=shape.moe.experts_per_token + 1)
    one, two = (step(each, layout, found) for each in (shape, more))
    assert two.total >= one.total / SLACK
    plain = layout.replace(overlap="none")
    sent = [float(step(each, plain, found).expert_comm) for each in (shape, more)]
    assert sent[0] <= sent[1] * SLACK
    assert memory(more, layout).activations >= memory(shape, layout).activations
    # Experts that nobody chooses are held, and not computed.
    idle = shape.replace(num_experts=2 * shape.moe.num_experts)
    assert memory(idle, layout).weights > memory(shape, layout).weights


@given(model=MIXTURES, layout=mixed, chip=CHIPS)
@FEW
def test_experts_are_no_further_away_in_a_larger_node(
    model: str, layout: Layout, chip: str
) -> None:
    shape, found = named(model), rates(chip)
    if not is_legal(shape, layout):
        return
    sizes = (4, 8, 16, 64)
    waits = [
        float(step(shape, layout.replace(gpus_per_node=n), in_nodes_of(n, found)).expert_comm)
        for n in sizes
    ]
    assert all(near <= far * SLACK for far, near in itertools.pairwise(waits))
    shared = [
        memory(shape, layout.replace(ep=ep)).weights
        for ep in (1, 2, 4, 8)
        if is_legal(shape, layout.replace(ep=ep))
    ]
    assert shared == sorted(shared, reverse=True)


sequences = st.builds(
    lambda framework, batch, recompute, kernels: Layout.of(
        gpus=32, batch_size=batch, zero=3 if framework == "torchtitan" else 1, seq_len=32768,
        framework=framework, recompute=recompute, kernels=kernels,
    ),
    FRAMEWORKS,
    st.sampled_from([1, 2]),
    st.sampled_from(["none", "full"]),
    st.sampled_from(["flash", "flash+fused"]),
)  # fmt: skip


@given(layout=sequences, kind=KINDS)
@FEW
def test_a_sequence_on_more_ranks_is_less_on_each(layout: Layout, kind: str) -> None:
    held, activations = [], []
    for cp in (1, 2, 4, 8):
        one = layout.replace(cp=cp, cp_comm=kind)
        held.append(float(memory(LONG, one).allocated))
        activations.append(stage_of(LONG, one, "last").waiting)
    assert activations == sorted(activations, reverse=True)
    assert all(more <= fewer * SLACK for fewer, more in itertools.pairwise(held))


@given(layout=sequences, chip=CHIPS, cp=st.sampled_from([2, 4, 8]))
@FEW
def test_ways_to_share_a_sequence_differ_in_what_is_sent_and_who_waits(
    layout: Layout, chip: str, cp: int
) -> None:
    found = rates(chip)
    plain = {kind: layout.replace(cp=cp, cp_comm=kind) for kind in CP_COMM[1:]}
    free = {kind: float(step(LONG, one, unbound(found)).total) for kind, one in plain.items()}
    for kind in ("all-gather", "ulysses"):
        assert free[kind] == pytest.approx(free["zigzag"], rel=1e-6)
    assert free["zigzag"] < free["ring"] < 2.0 * free["zigzag"]
    sent = {kind: float(step(LONG, one, found).tensor_comm) for kind, one in plain.items()}
    assert sent["zigzag"] <= sent["all-gather"] * SLACK
    for kind, one in plain.items():
        near, far = (
            float(step(LONG, one.replace(gpus_per_node=n), in_nodes_of(n, found)).tensor_comm)
            for n in (8, 1)
        )
        assert near <= far * SLACK, kind


@given(layout=sequences, chip=CHIPS, kind=KINDS)
@FEW
def test_a_longer_sequence_is_never_quicker_nor_smaller(
    layout: Layout, chip: str, kind: str
) -> None:
    found, one = rates(chip), layout.replace(cp=4, cp_comm=kind, seq_len=16384)
    longer = one.replace(seq_len=32768)
    assert step(LONG, longer, found).total >= step(LONG, one, found).total
    assert memory(LONG, longer).total >= memory(LONG, one).total
