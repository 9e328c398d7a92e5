"""The chips' data files, read, checked and converted.

A file under chips/ holds named sources and a list of chips.  A chip's values
stand in tables named after the source that they were read from, so a value
without a source cannot be written down:

    [sources.ada]
    title = "NVIDIA Ada GPU architecture, whitepaper v2.1, appendix A"
    url = "https://..."
    date = "2026-11-20"

    [[chip]]
    name = "RTX 4090"
    vendor = "NVIDIA"
    from.ada = { boost_mhz = 2520, tensor = { fp16 = { fp32 = 165.2 } } }
    unverified.line = { p2p = false }

Tables under `from` are verified; under `unverified` they are
computed, presumed, or their sources contradict each other; one source is named for what it is,
`unsourced`: no document was found.  A value may be given once.  Field names
carry the units that people print; this module converts to base SI.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from trainrig.catalog.chip import Chip
from trainrig.errors import DataError
from trainrig.plugins import user_files

CHIPS_DIR = Path(__file__).parent / "chips"


@cache
def load_chips() -> tuple[Chip, ...]:
    """Return every chip of the catalog, in the files' order, then those of the user's own files.

    Raises DataError if a file is broken, or if two chips share a name or PCI id.
    """
    return read_chips(chip_files())


def chip_files() -> tuple[Path, ...]:
    """Return the catalog's files, then those of the user's own."""
    return (*sorted(CHIPS_DIR.glob("*.toml")), *user_files("chips"))


def file_label(path: Path) -> str:
    """Return how messages name a chip file: one of the user's own with its folder."""
    return f"chip file {path.name if path.parent == CHIPS_DIR else path}"


def file_hint(path: Path) -> str | None:
    """Return what to do about a file of the user's own that cannot be read; None of ours."""
    if path.parent == CHIPS_DIR:
        return None
    return "mend this file of yours, or move it out of its folder; docs/extend.md has the form"


def read_chips(paths: Iterable[Path]) -> tuple[Chip, ...]:
    """Return the chips of the given files.  Raises DataError, as `load_chips`."""
    chips = tuple(chip for path in paths for chip in chips_of_file(path))
    _refuse_shared(chips)
    return chips


@cache
def chips_of_file(path: Path) -> tuple[Chip, ...]:
    """Return the chips of one file.  Raises DataError, as `load_chips`."""
    from trainrig.catalog.chip_file import read_file  # a sixth of the time of a short command

    return tuple(read_file(path, file_label(path), file_hint(path)))


def names_in_file(path: Path) -> Iterator[str]:
    """Yield every chip name in a file, for the catalog's own without parsing it."""
    if path.parent != CHIPS_DIR:
        yield from (
            name
            for chip in chips_of_file(path)
            for name in (chip.name, *chip.short_names, *chip.aliases)
        )
        return
    for line in _NAMES.findall(path.read_text(encoding="utf-8")):
        yield from _QUOTED.findall(line)


_NAMES = re.compile(r"^(?:name|short_names|aliases) = (\".*\"|\[[^\]]*\])", re.MULTILINE)
_QUOTED = re.compile(r'"([^"]*)"')


def _refuse_shared(chips: tuple[Chip, ...]) -> None:
    """Raise DataError where a name or a PCI id belongs to two chips."""
    owners: dict[str, int] = {}
    for index, chip in enumerate(chips):
        for key in (chip.name.casefold(), *chip.pci_ids):
            owner = owners.setdefault(key, index)
            if owner != index:
                other = chips[owner].name
                raise DataError(f"catalog: {key} belongs to both {other} and {chip.name}")
