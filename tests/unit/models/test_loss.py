"""The chunked cross-entropy against its definition: value, gradients, memory, narrow types."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch")
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from trainrig.models.loss import (  # noqa: E402
    IGNORED,
    ahead_of_backward,
    chunk_rows,
    cross_entropy,
)

TOKENS, WIDE, VOCAB = 50, 16, 300


def plain_cross_entropy(hidden: Any, weight: Any, targets: Any, bias: Any = None) -> Any:
    """The definition: mean over the tokens with a target of logsumexp(logits) − logits[target]."""
    logits = torch.nn.functional.linear(hidden, weight, bias).flatten(0, -2).float()
    return torch.nn.functional.cross_entropy(logits, targets.flatten(), ignore_index=IGNORED)


def inputs(dtype: Any = torch.float64, *, ignored: float = 0.0, bias: bool = False) -> list[Any]:
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(5, TOKENS // 5, WIDE, generator=generator).to(dtype)
    weight = torch.randn(VOCAB, WIDE, generator=generator).to(dtype)
    targets = torch.randint(0, VOCAB, (5, TOKENS // 5), generator=generator)
    if ignored:
        away = torch.rand(targets.shape, generator=generator) < ignored
        targets = targets.masked_fill(away, IGNORED)
    added = torch.randn(VOCAB, generator=generator).to(dtype).requires_grad_() if bias else None
    return [hidden.requires_grad_(), weight.requires_grad_(), targets, added]


def value_and_gradients(loss: Any, given: list[Any], factor: float = 1.0) -> list[Any]:
    learned = [t for t in given if t is not None and t.requires_grad]
    value = loss(*given)
    return [value.detach(), *torch.autograd.grad(value * factor, learned)]


@pytest.mark.parametrize("rows", [1, 7, 50, 1000, None])
@pytest.mark.parametrize("ignored", [0.0, 0.4])
@pytest.mark.parametrize("bias", [False, True])
def test_value_and_gradients_are_the_definitions(
    rows: int | None, ignored: float, bias: bool
) -> None:
    given = inputs(torch.float32, ignored=ignored, bias=bias)
    chunked = value_and_gradients(lambda *g: cross_entropy(*g, rows=rows), given, factor=3.0)
    plain = value_and_gradients(plain_cross_entropy, given, factor=3.0)
    for ours, exact in zip(chunked, plain, strict=True):
        torch.testing.assert_close(ours, exact, rtol=1e-5, atol=1e-6)


def test_gradients_agree_with_differences() -> None:
    """By finite differences in fp64 along one direction, of which softmax is in fp32."""
    hidden, weight, targets, _ = inputs()
    loss = cross_entropy(hidden, weight, targets, rows=9)
    slope = torch.autograd.grad(loss, hidden)[0]
    way = slope * (0.1 / slope.norm())  # uphill: along another way the difference may vanish
    up, down = (float(cross_entropy(hidden + s * way, weight, targets).detach()) for s in (1, -1))
    assert (up - down) / 2 == pytest.approx(float((slope * way).sum()), rel=2e-3)


def test_without_gradients_the_value_is_the_same() -> None:
    given = inputs(torch.float32)
    with torch.no_grad():
        quiet = cross_entropy(*given)
    assert not quiet.requires_grad
    torch.testing.assert_close(quiet, plain_cross_entropy(*given).detach())


def test_gradients_can_be_asked_for_twice() -> None:
    hidden, weight, targets, _ = inputs(torch.float32)
    loss = cross_entropy(hidden, weight, targets)
    first = torch.autograd.grad(loss, weight, retain_graph=True)[0]
    assert torch.equal(first, torch.autograd.grad(loss, weight)[0])


class Largest(TorchDispatchMode):
    """The elements of the largest floating-point tensor that any operation returns."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else (result,):
            if isinstance(tensor, torch.Tensor) and tensor.is_floating_point():
                self.elements = max(self.elements, tensor.numel())
        return result


def largest(loss: Any, given: list[Any]) -> int:
    with Largest() as seen:
        loss(*given).backward()
    return seen.elements


def test_the_logits_never_exist_whole() -> None:
    given = inputs(torch.float32)
    assert largest(plain_cross_entropy, given) == TOKENS * VOCAB
    assert largest(lambda *g: cross_entropy(*g, rows=8), given) == max(8 * VOCAB, VOCAB * WIDE)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_types_are_as_exact_as_the_plain_loss(dtype: Any) -> None:
    given = inputs(dtype, ignored=0.3)
    wide = [t.detach().double() if t is not None else None for t in given]
    wide[2] = given[2]
    exact = value_and_gradients(
        plain_cross_entropy, [t.requires_grad_() if i < 2 else t for i, t in enumerate(wide)]
    )
    chunked = value_and_gradients(lambda *g: cross_entropy(*g, rows=16), given)
    plain = value_and_gradients(plain_cross_entropy, given)
    for ours, theirs, truth in zip(chunked, plain, exact, strict=True):
        off = [float((t.double() - truth).abs().max()) for t in (ours, theirs)]
        assert off[0] <= 2.0 * off[1] + 1e-6, off
    assert chunked[1].dtype == chunked[2].dtype == dtype


def test_a_scaled_loss_keeps_small_gradients_in_fp16() -> None:
    """1/N is taken after the factor of the loss, where fp16 would lose it before."""
    hidden, weight, targets, _ = inputs(torch.float16)
    with torch.no_grad():
        hidden *= 0.01
        weight *= 0.01
    given = [hidden, weight, targets, None]
    exact = value_and_gradients(
        plain_cross_entropy,
        [hidden.detach().float().requires_grad_(), weight.detach().float(), targets, None],
    )[1]
    scaled = value_and_gradients(cross_entropy, given, factor=2.0**14)[1].float() / 2.0**14
    assert float((scaled - exact).abs().max()) < 0.01 * float(exact.abs().max())


def test_under_autocast_products_are_narrow_and_gradients_wide() -> None:
    given = inputs(torch.float32)
    exact = value_and_gradients(plain_cross_entropy, given)
    with torch.autocast("cpu", torch.bfloat16):
        mixed = value_and_gradients(cross_entropy, given)
    for ours, truth in zip(mixed, exact, strict=True):
        assert ours.dtype == torch.float32
        off = float((ours - truth).abs().max()) / float(truth.abs().max())
        assert 1e-5 < off < 0.03  # it was narrow, and no narrower than bf16


@pytest.mark.parametrize(("vocab", "rows"), [(8192, 1024), (300, 27962), (50257, 256)])
def test_a_chunk_fits_the_cache_but_is_worth_its_sum(vocab: int, rows: int) -> None:
    assert chunk_rows(vocab, "cpu") == rows
    assert chunk_rows(vocab, "cuda") * vocab <= 2**26


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_what_is_computed_ahead_of_backward_is_told(device: str) -> None:
    """Once a chunk, and only where gradients are wanted: whoever times the passes moves it."""
    told: list[str] = []

    @contextmanager
    def around() -> Iterator[None]:
        told.append("begin")
        yield
        told.append("end")

    hidden, weight, targets, _ = (
        None if given is None else given.detach().to(device).requires_grad_(given.requires_grad)
        for given in inputs(torch.float32)
    )
    with ahead_of_backward(around):
        cross_entropy(hidden, weight, targets, rows=20)
        assert told == ["begin", "end"] * 3
        with torch.no_grad():
            cross_entropy(hidden, weight, targets, rows=20)
    cross_entropy(hidden, weight, targets, rows=20)
    assert told == ["begin", "end"] * 3
