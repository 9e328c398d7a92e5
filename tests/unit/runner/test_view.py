"""What the report is handed of a run that was read."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from report_views import point
from trainrig.record import Outcome, RunView, Verdict
from trainrig.runner.view import RunOutcome, judged_view, view_of


def run_of(*records: object) -> RunView:
    return RunView(
        name="run",
        path=Path("runs/run"),
        config={"verb": "qualify"},
        records=records,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    ("outcome", "code", "strict"),
    [
        (Outcome.PASS, 0, 0),
        (Outcome.MEASURED, 0, 3),
        (Outcome.FAIL, 1, 1),
        (Outcome.INCOMPLETE, 3, 3),
    ],
)
def test_an_outcome_ends_in_its_exit_code(outcome: Outcome, code: int, strict: int) -> None:
    verdict = Verdict(outcome=outcome, reason="why")
    done = RunOutcome(run=Path("runs/run"), verdict=verdict, interrupted=False, num_records=1)
    assert (done.exit_code(), done.exit_code(strict=True)) == (code, strict)
    assert dataclasses.replace(done, interrupted=True).exit_code() == 130


def test_old_records_are_read_by_todays_names() -> None:
    old = point("layer", {"layer": "GPT-2 medium block", "batch": 4, "seq": 512}, 1e12)
    (record,) = view_of(run_of(old)).records
    assert record.case == {"layer": "GPT-2 medium block", "batch_size": 4, "seq_len": 512}


def test_a_run_without_a_verdict_gets_one_for_what_is_there() -> None:
    verdict = judged_view(run_of()).verdict
    assert verdict is not None
    assert str(verdict.outcome) == "INCOMPLETE"
    assert verdict.reason == "the run was cut off before its verdict"
