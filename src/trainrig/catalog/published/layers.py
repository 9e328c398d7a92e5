"""Published rates and times of transformer layers as baseline records.

Benchmark ``layer``; ``pass`` is forward, backward or forward+backward.  The
sources count FLOPs by their own rules, which stand in the conditions' notes;
where they print times as well, those are records of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from trainrig.catalog.published.rows import TERA, Row, conditions, device_name, number, read_rows
from trainrig.record import Kind, Record, Scalar

PATH = Path(__file__).parent / "layers.csv"
_AXES = ("batch", "seq", "hidden", "heads", "ffn")
# Column: pass, metric, unit, factor to base SI.
_FIGURES = {
    "fwd_tflops": ("forward", "flop_rate", "FLOP/s", TERA),
    "fwd_bwd_tflops": ("forward+backward", "flop_rate", "FLOP/s", TERA),
    "fwd_ms": ("forward", "time", "s", 1e-3),
    "bwd_ms": ("backward", "time", "s", 1e-3),
}


def read() -> Iterator[Record]:
    """One record per printed figure.  Raises DataError."""
    for record_id, row in read_rows(PATH):
        for column in _FIGURES:
            value = number(row[column])
            if value is not None:
                yield _record(f"{record_id}-{column.replace('_', '-')}", row, column, value)


def _record(record_id: str, row: Row, column: str, value: float) -> Record:
    passed, metric, unit, factor = _FIGURES[column]
    device = device_name(row["hardware"])
    case: dict[str, Scalar] = {"layer": row["layer"], "dtype": row["dtype"], "pass": passed}
    case |= {axis: int(row[axis]) for axis in _AXES if row[axis]}
    return Record(
        id=record_id,
        kind=Kind.BASELINE,
        benchmark="layer",
        case=case,
        metric=metric,
        unit=unit,
        value=value * factor,
        device=device,
        source=row["source"],
        conditions=conditions(
            row,
            "software",
            "notes",
            printed_hardware=row["hardware"] if row["hardware"] != device else None,
        ),
    )
