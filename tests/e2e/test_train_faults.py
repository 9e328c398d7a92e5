"""What can go wrong around trainings of a run: nothing is lost, and the others are trained.

No rank is started: `launch` is replaced by one that tells what ranks would have told.
"""

from __future__ import annotations

import errno
import json
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainrig.errors import DataError, StoreError, UsageError
from trainrig.process.events import read_events
from trainrig.process.supervisor import Ended, OnEvent
from trainrig.record import Kind, Outcome, Status
from trainrig.runner import train as runner
from trainrig.runner import train as session
from trainrig.runner.train_resume import experiments_of
from trainrig.runner.view import training_summary
from trainrig.store import read_run
from trainrig.train.config import Experiment
from trainrig.train.config_file import experiment_of
from trainrig.train.driver_files import check_room

MODEL = "gpt2:num_layers=1,hidden=32,num_heads=2,vocab=512,max_positions=32"
PARTS = ("data_wait", "forward", "backward", "optimizer", "other")
Act = Callable[[Path], None]


@pytest.fixture(scope="module")
def data(prepared_text: Path) -> Path:
    """A small prepared corpus."""
    return prepared_text


def experiment(data: Path, **changes: Any) -> Experiment:
    keys = {"model": MODEL, "seq_len": 16, "steps": 4, "device": "cpu", "precision": "fp32"}
    return experiment_of(keys | {"data": str(data), "batch_size": 2} | changes)


def tell(folder: Path) -> None:
    """What rank 0 of a training that went well tells."""
    row = {"loss": 6.0, "grad_norm": 1.0, "time": 0.6} | dict.fromkeys(PARTS, 0.1)
    events = [{"event": "row", "at": 1.0, "step": step, **row} for step in range(4)]
    events.append({"event": "parity", "losses": [6.0] * 5, "grad_norms": [1.0] * 5})
    text = "".join(json.dumps(event) + "\n" for event in events)
    (folder / "events-0.jsonl").write_text(text)


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> dict[str, Act]:
    """What happens in the launch of a folder's name instead of a training that goes well."""
    acts: dict[str, Act] = {}

    def launch(_command: Any, folder: Path, on_event: OnEvent, **_: Any) -> Ended:
        acts.get(folder.name, tell)(folder)
        for _, event in read_events(folder, 0):
            on_event(0, event)
        return Ended(status=Status.OK)

    monkeypatch.setattr(session, "launch", launch)
    monkeypatch.setattr(session, "measure_ceiling", lambda *_: None)
    return acts


def interrupt(_: Path) -> None:
    signal.raise_signal(signal.SIGINT)


def test_an_interrupted_comparison_costs_no_training(
    data: Path, tmp_path: Path, ranks: dict[str, Act]
) -> None:
    ranks["reference-1"] = interrupt
    own = experiment(data, name="two", nproc=2)
    outcomes = runner.train((own,), out=tmp_path)
    assert outcomes.interrupted and outcomes.verdict.outcome is Outcome.INCOMPLETE
    assert f"trainrig train --resume {outcomes.run} goes on" in outcomes.verdict.reason
    found = training_summary(outcomes)
    assert (found["status"], found["reason"]) == ("ok", "interrupted")
    assert found["losses"] == [6.0] * 4 and not found["parity"]["compared"]
    assert found["row_verdict"] == "not compared"  # and nothing says that it is as the reference
    measured = [r for r in read_run(outcomes.run).records if r.kind is Kind.MEASURED]
    times = [r for r in measured if r.metric == "time"]
    assert [(r.status, r.value) for r in times] == [(Status.OK, pytest.approx(0.6))]
    (again,) = experiments_of(outcomes.run, {})  # it is compared when the run is resumed
    assert again.name == "two"


def test_an_interrupted_training_is_one_that_was_not_done(
    data: Path, tmp_path: Path, ranks: dict[str, Act]
) -> None:
    def broken_off(folder: Path) -> None:
        (folder / "weights.pt").write_bytes(b"much")
        interrupt(folder)

    ranks["01-two"] = broken_off
    outcomes = runner.train((experiment(data, name="two", nproc=2),), out=tmp_path)
    assert training_summary(outcomes)["status"] == "skipped"
    assert not list(outcomes.run.rglob("weights.pt"))


