"""Mixtures of experts: each token through its own, none dropped; counted as they are computed."""

from __future__ import annotations

from typing import Any

import pytest

from trainrig import models, workload
from trainrig.errors import UsageError
from trainrig.models import experts

torch = pytest.importorskip("torch", reason="needs torch")
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

NUMBERS = {
    "num_layers": 2,
    "hidden": 64,
    "num_heads": 4,
    "num_kv_heads": 2,
    "ffn": 96,
    "vocab": 128,
}
SHAPE = workload.custom("llama", **NUMBERS, num_experts=4)


def by_token(layer: Any, x: Any) -> Any:
    """The definition, one token after another."""
    results = []
    for token in x.flatten(0, 1):
        logits = layer.router(token)
        chosen = logits.topk(2).indices
        weights = torch.softmax(logits[chosen], dim=0)
        parts = [
            expert.down @ (torch.nn.functional.silu(expert.gate @ token) * (expert.up @ token))
            for expert in (Of(layer.experts, int(number)) for number in chosen)
        ]
        results.append(sum(w * part for w, part in zip(weights, parts, strict=True)))
    return torch.stack(results).view_as(x)


class Of:
    """The matrices of one expert."""

    def __init__(self, experts: Any, number: int) -> None:
        self.gate, self.up, self.down = (
            getattr(experts, name)[number] for name in ("gate", "up", "down")
        )


@pytest.mark.parametrize("crowded", [False, True])
def test_each_token_goes_through_its_experts(crowded: bool) -> None:
    """``crowded``: two experts get all tokens, the others none."""
    layer = models.build(SHAPE).blocks[0].ffn
    x = torch.randn(2, 7, 64, generator=torch.Generator().manual_seed(1))
    if crowded:
        x = x[:1, :1].expand(2, 7, 64).contiguous()
    x.requires_grad_()
    found, exact = layer(x), by_token(layer, x)
    torch.testing.assert_close(found, exact)
    learned = [x, *layer.parameters()]
    grads = [torch.autograd.grad(y.square().sum(), learned) for y in (found, exact)]
    for ours, truth in zip(*grads, strict=True):
        torch.testing.assert_close(ours, truth, rtol=1e-4, atol=1e-6)


def test_parameters_and_flops_are_counted_as_they_are_computed() -> None:
    model = models.build(SHAPE, attention="plain")
    tokens = torch.randint(0, 128, (2, 16))
    with FlopCounterMode(display=False) as counter:
        model.loss(tokens, tokens).backward()
    assert counter.get_total_flops() == workload.model_flops(SHAPE, 2, 16)
    total = workload.parameters(SHAPE).total
    assert sum(p.numel() for p in model.parameters()) == total
    dense = workload.custom("llama", **NUMBERS)
    experts, router = 2 * 3 * 3 * 64 * 96, 2 * 4 * 64
    assert total == workload.parameters(dense).total + experts + router


def test_mixtral_has_the_published_number_of_parameters() -> None:
    """46,702,792,704 by the index of its published weights."""
    assert workload.parameters(workload.find("mixtral-8x7B")).total == 46_702_792_704


@pytest.mark.parametrize(
    ("family", "numbers"),
    [
        ("gpt2", {"num_experts": 4}),
        ("llama", {"num_experts": 1}),
        ("llama", {"experts_per_token": 2}),
    ],
)
def test_what_does_not_fit_is_refused(family: str, numbers: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="experts"):
        workload.custom(family, num_layers=2, hidden=64, **numbers)


def test_a_mixture_that_formulas_alone_know_is_not_built() -> None:
    with pytest.raises(UsageError, match="predicted, not trained yet"):
        models.build(workload.named("qwen3-30B-A3B"), device="meta")
    with pytest.raises(UsageError, match="latent attention is predicted, not trained yet"):
        models.build(workload.named("deepseek-v3"), device="meta")


def test_one_kernel_for_all_experts_computes_what_one_product_after_another_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In bf16, as on an accelerator, with an expert that has no rows."""
    layer = models.build(SHAPE, dtype=torch.bfloat16).blocks[0].ffn.experts
    rows = torch.randn(9, 64, generator=torch.Generator().manual_seed(3), dtype=torch.bfloat16)
    counts = torch.tensor([4, 0, 2, 3])
    results, gradients = [], []
    for is_grouped in (False, True):
        monkeypatch.setattr(experts, "has_grouped_products", lambda _, value=is_grouped: value)
        result = layer(rows, counts)
        results.append(result)
        (result * result.detach()).sum().backward()
        gradients.append([weight.grad.clone() for weight in layer.parameters()])
        layer.zero_grad()
    torch.testing.assert_close(*results, rtol=2e-2, atol=1e-3)
    for alone, grouped in zip(*gradients, strict=True):
        torch.testing.assert_close(alone, grouped, rtol=5e-2, atol=1e-3)
