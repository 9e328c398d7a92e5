"""The published tables, read into baseline records.

The tables stand here as they were collected, column for column, so that every figure can be traced
to what its source printed.  One function a table maps a row to its figures; what a row of every
table has (hardware, source, conditions) is mapped once, in `read`.

matmul.csv: ``matmul`` is one plain product, as ours is.  Kept apart from it: ``matmul_accumulate``
(the product is added to a matrix in memory), ``batched_matmul``, ``grouped_matmul`` (one product
per expert) and ``layer`` (products with what stands around them).  Left out are rates of single
instructions, which no matmul reaches.  "fp32/tf32" means that torch was allowed to use TF32: the
record says tf32 where every chip of that name has it and fp32 elsewhere; ``printed_dtype`` keeps
the source's words.

squares.csv: large square products of many cards, with matmul.csv's columns.

bandwidth.csv: ``vector`` is torch's multiplication of an fp32 vector by a number (read and write
counted); ``copy`` is everything that only moves or streams.  Small vectors are hot in cache: an RTX
4090's 4 M elements fit its 72 MB of L2 and run at 3.9 TB/s.  Left out: stencils, and thresholds of
health checks, which are lower bounds and not measurements.

layers.csv: ``layer``; ``pass`` is forward, backward or forward+backward.  The sources count FLOPs
by their own rules, which stand in the notes; where causal attention is counted in full, so that a
figure may exceed the chip's peak, the condition ``counting`` says it.  Where they print times as
well, those are records of their own.  The four layers of the grids are Hugging Face's with plain
attention, run in training mode, with dropout and without the gradient of the input: ``code`` and
``attention`` are added to their cases, so that they meet that code's measurements and no other's.

collectives.csv: ``collective``, metric ``bus_rate``, is 2(n-1)/n times the buffer over the time for
all_reduce and (n-1)/n times for all_gather, reduce_scatter and all_to_all (nccl-tests' definition),
so that it compares with a link's rate whatever the number of ranks.  ``bytes`` of the buffer is
left out where a source printed only its best or its fitted rate for large buffers.  Left out:
thresholds, and tests of one network card.

prints.csv: outputs that owners of cards printed, one figure a line, any benchmark.  A line holds
the case in our words (``dtype=fp16 m=8192``; ``_`` stands for a blank inside a value).  ``link``,
here and in collectives.csv: ``direction`` p2p, from one card to another, with peer access asked for
or not; ``ways`` 2 is both directions at once, added up; ``clock`` whose view of a latency it is.
d2d is a copy within one card, as that tool's diagonal.

hardware.csv: which chip of the catalog each printed name is, where exactly one is meant, and
whether it has TF32; ``note``: what the source states of it elsewhere.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from trainrig.errors import DataError
from trainrig.record import Kind, Record, Scalar

FOLDER = Path(__file__).parent
HARDWARE = FOLDER / "hardware.csv"
TERA = 1e12
GIGA = 1e9

Row = dict[str, str]
Case = dict[str, Scalar]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Figure:
    """Metric of one printed number, in the unit as printed."""

    benchmark: str
    case: Case
    metric: str
    unit: str
    printed: float | None
    scale: float
    """Factor from the printed unit to base SI."""
    suffix: str = ""
    """Suffix of the record's id where a row has several figures."""
    device_count: int = 1
    conditions: Case = field(default_factory=dict)


def read(name: str) -> Iterator[Record]:
    """Return the records of the table ``name``, in its order.  Raises DataError."""
    figures, columns = TABLES[name]
    for record_id, row in read_rows(FOLDER / f"{name}.csv"):
        device = device_name(row["hardware"])
        printed = row["hardware"] if row["hardware"] != device else None
        for figure in figures(row):
            yield Record(
                id=record_id + figure.suffix,
                kind=Kind.BASELINE,
                benchmark=figure.benchmark,
                case=figure.case,
                metric=figure.metric,
                unit=figure.unit,
                value=None if figure.printed is None else figure.printed * figure.scale,
                device=device,
                device_count=figure.device_count,
                source=row["source"],
                conditions=conditions(row, *columns, printed_hardware=printed, **figure.conditions),
            )


def read_rows(path: Path) -> Iterator[tuple[str, Row]]:
    """Return ``(record id, row)`` of each line.  Raises DataError if the file cannot be read."""
    try:
        with path.open(encoding="utf-8", newline="") as lines:
            for number, row in enumerate(csv.DictReader(lines), start=2):
                yield f"published-{path.stem}-{number}", row
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"published table {path.name}: {error}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Hardware:
    """Hardware of a source, by the catalog's names."""

    device: str
    has_tf32: bool
    """True where every chip that the printed name fits has tf32."""


@cache
def _hardware() -> dict[str, _Hardware]:
    """Return the rows of hardware.csv by the printed name."""
    return {
        row["hardware"]: _Hardware(device=row["device"], has_tf32=row["tf32"] == "yes")
        for _, row in read_rows(HARDWARE)
    }


