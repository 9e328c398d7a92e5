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


def fits_document(found: FitAnswer) -> Document:
    """Whether it fits, in three ways; then memory by part and options of the one asked about."""
    asked = found.asked_fit
    place = place_text(asked.question.layout, asked.question.cluster.rates().device)
    program = asked.question.program.name
    title = f"{asked.question.shape.name} on {place}, {program}: {verdicts_text(found)}"
    best = min((one.verdict for one in found.methods), key=list(VERDICT_TONES).index)
    blocks: list[Block] = [
        Paragraph(title, VERDICT_TONES[best]),
        *note_lines(asked.question),
        *program_line(asked.question),
        methods_table(found),
        Facts(tuple(_layouts(found)), "Layouts"),
        *_lines_to_paste(found.methods),
        Paragraph(f"{_IN_WORDS[found.method]}, part by part", "strong"),
        memory_table(asked.memory, asked.capacity, asked.verdict),
        Facts((*_fit_facts(asked), *_other_splits(found)), "Memory"),
        *_option_table(asked),
    ]
    return Document(title=title, blocks=tuple(blocks))


def verdicts_text(found: FitAnswer) -> str:
    """``QLoRA fits, LoRA is borderline, full training does not fit``: the best first."""
    order = list(VERDICT_TONES)
    ranked = sorted(found.methods, key=lambda one: order.index(one.verdict))
    return ", ".join(
        _HEADLINES[one.verdict].replace("{name}", _IN_WORDS[one.method]) for one in ranked
    )


def methods_table(found: FitAnswer) -> Block:
    """A row for each way to train."""
    host: list[Shown[MethodFit]] = []
    if any(one.host_memory for one in found.methods):
        host = [column("host GiB", lambda one: one.host_memory, _gib)]
    offered = f"of {_gib(found.asked_fit.capacity)}"
    is_ranged = any(
        reach.borderline > reach.fits for one in found.methods for reach in _reaches(one)
    )
    notes = [f"{METHOD_NAMES[name]}: {reason}" for name, reason in found.refused.items()]
    ranged = "2 to 5: 2 fit, up to 5 are borderline"
    return table(
        found.methods,
        words("", lambda one: METHOD_NAMES[one.method]),
        column("GiB", lambda one: float(one.memory.total), _gib),
        column("80 %", lambda one: " to ".join(map(_gib, one.interval))),
        column(offered, lambda one: verdict_cell(one.verdict), kind="code"),
        column("tokens/s", lambda one: one.tokens_per_s, format_count),
        column("batch", lambda one: reach_text(one.micro_batch)),
        column("sequence", lambda one: reach_text(one.seq_len)),
        *host,
        notes=[_MEANINGS, *([ranged] if is_ranged else []), *notes],
    )


def _reaches(one: MethodFit) -> tuple[Reach, Reach]:
    return one.micro_batch, one.seq_len


def reach_text(reach: Reach) -> str:
    """``4 to 7``: 4 fit, up to 7 are borderline; none where nothing fits."""
    if not reach.borderline:
        return "none"
    if reach.fits == reach.borderline:
        return f"{reach.fits:,}"
    return f"{reach.fits:,} to {reach.borderline:,}"


def _layouts(found: FitAnswer) -> Iterator[tuple[str, str]]:
    """What was presumed of each way: the program, and how it runs."""
    for one in found.methods:
        layout = one.question.layout
        yield METHOD_NAMES[one.method], f"{layout_text(layout)}, sequence {layout.batch.seq_len}"


def _lines_to_paste(methods: Sequence[MethodFit]) -> Iterator[Block]:
    """The command of each way that may fit, in its program's words."""
    pairs = tuple(
        (METHOD_NAMES[one.method], line)
        for one in methods
        if one.verdict != DOES_NOT_FIT and (line := _line_to_paste(one.question))
    )
    if pairs:
        yield Facts(pairs, "To run it")


def _line_to_paste(question: Question) -> str | None:
    return launch_line(question.program.key, question.shape, question.layout, question.model)


def _fit_facts(found: Fit) -> Iterator[tuple[str, str]]:
    from trainrig.workload.memory import peak_moment

    yield from host_facts(found.question)
    yield "peak at", peak_moment(found.question.shape, found.question.layout)
    largest = found.largest_batch_size
    yield "largest batch size", str(largest) if largest else "none: batch size 1 does not fit"
    if found.sequence and found.verdict != FITS:
        yield "to make it fit", _changes(found, found.sequence)
    elif found.verdict == DOES_NOT_FIT:
        yield "not enough together", ", ".join(found.tried) or "no option is left"
        yield "else", "more GPUs, or a smaller model"


def _other_splits(found: FitAnswer) -> Iterator[tuple[str, str]]:
    if found.plan_line is not None:
        yield "other splits", found.plan_line


def _changes(found: Fit, effects: Sequence[OptionEffect]) -> str:
    """``--recompute full: 17.2 GiB, 1.29k tokens/s; borderline``."""
    last = effects[-1]
    memory, rate = format_memory(last.memory_bytes_per_gpu), _rate(found, last)
    text = f"{' '.join(one.change for one in effects)}: {memory}, {rate} tokens/s"
    if last.host_memory_bytes_per_node:
        text += f", {format_memory(last.host_memory_bytes_per_node)} of host memory"
    return f"{text}; borderline" if last.verdict == BORDERLINE else text


def _rate(found: Fit, effect: OptionEffect) -> str:
    return format_count(found.question.layout.batch.seq_len / effect.sample_time_s)


def _option_table(found: Fit) -> Iterator[Block]:
    """What each option saves, the best first; none where everything is small already."""
    if not found.options:
        return
    shown = found.options[:_MOST_OPTIONS]
    host: list[Shown[OptionEffect]] = []
    if any(one.host_memory_bytes_per_node for one in shown):
        host = [column("host GiB", lambda one: one.host_memory_bytes_per_node, _gib, optional=1)]
    yield table(
        shown,
        column("change", lambda one: one.change, kind="code"),
        column("GiB", lambda one: one.memory_bytes_per_gpu, _gib),
        column("saves", lambda one: one.saved_bytes, _gib, optional=2),
        column("tokens/s", lambda one: _rate(found, one)),
        *host,
        column("", lambda one: _word(one.verdict), kind="code"),
        line=lambda one, cells: Line(cells, "dim" if one.verdict == DOES_NOT_FIT else ""),
    )


def _word(verdict: str) -> Cell | str:
    return "" if verdict == DOES_NOT_FIT else verdict_cell(verdict)


def _gib(size: float) -> str:
    return f"{size / (1 << 30):.1f}"
