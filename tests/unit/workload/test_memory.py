"""Memory by part: the field's formulas, and what must hold of any layout."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainrig.workload import NAMED, custom, named, parameters
from trainrig.workload.blocks import CORE, FULL, LATENT, NONE, saved_tensors, total
from trainrig.workload.layout import SIZES, Layout
from trainrig.workload.layout.groups import KERNELS, OPTIMIZERS
from trainrig.workload.memory import PARTS, Memory, memory, memory_peaks
from trainrig.workload.memory.pipeline_stage import places, stage_of
from trainrig.workload.numerics import numerics_of, states_of
from trainrig.workload.presets import published
from trainrig.workload.programs import FRAMEWORKS

GPT = custom("gpt2", num_layers=48, hidden=6144, num_heads=64, vocab=51200, max_positions=2048)
MEGATRON = Layout.of(framework="megatron", kernels="fused", seq_len=2048, has_dropout="yes")
SMALL = ("gpt2", "gpt-neo-1.3B", "bert-base", "t5-base", "llama-1B")

powers = st.sampled_from([1, 2, 4, 8])
models = st.sampled_from(SMALL)
words = {
    "kernels": st.sampled_from(KERNELS),
    "framework": st.sampled_from(tuple(FRAMEWORKS)),
    "optimizer": st.sampled_from(OPTIMIZERS),
    "precision": st.sampled_from(["fp32", "bf16", "fp16", "fp8"]),
    "recompute": st.sampled_from(["none", "selective", "full"]),
    "schedule": st.sampled_from(["1f1b", "gpipe"]),
    "offload": st.sampled_from(["none", "host"]),
    "lora_rank": st.sampled_from([0, 0, 8]),
}
layouts = st.builds(
    lambda dp, tp, pp, zero, **rest: Layout.of(gpus=dp * tp * pp, tp=tp, pp=pp, zero=zero, **rest),
    dp=powers,
    tp=powers,
    pp=st.sampled_from([1, 2, 4]),
    zero=st.sampled_from([0, 1, 2, 3]),
    batch_size=st.integers(1, 6),
    grad_accum=st.sampled_from([1, 4, 8]),
    interleave=st.sampled_from([1, 2]),
    sequence_parallel=st.sampled_from([0, 1]),
    seq_len=st.sampled_from([128, 512]),
    **words,
)


def block_bytes(layout: Layout, policy: str, shape: Any = GPT) -> float:
    items = saved_tensors(shape, numerics_of(shape, layout), layout.batch.seq_len)
    kept = sum(total(items, policy, split=split) for split in (True, False))
    own = (i for i in items if i.name.endswith("statistics") and policy in i.policies)
    return kept - sum(i.num_bytes for i in own)


def test_a_classic_block_keeps_what_the_field_says() -> None:
    """34sbh + 5as²b; without the scores 34sbh; its input alone 2sbh (Korthikanti et al. 2022)."""
    s, h, a = 2048, 6144, 64
    assert block_bytes(MEGATRON, NONE) == 34 * s * h + 5 * a * s * s
    assert block_bytes(MEGATRON, CORE) == 34 * s * h
    assert block_bytes(MEGATRON, FULL) == 2 * s * h


def test_what_tensor_parallelism_splits_is_what_the_field_says() -> None:
    """sbh(10 + 24/t + 5as/(ht)): section 4.2 of the same."""
    s, h, a = 2048, 6144, 64
    items = saved_tensors(GPT, numerics_of(GPT, MEGATRON), s)
    whole = total(items, NONE, split=False) - sum(
        i.num_bytes for i in items if i.name.endswith("statistics")
    )
    assert whole == 10 * s * h
    assert total(items, NONE, split=True) == 24 * s * h + 5 * a * s * s


def test_latent_attention_keeps_its_narrow_heads_and_fp8_a_byte_of_what_products_read() -> None:
    """DeepSeek-V3's blocks with experts: 128 heads of 192 and 128, narrowed to 1536 and 512."""
    shape = named("deepseek-v3").replace(dense_layers=0)
    bf16 = Layout.of(framework="megatron", kernels="flash+fused", seq_len=1)
    fp8 = bf16.replace(precision="fp8")
    h, narrow, q, v, f = 7168, 1536 + 512, 128 * 192, 128 * 128, 9 * 2048
    sums = 4 * 128  # of the softmax
    heads, stays = 2 * (2 * q + v), 2 * 2 * h + 2 * narrow + 2 * v + sums
    norms, into_experts = 2 * h, 8 * h
    assert block_bytes(bf16, LATENT, shape) == stays + 2 * 2 * f + 2 * into_experts
    assert block_bytes(fp8, LATENT, shape) == stays + 2 * f + into_experts
    more = heads + 2 * narrow + 2 * 2 * f
    assert block_bytes(bf16, NONE, shape) == stays + more + 2 * (norms + f + into_experts)
    assert block_bytes(fp8, NONE, shape) == stays + more + norms + f + into_experts
    # Transformer Engine's copies of weights in 8 bits, as they are and transposed.
    ends = parameters(GPT).embedding + 2 * GPT.hidden
    for zero, ranks in ((0, 1), (3, 8)):
        one = bf16.replace(gpus=8, zero=zero)
        weights = [memory(GPT, one.replace(precision=p)).weights for p in ("bf16", "fp8")]
        assert weights[1] - weights[0] == 2 * (parameters(GPT).total - ends) / ranks


