"""GPT-2, and GPT-Neo: a decoder that predicts the next token.

A block is x + attention(norm(x)), then x + ffn(norm(x)); positions are learned vectors added to
the tokens'; the logits' matrix is the token embedding.  GPT-Neo differs in three things: its scores
are not divided by √D, its q, k and v have no bias, and every other layer looks back on 256 tokens.
Sources: Radford et al. 2019; Black et al. 2021 (GPT-Neo); the weights' layout of both.

Letters: B batch, T tokens, C width, H heads, D = C/H, F width of the feed-forward net,
V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from trainrig.models.dropout import Dropout
from trainrig.models.layers import (
    NextTokenModel,
    PreNormBlock,
    attend,
    causal_mask,
    head_of,
    merge_heads,
    norm_of,
)
from trainrig.workload.model import ModelShape


class Attention(nn.Module):
    """Each token asks all earlier ones.  (B, T, C) → (B, T, C)"""

    def __init__(self, shape: ModelShape, attention: str = "auto") -> None:
        super().__init__()
        self.head_dim, self.scale = shape.attention.head_dim, shape.softmax_scale
        self.attention = attention
        self.kernel: Callable[..., Tensor] = attend  # context parallel puts its own around it
        # Rows lie head by head: q, k, v of head 0, then of head 1, so that a share of the rows is
        # a share of the heads.
        self.qkv = nn.Linear(shape.hidden, 3 * shape.hidden, bias=shape.attention.qkv_bias)
        self.out = nn.Linear(shape.hidden, shape.hidden, bias=shape.attention.out_bias)

    drop: Dropout | None = None

    def forward(
        self, x: Tensor, mask: Tensor | None = None, window: int = 0, **samples: Tensor
    ) -> Tensor:
        """How far a layer looks back: a ``window`` of tokens (0: all), or the mask (T, T) of it."""
        batch, num_tokens, _ = x.shape
        qkv = self.qkv(x).view(batch, num_tokens, -1, 3, self.head_dim)
        q, k, v = qkv.permute(3, 0, 2, 1, 4)  # each (B, H, T, D)
        how: dict[str, Any] = {"causal": mask is None, "mask": mask, "attention": self.attention}
        how |= {"window": window} if window else {}
        how |= {**samples, "drop": self.drop} if samples else {}
        return self.out(merge_heads(self.kernel(q, k, v, scale=self.scale, **how)))


class Block(PreNormBlock):
    """One layer; takes a mask (T, T), or a window, besides where it does not look back on all."""

    def __init__(self, shape: ModelShape, attention: str = "auto") -> None:
        super().__init__(shape, Attention(shape, attention))


class Model(NextTokenModel):
    """Tokens to logits, or to the loss of the next token."""

    def __init__(self, shape: ModelShape, *, attention: str = "auto") -> None:
        super().__init__()
        self.shape = shape
        self.tokens = nn.Embedding(shape.vocab, shape.hidden)
        self.positions = nn.Embedding(shape.position.max_positions, shape.hidden)
        self.blocks = nn.ModuleList(Block(shape, attention) for _ in range(shape.num_layers))
        self.norm = norm_of(shape)
        self.head = head_of(shape)

    def embed(self, tokens: Tensor) -> Tensor:
        """Return (B, T) → (B, T, C): the tokens' vectors and those of their places."""
        num_tokens = tokens.shape[1]
        where = torch.arange(num_tokens, device=tokens.device) + self.stretch.part * num_tokens
        return self.tokens(tokens) + self.positions(where)

    def block_arguments(self, num_tokens: int, device: torch.device) -> Callable[[int], Any]:
        """Return the window of each layer; on the host a mask of all tokens, one for all layers."""
        windows = self.shape.attention.windows or (0,) * self.shape.num_layers
        if device.type == "cuda":
            return lambda number: (None, windows[number])
        every = num_tokens * self.stretch.parts
        masks = {w: causal_mask(every, device, w) for w in set(windows) - {0}}
        return lambda number: (masks.get(windows[number]),)
