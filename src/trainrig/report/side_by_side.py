"""One question about several machines, or a table's rows: their answers in one table.

Answers what `trainrig predict` and `fits` print where `--on` is given more than once, at 80
columns, and what `predict --cases` prints; one answer alone, with its parts, is
`prediction_report`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from trainrig.report.document import (
    Block,
    Cell,
    Document,
    Facts,
    Line,
    Paragraph,
    Shown,
    column,
    table,
)
from trainrig.report.prediction_report import duration_text, layout_text, place_text
from trainrig.units import counted, format_count, format_memory, format_share, format_time

if TYPE_CHECKING:  # numpy
    from trainrig.prediction.beside import Beside
    from trainrig.prediction.prediction import Prediction
    from trainrig.prediction.search.memory_options import Fit


def predictions_beside(
    several: Sequence[Beside[Prediction]], tokens: float | None = None
) -> Document:
    """The quickest machine's figures as they are; a machine that does not fit is dim."""
    known = [one.found for one in several if one.found is not None]
    title = f"{known[0].question.shape.name} on {counted(len(several), 'machine')}"
    priced = any(one.price is not None for one in several)
    price: tuple[Shown[Beside[Prediction]], ...] = (
        column("/price", lambda one: one.per_price, format_count),
    )
    shown: list[Shown[Beside[Prediction]]] = [
        column("machine", _place, kind="words"),
        column("step", lambda one: None if one.found is None else one.found.time, format_time),
        column(
            "tokens/s",
            lambda one: None if one.found is None else one.found.tokens_per_s,
            format_count,
        ),
        column("/W", lambda one: one.per_watt, format_count),
        *(price if priced else ()),
        column(
            "MFU",
            lambda one: None if one.found is None else one.found.mfu,
            format_share,
            optional=1,
        ),
        column(
            "GiB", lambda one: None if one.found is None else float(one.found.memory.total), _gib
        ),
        column("", _verdict, kind="code"),
    ]
    blocks: list[Block] = [
        Paragraph(title, "strong"),
        table(several, *shown, line=lambda one, cells: Line(cells, "" if one.fits else "dim")),
        Facts(tuple((one.name, _words(one, tokens)) for one in several), "Layouts"),
    ]
    words = "tokens/s of all GPUs; /W: for each watt of their power limits"
    blocks.append(Paragraph(words + ("; /price: for each unit of money" if priced else ""), "dim"))
    return Document(title=title, blocks=tuple(blocks))


def fits_beside(several: Sequence[Beside[Fit]]) -> Document:
    """What each machine has and needs, and the first change where it does not fit."""
    known = [one.found for one in several if one.found is not None]
    title = f"{known[0].question.shape.name} on {counted(len(several), 'machine')}"
    shown: list[Shown[Beside[Fit]]] = [
        column("machine", _place, kind="words"),
        column(
            "needs GiB",
            lambda one: None if one.found is None else float(one.found.memory.total),
            _gib,
        ),
        column("has", lambda one: None if one.found is None else one.found.capacity, _gib),
        column(
            "largest batch", lambda one: None if one.found is None else one.found.largest_batch_size
        ),
        column("", _verdict, kind="code"),
    ]
    facts = tuple((one.name, _change(one)) for one in several)
    blocks: tuple[Block, ...] = (
        Paragraph(title, "strong"),
        table(several, *shown, line=lambda one, cells: Line(cells, "" if one.fits else "dim")),
        Facts(facts, "Layouts"),
    )
    return Document(title=title, blocks=blocks)


def _place(one: Beside[Prediction] | Beside[Fit]) -> str:
    if one.found is None:
        return one.name
    question = one.found.question
    return place_text(question.layout, question.cluster.rates().device)


def _gib(size: float) -> str:
    return f"{size / (1 << 30):.1f}"


def _verdict(one: Beside[Prediction] | Beside[Fit]) -> Cell:
    if one.found is None:
        return Cell("cannot", "bad")
    return Cell("fits", "good") if one.fits else Cell("no room", "bad")


def _words(one: Beside[Prediction], tokens: float | None) -> str:
    if one.found is None:
        return str(one.reason)
    low, high = map(format_time, one.found.interval)
    text = f"{layout_text(one.found.layout)}; 80 % between {low} and {high}"
    return text if tokens is None else f"{text}; {duration_text(one.found, tokens)}"


def _change(one: Beside[Fit]) -> str:
    if one.found is None:
        return str(one.reason)
    text = layout_text(one.found.question.layout)
    steps = one.found.sequence or one.found.adapters
    changes = ", then ".join(step.change for step in steps)
    return text if one.fits or not steps else f"{text}; fits with {changes}"


def cases_document(rows: Iterable[dict[str, Any]]) -> Document:
    """Predictions of a table's rows, as ``predict --cases --json`` prints them."""

    def size(head: str, field: str, form: Callable[[float], str]) -> Iterator[Shown[Any]]:
        def known(shown: Callable[[dict[str, Any]], str]) -> Callable[[dict[str, Any]], str]:
            return lambda row: shown(row) if row["reason"] is None else ""

        yield column(head, known(lambda row: form(row[field])))
        interval = known(lambda row: " to ".join(map(form, row["interval"][field])))
        yield column("80 % interval", interval)

    def simulated(row: dict[str, Any]) -> str:
        seconds = row.get("simulated_step_time_s")
        return "" if seconds is None else format_time(seconds)

    rows = list(rows)
    is_simulated = any("simulated_step_time_s" in row for row in rows)
    found = table(
        rows,
        column("row", lambda row: row["row"]),
        *size("step", "step_time_s", format_time),
        *([column("simulated", simulated)] if is_simulated else []),
        *size("memory a GPU", "memory_bytes_per_gpu", format_memory),
        line=lambda row, cells: Line(cells, note=row["reason"] or ""),
    )
    block = found if found.rows else Paragraph("The table is empty.")
    return Document(title="predictions", blocks=(block,))
