"""The samples of a step as tensors on the device, made and copied ahead of time.

A step's samples are one batch of `data`, split here into micro-batches, so that accumulating
trains on the very samples that one large batch would hold.  The loss is a mean over all targets
of the step: each micro-batch weighs by its share of them (BERT hides some tokens only).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from trainrig.data.batches import Batch
from trainrig.data.masking import IGNORED

Make = Callable[[int], Batch]


@dataclass(frozen=True, slots=True, kw_only=True)
class Micro:
    """A micro-batch."""

    inputs: Tensor
    """(B, T) token ids."""
    labels: Tensor
    """(B, T), -100 where there is no target."""
    share: float
    """Of the targets that this rank's samples of the step have."""
    targets: int
    """Tokens with a label."""

    def to(self, device: str) -> Micro:
        """The batch on ``device``; the copy runs beside the device's work."""
        return Micro(
            inputs=self.inputs.to(device, non_blocking=True),
            labels=self.labels.to(device, non_blocking=True),
            share=self.share,
            targets=self.targets,
        )


def split(batch: Batch, num_micro: int, *, pinned: bool) -> tuple[Micro, ...]:
    """``batch`` in equal micro-batches; ``pinned``: in memory that a GPU copies from by itself."""
    inputs, labels = torch.from_numpy(batch.inputs), torch.from_numpy(batch.labels)
    if pinned:
        inputs, labels = inputs.pin_memory(), labels.pin_memory()
    pairs = zip(inputs.chunk(num_micro), labels.chunk(num_micro), strict=True)
    counts = [int((chunk != IGNORED).sum()) for chunk in labels.chunk(num_micro)]
    total = max(1, sum(counts))
    return tuple(
        Micro(inputs=x, labels=y, share=count / total, targets=count)
        for (x, y), count in zip(pairs, counts, strict=True)
    )