def test_what_one_training_lacks_is_its_own_fault(
    data: Path, tmp_path: Path, ranks: dict[str, Act]
) -> None:
    """Another program takes MASTER_PORT between two experiments."""

    def taken(_: Path) -> None:
        raise UsageError("port 29500 is not available: Address already in use")

    ranks["01-first"] = taken
    asked = [experiment(data, name=name, nproc=2) for name in ("first", "second")]
    outcomes = runner.train(asked, out=tmp_path)
    first, second = training_summary(outcomes)["experiments"]
    assert (first["status"], first["row_verdict"]) == ("failed", "FAIL")
    assert "port 29500" in first["reason"] and second["status"] == "ok"
    assert (outcomes.run / "report.html").exists()


def test_a_loss_that_is_no_number_is_a_fault_and_the_steps_before_stay(
    data: Path, tmp_path: Path, ranks: dict[str, Act]
) -> None:
    """Trainer trains on, and tells NaN."""

    def lost(folder: Path) -> None:
        tell(folder)
        path = folder / "events-0.jsonl"
        first, second, *rest = path.read_text().splitlines()
        second = second.replace('"loss": 6.0', '"loss": NaN').replace("1.0", "Infinity")
        path.write_text("\n".join([first, second, *rest, ""]))

    ranks["01-one"] = lost
    outcomes = runner.train((experiment(data, name="one"),), out=tmp_path)
    found = training_summary(outcomes)
    assert (found["status"], found["losses"]) == ("failed", [6.0])
    assert found["reason"] == "the loss is no number at step 1"
    assert "a lower lr" in found["findings"][0]["fix"]
    json.dumps(found, allow_nan=False)


def test_data_that_go_while_a_run_trains_end_no_run(
    data: Path, tmp_path: Path, ranks: dict[str, Act]
) -> None:
    folder = Path(shutil.copytree(data, tmp_path / "data"))

    def gone(where: Path) -> None:
        shutil.rmtree(folder)
        tell(where)

    ranks["01-one"] = gone
    outcomes = runner.train((experiment(folder, name="one"),), out=tmp_path / "runs")
    assert outcomes.verdict.outcome is Outcome.MEASURED


def test_a_full_disk_is_told_as_one(data: Path, tmp_path: Path, ranks: dict[str, Act]) -> None:
    def full(_: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "rank-0.log")

    ranks["01-one"] = full
    with pytest.raises(StoreError, match="the disk is full"):
        runner.train((experiment(data, name="one"),), out=tmp_path)


def test_weights_that_do_not_fit_on_the_disk_are_told_before_they_fill_it(tmp_path: Path) -> None:
    check_room(tmp_path, 1)
    with pytest.raises(SystemExit, match=r"the disk is full: the first weights take 8.0 EiB"):
        check_room(tmp_path, 2**63)


def truncated(folder: Path) -> None:
    (folder / "train.bin").write_bytes(b"")


def other_tokens(folder: Path) -> None:
    size = (folder / "train.bin").stat().st_size
    (folder / "train.bin").write_bytes(b"\xff" * size)


@pytest.mark.parametrize(
    ("damage", "keys", "words"),
    [
        (truncated, {}, "train.bin"),
        (other_tokens, {}, "train.bin does not match its manifest"),
        (None, {"model": MODEL.replace("vocab=512", "vocab=300")}, "beyond a vocabulary of 300"),
        (None, {"model": "gpt2", "seq_len": 1024, "batch_size": 1}, None),
        (None, {"model": "llama:num_layers=1,hidden=8,vocab=512", "seq_len": 99999}, "too few"),
    ],
)
def test_text_that_does_not_fit_is_refused_before_there_is_a_run(
    data: Path,
    tmp_path: Path,
    ranks: dict[str, Act],
    damage: Act | None,
    keys: dict[str, Any],
    words: str | None,
) -> None:
    folder = Path(shutil.copytree(data, tmp_path / "data"))
    if damage is not None:
        damage(folder)
    own = experiment(folder, **keys)
    if words is None:  # what fits is trained
        assert runner.train((own,), out=tmp_path / "runs").num_records
        return
    with pytest.raises((DataError, UsageError), match=words):
        runner.train((own,), out=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()
