"""The healthy burn in which limits are broken, and what a wall clock does to it."""

from __future__ import annotations

import dataclasses

from trainrig.analysis.burn_facts import TELEMETRY, WORK
from trainrig.analysis.judge_burn import judge_burn
from trainrig.record import Outcome
from trainrig.selftest.watched_faults import watched_view


def test_a_healthy_burn_passes_and_says_what_nobody_judged() -> None:
    verdict = judge_burn(watched_view())
    assert (verdict.outcome, verdict.findings) == (Outcome.PASS, ())
    assert "not judged" not in verdict.reason
    without = dataclasses.replace(watched_view(), machine=None)
    view = judge_burn(without)
    assert view.outcome is Outcome.PASS


def test_rows_of_before_there_was_a_monotonic_clock_are_ordered_as_they_came() -> None:
    """A wall clock that is set back an hour loses nothing."""
    view = watched_view()

    def stepped(rows: tuple[dict[str, object], ...]) -> tuple[dict[str, object], ...]:
        found = []
        for row in rows:
            wall = float(str(row["t"]))
            left = {name: row[name] for name in row if name != "m"}
            found.append({**left, "t": wall - 3600.0 if wall > 1.8e9 + 100 else wall})
        return tuple(found)

    series = {
        name: stepped(rows) if name in (TELEMETRY, WORK) else rows  # type: ignore[arg-type]
        for name, rows in view.series.items()
    }
    verdict = judge_burn(dataclasses.replace(view, series=series))
    assert verdict.outcome is Outcome.PASS, verdict.reason
