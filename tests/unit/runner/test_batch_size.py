"""Batch size ``auto``: by formula, by doubling, and what happens where it does not fit."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from in_process import launch_here
from trainrig.analysis.training_results import results
from trainrig.errors import DataError, UsageError
from trainrig.process.supervisor import Ended
from trainrig.record import Kind, Outcome, Status
from trainrig.runner import batch_size, train_records
from trainrig.runner import train as runner
from trainrig.runner.batch_size import by_doubling, guess, smaller
from trainrig.runner.progress import null_progress
from trainrig.runner.train_resume import done_in, experiments_of
from trainrig.runner.view import training_summary, view_of
from trainrig.store import read_run
from trainrig.train.config import Experiment
from trainrig.train.config_file import experiment_of, read_file
from trainrig.train.engines import Result
from trainrig.train.parity import Probe, is_reference, reference_of
from trainrig.workload import find
from trainrig.workload.memory import memory

MODEL = "gpt2:num_layers=1,hidden=32,num_heads=2,vocab=512,max_positions=32"


def experiment(**changes: Any) -> Experiment:
    keys = {"model": MODEL, "seq_len": 16, "steps": 6, "device": "cpu", "precision": "fp32"}
    return experiment_of(keys | {"batch_size": "auto"} | changes)


def test_auto_is_a_word_of_the_key(tmp_path: Path) -> None:
    assert experiment().auto_batch and not experiment(batch_size=3).auto_batch
    path = tmp_path / "x.toml"
    path.write_text('[sweep]\nbatch_size = ["auto", 4]\n')
    assert [(e.auto_batch, e.batch_size) for e in read_file(path, {})] == [(True, 1), (False, 4)]
    with pytest.raises(UsageError, match="tokens and batch_size auto"):
        experiment_of({"batch_size": "auto", "tokens": 4096})


def test_the_guess_fits_and_the_next_does_not() -> None:
    own = experiment(model="gpt2", seq_len=1024, device="cuda", precision="bf16")
    free = 24 * 2**30
    batch = guess(own, free)
    shape = find("gpt2")
    assert memory(shape, own.replace(batch_size=batch).predicted_layout).total <= free
    assert memory(shape, own.replace(batch_size=batch + 1).predicted_layout).shown > free


def test_a_reference_is_computed_in_parts_that_fit_its_device() -> None:
    """BERT-large, checkpointed, 66 x 4 samples: a reference keeps all, in three times a card's."""
    card = 24 * 2**30
    own = experiment(model="bert-large", seq_len=512, device="cuda", precision="bf16")
    own = own.replace(batch_size=66, auto_batch=False, grad_accum=4, recompute="full", nproc=2)
    whole = reference_of(own)
    shape = find("bert-large")
    assert memory(shape, own.predicted_layout).total < card
    assert memory(shape, whole.predicted_layout).total > card
    split = batch_size.split_to_fit(whole, card)
    assert memory(shape, split.predicted_layout).total < card
    assert (split.global_samples, split.nproc) == (own.global_samples, 1)
    assert is_reference(split, own)
    assert batch_size.split_to_fit(whole, 0.0) == whole