def test_flash_keeps_no_scores_and_dropout_a_mask() -> None:
    s, h, a = 2048, 6144, 64
    flash = MEGATRON.replace(kernels="flash+fused", has_dropout="no")
    assert block_bytes(flash, NONE) == 32 * s * h + 4 * a * s
    assert block_bytes(MEGATRON.replace(has_dropout="no"), NONE) == 32 * s * h + 2 * a * s * s


@pytest.mark.parametrize(
    ("words", "each"),
    [
        ({"framework": "native", "precision": "fp32"}, 16),
        ({"framework": "native"}, 2 + 2 + 4 + 4 + 8),
        ({"framework": "megatron"}, 2 + 4 + 4 + 8),
        ({"framework": "megatron", "precision": "fp16"}, 2 + 2 + 4 + 4 + 8),
        ({"framework": "megatron", "optimizer": "sgd"}, 2 + 4 + 4),
        ({"framework": "deepspeed"}, 2 + 2 + 4 + 4 + 8),
        ({"framework": "huggingface"}, 16),
        ({"framework": "huggingface", "states": "pure"}, 8),
        ({"framework": "huggingface", "optimizer": "adamw"}, 20),
    ],
)
def test_bytes_a_parameter(words: dict[str, str], each: int) -> None:
    """At the end of a step with next to no tokens, states are all there is."""
    shape = named("gpt2")
    found = memory(shape, Layout.of(batch_size=1, seq_len=1, kernels="flash", **words))
    states = found.weights + found.gradients + found.master + found.optimizer
    assert states == pytest.approx(each * parameters(shape).total, rel=1e-3)


def test_the_first_stage_keeps_most_micro_batches() -> None:
    deep = MEGATRON.replace(gpus=8, pp=8, grad_accum=64, batch_size=1)
    one = block_bytes(MEGATRON, NONE) * 48 / 8
    assert memory(GPT, deep).activations == pytest.approx(8 * one, rel=0.02)
    assert memory(GPT, deep.replace(interleave=3)).activations == pytest.approx(
        (8 + 7 / 3) * one, rel=0.02
    )
    assert memory(GPT, deep.replace(schedule="gpipe")).activations == pytest.approx(
        64 * one, rel=0.02
    )


def test_adapters_train_little_and_keep_the_rest() -> None:
    shape = named("llama-7B")
    whole = Layout.of(batch_size=1, seq_len=512, framework="huggingface", recompute="full")
    lora = memory(shape, whole.replace(lora_rank=8))
    assert lora.weights == pytest.approx(2 * parameters(shape).total, rel=0.01)
    assert lora.gradients + lora.optimizer + lora.master < 0.02 * lora.weights


def test_the_worst_moment_decides() -> None:
    """Large models of little text are fullest in the update, small ones of much at the loss."""
    update = memory(
        named("gpt2-xl"), Layout.of(framework="huggingface", seq_len=8, optimizer="adamw")
    )
    loss = memory(
        named("gpt2"),
        Layout.of(framework="huggingface", seq_len=1024, batch_size=16, optimizer="adamw"),
    )
    assert update.activations == 0 < update.gradients
    assert loss.gradients == 0 < loss.activations


