"""What others measured and printed, as baseline records.

The records use our benchmarks' names, cases, metrics and units, so that they
meet measurements by `Record.key` or are drawn behind them.  They are other
people's numbers under other people's conditions: shown beside a measurement,
never averaged with it.  NOTICE.md names the sources, sources.toml says when each printed its
figures.
"""

from __future__ import annotations

from enum import StrEnum
from functools import cache
from pathlib import Path

from pydantic import ConfigDict

from trainrig.catalog.published import tables, training
from trainrig.errors import DataError
from trainrig.record import Record, read_by, read_toml

__all__ = [
    "PublishedKind",
    "PublishedSource",
    "is_measurement",
    "product_text",
    "published_devices",
    "published_for",
    "published_kind",
    "published_records",
    "published_source",
    "published_trainings",
]


class PublishedKind(StrEnum):
    """Kind of a published figure, in the order in which people ask."""

    MATMUL = "matmul"
    BANDWIDTH = "bandwidth"
    LAYER = "layer"
    TRAINING = "training"
    LINK = "link"


_KIND_OF = {
    "matmul": PublishedKind.MATMUL,
    "matmul_accumulate": PublishedKind.MATMUL,
    "batched_matmul": PublishedKind.MATMUL,
    "grouped_matmul": PublishedKind.MATMUL,
    "burn": PublishedKind.MATMUL,
    "vector": PublishedKind.BANDWIDTH,
    "copy": PublishedKind.BANDWIDTH,
    "layer": PublishedKind.LAYER,
    "training": PublishedKind.TRAINING,
    "link": PublishedKind.LINK,
    "collective": PublishedKind.LINK,
}
_PRODUCTS = {
    "matmul_accumulate": "added to a matrix",
    "batched_matmul": "batched",
    "grouped_matmul": "grouped",
    "burn": "under load for minutes",
}


def published_kind(record: Record) -> PublishedKind:
    """Return the kind of figure that a published record is."""
    return _KIND_OF[record.benchmark]


def product_text(record: Record) -> str:
    """Return how a product differs from a plain one, ``grouped``; empty for plain ones."""
    return _PRODUCTS.get(record.benchmark, "")


_SOURCES = Path(__file__).parent / "sources.toml"
# A simulator's table of efficiency factors, one a shape of its models: fitted, partly tiny shapes.
_NOT_A_MEASUREMENT = "GEMM per shape"


@cache
def published_records() -> tuple[Record, ...]:
    """Return every published figure of a benchmark that the package carries.  Raises DataError."""
    return tuple(record for name in tables.TABLES for record in tables.read(name))


@cache
def published_devices() -> frozenset[str]:
    """Return every device that a published figure is of, without the figures.  Raises DataError."""
    return frozenset(tables.devices())


@cache
def published_trainings() -> tuple[Record, ...]:
    """Return every published training step whose rate was printed, whatever its layout.

    Raises DataError.
    """
    return tuple(training.figures())


def published_for(benchmark: str, device: str | None = None) -> tuple[Record, ...]:
    """Return the published figures of a benchmark, of one device where ``device`` names it.

    ``device`` is compared exactly: a name of the catalog, or as printed.
    """
    return tuple(
        record
        for record in published_records()
        if record.benchmark == benchmark and device in (None, record.device)
    )


def is_measurement(record: Record) -> bool:
    """Return whether a figure was measured; a simulator's factors are fitted."""
    return not str(record.conditions.get("kind", "")).startswith(_NOT_A_MEASUREMENT)


@read_by(ConfigDict(extra="forbid"))
class PublishedSource:
    """Source of published figures, with its date."""

    starts: str
    """Beginning of the source's name in the tables' first column."""
    url: str = ""
    date: str = ""
    """Year, month or day; empty where nobody states one."""


@cache
def published_source(name: str) -> PublishedSource:
    """Return the source of a figure by its name.  Raises DataError where there is none."""
    fitting = [source for source in _sources() if name.startswith(source.starts)]
    if not fitting:
        raise DataError(f"{_SOURCES.name} has no source that begins {name!r}")
    return max(fitting, key=lambda one: len(one.starts))


@cache
def _sources() -> tuple[PublishedSource, ...]:
    return tuple(read_toml(_SOURCES, list[PublishedSource], _SOURCES.name, "source"))
