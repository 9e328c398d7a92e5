"""What stands in watched.toml, as types: what is watched, and what each reading may be."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Literal

from pydantic import ConfigDict

from trainrig.record import Severity, read_by, read_toml

PATH = Path(__file__).parent / "watched.toml"
_CONFIG = ConfigDict(extra="forbid")


@read_by(_CONFIG)
class WatchedQuantity:
    """A column of the telemetry, and which of its readings can be true."""

    name: str
    label: str
    unit: str
    source: str
    required: bool = False
    least: float | None = None
    most: float | None = None
    most_of: str | None = None
    counter: bool = False


@read_by(_CONFIG)
class WatchLimit:
    """Limit that a sound device keeps."""

    quantity: str
    finding: str
    rule: Literal["at-most", "at-least", "falls", "rise", "any", "share"]
    value: float
    severity: Severity
    fix: str
    source: str
    of: str | None = None
    otherwise: float | None = None
    seconds: float = 0.0
    count: int = 1
    words: tuple[str, ...] = ()
    unless: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()


@read_by(_CONFIG)
class RateRule:
    """Least rate of a mode: a share of what is expected, or of what it was."""

    mode: str
    source: str
    least: float | None = None
    falls: float | None = None
    seconds: float = 0.0


@read_by(_CONFIG)
class LeastCompared:
    """Least number of results that a part compares: a constant, and so many a second of work."""

    least: int
    per_s: float

    def of(self, busy_s: float) -> int:
        """Return the least number for so many seconds of work."""
        return max(self.least, round(self.per_s * busy_s))


@read_by(_CONFIG)
class WatchRules:
    """The whole file."""

    least_read: float
    settles_s: float
    longest_gap_s: float
    longest_pause_s: float
    most_suspended_s: float
    samples_apart: float
    clocks_apart: float
    sentinel: Mapping[str, float]
    compared: Mapping[str, LeastCompared]
    quantity: tuple[WatchedQuantity, ...]
    limit: tuple[WatchLimit, ...]
    rate: tuple[RateRule, ...]


@cache
def watch_rules() -> WatchRules:
    """Return what watched.toml says."""
    return read_toml(PATH, WatchRules, PATH.name)