@settings(max_examples=60, deadline=None)
@given(model=models, layout=layouts, batch=st.integers(1, 8))
def test_arrays_are_as_scalars(model: str, layout: Layout, batch: int) -> None:
    zero = (
        1 if layout.sharding.zero < 2 else 5 - layout.sharding.zero
    )  # layouts of one object share their scheme
    shape, other = named(model), layout.replace(batch_size=batch, zero=zero)
    both = {n: np.array([layout.get(n), other.get(n)]) for n in SIZES}
    found = memory(shape, layout.replace(**both))
    for at, one in enumerate((layout, other)):
        alone = memory(shape, one)
        assert int(found.allocated[at]) == pytest.approx(alone.allocated, abs=16)
        for name in PARTS:
            assert int(getattr(found, name)[at]) == pytest.approx(getattr(alone, name), abs=4)


@settings(max_examples=60, deadline=None)
@given(model=models, layout=layouts)
def test_every_part_is_a_number_of_bytes(model: str, layout: Layout) -> None:
    found = memory(named(model), layout)
    assert all(isinstance(getattr(found, name), int) for name in PARTS)
    assert all(getattr(found, name) >= 0 for name in PARTS)
    is_away = (
        layout.scheme == "fsdp" and layout.memory.offload != "none" and layout.sharding.zero >= 2
    )
    assert found.weights > 0 or is_away, "FSDP's offloaded shards are gathered from the host"
    low, high = found.interval("device")
    assert low < found.total < high


@settings(max_examples=60, deadline=None)
@given(model=models, layout=layouts)
def test_more_recomputation_never_needs_more(model: str, layout: Layout) -> None:
    shape = named(model)
    sizes = [
        memory(shape, layout.replace(recompute=how)).total for how in ("none", "selective", "full")
    ]
    assert sizes == sorted(sizes, reverse=True)


@settings(max_examples=60, deadline=None)
@given(model=models, layout=layouts, more=st.integers(1, 4))
def test_more_samples_never_need_less(model: str, layout: Layout, more: int) -> None:
    shape, larger = named(model), layout.replace(batch_size=layout.batch.micro + more)
    assert memory(shape, larger).total >= memory(shape, layout).total


@settings(max_examples=60, deadline=None)
@given(model=models, layout=layouts)
def test_more_tensor_parallelism_never_needs_more_weights(model: str, layout: Layout) -> None:
    shape = named(model)
    twice = layout.replace(
        tp=2 * layout.mesh.tp, gpus=2 * layout.mesh.gpus
    )  # the same data parallel
    assert states(memory(shape, twice), layout) <= states(memory(shape, layout), layout) * 1.0001


def states(found: Memory, layout: Layout) -> int:
    """What lies in weights and masters; at whichever moment."""
    return int(found.master if layout.framework == "megatron" else found.weights + found.master)


@settings(max_examples=40, deadline=None)
@given(
    model=models,
    framework=st.sampled_from(["huggingface", "deepspeed"]),
    dp=st.sampled_from([2, 4, 8]),
)
def test_sharding_divides_what_it_should(model: str, framework: str, dp: int) -> None:
    shape = named(model)
    parallel = "fsdp" if framework == "huggingface" else "auto"
    base = Layout.of(gpus=dp, framework=framework, parallel=parallel, seq_len=128, grad_accum=2)
    whole, *sharded = (memory(shape, base.replace(zero=zero)) for zero in range(4))
    for stage, found in enumerate(sharded, 1):
        assert found.optimizer <= whole.optimizer / dp * 1.7, "with what an update needs"
        assert found.master == pytest.approx(whole.master / dp, abs=4)
        if stage >= 2:
            assert found.gradients == pytest.approx(whole.gradients / dp, rel=0.01)
        if stage == 3:
            assert found.weights == pytest.approx(whole.weights / dp, rel=0.01)


@given(model=st.sampled_from(sorted(NAMED)), shards=st.sampled_from([2, 4]))
@settings(max_examples=20, deadline=None)
def test_hybrid_shards_are_those_of_the_group(model: str, shards: int) -> None:
    shape = named(model)
    base = Layout.of(gpus=16, framework="huggingface", zero=3, seq_len=64)
    hybrid = memory(shape, base.replace(shard_size=shards))
    alone = memory(shape, base.replace(gpus=shards))
    assert hybrid.weights == alone.weights
    assert hybrid.optimizer == alone.optimizer


