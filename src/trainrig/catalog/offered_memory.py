"""Memory that a card offers to programs: less than its nominal size, by its driver and ECC.

A 24 GB card offers about 23.6 GiB.  `offered_memory` applies the first rule of offered_memory.toml
that is about the chip; each rule has the reports that its share was read from.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from trainrig.catalog.chip import Chip

PATH = Path(__file__).parent / "offered_memory.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Memory that one user's error message reports."""

    gib: float
    of: float
    """Nominal memory of the card in GiB."""
    url: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedShare:
    """A share of nominal memory, and the chips that it holds for: by name, else by vendor."""

    name: str
    share: float
    reports: tuple[Report, ...]
    chips: tuple[str, ...] = ()
    vendor: str = ""
    memory: str = ""
    """Beginning of the memory's type: ``GDDR``, ``HBM``."""

    def is_about(self, chip: Chip) -> bool:
        """Return whether the rule holds for a chip."""
        if self.chips:
            return chip.name in self.chips
        return chip.vendor == self.vendor and (chip.memory.type or "").startswith(self.memory)


@cache
def offered_shares() -> tuple[OfferedShare, ...]:
    """Return the rules, in the order in which they are tried."""
    rules = tomllib.loads(PATH.read_text(encoding="utf-8"))["rule"]
    return tuple(
        OfferedShare(**rule | {"reports": tuple(Report(**report) for report in rule["reports"])})
        for rule in rules
    )


def offered_memory(chip: Chip) -> float | None:
    """Return the bytes that programs can have of a chip's memory; None where its size is unknown.

    Args:
        chip: A chip of the catalog, or a user's own.
    """
    if chip.memory.size is None:
        return None
    shares = (rule.share for rule in offered_shares() if rule.is_about(chip))
    return chip.memory.size * next(shares, 1.0)
