"""Detect divergence: a loss that rose beyond a multiple of the usual and stayed there.

    outlier    loss > multiple · median of the last 100 losses that were none
    diverged   5 outliers in a row, behind the warm-up

A spike that is over within 4 steps is none, and a loss that goes on falling never is: the median is
of the steps before.  The numbers are those of MosaicML's LLM Foundry (KillLossSpike), which takes
the mean.  A loss that is no number at all ends a training at once (`native.loop`).
"""

from __future__ import annotations

import math
from collections import deque

from trainrig.errors import TrainrigError
from trainrig.stats import median

WINDOW = 100
PATIENCE = 5
_LEAST = 10
"""Losses without which there is no usual one."""


class Diverged(TrainrigError):
    """The loss or the gradient is no number any more, or the loss rose and stayed high."""

    exit_code = 1

    def __init__(self, message: str, hint: str | None = None, *, since: int) -> None:
        """``since``: the first step of which this is seen; what was saved before is sound."""
        super().__init__(message, hint)
        self.since = since

    def naming(self, saved: int | None) -> Diverged:
        """With the newest checkpoint, which goes on at step ``saved``; None: there is none."""
        if saved is None or saved < 0:
            words = "there is no checkpoint of it"
        elif saved < self.since:
            words = f"the last checkpoint, of step {saved}, is from before"
        else:
            words = f"the last checkpoint, of step {saved}, may hold it already"
        return Diverged(f"{self.message}; {words}", self.hint, since=self.since)


class LossWatch:
    """The losses of a training's steps, in their order."""

    def __init__(self, multiple: float, warmup: int) -> None:
        """``multiple``: see above; 0: only what is no number is refused.  ``warmup``: steps."""
        self._multiple, self._warmup = multiple, warmup
        self._usual: deque[float] = deque(maxlen=WINDOW)
        self._outliers: list[float] = []

    @property
    def usual(self) -> list[float]:
        """Return the losses that new ones are held against."""
        return list(self._usual)

    @usual.setter
    def usual(self, losses: list[float]) -> None:
        self._usual = deque(losses, maxlen=WINDOW)

    def see(self, step: int, loss: float, norm: float, *, scaled: bool = False) -> None:
        """Raise Diverged where that step says so.

        ``scaled``: a gradient that is no number is fp16's overflow, whose update is left out.
        """
        for quantity, value in (("loss", loss), ("gradient norm", norm)):
            if not math.isfinite(value) and not (scaled and quantity == "gradient norm"):
                raise Diverged(
                    f"the {quantity} is {value} at step {step}: training stopped",
                    "a lower --lr, or fp32, and look at the series of the loss",
                    since=step,
                )
        usual = median(self._usual) if len(self._usual) >= _LEAST else math.inf
        if not self._multiple or step < self._warmup or loss <= self._multiple * usual:
            self._usual.append(loss)
            self._outliers.clear()
            return
        self._outliers.append(loss)
        if len(self._outliers) >= PATIENCE:
            raise Diverged(
                f"the loss is {loss:.4g} at step {step}, and for {PATIENCE} steps above "
                f"{self._multiple:g} times {usual:.4g}, the median of those before: training "
                "stopped",
                "a lower --lr, a longer --warmup or a smaller clip; divergence = 0 goes on",
                since=step - PATIENCE + 1,
            )
