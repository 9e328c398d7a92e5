"""Llama: a decoder with rotary positions, gated feed-forward nets and grouped heads.

A block is x + attention(norm(x)), then x + ffn(norm(x)), as in GPT-2; what differs: RMSNorm divides
by the root mean square and subtracts no mean; positions turn q and k instead of being added;
several heads share one head of keys and values; the net is down(silu(gate(x)) · up(x)); no biases.
Sources: Touvron et al. 2023; Su et al. 2021 (rotary); Ainslie et al. 2023 (grouped heads).

Letters: B batch, T tokens, C width, H heads, K heads of keys and values, D width of a head,
F width of the feed-forward net, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from trainrig.models.layers import (
    HeadProjections,
    NextTokenModel,
    PreNormBlock,
    head_of,
    norm_of,
)
from trainrig.workload.model import ModelShape
from trainrig.workload.shape_parts import RopeScaling


def rotary_angles(
    shape: ModelShape, num_tokens: int, device: torch.device, first: int = 0
) -> tuple[Tensor, Tensor]:
    """cos and sin, each (T, D/2), of position · θ^(-2i/D) for the pair i, from ``first`` on."""
    pair = torch.arange(0, shape.attention.head_dim, 2, device=device, dtype=torch.float32)
    turns = 1.0 / shape.position.rope_theta ** (pair / shape.attention.head_dim)  # radians a token
    if shape.position.rope_scaling is not None:
        turns = _stretch(turns, shape.position.rope_scaling)
    where = torch.arange(num_tokens, device=device, dtype=torch.float32) + first
    angles = where[:, None] * turns
    return angles.cos(), angles.sin()


def _stretch(turns: Tensor, scaling: RopeScaling) -> Tensor:
    """Llama 3.1: slow turns are slowed by a factor, fast ones stay, between them a blend."""
    wavelength = 2 * math.pi / turns
    times = scaling.original_positions / wavelength  # turns within the first training length
    share = ((times - scaling.low) / (scaling.high - scaling.low)).clamp(0.0, 1.0)
    return (1.0 - share) * turns / scaling.factor + share * turns


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turns the pairs (x[i], x[i + D/2]) of each head by their angles.  x (B, H, T, D)"""
    first, second = x.chunk(2, dim=-1)
    cos, sin = cos.to(x.dtype), sin.to(x.dtype)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


class Attention(HeadProjections):
    """Each token asks all earlier ones.  (B, T, C) → (B, T, C)"""

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, **samples: Tensor) -> Tensor:
        """Return ``cos``, ``sin`` (T, D/2) from `rotary_angles`."""
        q, k, v = self.project(x, x)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        return self.attend(q, k, v, causal=True, **samples)


class Block(PreNormBlock):
    """One layer; takes cos and sin (T, D/2) besides."""

    def __init__(self, shape: ModelShape, attention: str = "auto") -> None:
        super().__init__(shape, Attention(shape, attention))


class Model(NextTokenModel):
    """Tokens to logits, or to the loss of the next token."""

    def __init__(self, shape: ModelShape, *, attention: str = "auto") -> None:
        super().__init__()
        self.shape = shape
        self.tokens = nn.Embedding(shape.vocab, shape.hidden)
        self.blocks = nn.ModuleList(Block(shape, attention) for _ in range(shape.num_layers))
        self.norm = norm_of(shape)
        self.head = head_of(shape)

    def block_arguments(self, num_tokens: int, device: torch.device) -> Callable[[int], Any]:
        """Return the angles of this part's tokens."""
        angles = rotary_angles(self.shape, num_tokens, device, first=self.stretch.part * num_tokens)
        return lambda _: angles


def block_inputs(shape: ModelShape, x: Tensor) -> tuple[Tensor, ...]:
    """Return the arguments of a block's forward for hidden states ``x`` (B, T, C)."""
    return (x, *rotary_angles(shape, x.shape[1], x.device))
