"""Types of probed values: a fact, or `Missing` with the reason.

A field that could not be read is `Missing(reason)`, never a zero and never a guess.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, TypeVar, dataclass_transform

from pydantic import ConfigDict, Field

from trainrig.record import read_by

T = TypeVar("T")

# What a machine does not have is left out on purpose; what it has and we do not know is refused.
_STRICT: ConfigDict = {"extra": "forbid"}


@dataclass_transform(frozen_default=True, kw_only_default=True)
def fact(kind: type[T]) -> type[T]:
    """Make a frozen, slotted, keyword-only dataclass that pydantic reads strictly."""
    return read_by(_STRICT)(kind)


@dataclass(frozen=True, slots=True)
class Missing:
    """A value that could not be read, and why; ``{"missing": "why"}`` in JSON."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    reason: Annotated[str, Field(alias="missing")]


NOT_READ = Missing("not read")
NOT_IN_FILE = Missing("not in the imported file")
"""A value that the files from which a machine is described do not state."""
FAULTY_REASONS = frozenset(
    ["hw_slowdown", "hw_thermal_slowdown", "hw_power_brake", "sw_thermal_slowdown"]
)
"""Throttle reasons of a GPU that is hot or short of power; a power cap at full load is none."""


def value_or(value: T | Missing, default: T) -> T:
    """Return `value` where it is known, else `default`."""
    return default if isinstance(value, Missing) else value


def if_known(compute: Callable[..., T | Missing], *values: Any) -> T | Missing:
    """Return ``compute(*values)``, or the first of the values that is Missing."""
    missing = [value for value in values if isinstance(value, Missing)]
    return missing[0] if missing else compute(*values)
