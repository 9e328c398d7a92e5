"""Speedups as a table: their ratios and intervals on one axis, and what each comes to.

Of the experiments of a run, and of two runs' trainings: `training_report`, `compare_report`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from trainrig.analysis.compare_training import STEPS, Speedup
from trainrig.report import document as doc
from trainrig.report.document import column, table, words
from trainrig.stats import Change

_TONES: dict[Change, doc.Tone] = {Change.BETTER: "good", Change.WORSE: "bad"}
_LEAST_AXIS = (0.8, 1.25)
_MOST_BEYOND = 1.6
"""The axis ends this factor beyond the outermost ratio: an interval that knows little would else
leave no room for those that know much."""
_TOO_WIDE = 50.0
"""An interval whose ends are this factor apart is not worth its numbers."""


def speedup_table(speedups: Sequence[Speedup], title: str) -> doc.Table:
    """Ratios with their intervals on one logarithmic axis: twice and half are as far from 1."""
    ratios = [speedup.ratio for speedup in speedups if speedup.ratio]
    lows = [speedup.low for speedup in speedups if speedup.low]
    highs = [speedup.high for speedup in speedups if speedup.high]
    low = max(min(lows, default=1.0), min(ratios, default=1.0) / _MOST_BEYOND)
    high = min(max(highs, default=1.0), max(ratios, default=1.0) * _MOST_BEYOND)
    low, high = min(low / 1.03, _LEAST_AXIS[0]), max(high * 1.03, _LEAST_AXIS[1])

    def place(ratio: float | None) -> float | None:
        if ratio is None:
            return None
        return min(1.0, math.log(max(ratio, low) / low) / math.log(high / low))

    def whisker(speedup: Speedup) -> doc.Cell:
        tone = _TONES.get(speedup.change, "")
        ends = place(speedup.low), place(speedup.ratio), place(speedup.high)
        return doc.Cell("", drawing=doc.Whisker(place(1.0) or 0.0, *ends, tone))

    def result(speedup: Speedup) -> doc.Cell:
        reason = f": {speedup.reason}" if speedup.reason else ""
        return doc.Cell(f"{speedup.change}{reason}", _TONES.get(speedup.change, ""))

    undecided = [
        speedup
        for speedup in speedups
        if speedup.ratio is not None and speedup.change is Change.CANNOT_TELL
    ]
    hint = "More rounds would decide more."
    if any(speedup.basis == STEPS for speedup in undecided):
        hint = "rounds = 3 in the file would decide more: fresh processes, interleaved."
    return table(
        speedups,
        words("experiment", lambda speedup: speedup.name),
        words("what differs", lambda speedup: "; ".join(speedup.differences) or "nothing"),
        column("ratio", ratio_text),
        column("interval", interval_text),
        column(f"{low:.2g} to {high:.2g}", whisker, kind="drawing", optional=1),
        words("result", result),
        title=title,
        notes=[hint] if undecided else [],
    )


def ratio_text(speedup: Speedup) -> str | None:
    """Return ``1.25 ×``; None where it has no ratio."""
    return None if speedup.ratio is None else f"{speedup.ratio:.2f} ×"


def interval_text(speedup: Speedup) -> str:
    """Return ``1.20 to 1.31``, the ends of its interval."""
    if speedup.low is None or speedup.high is None:
        return "-"
    if speedup.low <= 0.0 or speedup.high > _TOO_WIDE * speedup.low:
        return "too wide"
    return f"{speedup.low:.2f} to {speedup.high:.2f}"
