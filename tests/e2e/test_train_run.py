"""One training alone in its run: measured as a level of the waterfall, checkpointed, resumed."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from in_process import launch_here
from trainrig.errors import DataError, UnavailableError, UsageError
from trainrig.machine.energy import Meter
from trainrig.record import Kind, Outcome, Record, Status
from trainrig.runner import energy, train_prepare
from trainrig.runner import train as runner
from trainrig.runner.progress import Progress
from trainrig.runner.train_resume import checkpoints_of, experiments_of
from trainrig.runner.view import training_summary
from trainrig.store import create_run, read_run
from trainrig.train.config import Experiment, check, to_dict
from trainrig.train.native import checkpoint
from trainrig.train.native.loop import Engine

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
    monkeypatch.setattr(runner, "measure_ceiling", lambda *_: None)


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(runner, "launch", launch_here)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def experiment(folder: Path, **changes: Any) -> Experiment:
    base = Experiment.of(
        model=MODEL,
        data=str(folder),
        batch_size=4,
        seq_len=16,
        steps=6,
        precision="fp32",
        heldout_batches=1,
        name="native",
        device="cpu",
    )
    return base.replace(**changes)


def run(asked: Experiment, tmp_path: Path, **how: Any) -> tuple[Any, dict[str, Any]]:
    outcomes = runner.train([asked], out=tmp_path / "runs", **how)
    return outcomes, training_summary(outcomes)


def fifty_watts() -> Meter:
    """A device that takes as much all the time, whenever it is asked."""
    return Meter(device="package-0", source="RAPL", read=lambda: 50.0, is_power=True)


def test_a_training_becomes_a_run(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(energy, "host_meters", lambda: (fifty_watts(),))
    seen: list[Progress] = []
    result, summary = run(experiment(data), tmp_path, watch=seen.append)
    assert result.verdict.outcome is Outcome.MEASURED, result.verdict
    assert len(summary["losses"]) == len(summary["grad_norms"]) == 6
    assert all(math.isfinite(loss) for loss in summary["losses"])
    assert summary["step_time_s"] > 0
    assert summary["samples_per_s"] == pytest.approx(4 / summary["step_time_s"])
    assert summary["tokens_per_s"] == pytest.approx(64 / summary["step_time_s"])
    assert summary["framework"] == "native"
    parts = {"data_wait", "forward", "backward", "optimizer", "other"}
    assert set(summary["breakdown"]) == parts
    assert summary["peak_memory_bytes"] > 0
    assert summary["mean_power_w"] == pytest.approx(50.0, rel=1e-3)
    tokens = summary["energy_j"] / summary["energy_per_token_j"]
    assert tokens == pytest.approx(2 * 3 * 64)  # three of the six steps count, of two rounds
    assert summary["energy_source"] == "RAPL: package-0" and summary["devices"][0]["cores"]
    assert 0 < summary["heldout_loss"] < 10
    assert summary["layout_asked"].items() <= summary["layout_found"].items()
    assert summary["layout_found"]["wrapped"] == "Model"
    assert json.loads(json.dumps(summary)) == summary
    assert any("step 6 of 6" in event.text for event in seen)
    found = read_run(result.run)
    (stored,) = found.config["experiments"]
    assert Experiment.of(**stored) == experiment(data)
    assert (result.run / "report.html").exists()
    rows = found.series["steps-native"]
    assert [(row["round"], row["step"]) for row in rows] == [
        (n, step) for n in (1, 2) for step in range(6)
    ]
    for row in rows:
        assert sum(row["parts"].values()) == pytest.approx(row["time"])
        assert row["tokens_per_s"] == pytest.approx(row["tokens"] / row["time"])
    # Two processes train the first steps alike, and the step's time rests on both.
    assert rows[0]["loss"] == rows[6]["loss"]
    assert len(summary["rounds"]) == 2
    predicted = [r for r in found.records if r.kind == "predicted" and r.benchmark == "training"]
    measured = [r for r in found.records if r.kind == "measured" and r.benchmark == "training"]
    assert predicted and found.records.index(predicted[-1]) < found.records.index(measured[0])
    assert {r.metric for r in measured} >= {"time", "flop_rate", "heldout_loss", "peak_memory"}


@pytest.mark.usefixtures("in_process")
def test_a_layout_that_is_another_fails(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was asked for is changed behind the training's back: the objects say what ran."""
    other = {"precision": "bf16"}
    monkeypatch.setattr("trainrig.train.engines.to_dict", lambda own: to_dict(own) | other)
    result, summary = run(experiment(data), tmp_path)
    assert result.verdict.outcome is Outcome.FAIL
    assert "precision: asked fp32, found bf16 (Model)" in result.verdict.reason
    assert summary["layout_found"]["precision"] == "bf16"


