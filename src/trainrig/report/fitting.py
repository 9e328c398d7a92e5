"""`trainrig fits` for people: memory by part, and the options in the order in which to try them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from trainrig.predict.prediction import memory_dict
from trainrig.predict.search.memory_options import Fit, OptionEffect
from trainrig.report.prediction_report import layout_words, where
from trainrig.units import format_memory, format_share, format_time

if TYPE_CHECKING:
    from rich.table import Table

GIB = 1 << 30
_SHOWN = 12


def headline(found: Fit) -> str:
    """``llama-7B on 4 × RTX 4090: does not fit, 134.0 GiB of 24.0 GiB``."""
    device = found.question.site.rates().device
    verdict = "fits" if found.fits else "does not fit"
    need, have = format_memory(float(found.memory.total)), format_memory(found.capacity)
    place = where(found.question.layout, device)
    return f"{found.question.shape.name} on {place}: {verdict}, {need} of {have} a GPU"


def part_table(found: Fit) -> Table:
    """Memory of the fullest GPU."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("memory", no_wrap=True)
    for heading in ("GiB", "of a GPU"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, size in memory_dict(found.memory).items():
        if size:
            table.add_row(name, f"{size / GIB:.2f}", format_share(size / found.capacity))
    total = float(found.memory.total)
    table.add_row("all", f"{total / GIB:.2f}", format_share(total / found.capacity), style="bold")
    return table


def fit_lines(found: Fit) -> Iterator[str]:
    """What the tables do not say."""
    low, high = found.memory.interval("device")
    yield f"layout: {layout_words(found.question.layout)}"
    close = "; it may go either way" if found.is_close else ""
    yield f"80 % interval: {format_memory(float(low))} to {format_memory(float(high))}{close}"
    if found.largest_batch_size:
        yield f"largest micro-batch that fits: {found.largest_batch_size}"
    else:
        yield "not even one sample at a time fits"
    if len(found.sequence) > 1:
        yield f"one after the other until it fits: {_changes(found, found.sequence)}"
    elif not found.fits and not found.sequence:
        yield f"not enough, even together: {', '.join(found.tried) or 'no option is left'}"
        if found.adapters:
            yield f"adapters instead of all weights fit: {_changes(found, found.adapters)}"
        yield "else more GPUs, or a smaller model"


def _changes(found: Fit, effects: tuple[OptionEffect, ...]) -> str:
    """``--lora-rank 16, then --recompute full: 17.2 GiB, time × 0.80``."""
    changes = ", then ".join(one.option.change for one in effects)
    last = effects[-1]
    slower = last.sample_time / found.sample_time
    return f"{changes}: {format_memory(float(last.memory.total))}, time × {slower:.2f}"


def option_table(found: Fit) -> Table:
    """The options that need less memory, the first to try first."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("change", no_wrap=True)
    for heading in ("GiB", "saves", "time", "of a sample"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("")
    for one in found.options[:_SHOWN]:
        table.add_row(*_cells(one), style="" if one.fits else "dim")
    return table


def _cells(one: OptionEffect) -> tuple[str, ...]:
    total = float(one.memory.total)
    return (
        one.option.change,
        f"{total / GIB:.2f}",
        f"{one.saved / GIB:.2f}",
        f"× {one.slower:.2f}",
        format_time(one.sample_time),
        "fits" if one.fits else "",
    )
