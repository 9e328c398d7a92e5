"""Attention in tiles on the CPU against its definition, and when it is taken."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from trainrig.errors import UsageError  # noqa: E402
from trainrig.models import layers  # noqa: E402
from trainrig.models.cpu_attention import MAX_TOKENS, attend_in_tiles, is_faster  # noqa: E402
from trainrig.models.layers import attend, causal_mask, plain_attend  # noqa: E402


def inputs(num_tokens: int, dtype: Any = torch.float32, heads: int = 3) -> list[Any]:
    """q, k, v as views into one product, as GPT-2 has them."""
    generator = torch.Generator().manual_seed(num_tokens)
    whole = torch.randn(2, num_tokens, heads, 3, 8, generator=generator).to(dtype)
    return [part.requires_grad_() for part in whole.permute(3, 0, 2, 1, 4).unbind()]


def value_and_gradients(found: Any, given: list[Any]) -> list[Any]:
    slope = torch.linspace(-1, 1, found.numel()).view(found.shape).to(found.dtype)
    return [found.detach(), *torch.autograd.grad(found, given, slope)]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("num_tokens", [1, 5, 31, 32, 33, 64, 100, 129, 256])
def test_it_is_the_definition(num_tokens: int, causal: bool) -> None:
    given = inputs(num_tokens)
    ours = value_and_gradients(attend_in_tiles(*given, scale=0.3, causal=causal), given)
    exact = plain_attend(*given, scale=0.3, causal=causal, mask=None)
    for a, b in zip(ours, value_and_gradients(exact, given), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("causal", [True, False])
def test_bf16_is_as_exact_as_its_rounding(causal: bool) -> None:
    given = inputs(100, torch.bfloat16)
    wide = [tensor.detach().double().requires_grad_() for tensor in given]
    ours = value_and_gradients(attend_in_tiles(*given, scale=0.3, causal=causal), given)
    exact = plain_attend(*wide, scale=0.3, causal=causal, mask=None)
    for a, b in zip(ours, value_and_gradients(exact, wide), strict=True):
        worst = (a.double() - b).abs().max() / b.abs().max()
        assert float(worst) < 0.02


def test_gradients_can_be_asked_for_twice() -> None:
    given = inputs(40)
    found = attend_in_tiles(*given, scale=1.0, causal=True)
    first = torch.autograd.grad(found.sum(), given[0], retain_graph=True)[0]
    assert torch.equal(first, torch.autograd.grad(found.sum(), given[0])[0])


def taken(given: list[Any], mask: Any = None, *, causal: bool = True) -> bool:
    q, k, _ = given
    return is_faster(q, k, causal=causal, mask=mask)


def test_it_is_taken_where_it_is_faster_and_nowhere_else() -> None:
    short = inputs(32)
    assert taken(short) and taken(inputs(32, torch.bfloat16), causal=False)
    assert not taken(short, causal=False)  # in fp32 torch's kernel is as fast
    assert not taken(short, mask=causal_mask(32, torch.device("cpu")))
    assert not taken(inputs(MAX_TOKENS + 1))
    assert not taken(inputs(32, torch.float16))
    assert not taken([short[0], short[1][:, :1], short[2][:, :1]])  # grouped heads
    assert not taken([tensor.to("meta") for tensor in short])


def test_attend_gives_the_same_by_any_name_and_knows_which_ran() -> None:
    given = inputs(48)
    layers.attentions_run.clear()
    here = attend(*given, scale=0.5, causal=True)
    assert layers.attentions_run == {"tiles"}
    for name in ("sdpa", "tiles", "plain"):
        same = attend(*given, scale=0.5, causal=True, attention=name)
        torch.testing.assert_close(here, same)
    assert layers.attentions_run == {"sdpa", "tiles", "plain"}


def test_tiles_are_refused_where_there_are_none() -> None:
    given = inputs(MAX_TOKENS + 1)
    with pytest.raises(UsageError, match="short sequences on a CPU"):
        attend(*given, scale=0.5, causal=True, attention="tiles")
    assert attend(*given, scale=0.5, causal=True, attention="auto") is not None


def test_selective_recomputation_keeps_its_products() -> None:
    """Softmax is computed again, no product is."""
    from torch.utils.flop_counter import FlopCounterMode

    from trainrig import models
    from trainrig.workload import custom

    shape = custom("gpt2", num_layers=2, hidden=64, vocab=96, max_positions=32)
    tokens = torch.randint(0, 96, (2, 32), generator=torch.Generator().manual_seed(0))
    counted = {}
    for recompute in ("none", "selective", "full"):
        with FlopCounterMode(display=False) as counter:
            models.build(shape, recompute=recompute).loss(tokens, tokens).backward()
        counted[recompute] = counter.get_total_flops()
    assert counted["none"] == counted["selective"] < counted["full"]
