"""What was foretold of experiments beside what was measured.

It is handed what a run stores: the series ``foretold``, written before each training, and the
summaries of what came of it.  A prediction that was made for another batch size than was trained
in the end is no prediction of it.  Apart is foretold over measured, less one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trainrig.units import format_memory, format_time, one_line

SERIES = "foretold"
TITLE = "Foretold before it was trained, 80 % interval, and how far off"
COLUMNS = ("experiment", "foretold", "interval", "measured", "apart", "memory, and measured")

Row = Mapping[str, Any]


def rows_of(summaries: Sequence[Row], told: Sequence[Row]) -> tuple[tuple[str, ...], ...]:
    """A row of texts for each experiment of which something was foretold; none of a stranger's."""
    try:
        return tuple(_rows(summaries, told))
    except (KeyError, TypeError, ValueError, AttributeError, ZeroDivisionError):
        return ()


def notes_of(summaries: Sequence[Row], told: Sequence[Row]) -> Iterator[str]:
    """Why nothing was foretold, each reason once, with the first experiment that it holds for."""
    names = [each.get("name") for each in summaries]
    reasons: dict[str, str] = {}
    for row in told:
        name, reason = row.get("name"), row.get("reason")
        if name in names and isinstance(reason, str):
            reasons.setdefault(one_line(reason), one_line(str(name)))
    for reason, name in reasons.items():
        yield f"{name}: not foretold: {reason.removeprefix('no target known: ')}"


def _rows(summaries: Sequence[Row], told: Sequence[Row]) -> Iterator[tuple[str, ...]]:
    latest = {(row["name"], row["batch_size"]): row for row in told}
    for each in summaries:
        row = latest.get((each["name"], each.get("batch_size")))
        if row is None or row["step_time_s"] is None:
            continue
        seconds, memory = float(row["step_time_s"]), float(row["peak_memory_bytes"])
        low, high = (float(end) for end in row["step_time_interval_s"])
        took, held = each["step_time_s"], each["peak_memory_bytes"]
        yield (
            one_line(each["name"]),
            format_time(seconds),
            f"{format_time(low)} to {format_time(high)}",
            format_time(took) if took else "-",
            f"{seconds / took - 1.0:+.0%}" if took else "-",
            f"{format_memory(memory)}, {format_memory(held) if held else '-'}",
        )