@pytest.mark.usefixtures("in_process")
def test_a_resumed_run_goes_on_where_it_was(data: Path, tmp_path: Path) -> None:
    _, whole = run(experiment(data, steps=8, decay_steps=5), tmp_path)  # as planned at first
    first, _ = run(experiment(data, steps=5, checkpoint_every=4), tmp_path)
    path = first.run
    # As after a crash behind the checkpoint of step 4.
    again = experiment(data, steps=8, decay_steps=5, checkpoint_every=4)
    folder = checkpoints_of(path, "01-native")
    shutil.rmtree(folder)
    with Engine(again, check(again)) as engine, checkpoint.Saver(engine, folder) as saver:
        engine.run(lambda _: None, lambda step: step >= 4)
        saver.save(last=True)
    with pytest.raises(UsageError, match="5 steps"):
        experiments_of(path, {})
    (asked,) = experiments_of(path, {"steps": 8})
    assert asked == again
    result, summary = run(asked, tmp_path, resume=path)
    assert result.run == path
    assert summary["losses"][-4:] == whole["losses"][-4:]
    assert experiments_of(path, {"steps": 9})[0].steps == 9
    with pytest.raises(UsageError, match="its own experiments"):
        experiments_of(path, {"seed": 2})
    with pytest.raises(UsageError, match="4 samples, under this layout 2"):
        experiments_of(path, {"steps": 9, "batch_size": 2})
    (other,) = experiments_of(path, {"steps": 9, "tp": 2, "keep_checkpoints": 5})
    assert (other.nproc, other.tp, other.batch_size, other.checkpoints.keep) == (2, 2, 4, 5)
    (other,) = experiments_of(path, {"steps": 9, "nproc": 2, "zero": 3})
    assert (other.nproc, other.zero, other.batch_size) == (2, 3, 2)
    shutil.rmtree(folder)
    with pytest.raises(UsageError, match="has no checkpoint"):
        experiments_of(path, {"steps": 9})
    (path / ".checkpoint.pt").touch()
    with pytest.raises(DataError, match="an older trainrig saved its checkpoint"):
        experiments_of(path, {"steps": 9})


def refuse_batches(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """What a step needs beyond ``most`` samples is more than there is."""
    words = "a step needs about 1.0 PiB, and 1.0 GiB are free: not started"
    monkeypatch.setattr(runner, "swapping", lambda own, _: words if own.batch_size > most else None)


@pytest.mark.usefixtures("in_process")
@pytest.mark.acceptance
def test_a_halved_batch_is_resumed_with_what_fitted(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_batches(monkeypatch, 2)
    first, _ = run(experiment(data, batch_size=4), tmp_path)
    (asked,) = experiments_of(first.run, {"steps": 8})
    assert asked.batch_size == 2
    _, summary = run(asked, tmp_path, resume=first.run)
    assert read_run(first.run).series["steps-native"][-1]["step"] == 7
    assert summary["batch_size"] == 2


@pytest.mark.usefixtures("in_process")
@pytest.mark.acceptance
def test_another_text_is_no_place_to_resume(data: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(data, tmp_path / "copy")
    first, _ = run(experiment(copy), tmp_path)
    manifest = json.loads((copy / "manifest.json").read_text())
    (copy / "manifest.json").write_text(json.dumps(manifest | {"corpus_sha256": "0" * 64}))
    with pytest.raises(DataError, match="another text than"):
        experiments_of(first.run, {"steps": 8})


@pytest.mark.usefixtures("in_process")
def test_a_diverging_run_fails_with_one_line_and_keeps_its_steps(
    data: Path, tmp_path: Path
) -> None:
    asked = experiment(data, lr=1e30, clip=0.0, warmup=0, weight_decay=0.0)
    result, summary = run(asked, tmp_path)
    assert result.verdict.outcome is Outcome.FAIL
    assert result.exit_code() == 1
    (finding,) = [f for f in summary["findings"] if f["id"] == "training-failed"]
    assert "training stopped" in finding["evidence"] and "\n" not in finding["evidence"]
    assert summary["status"] == "failed"
    assert 1 <= len(summary["losses"]) < 6


@pytest.mark.usefixtures("in_process")
def test_a_batch_that_cannot_fit_is_recorded_and_halved(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_batches(monkeypatch, 2)
    result, summary = run(experiment(data, batch_size=8), tmp_path)
    found = read_run(result.run).records
    refused = [r for r in found if r.status is Status.OOM]
    assert [r.case["batch_size"] for r in refused] == [8, 4]
    assert "1.0 PiB" in (refused[0].reason or "")
    assert summary["batch_size"] == 2
    assert result.verdict.outcome is Outcome.MEASURED
    assert "batch-too-large" in {f["id"] for f in summary["findings"]}


@pytest.mark.usefixtures("in_process")
def test_a_batch_of_one_that_does_not_fit_fails(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_batches(monkeypatch, 0)
    result, _ = run(experiment(data, batch_size=1), tmp_path)
    assert result.verdict.outcome is Outcome.FAIL


@pytest.mark.usefixtures("in_process")
def test_what_does_not_learn_is_a_finding(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "LEARNING_STEPS", 6)
    _, summary = run(experiment(data, lr=1e-9), tmp_path)
    assert "does-not-learn" in {f["id"] for f in summary["findings"]}


@pytest.mark.usefixtures("in_process")
def test_utilisation_is_said_of_the_ceiling_too(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    peak = Record(
        kind=Kind.MEASURED,
        benchmark="matmul",
        case={"dtype": "fp32"},
        metric="flop_rate",
        unit="FLOP/s",
        value=1e15,
        interval=(1e15, 1e15),
    )
    monkeypatch.setattr(runner, "measure_ceiling", lambda *_: peak)
    _, summary = run(experiment(data), tmp_path)
    flops = summary["model_flops_per_s_per_device"]
    assert summary["mfu_of_measured_matmul"] == pytest.approx(flops / 1e15)


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
    (asked,) = train_prepare.requested_experiments(None, {"device": "cuda:77", "data": str(data)})
    assert (asked.device, asked.placement.devices) == ("cuda", "77")
    with pytest.raises(UnavailableError, match="GPU"):
        run(asked, tmp_path)
    assert not list((tmp_path / "runs").glob("*"))


def test_what_is_no_training_run_is_not_resumed(tmp_path: Path) -> None:
    with create_run(tmp_path, "qualify", {}) as other:
        pass
    with pytest.raises(UsageError, match="no run of trainrig train"):
        experiments_of(other.path, {})
