"""What others measured and printed, as baseline records.

The records use our benchmarks' names, cases, metrics and units, so that they
meet measurements by `Record.key` or are drawn behind them.  They are other
people's numbers under other people's conditions: shown beside a measurement,
never averaged with it.  NOTICE.md names the sources.
"""

from __future__ import annotations

from functools import cache

from trainrig.catalog.published import tables
from trainrig.record import Record

__all__ = ["published_for", "published_records"]


@cache
def published_records() -> tuple[Record, ...]:
    """Every published figure that the package carries.  Raises DataError."""
    return tuple(record for name in tables.TABLES for record in tables.read(name))


def published_for(benchmark: str, device: str | None = None) -> tuple[Record, ...]:
    """The published figures of a benchmark, of one device where ``device`` names it.

    ``device`` is compared exactly: a name of the catalog, or as printed.
    """
    return tuple(
        record
        for record in published_records()
        if record.benchmark == benchmark and device in (None, record.device)
    )
