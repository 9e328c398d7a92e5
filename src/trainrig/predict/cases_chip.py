"""Which chip of the catalog a row means: its canonical name, or the nearest that is no guess.

A name that is short of a variant ("H100") stands for the one that is sold in most servers, and
widens the interval; one with the memory's size behind it is the chip of that size.  Names of no
chip are refused: nothing is taken from a neighbour.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from trainrig.catalog import Chip, find_chip
from trainrig.catalog.lookup import candidates
from trainrig.errors import UsageError
from trainrig.predict.cases_words import Unstated, cell

Row = Mapping[str, str]

_MEMORY = re.compile(r"\s*[(-]?\s*(\d+)\s*g(?:i?b)?\)?\s*$", re.IGNORECASE)


def chip_of(row: Row, missing: Unstated) -> Chip:
    """The chip of a row; blank: what is printed of the hardware, where that is a chip's name."""
    name, printed = cell(row, "chip"), cell(row, "hardware")
    if not name and find_chip(printed) is None:
        raise UsageError("chip: not stated, or none of the catalog")
    _same_power(printed)
    name = name or printed
    found = find_chip(name) or _of_size(name) or _usual(name, missing)
    if found is None:
        raise UsageError(f"chip: {name[:60]!r} is not in the catalog")
    return found


def _of_size(name: str) -> Chip | None:
    """``RTX 4090 24GB``: the chip without its memory, if that is its memory."""
    stated = _MEMORY.search(name)
    found = find_chip(name[: stated.start()]) if stated else None
    if stated is None or found is None or found.memory is None:
        return None
    gigabytes = float(stated[1])
    return found if 0.9 < found.memory / (gigabytes * 2**30) < 1.1 else None


def _usual(name: str, missing: Unstated) -> Chip | None:
    """``A100``: the module for servers, where all that fit are variants of one chip."""
    fitting = candidates(name)
    if len(fitting) < 2:
        return fitting[0] if fitting else None
    model = fitting[0].name.split()[0]  # "RTX" or "TPU" alone is a family, not a chip
    if not any(letter.isdigit() for letter in model):
        return None
    missing.add("chip")
    modules = [chip for chip in fitting if "SXM" in (chip.form_factor or "")]
    return max(modules or fitting[:1], key=lambda chip: chip.memory or 0.0)


def _same_power(hardware: str) -> None:
    """A card that is printed as limited below its data sheet is another one than the catalog's."""
    word = hardware.lower()
    if "limit" in word or "capped" in word or "custom" in word:
        raise UsageError("hardware: printed with another power limit than the catalog's chip")
