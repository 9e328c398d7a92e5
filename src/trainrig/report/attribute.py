"""What a drop is made of: seconds that were lost, as parts of the rate that was lost.

A rung does ``work`` FLOPs in ``time``; at its ceiling's rate C they would take work / C.  The rest
of the time was lost, and so was the rate C − work / time.  A cause that took t seconds took the
share t / (time − work / C) of the drop, which is C·t / time in FLOP/s: so the shares add up to
the drop, whatever their order, and what no cause accounts for is a share of its own.

It knows no records: `losses` finds the seconds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

NOT_EXPLAINED = "not explained"
TOO_MUCH = "explained more than was lost"
_ROUNDING = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """Seconds of one call or step that its work did not need at the ceiling's rate."""

    name: str
    seconds: float
    next: str = ""
    """What to try against it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """One cause's part of a drop."""

    name: str
    amount: float
    """Of the rate that was lost; the shares of a drop add up to it."""
    seconds: float
    part: float
    """Of the drop, 0 to 1; below 0 for what was explained more than once."""
    next: str = ""


def attribute(
    *, ceiling_rate: float, work: float, time: float, losses: Iterable[Loss]
) -> tuple[Share, ...]:
    """The drop from ``ceiling_rate`` to work / time by cause, the largest first, the rest last.

    Nothing where nothing was lost.  The last share is what the losses leave: negative, under
    another name, where they claim more seconds than there were.
    """
    lost = time - work / ceiling_rate
    if lost <= 0.0 or time <= 0.0:
        return ()
    named = sorted((each for each in losses if each.seconds > 0.0), key=lambda each: -each.seconds)
    left = lost - sum(each.seconds for each in named)
    rest = Loss(name=NOT_EXPLAINED if left > -_ROUNDING * lost else TOO_MUCH, seconds=left)
    return tuple(
        Share(
            name=each.name,
            amount=ceiling_rate * each.seconds / time,
            seconds=each.seconds,
            part=each.seconds / lost,
            next=each.next,
        )
        for each in (*named, rest)
    )
