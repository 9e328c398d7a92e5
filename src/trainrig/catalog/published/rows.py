"""Reading a table of published figures: rows, cells, and the chip that "hardware" means.

The tables stand here as they were collected, column for column, so that every
figure can be traced to what its source printed; the mapping to records is code.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

from trainrig.catalog.lookup import find_chip
from trainrig.errors import DataError
from trainrig.record import Scalar

TERA = 1e12
GIGA = 1e9

Row = dict[str, str]

# Printed names that the catalog does not know, and the chip that their source states elsewhere:
# ml-engineering lists its NVIDIA cards' memory in a table of its own, NVL72 and 180/192 GB
# are ways to write the product.
_STATED_ELSEWHERE = {
    "NVIDIA A100 SXM": "A100 SXM4 80GB",
    "NVIDIA A100 PCIe": "A100 PCIe 80GB",
    "NVIDIA H100 SXM": "H100 SXM5 80GB",
    "NVIDIA H200 SXM": "H200 SXM 141GB",
    "NVIDIA GH200 SXM": "GH200 141GB",
    "NVIDIA GB200 SXM": "GB200",
    "GB200 NVL72": "GB200",
    "B200 SXM 180/192GB": "B200 SXM",
}
_LOCAL = " (device-local copy)"


def read_rows(path: Path) -> Iterator[tuple[str, Row]]:
    """``(record id, row)`` of each line.  Raises DataError if the file cannot be read."""
    try:
        with path.open(encoding="utf-8", newline="") as lines:
            for number, row in enumerate(csv.DictReader(lines), start=2):
                yield f"published-{path.stem}-{number}", row
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"published table {path.name}: {error}") from None


def device_name(printed: str) -> str:
    """The catalog's name where exactly one chip is meant, else the printed name.

    Half a card ("MI250X (single GCD)") and a card whose memory is not stated
    ("V100 32GB") stay as printed.
    """
    name = printed.removesuffix(_LOCAL)
    name = _STATED_ELSEWHERE.get(name, name)
    chip = find_chip(name)
    return chip.name if chip else name


def number(cell: str) -> float | None:
    """The number in a cell; None if it is empty.  Raises DataError for anything else."""
    if not cell.strip():
        return None
    try:
        return float(cell)
    except ValueError:
        raise DataError(f"published table: not a number: {cell!r}") from None


def conditions(row: Row, *columns: str, **more: Scalar) -> dict[str, Scalar]:
    """The named columns as printed, and what else is given; empty ones are left out."""
    kept: dict[str, Scalar] = {name: row[name] for name in columns if row.get(name)}
    return kept | {name: value for name, value in more.items() if value is not None}
