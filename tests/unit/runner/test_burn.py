"""A burn from its request to its verdict: with a stand-in for the program that burns, and real."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from runner_fakes import HOST, gpu
from trainrig.analysis.burn_facts import burn_summary
from trainrig.analysis.first_screen import headline
from trainrig.errors import DataError, UsageError
from trainrig.machine import inspect
from trainrig.machine.snapshot import NOT_READ, Gpu, unknown_link
from trainrig.record import Kind, Outcome, RunView, Status
from trainrig.runner.burn import burn, summary
from trainrig.runner.burn_plan import BurnRequest, check_request, memory_of, plan_parts
from trainrig.runner.burn_stress import read_stress
from trainrig.runner.progress import Progress
from trainrig.runner.session import carry_out
from trainrig.runner.view import judged_view
from trainrig.store import read_run

PROGRAM = """
import json, os, signal, sys, time
from pathlib import Path
from trainrig.process.child import run_rank

def slices(events, number, errors=0, told=(), count=3, seconds=1.0):
    for _ in range(count):
        events.emit("slice", number=number, work=1e9, seconds=seconds, num_checked=10,
                    num_errors=errors, errors=list(told))

def work(folder, events):
    plan = json.loads((folder / "plan.json").read_text())
    assert os.environ["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    events.emit("ready", torch="2.0", threads=2, capability="AVX2", cuda=None)
    for number, phase in enumerate(plan["phases"]):
        events.emit("phase", number=number)
        FAULT
        slices(events, number, seconds=phase["seconds"] / 3)
        more = {"names": ["loss", "weight"], "steps": [[1, 2], [3, STEP]]}
        more = more if phase["mode"] == "step" else {}
        events.emit("phase_over", number=number, facts={"passes": 1}, **more)

run_rank(work)
"""


# All is done, and then the process or its device is lost.
DONE = "slices(events, number, seconds=2.0); events.emit('phase_over', number=number, facts={})"


def program(folder: Path, fault: str = "pass", step: int = 4) -> tuple[str, ...]:
    path = folder / "program.py"
    path.write_text(PROGRAM.replace("FAULT", fault).replace("STEP", str(step)))
    return (sys.executable, str(path))


def request(folder: Path, fault: str = "pass", **more: Any) -> BurnRequest:
    settings = {"seconds": 2.0, "devices": ("cpu",), "mode": "matmul", "dtypes": ("fp32",)}
    return BurnRequest(**{**settings, **more, "program": program(folder, fault)})


def test_a_healthy_one_passes_and_says_what_it_did(tmp_path: Path) -> None:
    outcome = burn(request(tmp_path), out=tmp_path / "runs")
    assert (outcome.verdict.outcome, outcome.exit_code()) == (Outcome.PASS, 0)
    found = summary(outcome)
    (device,) = found["devices"]
    assert (device["errors"], device["work"], device["rate_unit"]) == (0, 3e9, "FLOP/s")
    assert device["temperature_c"] is not None or device["temperature_missing"]
    json.dumps(found)
    run = read_run(outcome.run)
    kinds = [record.kind for record in run.records]
    assert kinds == [Kind.PREDICTED, Kind.MEASURED]
    assert len(run.series["burn"]) == 3
    assert (outcome.run / "report.html").is_file()


@pytest.mark.parametrize(
    ("fault", "outcome", "words"),
    [
        ("slices(events, number, 1, ['product 7 differs'])", "FAIL", "product 7 differs"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "INCOMPLETE", "SIGKILL"),
        ("raise RuntimeError('CUDA error: unspecified launch failure')", "FAIL", "CUDA error"),
        ("raise MemoryError", "INCOMPLETE", "out of memory"),
        ("os._exit(0)", "INCOMPLETE", "exit code 0"),
        (
            "events.emit('phase_failed', number=number, status='oom', reason='no memory'); "
            "continue",
            "INCOMPLETE",
            "no memory",
        ),
        (
            "slices(events, number, count=1); "
            "events.emit('phase_over', number=number, facts={}); continue",
            "INCOMPLETE",
            "too little work",
        ),
        ("events.emit('phase_over', number=number, facts={}); continue", "INCOMPLETE", "no work"),
        (f"{DONE}; raise RuntimeError('CUDA error: device lost')", "FAIL", "device lost"),
        (f"{DONE}; os.kill(os.getpid(), signal.SIGKILL)", "INCOMPLETE", "SIGKILL"),
        (
            "events.emit('slice', number=number, work=float('nan'), seconds=4.0, num_checked=9, "
            "num_errors=0, errors=[])",
            "INCOMPLETE",
            "no work",
        ),
    ],
)
def test_what_went_wrong_never_passes(tmp_path: Path, fault: str, outcome: str, words: str) -> None:
    found = burn(request(tmp_path, fault, seconds=4.0), out=tmp_path / "runs")
    assert found.verdict.outcome == outcome, found.verdict
    assert words in found.verdict.reason
    assert found.exit_code() == (1 if outcome == "FAIL" else 3)


def test_a_run_that_was_cut_off_is_incomplete(tmp_path: Path) -> None:
    """As SIGKILL leaves it: what was planned is on the disk, and nothing was measured."""
    outcome = burn(request(tmp_path), out=tmp_path / "runs")
    records = outcome.run / "records.jsonl"
    records.write_text(records.read_text().splitlines(keepends=True)[0])
    (outcome.run / "verdict.json").unlink()
    verdict = judged_view(read_run(outcome.run)).verdict
    assert verdict is not None
    assert verdict.outcome is Outcome.INCOMPLETE
    assert any("not run" in finding.evidence for finding in verdict.findings)


def test_a_stored_pass_without_its_records_is_none(tmp_path: Path) -> None:
    outcome = burn(request(tmp_path), out=tmp_path / "runs")
    records = outcome.run / "records.jsonl"
    records.write_text(records.read_text().splitlines(keepends=True)[0])
    verdict = judged_view(read_run(outcome.run)).verdict
    assert verdict is not None
    assert verdict.outcome is Outcome.INCOMPLETE


def test_ctrl_c_leaves_a_run_that_opens_and_no_process(tmp_path: Path) -> None:
    # the program that burns sends it, so that it comes while work is done
    interrupt = "os.kill(os.getppid(), signal.SIGINT); time.sleep(60)"
    outcome = burn(request(tmp_path, interrupt, seconds=60.0), out=tmp_path / "runs")
    assert outcome.exit_code() == 130
    assert outcome.verdict.outcome is Outcome.INCOMPLETE
    run = judged_view(read_run(outcome.run))
    assert run.verdict is not None
    (finding,) = run.verdict.findings
    assert "skipped, interrupted" in finding.evidence
    assert finding.fix == (
        "let it run to its end: trainrig burn --budget 1m --mode matmul --devices cpu --dtype fp32"
    )
    assert headline(run, ()) == "No result was compared on 1 device."


@contextmanager
def another_measures(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Somebody holds the lock on the machine."""
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    with (folder / f"trainrig-{os.getuid()}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def test_what_cannot_be_is_refused_before_it_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Progress] = []
    with another_measures(tmp_path, monkeypatch), pytest.raises(UsageError, match="no GPU '77'"):
        burn(request(tmp_path, devices=("77",)), out=tmp_path / "runs", watch=told.append)
    assert not told
    assert not (tmp_path / "runs").exists()


def test_ctrl_c_while_it_waits_for_another_leaves_a_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    main = threading.main_thread().ident
    assert main is not None
    end = partial(signal.pthread_kill, main, signal.SIGINT)

    def watch(progress: Progress) -> None:
        if "waiting" in progress.text:
            threading.Timer(0.1, end).start()

    with another_measures(tmp_path, monkeypatch):
        outcome = burn(request(tmp_path, seconds=60.0), out=tmp_path / "runs", watch=watch)
        assert outcome.exit_code() == 130
        assert read_run(outcome.run).verdict is not None
        plan = partial(pytest.fail, "a plan is made while another measures")
        measured = carry_out(
            "qualify", plan, budget=60.0, out=tmp_path / "runs", watch=watch, early=False
        )
        assert measured.exit_code() == 130
        assert read_run(measured.run).verdict is not None


def test_what_was_wrong_before_ctrl_c_is_a_fault(tmp_path: Path) -> None:
    main = threading.main_thread().ident
    assert main is not None
    late = threading.Timer(1.5, signal.pthread_kill, (main, signal.SIGINT))
    late.start()
    fault = "slices(events, number, 1, ['product 7 differs']); time.sleep(60)"
    outcome = burn(request(tmp_path, fault, seconds=60.0), out=tmp_path / "runs")
    late.join()
    assert outcome.verdict.outcome is Outcome.FAIL
    # As SIGKILL would have left it: the record was not written, the slices were.
    records = outcome.run / "records.jsonl"
    records.write_text(records.read_text().splitlines(keepends=True)[0])
    (outcome.run / "verdict.json").unlink()
    verdict = judged_view(read_run(outcome.run)).verdict
    assert verdict is not None
    assert "product 7 differs" in verdict.reason
    assert verdict.outcome is Outcome.FAIL


def test_golden_digests_are_added_then_compared(tmp_path: Path) -> None:
    golden = tmp_path / "golden.jsonl"
    own = request(tmp_path, mode="step", golden=golden)
    assert burn(own, out=tmp_path / "runs").verdict.outcome is Outcome.PASS
    kept = golden.read_text()
    assert json.loads(kept)["steps"] == [[1, 2], [3, 4]]
    assert burn(own, out=tmp_path / "runs").verdict.outcome is Outcome.PASS
    program(tmp_path, step=5)
    changed = burn(own, out=tmp_path / "runs").verdict
    assert changed.outcome is Outcome.FAIL
    assert "the first is step 2, weight" in changed.reason
    assert golden.read_text() == kept
    golden.write_text("{}\n")
    with pytest.raises(DataError, match=r"golden.jsonl:1"):
        burn(own, out=tmp_path / "runs")


# ---- what is asked for


@pytest.mark.parametrize(
    "wrong",
    [
        {"seconds": 0.0},
        {"seconds": float("nan")},
        {"mode": "all of it"},
        {"dtypes": ("fp12",)},
        {"mode": "memory", "dtypes": ("fp32",)},
        {"mode": "matmul", "memory_bytes": 1 << 30},
        {"memory_bytes": 5},
    ],
)
def test_what_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        check_request(BurnRequest(**wrong))


def test_sizes_are_read() -> None:
    assert memory_of("4GiB") == 4 << 30
    with pytest.raises(UsageError, match="--memory much"):
        memory_of("much")


def modes(lane: Any) -> list[tuple[str, str]]:
    return [(part.target.torch_device, part.name) for part in lane]


def test_gpus_burn_together_then_the_processors() -> None:
    two = [gpu(0), gpu(1), HOST]
    gpus, host = plan_parts(BurnRequest(seconds=100.0), two)
    assert modes(gpus) == [
        (f"cuda:{n}", name) for n in (0, 1) for name in ("matmul bf16", "step bf16", "memory")
    ]
    assert modes(host) == [("cpu", "cpu")]
    assert sum(part.seconds for part in gpus) / 2 + host[0].seconds == pytest.approx(100.0)
    (only,) = plan_parts(BurnRequest(devices=("1",), mode="matmul"), two)
    assert modes(only) == [("cuda:1", "matmul bf16")]
    (alone,) = plan_parts(BurnRequest(), [HOST])
    assert [part.mode for part in alone] == ["matmul"] * 2 + ["step"] * 2 + ["memory", "cpu"]
    with pytest.raises(UsageError):
        plan_parts(BurnRequest(devices=("0",), mode="cpu"), two)
    with pytest.raises(UsageError, match="no GPU '7'"):
        plan_parts(BurnRequest(devices=("7",)), two)


def test_the_time_of_stress_ng_is_the_processors() -> None:
    def cores(seconds: float) -> Any:
        own = BurnRequest(seconds=seconds, mode="cpu")
        return plan_parts(own, [HOST], stress=True)[0][0]

    long, short = cores(60.0), cores(12.0)
    assert (long.seconds, long.stress_s) == (pytest.approx(40.0), pytest.approx(20.0))
    assert (short.seconds, short.stress_s) == (12.0, 0.0)


def test_gpus_that_this_torch_cannot_use_are_not_passed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = inspect()
    card = Gpu.unknown(NOT_READ, **NVIDIA)
    software = replace(snapshot.software, torch_cuda=None, torch_hip=None)
    there = replace(snapshot, gpus=(card,), software=software)
    monkeypatch.setattr("trainrig.runner.burn.inspect", lambda: there)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    found = burn(request(tmp_path, devices=()), out=tmp_path / "runs").verdict
    assert found.outcome is Outcome.INCOMPLETE
    assert "RTX 4090 #0: skipped, this torch was built without CUDA" in found.reason
    chosen = burn(request(tmp_path), out=tmp_path / "runs").verdict
    assert chosen.outcome is Outcome.PASS


NVIDIA = {
    "index": 0,
    "vendor": "nvidia",
    "name": "NVIDIA GeForce RTX 4090",
    "link": unknown_link("not read"),
}


# ---- stress-ng

STRESSED = """stress-ng: info:  [12] dispatching hogs: 2 cpu
stress-ng: metrc: [12] stressor       bogo ops real time  usr time  sys time   bogo ops/s
stress-ng: metrc: [12] cpu               22344     10.00     19.91      0.01      2234.23
stress-ng: info:  [12] successful run completed in 10.01 secs
"""


def test_stress_is_read() -> None:
    found = read_stress(0, STRESSED)
    assert (found.status, found.rate) == (Status.OK, pytest.approx(2234.4))
    wrong = "stress-ng: fail:  [13] cpu: sqrt error detected, sum does not match\n"
    assert "sqrt error" in str(read_stress(2, STRESSED + wrong).reason)
    assert read_stress(0, STRESSED + wrong).status is Status.FAILED
    assert read_stress(0, "").status is Status.FAILED
    assert read_stress(None, STRESSED).status is Status.TIMEOUT


# ---- real


@pytest.mark.smoke
def test_real_work_on_the_processors(tmp_path: Path) -> None:
    small = {"shape": [64, 64, 64], "sizes": "tiny", "size": 32, "chunk": 1 << 16}
    own = BurnRequest(
        seconds=3.0,
        devices=("cpu",),
        dtypes=("fp32",),
        memory_bytes=1 << 20,
        phase_settings=small,
    )
    outcome = burn(own, out=tmp_path / "runs")
    assert outcome.verdict.outcome is Outcome.PASS, outcome.verdict
    view: RunView = read_run(outcome.run)
    (device,) = burn_summary(view)
    assert [part["mode"] for part in device["parts"]][:4] == ["matmul", "step", "memory", "cpu"]
    assert all(part["checked"] > 1 for part in device["parts"])
