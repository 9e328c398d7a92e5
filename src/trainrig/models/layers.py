"""Layers that families share: attention, the feed-forward net, a block, a head.

Letters: B batch, T tokens that ask (queries), S tokens that are looked at (keys), H heads,
K heads of keys and values (K = H unless grouped), D width of a head, C width of the model,
F width of the feed-forward net, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from torch import Tensor, nn

from trainrig.errors import UsageError
from trainrig.models import dropout
from trainrig.models.cpu_attention import attend_in_tiles, fits, is_faster
from trainrig.models.dropout import Dropout
from trainrig.models.experts import MixtureFeedForward
from trainrig.models.loss import cross_entropy
from trainrig.workload.model import ModelShape

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,  # x·Φ(x)
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,  # x·σ(x)
}


attentions_run: set[str] = set()
"""Names of the attention functions that this process has run so far, without compiled ones."""


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float,
    causal: bool = False,
    mask: Tensor | None = None,
    window: int = 0,
    attention: str = "auto",
    drop: Dropout | None = None,
    samples: Tensor | None = None,
) -> Tensor:
    """softmax(scale · q·kᵀ + mask) · v for each head.

    q (B, H, T, D); k, v (B, K, S, D); returns (B, H, T, D).  ``mask`` broadcasts to (B, H, T, S):
    bool, True where a query may look, or numbers that are added.  ``causal`` (without a mask): a
    query looks at no later token; with a ``window`` at no more than so many, its own among them.
    ``attention``: one of ATTENTIONS; UsageError for "tiles" where `cpu_attention` has none.
    ``drop`` with ``samples`` (B,): what of the softmax is dropped; it is plain then.
    """
    attention = attention if samples is None else "plain"
    if window >= q.shape[-2]:
        window = 0
    elif window and attention == "plain":
        causal, mask = False, causal_mask(q.shape[-2], q.device, window)
    elif window:
        _note("sdpa")
        return attend_in_window(q, k, v, scale=scale, window=window)
    if attention == "auto":
        attention = "tiles" if is_faster(q, k, causal=causal, mask=mask) else "sdpa"
    _note(attention)
    if attention == "plain":
        how: dict[str, Any] = {"causal": causal, "mask": mask, "drop": drop, "samples": samples}
        return plain_attend(q, k, v, scale=scale, **how)
    if attention == "tiles":
        if not fits(q, k, mask=mask):
            raise UsageError(
                "attention in tiles is for short sequences on a CPU, without a mask",
                "attention = sdpa, or auto",
            )
        return attend_in_tiles(q, k, v, scale=scale, causal=causal)
    grouped = k.shape[1] != q.shape[1]
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=causal, scale=scale, enable_gqa=grouped
    )


def _note(attention: str) -> None:
    if not torch.compiler.is_compiling():
        attentions_run.add(attention)


def attend_in_window(q: Tensor, k: Tensor, v: Tensor, *, scale: float, window: int) -> Tensor:
    """Causal attention to ``window`` tokens at most, in pieces of that length.

    A piece sees itself and the one before: 2·T·window scores instead of T², and a mask of
    (window, 2·window) instead of (T, T), which flash kernels do not take.  The first piece has none
    before it and is plainly causal.
    """
    num_tokens = q.shape[-2]
    short = -num_tokens % window  # the last piece is filled up with what no query may see
    q, k, v = (F.pad(t, (0, 0, 0, short)) for t in (q, k, v))
    grouped = {"scale": scale, "enable_gqa": k.shape[1] != q.shape[1]}
    start = F.scaled_dot_product_attention(
        *(t[:, :, :window] for t in (q, k, v)), is_causal=True, **grouped
    )
    query_pieces = (
        q[:, :, window:].unflatten(2, (-1, window)).transpose(1, 2)
    )  # (B, pieces, H, W, D)
    pairs = [t.unfold(2, 2 * window, window).movedim(2, 1).mT for t in (k, v)]
    place = torch.arange(window, device=q.device)[:, None]
    seen = torch.arange(2 * window, device=q.device)[None, :]
    inside = (seen > place) & (seen <= place + window)
    later_pieces = F.scaled_dot_product_attention(
        *(t.flatten(0, 1) for t in (query_pieces, *pairs)), attn_mask=inside, **grouped
    )
    later_pieces = later_pieces.unflatten(0, query_pieces.shape[:2]).transpose(1, 2).flatten(2, 3)
    return torch.cat((start, later_pieces), dim=2)[:, :, :num_tokens]


def plain_attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float,
    causal: bool,
    mask: Tensor | None,
    drop: Dropout | None = None,
    samples: Tensor | None = None,
) -> Tensor:
    """`attend` written out: every score is in memory at once, (B, H, T, S)."""
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
    scores = (q * scale) @ k.transpose(-2, -1)
    if causal:
        mask = causal_mask(q.shape[-2], q.device)
    if mask is not None and mask.dtype == torch.bool:
        scores = scores.masked_fill(~mask, -math.inf)
    elif mask is not None:
        scores = scores + mask
    weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(v.dtype)
    return dropout.drop(weights, drop, samples) @ v


def causal_mask(num_tokens: int, device: torch.device, window: int = 0) -> Tensor:
    """Return (T, T) bool: True where key ≤ query, and with a window where query - key < window."""
    query = torch.arange(num_tokens, device=device)[:, None]
    key = torch.arange(num_tokens, device=device)[None, :]
    seen = key <= query
    return seen & (query - key < window) if window else seen


def split_heads(x: Tensor, head_dim: int) -> Tensor:
    """Return (B, T, H·D) → (B, H, T, D).

    H is whatever is there: a tensor-parallel share has fewer.
    """
    return x.view(*x.shape[:2], -1, head_dim).transpose(1, 2)


def merge_heads(x: Tensor) -> Tensor:
    """Return (B, H, T, D) → (B, T, H·D)."""
    return x.transpose(1, 2).flatten(2)


class HeadProjections(nn.Module):
    """To queries, keys and values, each a matrix, and back: an attention without its positions."""

    def __init__(self, shape: ModelShape, attention: str = "auto") -> None:
        super().__init__()
        self.head_dim, self.scale = shape.attention.head_dim, shape.softmax_scale
        self.attention = attention
        self.kernel: Callable[..., Tensor] = attend  # context parallel puts its own around it
        queries, keys = (
            shape.attention.width,
            shape.attention.kv_width,
        )
        self.q = nn.Linear(shape.hidden, queries, bias=shape.attention.qkv_bias)
        self.k = nn.Linear(shape.hidden, keys, bias=shape.attention.qkv_bias)
        self.v = nn.Linear(shape.hidden, keys, bias=shape.attention.qkv_bias)
        self.out = nn.Linear(queries, shape.hidden, bias=shape.attention.out_bias)

    def project(self, x: Tensor, memory: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries of ``x`` (B, T, C), keys and values of ``memory`` (B, S, C), by head."""
        q, k, v = self.q(x), self.k(memory), self.v(memory)
        return tuple(split_heads(part, self.head_dim) for part in (q, k, v))

    drop: Dropout | None = None

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        causal: bool = False,
        mask: Tensor | None = None,
        samples: Tensor | None = None,
    ) -> Tensor:
        """Return (B, H, T, D), (B, K, S, D) twice → (B, T, C); the rest as for `attend`."""
        how: dict[str, Any] = {"causal": causal, "mask": mask, "attention": self.attention}
        how |= {} if samples is None else {"samples": samples, "drop": self.drop}
        return self.out(merge_heads(self.kernel(q, k, v, scale=self.scale, **how)))


