"""Cross-entropy of the logits without the logits: the head and the loss in one operation.

For N tokens of width C and a vocabulary V, logits are N·V numbers: at 16,384 tokens and GPT-2's
50,257 entries 3.1 GiB in fp32, and their gradient as much again.  Here only a chunk of rows exists
at a time.  Its gradient, softmax − one-hot, needs nothing that comes later, so it is used at once
for the gradients of the hidden states and of the head's matrix, in the forward pass, and the chunk
is dropped.  The gradients are exact: the same products in the same precision, summed by chunks.

Memory: a chunk's logits (rows·V in fp32, and once more in the dtype of the products if that is
narrower), the gradient of the hidden states (N·C) and that of the matrix (V·C, in fp32), which
autograd would hold too.  Work: the same three products, 6·N·C·V FLOPs, all of them in the forward
pass when gradients are wanted; whoever times the passes is told which part of it is backward's
(`ahead_of_backward`).

The idea is that of Liger-Kernel's fused linear cross-entropy (Hsu et al. 2024, arXiv 2410.10989).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from torch import Tensor
from torch.autograd.function import once_differentiable

IGNORED = -100
"""The target of a token that has none, as torch and Hugging Face have it."""

# Numbers in a chunk of logits.  On a CPU it should fit the last cache (16 MiB in bf16), on a GPU be
# worth its launches (256 MiB).  With fewer rows than 256, adding up the matrix's gradient (V·C
# numbers read and written for each chunk) costs more than it saves: V = 50,257, C = 768, fp32, one
# thread: 64 rows 3.6 s, 256 rows 3.2 s, the plain loss 3.3 s.
_CHUNK = {"cpu": 2**23}
_CHUNK_ELSEWHERE = 2**26
_FEWEST_ROWS = 256
_TILE = 2**19
"""Of a chunk on the CPU, the numbers that are in fp32 at a time: 2 MiB."""

Around = Callable[[], AbstractContextManager[None]]
_around: ContextVar[Around] = ContextVar("around", default=nullcontext)


@contextmanager
def ahead_of_backward(around: Around) -> Iterator[None]:
    """In the body, what losses compute for their backward pass happens within ``around()``."""
    token = _around.set(around)
    try:
        yield
    finally:
        _around.reset(token)


def plain_cross_entropy(
    hidden: Tensor, weight: Tensor, targets: Tensor, bias: Tensor | None = None
) -> Tensor:
    """The definition: mean over the tokens with a target of logsumexp(logits) − logits[target]."""
    logits = F.linear(hidden, weight, bias)
    return F.cross_entropy(logits.flatten(0, -2).float(), targets.flatten(), ignore_index=IGNORED)


def cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    bias: Tensor | None = None,
    rows: int | None = None,
) -> Tensor:
    """`plain_cross_entropy`, ``rows`` tokens at a time (chosen by the vocabulary if None).

    hidden (…, C), weight (V, C), targets (…) with IGNORED where there is none, bias (V).  Under
    autocast the products run in its dtype; softmax and sums are in fp32 always.
    """
    kind = hidden.device.type
    mixed = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
    dtype = torch.get_autocast_dtype(kind) if mixed else hidden.dtype
    rows = rows or chunk_rows(weight.shape[0], kind)
    grads = torch.is_grad_enabled() and (hidden.requires_grad or weight.requires_grad)
    with torch.autocast(kind, enabled=False) if mixed else nullcontext():
        loss: Tensor = _HeadLoss.apply(
            hidden.flatten(0, -2), weight, bias, targets.flatten(), rows, dtype, grads
        )
    return loss


def chunk_rows(vocab: int, device_type: str) -> int:
    """Tokens whose logits are computed at once."""
    return max(_FEWEST_ROWS, _CHUNK.get(device_type, _CHUNK_ELSEWHERE) // vocab)


class _HeadLoss(torch.autograd.Function):
    """Mean loss of (N, C) hidden states; gradients are ready before backward is called."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        rows: int,
        dtype: torch.dtype,
        grads: bool,
    ) -> Tensor:
        seen = targets != IGNORED
        count = seen.sum()
        narrow = weight.to(dtype)
        sums = _Sums(hidden, weight, bias) if grads else None
        total = torch.zeros((), dtype=torch.float32, device=hidden.device)
        buffer = narrow.new_empty(min(rows, len(hidden)), len(weight))
        around = _around.get()
        for part in (slice(start, start + rows) for start in range(0, len(hidden), rows)):
            x = hidden[part].to(dtype)
            chosen = targets[part].clamp(min=0)[:, None]
            out = buffer[: len(x)]  # memory that has been touched before
            if bias is None:
                logits = torch.mm(x, narrow.t(), out=out)
            else:
                logits = torch.addmm(bias.to(dtype), x, narrow.t(), out=out)
            # d loss / d logits = softmax - one-hot; 1/count and autograd's factor come last
            if sums is not None and logits.device.type == "cpu":
                losses, slope = _in_place(logits, chosen), logits
            else:
                log_p = torch.log_softmax(logits, dim=-1, dtype=torch.float32)
                losses, slope = -log_p.gather(1, chosen)[:, 0], log_p
                if sums is not None:
                    slope = log_p.exp_().scatter_add_(1, chosen, _ones(chosen, log_p).neg_())
            total += (losses * seen[part]).sum()
            if sums is not None:
                with around():
                    sums.add(part, slope.to(dtype), x, narrow, seen[part, None])
        ctx.sums, ctx.count = sums, count
        return total / count

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        scale = grad / ctx.count
        sums: _Sums = ctx.sums
        of_bias = None if sums.bias is None else sums.bias * scale
        of_weight = torch.empty_like(sums.weight, dtype=sums.weight_dtype)
        torch.mul(sums.weight, scale, out=of_weight)
        return sums.hidden * scale, of_weight, of_bias, None, None, None, None


