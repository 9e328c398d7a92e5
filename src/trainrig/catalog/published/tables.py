"""Published memory bandwidths as baseline records.

``vector`` is torch's multiplication of an fp32 vector by a number (read and
write counted); ``copy`` is everything that only moves or streams.  Both tables
of sources repeat on the same buffers, so small vectors are hot in cache: an
RTX 4090's 4 M elements fit its 72 MB of L2 and run at 3.9 TB/s.

Left out: health checks' thresholds, which are lower bounds and not
measurements, and stencils, which are no benchmark of ours.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from trainrig.catalog.published.rows import GIGA, Row, conditions, device_name, number, read_rows
from trainrig.record import Kind, Record, Scalar

PATH = Path(__file__).parent / "bandwidth.csv"
_SCALE_TESTS = frozenset(["torch x*1.5 fp32 vector (read+write)", "torch vector multiply 4M fp32"])
# Printed test: direction.  A scaled copy moves what a copy moves.
_DIRECTIONS = {
    "init (write only)": "write",
    "read only": "read",
    "scale (1r1w)": "copy",
    "triad (2r1w)": "triad",
    "D2D copy": "d2d",
    "GPU D2D (HBM3) copy": "d2d",
    "host to device (PCIe 5.0 x16)": "h2d",
    "device to host (PCIe 5.0 x16)": "d2h",
}


def read() -> Iterator[Record]:
    """Every row that fits ``vector`` or ``copy``.  Raises DataError."""
    for record_id, row in read_rows(PATH):
        if row["test"] in _SCALE_TESTS:
            yield _record(record_id, row, "vector", _vector_case(row))
        elif row["test"] in _DIRECTIONS:
            yield _record(record_id, row, "copy", _copy_case(row))


def _record(record_id: str, row: Row, benchmark: str, case: dict[str, Scalar]) -> Record:
    device = device_name(row["hardware"])
    rate, theory = number(row["gb_per_s"]), number(row["peak_gb_per_s"])
    return Record(
        id=record_id,
        kind=Kind.BASELINE,
        benchmark=benchmark,
        case=case,
        metric="byte_rate",
        unit="B/s",
        value=None if rate is None else rate * GIGA,
        device=device,
        source=row["source"],
        conditions=conditions(
            row,
            "test",
            "notes",
            theory=None if theory is None else theory * GIGA,
            printed_hardware=row["hardware"] if row["hardware"] != device else None,
        ),
    )


def _vector_case(row: Row) -> dict[str, Scalar]:
    num_elements = int(row["bytes_or_elements"])
    return {"op": "scale", "dtype": "fp32", "num_elements": num_elements, "cache": "hot"}


def _copy_case(row: Row) -> dict[str, Scalar]:
    direction = _DIRECTIONS[row["test"]]
    # Both ends of a stream lie on the card; of host memory, no source says whether it was pinned.
    memory = None if direction in ("h2d", "d2h") else "device"
    return {"direction": direction, "memory": memory, "cache": "cold"}
