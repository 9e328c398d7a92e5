"""Bytes held of weights, gradients and states: what is predicted is what ranks hold."""

from __future__ import annotations

from dataclasses import asdict

import pytest

import fake_ranks
from trainrig.train.layout_check import exchange_differences
from trainrig.workload import custom, find
from trainrig.workload.exchanges import Exchange, exchanges
from trainrig.workload.held import held
from trainrig.workload.layout import Layout

SMALL = custom("gpt2", num_layers=2, hidden=32, num_heads=2, vocab=161, max_positions=16)


def check(model: str, zero: int, num_ranks: int, precision: str = "bf16") -> None:
    shape = SMALL if model == "small" else find(model)
    layout = Layout.of(
        gpus=num_ranks,
        gpus_per_node=num_ranks,
        zero=zero,
        precision=precision,
        framework="native",
        batch_size=1,
        seq_len=8,
    )
    with fake_ranks.ranks(num_ranks):
        facts, sizes = fake_ranks.facts_of_a_step(shape, layout)
    predicted = held(shape, layout)
    assert predicted is not None
    assert asdict(predicted) == sizes
    if zero:
        expected = exchanges(shape, layout)
        assert expected
        counted = [Exchange(**each) for each in facts["exchanges"]]
        assert exchange_differences(expected, counted) == []


@pytest.mark.parametrize(
    ("zero", "precision"),
    [(0, "fp32"), (3, "fp32"), (0, "bf16"), (1, "bf16"), (2, "bf16"), (3, "bf16")],
)
def test_a_small_model_on_eight_ranks(zero: int, precision: str) -> None:
    check("small", zero, 8, precision)


@pytest.mark.acceptance
@pytest.mark.parametrize("zero", [0, 1, 2, 3])
@pytest.mark.parametrize("model", ["gpt2-xl", "llama-7B"])
def test_large_models_on_64_ranks(model: str, zero: int) -> None:
    check(model, zero, 64)
