"""`trainrig train` from the command line's request to the run on the disk, with the real worker."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from trainrig.errors import DataError, UnavailableError, UsageError
from trainrig.machine.energy import Meter
from trainrig.measure.worker_main import Parent, run_case
from trainrig.process.worker import OnEvent, Reply, Request, parse_reply
from trainrig.record import Outcome, Status
from trainrig.runner import energy, train_session
from trainrig.runner import train as runner
from trainrig.runner.progress import Progress
from trainrig.runner.session import exit_code
from trainrig.store import read_run
from trainrig.train.config import Experiment, check, from_dict
from trainrig.train.native import checkpoint
from trainrig.train.native.loop import Engine
from trainrig.train.serve import train_case

ROOT = Path(__file__).resolve().parents[2]
MODEL = "gpt2:num_layers=1,hidden=32,num_heads=2,vocab=512,max_positions=32"


@pytest.fixture(scope="module")
def data(prepared_text: Path) -> Path:
    """A small prepared corpus."""
    return prepared_text


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers find the package and use one thread; no ceiling is measured but where asked for."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(train_session.Session, "_measure_ceiling", lambda *_: None)


class InProcess:
    """The real training behind the real request and reply, without a process of its own."""

    def __enter__(self) -> InProcess:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def wait_ready(self) -> None:
        pass

    def run(self, request: Request, *, on_event: OnEvent) -> Reply:
        line = request.to_line(1)
        parent = Parent(emit=lambda event, **content: on_event({"event": event, **content}))
        reply = run_case(json.loads(line), "cpu", parent, train_case)
        return parse_reply(json.dumps(reply).encode(), 1)


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(train_session.Session, "_worker", lambda *_: InProcess())
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def experiment(folder: Path, **changes: Any) -> Experiment:
    base = Experiment(
        model=MODEL,
        data=str(folder),
        batch_size=4,
        seq_len=16,
        steps=6,
        precision="fp32",
        heldout_batches=1,
    )
    return base.replace(**changes)


def run(asked: Experiment, tmp_path: Path, **how: Any) -> tuple[Any, dict[str, Any]]:
    result = runner.train(asked, device="cpu", out=tmp_path / "runs", **how)
    return result, runner.summary(result)


def fifty_watts() -> Meter:
    """A device that takes as much all the time."""
    return Meter(device="package-0", source="RAPL", read=lambda: 50.0 * time.monotonic())


def test_a_training_becomes_a_run(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(energy, "host_meters", lambda: (fifty_watts(),))
    seen: list[Progress] = []
    result, summary = run(experiment(data), tmp_path, watch=seen.append)
    assert result.verdict.outcome is Outcome.PASS, result.verdict
    assert len(summary["losses"]) == len(summary["grad_norms"]) == 6
    assert all(math.isfinite(loss) for loss in summary["losses"])
    assert summary["step_time_s"] > 0
    assert summary["samples_per_s"] == pytest.approx(4 / summary["step_time_s"])
    assert summary["tokens_per_s"] == pytest.approx(64 / summary["step_time_s"])
    assert summary["backend"] == "native"
    assert set(summary["breakdown"]) == {"data_wait", "forward", "backward", "optimizer", "other"}
    assert summary["peak_memory_bytes"] > 0
    assert summary["mean_power_w"] == pytest.approx(50.0, rel=1e-3)
    tokens = summary["energy_j"] / summary["energy_per_token_j"]
    assert tokens == pytest.approx(3 * 64)  # three of the six steps count
    assert summary["energy_source"] == "RAPL: package-0" and summary["devices"][0]["cores"]
    assert 0 < summary["heldout_loss"] < 10
    assert summary["layout_asked"].items() <= summary["layout_found"].items()
    assert summary["layout_found"]["wrapped"] == "Model"
    assert json.loads(json.dumps(summary)) == summary
    assert any("step 6 of 6" in event.text for event in seen)
    found = read_run(result.run)
    assert from_dict(found.config["experiment"]) == experiment(data)
    assert (result.run / "report.html").exists()
    rows = found.series["train"]
    assert [row["step"] for row in rows] == list(range(6))
    for row in rows:
        parts = sum(row[name] for name in summary["breakdown"])
        assert parts == pytest.approx(row["time"])
    attempts = [record for record in found.records if record.attempt is not None]
    assert [record.attempt for record in attempts] == [1, 2]
    # Two processes train the first steps alike.
    assert attempts[0].conditions["first_loss"] == attempts[1].conditions["first_loss"]
    predicted = [r for r in found.records if r.kind == "predicted" and r.benchmark == "step"]
    measured = [r for r in found.records if r.kind == "measured" and r.benchmark == "step"]
    assert predicted and found.records.index(predicted[-1]) < found.records.index(measured[0])


@pytest.mark.usefixtures("in_process")
def test_a_layout_that_is_another_fails(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was asked for is changed behind the training's back: the objects say what ran."""
    real = train_session.experiment_dict
    other = {"precision": "bf16"}
    monkeypatch.setattr(train_session, "experiment_dict", lambda own: real(own) | other)
    result, summary = run(experiment(data), tmp_path)
    assert result.verdict.outcome is Outcome.FAIL
    assert "precision: asked fp32, found bf16 (Model)" in result.verdict.reason
    assert summary["layout_found"]["precision"] == "bf16"