def _ones(chosen: Tensor, like: Tensor) -> Tensor:
    return torch.ones(chosen.shape, dtype=like.dtype, device=like.device)


def _in_place(logits: Tensor, chosen: Tensor) -> Tensor:
    """The loss of each row; ``logits`` (rows, V) become softmax − one-hot.

    A few rows at a time, whose fp32 numbers stay in a processor's own cache, in two buffers: more
    memory, touched for the first time in every step, would cost more than the arithmetic.  The
    largest probability is 1 / Σ exp(l − top): it gives the logarithm of the sum and cannot vanish.
    """
    rows = min(len(logits), max(1, _TILE // logits.shape[1]))
    wide = logits.new_empty(rows, logits.shape[1], dtype=torch.float32)
    p = torch.empty_like(wide)
    losses = []
    for part, target in zip(logits.split(rows), chosen.split(rows), strict=True):
        row, soft = wide[: len(part)].copy_(part), p[: len(part)]
        torch.softmax(row, dim=-1, out=soft)
        log_sum = row.amax(-1) - soft.amax(-1).log_()
        losses.append(log_sum - row.gather(1, target)[:, 0])
        part.copy_(soft.scatter_add_(1, target, _ones(target, soft).neg_()))
    return torch.cat(losses)


class _Sums:
    """Gradients before their common factor, summed over the chunks."""

    def __init__(self, hidden: Tensor, weight: Tensor, bias: Tensor | None) -> None:
        self.hidden = torch.empty_like(hidden)
        self.weight = torch.empty_like(weight, dtype=torch.float32)
        self.weight_dtype = weight.dtype
        self.bias = None if bias is None else torch.zeros_like(bias, dtype=torch.float32)

    def add(self, part: slice, slope: Tensor, x: Tensor, weight: Tensor, seen: Tensor) -> None:
        """One chunk: slope (rows, V), x (rows, C); rows that are not ``seen`` count for nothing."""
        self.hidden[part] = (slope @ weight) * seen
        x = x * seen
        if part.start == 0:
            self.weight.copy_(slope.t() @ x)  # half the traffic of zeros and a sum
        elif slope.dtype == torch.float32:
            torch.addmm(self.weight, slope.t(), x, out=self.weight)
        else:
            self.weight += slope.t() @ x
        if self.bias is not None:
            self.bias += (slope * seen).sum(0, dtype=torch.float32)
