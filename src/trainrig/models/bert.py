"""BERT: an encoder that fills in masked tokens.

A block is norm(x + attention(x)), then norm(x + ffn(x)): the norm comes after the sum, where GPT-2
has it before.  Every token sees every other.  Positions and segments are learned vectors; the head
turns hidden states once more (dense, gelu, norm) before the logits, whose matrix is the token
embedding.  Left out: the pooler and the next-sentence head, which training without them lost
nothing by (Liu et al. 2019).  Source: Devlin et al. 2019; the weights' layout.

Letters: B batch, T tokens, C width, H heads, D = C/H, F width of the feed-forward net,
V vocabulary.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from torch import Tensor, nn

from trainrig.models import dropout
from trainrig.models.dropout import Dropout
from trainrig.models.layers import (
    ACTIVATIONS,
    FeedForward,
    HeadProjections,
    Stretch,
    norm_of,
)
from trainrig.models.loss import cross_entropy
from trainrig.workload.model import ModelShape


class Attention(HeadProjections):
    """Each token asks all others.  (B, T, C) → (B, T, C)"""

    def forward(self, x: Tensor, mask: Tensor | None = None, **samples: Tensor) -> Tensor:
        """Return ``mask`` (B, 1, 1, T) bool: False for padding, which nobody looks at."""
        return self.attend(*self.project(x, x), mask=mask, **samples)


class Block(nn.Module):
    """One layer.  (B, T, C) → (B, T, C)"""

    def __init__(self, shape: ModelShape, attention: str = "auto") -> None:
        super().__init__()
        self.attention = Attention(shape, attention)
        self.norm_1 = norm_of(shape)
        self.ffn = FeedForward(shape)
        self.norm_2 = norm_of(shape)

    drops: tuple[Dropout | None, ...] = (None, None)

    def forward(self, x: Tensor, mask: Tensor | None = None, **samples: Tensor) -> Tensor:
        sample_numbers = samples.get("samples")
        attended = dropout.drop(self.attention(x, mask, **samples), self.drops[0], sample_numbers)
        x = self.norm_1(x + attended)
        return self.norm_2(x + dropout.drop(self.ffn(x), self.drops[1], sample_numbers))


class Model(nn.Module):
    """Tokens to logits, or to the loss of the masked ones."""

    head_loss = staticmethod(cross_entropy)

    def __init__(self, shape: ModelShape, *, attention: str = "auto") -> None:
        super().__init__()
        self.shape = shape
        self.tokens = nn.Embedding(shape.vocab, shape.hidden)
        self.positions = nn.Embedding(shape.position.max_positions, shape.hidden)
        self.segments = nn.Embedding(shape.token_types, shape.hidden)
        self.norm = norm_of(shape)
        self.blocks = nn.ModuleList(Block(shape, attention) for _ in range(shape.num_layers))
        self.transform = nn.Linear(shape.hidden, shape.hidden)
        self.act = ACTIVATIONS[shape.ffn.activation]
        self.head_norm = norm_of(shape)
        self.head_bias = nn.Parameter(torch.zeros(shape.vocab))

    @property
    def head_weight(self) -> Tensor:
        """Return (V, C)"""
        return self.tokens.weight

    first = last = True  # a pipeline stage may be neither, see layers.NextTokenModel
    stretch = Stretch()
    drop: Dropout | None = None

    def hidden(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        segments: Tensor | None = None,
        **samples: Tensor,
    ) -> Tensor:
        """Return (B, T) → (B, T, C), what the logits are computed from; or from stage to stage.

        ``mask`` (B, T) bool: False for padding; ``segments`` (B, T): 0 and 1, 0 if None.
        """
        if self.first:
            where = torch.arange(x.shape[1], device=x.device) + self.stretch.part * x.shape[1]
            segments = torch.zeros_like(x) if segments is None else segments
            x = self.norm(self.tokens(x) + self.segments(segments) + self.positions(where))
            x = dropout.drop(x, self.drop, samples.get("samples"))
        looked_at = None if mask is None else mask[:, None, None, :]
        for block in self.blocks.children():
            x = block(x, looked_at, **samples)
        return self.head_norm(self.act(self.transform(x))) if self.last else x

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        segments: Tensor | None = None,
        *,
        labels: Tensor | None = None,
        **samples: Tensor,
    ) -> Tensor:
        """Return (B, T) → logits (B, T, V).

        With ``labels`` (B, T) the sum of the loss over them.
        """
        hidden = self.hidden(x, mask, segments, **samples)
        if not self.last:
            return hidden
        if labels is None:
            return F.linear(hidden, self.head_weight, self.head_bias)
        return self.head_loss(hidden, self.head_weight, labels, self.head_bias, reduction="sum")

    def loss(
        self,
        tokens: Tensor,
        targets: Tensor,
        mask: Tensor | None = None,
        segments: Tensor | None = None,
        *,
        rows: int | None = None,
        **samples: Tensor,
    ) -> Tensor:
        """Mean cross-entropy; targets (B, T) are the true tokens where masked, else -100."""
        x = self.hidden(tokens, mask, segments, **samples)
        return self.head_loss(x, self.head_weight, targets, self.head_bias, rows=rows)
