"""Attention "tiles": on the CPU, written out in tiles of queries, with its backward.

torch's fused kernel for the CPU saves no scores and computes them again in backward, in blocks too
small for the bf16 units.  Where all weights of the softmax fit the memory easily it is faster to
keep them: three batched products forward and backward, at the rate of products.  Causal attention
needs only the keys up to the end of a tile: two tiles save a quarter, four three eighths.
Scores are in the products' dtype, softmax and all sums in fp32.

Seen with 8 × 256 tokens, 4 heads of 64, one thread, forward and backward: bf16 33 ms by torch's
kernel, 13.5 ms here; fp32 26.7 and 23.1 ms; 4 × 512 tokens: 57 and 20, 52 and 36 ms.

Letters: N batch · heads, T tokens, D width of a head, e the end of a tile.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

MAX_TOKENS = 1024
"""O(T²) memory: the weights of the softmax are saved, T² / 2 for each causal head."""
_SMALLEST_TILE = 128
_TILES = 4
_DTYPES = (torch.float32, torch.bfloat16)


def fits(q: Tensor, k: Tensor, *, mask: Tensor | None) -> bool:
    """Return whether `attend_in_tiles` computes this attention."""
    return (
        q.device.type == "cpu"
        and q.shape == k.shape
        and mask is None
        and q.dtype in _DTYPES
        and q.shape[2] <= MAX_TOKENS
    )


def is_faster(q: Tensor, k: Tensor, *, causal: bool, mask: Tensor | None) -> bool:
    """Return whether `attend_in_tiles` is faster for this attention than torch's own kernel."""
    if torch.compiler.is_compiling():  # it makes its own kernels of torch's
        return False
    return fits(q, k, mask=mask) and (causal or q.dtype == torch.bfloat16)


def attend_in_tiles(q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: bool) -> Tensor:
    """softmax(scale · q·kᵀ) · v; q, k, v (B, H, T, D), each query sees no later key if causal."""
    out: Tensor = _Tiles.apply(q, k, v, scale, causal)
    return out


def _tile_ends(num_tokens: int, *, causal: bool) -> list[int]:
    """Return the end positions of the tiles of queries."""
    if not causal:
        return [num_tokens]
    tile = max(_SMALLEST_TILE, -(-num_tokens // _TILES))
    return [*range(tile, num_tokens, tile), num_tokens]


class _Tiles(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool) -> Tensor:
        shape = q.shape
        q, k, v = (x.reshape(-1, *shape[2:]) for x in (q, k, v))  # (N, T, D), contiguous
        ctx.ends, ctx.scale, ctx.causal = _tile_ends(shape[2], causal=causal), scale, causal
        out, weights, start = torch.empty_like(q), [], 0
        for end in ctx.ends:
            seen = end if causal else shape[2]
            later = _later(start, end, q) if causal else q.new_zeros(1)
            scores = torch.baddbmm(later, q[:, start:end], k[:, :seen].mT, alpha=scale)
            weights.append(torch.softmax(scores, dim=-1))
            out[:, start:end] = weights[-1] @ v[:, :seen]
            start = end
        ctx.save_for_backward(q, k, v, *weights)
        return out.view(shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, *weights = ctx.saved_tensors
        shape, grad = grad.shape, grad.reshape(q.shape)
        of_q, of_k, of_v = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
        start = 0
        for end, weight in zip(ctx.ends, weights, strict=True):
            tile, seen = slice(start, end), slice(0, weight.shape[-1])
            here = grad[:, tile]
            of_v[:, seen] += weight.mT @ here
            of_weight = here @ v[:, seen].mT
            # d scores = w · (d w − Σ w · d w), a row at a time
            of_score = torch._softmax_backward_data(of_weight, weight, -1, weight.dtype)
            of_q[:, tile] = of_score @ k[:, seen]
            of_k[:, seen] += of_score.mT @ q[:, tile]
            start = end
        of_q *= ctx.scale
        of_k *= ctx.scale
        return of_q.view(shape), of_k.view(shape), of_v.view(shape), None, None


def _later(start: int, end: int, like: Tensor) -> Tensor:
    """Return (end − start, end): −∞ where the key is later than the query, 0 elsewhere."""
    scores = like.new_zeros(end - start, end)
    scores[:, start:] = torch.full_like(scores[:, start:], -math.inf).triu(1)
    return scores
