"""First weights: by seed and name alone, on any device; the distributions are the families' own."""

from __future__ import annotations

import hashlib
import math
from typing import Any

import pytest

from fake_cuda import FakeCuda
from trainrig import models, workload

torch = pytest.importorskip("torch", reason="needs torch")
from trainrig.models import first_weights  # noqa: E402

LLAMA = workload.custom("llama", num_layers=2, hidden=64, num_heads=4, vocab=96)


def digests(model: Any) -> dict[str, str]:
    return {
        name: hashlib.sha256(weight.detach().cpu().numpy().tobytes()).hexdigest()
        for name, weight in model.named_parameters()
    }


def test_a_gpu_draws_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own generator would give other weights than a driver has that draws on the CPU."""
    asked: list[str] = []
    with FakeCuda(1):
        real = torch.Generator

        def generator(device: Any = "cpu") -> Any:
            asked.append(str(device))
            return real(device=device)

        monkeypatch.setattr(torch, "Generator", generator)
        models.build(LLAMA, device="cuda:0", seed=3)
        monkeypatch.undo()
    assert set(asked) == {"cpu"}


def test_a_part_begins_with_the_weights_of_the_whole() -> None:
    whole = digests(models.build(LLAMA, seed=3))
    part = models.build(LLAMA, device="meta")
    part.tokens = part.blocks[0] = None
    part.to_empty(device="cpu")
    models.fill_weights(part, 3)
    assert {name: whole[name] for name in digests(part)} == digests(part)
    assert len(whole) - len(digests(part)) == 10


@pytest.mark.parametrize("family", ["gpt2", "gpt-neo", "bert", "llama", "t5"])
def test_distributions_are_the_familys(family: str) -> None:
    """Standard deviations; the number of layers decides GPT-2's, widths T5's."""
    shape = workload.custom(family, num_layers=2, hidden=64, num_heads=2, vocab=4096)
    state = models.build(shape, seed=5).state_dict()
    std = shape.init_std
    residual = std / 2 if family == "gpt2" else std
    expected = {"tokens": std, "blocks.1.attention.out": residual, "blocks.1.ffn.down": residual}
    if family == "t5":
        expected |= {
            "blocks.1.attention.q": 1 / math.sqrt(64 * shape.attention.head_dim),
            "decoder_blocks.1.cross.v": 1 / 8,
            "blocks.1.attention.out": 1 / math.sqrt(2 * shape.attention.head_dim),
            "blocks.0.ffn.up": 1 / 8,
            "blocks.1.ffn.down": shape.ffn.width**-0.5,
        }
    for name, asked in expected.items():
        assert float(state[f"{name}.weight"].std()) == pytest.approx(asked, rel=0.05), name
    for name, tensor in state.items():
        if name.endswith("bias"):
            assert not tensor.any(), name
        elif "norm" in name:
            assert tensor.eq(1.0).all(), name


def test_weights_larger_than_a_chunk_repeat_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_weights, "CHUNK", 256)  # four rows
    weight = models.build(LLAMA).tokens.weight
    assert len({row.numpy().tobytes() for row in weight.detach()}) == 96
