"""What is written out computes what its kernel does: losses and gradients, in every family."""

from __future__ import annotations

import pytest
import torch

from trainrig import models
from trainrig.models import loss
from trainrig.workload import custom

SHAPES = {
    "gpt2": custom("gpt2", num_layers=1, hidden=32, num_heads=2, vocab=101, max_positions=16),
    "bert": custom("bert", num_layers=1, hidden=32, num_heads=2, vocab=101, max_positions=16),
    "llama": custom("llama", num_layers=1, hidden=32, num_heads=2, vocab=101, max_positions=16),
    "t5": custom("t5", num_layers=1, num_decoder_layers=1, hidden=32, num_heads=2, vocab=101),
}


@pytest.mark.parametrize("family", SHAPES)
@pytest.mark.parametrize("words", [("norm",), ("gelu",), ("loss",), ("pad",)])
def test_written_out_is_the_same_step(family: str, words: tuple[str, ...]) -> None:
    random = torch.Generator().manual_seed(0)
    tokens, labels = (torch.randint(0, 101, (2, 16), generator=random) for _ in range(2))
    labels[0, :3] = -100
    found = []
    for unfused in ((), words):
        model = models.build(SHAPES[family], seed=3, unfused=unfused)
        cpu = [torch.profiler.ProfilerActivity.CPU]
        ops = torch.profiler.profile(activities=cpu, acc_events=True)
        with ops:
            value = model.loss(tokens, labels)
        value.backward()
        grads = [weight.grad for weight in model.parameters() if weight.grad is not None]
        found.append((float(value.detach()), grads, {e.key for e in ops.key_averages()}))
    (fused, fused_grads, kernels), (written, grads, others) = found
    assert written == pytest.approx(fused, rel=2e-6)
    for grad, other in zip(fused_grads, grads, strict=True):
        torch.testing.assert_close(grad, other, rtol=2e-4, atol=2e-6)
    gone = {"norm": "aten::native_layer_norm", "gelu": "aten::gelu", "loss": "_HeadLoss"}
    for word in words:
        assert gone.get(word) not in others
    if family == "gpt2":
        assert set(gone.values()) <= kernels


def test_the_slope_that_a_compiler_is_given_is_the_one_in_place() -> None:
    logits = torch.randn(5, 33, generator=torch.Generator().manual_seed(1))
    chosen = torch.tensor([[0], [32], [7], [7], [1]])
    slope, losses = loss.slope_of(logits, chosen)
    expected = loss._in_place(logits, chosen)
    torch.testing.assert_close(losses, expected)
    torch.testing.assert_close(slope, logits)
    narrow, _ = loss.slope_of(logits.bfloat16(), chosen)
    assert narrow.dtype == torch.bfloat16