class FeedForward(nn.Module):
    """down(act(up(x))), or gated: down(act(gate(x)) · up(x)).  (B, T, C) → (B, T, C)"""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()

        def up() -> nn.Linear:
            return nn.Linear(shape.hidden, shape.ffn.width, bias=shape.ffn.bias)

        self.gate = up() if shape.ffn.gated else None
        self.up = up()
        self.act = ACTIVATIONS[shape.ffn.activation]
        self.down = nn.Linear(shape.ffn.width, shape.hidden, bias=shape.ffn.bias)

    def forward(self, x: Tensor) -> Tensor:
        if self.gate is None:
            return self.down(self.act(self.up(x)))
        return self.down(self.act(self.gate(x)) * self.up(x))


def norm_of(shape: ModelShape) -> nn.Module:
    """LayerNorm, or RMSNorm: without a bias, and no mean subtracted."""
    kind = nn.LayerNorm if shape.norm_bias else nn.RMSNorm
    return kind(shape.hidden, eps=shape.norm_eps)


class PreNormBlock(nn.Module):
    """x + attention(norm(x)), then x + ffn(norm(x)).  (B, T, C) → (B, T, C)"""

    def __init__(self, shape: ModelShape, attention: nn.Module) -> None:
        super().__init__()
        self.norm_1 = norm_of(shape)
        self.attention = attention
        self.norm_2 = norm_of(shape)
        experts = shape.moe.num_experts > 0
        act = ACTIVATIONS[shape.ffn.activation]
        self.ffn = MixtureFeedForward(shape, act) if experts else FeedForward(shape)

    drops: tuple[Dropout | None, ...] = (None, None)

    def forward(self, x: Tensor, *arguments: Tensor | None, **samples: Tensor) -> Tensor:
        """``arguments``: what the attention takes besides ``x``; ``samples`` as `loss` has it."""
        sample_numbers = samples.get("samples")
        attended = self.attention(self.norm_1(x), *arguments, **samples)
        x = x + dropout.drop(attended, self.drops[0], sample_numbers)
        return x + dropout.drop(self.ffn(self.norm_2(x)), self.drops[1], sample_numbers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """The part of a sequence's tokens that a rank computes with."""

    part: int = 0
    parts: int = 1
    """Tokens come to this rank as one of so many equal parts (context parallel)."""
    spread: int = 1
    """Hidden states between blocks hold one in so many of those (sequence parallel)."""


class NextTokenModel(nn.Module):
    """Tokens to logits, or to the loss of the next token.

    A pipeline stage is one of these with a part of the modules, under the names of the whole: one
    that is not ``first`` takes hidden states for tokens, one that is not ``last`` returns them.
    """

    shape: ModelShape
    tokens: nn.Embedding
    blocks: nn.ModuleList | nn.ModuleDict
    norm: nn.Module
    head: nn.Linear | None
    first = last = True
    stretch = Stretch()
    drop: Dropout | None = None
    head_loss = staticmethod(cross_entropy)
    """The head and its loss; `unfused` puts another in its place."""

    @property
    def head_weight(self) -> Tensor:
        """Return (V, C)"""
        return self.tokens.weight if self.head is None else self.head.weight

    def embed(self, tokens: Tensor) -> Tensor:
        """Return (B, T) → (B, T, C)"""
        return self.tokens(tokens)

    def block_arguments(self, num_tokens: int, device: torch.device) -> Callable[[int], Any]:
        """What the block of a number takes besides hidden states; ``num_tokens``: of this part."""
        raise NotImplementedError

    def hidden(self, x: Tensor, **samples: Tensor) -> Tensor:
        """Return (B, T) → (B, T, C), what the logits are computed from; or from stage to stage."""
        num_tokens = x.shape[1] * (1 if self.first else self.stretch.spread)
        arguments = self.block_arguments(num_tokens, x.device)
        if self.first:
            x = dropout.drop(self.embed(x), self.drop, samples.get("samples"))
        for number, block in self.blocks.named_children():
            x = block(x, *arguments(int(number)), **samples)
        return self.norm(x) if self.last else x

    def forward(self, x: Tensor, labels: Tensor | None = None, **samples: Tensor) -> Tensor:
        """Return (B, T) → logits (B, T, V).

        With ``labels`` (B, T) the sum of the loss over them.
        """
        hidden = self.hidden(x, **samples)
        if not self.last:
            return hidden
        if labels is None:
            return F.linear(hidden, self.head_weight)
        return self.head_loss(hidden, self.head_weight, labels, reduction="sum")

    def loss(
        self, tokens: Tensor, targets: Tensor, *, rows: int | None = None, **samples: Tensor
    ) -> Tensor:
        """Mean cross-entropy; targets (B, T) are the tokens one place further on.

        ``samples`` (B,): their numbers in the training, by which `dropout` drops; without them
        nothing is dropped.
        """
        return self.head_loss(self.hidden(tokens, **samples), self.head_weight, targets, rows=rows)


def head_of(shape: ModelShape) -> nn.Linear | None:
    """Return the logits' matrix; None where it is the token embedding."""
    return None if shape.head.tied else nn.Linear(shape.hidden, shape.vocab, bias=False)