def _hardware_of(printed: str) -> _Hardware:
    if (hardware := _hardware().get(printed)) is None:
        raise DataError(f"{HARDWARE.name} has no hardware {printed!r}", "add it, with its device")
    return hardware


def devices() -> Iterator[str]:
    """Return the devices of all tables, as their records name them.  Raises DataError."""
    yield from (hardware.device for hardware in _hardware().values())


def device_name(printed: str) -> str:
    """Return the catalog's name where exactly one chip is meant, else the printed name.

    Half a card ("MI250X (single GCD)") and a card whose memory is not stated
    ("V100 32GB") stay as printed.  Raises DataError for a name that hardware.csv lacks.
    """
    return _hardware_of(printed).device


def number(cell: str) -> float | None:
    """Return the number in a cell; None if it is empty.  Raises DataError for anything else."""
    if not cell.strip():
        return None
    try:
        return float(cell)
    except ValueError:
        raise DataError(f"published table: not a number: {cell!r}") from None


def conditions(row: Row, *columns: str, **more: Scalar) -> Case:
    """Return the conditions of a row: its named columns and ``more``, empty ones left out."""
    printed: Case = {name: row[name] for name in columns if row.get(name)}
    return printed | {name: value for name, value in more.items() if value is not None}


# ---- matmul.csv

_TF32_ALLOWED = frozenset(["fp32/tf32", "fp32 (TF32 where available)"])
# Printed data type: ours, and the type of the result where the source states it.
_DTYPES = {
    "bf16 (out bf16)": ("bf16", "bf16"),
    "bf16 (out fp32)": ("bf16", "fp32"),
    "bf16 grouped": ("bf16", None),
}


def _matmul(row: Row) -> Iterator[_Figure]:
    if "mmapeak" in row["dtype"]:
        return
    dtype, output = _matmul_dtype(row["dtype"], row["hardware"])
    theory = number(row["tflops_theory"])
    benchmark = _matmul_benchmark(row)
    case: Case = {"dtype": dtype}
    case |= {axis: int(row[axis]) for axis in ("m", "k", "n") if row[axis]}
    if benchmark in ("batched_matmul", "grouped_matmul"):
        case["batch"] = int(row["batch"])
    if benchmark == "layer":
        case |= {"layer": row["kind"].partition(": ")[2], "pass": "forward"}
    yield _Figure(
        benchmark=benchmark,
        case=_with_code(case | {"cache": "hot"}),
        metric="flop_rate",
        unit="OP/s" if dtype.startswith("int") else "FLOP/s",
        printed=number(row["tflops_measured"]),
        scale=TERA,
        conditions={
            "theory": None if theory is None else theory * TERA,
            "output_dtype": output,
            "printed_dtype": row["dtype"] if row["dtype"] != dtype else None,
        },
    )


def _matmul_dtype(printed: str, hardware: str) -> tuple[str, str | None]:
    """Return our data types of the operands and the result."""
    if printed in _TF32_ALLOWED:
        return ("tf32" if _hardware_of(hardware).has_tf32 else "fp32"), None
    return _DTYPES.get(printed, (printed, None))


def _matmul_benchmark(row: Row) -> str:
    kind = row["kind"]
    if kind.startswith("grouped"):
        return "grouped_matmul"
    if kind.startswith(("block:", "transformer gemm:")):
        return "layer"
    if kind.endswith("accumulate"):
        return "matmul_accumulate"
    return "batched_matmul" if row["batch"] not in ("", "1") else "matmul"


# ---- bandwidth.csv

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


def _bandwidth(row: Row) -> Iterator[_Figure]:
    case: Case
    if row["test"] in _SCALE_TESTS:
        num_elements = int(row["bytes_or_elements"])
        case = {"op": "scale", "dtype": "fp32", "num_elements": num_elements, "cache": "hot"}
    elif row["test"] in _DIRECTIONS:
        direction = _DIRECTIONS[row["test"]]
        # A stream's ends lie on the card; of host memory no source says whether it was pinned.
        memory = None if direction in ("h2d", "d2h") else "device"
        case = {"direction": direction, "memory": memory, "cache": "cold"}
    else:
        return
    theory = number(row["peak_gb_per_s"])
    yield _Figure(
        benchmark="vector" if "op" in case else "copy",
        case=case,
        metric="byte_rate",
        unit="B/s",
        printed=number(row["gb_per_s"]),
        scale=GIGA,
        conditions={"theory": None if theory is None else theory * GIGA},
    )


# ---- layers.csv

