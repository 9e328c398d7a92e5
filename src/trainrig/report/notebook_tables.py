"""The tables that notebooks of transformer benchmarks made familiar, from any records.

Matmul by data type and n, vector by operation and number of elements, layer by batch and part:
from a run, from published figures, or from a prediction.  A cell holds the case's value; what has
no value is a dash.  Products are square ones; layers stand by sequence length and by whose code
ran, and a part of a layer stands at the batch that has as many tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from trainrig.analysis.best import bound_of, with_bound_sign
from trainrig.benchmarks.layer import LAYERS, PARTS, code_text
from trainrig.benchmarks.matmul import square_size
from trainrig.benchmarks.spec import Role, role_of
from trainrig.record import Record, dtype_of
from trainrig.report.document import Block, Cell, Column, Document, Paragraph, Table
from trainrig.stats import grouped
from trainrig.units import binary, capital, format_quantity, format_share, si_scale

if TYPE_CHECKING:  # numpy
    from trainrig.prediction.rates import Rates

_DTYPES = ("fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "fp4", "int8")
_PASSES = {"forward": "forward", "forward+backward": "with backward"}
_LAYERS = (*PARTS, *LAYERS)
_PART_SEQ = 128
"""Tokens of a sequence of a part whose case does not say it."""


def notebook_tables(records: Iterable[Record]) -> tuple[Table, ...]:
    """Return every table that some records fill: matmul, vector, then layers.

    Of several records of one case the last counts.
    """
    known = [record for record in records if record.value and record.device_count == 1]
    return (*_matmul_tables(known), *_vector_tables(known), *_layer_tables(known))


def grids_document(grids: Sequence[tuple[Rates, Sequence[Record]]]) -> Document:
    """Show predictions for some machines in the tables of notebooks, with their intervals."""
    from trainrig.prediction.grids import layer_error

    blocks: list[Block] = []
    for rates, records in grids:
        blocks.append(Paragraph(f"{rates.device}, predicted", "strong"))
        blocks += notebook_tables(records)
        sources = dict.fromkeys(str(record.source) for record in records)
        widths = [
            record.interval[1] / record.value
            for record in records
            if record.interval and record.value
        ]
        sure = ""
        if widths:
            least, most = min(widths), max(widths)
            sure = (
                f"four in five lie within {format_share(least - 1.0)} where products or bytes "
                f"take the time, within {most:.1f} times where launches do"
            )
        blocks.append(Paragraph(f"{'; '.join(sources)}; {sure}.", "dim"))
    is_layer = any(
        role_of(record.benchmark) is Role.BLOCK
        for _, grid_records in grids
        for record in grid_records
    )
    if is_layer and (error := layer_error()) is not None:
        text = (
            f"Against {error.num} published layers, none of which it is fitted to: median error "
            f"{format_share(error.median)}; nine in ten lie within {format_share(error.inside)}, "
            "the farthest are small batches, where the host decides."
        )
        blocks.append(Paragraph(text, "dim"))
    names = ", ".join(rates.device for rates, _ in grids)
    return Document(title=f"{names}, predicted", blocks=tuple(blocks))


def has_place(record: Record) -> bool:
    """Return whether some table would show the record."""
    return bool(notebook_tables([record]))


def _matmul_tables(records: Sequence[Record]) -> Iterator[Table]:
    cells: dict[tuple[str, int], Record] = {}
    for record in records:
        n = square_size(record.case)
        plain = role_of(record.benchmark) is Role.PRODUCT and not record.case.get("sustained")
        if plain and record.metric == "flop_rate" and n is not None:
            cells[str(dtype_of(record.case)), n] = record
    dtypes = sorted({dtype for dtype, _ in cells}, key=_place(_DTYPES))
    if cells:
        yield _grid(
            "Matmul by data type and n: (n, n) · (n, n)",
            "type",
            [(f"{dtype} (OPS)" if dtype.startswith("int") else dtype, dtype) for dtype in dtypes],
            [(str(n), n) for n in sorted({n for _, n in cells})],
            cells,
        )


def _vector_tables(records: Sequence[Record]) -> Iterator[Table]:
    cells: dict[tuple[str, int], Record] = {}
    for record in records:
        size = record.case.get("num_elements")
        is_stream = role_of(record.benchmark) is Role.STREAM and record.metric == "byte_rate"
        if is_stream and isinstance(size, int):
            words = (record.case.get(name) for name in ("op", "dtype", "cache"))
            cells[" ".join(str(word) for word in words), size] = record
    if cells:
        yield _grid(
            "Vector by operation and number of elements",
            "operation",
            [(name, name) for name in dict.fromkeys(name for name, _ in cells)],
            [(binary(n).strip(), n) for n in sorted({n for _, n in cells})],
            cells,
            "Hot: the same buffers in every call; small ones stay in a cache.",
        )


def _layer_tables(records: Sequence[Record]) -> Iterator[Table]:
    layers = [
        record
        for record in records
        if role_of(record.benchmark) is Role.BLOCK
        and record.metric == "flop_rate"
        and record.case.get("pass") in _PASSES
        and _batch(record) is not None
    ]
    for (dtype, seq, code), members in sorted(grouped(layers, _layer_kind).items()):
        cells = {(_row(record), _batch(record) or 0): record for record in members}
        counting = dict.fromkeys(
            str(layer_record.conditions.get("counting") or "") for layer_record in members
        )
        names = sorted({row for row, _ in cells}, key=lambda row: (_place(_LAYERS)(row[0]), row[1]))
        yield _grid(
            f"Layer by batch and part: {dtype}, sequences of {seq}, {code}",
            "part",
            [(f"{layer}, {_PASSES[how]}", (layer, how)) for layer, how in names],
            [(str(n), n) for n in sorted({n for _, n in cells})],
            cells,
            *(f"{capital(note)}." for note in counting if note),
        )


def _layer_kind(record: Record) -> tuple[str, int, str]:
    case = record.case
    return str(dtype_of(case)), _seq(case), code_text(case)


def _seq(case: Mapping[str, Any]) -> int:
    seq = case.get("seq_len")
    return seq if isinstance(seq, int) else _PART_SEQ


def _batch(record: Record) -> int | None:
    """Sequences of a case; of a part its tokens in sequences."""
    batch, tokens = record.case.get("batch_size"), record.case.get("m")
    if isinstance(batch, int) and isinstance(record.case.get("seq_len"), int):
        return batch
    if isinstance(tokens, int) and tokens % _seq(record.case) == 0:
        return tokens // _seq(record.case)
    return None


def _row(record: Record) -> tuple[str, str]:
    return str(record.case["layer"]), str(record.case["pass"])


def _place(order: Sequence[str]) -> Callable[[str], tuple[int, str]]:
    return lambda name: (order.index(name) if name in order else len(order), name)


def _grid(
    title: str,
    head: str,
    rows: Sequence[tuple[str, Any]],
    columns: Sequence[tuple[str, int]],
    cells: Mapping[Any, Record],
    *notes: str,
) -> Table:
    """Return all cells in one unit: that of the largest, of floating point where there is any."""

    def size(record: Record) -> tuple[bool, float]:
        return record.unit != "OP/s", record.value or 0.0

    largest = max(cells.values(), key=size)
    scale, unit = si_scale(largest.value or 0.0, largest.unit)

    def cell(record: Record | None) -> Cell:
        if record is None or record.value is None:
            return Cell("-")
        text = format_quantity(record.value / scale, "")
        text = f"{record.value / scale:.3f}" if record.value < 1e-2 * scale else text
        return Cell(with_bound_sign(text, bound_of(record)))

    noisy = any(record.disturbed for record in cells.values())
    return Table(
        (Column(head, "code"), *(Column(name) for name, _ in columns)),
        tuple((name, *(cell(cells.get((row, n))) for _, n in columns)) for name, row in rows),
        title=f"{title}, {unit}",
        notes=(*notes, *(("≥: noisy; the device may do better.",) if noisy else ())),
    )
