"""One question about several machines, or a table's rows: their answers in one table.

Answers what `trainrig predict` and `fits` print where `--on` is given more than once, at 80
columns, and what `predict --cases` prints; one answer alone, with its parts, is
`prediction_report`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from trainrig.prediction.prediction import Prediction
from trainrig.prediction.verdict import FITS
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
from trainrig.report.fits_report import METHOD_NAMES, verdicts_text
from trainrig.report.prediction_report import (
    VERDICT_TONES,
    duration_text,
    error_table,
    layout_text,
    place_text,
    verdict_cell,
)
from trainrig.report.presumed_text import program_lines
from trainrig.units import (
    counted,
    format_count,
    format_memory,
    format_share,
    format_time,
    signed_share,
)

if TYPE_CHECKING:  # numpy
    from trainrig.prediction.fit.methods import FitAnswer
    from trainrig.prediction.machine_comparison import MachineComparison
    from trainrig.prediction.prediction import Prediction
    from trainrig.stats import ErrorSummary


def predictions_side_by_side(
    several: Sequence[MachineComparison[Prediction]], tokens: float | None = None
) -> Document:
    """Return the quickest machine's figures as they are; a machine that does not fit is dim."""
    known = [machine.answer for machine in several if machine.answer is not None]
    title = f"{known[0].question.shape.name} on {counted(len(several), 'machine')}"
    priced = any(machine.price is not None for machine in several)
    price: tuple[Shown[MachineComparison[Prediction]], ...] = (
        column("/price", lambda machine: machine.per_price, format_count),
    )
    columns: list[Shown[MachineComparison[Prediction]]] = [
        column("machine", _place, kind="words"),
        column(
            "step",
            lambda machine: None if machine.answer is None else machine.answer.time,
            format_time,
        ),
        column(
            "tokens/s",
            lambda machine: None if machine.answer is None else machine.answer.tokens_per_s,
            format_count,
        ),
        column("/W", lambda machine: machine.per_watt, format_count),
        *(price if priced else ()),
        column(
            "MFU",
            lambda machine: None if machine.answer is None else machine.answer.mfu,
            format_share,
            optional=1,
        ),
        column(
            "GiB",
            lambda machine: None if machine.answer is None else float(machine.answer.memory.total),
            _gib,
        ),
        column("", _verdict, kind="code"),
    ]
    blocks: list[Block] = [
        Paragraph(f"{title}: {_fastest(several)}", "strong"),
        *program_lines(
            {machine.name: machine.answer.question for machine in several if machine.answer}
        ),
        table(
            several,
            *columns,
            line=lambda machine, cells: Line(cells, "" if machine.may_fit else "dim"),
        ),
        Facts(tuple((machine.name, _words(machine, tokens)) for machine in several), "Layouts"),
    ]
    notes = dict.fromkeys(note for answer in known for note in answer.question.notes)
    blocks += [Paragraph(note, "warn", label="Note") for note in notes]
    words = "tokens/s of all GPUs; /W: for each watt of their power limits"
    blocks.append(Paragraph(words + ("; /price: for each unit of money" if priced else ""), "dim"))
    return Document(title=title, blocks=tuple(blocks))


def _fastest(several: Sequence[MachineComparison[Prediction]]) -> str:
    """Return ``RTX 4090 is fastest, 1.9 times as fast as RTX 3090``, of those that may fit.

    Where nothing fits, the machine that would be fastest.
    """
    fitting = [machine for machine in several if machine.may_fit]
    answers = {
        machine.name: machine.answer for machine in fitting or several if machine.answer is not None
    }
    first, *slower = sorted(answers, key=lambda name: -answers[name].tokens_per_s)
    verdict = answers[first].verdict
    if not slower:
        only = f"only on {first}" if fitting and len(several) > 1 else f"on {first}"
        return f"{only}: {verdict}"
    times = f"{answers[first].tokens_per_s / answers[slower[0]].tokens_per_s:.2f}"
    lead = f"{first} {'is' if fitting else 'would be'} fastest, {times} times {slower[0]}'s speed"
    if times == "1.00":
        lead = f"{first} and {slower[0]} are equally fast"
    if not fitting:
        return f"it fits on none; {lead}"
    return lead if verdict == FITS else f"{lead}, {verdict}"


