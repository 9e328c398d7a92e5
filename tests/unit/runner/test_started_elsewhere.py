"""What torchrun's ranks reported, read as a run by the verbs that read runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainrig.analysis.training_results import results
from trainrig.errors import DataError, UsageError
from trainrig.process.events import Events
from trainrig.record import Kind, Outcome, Status, to_json
from trainrig.runner import train_resume
from trainrig.runner.launch_scripts import write_scripts
from trainrig.runner.progress import null_progress
from trainrig.runner.view import judged_view, view_of
from trainrig.store import read_run
from trainrig.train.config_file import experiment_of

MODEL = "gpt2:num_layers=1,hidden=32,num_heads=2,vocab=512,max_positions=32"
STEPS = 8


Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture
def folder(prepared_text: Path, tmp_path: Path) -> Path:
    keys = {"model": MODEL, "data": str(prepared_text), "seq_len": 16, "nproc": 2, "device": "cpu"}
    own = experiment_of(keys | {"name": "two ranks", "steps": STEPS})
    (found,) = write_scripts((own,), tmp_path / "w", null_progress, runs=tmp_path / "runs")
    return found


def trained(folder: Path, *last: tuple[str, dict[str, Any]], steps: int = STEPS) -> None:
    """Events of two ranks, each ended by the events in ``last``."""
    for rank in range(2):
        events = Events(folder, rank)
        events.emit("start", host=f"node{rank}", pid=7, ranks=2, clock=0.0, before=None)
        for step in range(steps):
            row = {"step": step, "loss": 6.0 - 0.1 * step, "grad_norm": 1.0, "lr": 1e-3}
            parts = {"data_wait": 0.0, "forward": 0.03, "backward": 0.06, "optimizer": 0.01}
            events.emit("row", tokens=256, time=0.1, other=0.0, **row, **parts)
        for name, content in last:
            events.emit(name, **content)


DONE = ("done", {})


def test_the_folder_is_a_run_from_the_beginning(folder: Path) -> None:
    run = read_run(folder)
    assert run.config["verb"] == "train" and run.path == folder
    assert {record.kind for record in run.records} == {Kind.PREDICTED}
    view = judged_view(run)
    assert view.verdict is not None and view.verdict.outcome is Outcome.INCOMPLETE
    assert view.verdict.reason == "no step was trained yet"


def test_what_ranks_reported_are_its_records_and_series(folder: Path) -> None:
    trained(folder, ("memory", {"peak": 1e6, "devices": []}), ("heldout", HELDOUT), DONE)
    view = view_of(read_run(folder))
    (result,) = results(view)
    assert result.name == "two ranks" and result.status == "ok"
    assert result.throughput.tokens_per_s == pytest.approx(2560.0)
    assert len(view.series["steps-two-ranks"]) == STEPS
    by_metric = {r.metric: r for r in view.records if r.kind is Kind.MEASURED}
    assert by_metric["train_loss"].value == pytest.approx(5.3)
    assert by_metric["heldout_loss"].value == 5.5
    assert [r.id for r in view.records] == [r.id for r in view_of(read_run(folder)).records]
    verdict = judged_view(read_run(folder)).verdict
    assert verdict is not None and verdict.reason == "two ranks: compared with nothing"


HELDOUT = {"step": STEPS, "loss": 5.5}


@pytest.mark.parametrize(
    ("last", "words"),
    [
        ((), "at step 8 of 8: it is still trained, or its ranks were lost"),
        ((("stopped", {"step": 8, "signal": "SIGTERM"}), DONE), "stopped by SIGTERM at step 8"),
        ((("failed", {"reason": "disk full", "kind": "error"}),), "rank 0: disk full"),
    ],
)
def test_why_it_is_not_all_is_said(folder: Path, last: Any, words: str, trainrig: Cli) -> None:
    trained(folder, *last)
    view = judged_view(read_run(folder))
    assert view.verdict is not None and words in view.verdict.reason
    code, out, _ = trainrig("report", str(folder))
    assert code == 0 and "two ranks" in out


def test_it_is_compared_and_in_the_ledger(folder: Path, tmp_path: Path, trainrig: Cli) -> None:
    trained(folder, DONE)
    other = tmp_path / "other"
    other.mkdir()
    for file in folder.iterdir():
        if file.is_file():
            text = file.read_text(errors="replace")
            name = read_run(folder).config["name"]
            (other / file.name).write_text(text.replace(name, f"{name}-again"))
    code, out, err = trainrig("compare", str(folder), str(other), "--json")
    assert code in (0, 3), err
    assert "two ranks" in out
    (predicted,) = read_run(folder).records
    known = predicted.replace(value=0.2, status=Status.OK, reason=None)
    (folder / "records.jsonl").write_text(to_json(known) + "\n")
    machine = {"cpu": {"model": known.device}}
    (folder / "machine.json").write_text(json.dumps(machine))  # of its first rank
    code, out, err = trainrig("ledger", str(folder.parent), "--json")
    assert code == 0, err
    assert json.loads(out)["predictions"] == 1


def test_its_own_starter_goes_on_with_it(folder: Path) -> None:
    with pytest.raises(UsageError, match="trained by torchrun or Slurm") as caught:
        train_resume.experiments_of(folder, {})
    assert str(folder / "node.sh") in (caught.value.hint or "")


def test_a_request_that_is_damaged_is_one_line(folder: Path) -> None:
    (folder / "experiment.json").write_text("{")
    with pytest.raises(DataError, match="cannot be read"):
        view_of(read_run(folder))
