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

Rows of the buffer begin at multiples of 64 numbers: 50,257 in a row would leave all but one
unaligned, and a GPU's products slow.

Vocabulary parallel: where the matrix is a DTensor, a rank has the rows of some tokens, and a chunk
has its share of the columns.  Two all-reduces a chunk of R rows say the rest: the largest logit (R
numbers), then the sum of exponentials and the target's logit (2·R).  The gradient of the hidden
states is a partial sum, which autograd reduces once, or scatters where the sequence is spread
(sequence parallel).

The idea is that of Liger-Kernel's fused linear cross-entropy (Hsu et al. 2024, arXiv 2410.10989).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
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
_TILE = {"cpu": 2**19}
_TILE_ELSEWHERE = 2**24
"""Logits of a chunk that are in fp32 at a time: 2 MiB on a CPU, 64 MiB elsewhere."""

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


def cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    bias: Tensor | None = None,
    rows: int | None = None,
    reduction: str = "mean",
    *,
    aligned: int = 64,
    compiled: bool = False,
) -> Tensor:
    """logsumexp(logits) − logits[target], ``rows`` tokens at a time (by the vocabulary if None).

    hidden (…, C), weight (V, C), targets (…) with IGNORED where there is none, bias (V).  Under
    autocast the products run in its dtype; softmax and sums are in fp32 always.  ``reduction``:
    mean or sum, over the tokens with a target.  A ``weight`` that is a DTensor, sharded by rows
    over its mesh, has a bias sharded likewise, and a plain ``hidden`` is the same on all ranks.
    Rows of logits begin at multiples of ``aligned`` numbers.  ``compiled``: softmax and slope of a
    chunk are torch.compile's, where the vocabulary is whole and on a GPU.
    """
    kind = hidden.device.type
    mixed = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
    dtype = torch.get_autocast_dtype(kind) if mixed else hidden.dtype
    grads = torch.is_grad_enabled() and (hidden.requires_grad or weight.requires_grad)
    group, first, num_rows = None, 0, weight.shape[0]
    if hasattr(weight, "to_local"):
        group, first, num_rows, hidden, weight, bias = _own_rows(hidden, weight, bias)
    rows = rows or chunk_rows(num_rows, kind)
    how = _LossArguments(
        rows=rows,
        dtype=dtype,
        grads=grads,
        mean=reduction == "mean",
        group=group,
        first=first,
        aligned=aligned,
        compiled=compiled and kind == "cuda",
    )
    with torch.autocast(kind, enabled=False) if mixed else nullcontext():
        loss: Tensor = _HeadLoss.apply(hidden.flatten(0, -2), weight, bias, targets.flatten(), how)
    return loss