def fits_side_by_side(several: Sequence[MachineComparison[FitAnswer]]) -> Document:
    """Show the machines side by side, and which ways to train fit on each."""
    known = [machine.answer for machine in several if machine.answer is not None]
    title = f"{known[0].asked_fit.question.shape.name} on {counted(len(several), 'machine')}"

    def way(method: str) -> Shown[MachineComparison[FitAnswer]]:
        return column(
            METHOD_NAMES[method], lambda machine: _method_cell(machine.answer, method), kind="code"
        )

    rows = table(
        several,
        column("machine", _place, kind="words"),
        column(
            "offers GiB",
            lambda machine: None if machine.answer is None else machine.answer.asked_fit.capacity,
            _gib,
        ),
        *map(way, METHOD_NAMES),
        line=lambda machine, cells: Line(cells, "dim" if machine.answer is None else ""),
    )
    blocks: list[Block] = [
        *(
            Paragraph(f"{machine.name}: {verdicts_text(machine.answer)}", "strong")
            for machine in several
            if machine.answer is not None
        ),
        *program_lines(
            {
                machine.name: machine.answer.asked_fit.question
                for machine in several
                if machine.answer
            }
        ),
        rows,
    ]
    blocks += [
        Paragraph(f"{machine.name}: {machine.reason}", "warn")
        for machine in several
        if machine.answer is None
    ]
    notes = dict.fromkeys(note for machine in known for note in machine.asked_fit.question.notes)
    blocks += [Paragraph(note, "warn", label="Note") for note in notes]
    layouts = {
        METHOD_NAMES[machine.method]: layout_text(machine.question.layout)
        for machine in known[0].methods
    }
    blocks.append(Facts(tuple(layouts.items()), "Presumed"))
    return Document(title=title, blocks=tuple(blocks))


def _method_cell(answer: FitAnswer | None, method: str) -> Cell | str:
    """Return ``fits, 11.0``: the word, and GiB of one GPU."""
    if answer is None:
        return Cell("cannot", "bad")
    for method_fit in answer.methods:
        if method_fit.method == method:
            word = f"{method_fit.verdict}, {_gib(float(method_fit.memory.total))}"
            return Cell(word, VERDICT_TONES[method_fit.verdict])
    return ""


def _place(machine: MachineComparison[Prediction] | MachineComparison[FitAnswer]) -> str:
    if machine.answer is None:
        return machine.name
    answer = machine.answer
    question = answer.question if isinstance(answer, Prediction) else answer.asked_fit.question
    return place_text(question.layout, question.cluster.rates().device)


def _gib(size: float) -> str:
    return f"{size / (1 << 30):.1f}"


def _verdict(machine: MachineComparison[Prediction]) -> Cell:
    return Cell("cannot", "bad") if machine.answer is None else verdict_cell(machine.answer.verdict)


def _words(machine: MachineComparison[Prediction], tokens: float | None) -> str:
    if machine.answer is None:
        return str(machine.reason)
    low, high = map(format_time, machine.answer.interval)
    text = f"{layout_text(machine.answer.layout)}; 80 % between {low} and {high}"
    return text if tokens is None else f"{text}; {duration_text(machine.answer, tokens)}"


def cases_document(rows: Iterable[dict[str, Any]]) -> Document:
    """Predictions of a table's rows, as ``predict --cases --json`` prints them.

    Where a row says what was measured, with the error of its prediction, and the errors by chip.
    """
    rows = list(rows)
    is_simulated = any("simulated_step_time_s" in row for row in rows)
    is_measured = any(row["error"] is not None for row in rows)
    is_held = any(row["memory_error"] is not None for row in rows)
    case_table = table(
        rows,
        column("row", lambda row: row["id"] or row["row"]),
        *_with_interval("step", "step_time_s", format_time),
        *([_optional("simulated", "simulated_step_time_s", format_time)] if is_simulated else []),
        *([_optional("measured", "measured_step_s", format_time)] if is_measured else []),
        *([_optional("error", "error", signed_share)] if is_measured else []),
        *_with_interval("memory a GPU", "memory_bytes_per_gpu", format_memory),
        *([_optional("error", "memory_error", signed_share)] if is_held else []),
        line=lambda row, cells: Line(cells, note=row["reason"] or ""),
    )
    blocks: list[Block] = [case_table if case_table.rows else Paragraph("The table is empty.")]
    if is_measured:
        blocks += _errors_by_chip([row for row in rows if row["error"] is not None])
    return Document(title="predictions", blocks=tuple(blocks))


def _with_interval(
    head: str, field: str, form: Callable[[float], str]
) -> Iterator[Shown[dict[str, Any]]]:
    """Yield the columns of a predicted size and of its interval."""
    yield _optional(head, field, form)

    def interval(row: dict[str, Any]) -> str:
        ends = row["interval"][field]
        return "" if ends is None else " to ".join(map(form, ends))

    yield column("80 % interval", interval)


def _optional(head: str, field: str, form: Callable[[float], str]) -> Shown[dict[str, Any]]:
    """Return the column of a number that some rows lack."""
    return column(head, lambda row: "" if row.get(field) is None else form(row[field]))


def _errors_by_chip(rows: Sequence[dict[str, Any]]) -> Iterator[Block]:
    """Yield how far off the predicted step times of measured rows are."""
    from trainrig.stats import grouped, summarise_errors

    def summary(name: str, members: Sequence[dict[str, Any]]) -> ErrorSummary:
        errors = [row["error"] for row in members]
        return summarise_errors(name, errors, [row["inside"] for row in members])

    by_chip = [summary(*group) for group in grouped(rows, lambda row: row["on"]).items()]
    yield error_table("chip", by_chip)
    all_rows = summary("all", rows)
    yield Paragraph(
        f"step time, predicted / measured - 1: median {all_rows.median_error:.1%}, 90th percentile "
        f"{all_rows.p90_error:.1%} of {counted(all_rows.count, 'measured row')}"
    )
