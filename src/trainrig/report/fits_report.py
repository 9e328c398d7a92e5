"""Does a training fit: the answer of `trainrig fits` as a document.

First the answer in one sentence, then a row for each way to train (all weights, LoRA, QLoRA), the
line to paste for those that fit, and last the way that was asked about: its memory by part, and
what each option saves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from trainrig.prediction.launch_lines import launch_line
from trainrig.prediction.verdict import BORDERLINE, DOES_NOT_FIT, FITS
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
    words,
)
from trainrig.report.prediction_report import (
    VERDICT_TONES,
    host_facts,
    layout_text,
    memory_table,
    place_text,
    verdict_cell,
)
from trainrig.report.presumed_text import note_lines, program_line
from trainrig.units import format_count, format_memory

if TYPE_CHECKING:
    from trainrig.prediction.fit.memory_options import Fit, OptionEffect
    from trainrig.prediction.fit.methods import FitAnswer, MethodFit, Reach
    from trainrig.prediction.scenario import Question

_MOST_OPTIONS = 12
METHOD_NAMES = {"full": "full", "lora": "LoRA", "qlora": "QLoRA"}
_IN_WORDS = METHOD_NAMES | {"full": "full training"}
_MEANINGS = (
    "80 %: interval of the GiB; batch: largest micro-batch at this sequence; sequence: longest at "
    "this micro-batch"
)
_HEADLINES = {
    FITS: "{name} fits",
    BORDERLINE: "{name} is borderline",
    DOES_NOT_FIT: "{name} does not fit",
}


def fits_document(answer: FitAnswer) -> Document:
    """Show whether a training fits in three ways, then memory by part and options."""
    asked_fit = answer.asked_fit
    place = place_text(asked_fit.question.layout, asked_fit.question.cluster.rates().device)
    program = asked_fit.question.program.name
    title = f"{asked_fit.question.shape.name} on {place}, {program}: {verdicts_text(answer)}"
    best = min((method.verdict for method in answer.methods), key=list(VERDICT_TONES).index)
    blocks: list[Block] = [
        Paragraph(title, VERDICT_TONES[best]),
        *note_lines(asked_fit.question),
        *program_line(asked_fit.question),
        methods_table(answer),
        Facts(tuple(_layouts(answer)), "Layouts"),
        *_lines_to_paste(answer.methods),
        Paragraph(f"{_IN_WORDS[answer.method]}, part by part", "strong"),
        memory_table(asked_fit.memory, asked_fit.capacity, asked_fit.verdict),
        Facts((*_fit_facts(asked_fit), *_other_splits(answer)), "Memory"),
        *_option_table(asked_fit),
    ]
    return Document(title=title, blocks=tuple(blocks))


def verdicts_text(answer: FitAnswer) -> str:
    """Return ``QLoRA fits, LoRA is borderline, full training does not fit``: the best first."""
    order = list(VERDICT_TONES)
    ranked = sorted(answer.methods, key=lambda method: order.index(method.verdict))
    return ", ".join(
        _HEADLINES[method.verdict].replace("{name}", _IN_WORDS[method.method]) for method in ranked
    )


def methods_table(answer: FitAnswer) -> Block:
    """Return a row for each way to train."""
    host: list[Shown[MethodFit]] = []
    if any(method.host_memory for method in answer.methods):
        host = [column("host GiB", lambda method: method.host_memory, _gib)]
    offered = f"of {_gib(answer.asked_fit.capacity)}"
    ranged = [
        f"{reach_text(reach)}: {reach.fits:,} fit, up to {reach.borderline:,} are borderline"
        for method in answer.methods
        for reach in _reaches(method)
        if reach.borderline > reach.fits
    ]
    notes = [f"{METHOD_NAMES[name]}: {reason}" for name, reason in answer.refused.items()]
    return table(
        answer.methods,
        words("", lambda method: METHOD_NAMES[method.method]),
        column("GiB", lambda method: float(method.memory.total), _gib),
        column("80 %", lambda method: " to ".join(map(_gib, method.interval))),
        column(offered, lambda method: verdict_cell(method.verdict), kind="code"),
        column("tokens/s", lambda method: method.tokens_per_s, format_count),
        column("batch", lambda method: reach_text(method.micro_batch)),
        column("sequence", lambda method: reach_text(method.seq_len)),
        *host,
        notes=[_MEANINGS, *ranged[:1], *notes],
    )


def _reaches(method: MethodFit) -> tuple[Reach, Reach]:
    return method.micro_batch, method.seq_len


def reach_text(reach: Reach) -> str:
    """Return ``4 to 7``: 4 fit, up to 7 are borderline; none where nothing fits."""
    if not reach.borderline:
        return "none"
    if reach.fits == reach.borderline:
        return f"{reach.fits:,}"
    return f"{reach.fits:,} to {reach.borderline:,}"


def _layouts(answer: FitAnswer) -> Iterator[tuple[str, str]]:
    """Yield the program and layout that were presumed of each way to train."""
    for method in answer.methods:
        layout = method.question.layout
        yield METHOD_NAMES[method.method], f"{layout_text(layout)}, sequence {layout.batch.seq_len}"


def _lines_to_paste(methods: Sequence[MethodFit]) -> Iterator[Block]:
    """Yield the command of each way that may fit, in its program's words."""
    pairs = tuple(
        (METHOD_NAMES[method.method], line)
        for method in methods
        if method.verdict != DOES_NOT_FIT and (line := _line_to_paste(method.question))
    )
    if pairs:
        yield Facts(pairs, "To run it")