_IN_FULL = "counted non-causal"
COUNTED_IN_FULL = "causal attention counted in full: half of these FLOPs are executed"
"""Counting convention by its words in the notes, and as it is shown."""
# Column: pass, metric, unit, factor to base SI.
_LAYER_FIGURES = {
    "fwd_tflops": ("forward", "flop_rate", "FLOP/s", TERA),
    "fwd_bwd_tflops": ("forward+backward", "flop_rate", "FLOP/s", TERA),
    "fwd_ms": ("forward", "time", "s", 1e-3),
    "bwd_ms": ("backward", "time", "s", 1e-3),
}
_WHOLE_LAYERS = frozenset(
    ["BERT-large layer", "GPT-2 medium block", "T5-large encoder block", "T5-large decoder block"]
)
_WITHOUT_ATTENTION = frozenset(["dense h->4h", "dense+GELU", "FFN"])


_LAYER_SIZES = (  # as the collected table heads its columns
    ("batch", "batch_size"),
    ("seq", "seq_len"),
    *((axis, axis) for axis in ("hidden", "heads", "ffn")),
)


def _layer(row: Row) -> Iterator[_Figure]:
    for column, (passed, metric, unit, scale) in _LAYER_FIGURES.items():
        value = number(row[column])
        if value is None:
            continue
        case: Case = {"layer": row["layer"], "dtype": row["dtype"], "pass": passed}
        case |= {axis: int(row[printed]) for printed, axis in _LAYER_SIZES if row[printed]}
        yield _Figure(
            benchmark="layer",
            case=_with_code(case),
            metric=metric,
            unit=unit,
            printed=value,
            scale=scale,
            suffix=f"-{column.replace('_', '-')}",
            conditions={"counting": COUNTED_IN_FULL} if _IN_FULL in row["notes"] else {},
        )


def _with_code(case: Case) -> Case:
    """Return a layer's case with the code that ran it, which notebooks do not repeat."""
    layer = str(case.get("layer")).partition(" (")[0]
    huggingface: Case = {"layer": layer, "code": "huggingface"}
    if layer in _WITHOUT_ATTENTION:
        return case | huggingface
    if layer in _WHOLE_LAYERS:
        return case | huggingface | {"attention": "plain"}
    if layer == "attention block":  # run on BERT-large's shapes, 64 sequences of 128
        return case | huggingface | {"attention": "plain", "seq_len": 128, "heads": 16}
    return case


# ---- collectives.csv

# Bus bandwidth against algorithm bandwidth, for sources that print the latter alone.
_BUS = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0, "all2all": 1.0}
_WAYS = {"p2p unidirectional": 1, "p2p bidirectional": 2}
# Its transfers stand in prints.csv.
_IN_PRINTS = "mli/transformers-benchmarks transformers.ipynb"


def _collective(row: Row) -> Iterator[_Figure]:
    kind, case = row["collective"], Case()
    if "threshold" in row["notes"] or row["source"] == _IN_PRINTS:
        return
    rate, algorithm_rate = number(row["busbw_gb_s"]), number(row["algbw_gb_s"])
    if kind in _WAYS:
        case = {"direction": "p2p", "ways": _WAYS[kind]}
    elif kind in _BUS or kind == "broadcast":
        ranks = int(row["num_gpus"])
        case = {"collective": "all_to_all" if kind == "all2all" else kind}
        case |= {"ranks": ranks, "nodes": int(row["num_nodes"])}
        if row["size_bytes"]:
            case["bytes"] = int(float(row["size_bytes"]))
        if rate is None and algorithm_rate is not None:
            rate = _BUS[kind] * (ranks - 1) / ranks * algorithm_rate
    else:
        return
    yield _Figure(
        benchmark="link" if kind in _WAYS else "collective",
        case=case,
        metric="byte_rate" if kind in _WAYS else "bus_rate",
        unit="B/s",
        printed=rate,
        scale=GIGA,
        device_count=int(row["num_gpus"]),
    )


# ---- prints.csv

_UNITS = {"TFLOPS": (TERA, "FLOP/s"), "GB/s": (GIGA, "B/s"), "us": (1e-6, "s")}


def _print(row: Row) -> Iterator[_Figure]:
    scale, unit = _UNITS[row["unit"]]
    pairs = (pair.partition("=") for pair in row["case"].split())
    yield _Figure(
        benchmark=row["benchmark"],
        case=_with_code({name: _scalar(value) for name, _, value in pairs}),
        metric=row["metric"],
        unit=unit,
        printed=number(row["value"]),
        scale=scale,
        device_count=2 if "direction=p2p" in row["case"] else 1,
    )


def _scalar(text: str) -> Scalar:
    if text in ("true", "false"):
        return text == "true"
    return int(text) if text.isdigit() else text.replace("_", " ")


TABLES: dict[str, tuple[Callable[[Row], Iterator[_Figure]], tuple[str, ...]]] = {
    "matmul": (_matmul, ("software", "kind", "notes")),
    "squares": (_matmul, ("software", "kind", "notes")),
    "bandwidth": (_bandwidth, ("test", "notes")),
    "layers": (_layer, ("software", "notes")),
    "collectives": (_collective, ("interconnect", "algo", "notes")),
    "prints": (_print, ("software", "notes")),
}
"""Readers of the tables and their condition columns, by table name."""
