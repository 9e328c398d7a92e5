"""FLOPs of layers with windows and of layers that keep a state, and of causal attention by half."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainrig import workload
from trainrig.errors import UsageError
from trainrig.workload.blocks import saved_tensors
from trainrig.workload.layout import Layout
from trainrig.workload.model import block_kinds
from trainrig.workload.numerics import numerics_of

SMALL = {"num_layers": 2, "hidden": 128, "num_heads": 4, "ffn": 256, "vocab": 64}


def scores(shape: workload.ModelShape, seq: int, **words: bool) -> int:
    """FLOPs of a sequence that grow with what its tokens look at, forward."""
    alone = seq * workload.model_flops(shape, 1, 1)
    of_one = 4 * shape.num_layers * shape.attention.num_heads * shape.attention.head_dim * seq
    return workload.model_flops(shape, 1, seq, **words) // 3 - alone // 3 + of_one


def test_a_window_counts_the_tokens_in_it() -> None:
    """Mistral 7B: 32 layers of 4,096 wide heads, each of which looks back on 4,096 tokens."""
    shape, seq = workload.named("mistral-7B-v0.1"), 65536
    assert scores(shape, seq) == 32 * 4 * 4096 * 4096 * seq
    whole = shape.replace(windows=())
    assert scores(whole, seq) == 32 * 4 * seq * 4096 * seq
    assert scores(whole, seq, half=True) == pytest.approx(scores(whole, seq) / 2, rel=1e-4)
    seen = 4096 - 4096**2 / (2 * seq)
    assert scores(shape, seq, half=True) == pytest.approx(32 * 4 * seen * 4096 * seq, rel=1e-4)


@pytest.mark.parametrize(("variant", "products"), [("nemotron_h", 2), ("qwen3_next", 3)])
def test_a_state_is_written_and_read_whatever_the_length(variant: str, products: int) -> None:
    plain = workload.custom("llama", **SMALL)
    kept = plain.replace(state_width=96, windows=(64, 0), variant=variant)
    for seq in (32, 4096):
        difference = workload.model_flops(kept, 3, seq) - workload.model_flops(plain, 3, seq)
        state, attention = 2 * products * 96 * 64, 4 * seq * 128
        assert difference == 3 * 3 * seq * (state - attention)
        assert not [
            op
            for op in workload.step_ops(kept, Layout.of(batch_size=3, seq_len=seq))
            if op.name.startswith("block.state") and ".attend" in op.name
        ]


@given(seq=st.integers(1, 5000), window=st.integers(1, 6000), more=st.integers(0, 2000))
def test_a_wider_window_is_more_work_up_to_all_of_the_sequence(
    seq: int, window: int, more: int
) -> None:
    plain = workload.custom("llama", **SMALL)
    for half in (False, True):
        near, wider, every = (
            workload.model_flops(plain.replace(windows=windows), 2, seq, half=half)
            for windows in ((window,) * 2, (window + more,) * 2, ())
        )
        assert near <= wider <= every
        assert window < seq or near == every
    full, seen = (workload.model_flops(plain, 2, seq, half=half) for half in (False, True))
    assert seen <= full <= 2 * seen


@pytest.mark.parametrize("name", ["gemma-3-12B", "nemotron-h-8B", "deepseek-v3", "t5-base"])
def test_what_runs_a_model_changes_none_of_its_flops(name: str) -> None:
    shape = workload.named(name)
    flops = {
        workload.model_flops(shape, 1, 8192, kernels=kernels)
        for kernels in ("eager", "fused", "flash", "compiled")
    }
    assert flops == {workload.model_flops(shape, 1, 8192)}
    computed = [workload.hardware_flops(shape, 1, 8192, kernels=k) for k in ("flash", "eager")]
    # Scores once more in a fused kernel; eager ones of windows in full.
    skips = any(shape.attention.windows) and not shape.state.width
    assert (computed[0] < computed[1]) == skips
    assert min(computed) >= workload.model_flops(shape, 1, 8192)


@pytest.mark.parametrize("family", ["bert", "t5"])
def test_what_looks_both_ways_has_no_half(family: str) -> None:
    shape = workload.custom(family, num_layers=2, hidden=128)
    full, seen = (workload.model_flops(shape, 1, 256, half=half) for half in (False, True))
    assert full - seen == (0 if family == "bert" else 3 * 2 * 2 * 256 * 256 * 128)


def test_kinds_of_block_are_all_blocks() -> None:
    glm = workload.named("glm-5")
    kinds = [(kind.num, kind.dense, kind.window) for kind in block_kinds(glm)]
    assert sum(num for num, _, _ in kinds) == glm.num_layers
    assert {(dense, window) for _, dense, window in kinds} >= {(True, 2048), (False, 0)}
    t5 = block_kinds(workload.named("t5-base"))
    assert [(kind.num, kind.decoder) for kind in t5] == [(12, False), (12, True)]


LIGHTNING = "minimax-01-456B-A45.9B"


def test_minimax_01_has_the_published_parameters_all_and_of_a_token() -> None:
    """By config.json: 70 layers of lightning attention, five matrices of 6144 x 8192 each."""
    shape = workload.named(LIGHTNING)
    found = workload.parameters(shape)
    assert found.attention == 70 * 5 * 6144 * 8192 + 10 * 2 * 6144 * (8192 + 1024)
    assert found.total / 1e9 == pytest.approx(456, rel=0.001)
    experts = 80 * 32 * 3 * 6144 * 9216
    of_a_token = found.total - found.embedding - found.head - experts * 30 // 32
    assert of_a_token / 1e9 == pytest.approx(45.9, rel=0.002)
    assert [at for at, window in enumerate(shape.attention.windows) if not window] == [
        *range(7, 80, 8)
    ]
    blocks = 80 * workload.block_parameters(shape) + found.embedding + found.head + 6144
    assert blocks == pytest.approx(found.total, abs=80)


def test_lightning_attention_costs_the_same_for_each_token_of_any_length() -> None:
    shape = workload.named(LIGHTNING)
    for seq in (4096, 1 << 20):
        flops = workload.model_flops(shape, 1, seq)
        alone = workload.model_flops(shape, 1, 1)
        # Ten layers of softmax attention, 64 heads of 128 elements.
        assert flops - seq * alone == 3 * 10 * 4 * (seq - 1) * seq * 64 * 128


def test_what_a_state_keeps_for_backward_grows_with_the_sequence_alone() -> None:
    shape = workload.named(LIGHTNING)
    layout = Layout.of(batch_size=1, seq_len=4096, kernels="eager")
    kept = [
        sum(
            item.num_bytes
            for item in saved_tensors(shape, numerics_of(shape, layout), seq)
            if "scores" in item.name or "softmax" in item.name
        )
        for seq in (1024, 2048)
    ]
    assert kept[1] == pytest.approx(4 * kept[0])
    whole = shape.replace(windows=(), state_keys=0, state_width=0)
    every = sum(
        item.num_bytes
        for item in saved_tensors(whole, numerics_of(whole, layout), 1024)
        if "scores" in item.name or "softmax" in item.name
    )
    assert kept[0] == pytest.approx(every / 8)


def test_a_state_s_matrices_belong_to_a_state() -> None:
    with pytest.raises(UsageError, match="state_keys"):
        workload.custom("llama", **SMALL, state_keys=64)