def _own_rows(hidden: Tensor, weight: Any, bias: Any) -> Any:
    """Return the group, its first row here, rows of the largest share.

    This rank's own three tensors.
    """
    from torch.distributed.tensor import DTensor, Partial, Replicate

    mesh, whole = weight.device_mesh, [Replicate()]
    if not isinstance(hidden, DTensor):
        hidden = DTensor.from_local(hidden, mesh, whole, run_check=False)
    here = hidden.redistribute(placements=whole).to_local(grad_placements=[Partial()])
    share = -(-weight.shape[0] // mesh.size())
    local_bias = None if bias is None else bias.to_local()
    first = share * mesh.get_local_rank()
    return mesh.get_group(), first, share, here, weight.to_local(), local_bias


def chunk_rows(vocab: int, device_type: str) -> int:
    """Return tokens whose logits are computed at once."""
    return max(_FEWEST_ROWS, _CHUNK.get(device_type, _CHUNK_ELSEWHERE) // vocab)


@dataclass(frozen=True, slots=True, kw_only=True)
class _LossArguments:
    """Arguments of one call of `cross_entropy`."""

    rows: int
    dtype: torch.dtype
    grads: bool
    mean: bool
    group: Any
    """Ranks that have other columns of the logits; None: all columns are here."""
    first: int
    """The column in the whole of the first that is here."""
    aligned: int
    compiled: bool


class _HeadLoss(torch.autograd.Function):
    """Loss of (N, C) hidden states; gradients are ready before backward is called."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        how: _LossArguments,
    ) -> Tensor:
        seen = targets != IGNORED
        count = seen.sum()
        narrow = weight.to(how.dtype)
        sums = _GradientSums(hidden, weight, bias) if how.grads else None
        total = torch.zeros((), dtype=torch.float32, device=hidden.device)
        width = -(-len(weight) // how.aligned) * how.aligned
        buffer = narrow.new_empty(min(how.rows, len(hidden)), width)
        around = _around.get()
        for part in (slice(at, at + how.rows) for at in range(0, len(hidden), how.rows)):
            x = hidden[part].to(how.dtype)
            out = buffer[: len(x), : len(weight)]  # memory that has been touched before
            if bias is None:
                logits = torch.mm(x, narrow.t(), out=out)
            else:
                logits = torch.addmm(bias.to(how.dtype), x, narrow.t(), out=out)
            if how.compiled and how.group is None:
                losses = in_place_compiled(logits, targets[part].clamp(min=0)[:, None])
            elif how.group is None:
                losses = _in_place(logits, targets[part].clamp(min=0)[:, None])
            else:
                losses = _in_place_of_share(logits, targets[part] - how.first, how.group)
            total += (losses * seen[part]).sum()
            if sums is not None:
                # d loss / d logits = softmax - one-hot; 1/count and autograd's factor come last
                with around():
                    sums.add(part, logits, x, narrow, seen[part, None])
        ctx.sums, ctx.count = sums, count if how.mean else 1
        return total / ctx.count

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        scale = grad / ctx.count
        sums: _GradientSums = ctx.sums
        of_bias = None if sums.bias is None else sums.bias * scale
        of_weight = torch.empty_like(sums.weight, dtype=sums.weight_dtype)
        torch.mul(sums.weight, scale, out=of_weight)
        return sums.hidden * scale, of_weight, of_bias, None, None


def _ones(chosen: Tensor, like: Tensor) -> Tensor:
    return torch.ones(chosen.shape, dtype=like.dtype, device=like.device)


def _tile_rows(logits: Tensor) -> int:
    tile = _TILE.get(logits.device.type, _TILE_ELSEWHERE)
    return min(len(logits), max(1, tile // max(1, logits.shape[1])))


def _in_place(logits: Tensor, chosen: Tensor) -> Tensor:
    """Return the loss of each row; ``logits`` (rows, V) become softmax − one-hot.

    A few rows at a time, whose fp32 numbers stay in a processor's own cache, in two buffers: more
    memory, touched for the first time in every step, would cost more than the arithmetic.  The
    largest probability is 1 / Σ exp(l − top): it gives the logarithm of the sum and cannot vanish.
    """
    rows = _tile_rows(logits)
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


def in_place_compiled(logits: Tensor, chosen: Tensor) -> Tensor:
    """`_in_place` for all rows at once, by a kernel that a compiler makes of `slope_of`."""
    slope, losses = _compiled_slope()(logits, chosen)
    logits.copy_(slope)
    return losses


@cache
def _compiled_slope() -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
    return torch.compile(slope_of, dynamic=False)


def slope_of(logits: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """softmax − one-hot of logits (rows, V), and each row's loss; in fp32 inside."""
    wide = logits.float()
    log_sum = torch.logsumexp(wide, dim=-1)
    columns = torch.arange(wide.shape[1], device=wide.device)
    slope = (wide - log_sum[:, None]).exp() - (columns == chosen).float()
    return slope.to(logits.dtype), log_sum - wide.gather(1, chosen)[:, 0]


def _in_place_of_share(logits: Tensor, columns: Tensor, group: Any) -> Tensor:
    """Return the loss of each row; ``logits``, a share of the columns, become softmax − one-hot.

    ``columns``: the target's column here; of another share's if there is none such.
    """
    here = (columns >= 0) & (columns < logits.shape[1])
    chosen = columns.clamp(0, logits.shape[1] - 1)[:, None]
    top = logits.amax(-1).float()
    dist.all_reduce(top, op=dist.ReduceOp.MAX, group=group)
    rows = _tile_rows(logits)
    tiles = zip(logits.split(rows), top.split(rows), strict=True)
    total = torch.cat([(part.float() - most[:, None]).exp_().sum(-1) for part, most in tiles])
    target = torch.where(here, logits.gather(1, chosen)[:, 0].float(), 0.0)
    both = torch.stack([total, target])
    both[1] -= torch.where(here, top, 0.0)
    dist.all_reduce(both, group=group)
    log_sum = both[0].log() + top
    split = zip(*(t.split(rows) for t in (logits, log_sum, chosen, here)), strict=True)
    for part, less, column, is_here in split:
        soft = (part.float() - less[:, None]).exp_()
        part.copy_(soft.scatter_add_(1, column, -is_here[:, None].float()))
    return both[0].log() - both[1]


class _GradientSums:
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
