"""Was the machine quiet while a case ran?"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass(slots=True, kw_only=True)
class Watched:
    """What was seen around a measurement; filled in when the watch ends."""

    conditions: dict[str, str | int | float | bool | None] = field(default_factory=dict)
    disturbed: str | None = None


@contextmanager
def watch(device: str) -> Iterator[Watched]:
    """Read the machine's counters before and after the body."""
    yield Watched()
