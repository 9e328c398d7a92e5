"""T5: an encoder that reads and a decoder that writes.

Blocks are x + f(norm(x)) as in GPT-2, with RMSNorm and without biases.  A decoder block has one
part more: cross-attention, whose keys and values come from what the encoder read.  Positions are a
number added to each score, by head and by distance; distances fall into buckets that widen with the
distance, and all layers of a stack share them.  Scores are not divided by √D (the weights' first
scale absorbs it); the logits are divided by √C when their matrix is the embedding.
Source: Raffel et al. 2020; the weights' layout.

Letters: B batch, S tokens read, T tokens written, C width, H heads, D width of a head, F width of
the feed-forward net, V vocabulary.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from torch import Tensor, nn

from trainrig.models.layers import (
    FeedForward,
    HeadProjections,
    PreNormBlock,
    causal_mask,
    head_of,
    norm_of,
)
from trainrig.models.loss import IGNORED, cross_entropy
from trainrig.workload.model import ModelShape

START = 0
"""The token that a decoder begins with: T5's padding."""


class RelativeBias(nn.Module):
    """Bias of each head's scores by the distance of two tokens.  → (1, H, T, T)"""

    def __init__(self, shape: ModelShape, *, causal: bool) -> None:
        super().__init__()
        self.max_distance, self.causal = shape.position.max_distance, causal
        self.buckets = nn.Embedding(shape.position.num_buckets, shape.attention.num_heads)

    def forward(self, num_tokens: int) -> Tensor:
        where = torch.arange(num_tokens, device=self.buckets.weight.device)
        distance = where[None, :] - where[:, None]  # of the key from the query
        bias: Tensor = self.buckets(self.bucket(distance))  # (T, T, H)
        return bias.permute(2, 0, 1)[None]

    def bucket(self, distance: Tensor) -> Tensor:
        """Half of the buckets for one distance each, the others growing up to max_distance.

        If later tokens are seen too, they have the second half of the buckets for themselves.
        """
        num = self.buckets.num_embeddings
        first = torch.zeros_like(distance)
        if not self.causal:
            num //= 2
            first = (distance > 0) * num
        back = (-distance).clamp(min=0) if self.causal else distance.abs()
        exact = num // 2
        log_share = torch.log(back.clamp(min=1).float() / exact) / math.log(
            self.max_distance / exact
        )
        wide = (exact + (log_share * (num - exact)).long()).clamp(max=num - 1)
        return first + torch.where(back < exact, back, wide)


class Attention(HeadProjections):
    """Each of ``x`` asks all of ``memory``, itself unless given.  → (B, T, C)"""

    def forward(
        self, x: Tensor, mask: Tensor | None = None, memory: Tensor | None = None
    ) -> Tensor:
        """Return ``mask`` broadcasts to (B, H, T, S): added to the scores, or bool."""
        q, k, v = self.project(x, x if memory is None else memory)
        if mask is not None and mask.dtype != torch.bool:
            mask = mask.to(q.dtype)
        return self.attend(q, k, v, mask=mask)


class Block(PreNormBlock):
    """One layer of the encoder; takes (1 or B, H, S, S) besides: positions, -inf for padding."""

    def __init__(self, shape: ModelShape, attention: str = "auto") -> None:
        super().__init__(shape, Attention(shape, attention))


class DecoderBlock(nn.Module):
    """One layer of the decoder.  (B, T, C), (B, S, C) → (B, T, C)"""

    def __init__(self, shape: ModelShape, attention: str = "auto") -> None:
        super().__init__()
        self.norm_1 = norm_of(shape)
        self.attention = Attention(shape, attention)
        self.norm_cross = norm_of(shape)
        self.cross = Attention(shape, attention)
        self.norm_2 = norm_of(shape)
        self.ffn = FeedForward(shape)

    def forward(
        self, x: Tensor, bias: Tensor, memory: Tensor, memory_mask: Tensor | None = None
    ) -> Tensor:
        """Return ``bias`` (1, H, T, T): positions, and -inf for later tokens.

        ``memory_mask`` (B, 1, 1, S) bool: False for padding.
        """
        x = x + self.attention(self.norm_1(x), bias)
        x = x + self.cross(self.norm_cross(x), memory_mask, memory)
        return x + self.ffn(self.norm_2(x))


