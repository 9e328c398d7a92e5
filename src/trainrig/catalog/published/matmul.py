"""Published matmul rates as baseline records.

Benchmark ``matmul`` is one plain product, as ours is.  Kept apart from it:
``matmul_accumulate`` (the product is added to a matrix in memory),
``batched_matmul``, ``grouped_matmul`` (one product per expert) and ``layer``
(products with what stands around them).  Left out are rates of single
instructions, which no matmul reaches.

"fp32/tf32" in a source means that torch was allowed to use TF32: the record
says tf32 where the chip has it and fp32 where it has not; `printed_dtype` in
the conditions keeps the source's words.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from trainrig.catalog.chip import peak
from trainrig.catalog.lookup import find_chip
from trainrig.catalog.published.layers import whose
from trainrig.catalog.published.rows import TERA, Row, conditions, device_name, number, read_rows
from trainrig.record import Kind, Record, Scalar

PATH = Path(__file__).parent / "matmul.csv"
_TF32_ALLOWED = frozenset(["fp32/tf32", "fp32 (TF32 where available)"])
# Printed data type: ours, and the type of the result where the source states it.
_DTYPES = {
    "bf16 (out bf16)": ("bf16", "bf16"),
    "bf16 (out fp32)": ("bf16", "fp32"),
    "bf16 grouped": ("bf16", None),
}


def read() -> Iterator[Record]:
    """Every row that fits one of the benchmarks above.  Raises DataError."""
    for record_id, row in read_rows(PATH):
        if "mmapeak" not in row["dtype"]:
            yield _record(record_id, row)


def _record(record_id: str, row: Row) -> Record:
    device = device_name(row["hardware"])
    dtype, output = _dtype(row["dtype"], device)
    theory, rate = number(row["tflops_theory"]), number(row["tflops_measured"])
    benchmark = _benchmark(row)
    return Record(
        id=record_id,
        kind=Kind.BASELINE,
        benchmark=benchmark,
        case=_case(benchmark, row, dtype),
        metric="flop_rate",
        unit="OP/s" if dtype.startswith("int") else "FLOP/s",
        value=None if rate is None else rate * TERA,
        device=device,
        source=row["source"],
        conditions=conditions(
            row,
            "software",
            "kind",
            "notes",
            theory=None if theory is None else theory * TERA,
            output_dtype=output,
            printed_dtype=row["dtype"] if row["dtype"] != dtype else None,
            printed_hardware=row["hardware"] if row["hardware"] != device else None,
        ),
    )


def _dtype(printed: str, device: str) -> tuple[str, str | None]:
    if printed in _TF32_ALLOWED:
        chip = find_chip(device)
        return ("tf32" if chip and peak(chip, "tf32") else "fp32"), None
    return _DTYPES.get(printed, (printed, None))


def _benchmark(row: Row) -> str:
    kind = row["kind"]
    if kind.startswith("grouped"):
        return "grouped_matmul"
    if kind.startswith(("block:", "transformer gemm:")):
        return "layer"
    if kind.endswith("accumulate"):
        return "matmul_accumulate"
    return "batched_matmul" if row["batch"] not in ("", "1") else "matmul"


def _case(benchmark: str, row: Row, dtype: str) -> dict[str, Scalar]:
    case: dict[str, Scalar] = {"dtype": dtype}
    case |= {axis: int(row[axis]) for axis in ("m", "k", "n") if row[axis]}
    if benchmark in ("batched_matmul", "grouped_matmul"):
        case["batch"] = int(row["batch"])
    if benchmark == "layer":
        case |= {"layer": row["kind"].partition(": ")[2], "pass": "forward"}
    return whose(case | {"cache": "hot"})
