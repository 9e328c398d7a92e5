"""Experiments end to end: real engines on two real ranks, from a file to records and a verdict.

What takes minutes is run by ``make smoke`` and ``make acceptance``.
"""

from __future__ import annotations

import dataclasses
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from training_summaries import trained_once
from trainrig.machine import inspect, to_dict
from trainrig.process.supervisor import Ended, launch
from trainrig.record import Kind, Outcome, Record, Status
from trainrig.runner import train as runner
from trainrig.runner.targets import find_targets
from trainrig.runner.view import training_summary
from trainrig.store import create_run, read_run
from trainrig.train.config import Experiment
from trainrig.train.config_file import experiment_of, tiny
from trainrig.train.engines import ENGINES, Job, Result
from trainrig.train.layout_check import differences, observed_layout, requested_layout
from trainrig.train.parity import disagreement, reference_of

ROOT = Path(__file__).resolve().parents[2]
MODEL = "gpt2:num_layers=1,hidden=32,num_heads=2,vocab=512,max_positions=32"
smoke, acceptance = pytest.mark.smoke, pytest.mark.acceptance


def experiment(data: str, **changes: Any) -> Experiment:
    keys = {"model": MODEL, "data": data, "batch_size": 2, "seq_len": 16, "steps": 6}
    return experiment_of(keys | {"precision": "fp32", "device": "cpu", "nproc": 2} | changes)


def train(own: Experiment, folder: Path, **how: Any) -> tuple[Ended, Result]:
    """One training by its backend, nothing around it."""
    engine = ENGINES[own.framework]
    ended = launch(engine.command(own, folder, Job()), folder, **how)
    return ended, engine.collect(folder)


def test_a_run_of_experiments_has_records_and_a_verdict(
    data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of two ranks that trains as one process does, and one that diverges."""
    monkeypatch.setattr(runner, "measure_ceiling", lambda *_: None)
    asked = (
        experiment(data, name="fine", zero=1, grad_accum=2, heldout_batches=1, heldout_every=4),
        experiment(data, name="wild", lr=1e30, nproc=1),
        experiment(data, name="wide", nproc=4096),
    )
    measure_rates(tmp_path)
    outcomes = runner.train(asked, out=tmp_path)
    found = training_summary(outcomes)
    assert outcomes.verdict.outcome is Outcome.FAIL
    fine, wild, wide = found["experiments"]
    assert (fine["row_verdict"], wild["row_verdict"], wide["row_verdict"]) == (
        "agreed",
        "FAIL",
        "skipped",
    )
    assert "training stopped" in wild["reason"] and len(fine["losses"]) == 6
    assert "4096 ranks" in wide["reason"]
    assert fine["parity"]["compared"] and fine["layout_found"]["zero"] == 1
    assert sum(fine["breakdown"].values()) == pytest.approx(fine["step_time_s"])
    assert fine["samples_per_s"] == pytest.approx(8 / fine["step_time_s"])
    check_people(fine)
    run = read_run(outcomes.run)
    told = [r for r in run.records if r.kind is Kind.PREDICTED and r.case["experiment"] == "fine"]
    assert [r.metric for r in told] == ["time", "flop_rate", "peak_memory"] and told[0].value
    first = next(n for n, r in enumerate(run.records) if r.kind is Kind.MEASURED)
    assert run.records.index(told[0]) < first, "written before anything was measured"
    assert [row["name"] for row in found["predicted"]] == ["fine", "wild"], (
        "no training, no prediction"
    )
    assert found["predicted"][0]["step_time_s"] == told[0].value
    measured = [r for r in run.records if r.kind is Kind.MEASURED]
    points = {r.metric: r for r in measured if r.case["experiment"] == "fine"}
    assert points["time"].key == told[0].key
    assert points["time"].value == pytest.approx(fine["step_time_s"])
    assert points["time"].device_count == 2 and points["sample_rate"].status is Status.OK
    statuses = {r.case["experiment"]: r.status for r in measured if r.metric == "time"}
    assert statuses == {"fine": Status.OK, "wild": Status.FAILED, "wide": Status.SKIPPED}
    rows = run.series["steps-fine"]
    assert [(row["step"], row["tokens"]) for row in rows] == [(n, 8 * 16) for n in range(6)]
    for parts in (fine["profiled"], found["predicted"][0]["parts"]):
        waits = parts["communication_s"] + parts["bubble_s"]
        assert parts["own_s"] + waits == pytest.approx(parts["step_s"])
        assert parts["communication_s"] > 0.0 == parts["bubble_s"]
    stored = [Experiment.of(**content) for content in run.config["experiments"]]
    assert [e.name for e in stored] == ["fine", "wild", "wide"]
    assert stored[0] == asked[0].replace(data=str(Path(data).resolve()), threads=1)
    assert (outcomes.run / "report.html").exists()
    errors = {f["id"] for f in found["findings"] if f["severity"] == "error"}
    assert errors == {"training-failed"}  # on a busy machine a part of the time may be in no part


def check_people(fine: Mapping[str, Any]) -> None:
    """What is told of ranks as of one process: held-out losses, and which weights decay."""
    assert [each["step"] for each in fine["heldout"]] == [4, 6]
    assert fine["heldout_loss"] == fine["heldout"][-1]["loss"] < 7
    assert fine["peak_memory_bytes"] > 0
    assert fine["weight_decay"]["decayed"] > 50 * fine["weight_decay"]["not_decayed"] > 0


def measure_rates(folder: Path) -> None:
    """A run of this machine with what a prediction rests on."""
    snapshot = inspect()
    device = find_targets(snapshot)[-1].name
    matmul = {"dtype": "fp32", "m": 512, "k": 512, "n": 512, "cache": "hot"}
    copy = {"direction": "triad", "bytes": 1 << 28, "memory": "host", "cache": "cold"}
    rates = (("matmul", matmul, "flop_rate", "FLOP/s"), ("copy", copy, "byte_rate", "B/s"))
    with create_run(folder, "qualify", {}) as run:
        run.write_machine(to_dict(snapshot))
        for benchmark, case, metric, unit in rates:
            point = Record(
                kind=Kind.MEASURED, benchmark=benchmark, case=case, metric=metric, unit=unit,
                value=1e11, device=device,
            )  # fmt: skip
            run.append(point)


def small_files() -> None:
    """Let no file grow beyond 32 kB, as a full disk would: records fit, checkpoint and page not."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (32_000, 32_000))


def test_a_full_disk_is_one_line_and_what_was_trained_stays(data: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "trainrig", "train", "--framework", "native", "--model", MODEL]
        + ["--data", data, "--batch-size", "2", "--seq-len", "16", "--steps", "5"]
        + ["--device", "cpu", "--precision", "fp32", "--out", str(tmp_path), "--json"],
        env=os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"},
        preexec_fn=small_files,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 3, done.stderr
    assert "Traceback" not in done.stderr
    said = [line for line in done.stderr.splitlines() if line.startswith("trainrig: ")]
    assert len(said) == 1 and "cannot write" in said[0] and "File too large" in said[0]
    (folder,) = tmp_path.iterdir()
    run = read_run(folder)
    assert len(run.series["steps-native"]) == 5
    (trained,) = [r for r in run.records if r.benchmark == "training" and r.kind is Kind.MEASURED]
    assert len(trained.samples) > 0 and "cannot save a checkpoint" in (trained.reason or "")
    assert ranks_of(folder) == []


def ranks_of(folder: Path) -> list[psutil.Process]:
    """The processes of the ranks that train in a folder."""
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if str(folder) in (process.info["cmdline"] or [])
    ]