def _line_to_paste(question: Question) -> str | None:
    return launch_line(question.program.key, question.shape, question.layout, question.model)


def _fit_facts(fit: Fit) -> Iterator[tuple[str, str]]:
    from trainrig.workload.memory import peak_moment

    yield from host_facts(fit.question)
    yield "peak at", peak_moment(fit.question.shape, fit.question.layout)
    largest = fit.largest_batch_size
    yield "largest batch size", str(largest) if largest else "none: batch size 1 does not fit"
    if fit.sequence and fit.verdict != FITS:
        yield "to make it fit", _changes(fit, fit.sequence)
    elif fit.verdict == DOES_NOT_FIT:
        yield "not enough together", ", ".join(fit.tried) or "no option is left"
        yield "else", "more GPUs, or a smaller model"


def _other_splits(answer: FitAnswer) -> Iterator[tuple[str, str]]:
    if answer.plan_line is not None:
        yield "other splits", answer.plan_line


def _changes(fit: Fit, effects: Sequence[OptionEffect]) -> str:
    """Return ``--recompute full: 17.2 GiB, 1.29k tokens/s; borderline``."""
    last = effects[-1]
    memory, rate = format_memory(last.memory_bytes_per_gpu), _rate(fit, last)
    text = f"{' '.join(effect.change for effect in effects)}: {memory}, {rate} tokens/s"
    if last.host_memory_bytes_per_node:
        text += f", {format_memory(last.host_memory_bytes_per_node)} of host memory"
    return f"{text}; borderline" if last.verdict == BORDERLINE else text


def _rate(fit: Fit, effect: OptionEffect) -> str:
    return format_count(fit.question.layout.batch.seq_len / effect.sample_time_s)


def _option_table(fit: Fit) -> Iterator[Block]:
    """Yield the memory that each option saves, the best first."""
    if not fit.options:
        return
    shown_options = fit.options[:_MOST_OPTIONS]
    host: list[Shown[OptionEffect]] = []
    if any(effect.host_memory_bytes_per_node for effect in shown_options):
        host = [
            column("host GiB", lambda effect: effect.host_memory_bytes_per_node, _gib, optional=1)
        ]
    yield table(
        shown_options,
        column("change", lambda effect: effect.change, kind="code"),
        column("GiB", lambda effect: effect.memory_bytes_per_gpu, _gib),
        column("saves", lambda effect: effect.saved_bytes, _gib, optional=2),
        column("tokens/s", lambda effect: _rate(fit, effect)),
        *host,
        column("", lambda effect: _word(effect.verdict), kind="code"),
        line=lambda effect, cells: Line(cells, "dim" if effect.verdict == DOES_NOT_FIT else ""),
    )


def _word(verdict: str) -> Cell | str:
    return "" if verdict == DOES_NOT_FIT else verdict_cell(verdict)


def _gib(size: float) -> str:
    return f"{size / (1 << 30):.1f}"