def test_a_model_that_fits_no_device_is_compared_with_fewer_layers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The layout that was trained and one process, both with two layers; the row says so."""
    probe = Probe(losses=(3.0,) * 5, grad_norms=(1.0,) * 5)
    asked: list[Experiment] = []

    def untimed(_run: Any, _outcome: Any, own: Experiment, _name: str) -> Probe:
        asked.append(own)
        return probe

    own = experiment(model="llama-7B", seq_len=512, device="cuda", nproc=8, zero=3)
    own = own.replace(auto_batch=False, precision="bf16")
    monkeypatch.setattr(runner.TrainRun, "_untimed", untimed)
    target = SimpleNamespace(memory_bytes=24 * 2**30)
    monkeypatch.setattr(runner.TrainRun, "_target", lambda *_: target)
    session = runner.TrainRun(
        run=SimpleNamespace(path=tmp_path),  # type: ignore[arg-type]
        targets=(),
        claims=(),
        snapshot=None,  # type: ignore[arg-type]
        watch=null_progress,
    )
    result = Result(probe=dataclasses.replace(probe, losses=(9.0,) * 5))
    outcome = train_records.Trained(
        experiment=own, rounds=[train_records.Launch(result=result, status=Status.OK)]
    )
    session._compare(outcome)
    assert [(e.model, e.nproc, e.zero) for e in asked] == [
        ("llama-7B:num_layers=2", 8, 3),
        ("llama-7B:num_layers=2", 1, 0),
    ]
    assert outcome.compared and outcome.not_comparable is None
    assert str(outcome.compared_with).startswith("llama-7B:num_layers=2: of the whole model, ")


def test_a_guess_is_bounded_and_never_nothing() -> None:
    assert guess(experiment(), 1e12) == batch_size.MOST["cpu"]
    assert guess(experiment(), 1.0) == 1


@pytest.mark.parametrize(
    "keys", [{"batch_size": 2**30, "nproc": 2}, {"batch_size": 1, "grad_accum": 2**30}]
)
def test_what_would_swap_the_host_is_not_started(
    data: str, tmp_path: Path, keys: dict[str, int], little_memory: list[int]
) -> None:
    outcomes = runner.train((experiment(data=data, **keys),), out=tmp_path)
    found = training_summary(outcomes)
    assert little_memory == [] and outcomes.verdict.outcome is Outcome.FAIL
    assert found["status"] == "oom" and "not started" in found["reason"]
    assert found["reason"].startswith("a step needs about ")


@pytest.mark.parametrize(("most", "found"), [(0, 1), (1, 1), (5, 4), (8, 8), (999, 16)])
def test_doubling_ends_at_what_fits_or_at_the_bound(most: int, found: int) -> None:
    tried: list[int] = []

    def fits(own: Experiment) -> bool:
        tried.append(own.batch_size)
        return own.batch_size <= most

    assert by_doubling(experiment(), fits) == found
    assert tried == [1, 2, 4, 8, 16][: len(tried)]


def test_half_is_next_until_there_is_none() -> None:
    assert [smaller(batch) for batch in (11, 5, 2, 1)] == [5, 2, 1, None]


@pytest.fixture(autouse=True)
def no_ceiling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "measure_ceiling", lambda *_: None)


@pytest.fixture
def little_memory(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> list[int]:
    """A machine on which no more than 4 samples fit, or ``param``; what was tried on it."""
    most = getattr(request, "param", 4)
    tried: list[int] = []

    def launch(command: Any, folder: Path, **how: Any) -> Ended:
        asked = json.loads((folder / "experiment.json").read_text())["experiment"]
        tried.append(asked["batch_size"])
        if asked["batch_size"] > most:
            return Ended(status=Status.OOM, reason="rank 0: out of memory")
        return launch_here(command, folder, **how)

    monkeypatch.setattr(runner, "launch", launch)
    return tried


def test_what_does_not_fit_is_a_record_and_half_of_it_is_trained(
    data: str, tmp_path: Path, little_memory: list[int]
) -> None:
    own = experiment(data=data, name="auto")
    outcomes = runner.train((own,), out=tmp_path)
    assert little_memory == [16, 8, 4, 4]  # the last one is the second process's
    found = training_summary(outcomes)
    assert outcomes.verdict.outcome is Outcome.MEASURED
    assert (found["batch_size"], found["batch_size_asked"]) == (4, "auto")
    refused = [f for f in found["findings"] if f["id"] == "batch-too-large"]
    assert len(refused) == 2 and "went on with 4" in refused[1]["evidence"]
    assert "recompute full" in refused[1]["fix"]
    records = read_run(outcomes.run).records
    times = [r for r in records if r.metric == "time" and r.kind is Kind.MEASURED]
    told = [
        r.case["batch_size"] for r in records if r.kind is Kind.PREDICTED and r.metric == "time"
    ]
    assert told == [16, 8, 4], "each size was foretold before it was tried"
    assert [(r.case["batch_size"], r.status) for r in times] == [
        (16, Status.OOM),
        (8, Status.OOM),
        (4, Status.OK),
    ]


@pytest.mark.parametrize("little_memory", [1], indirect=True)
def test_where_memory_is_unknown_sizes_are_doubled_from_one(
    data: str, tmp_path: Path, little_memory: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = runner.find_targets
    unknown = [dataclasses.replace(t, memory_bytes=0) for t in real(runner.inspect())]
    monkeypatch.setattr(runner, "find_targets", lambda _: unknown)
    outcomes = runner.train((experiment(data=data, name="auto"),), out=tmp_path)
    assert little_memory == [1, 2, 1, 1]
    assert training_summary(outcomes)["batch_size"] == 1
    assert outcomes.verdict.outcome is Outcome.MEASURED


# ---- rounds


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Trainings of six steps that are told, not trained; the folders in their order.

    A round that is called ``broken`` ends badly.
    """
    folders: list[str] = []

    def launch(command: Any, folder: Path, on_event: Any, **how: Any) -> Ended:
        folders.append(folder.name)
        row = {"event": "row", "loss": 5.0, "grad_norm": 1.0, "time": 0.1 * len(folders)}
        rows = [row | {"step": step} for step in range(6)]
        parity = {"event": "parity", "losses": [5.0] * 5, "grad_norms": [1.0] * 5}
        events = "".join(json.dumps(event) + "\n" for event in [*rows, parity])
        (folder / "events-0.jsonl").write_text(events)
        for told in rows:
            on_event(0, told)
        if folder.name.startswith("02-broken-round"):
            return Ended(status=Status.FAILED, reason="rank 0 was ended by SIGKILL")
        return Ended(status=Status.OK, duration=1.0)

    monkeypatch.setattr(runner, "launch", launch)
    monkeypatch.setattr(runner.noise, "judge", lambda _: None)
    return folders