def logits_of(model: str, **words: Any) -> float:
    """Bytes for each logit at the loss."""
    shape = named(model)
    layout = Layout.of(**{"framework": "huggingface", "seq_len": 512, "batch_size": 64, **words})
    return float(memory(shape, layout).logits / (64 * 512 * shape.vocab))


def test_the_loss_takes_what_torchs_operations_keep() -> None:
    """Bytes for each logit, counted by hand (`workload.ends`)."""
    assert logits_of("gpt2", precision="fp32") == 12
    assert logits_of("bert-base") == 10, "a narrow softmax, its fp32 copy and that one's gradient"
    assert logits_of("gpt2") == 12, "today's models widen their logits"
    assert logits_of("gpt2", software="torch1") == 10
    assert logits_of("bert-base", states="pure") == 6
    assert logits_of("gpt2", states="pure") == 12
    assert logits_of("gpt2", kernels="compiled") == 4


def test_autocast_takes_a_loss_as_is_counted() -> None:
    """On a GPU's autocast list: the softmax of narrow logits is narrow, the sum is not."""
    torch = pytest.importorskip("torch", reason="needs torch")
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils._python_dispatch import TorchDispatchMode

    made = []

    class Log(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None):  # type: ignore[no-untyped-def]
            out = func(*args, **(kwargs or {}))
            first = out[0] if isinstance(out, tuple) else out
            if isinstance(first, torch.Tensor):
                made.append((func.overloadpacket.__name__, first.dtype))
            return out

    was = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
    torch.set_autocast_enabled("cuda", True)
    torch.set_autocast_dtype("cuda", torch.bfloat16)
    try:
        with torch.no_grad(), FakeTensorMode(), Log():
            logits = torch.empty(8, 32, device="cuda", dtype=torch.bfloat16)
            labels = torch.empty(8, device="cuda", dtype=torch.int64)
            torch.nn.functional.cross_entropy(logits, labels)
    finally:
        torch.set_autocast_enabled("cuda", was[0])
        torch.set_autocast_dtype("cuda", was[1])
    wanted = [one for one in made if one[0] in ("_log_softmax", "_to_copy", "nll_loss_forward")]
    assert wanted == [
        ("_log_softmax", torch.bfloat16),
        ("_to_copy", torch.float32),
        ("nll_loss_forward", torch.float32),
    ]


def test_older_software_keeps_gradients_from_step_to_step() -> None:
    shape, layout = (
        named("bert-large"),
        Layout.of(framework="huggingface", seq_len=512, batch_size=8, gpus=1),
    )
    now, then = (memory(shape, layout.replace(software=s)) for s in ("current", "torch1"))
    assert now.gradients == 0, "freed before the loss"
    assert then.gradients == 4 * parameters(shape).total
    again = memory(shape, layout.replace(software="torch1", grad_accum=4))
    assert again.allocated == then.allocated, "accumulating adds nothing to what is there"


def test_deepspeeds_buckets_are_there_at_the_loss() -> None:
    shape = named("gpt2-medium")
    layout = Layout.of(gpus=2, framework="deepspeed", seq_len=1024, batch_size=4)
    sizes = [memory(shape, layout.replace(zero=zero)).buffers for zero in (0, 1, 2)]
    assert sizes == [0, 4e8, 8e8], "2e8 numbers of bf16; a second bucket where they overlap"


def test_fsdp_offloads_weights_too_and_others_do_not() -> None:
    shape = named("llama-8B")
    layout = Layout.of(gpus=8, seq_len=2048, zero=3, recompute="full", offload="host")
    assert memory(shape, layout.replace(framework="huggingface")).weights == 0
    assert memory(shape, layout.replace(framework="deepspeed")).weights > 0
    assert memory(shape, layout.replace(framework="huggingface", offload="none")).weights > 0


@pytest.mark.parametrize("gpus", [2, 8])
def test_zero_2_of_fsdp_gathers_frozen_weights_too(gpus: int) -> None:
    """Adapters are small; what they sit on is whole on each GPU from forward to backward."""
    shape = named("llama-7B")
    lora = Layout.of(
        gpus=gpus, framework="huggingface", recompute="full", lora_rank=16, seq_len=512
    )
    gathered, sharded = (memory(shape, lora.replace(zero=zero)) for zero in (2, 3))
    assert gathered.buffers == pytest.approx(2 * parameters(shape).total, rel=0.01)
    assert gathered.total > sharded.total


