"""A predicted step as tables for the terminal: where its time and its memory go."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from trainrig.predict.prediction import DAY, Answer, memory_dict
from trainrig.predict.step import PARTS
from trainrig.units import format_memory, format_quantity, format_share, format_time
from trainrig.workload.layout import Layout
from trainrig.workload.numerics import scheme_of

if TYPE_CHECKING:
    from rich.table import Table

    from trainrig.predict.search.upgrades import Ranked

WORDS = {
    "forward": "forward",
    "backward": "backward",
    "recompute": "recomputation",
    "gaps": "launch gaps",
    "tensor_comm": "tensor parallel",
    "pipeline_comm": "sends of stages",
    "bubble": "pipeline bubble",
    "data_comm": "gradients, weights",
    "optimizer": "optimizer",
    "offload": "offload",
    "data": "data",
}
_BAR = 24


def answer_lines(found: Answer, tokens: float | None) -> Iterator[str]:
    """The headline, then what follows from it, a line each."""
    low, high = found.interval
    yield f"{found.asked.shape.name} on {where(found.layout, found.rates.device)}"
    yield (
        f"step        {format_time(found.time)}, 80 % between {format_time(low)} and "
        f"{format_time(high)}"
    )
    yield f"layout      {layout_words(found.layout)}"
    yield (
        f"rate        {count(found.tokens_per_s)} tokens/s, {count(found.tokens_per_s * DAY)} "
        f"a day; {format_quantity(found.flop_rate, 'FLOP/s')} a GPU"
    )
    if found.mfu is not None and found.hfu is not None:
        yield (
            f"utilised    MFU {format_share(found.mfu)}, HFU {format_share(found.hfu)} of the "
            f"claimed {found.layout.precision} peak"
        )
    if tokens is not None:
        yield f"{count(tokens)} tokens  {duration(found, tokens)}"
    for line in found.warnings:
        yield f"warning     {line}"


def rate_lines(found: Answer) -> Iterator[str]:
    """Where the rates come from, those that this layout asks for."""
    idle = set() if found.layout.gpus > 1 else {"collective"}
    idle |= set() if found.layout.offload != "none" else {"host_link"}
    idle |= set() if found.layout.offload == "disk" else {"disk"}
    for name, words in found.rates.provenance.items():
        if name not in idle:
            yield f"{name.replace('_', ' ')}: {words}"


def duration(found: Answer, tokens: float) -> str:
    """Days and energy of a whole training."""
    days, (low, high) = found.days(tokens), found.interval
    ends = [count(days * end / found.time) for end in (low, high)]
    return f"{count(days)} days ({ends[0]} to {ends[1]}), {count(found.kwh(tokens))} kWh of GPUs"


def where(layout: Layout, device: str) -> str:
    """``16 × A100 SXM4 80GB in 2 nodes``."""
    gpus, nodes = int(layout.gpus), -(-int(layout.gpus) // int(layout.gpus_per_node))
    if gpus == 1:
        return device
    return f"{gpus} × {device}" + (f" in {nodes} nodes" if nodes > 1 else "")


def layout_words(layout: Layout, *, fixed: bool = True) -> str:
    """A layout in the field's words, without what is 1 or none.

    ``fixed``: with precision and kernels, which a search does not vary.
    """
    words = [f"{layout.engine}"]
    for name, value in (("tp", layout.tp), ("pp", layout.pp), ("dp", layout.dp)):
        words += [f"{name} {value}"] if value > 1 else []
    words += [f"interleave {layout.interleave}"] if layout.interleave > 1 else []
    words += [layout.schedule] if layout.pp > 1 else []
    words += [f"zero {layout.zero}{_shards(layout)}"] if layout.zero else []
    words += ["sequence parallel"] if layout.sequence_parallel else []
    words.append(f"batch {layout.batch_size}" + _times(int(layout.grad_accum)))
    words += [f"recompute {layout.recompute}"] if layout.recompute != "none" else []
    words += [f"offload {layout.offload}"] if layout.offload != "none" else []
    return ", ".join([*words, *((_precision(layout), layout.kernels) if fixed else ())])


_SCHEMES = {"masters": " with fp32 masters", "autocast": " by autocast", "pure": " throughout"}


def _precision(layout: Layout) -> str:
    """With the scheme of mixed precision: casts and bytes hang on it."""
    if layout.precision in ("fp32", "tf32"):
        return layout.precision
    return layout.precision + _SCHEMES[scheme_of(layout)]


def _shards(layout: Layout) -> str:
    return f" over {layout.shard_size}" if layout.shard_size else ""


def _times(accum: int) -> str:
    return f" × {accum}" if accum > 1 else ""


def time_table(found: Answer) -> Table:
    """The step's waterfall: each part with its share."""
    rows = [(WORDS[name], float(getattr(found.step, name))) for name in PARTS]
    table = _table("part", "ms", "%", "")
    before = 0.0
    for name, seconds in rows:
        if seconds <= 0.0:
            continue
        table.add_row(
            name, _ms(seconds), _percent(seconds, found.time), _bar(before, seconds, found.time)
        )
        before += seconds
    table.add_row("step", _ms(found.time), "100", "", style="bold")
    if float(found.step.overlapped) > 0.0:
        hidden = float(found.step.overlapped)
        table.add_row("hidden exchange", _ms(hidden), "", "beside the computation", style="dim")
    return table


def memory_table(found: Answer) -> Table:
    """Memory of the fullest GPU."""
    total, limit = float(found.memory.total), found.rates.memory_bytes
    table = _table("memory", "GiB", "%", "")
    before = 0.0
    for name, size in memory_dict(found.memory).items():
        if size:
            table.add_row(name, _gib(size), _percent(size, limit), _bar(before, size, limit))
            before += size
    verdict = "fits" if found.fits else "does not fit"
    table.add_row("all", _gib(total), _percent(total, limit), verdict, style="bold")
    table.add_row("a GPU has", _gib(limit), "", "", style="dim")
    return table


def upgrade_table(ranked: Sequence[Ranked]) -> Table:
    """Upgrades, best first."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("upgrade", no_wrap=True)
    for heading in ("tokens/s", "gain"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("", style="dim", overflow="fold")
    for one in ranked:
        rate = "" if one.rate is None else count(one.rate)
        gain = "" if one.gain is None else f"{one.gain * 100:+.1f} %"
        table.add_row(one.name, rate, gain, one.reason or one.says)
    return table


def _table(*headings: str) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column(headings[0], no_wrap=True)
    for heading in headings[1:3]:
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column(headings[3], no_wrap=True)
    return table


def _bar(before: float, value: float, whole: float) -> str:
    """A step of the waterfall: where it begins and how long it is, over the whole."""
    start = min(round(before / whole * _BAR), _BAR - 1)
    end = min(max(round((before + value) / whole * _BAR), start + 1), _BAR + 2)
    return " " * start + "█" * (end - start)


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.1f}" if seconds < 10.0 else f"{seconds * 1e3:,.0f}"


def _percent(part: float, whole: float) -> str:
    return f"{part / whole * 100:.1f}"


def _gib(size: float) -> str:
    return format_memory(size).partition(" ")[0] if size >= 1 << 30 else f"{size / (1 << 30):.2f}"


def count(number: float) -> str:
    """Three digits, and B for billions as the field counts tokens: ``12.3k``, ``140B``."""
    steps = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k"), (0.0, ""))
    step, letter = next(found for found in steps if float(f"{number:.3g}") >= found[0])
    return format_quantity(number / (step or 1.0), "") + letter
