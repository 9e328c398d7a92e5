"""What the report is handed of a run that was read."""

from __future__ import annotations

from pathlib import Path

from report_views import point
from trainrig.runner.view import judged_view, view_of
from trainrig.store import RunData


def run_of(*records: object) -> RunData:
    return RunData(
        name="run",
        path=Path("runs/run"),
        config={"verb": "qualify"},
        machine=None,
        records=records,  # type: ignore[arg-type]
        series={},
        verdict=None,
        problems=(),
        lost=None,
    )


def test_old_records_are_read_by_todays_names() -> None:
    old = point("layer", {"layer": "GPT-2 medium block", "batch": 4, "seq": 512}, 1e12)
    (record,) = view_of(run_of(old)).records
    assert record.case == {"layer": "GPT-2 medium block", "batch_size": 4, "seq_len": 512}


def test_a_run_without_a_verdict_gets_one_for_what_is_there() -> None:
    verdict = judged_view(run_of()).verdict
    assert verdict is not None
    assert str(verdict.outcome) == "INCOMPLETE"
    assert verdict.reason == "the run was cut off before its verdict"
