"""Arithmetic that takes a number or an array alike.

A step's unique shapes are priced one by one, where plain Python is quickest; a search prices a
million at once in arrays.  One formula serves both; numpy is loaded only by those who bring arrays.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any, TypeAlias

Number: TypeAlias = Any
"""What goes in: a float or int, or an array of them.  (Any: numpy's types differ by operation.)"""
Real: TypeAlias = Any
"""What comes out: a float for numbers, an array of floats for arrays."""


_PLAIN = (int, float)


def _numpy() -> Any:
    import numpy as np

    return np


def larger(a: Number, b: Number) -> Real:
    """The larger of two, element by element."""
    if isinstance(a, _PLAIN) and isinstance(b, _PLAIN):  # a search asks a million times
        return b if b > a else a
    return _numpy().maximum(a, b)


def smaller(a: Number, b: Number) -> Real:
    """The smaller of two, element by element."""
    if isinstance(a, _PLAIN) and isinstance(b, _PLAIN):
        return b if b < a else a
    return _numpy().minimum(a, b)


def choose(condition: Any, a: Number, b: Number) -> Real:
    """``a`` where the condition holds, else ``b``."""
    if all(isinstance(value, _PLAIN) for value in (condition, a, b)):
        return a if condition else b
    return _numpy().where(condition, a, b)


def is_any(condition: Any) -> bool:
    """Whether it holds anywhere."""
    return condition if isinstance(condition, bool) else bool(condition.any())


def ceiling(value: Number) -> Real:
    """The next whole number."""
    return math.ceil(value) if isinstance(value, _PLAIN) else _numpy().ceil(value)


def log2(value: Number) -> Real:
    """Logarithm to base 2 of what is positive."""
    return math.log2(value) if isinstance(value, _PLAIN) else _numpy().log2(value)


def ceil_div(a: Number, b: Number) -> Real:
    """Whole parts of size ``b`` that cover ``a``."""
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
