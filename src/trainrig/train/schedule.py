"""The learning rate of a step: a linear warm-up, then half a cosine down to a tenth.

    step < warmup    peak · (step + 1) / warmup
    after            floor + (peak − floor) · (1 + cos(π · x)) / 2,
                     x = (step − warmup) / (steps − warmup), floor = peak / 10

The warm-up's last step runs at the peak, and the last step a little above the floor: no step is
wasted on a rate of zero.  Beyond the planned steps the rate stays at the floor.  The cosine is
that of Loshchilov and Hutter 2017 (arXiv 1608.03983), the tenth that of Hoffmann et al. 2022.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

FLOOR = 0.1
"""The lowest rate as a share of the highest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cosine:
    """A warm-up of ``warmup`` steps, a descent until ``steps``."""

    peak: float
    steps: int
    warmup: int = 0

    def __call__(self, step: int) -> float:
        """The learning rate of ``step``, counted from 0."""
        if step < self.warmup:
            return self.peak * (step + 1) / self.warmup
        share = min(1.0, (step - self.warmup) / max(1, self.steps - self.warmup))
        floor = FLOOR * self.peak
        return floor + (self.peak - floor) * (1.0 + math.cos(math.pi * share)) / 2.0
