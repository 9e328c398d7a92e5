"""Pipelines whose stages are not equal, and the published layouts that need them.

The steps are Meta's (Llama 3 herd of models, arXiv 2407.21783, table 4: 400 TFLOP/s, 41 % of 989),
NVIDIA's (NeMo's performance table of Llama 3 70B on 512 H100: 14.89 s for 1024 samples of 8192) and
DeepSeek's (DeepSeek-V3, arXiv 2412.19437, table 1: 180,000 hours of an H800 for 1e12 tokens).  No
constant is fitted to them.
"""

from __future__ import annotations

import numpy as np
import pytest

from trainrig.catalog import require_chip
from trainrig.errors import UsageError
from trainrig.prediction.prediction import predict
from trainrig.prediction.rates.from_chip import rates_of_chip
from trainrig.prediction.scenario import question, space
from trainrig.prediction.search import price, search
from trainrig.prediction.step import predict_step
from trainrig.prediction.verdict import DOES_NOT_FIT
from trainrig.train.engines import engine_of
from trainrig.workload import named
from trainrig.workload.layout import Layout
from trainrig.workload.memory import memory

META = {
    "model": "llama3-405B",
    "on": "H100 SXM5 80GB",
    "gpus": 16384,
    "tp": 8,
    "pp": 16,
    "interleave": 8,
    "sequence_parallel": 1,
    "seq_len": 8192,
    "grad_accum": 16,
    "zero": 1,
    "framework": "megatron",
    "kernels": "flash+fused",
}
NEMO = {
    "model": "llama3-70B",
    "on": "H100 SXM5 80GB",
    "gpus": 512,
    "tp": 4,
    "pp": 4,
    "cp": 2,
    "interleave": 5,
    "sequence_parallel": 1,
    "seq_len": 8192,
    "grad_accum": 64,
    "zero": 1,
    "framework": "megatron",
    "kernels": "flash+fused",
}
DEEPSEEK = {
    "model": "deepseek-v3",
    "on": "H800 SXM5 80GB",
    "gpus": 2048,
    "pp": 16,
    "ep": 64,
    "seq_len": 4096,
    "grad_accum": 120,
    "zero": 1,
    "precision": "fp8",
    "overlap": "experts",
    "framework": "megatron",
    "kernels": "flash+fused",
}


H100 = rates_of_chip(require_chip("H100 SXM5 80GB"))
STAGES = Layout.of(
    gpus=4, pp=4, grad_accum=64, framework="megatron", seq_len=4096, kernels="flash+fused"
)


def test_meta_s_405b_on_16384_gpus() -> None:
    """Tensor parallel's collectives wait there: PyTorch has no user buffers for them."""
    found = predict(question(META | {"overlap": "data"}))
    assert found.tokens == 2**24
    assert found.mfu is not None and 0.38 < found.mfu < 0.43
    low, high = (found.time / end * found.flop_rate for end in reversed(found.interval))
    assert low < 400e12 < high
    fused = predict(question(META))
    assert fused.time < found.time  # Transformer Engine's overlap is worth something


def test_nvidia_s_70b_on_512_gpus() -> None:
    found = predict(question(NEMO))
    assert int(found.layout.global_batch) == 1024
    assert found.time == pytest.approx(14.89, rel=0.15)
    assert found.verdict != DOES_NOT_FIT


def test_deepseek_v3_on_2048_gpus() -> None:
    """Selective recomputation of latent attention is what the report computes again, and fits."""
    found = [predict(question(DEEPSEEK | {"recompute": r})) for r in ("none", "selective", "full")]
    none, some, full = (one.days(1e12) * 24 * 2048 for one in found)
    assert none < 180e3 < full
    assert none < some == pytest.approx(180e3, rel=0.2)
    assert [one.memory.total <= one.rates.memory_bytes for one in found] == [False, True, True]
    assert found[1].memory.total < 0.8 * found[1].rates.memory_bytes  # DualPipe's second copy, too


def test_tokens_that_wait_for_experts_cost_more_than_those_beside_computation() -> None:
    beside = predict(question(DEEPSEEK)).step
    waiting = predict(question(DEEPSEEK | {"overlap": "tensor"})).step
    assert beside.total < 0.6 * waiting.total
    assert beside.overlapped > waiting.overlapped


def test_ends_that_lack_a_layer_are_not_the_busiest() -> None:
    """Where the last stage has a layer less, its head does not lengthen every micro-batch."""
    steps = {n: predict_step(with_layers(n), STAGES, H100) for n in (15, 16)}
    layer = steps[16].forward / 5.0  # four and a head of some one layer
    assert steps[15].forward < steps[16].forward - 0.5 * layer
    assert steps[15].total < steps[16].total


def test_an_inner_stage_may_need_most_memory() -> None:
    """Of 14 layers over 4 stages the ends have 3, the inner ones 4."""
    shape = named("llama-8B")
    layout = Layout.of(gpus=16, tp=1, pp=8, grad_accum=64, framework="megatron", seq_len=4096)
    needs = {n: memory(shape, layout.replace(pp=n)).activations for n in (8, 16)}
    assert needs[16] < 1.2 * needs[8]
    few = [
        float(memory(with_layers(n), Layout.of(gpus=4, pp=4, grad_accum=8, seq_len=512)).total)
        for n in (12, 13, 14, 15, 16)
    ]
    assert few == sorted(few)


def with_layers(layers: int):
    from trainrig.workload.model_lookup import find

    return find(f"llama-1B:num_layers={layers}")


def test_arrays_and_single_layouts_agree() -> None:
    shape = with_layers(14)
    pp = np.array([1, 2, 4, 4, 7])
    many = Layout.of(
        gpus=28, gpus_per_node=28, pp=pp, grad_accum=8, framework="megatron", seq_len=512
    )
    found = memory(shape, many).total
    alone = [int(memory(shape, many.at(index)).total) for index in range(len(pp))]
    assert found.tolist() == alone


def test_plan_finds_nvidia_s_layout_or_a_better_one() -> None:
    fixed = {name: NEMO[name] for name in ("model", "on", "gpus", "seq_len", "kernels")}
    where, cluster = space(fixed | {"global_batch": 1024})
    found = search(where, cluster.rates(), top=1)
    published = price(where, question(NEMO).layout, cluster.rates())
    assert found.best[0].fits and found.best[0].time <= published.time * 1.001


def test_plan_finds_meta_s_layout_or_a_better_one() -> None:
    """With recomputation: without it nothing of 405B fits on 80 GB by our formulas."""
    fixed = {name: META[name] for name in ("model", "on", "gpus", "seq_len", "kernels")}
    where, cluster = space(fixed | {"global_batch": 2048, "recompute": "full"})
    found = search(where, cluster.rates(), top=1)
    published = price(where, question(META | {"recompute": "full"}).layout, cluster.rates())
    assert found.best[0].fits and found.best[0].time <= published.time * 1.001


def test_other_frameworks_train_equal_stages_alone() -> None:
    layout = Layout.of(gpus=4, pp=4, grad_accum=4, framework="megatron")
    shape = with_layers(14)
    refused = engine_of("megatron").supports(layout, shape)
    assert isinstance(refused, UsageError) and "14 layers cannot be divided" in refused.message
    assert engine_of("native").supports(layout.replace(framework="native"), shape) is None