@pytest.mark.parametrize(
    ("number", "status", "words"),
    [
        pytest.param(
            *(signal.SIGKILL, Status.FAILED, "rank 1 was ended by SIGKILL"),
            id="killed",
            marks=acceptance,
        ),
        pytest.param(
            *(signal.SIGSTOP, Status.TIMEOUT, "rank 0 waits in "), id="hung", marks=acceptance
        ),
    ],
)
def test_a_lost_rank_ends_the_others(
    data: str, tmp_path: Path, number: signal.Signals, status: Status, words: str
) -> None:
    struck: list[int] = []

    def strike(rank: int, event: Mapping[str, Any]) -> None:
        if rank == 0 and event["event"] == "row" and not struck:
            for process in ranks_of(tmp_path):
                if process.environ()["RANK"] == "1":
                    process.send_signal(number)
                    struck.append(process.pid)

    patience = 10.0 if status is Status.TIMEOUT else 60.0  # ranks of a busy machine start slowly
    ended, _ = train(
        experiment(data, steps=10**6), tmp_path, on_event=strike, stall_timeout=patience
    )
    assert ended.status is status
    assert ended.reason is not None and words in ended.reason
    assert ranks_of(tmp_path) == []


@acceptance
@pytest.mark.parametrize("model", ["gpt2", "bert-base", "t5-base", "llama-1B", "gpt-neo-1.3B"])
def test_hugging_face_trains_what_one_process_of_ours_does(
    data: str, tmp_path: Path, model: str
) -> None:
    pytest.importorskip("transformers", reason="needs transformers")
    pytest.importorskip("accelerate", reason="needs accelerate")
    own = experiment(
        data, model=tiny(model), framework="huggingface", grad_accum=2, recompute="full"
    )
    ended, theirs = train(own, tmp_path / "theirs")
    assert ended.status is Status.OK, ended.reason
    assert theirs.facts is not None and theirs.probe is not None
    assert differences(requested_layout(own), observed_layout(theirs.facts)) == []
    _, ours = train(reference_of(own).replace(steps=1), tmp_path / "ours")
    assert ours.probe is not None
    assert disagreement(theirs.probe, ours.probe, "fp32") is None


