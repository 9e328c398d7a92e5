"""What must hold whatever the numbers: more work is not quicker, a faster chip not slower.

Each was broken once (launch-bound pipelines got quicker with larger micro-batches; sharding over a
million GPUs cost nothing; flash attention was priced on chips that have no such kernel).
"""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainrig.catalog import require_chip
from trainrig.errors import UsageError
from trainrig.prediction.rates.from_chip import rates_of_chip
from trainrig.prediction.scenario import question
from trainrig.prediction.step import predict_step
from trainrig.workload import custom, named
from trainrig.workload.layout import Layout, is_legal
from trainrig.workload.memory import memory

CHIPS = ["V100 SXM2 32GB", "A100 SXM4 80GB", "H100 SXM5 80GB", "RTX 4090", "B200 SXM", "MI300X"]
FEW = st.sampled_from([1, 2, 4, 8])

shapes = st.builds(
    lambda layers, heads: custom(
        "llama", num_layers=layers, hidden=64 * heads, num_heads=heads, max_positions=8192
    ),
    st.integers(2, 40),
    st.sampled_from([4, 8, 16, 32]),
)
layouts = st.builds(
    lambda pp, tp, dp, batch, accum, framework, recompute, zero, kernels: Layout.of(
        gpus=pp * tp * dp,
        gpus_per_node=min(8, pp * tp * dp),
        pp=pp,
        tp=tp,
        batch_size=batch,
        grad_accum=accum,
        framework=framework,
        recompute=recompute,
        seq_len=1024,
        kernels=kernels,
        zero=zero,
        sequence_parallel=int(tp > 1 and kernels == "flash+fused"),
        precision="fp16",
    ),
    FEW, FEW, FEW, FEW, FEW,
    st.sampled_from(["native", "megatron", "deepspeed", "huggingface", "torchtitan"]),
    st.sampled_from(["none", "full"]),
    st.sampled_from([0, 1, 2, 3]),
    st.sampled_from(["eager", "flash", "flash+fused"]),
)  # fmt: skip
chips = st.sampled_from(CHIPS)


def seconds(shape, layout, chip) -> float:
    return float(predict_step(shape, layout, rates_of_chip(chip)).total)


@given(shape=shapes, layout=layouts, name=chips)
@settings(max_examples=150, deadline=None)
def test_more_work_is_never_quicker(shape, layout, name) -> None:
    """Twice the samples of a micro-batch, twice the micro-batches, one layer more."""
    if not is_legal(shape, layout):
        return
    chip = require_chip(name)
    before = seconds(shape, layout, chip)
    assert seconds(shape, layout.replace(batch_size=2 * layout.batch.micro), chip) >= 0.999 * before
    assert (
        seconds(shape, layout.replace(grad_accum=2 * layout.batch.grad_accum), chip)
        >= 0.999 * before
    )
    longer = layout.replace(seq_len=2048)
    assert seconds(shape, longer, chip) >= 0.999 * before
    deeper = dataclasses.replace(shape, num_layers=shape.num_layers + layout.mesh.pp)
    assert seconds(deeper, layout, chip) >= before


@given(shape=shapes, layout=layouts, name=chips)
@settings(max_examples=100, deadline=None)
def test_a_better_chip_is_never_slower(shape, layout, name) -> None:
    if not is_legal(shape, layout):
        return
    chip = require_chip(name)
    before = seconds(shape, layout, chip)
    wider = chip.replace(bandwidth=1.5 * (chip.memory.bandwidth or 1e12))
    assert seconds(shape, layout, wider) <= 1.001 * before
    stronger = chip.replace(tdp=1.3 * (chip.board.tdp or 300.0))
    assert seconds(shape, layout, stronger) <= 1.001 * before


def test_computation_hides_no_two_exchanges_at_once() -> None:
    """Tensors over PCIe and gradients over the network: more power made such a step slower."""
    layout = Layout.of(
        gpus=64,
        tp=4,
        zero=2,
        sequence_parallel=1,
        kernels="flash+fused",
        batch_size=4,
        seq_len=1024,
    )
    chip = require_chip("RTX 4090")
    steps = [
        float(predict_step(named("llama-7B"), layout, rates_of_chip(chip, power=watts)).total)
        for watts in (315.0, 360.0, 405.0, 450.0)
    ]
    assert steps == sorted(steps, reverse=True)


@given(shape=shapes, layout=layouts)
@settings(max_examples=60, deadline=None)
def test_more_is_kept_of_more_and_less_where_more_is_computed_again(shape, layout) -> None:
    if not is_legal(shape, layout):
        return
    # What the allocator cannot use beside it is an estimate of its own.
    allocated = [
        float(memory(shape, layout.replace(recompute=way)).allocated)
        for way in ("none", "selective", "full")
    ]
    assert allocated == sorted(allocated, reverse=True)
    larger = float(memory(shape, layout.replace(batch_size=2 * layout.batch.micro)).total)
    assert larger >= float(memory(shape, layout).total)


@pytest.mark.parametrize("zero", [2, 3])
def test_sharding_over_a_million_gpus_is_not_free(zero: int) -> None:
    """A ring passes each of its members: from some thousand nodes on that is what a step takes."""
    shape, rates = named("llama-7B"), rates_of_chip(require_chip("H100 SXM5 80GB"))
    sizes = [8, 64, 512, 4096, 1 << 15, 1 << 20]
    layout = Layout.of(zero=zero, framework="huggingface", seq_len=4096)
    steps = [float(predict_step(shape, layout.replace(gpus=n), rates).total) for n in sizes]
    assert steps[2:] == sorted(steps[2:])  # fewer: each has more of the optimizer to run
    assert steps[-1] > 5.0 * steps[0]
    assert steps[2] < 1.5 * steps[0], "512 GPUs hide most of it"
    shared = float(predict_step(shape, layout.replace(gpus=1 << 20, shard_size=64), rates).total)
    assert shared < steps[-1]


@pytest.mark.parametrize("chip", ["V100 SXM2 32GB", "P40", "RTX 2080 Ti"])
@pytest.mark.parametrize("kernels", ["flash", "flash+fused"])
def test_flash_attention_needs_a_chip_that_has_it(chip: str, kernels: str) -> None:
    with pytest.raises(UsageError, match="has no flash attention"):
        question({"model": "gpt2", "on": chip, "kernels": kernels})
    assert question({"model": "gpt2", "on": chip}).layout.kernels.stack == "eager"
    assert question({"model": "gpt2", "on": "RTX 3090", "kernels": kernels})
