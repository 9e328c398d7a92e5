"""Ratios on one axis: each with its interval, and how it reads.

The axis is logarithmic: twice and half are as far from 1.  It ends a little beyond the outermost
ratio, so that an interval that knows little leaves room for those that know much.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trainrig.analysis.compare_training import STEPS, Versus
from trainrig.units import one_line


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """One experiment against another, on an axis of ratios."""

    versus: Versus
    name: str
    unlike: str
    ratio: str
    interval: str
    says: str
    tone: str
    """``up``, ``down`` or ``level``."""
    why: str
    at: tuple[float, float, float] | None
    """Low end, ratio and high end: per cent of the axis, 0 and 100 where they lie beyond it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forest:
    """The ratios of all of them, on one axis."""

    base: str
    marks: tuple[Mark, ...]
    ticks: tuple[tuple[float, str], ...]
    """Per cent of the axis, and the ratio that is there."""
    one: float
    """Where a ratio of 1 is."""
    hint: str
    """What would tell more; empty where everything is told."""


_TONES = {"better": "up", "worse": "down"}
_TICKS = (0.02, 0.05, 0.1, 0.2, 0.5, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0, 50.0)
_LEAST_AXIS = (0.8, 1.25)
_BETWEEN = 14.0
"""Ticks are this much of the axis apart."""
_MOST_BEYOND = 1.6
"""The axis ends this factor beyond the outermost ratio: an interval that knows little would else
leave no room for those that know much."""


_ROUNDS = "More would be told by rounds = 3 in the file: fresh processes, in turns."
_MORE_ROUNDS = "More rounds would tell more."


def forests(found: Sequence[Versus]) -> tuple[Forest, ...]:
    """One for each that others are held against, in the order in which these come."""
    bases = dict.fromkeys(each.base for each in found)
    drawn = (forest([each for each in found if each.base == base]) for base in bases)
    return tuple(each for each in drawn if each is not None)


def forest(found: Sequence[Versus], base: str | None = None) -> Forest | None:
    """The ratios on one axis; None where there are none to show."""
    if not found:
        return None
    low, high = _axis(found)
    reach = math.log(high / low)

    def place(ratio: float) -> float:
        if ratio <= 0.0:
            return 0.0
        return min(100.0, max(0.0, 100.0 * math.log(ratio / low) / reach))

    inside = [1.0]
    for tick in (tick for tick in _TICKS if low <= tick <= high):
        if all(abs(place(tick) - place(other)) >= _BETWEEN for other in inside):
            inside.append(tick)
    return Forest(
        base=one_line(found[0].base if base is None else base),
        marks=tuple(_mark(each, place) for each in found),
        ticks=tuple((place(tick), f"{tick:g} ×") for tick in sorted(inside)),
        one=place(1.0),
        hint=_hint([each for each in found if _is_open(each)]),
    )


def _hint(undecided: Sequence[Versus]) -> str:
    """What would tell more."""
    if any(each.rests_on == STEPS for each in undecided):
        return _ROUNDS
    return _MORE_ROUNDS if undecided else ""


def _is_open(each: Versus) -> bool:
    return each.ratio is not None and each.says == "cannot tell"


def _axis(found: Sequence[Versus]) -> tuple[float, float]:
    ratios = [each.ratio for each in found if each.ratio]
    lows = [each.low for each in found if each.low]
    highs = [each.high for each in found if each.high]
    low = max(min(lows, default=1.0), min(ratios, default=1.0) / _MOST_BEYOND)
    high = min(max(highs, default=1.0), max(ratios, default=1.0) * _MOST_BEYOND)
    return min(low / 1.03, _LEAST_AXIS[0]), max(high * 1.03, _LEAST_AXIS[1])


def _mark(each: Versus, place: Callable[[float], float]) -> Mark:
    ratio, interval, at = "-", "-", None
    if each.ratio is not None and each.low is not None and each.high is not None:
        ratio, interval = f"{each.ratio:.2f} ×", _interval(each.low, each.high)
        at = (place(each.low), place(each.ratio), place(each.high))
    return Mark(
        versus=each,
        name=one_line(each.name),
        unlike=one_line("; ".join(each.unlike)) or "nothing",
        ratio=ratio,
        interval=interval,
        says=each.says,
        tone=_TONES.get(each.says, "level"),
        why=one_line(each.why or ""),
        at=at,
    )


_KNOWS_NOTHING = 50.0
"""An interval whose ends are this factor apart is not worth its numbers."""


def _interval(low: float, high: float) -> str:
    if low <= 0.0 or high > _KNOWS_NOTHING * low:
        return "too wide"
    return f"{low:.2f} to {high:.2f}"
