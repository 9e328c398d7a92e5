"""What others published of an experiment's case, and which of those figures is odd.

A figure stands beside an experiment that trains the same model on the same samples at once in the
same precision on as many devices; engine and software differ, and are shown.  A card whose matrix
units are faster by its data sheet and whose figure is lower is named: one of the two figures, or
what ran on that card, wants an explanation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import permutations
from typing import Any

from trainrig.catalog.chip import Chip, peak
from trainrig.catalog.find import find_chip
from trainrig.record import Case, Record
from trainrig.units import format_memory, format_quantity, one_line

Row = Mapping[str, Any]
_FASTER = 1.1
"""A data sheet that says less is no reason to expect more."""
COLUMNS = ("experiment", "device", "tokens/s a device", "memory", "software", "source")


def published_for(case: Case, baselines: Sequence[Record]) -> list[Record]:
    """The baselines of an experiment's case."""
    return [
        record
        for record in baselines
        if all(case.get(name) == value for name, value in record.case.items())
    ]


def row_of(experiment: str, record: Record) -> dict[str, Any]:
    """A baseline as a run's series keeps it."""
    return {
        "experiment": experiment,
        "device": record.device,
        "dtype": record.case["dtype"],
        "tokens_per_s_per_device": record.value,
        "memory_bytes": record.conditions.get("memory"),
        "software": record.conditions.get("framework"),
        "source": record.source,
    }


def texts(rows: Sequence[Row]) -> tuple[tuple[str, ...], ...]:
    """The rows of a table."""
    return tuple(
        (
            one_line(row["experiment"]),
            one_line(row["device"]),
            f"{row['tokens_per_s_per_device']:.0f}",
            "-" if row["memory_bytes"] is None else format_memory(row["memory_bytes"]),
            one_line(str(row["software"])),
            one_line(row["source"]),
        )
        for row in rows
    )


def notices(rows: Sequence[Row]) -> Iterator[str]:
    """Figures of a faster card that lie below a slower one's, of the same experiment."""
    for own, other in permutations(rows, 2):
        if own["experiment"] != other["experiment"] or own["dtype"] != other["dtype"]:
            continue
        rate, below = own["tokens_per_s_per_device"], other["tokens_per_s_per_device"]
        if rate < below and _claim(own) > _FASTER * _claim(other) > 0.0:
            yield one_line(
                f"{own['experiment']}: the {own['device']} is published at "
                f"{format_quantity(rate, 'token/s')}, below the slower {other['device']}'s "
                f"{format_quantity(below, 'token/s')}: its data sheet says "
                f"{_claim(own) / _claim(other):.1f} times as fast; other software, "
                "less bandwidth, another link or a misprint; no target"
            )


def _claim(row: Row) -> float:
    chip: Chip | None = find_chip(row["device"])
    found = None if chip is None else peak(chip, _UNITS.get(row["dtype"]) or row["dtype"])
    return found.rate if found is not None else 0.0


_UNITS = {"fp32": "tf32"}
"""What torch multiplies fp32 by in the published rows."""
