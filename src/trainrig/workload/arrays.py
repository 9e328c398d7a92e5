"""Arithmetic that takes a number or an array alike.

A step's unique shapes are priced one by one, where plain Python is quickest; a search prices a
million at once in arrays.  One formula serves both; numpy is loaded only by those who bring arrays.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any, TypeAlias

Number: TypeAlias = Any
"""Argument: a float or int, or an array of them.  (Any: numpy's types differ by operation.)"""
Real: TypeAlias = Any
"""Result: a float for numbers, an array of floats for arrays."""


_PLAIN = (int, float)


def _numpy() -> Any:
    import numpy as np

    return np


def is_plain(value: Number) -> bool:
    """Return whether it is one number, and no array of them."""
    return isinstance(value, _PLAIN)


def larger(a: Number, b: Number) -> Real:
    """Return the larger of two, element by element."""
    if isinstance(a, _PLAIN) and isinstance(b, _PLAIN):  # a search asks a million times
        return b if b > a else a
    return _numpy().maximum(a, b)


def smaller(a: Number, b: Number) -> Real:
    """Return the smaller of two, element by element."""
    if isinstance(a, _PLAIN) and isinstance(b, _PLAIN):
        return b if b < a else a
    return _numpy().minimum(a, b)


def between(value: Number, low: Number, high: Number) -> Real:
    """Return ``value``, but at least ``low``, and at most ``high`` whatever that is."""
    return smaller(larger(value, low), high)


def choose(condition: Any, a: Number, b: Number) -> Real:
    """Return ``a`` where the condition holds, else ``b``."""
    if isinstance(condition, _PLAIN):
        return a if condition else b
    return _numpy().where(condition, a, b)


def is_any(condition: Any) -> bool:
    """Return whether it holds anywhere."""
    return bool(condition) if isinstance(condition, _PLAIN) else bool(condition.any())


def is_not(condition: Any) -> Any:
    """Return where a condition does not hold."""
    return not condition if isinstance(condition, _PLAIN) else ~condition


def hypotenuse(a: Number, b: Number) -> Real:
    """√(a² + b²)."""
    if isinstance(a, _PLAIN) and isinstance(b, _PLAIN):
        return math.hypot(a, b)
    return _numpy().hypot(a, b)


def nearest(value: Number) -> Number:
    """Return the nearest whole number, the even one of two."""
    if isinstance(value, _PLAIN):
        return round(value)
    return _numpy().rint(value).astype(_numpy().int64)


def ceiling(value: Number) -> Real:
    """Return the next whole number."""
    return math.ceil(value) if isinstance(value, _PLAIN) else _numpy().ceil(value)


def log2(value: Number) -> Real:
    """Logarithm to base 2 of what is positive."""
    return math.log2(value) if isinstance(value, _PLAIN) else _numpy().log2(value)


def ceil_div(a: Number, b: Number) -> Real:
    """Return whole parts of size ``b`` that cover ``a``."""
    return -(-a // b)


def interpolate(value: Number, points: tuple[tuple[float, float], ...]) -> Real:
    """Linear between ``(x, y)`` points of growing x, constant outside them."""
    if not isinstance(value, _PLAIN):
        return _numpy().interp(value, [x for x, _ in points], [y for _, y in points])
    if value <= points[0][0]:
        return points[0][1]
    for (x, y), (next_x, next_y) in pairwise(points):
        if value <= next_x:
            return y + (next_y - y) * (value - x) / (next_x - x)
    return points[-1][1]


def divisors(number: int) -> list[int]:
    """Return the divisors of ``number``, in order."""
    low = [d for d in range(1, math.isqrt(number) + 1) if number % d == 0]
    return low + [number // d for d in reversed(low) if d * d != number]
