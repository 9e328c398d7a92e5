"""Published bandwidths of collectives and of transfers from card to card, as baseline records.

Benchmark ``collective``: metric ``bus_rate``, B/s, which is 2(n−1)/n times the buffer over the time
for all_reduce and (n−1)/n times for all_gather, reduce_scatter and all_to_all (nccl-tests'
definition), so that it compares with a link's rate whatever the number of ranks.  ``bytes`` of the
buffer is left out where a source printed only its best or its fitted rate for large buffers.
Benchmark ``link`` is prints.py's: ``ways`` 2 is both directions at once, added up.

Left out: thresholds of health checks, which are lower bounds, and tests of one network card.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from trainrig.catalog.published.rows import GIGA, Row, conditions, device_name, number, read_rows
from trainrig.record import Kind, Record, Scalar

PATH = Path(__file__).parent / "collectives.csv"
# Bus bandwidth against algorithm bandwidth, for sources that print the latter alone.
_BUS = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0, "all2all": 1.0}
_WAYS = {"p2p unidirectional": 1, "p2p bidirectional": 2}
_PRINTED = ("mli/transformers-benchmarks transformers.ipynb",)
"""Sources whose transfers stand in prints.csv."""
_NAMES = {"all2all": "all_to_all"}


def read() -> Iterator[Record]:
    """Every row that is a measurement of a collective or of a transfer.  Raises DataError."""
    for record_id, row in read_rows(PATH):
        if "threshold" in row["notes"] or row["source"] in _PRINTED:
            continue
        if row["collective"] in _WAYS:
            yield _record(record_id, row, "link", _transfer(row), number(row["busbw_gb_s"]))
        elif row["collective"] in _BUS or row["collective"] == "broadcast":
            yield _record(record_id, row, "collective", _case(row), _bus(row))


def _record(
    record_id: str, row: Row, benchmark: str, case: dict[str, Scalar], rate: float | None
) -> Record:
    device = device_name(row["hardware"])
    return Record(
        id=record_id,
        kind=Kind.BASELINE,
        benchmark=benchmark,
        case=case,
        metric="byte_rate" if benchmark == "link" else "bus_rate",
        unit="B/s",
        value=None if rate is None else rate * GIGA,
        device=device,
        device_count=int(row["num_gpus"]),
        source=row["source"],
        conditions=conditions(
            row,
            "interconnect",
            "algo",
            "notes",
            printed_hardware=row["hardware"] if row["hardware"] != device else None,
        ),
    )


def _transfer(row: Row) -> dict[str, Scalar]:
    return {"direction": "p2p", "ways": _WAYS[row["collective"]]}


def _case(row: Row) -> dict[str, Scalar]:
    kind = row["collective"]
    case: dict[str, Scalar] = {"collective": _NAMES.get(kind, kind)}
    case |= {"ranks": int(row["num_gpus"]), "nodes": int(row["num_nodes"])}
    return case | ({"bytes": int(float(row["size_bytes"]))} if row["size_bytes"] else {})


def _bus(row: Row) -> float | None:
    printed = number(row["busbw_gb_s"])
    if printed is not None:
        return printed
    ranks, rate = int(row["num_gpus"]), number(row["algbw_gb_s"])
    return None if rate is None else _BUS[row["collective"]] * (ranks - 1) / ranks * rate