def test_rounds_are_trained_in_turns_and_say_only_how_fast(
    data: str, tmp_path: Path, quick: list[str]
) -> None:
    own = experiment(data=data, batch_size=2, rounds=3)
    once = own.replace(rounds=1)
    asked = (own.replace(name="a"), own.replace(name="b"), once.replace(name="c"))
    outcomes = runner.train(asked, out=tmp_path)
    assert quick == [
        *("01-a", "02-b", "03-c"),
        *("01-a-round-2", "02-b-round-2"),
        *("01-a-round-3", "02-b-round-3"),
    ]
    requests = [
        json.loads((outcomes.run / "logs" / name / "experiment.json").read_text()) for name in quick
    ]
    assert [request["probe"] for request in requests] == [True] * 3 + [False] * 4
    run = read_run(outcomes.run)
    assert "experiments" not in run.series
    found = results(view_of(run))
    assert [each.name for each in found] == ["a", "b", "c"]
    assert [round(each.step_times_s[0], 9) for each in found[0].timing.rounds] == [0.1, 0.4, 0.6]
    measured = [r for r in run.records if r.kind is Kind.MEASURED]
    times = [r for r in measured if r.metric == "time" and r.case["experiment"] == "a"]
    assert [len(record.samples or ()) for record in times] == [3, 6, 9]
    assert [row["round"] for row in run.series["steps-a"]] == [1] * 6 + [2] * 6 + [3] * 6
    found = training_summary(outcomes)["comparisons"]
    assert [each["name"] for each in found] == ["b", "c"]


def test_a_round_that_fails_fails_its_experiment_and_no_other(
    data: str, tmp_path: Path, quick: list[str]
) -> None:
    own = experiment(data=data, batch_size=2, rounds=3)
    asked = (own.replace(name="whole"), own.replace(name="broken"))
    outcomes = runner.train(asked, out=tmp_path)
    assert quick[-1] == "01-whole-round-3" and "02-broken-round-3" not in quick
    assert outcomes.verdict.outcome is Outcome.FAIL
    assert "broken: round 2: rank 0 was ended by SIGKILL" in outcomes.verdict.reason
    whole, broken = training_summary(outcomes)["experiments"]
    assert (len(whole["rounds"]), len(broken["rounds"])) == (3, 1)


# ---- going on with a run


def test_a_run_is_resumed_with_what_is_not_done(
    data: str, tmp_path: Path, quick: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = experiment(data=data, batch_size=2, rounds=2)
    asked = tuple(own.replace(name=name, seed=seed) for seed, name in enumerate("abc"))
    told = runner.launch

    def stopped(command: Any, folder: Path, **how: Any) -> Ended:
        if folder.name == "02-b-round-2":
            raise KeyboardInterrupt
        return told(command, folder, **how)

    monkeypatch.setattr(runner, "launch", stopped)
    first = runner.train(asked, out=tmp_path)
    assert first.verdict.outcome is Outcome.INCOMPLETE and "--resume" in first.verdict.reason
    monkeypatch.setattr(runner, "launch", told)
    del quick[:]
    again = experiments_of(first.run, {})
    assert again == tuple(runner_ready(first.run))
    second = runner.train(again, out=tmp_path, resume=first.run)
    assert second.run == first.run and quick == ["02-b", "03-c", "02-b-round-2", "03-c-round-2"]
    found = training_summary(second)["experiments"]
    assert [(each["name"], len(each["rounds"])) for each in found] == [("a", 2), ("b", 2), ("c", 2)]
    assert [len(each["losses"]) for each in found] == [6, 6, 6]
    with pytest.raises(UsageError, match=r"all 3 experiments of .* are done"):
        experiments_of(first.run, {})
    with pytest.raises(UsageError, match="its own experiments"):
        experiments_of(first.run, {"seed": 3})


def runner_ready(run: Path) -> list[Experiment]:
    """The experiments as the run has them: with data and device filled in."""
    return [Experiment.of(**each) for each in read_run(run).config["experiments"]]


def test_a_row_that_failed_is_not_done(data: str, tmp_path: Path, quick: list[str]) -> None:
    """What its devices were is not told again: kept as it is, its fault would be forgotten."""
    own = experiment(data=data, batch_size=2)
    asked = (own.replace(name="a"), own.replace(name="b"))
    run = read_run(runner.train(asked, out=tmp_path).run)
    assert set(done_in(run, asked)) == {"a", "b"}
    records = tuple(
        record.replace(conditions={**record.conditions, "row_verdict": "FAIL"})
        if record.case.get("experiment") == "b" and "row_verdict" in record.conditions
        else record
        for record in run.records
    )
    assert set(done_in(dataclasses.replace(run, records=records), asked)) == {"a"}


def test_another_text_is_no_resume(data: str, tmp_path: Path, quick: list[str]) -> None:
    own = experiment(data=data, batch_size=2).replace(name="a")
    run = runner.train((own, own.replace(name="broken", rounds=2)), out=tmp_path).run
    place = Path(data) / "manifest.json"
    text = place.read_text()
    try:
        known = json.loads(text)
        place.write_text(json.dumps(known | {"corpus_sha256": "0" * 64}))
        with pytest.raises(DataError, match="another text"):
            experiments_of(run, {})
    finally:
        place.write_text(text)