@acceptance
def test_the_loss_that_trainer_multiplies_is_not_comparable(data: str, tmp_path: Path) -> None:
    """Left to itself, Trainer trains BERT on a loss times ranks and micro-batches."""
    pytest.importorskip("transformers", reason="needs transformers")
    own = experiment(data, model=tiny("bert-base"), framework="huggingface", grad_accum=2)
    folder = tmp_path / "theirs"
    engine = ENGINES["huggingface"]
    command = engine.command(own, folder, Job())
    request = json.loads((folder / "experiment.json").read_text())
    (folder / "experiment.json").write_text(json.dumps(request | {"plain_loss": True}))
    assert launch(command, folder).status is Status.OK
    theirs = engine.collect(folder)
    _, ours = train(reference_of(own).replace(steps=1), tmp_path / "ours")
    assert theirs.probe is not None and ours.probe is not None
    said = disagreement(theirs.probe, ours.probe, "fp32")
    assert said is not None and "loss of step 0" in said
    ratio = theirs.probe.losses[0] / ours.probe.losses[0]
    assert ratio == pytest.approx(4.0, rel=0.05)


@acceptance
def test_sharding_that_trainer_leaves_out_on_a_cpu_is_found(data: str, tmp_path: Path) -> None:
    """It is refused before it starts; here the refusal is gone round."""
    pytest.importorskip("transformers", reason="needs transformers")
    own = experiment(data, framework="huggingface").replace(zero=3)
    ended, theirs = train(own, tmp_path)
    if ended.status is Status.OK:
        assert theirs.facts is not None
        said = differences(requested_layout(own), observed_layout(theirs.facts))
        assert said[0].startswith("zero: asked 3, found 0 (DistributedDataParallel)")
    else:
        assert theirs.rows == ()


@smoke
def test_hybrid_sharding_on_four_ranks(data: str, tmp_path: Path) -> None:
    own = experiment(data, nproc=4, zero=3, shard_size=2, batch_size=1)
    ended, hybrid = train(own, tmp_path / "hybrid")
    assert ended.status is Status.OK, ended.reason
    assert hybrid.facts is not None and hybrid.probe is not None
    assert differences(requested_layout(own), observed_layout(hybrid.facts)) == []
    _, alone = train(reference_of(own).replace(steps=1), tmp_path / "alone")
    assert alone.probe is not None
    assert disagreement(hybrid.probe, alone.probe, "fp32") is None


@pytest.fixture
def slow_link() -> Iterator[tuple[str, ...]]:
    """The start of a command line that runs where the loopback carries 5 Mbit/s."""
    if os.geteuid() != 0 or not (shutil.which("tc") and shutil.which("ip")):
        pytest.skip("needs root and tc")
    name = f"trainrig-{os.getpid()}"
    if subprocess.run(["ip", "netns", "add", name], check=False, capture_output=True).returncode:
        pytest.skip("needs root and tc in a place that allows network namespaces")
    inside = ("ip", "netns", "exec", name)
    slowed = "tc qdisc add dev lo root tbf rate 5mbit burst 128k latency 5s"
    try:
        for line in ("ip link set lo up", slowed):
            if subprocess.run([*inside, *line.split()], check=False).returncode:
                pytest.skip("needs root and tc with tbf in the kernel")
        yield inside
    finally:
        subprocess.run(["ip", "netns", "del", name], check=True)


@acceptance
def test_a_slow_link_is_communication_and_nothing_else(
    data: str, tmp_path: Path, slow_link: tuple[str, ...]
) -> None:
    own = experiment(data, steps=7)
    quick = trained_once(own, train(own, tmp_path / "quick")[1])
    command = ENGINES["native"].command(own, tmp_path / "slow", Job())
    slowed = dataclasses.replace(
        command, argv=(*slow_link, *command.argv), env={**command.env, "GLOO_SOCKET_IFNAME": "lo"}
    )
    ended = launch(slowed, tmp_path / "slow")
    assert ended.status is Status.OK, ended.reason
    slow = trained_once(own, ENGINES["native"].collect(tmp_path / "slow"))
    before, after = (each.first.result.profiled or {} for each in (quick, slow))
    rise = {part: after[part] - before[part] for part in after}
    assert rise["step_s"] > 0.0
    assert rise["communication_s"] > 0.8 * rise["step_s"]


@smoke
def test_one_command_compares_every_way_to_train(data: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "trainrig", "train", str(ROOT / "experiments/parity.toml")]
        + ["--scale", "tiny", "--data", data, "--out", str(tmp_path), "--json"],
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["verdict"] == "PASS"
    assert len(found["experiments"]) == 10
    emulated = [each for each in found["experiments"] if each["status"] == "skipped"]
    assert all("is emulated here" in each["reason"] for each in emulated)
    trained = [each for each in found["experiments"] if each not in emulated]
    assert {each["row_verdict"] for each in trained} == {"agreed"}
    assert {each["layout_found"]["zero"] for each in trained} == {0, 1, 2, 3}
    first = [each["losses"][0] for each in trained]
    assert first == pytest.approx([first[0]] * len(first), rel=1e-3)
