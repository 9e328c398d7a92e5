"""What the report is handed of a run that was read."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from report_views import point
from trainrig.analysis.answer import RunAnswer, Word
from trainrig.record import Outcome, RunView, Verdict
from trainrig.runner.view import RunOutcome, judged_view, view_of
from trainrig.store import create_run, read_run


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
    done = RunOutcome(
        run=Path("runs/run"),
        verdict=verdict,
        interrupted=False,
        num_records=1,
        answer=RunAnswer(word=Word.NORMAL, reason="why"),
    )
    assert (done.exit_code(), done.exit_code(strict=True)) == (code, strict)
    assert dataclasses.replace(done, interrupted=True).exit_code() == 130


def test_what_a_run_prints_as_json_is_plain_json() -> None:
    """A caller in Python and one that reads the text get the same."""
    done = RunOutcome(
        run=Path("runs/run"),
        verdict=Verdict(outcome=Outcome.PASS, reason="why"),
        interrupted=False,
        num_records=1,
        answer=RunAnswer(word=Word.NORMAL, reason="why", compared_with=("an earlier run",)),
    )
    assert json.loads(json.dumps(done.to_dict())) == done.to_dict()


def test_old_records_are_read_by_todays_names() -> None:
    old = point("layer", {"layer": "GPT-2 medium block", "batch": 4, "seq": 512}, 1e12)
    (record,) = view_of(run_of(old)).records
    assert record.case == {"layer": "GPT-2 medium block", "batch_size": 4, "seq_len": 512}


def test_a_run_without_a_verdict_gets_one_for_what_is_there() -> None:
    verdict = judged_view(run_of()).verdict
    assert verdict is not None
    assert str(verdict.outcome) == "INCOMPLETE"
    assert verdict.reason == "the run was cut off before its verdict"


def test_a_run_that_passed_and_lost_records_since_is_incomplete(tmp_path: Path) -> None:
    """Its verdict.json still says PASS; the report asks the records."""
    with create_run(tmp_path, "qualify", {}) as run:
        first, second = point("matmul", {"m": 1}, 1e12), point("matmul", {"m": 2}, 1e12)
        run.append(first)
        run.append(second)
        run.write_verdict(Verdict(outcome=Outcome.PASS, reason="all of it ran"))
    records = run.path / "records.jsonl"
    records.write_bytes(records.read_bytes().splitlines(keepends=True)[0])
    stored = read_run(run.path)
    assert stored.verdict is not None and stored.verdict.outcome is Outcome.PASS
    found = judged_view(stored).verdict
    assert found is not None and found.outcome is Outcome.INCOMPLETE
    assert "1 of its 2 records" in found.reason
