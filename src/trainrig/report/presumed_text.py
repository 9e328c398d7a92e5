"""The first line of a prediction: the program, and every default that mattered.

``Unsloth: QLoRA nf4 rank 16, gradient checkpointing, sequence 2048, batch 2``.  What was given is
not repeated; a value that an option could have changed is named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from trainrig.report.document import Paragraph
from trainrig.workload.layout import Layout
from trainrig.workload.numerics import scheme_of

if TYPE_CHECKING:
    from trainrig.prediction.presumed import Presumed
    from trainrig.prediction.scenario import Question

_SCHEMES = {"masters": " with fp32 masters", "autocast": " by autocast", "pure": " throughout"}
_RECOMPUTE = {
    "none": "no recomputation",
    "selective": "selective recomputation",
    "full": "gradient checkpointing",
}
_KERNELS = {
    "eager": "plain kernels",
    "fused": "fused kernels",
    "flash": "flash attention",
    "flash+fused": "flash attention and fused kernels",
    "compiled": "torch.compile",
}
_STAGES = {1: "optimizer sharded", 2: "optimizer and gradients sharded", 3: "weights sharded"}
_WORDS: Mapping[str, Callable[[Any], str]] = {
    "recompute": lambda word: _RECOMPUTE[word],
    "seq_len": lambda tokens: f"sequence {tokens}",
    "batch_size": lambda samples: f"batch {samples}",
    "zero": lambda stage: f"{_STAGES[stage]} (ZeRO {stage})",
    "sequence_parallel": lambda _: "sequence parallel",
    "kernels": lambda word: _KERNELS[word],
    "efficient_attention": lambda _: "memory-efficient attention",
    "loss": lambda word: f"{word} loss",
    "experts": lambda word: "experts one by one" if word in ("modules", "slices") else "",
    "optimizer": lambda word: f"optimizer {word}",
}


def program_text(presumed: Presumed, layout: Layout, *without: str) -> str:
    """Return the program, and the defaults that were presumed of it.

    Args:
        presumed: The program and its values.
        layout: What is run, for what follows from several values.
        without: Keys that are not named: a search varies them.
    """
    values = presumed.fields(*without)
    parts = [*_of_adapters(values, layout)]
    parts += [word_of(values[key]) for key, word_of in _WORDS.items() if key in values]
    parts += _of_numbers(values, layout)
    name = presumed.program.name
    if presumed.software.usual:
        name = f"{name} of {presumed.software.year}"
    if presumed.because:
        name = f"{name} (presumed: {presumed.because})"
    return f"{name}: {', '.join(filter(None, parts))}" if any(parts) else name


def _of_adapters(values: Mapping[str, Any], layout: Layout) -> Iterator[str]:
    if not layout.lora.rank or not values.keys() & {"lora_rank", "quantize"}:
        return
    stored = layout.lora.quantize
    name = "LoRA" if stored == "none" else f"QLoRA {stored}"
    yield f"{name} rank {layout.lora.rank}"


def _of_numbers(values: Mapping[str, Any], layout: Layout) -> Iterator[str]:
    """Yield the number format: the scheme matters where all weights are trained."""
    if values.keys() & {"precision", "states"}:
        scheme = "" if layout.lora.rank else _SCHEMES[scheme_of(layout)]
        yield f"{layout.precision.number_format}{scheme}"


def note_lines(question: Question) -> Iterator[Paragraph]:
    """Yield what was presumed of the names of the model and the machine."""
    for note in question.notes:
        yield Paragraph(note, "warn", label="Note")


def program_lines(questions: Mapping[str, Question]) -> Iterator[Paragraph]:
    """Yield the programs and defaults of one question on several machines, each text once.

    Args:
        questions: The question on each machine, by the machine's name.
    """
    machines: dict[str, list[str]] = {}
    for name, question in questions.items():
        for line in program_line(question):
            machines.setdefault(line.text, []).append(name)
    for text, names in machines.items():
        yield Paragraph(text, label="" if len(machines) == 1 else ", ".join(names))


def program_line(question: Question, *without: str) -> Iterator[Paragraph]:
    """Yield the line that names the program presumed for a question, if one was."""
    if question.presumed is not None:
        yield Paragraph(program_text(question.presumed, question.layout, *without))
