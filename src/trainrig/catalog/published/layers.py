"""Published rates and times of transformer layers as baseline records.

Benchmark ``layer``; ``pass`` is forward, backward or forward+backward.  The
sources count FLOPs by their own rules, which stand in the conditions' notes;
where they print times as well, those are records of their own.

The four layers of the grids are Hugging Face's with plain attention, run in training mode, with
dropout and without the gradient of the input: ``code`` and ``attention`` are added to their cases,
so that they meet that code's measurements and no other's.  The parts of a BERT layer come from
the same notebooks.
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

_DENSE = ("dense h->4h", "dense+GELU")
_THEIRS = frozenset(
    [
        "BERT-large layer",
        "GPT-2 medium block",
        "T5-large encoder block",
        "T5-large decoder block",
        *_DENSE,
        "FFN",
        "attention block",
    ]
)
# The parts were run on BERT-large's shapes, 64 sequences of 128.
_ATTENTION_BLOCK: dict[str, Scalar] = {"seq": 128, "heads": 16}


def whose(case: dict[str, Scalar]) -> dict[str, Scalar]:
    """A layer's case, with whose code it was, which the notebooks' tables do not repeat."""
    layer = str(case.get("layer")).partition(" (")[0]
    if layer not in _THEIRS:
        return case
    more: dict[str, Scalar] = {"layer": layer, "code": "huggingface"}
    if layer not in (*_DENSE, "FFN"):
        more["attention"] = "plain"
    return case | more | (_ATTENTION_BLOCK if layer == "attention block" else {})


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
        case=whose(case),
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
