"""The table of ``trainrig tune``: layouts in the order of what was measured, predictions beside.

Places come from `analysis.tuning`; nothing is ranked here.
"""

from __future__ import annotations

from collections.abc import Sequence

from trainrig.analysis.tuning import LayoutRank
from trainrig.report import document as doc
from trainrig.report.document import column, table, words
from trainrig.units import format_count, format_time, signed_share

_TONES: dict[str, doc.Tone] = {"DIFFERS": "bad", "FAIL": "bad", "NOT COMPARABLE": "warn"}


def tuning_document(
    ranking: Sequence[LayoutRank],
    left_out: Sequence[str] = (),
    refused: Sequence[tuple[str, str]] = (),
) -> doc.Document:
    """Return one line a layout; ``left_out``: names of those that were not trained.

    ``refused``: names of those that this machine cannot train, and why.
    """
    notes = []
    if any(standing.tied for standing in ranking):
        notes.append("=: cannot tell from the first of its place; more --rounds would decide more.")
    if ranking and all(_predicted(standing) is None for standing in ranking):
        hint = "trainrig qualify measures this machine's rates, and predictions rest on them."
        notes.append(f"Nothing was predicted: {hint}")
    if left_out:
        notes.append(f"not among the best by prediction, not trained: {', '.join(left_out)}")
    notes += [f"cannot be trained here: {name}: {reason}" for name, reason in refused]
    return doc.Document(
        title="Layouts by measured speed",
        blocks=(
            table(
                ranking,
                column("place", _place),
                words("layout", lambda standing: standing.result.name),
                column(
                    "token/s",
                    lambda standing: standing.result.throughput.tokens_per_s,
                    format_count,
                ),
                column("step", lambda standing: standing.result.timing.step_time_s, format_time),
                column("predicted", _predicted, format_time),
                column("off", lambda standing: standing.error, signed_share, optional=1),
                column("predicted place", lambda standing: standing.predicted_place, optional=2),
                words("result", _result),
                notes=notes,
            ),
        ),
    )


def _place(standing: LayoutRank) -> str | None:
    return None if standing.place is None else f"{standing.place}{'=' if standing.tied else ''}"


def _predicted(standing: LayoutRank) -> float | None:
    return standing.predicted.step_time_s if standing.predicted else None


def _result(standing: LayoutRank) -> doc.Cell:
    result, speedup = standing.result, standing.speedup
    if standing.place is None:
        tone = _TONES.get(result.row_verdict, "")
        return doc.Cell(f"{result.row_verdict}: {result.problem or 'no steps that count'}", tone)
    if speedup is None:
        return doc.Cell("fastest", "good") if standing.place == 1 else doc.Cell("slower")
    if speedup.ratio is None or speedup.low is None or speedup.high is None:
        return doc.Cell(f"cannot tell: {speedup.reason}")
    ends = f"{speedup.low:.2f} to {speedup.high:.2f}"
    return doc.Cell(f"cannot tell: {speedup.ratio:.2f} × ({ends})")