@pytest.mark.usefixtures("in_process")
def test_a_resumed_run_goes_on_where_it_was(data: Path, tmp_path: Path) -> None:
    _, whole = run(experiment(data, steps=8), tmp_path)
    first, _ = run(experiment(data, steps=8, checkpoint_every=4), tmp_path)
    path = first.run
    # As after a crash behind the checkpoint of step 4.
    rows = (path / "series" / "train.jsonl").read_text().splitlines(keepends=True)
    (path / "series" / "train.jsonl").write_text("".join(rows[:5]))
    again = experiment(data, steps=8, checkpoint_every=4)
    with Engine(again, check(again)) as engine:
        engine.run(lambda _: None, lambda step: step >= 4)
        checkpoint.save(engine, path / train_session.CHECKPOINT)
    asked = runner.experiment_for({}, path)
    assert asked == again
    result, summary = run(asked, tmp_path, resume=path)
    assert result.run == path
    assert summary["losses"] == whole["losses"]
    with pytest.raises(UsageError, match="8 steps"):
        runner.experiment_for({}, path)
    assert runner.experiment_for({"steps": 9}, path).steps == 9
    with pytest.raises(UsageError, match="its own experiment"):
        runner.experiment_for({"batch_size": 2}, path)


@pytest.mark.usefixtures("in_process")
def test_a_halved_batch_is_resumed_with_what_fitted(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = train_session.step.memory
    monkeypatch.setattr(
        train_session.step, "memory", lambda case: real(case) if case["batch_size"] < 3 else 1 << 50
    )
    first, _ = run(experiment(data, batch_size=4), tmp_path)
    asked = runner.experiment_for({"steps": 8}, first.run)
    assert asked.batch_size == 2
    _, summary = run(asked, tmp_path, resume=first.run)
    assert len(summary["losses"]) == 8
    assert summary["case"]["batch_size"] == 2


@pytest.mark.usefixtures("in_process")
def test_another_text_is_no_place_to_resume(data: Path, tmp_path: Path) -> None:
    import shutil

    copy = shutil.copytree(data, tmp_path / "copy")
    first, _ = run(experiment(copy), tmp_path)
    manifest = json.loads((copy / "manifest.json").read_text())
    (copy / "manifest.json").write_text(json.dumps(manifest | {"corpus_sha256": "0" * 64}))
    with pytest.raises(DataError, match="another text than"):
        runner.experiment_for({"steps": 8}, first.run)


@pytest.mark.usefixtures("in_process")
def test_a_diverging_run_fails_with_one_line_and_keeps_its_steps(
    data: Path, tmp_path: Path
) -> None:
    asked = experiment(data, lr=1e30, clip=0.0, warmup=0, weight_decay=0.0)
    result, summary = run(asked, tmp_path)
    assert result.verdict.outcome is Outcome.FAIL
    assert exit_code(result.verdict.outcome, interrupted=False) == 1
    (finding,) = [f for f in summary["findings"] if f["id"] == "diverged"]
    assert "training stopped" in finding["evidence"] and "\n" not in finding["evidence"]
    assert summary["status"] == "failed"
    assert 1 <= len(summary["losses"]) < 6


@pytest.mark.usefixtures("in_process")
def test_a_batch_that_cannot_fit_is_recorded_and_halved(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = train_session.step.memory
    monkeypatch.setattr(
        train_session.step, "memory", lambda case: real(case) if case["batch_size"] < 3 else 1 << 50
    )
    result, summary = run(experiment(data, batch_size=8), tmp_path)
    found = read_run(result.run).records
    refused = [r for r in found if r.status is Status.OOM]
    assert [r.case["batch_size"] for r in refused] == [8, 4]
    assert "1.0 PiB" in (refused[0].reason or "")
    assert summary["case"]["batch_size"] == 2
    assert result.verdict.outcome is Outcome.PASS
    assert "batch-too-large" in {f["id"] for f in summary["findings"]}


@pytest.mark.usefixtures("in_process")
def test_a_batch_of_one_that_does_not_fit_fails(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train_session.step, "memory", lambda case: 1 << 50)
    result, _ = run(experiment(data, batch_size=1), tmp_path)
    assert result.verdict.outcome is Outcome.FAIL


@pytest.mark.usefixtures("in_process")
def test_the_time_has_a_lower_bound_where_the_ceiling_is_known(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from trainrig.record import Kind, Record

    peak = Record(
        kind=Kind.MEASURED,
        benchmark="matmul",
        case={"precision": "fp32"},
        metric="flop_rate",
        unit="FLOP/s",
        value=1e15,
        interval=(1e15, 1e15),
    )
    monkeypatch.setattr(train_session.Session, "_measure_ceiling", lambda *_: peak)
    result, summary = run(experiment(data), tmp_path)
    (bound,) = [
        r
        for r in read_run(result.run).records
        if r.kind is Kind.PREDICTED and r.metric == "time" and r.benchmark == "step"
    ]
    assert bound.value is not None and 0 < bound.value < summary["step_time_s"]
    flops = summary["model_flops_per_s_per_device"]
    assert summary["mfu_of_measured_matmul"] == pytest.approx(flops / 1e15)
    assert bound.value * 1e15 == pytest.approx(flops * summary["step_time_s"])


# ---- bad input: refused before anything is written


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"seq_len": 64}, UsageError, "32 positions"),
        ({"batch_size": 0}, UsageError, "batch_size = 0"),
        ({"precision": "int8"}, UsageError, "unknown precision"),
        ({"model": MODEL.replace("vocab=512", "vocab=300")}, DataError, "vocabulary of 300"),
        ({"data": "/nowhere"}, DataError, "/nowhere"),
    ],
)
def test_bad_input_is_refused_before_a_run_is_made(
    data: Path, tmp_path: Path, change: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        run(experiment(data, **change), tmp_path)
    assert not (tmp_path / "runs").exists()


def test_a_truncated_bin_is_refused(data: Path, tmp_path: Path) -> None:
    import shutil

    copy = shutil.copytree(data, tmp_path / "copy")
    content = (copy / "train.bin").read_bytes()
    (copy / "train.bin").write_bytes(content[:-100])
    with pytest.raises(DataError, match="truncated"):
        run(experiment(copy), tmp_path)
    (copy / "train.bin").write_bytes(content)
    (copy / "train.idx").write_bytes(b"something else" * 100)
    with pytest.raises(DataError, match="no Megatron index"):
        run(experiment(copy), tmp_path)


def test_no_compiler_is_said_before_a_run_is_made(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(UnavailableError, match="needs a compiler"):
        run(experiment(data, compile=True), tmp_path)
    assert not (tmp_path / "runs").exists()


def test_an_unknown_device_leaves_no_run(data: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such device"):
        runner.train(experiment(data), device="cuda:77", out=tmp_path / "runs")
    assert not list((tmp_path / "runs").glob("*"))


def test_what_is_no_training_run_is_not_resumed(tmp_path: Path) -> None:
    from trainrig.store import create_run

    with create_run(tmp_path, "qualify", {}) as other:
        pass
    with pytest.raises(UsageError, match="no run of trainrig train"):
        runner.experiment_for({}, other.path)