class Model(nn.Module):
    """Tokens read and tokens written so far to logits, or to the loss of what should be written."""

    head_loss = staticmethod(cross_entropy)

    def __init__(self, shape: ModelShape, *, attention: str = "auto") -> None:
        super().__init__()
        self.shape = shape
        self.tokens = nn.Embedding(shape.vocab, shape.hidden)
        self.bias = RelativeBias(shape, causal=False)
        self.blocks = nn.ModuleList(Block(shape, attention) for _ in range(shape.num_layers))
        self.encoder_norm = norm_of(shape)
        self.decoder_bias = RelativeBias(shape, causal=True)
        self.decoder_blocks = nn.ModuleList(
            DecoderBlock(shape, attention) for _ in range(shape.num_decoder_layers)
        )
        self.norm = norm_of(shape)
        self.head = head_of(shape)

    @property
    def head_weight(self) -> Tensor:
        """Return (V, C)"""
        return self.tokens.weight if self.head is None else self.head.weight

    def encode(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return (B, S) → (B, S, C); ``mask`` (B, S) bool: False for padding."""
        x, bias = self.tokens(tokens), self.bias(tokens.shape[1])
        if mask is not None:
            bias = bias.masked_fill(~mask[:, None, None, :], -math.inf)
        for block in self.blocks:
            x = block(x, bias)
        return self.encoder_norm(x)

    def decode(self, written: Tensor, memory: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return (B, T), (B, S, C) → (B, T, C), what the logits are computed from."""
        x, bias = self.tokens(written), self.decoder_bias(written.shape[1])
        bias = bias.masked_fill(~causal_mask(written.shape[1], written.device), -math.inf)
        looked_at = None if mask is None else mask[:, None, None, :]
        for block in self.decoder_blocks:
            x = block(x, bias, memory, looked_at)
        x = self.norm(x)
        return x * self.shape.hidden**-0.5 if self.shape.head.scale_logits else x

    def forward(
        self,
        tokens: Tensor,
        written: Tensor | None = None,
        mask: Tensor | None = None,
        *,
        labels: Tensor | None = None,
    ) -> Tensor:
        """Return (B, S), (B, T) → logits (B, T, V).

        With ``labels`` (B, T) for what is written the sum of the loss over them.
        """
        written = shift_right(labels) if written is None else written
        hidden = self.decode(written, self.encode(tokens, mask), mask)
        if labels is None:
            return F.linear(hidden, self.head_weight)
        return self.head_loss(hidden, self.head_weight, labels, reduction="sum")

    def loss(
        self,
        tokens: Tensor,
        targets: Tensor,
        mask: Tensor | None = None,
        *,
        rows: int | None = None,
    ) -> Tensor:
        """Mean cross-entropy of writing ``targets`` (B, T), -100 where nothing is to be."""
        hidden = self.decode(shift_right(targets), self.encode(tokens, mask), mask)
        return self.head_loss(hidden, self.head_weight, targets, rows=rows)


def shift_right(targets: Tensor) -> Tensor:
    """Return the decoder's inputs: START, then all targets but the last."""
    written = torch.full_like(targets, START)
    written[:, 1:] = targets[:, :-1].masked_fill(targets[:, :-1] == IGNORED, START)
    return written


def block_inputs(shape: ModelShape, x: Tensor, memory: Tensor | None = None) -> tuple[Tensor, ...]:
    """Return the arguments of a block's forward for hidden states ``x`` (B, T, C).

    With ``memory`` (B, S, C), what the encoder read: a DecoderBlock's.  The position bias has a
    gradient, as in training.
    """
    num_tokens = x.shape[1]
    bias = torch.zeros(
        1, shape.attention.num_heads, num_tokens, num_tokens, device=x.device, dtype=x.dtype
    )
    if memory is None:
        return x, bias.requires_grad_()
    later = ~causal_mask(num_tokens, x.device)
    return x, bias.masked_fill(later, -math.inf).requires_grad_(), memory