@pytest.mark.parametrize(
    ("framework", "zero"), [("huggingface", 3), ("huggingface", 2), ("deepspeed", 2)]
)
def test_offload_needs_no_second_gpu(framework: str, zero: int) -> None:
    """What two GPUs keep on the host, one does as well."""
    shape = named("llama-7B")
    layout = Layout.of(
        framework=framework, zero=zero, offload="host", recompute="full", seq_len=2048
    )
    alone, pair = (memory(shape, layout.replace(gpus=gpus)) for gpus in (1, 2))
    assert alone.gradients == pair.gradients == 0
    assert (alone.weights, alone.buffers) == (pair.weights, pair.buffers)


def test_gathered_weights_are_gone_when_the_optimizer_begins() -> None:
    """ZeRO 3 of DeepSpeed updates 1e9 parameters of a shard at a time (a published 6.9B model)."""
    shape = replace(named("llama-7B"), vocab=50304, name="")
    ran = Layout.of(gpus=4, zero=3, framework="deepspeed", seq_len=512, recompute="full")
    found = memory(shape, ran)
    own = parameters(shape).total / 4
    assert found.buffers == 0
    assert found.allocated == pytest.approx(own * 16 + 4e9, rel=0.001)


def test_moments_in_bf16_mean_gradients_that_are_read_as_they_are() -> None:
    """Megatron-Core's precision-aware optimizer; with fp32 moments bf16 gradients are widened."""
    ran = Layout.of(gpus=8, zero=1, framework="megatron", grad_reduce="bf16", kernels="flash+fused")
    narrow, wide = (
        states_of(one, numerics_of(named("llama-7B"), one)).update
        for one in (ran.replace(moments="bf16"), ran)
    )
    assert (narrow, wide) == (0.0, 4.0)


def test_a_round_of_all_micro_batches_adds_up_one_group_of_layers_at_a_time() -> None:
    titan = Layout.of(
        gpus=64, tp=2, pp=4, zero=2, framework="torchtitan", precision="bf16", seq_len=64
    )
    one, turns = (titan.replace(grad_accum=4, interleave=v) for v in (1, 4))
    shape = replace(GPT, num_layers=16)
    assert memory(shape, turns).gradients < 0.6 * memory(shape, one).gradients
    several = turns.replace(grad_accum=8)  # the first group is added to until the end
    assert memory(shape, several).gradients == pytest.approx(memory(shape, one).gradients, rel=0.1)


@given(st.sampled_from([1, 4, 16]), st.integers(1, 8))
def test_a_fused_loss_has_no_logits_that_forward_does_without(batch: int, accum: int) -> None:
    """Of copies that autocast drops: with full recomputation no moment has fewer than no logits."""
    asked = Layout.of(
        batch_size=batch,
        grad_accum=accum,
        seq_len=4096,
        recompute="full",
        framework="huggingface",
        kernels="flash+fused",
    )
    wide = replace(named("llama-7B"), vocab=128256, name="")
    for stage in places(wide, asked):
        for peak in memory_peaks(stage_of(wide, asked, stage)):
            assert float(peak["logits"]) >= 0.0


SHARED = [
    name
    for name, (_, numbers) in published().items()
    if min(numbers.get("vectors", 0), numbers.get("end_vectors", 0)) < 0
]
"""Models whose blocks share what matrices of their sizes would hold, as ALBERT's do."""


@pytest.mark.parametrize("model", SHARED)
@pytest.mark.parametrize("split", [{"tp": 8}, {"tp": 2, "pp": 2}, {"tp": 16}])
@pytest.mark.parametrize("zero", [0, 3])
def test_shared_blocks_are_split_and_never_less_than_nothing(
    model: str, split: dict[str, int], zero: int
) -> None:
    shape = named(model)
    ranks = math.prod(split.values())
    if shape.attention.num_heads % split["tp"]:
        pytest.skip("its heads cannot be split so")
    framework = "megatron" if "pp" in split else "huggingface"
    layout = Layout.of(framework=framework, zero=zero * (framework == "huggingface"), **split)
    found = memory(shape, layout.replace(gpus=ranks))
    assert found.weights > 0 and found.total > found.weights
