"""A search's result as tables for the terminal: the best layouts, the front, and why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from trainrig.predict.search import Candidate, Found
from trainrig.predict.search.space import Space
from trainrig.report.prediction_report import WORDS, count, layout_words
from trainrig.units import format_memory, format_share, format_time

if TYPE_CHECKING:
    from rich.table import Table

_MOST_FRONT = 10
TIGHT = 0.05
"""Of a GPU's memory: less room than a prediction of it is sure of."""


def headline(space: Space, found: Found, place: str) -> str:
    """What was searched, and how much of it."""
    return (
        f"{space.shape.name} on {place}, {space.global_batch} samples a step: "
        f"{found.considered:,} layouts in {format_time(found.seconds)}, {found.fitting:,} fit"
    )


def best_table(space: Space, found: Found, limit: float) -> Table:
    """The fastest layouts that fit; ``limit``: B of a GPU."""
    title = "fastest" if found.best[0].fits else "smallest"
    return _table(space, found.best, title, limit)


def front_table(space: Space, found: Found, limit: float) -> Table:
    """Less memory, and what it costs in time; evenly thinned where there are many."""
    front = found.front
    step = max(1, -(-len(front) // _MOST_FRONT))
    chosen = [*front[::step], *([front[-1]] if (len(front) - 1) % step else [])]
    return _table(space, chosen, f"less memory ({len(front)} on the front)", limit)


def tight_line(found: Found, limit: float) -> str | None:
    """What ``tight`` means, where one of the best is."""
    if not any(_is_tight(one, limit) for one in found.best):
        return None
    return f"tight: within {format_share(TIGHT)} of the {format_memory(limit)} that a GPU has"


def _is_tight(one: Candidate, limit: float) -> bool:
    return one.fits and one.memory > (1.0 - TIGHT) * limit


def _table(space: Space, candidates: Sequence[Candidate], title: str, limit: float) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for heading in ("s", "GiB", "tokens/s"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column(title)
    tokens = space.global_batch * space.base.seq_len
    for one in candidates:
        table.add_row(
            f"{one.time:.3g}" if one.time < 100 else f"{one.time:.0f}",
            format_memory(one.memory).partition(" ")[0],
            count(tokens / one.time),
            layout_words(one.layout, fixed=False) + (", tight" if _is_tight(one, limit) else ""),
        )
    return table


def gap_line(first: Candidate, second: Candidate) -> str:
    """Why the first is faster than the second: parts whose difference sums to the gap."""
    gap = second.time - first.time
    parts = sorted(first.gap(second).items(), key=lambda item: -abs(item[1]))
    said = [f"{WORDS[name]} {_signed(part)}" for name, part in parts if abs(part) >= gap * 1e-3 > 0]
    if not said:
        return "the next best takes as long"
    return f"the next best takes {format_time(gap)} more: {', '.join(said)}"


def _signed(seconds: float) -> str:
    return ("+" if seconds >= 0 else "−") + format_time(abs(seconds))
