"""Engines in places of their own: another environment, torchrun's ranks, compiled blocks.

All of it trains on real ranks for minutes: ``make acceptance``.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from trainrig.process.supervisor import launch
from trainrig.record import Kind, Outcome, Record, RunView, Status
from trainrig.runner import train as runner
from trainrig.runner.view import training_summary
from trainrig.store import read_run
from trainrig.train.config import Experiment, to_dict
from trainrig.train.config_file import experiment_of
from trainrig.train.engines import ENGINES, Job, Result
from trainrig.train.layout_check import differences, observed_layout, requested_layout
from trainrig.train.parity import Probe, disagreement, reference_of

acceptance = pytest.mark.acceptance
SRC = Path(__file__).resolve().parents[2] / "src"
MODEL = "gpt2:num_layers=2,hidden=32,num_heads=2,vocab=512,max_positions=32"


def experiment(data: str, **changes: Any) -> Experiment:
    keys = {"model": MODEL, "data": data, "batch_size": 2, "seq_len": 16, "steps": 6}
    return experiment_of(keys | {"precision": "fp32", "device": "cpu", "nproc": 2} | changes)


def train(own: Experiment, folder: Path) -> Result:
    """One training that ends well, by its backend."""
    engine = ENGINES[own.framework]
    ended = launch(engine.command(own, folder, Job()), folder)
    assert ended.status is Status.OK, ended.reason
    return engine.collect(folder)


def probe_of(result: Result) -> Probe:
    assert result.probe is not None
    return result.probe


def facts_of(result: Result) -> Any:
    assert result.facts is not None
    return result.facts


# ---- an environment of its own


def requirements(names: tuple[str, ...]) -> dict[str, Any]:
    """These packages and all that they need, as far as it is installed here."""
    found: dict[str, Any] = {}
    waiting = list(names)
    while waiting:
        name = waiting.pop().lower().replace("_", "-")
        try:
            found[name] = distribution(name)
        except PackageNotFoundError:  # needed elsewhere: on a GPU, on another system
            continue
        wanted = [Requirement(line) for line in found[name].requires or ()]
        needed = [w.name for w in wanted if w.marker is None or w.marker.evaluate({"extra": ""})]
        waiting += [n for n in needed if n.lower().replace("_", "-") not in found]
    return found


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment that has what Hugging Face's engine needs, and no more."""
    pytest.importorskip("transformers", reason="needs transformers")
    pytest.importorskip("accelerate", reason="needs accelerate")
    home = tmp_path_factory.mktemp("elsewhere")
    made = [sys.executable, "-m", "venv", "--without-pip", str(home)]
    subprocess.run(made, check=True, capture_output=True)
    (site,) = home.glob("lib/python*/site-packages")
    for found in requirements(("torch", "numpy", "transformers", "accelerate")).values():
        tops = {file.parts[0] for file in found.files or () if not file.parts[0].startswith(".")}
        for top in tops:
            if not (site / top).exists():
                (site / top).symlink_to(Path(str(found.locate_file(top))))
    return home / "bin" / "python"


def measured(run: RunView) -> Record:
    """The time of its one experiment."""
    return next(r for r in run.records if r.metric == "time" and r.kind is Kind.MEASURED)


@acceptance
def test_hugging_face_trains_in_an_environment_that_knows_nothing_of_ours(
    data: str, tmp_path: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two ranks, compared with one process of ours; this Python is not to be found by them."""
    ours = os.path.dirname(sys.executable)
    kept = [folder for folder in os.environ["PATH"].split(os.pathsep) if folder != ours]
    monkeypatch.setenv("PATH", os.pathsep.join(kept))
    monkeypatch.setenv("PYTHONPATH", str(SRC))
    look = "import importlib.util as u; print([n for n in {} if u.find_spec(n)])"
    absent = ["trainrig", "humanize", "tomli_w", "scipy", "pytest"]
    bare = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [elsewhere, "-c", look.format(absent)], env=bare, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
    own = experiment(data, framework="huggingface", python=str(elsewhere), name="theirs")
    outcomes = runner.train((own,), out=tmp_path)
    assert outcomes.verdict.outcome is Outcome.PASS, outcomes.verdict.reason
    found = training_summary(outcomes)
    software = found["software_found"]
    assert software["interpreter"] == str(elsewhere)
    assert {"torch", "transformers", "accelerate", "python"} <= software.keys()
    assert software["transport"] == "gloo" and found["parity"]["compared"]
    run = read_run(outcomes.run)
    assert run.config["experiments"][0]["python"] == str(elsewhere)
    record = measured(run)
    assert record.conditions["software_found.torch"] == software["torch"]
    alone = runner.train((experiment(data, name="ours"),), out=tmp_path)
    other = measured(read_run(alone.run))
    assert other.environment != record.environment  # it has other packages beside torch


# ---- ranks that somebody else starts


def torchrun(folder: Path, ranks: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nnodes", "1"]
        + ["--nproc-per-node", str(ranks), "-m", "trainrig.train.native.rank_main", str(folder)],
        env=os.environ | {"PYTHONPATH": str(SRC), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


@acceptance
def test_torchrun_starts_the_same_ranks(data: str, tmp_path: Path) -> None:
    own = experiment(data, zero=3, threads=1)  # as torchrun's have: sums in the same order
    folder = tmp_path / "torchrun"
    folder.mkdir()
    request = {"experiment": to_dict(own), "probe": True}
    (folder / "experiment.json").write_text(json.dumps(request))
    for _ in range(2):  # the second time its events begin anew
        done = torchrun(folder, 2)
        assert done.returncode == 0, done.stderr
    theirs, ours = ENGINES["native"].collect(folder), train(own, tmp_path / "launch")
    assert len(theirs.rows) == own.steps
    assert [row["loss"] for row in theirs.rows] == [row["loss"] for row in ours.rows]
    assert probe_of(theirs) == probe_of(ours)
    assert differences(requested_layout(own), observed_layout(facts_of(theirs))) == []


@acceptance
def test_more_ranks_than_the_experiment_has_are_refused(data: str, tmp_path: Path) -> None:
    own = experiment(data, nproc=1)
    request = {"experiment": to_dict(own), "probe": False}
    (tmp_path / "experiment.json").write_text(json.dumps(request))
    done = torchrun(tmp_path, 2)
    assert done.returncode != 0
    assert "2 ranks were started, and the experiment has nproc = 1" in done.stderr


# ---- compiled blocks


@pytest.mark.parametrize(
    ("precision", "changes"),
    [
        pytest.param("fp32", {"grad_accum": 2, "recompute": "full"}, id="ddp", marks=acceptance),
        pytest.param("fp32", {"zero": 3}, id="zero-3", marks=acceptance),
        pytest.param("bf16", {"zero": 3, "recompute": "full"}, id="zero-3-bf16", marks=acceptance),
    ],
)
def test_compiled_ranks_train_what_one_process_does_uncompiled(
    data: str, tmp_path: Path, precision: str, changes: dict[str, Any]
) -> None:
    """The reference compiles nothing and knows no other rank."""
    if not any(map(shutil.which, ("g++", "c++", "clang++"))):
        pytest.skip("needs a compiler")
    own = experiment(data, precision=precision, compile=True, **changes)
    compiled = train(own, tmp_path / "compiled")
    assert differences(requested_layout(own), observed_layout(facts_of(compiled))) == []
    assert facts_of(compiled)["compiled"]
    alone = train(reference_of(own).replace(steps=1), tmp_path / "alone")
    assert not facts_of(alone)["compiled"]
    assert disagreement(probe_of(compiled), probe_of(alone), precision) is None
