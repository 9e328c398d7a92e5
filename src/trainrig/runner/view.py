"""From a run that was read to what the report is handed."""

from __future__ import annotations

from trainrig.analysis.run_view import RunView
from trainrig.record import Record
from trainrig.store import RunData


def published_baselines() -> tuple[Record, ...]:
    """What others published, of the families that are measured here."""
    from trainrig.catalog.published import published_records

    return published_records()


def view_of(run: RunData) -> RunView:
    """The report's view of a run, with the published figures beside it."""
    return RunView(
        name=run.name,
        config=run.config,
        machine=run.machine,
        records=run.records,
        series=run.series,
        verdict=run.verdict,
        problems=run.problems,
        baselines=published_baselines(),
    )
