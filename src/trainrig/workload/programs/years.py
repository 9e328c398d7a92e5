"""Software of a year: ``--software 2022`` stands for what programs had at its end.

`software.toml` has the years, each with what was usual, and since when what a flag asks for exists.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from trainrig.errors import UsageError
from trainrig.workload.programs.program import Program, Since

_FILE = Path(__file__).with_name("software.toml")


@dataclass(frozen=True, slots=True, kw_only=True)
class SoftwareYear:
    """A year's software; values stand by the flat keys of a layout."""

    year: int
    usual: Mapping[str, Any]
    """Values of programs on torch's own modules."""
    own: Mapping[str, Any]
    """Values of engines with kernels of their own, before `usual`."""
    source: str

    @property
    def month(self) -> str:
        """Return the month that it stands for."""
        return f"{self.year}-12"

    def has(self, trait: Since) -> bool:
        """Return whether what a program does, perhaps since a month, was so."""
        return trait <= self.month if isinstance(trait, str) else trait is True

    def values(self, *, own_kernels: bool) -> dict[str, Any]:
        """Return what was usual, by the flat keys of a layout."""
        return {**self.usual, **(self.own if own_kernels else {})}


@cache
def _content() -> Mapping[str, Any]:
    return tomllib.loads(_FILE.read_text(encoding="utf-8"))


@cache
def years() -> Mapping[str, SoftwareYear]:
    """Return the known years, by their words."""
    return {str(entry["year"]): SoftwareYear(**entry) for entry in _content()["year"]}


def latest() -> SoftwareYear:
    """Return today's software."""
    return list(years().values())[-1]


def check_software(options: Mapping[str, Any], software: SoftwareYear) -> None:
    """Refuse flags for what that year did not have.

    Raises:
        UsageError: A flag asks for something that came later.
    """
    for arrival in _content()["arrival"]:
        for key, values in arrival["keys"].items():
            if options.get(key) in values and arrival["since"] > software.month:
                flag = f"--{key.replace('_', '-')}"
                value = f" {options[key]}" if isinstance(options[key], str) else ""
                raise UsageError(
                    f"{flag}{value} and --software {software.year}: {arrival['what']} is of "
                    f"{arrival['since']}",
                    f"--software {arrival['since'][:4]} or later, or leave {flag} out",
                )


def check_program(program: Program, software: SoftwareYear) -> None:
    """Refuse a program of later years.

    Raises:
        UsageError: It came later.
    """
    if program.defaults.since > software.month:
        raise UsageError(
            f"--framework {program.key} and --software {software.year}: {program.name} is of "
            f"{program.defaults.since}",
            f"--software {program.defaults.since[:4]} or later, or another --framework",
        )
