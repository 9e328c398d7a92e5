"""Trainer on real ranks with what it has besides: adapters, Adafactor, arguments by their names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from test_deepspeed_megatron import BERT, GPT, LLAMA, experiment, reference, trained

from trainrig.train.layout_check import differences, observed_layout, requested_layout
from trainrig.train.parity import disagreement

smoke, acceptance = pytest.mark.smoke, pytest.mark.acceptance


@pytest.fixture(scope="module")
def data(prepared_text: Path) -> str:
    """A small prepared corpus."""
    return str(prepared_text)


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"lora_rank": 4, "recompute": "full"}, id="lora", marks=smoke),
        pytest.param({"lora_rank": 4, "model": LLAMA, "nproc": 1}, id="llama", marks=acceptance),
        pytest.param({"optimizer": "adafactor"}, id="adafactor", marks=acceptance),
        pytest.param(
            {"trainer": "optim=rmsprop,skip_memory_metrics=false"}, id="by-name", marks=acceptance
        ),
        pytest.param(
            {"model": BERT, "precision": "bf16", "batch_size": 9, "nproc": 1},
            id="bert-bf16",
            marks=acceptance,
        ),
        pytest.param(
            {"model": BERT, "precision": "bf16", "batch_size": 5},
            id="bert-bf16-ddp",
            marks=acceptance,
        ),
        pytest.param(
            {"precision": "bf16", "batch_size": 3, "grad_accum": 3}, id="gpt-bf16", marks=acceptance
        ),
    ],
)
def test_it_is_found_as_asked_and_compared(
    data: str, tmp_path: Path, changes: dict[str, Any]
) -> None:
    own = experiment(data, "huggingface", **{"model": GPT, **changes})
    if own.lora_rank:
        pytest.importorskip("peft", reason="needs peft")
    found = trained(own, tmp_path / "own")
    assert found.facts is not None and found.probe is not None
    assert differences(requested_layout(own), observed_layout(found.facts)) == []
    one = reference(own, tmp_path)
    assert disagreement(found.probe, one, own.precision) is None
    assert found.facts["lora_rank"] == own.lora_rank
    if own.lora_rank:  # its gradients are of other weights
        assert found.facts["num_parameters"] < 20_000
        assert found.probe.only_first and found.probe.grad_norms[0] != one.grad_norms[0]
    if own.trainer:
        assert found.facts["optimizer"] == "RMSprop"
    losses = [row["loss"] for row in found.rows]
    assert losses[-1] < losses[0]
