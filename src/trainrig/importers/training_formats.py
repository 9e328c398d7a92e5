"""Formats of trainings' logs: trainings/*.toml, read, and compiled to search lines with.

Each file there is a program's log: by which marks it is recognised, the forms of its lines as
patterns whose groups are quantities, and what the names of its pairs mean.  `training_lines` reads
files by them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field
from functools import cache
from pathlib import Path

from trainrig.record import read_by, read_toml


@read_by({"extra": "forbid"})
class LogRule:
    """Form of a line in a training's log, and the values in it."""

    find: str
    """Pattern of a line; groups are quantities; ``pairs`` has several, ``name``, ``value`` one."""
    near: str = ""
    """Plain text that each such line has."""
    scale: Mapping[str, float] = field(default_factory=dict)
    """Quantity → what its number is multiplied by to be in SI units."""
    pair_style: str = ""
    """Form of the group ``pairs``: ``bars`` is ``name: value | name: value``, ``quotes`` is
    ``'name': value, 'name': value``."""
    needs: tuple[str, ...] = ()
    """Quantities without which the line is broken off."""
    torn: str = ""
    """Pattern of what such a line looks like when it is broken off."""
    ends: str = ""
    """Pattern of the line's end: a line that lacks it was cut or wrapped."""
    weak: bool = False
    """True where other programs print such lines, too: it counts where no other format takes it."""
    digits: bool = False
    """True where half of the last printed digit is kept as the number's uncertainty."""
    alone: bool = False
    """True where the timers of one such line are a whole step's."""
    many: bool = False
    """True where the form may stand several times in one line."""


@read_by({"extra": "forbid"})
class LogNotes:
    """Notes on a log that lacks something; empty: there is nothing to say about it."""

    no_end: str = ""
    no_memory: str = ""
    no_timers: str = ""
    zero_timers: str = ""
    """Explanation of timers that read 0 in every step."""


@read_by({"extra": "forbid"})
class Format:
    """A training program's log."""

    name: str
    title: str
    order: int
    definition: str
    judged_by: str
    source: str
    tested_on: tuple[str, ...]
    near: tuple[str, ...]
    line: str
    """Marks by which the format is recognised, as in formats.toml."""
    rule: tuple[LogRule, ...]
    names: Mapping[str, tuple[str, float]] = field(default_factory=dict)
    """Name of a pair → the quantity and its scale; an empty quantity is known and not kept."""
    keys: tuple[tuple[str, ...], ...] = ()
    json: str = ""
    """Module whose ``read_json`` reads JSON values of this format."""
    rate: str = "median"
    """Choice among the rates of the steps: ``median``, ``last``."""
    timers: str = "step"
    """Scope of a part's timers: added up over a ``step``, or a step in each ``line``."""
    memory: str = ""
    """Description of the printed memory: ``allocated by torch, GB of 2³⁰``."""
    has_timers: bool = False
    notes: LogNotes = LogNotes()


class CompiledRule:
    """A rule, ready to search."""

    def __init__(self, rule: LogRule) -> None:
        self.rule = rule
        self.find = re.compile(rule.find)
        self.torn = re.compile(rule.torn) if rule.torn else None
        self.ends = re.compile(rule.ends) if rule.ends else None


@cache
def formats() -> Mapping[str, Format]:
    """Return the formats of trainings/*.toml by name, in their order."""
    folder = Path(__file__).with_name("trainings")
    specs = [read_toml(path, Format, path.name) for path in sorted(folder.glob("*.toml"))]
    return {spec.name: spec for spec in sorted(specs, key=lambda spec: spec.order)}
