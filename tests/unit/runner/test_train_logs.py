"""What a training logs besides: into the real packages where they are installed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from trainrig.errors import UnavailableError, UsageError
from trainrig.runner import train_logs
from trainrig.runner.progress import Progress
from trainrig.train.config import LOGS, Experiment, check

ROW = {"event": "row", "loss": 2.5, "grad_norm": None, "lr": 1e-3, "tokens": 64, "time": 0.5}
HELDOUT = {"event": "heldout", "step": 2, "loss": 3.25}
EVENTS = [{**ROW, "step": 0}, {**ROW, "step": 1, "grad_norm": 0.5}, HELDOUT, {"event": "done"}]
EXPECTED = {
    "train/loss": [(0, 2.5), (1, 2.5)],
    "train/grad_norm": [(1, 0.5)],
    "train/lr": [(0, 1e-3), (1, 1e-3)],
    "train/tokens_per_s": [(0, 128.0), (1, 128.0)],
    "heldout/loss": [(2, 3.25)],
}


def log(name: str, run: Path, number: int = 1) -> tuple[list[Mapping[str, Any]], list[str]]:
    """What was passed on, and what was said, of a training that logs to ``name``."""
    passed: list[Mapping[str, Any]] = []
    said: list[Progress] = []
    own = Experiment.of(name="of tests", log=name)
    with train_logs.opened(own, run, number, said.append) as logged:
        observe = logged(lambda _rank, event: passed.append(event))
        for event in EVENTS:
            observe(0, event)
        observe(1, {**ROW, "step": 7})  # another rank's: rank 0 speaks for all
    return passed, [each.text for each in said]


def test_tensorboard_has_each_step(tmp_path: Path) -> None:
    module = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="no tensorboard here"
    )
    passed, said = log("tensorboard", tmp_path)
    assert len(passed) == 5 and said == []
    found = module.EventAccumulator(str(tmp_path / "tensorboard" / "of-tests")).Reload()
    assert set(found.Tags()["scalars"]) == set(EXPECTED)
    for tag, pairs in EXPECTED.items():
        got = [(each.step, each.value) for each in found.Scalars(tag)]
        assert [step for step, _ in got] == [step for step, _ in pairs]
        assert [v for _, v in got] == pytest.approx([v for _, v in pairs])
    log("tensorboard", tmp_path / "second", number=2)  # of later rounds nothing
    assert not (tmp_path / "second").exists()


@pytest.mark.acceptance  # it makes its database's tables for ten seconds
@pytest.mark.filterwarnings("ignore")  # its own, of its database's library
def test_mlflow_has_each_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow", reason="no mlflow here")
    pytest.importorskip("sqlalchemy", reason="no mlflow here")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert log("mlflow", tmp_path)[1] == []
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{tmp_path / 'mlflow.db'}")
    number = client.get_experiment_by_name("trainrig").experiment_id
    (run,) = client.search_runs([number])
    assert run.info.status == "FINISHED" and run.data.params["model"] == "gpt2-small-cpu"
    for tag, pairs in EXPECTED.items():
        history = client.get_metric_history(run.info.run_id, tag)
        assert sorted((each.step, each.value) for each in history) == pairs


def test_a_log_that_fails_is_said_once_and_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_step: int, _values: Any) -> None:
        raise OSError(28, "No space left on device")

    broken = train_logs._Log(write=full, close=lambda: None)
    monkeypatch.setattr(train_logs, "_OPENED", {"tensorboard": lambda *_: broken})
    passed, said = log("tensorboard", tmp_path)
    assert len(passed) == 5
    (line,) = said
    assert "No space left on device: nothing is logged there any more" in line


@pytest.mark.parametrize("name", LOGS)
def test_a_missing_package_is_one_line(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train_logs, "find_spec", lambda _: None)
    with pytest.raises(UnavailableError, match=f"log {name}: missing: {name}") as raised:
        train_logs.check_logs(Experiment.of(log=name))
    assert (raised.value.hint or "").startswith(f"pip install {name}")


def test_another_name_is_refused() -> None:
    with pytest.raises(UsageError, match="wandb"):
        check(Experiment.of(log="tensorboard,wandb"))
