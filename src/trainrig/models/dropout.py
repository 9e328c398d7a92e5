"""Dropout whose masks are a function of (seed, sample, layer, place), not of a generator's state.

What is dropped is decided by a hash of where a number stands: which sample of the training it is of
(so that each step has others), which layer and place in it, which token, channel or pair of tokens
and head.  A rank that holds a part of it takes that part of the mask: every layout drops what one
process does, recomputation repeats it, and a training that goes on from a checkpoint does, too.

    hidden states    behind the embedding, attention and the feed-forward net of each block
    attention        the softmax's result, as Vaswani et al. 2017 and GPT-2 do; the scores exist
                     whole (`layers.plain_attend`), since no flash kernel takes a mask of ours

A number stays with probability 1 - p and is divided by it.  The mask is kept for backward, a byte
a number.  The hash is Ellis' (prospector), two multiplications of 31 bits: no product
overflows 64 bits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

_MASK = 0xFFFFFFFF
_LARGEST = 1 << 22
"""Numbers that are hashed at once, of 8 bytes each."""
_PLACES = 4
"""Places of dropout: attention's probabilities, its result, the FFN's result, the embedding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropout:
    """Dropout at one place of a model."""

    p: float
    seed: int
    place: int
    """Number among all places of the model."""
    part: int = 0
    """Index of this rank's equal part along the second axis: tokens, or heads."""

    def __call__(self, x: Tensor, samples: Tensor) -> Tensor:
        """x (B, T, C) or (B, H, T, S); samples (B,): their numbers in the training."""
        gone = dropped(x.shape, samples, self.part, self.place, self.seed, self.p)
        return x.masked_fill(gone, 0.0) * (1.0 / (1.0 - self.p))


@torch.no_grad()
def dropped(
    shape: torch.Size, samples: Tensor, part: int, place: int, seed: int, p: float
) -> Tensor:
    """Bool, True where a number is dropped; ``shape``: of this rank's part."""
    batch, rows = shape[:2]
    inner = math.prod(shape[2:])
    key = _mix(_mix(samples & _MASK) + (samples >> 32) + (seed & _MASK) & _MASK)
    row = torch.arange(part * rows, (part + 1) * rows, device=samples.device)
    keys = _mix((_mix(key + place & _MASK)[:, None] + row) & _MASK).flatten()
    gone = torch.empty(batch * rows, inner, dtype=torch.bool, device=samples.device)
    column = _mix(torch.arange(inner, device=samples.device) & _MASK)
    least, stride = int(p * 2**32), max(1, _LARGEST // inner)
    for first in range(0, len(keys), stride):
        here = slice(first, first + stride)
        gone[here] = _mix((keys[here, None] + column) & _MASK) < least
    return gone.view(shape)


def _mix(x: Tensor) -> Tensor:
    """32 bits to 32 others."""
    x = ((x ^ (x >> 16)) * 0x21F0AAAD) & _MASK
    x = ((x ^ (x >> 15)) * 0x735A2D97) & _MASK
    return x ^ (x >> 15)


def drop(x: Tensor, how: Dropout | None, samples: Tensor | None) -> Tensor:
    """Return ``x`` with what is dropped; whole where nothing is, as in evaluation."""
    return x if how is None or samples is None else how(x, samples)


def apply(model: Any, p: float, seed: int, *, token_part: int = 0, head_part: int = 0) -> nn.Module:
    """Let a model, or a stage of one, drop with probability ``p``; it needs ``samples`` for it.

    ``token_part``: which part of the tokens hidden states have on this rank, of equal ones;
    ``head_part``: of the heads that its attention computes.  After tensor and context parallel,
    before recomputation and torch.compile.
    """
    if p:
        model.drop = Dropout(p=p, seed=seed, place=0, part=token_part)
        for name, block in model.blocks.named_children():
            first = _PLACES * (int(name) + 1)
            block.attention.drop = Dropout(p=p, seed=seed, place=first, part=head_part)
            hidden: dict[str, Any] = {"p": p, "seed": seed, "part": token_part}
            block.drops = tuple(Dropout(place=first + n, **hidden) for n in (1, 2))
    return model
