"""What a device runs for a block: products, shares of tensor parallel, passes by kernel stack."""

from __future__ import annotations

import pytest

from trainrig.errors import UsageError
from trainrig.workload import block_ops, custom, named
from trainrig.workload.blocks import block, head
from trainrig.workload.families import facts_of
from trainrig.workload.kernels import STACKS, Kernels, kernels_of
from trainrig.workload.layout import Layout
from trainrig.workload.layout.groups import KERNELS
from trainrig.workload.numerics import numerics_of
from trainrig.workload.operators import Operator

SHAPES = [
    custom("gpt2", num_layers=4, hidden=1024, num_heads=16, vocab=4096),
    custom("bert", num_layers=4, hidden=1024, num_heads=16, vocab=4096),
    custom("t5", num_layers=4, hidden=1024, num_heads=16),
    custom("llama", num_layers=4, hidden=1024, num_heads=16, num_kv_heads=8, ffn=4096),
]
IDS = [shape.family for shape in SHAPES]


def parts_of(shape_index: int, **step: object) -> list[Operator]:
    shape = SHAPES[shape_index]
    asked = Layout.of(batch_size=2, seq_len=128, kernels="eager", **step)  # type: ignore[arg-type]
    return [*block(shape, asked, decoder=shape.family == "t5"), *head(shape, asked)]


def kernels(shape_index: int, stack: str, **words: str) -> tuple[Kernels, Kernels]:
    shape = SHAPES[shape_index]
    how = numerics_of(shape, Layout.of(kernels=stack, **words))  # type: ignore[arg-type]
    parts = block(shape, Layout.of(batch_size=2, seq_len=512, kernels=stack))
    return kernels_of(parts, how, backward=False), kernels_of(parts, how, backward=True)


@pytest.mark.parametrize("at", range(len(SHAPES)), ids=IDS)
def test_flops_are_those_of_the_products(at: int) -> None:
    for part in parts_of(at):
        for cost in (part.forward, part.backward):
            assert cost.flops == sum(2 * c * m * n * k for c, m, n, k in cost.products)
    assert any(part.forward.products for part in parts_of(at))


@pytest.mark.parametrize("at", range(len(SHAPES)), ids=IDS)
@pytest.mark.parametrize("tp", [2, 4, 8])
def test_devices_share_a_block_without_a_rest(at: int, tp: int) -> None:
    whole, share = parts_of(at), parts_of(at, tp=tp)
    for one, part in zip(whole, share, strict=True):
        if one.name == "head.transform":  # BERT's is small and left whole
            continue
        assert part.forward.flops * tp == one.forward.flops
        assert part.backward.flops * tp == one.backward.flops


def test_a_head_of_keys_is_repeated_rather_than_cut() -> None:
    shape = SHAPES[3]
    keys = [
        next(p for p in block(shape, Layout.of(seq_len=8, tp=tp)) if p.name == "attention.k")
        for tp in (8, 16)
    ]
    assert keys[0].forward.flops == keys[1].forward.flops


@pytest.mark.parametrize("at", range(len(SHAPES)), ids=IDS)
def test_sequence_parallel_splits_norms_and_residuals(at: int) -> None:
    whole, split = parts_of(at, tp=4), parts_of(at, tp=4, sequence_parallel=1)
    for one, part in zip(whole, split, strict=True):
        quarter = one.name.endswith((".norm", ".residual")) and not one.name.startswith("head")
        assert part.forward.write_bytes * (4 if quarter else 1) == one.forward.write_bytes


def test_a_share_of_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match="tp"):
        block_ops(SHAPES[0], Layout.of(seq_len=8, tp=0))


def test_every_stack_knows_every_kind() -> None:
    assert tuple(STACKS) == KERNELS
    assert len({frozenset(kinds) for kinds in map(dict.keys, STACKS.values())}) <= 2
    for stack in KERNELS:
        for at in range(len(SHAPES)):
            both = kernels(at, stack)
            assert all(one.launches > 0 for one in both)
            assert all(num_bytes >= 0 for one in both for num_bytes, _ in one.streams)


@pytest.mark.parametrize("at", range(len(SHAPES)), ids=IDS)
def test_fusing_moves_fewer_bytes_in_fewer_kernels(at: int) -> None:
    def cost(stack: str) -> tuple[float, int]:
        both = kernels(at, stack, framework="huggingface")
        return sum(b for one in both for b, _ in one.streams), sum(one.launches for one in both)

    assert cost("eager") > cost("fused") > cost("flash+fused")
    assert cost("eager")[1] > cost("fused")[1] > cost("compiled")[1]
    assert cost("compiled")[0] < cost("flash")[0]


def test_autocast_moves_wider_numbers_than_masters() -> None:
    wide, narrow = (
        kernels(0, "eager", framework="huggingface", states=how) for how in ("autocast", "masters")
    )
    assert sum(b for b, _ in wide[0].streams) > 1.3 * sum(b for b, _ in narrow[0].streams)


def test_frozen_weights_have_no_gradients_and_adapters_have_their_own() -> None:
    shape = named("llama-7B")
    parts = block(shape, Layout.of(seq_len=64))
    full, frozen = (
        kernels_of(
            parts, numerics_of(shape, Layout.of(kernels="flash", lora_rank=rank)), backward=True
        )
        for rank in (0, 8)
    )
    assert len(full.products) == 2 * len(frozen.products) and not full.adapters
    assert len(frozen.adapters) == 4 * len(frozen.products)
    assert all(8 in sizes for sizes in frozen.adapters)


def test_a_block_alone_and_in_shares_have_the_same_names() -> None:
    split = Layout.of(seq_len=64, tp=2)
    assert [op.name for op in block_ops(SHAPES[0], split)] == [
        op.name for op in block_ops(SHAPES[0], Layout.of(seq_len=64))
    ]


def test_bart_is_told_from_t5_by_its_name() -> None:
    bart = custom("t5", name="BART-large", num_layers=12, hidden=1024)
    assert not facts_of(bart).has_position_bias and facts_of(named("t5-large")).has_position_bias
    layout = Layout.of(kernels="eager")
    assert not numerics_of(bart, layout).norms.rms
    assert numerics_of(named("t5-large"), layout).norms.rms


def test_autocast_narrows_what_is_wide_and_nothing_else() -> None:
    """A norm's result for each product anew; not the results of attention and of a plain GELU."""
    shape, one = named("bert-large"), 6.0 * 512 * 1024
    layout = Layout.of(seq_len=512, precision="bf16", kernels="eager", framework="huggingface")
    found = kernels_of(block(shape, layout), numerics_of(shape, layout), backward=False)
    streams = [num_bytes for num_bytes, _ in found.streams]
    assert streams.count(one) == 4  # queries, keys, values; the first half of the FFN
    assert 4 * one not in streams  # nor the second
