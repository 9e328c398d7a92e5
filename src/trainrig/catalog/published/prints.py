"""Outputs that owners of cards printed, as baseline records: one figure a line, any benchmark.

A line holds the case in our words (``dtype=fp16 m=8192``; ``_`` stands for a blank inside a
value) and the figure as printed.  Two RTX 4090s of one owner make most of them: his notebooks'
matmul, vector and layer tables, and what p2pBandwidthLatencyTest said of the pair.

Benchmark ``link``: ``direction`` p2p, from one card to another, with peer access asked for or
not; ``ways`` 2 is both directions at once, added up.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from trainrig.catalog.published.layers import whose
from trainrig.catalog.published.rows import GIGA, TERA, conditions, device_name, number, read_rows
from trainrig.record import Kind, Record, Scalar

PATH = Path(__file__).parent / "prints.csv"
_UNITS = {"TFLOPS": (TERA, "FLOP/s"), "GB/s": (GIGA, "B/s")}
_WORDS: dict[str, Scalar] = {"true": True, "false": False}


def read() -> Iterator[Record]:
    """One record a line.  Raises DataError."""
    for record_id, row in read_rows(PATH):
        factor, unit = _UNITS[row["unit"]]
        value = number(row["value"])
        yield Record(
            id=record_id,
            kind=Kind.BASELINE,
            benchmark=row["benchmark"],
            case=_case(row["case"]),
            metric=row["metric"],
            unit=unit,
            value=None if value is None else value * factor,
            device=device_name(row["hardware"]),
            device_count=2 if row["benchmark"] == "link" else 1,
            source=row["source"],
            conditions=conditions(row, "software", "notes"),
        )


def _case(text: str) -> dict[str, Scalar]:
    pairs = (pair.partition("=") for pair in text.split())
    return whose({name: _scalar(value) for name, _, value in pairs})


def _scalar(text: str) -> Scalar:
    if text in _WORDS:
        return _WORDS[text]
    return int(text) if text.isdigit() else text.replace("_", " ")
