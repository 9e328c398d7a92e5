"""What a run tells its watcher while it goes on; how it is shown is the watcher's business."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """One thing that happened."""

    text: str
    """``bf16 matmul 161 TFLOPS: normal for RTX 4090 (published 156–174, n = 3)``."""
    level: str = "point"
    """``stage``: a new part begins; ``running``: replaced by the next; ``point``: a result."""
    done: int = 0
    """Cases finished."""
    total: int = 0
    """Cases planned."""
    left: float = 0.0
    """Seconds of the budget that are left."""


Watcher = Callable[[Progress], None]


def nobody(_: Progress) -> None:
    """A watcher that ignores everything."""
