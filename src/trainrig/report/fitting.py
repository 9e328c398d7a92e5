"""`trainrig fits` for people: memory by part, and the knobs in the order in which to turn them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from trainrig.predict.prediction import memory_dict
from trainrig.predict.search.memory_options import Fit, Turned
from trainrig.report.prediction_report import layout_words, where
from trainrig.units import format_memory, format_share, format_time

if TYPE_CHECKING:
    from rich.table import Table

GIB = 1 << 30
_SHOWN = 12


def headline(found: Fit) -> str:
    """``llama-7B on 4 × RTX 4090: does not fit, 134.0 GiB of 24.0 GiB``."""
    device = found.asked.site.rates().device
    verdict = "fits" if found.fits else "does not fit"
    need, have = format_memory(float(found.memory.total)), format_memory(found.capacity)
    place = where(found.asked.layout, device)
    return f"{found.asked.shape.name} on {place}: {verdict}, {need} of {have} a GPU"


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
    yield f"layout: {layout_words(found.asked.layout)}"
    close = "; it may go either way" if found.is_close else ""
    yield f"80 % interval: {format_memory(float(low))} to {format_memory(float(high))}{close}"
    if found.largest_micro_batch:
        yield f"largest micro-batch that fits: {found.largest_micro_batch}"
    else:
        yield "not even one sample at a time fits"
    if len(found.way) > 1:
        turns = ", then ".join(one.knob.says for one in found.way)
        yield f"one after the other until it fits: {turns}: {_change(found)}"
    elif not found.fits and not found.way:
        yield "no knobs together make it fit: more GPUs, or a smaller model"


def _change(found: Fit) -> str:
    last = found.way[-1]
    slower = last.sample_time / found.sample_time
    return f"{format_memory(float(last.memory.total))}, time × {slower:.2f}"


def knob_table(found: Fit) -> Table:
    """The knobs that need less memory, the first to turn first."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("turn", no_wrap=True)
    for heading in ("GiB", "saves", "time", "of a sample"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("")
    for one in found.turned[:_SHOWN]:
        table.add_row(*_cells(one), style="" if one.fits else "dim")
    return table


def _cells(one: Turned) -> tuple[str, ...]:
    total = float(one.memory.total)
    return (
        one.knob.says,
        f"{total / GIB:.2f}",
        f"{one.saved / GIB:.2f}",
        f"× {one.slower:.2f}",
        format_time(one.sample_time),
        "fits" if one.fits else "",
    )
