"""A run around its plan: closed whatever ends it, alone on the machine, looked at again after."""

from __future__ import annotations

import fcntl
import json
import os
import time
from dataclasses import replace

import pytest

import machine_fakes
from runner_fakes import HOST
from trainrig.errors import UsageError
from trainrig.process.worker import Reply, Request
from trainrig.record import Kind, Status
from trainrig.runner import progress, session
from trainrig.runner.expectations import demands_of
from trainrig.runner.plan import Block, qualify_plan
from trainrig.runner.progress import hold_machine_lock
from trainrig.runner.targets import Target
from trainrig.store import find_runs, read_run


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A machine without GPUs, and a lock of its own."""
    monkeypatch.setattr(session, "inspect", lambda **_: machine_fakes.healthy(0))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("error", [TypeError("unhashable type: 'dict'"), SystemExit(3)])
def test_whatever_is_raised_the_run_is_closed_before(machine, error):
    def plan(scene):
        raise error

    with pytest.raises(type(error)):
        session.carry_out("qualify", plan, budget=60.0, out=machine / "runs", early=False)
    (run,) = find_runs(machine / "runs")
    verdict = json.loads((run / "verdict.json").read_text())
    assert verdict["outcome"] == "INCOMPLETE"
    assert type(error).__name__ in verdict["reason"]
    assert (run / "report.html").exists()


def test_an_error_while_a_run_is_closed_costs_no_run(machine, monkeypatch):
    def interrupted(_):
        raise KeyboardInterrupt

    def refused(*_):
        raise UsageError("a rule that the closing of a run breaks")

    monkeypatch.setattr("trainrig.runner.view.close_run", refused)
    with pytest.raises(UsageError, match="a rule"):
        session.carry_out("qualify", interrupted, budget=60.0, out=machine / "runs", early=False)
    assert len(find_runs(machine / "runs")) == 1


def test_a_second_run_waits_for_the_first_and_says_so(machine, monkeypatch):
    heard, waits = [], []
    monkeypatch.setattr(progress.time, "sleep", waits.append)
    with open(machine / f"trainrig-{os.getuid()}.lock", "w+") as other:
        other.write("4711")
        other.flush()
        fcntl.flock(other, fcntl.LOCK_EX)
        with hold_machine_lock(heard.append, patience=0.1):  # and goes on when its patience ends
            assert waits and set(waits) == {0.1}
    assert [event.text for event in heard] == [
        "process 4711 measures on this machine: waiting until it ends"
    ]
    with hold_machine_lock(heard.append, patience=60.0), open(other.name) as held:
        assert held.read() == str(os.getpid())
        with pytest.raises(BlockingIOError):
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert len(heard) == 1


def test_a_demand_reaches_the_judge_and_one_that_nothing_answers_leaves_no_run(machine):
    """A target of the host's memory that no host reaches; then one of links that it has not."""
    target = Target(torch_device="cpu", name="EPYC", index=None, memory_bytes=1 << 30, chip=None)

    def plan(scene):
        (task,) = (t for b in qualify_plan((target,), 240.0) for t in b.tasks
                   if t.planned.step == "scale vector" and t.spec.is_large(t.case))  # fmt: skip
        return [Block(name="one", tasks=(task,), share=1.0)]

    def run(demand):
        demands, out = demands_of([demand]), machine / "runs"
        return session.carry_out("qualify", plan, budget=8.0, out=out, early=False, demands=demands)

    with pytest.raises(UsageError, match="--min link"):
        run("link=50GB/s")
    assert find_runs(machine / "runs") == ()
    done = run("memory=900TB/s")
    (expected,) = (r for r in read_run(done.run).records if r.kind is Kind.PREDICTED)
    assert (expected.source, expected.interval[0]) == ("--min memory", 9e14)
    with pytest.raises(UsageError, match="resumed"):
        session.qualify(resume=done.run, demands=demands_of(["memory=1GB/s"]))


def test_gpus_are_looked_at_again_whatever_ended_the_load(machine, monkeypatch):
    bad = machine_fakes.with_gpu(machine_fakes.healthy(1), ecc_uncorrected_volatile=3)
    looks = iter([machine_fakes.healthy(1), bad])
    monkeypatch.setattr(session, "inspect", lambda **_: next(looks))

    def broken(*_):
        raise RuntimeError("CUDA error")

    monkeypatch.setattr(session, "_run_blocks", broken)
    with pytest.raises(RuntimeError):
        session.carry_out("qualify", lambda _: (), budget=60.0, out=machine / "runs", early=False)
    (run,) = find_runs(machine / "runs")
    verdict = json.loads((run / "verdict.json").read_text())
    assert verdict["outcome"] == "FAIL"
    assert "3 uncorrectable memory errors" in verdict["reason"]


def test_an_unknown_benchmark_or_device_leaves_nothing(machine):
    heard = []
    for asked in ({"only": ["matmull"]}, {"devices": ["7"]}, {"only": ["links"]}):
        with pytest.raises(UsageError):
            session.qualify(budget=60.0, out=machine / "runs", watch=heard.append, **asked)
    assert not any(event.text.startswith("run ") for event in heard)
    assert find_runs(machine / "runs") == ()


def test_what_was_asked_for_is_asked_for_when_it_is_resumed(machine, monkeypatch):
    asked = []
    monkeypatch.setattr(session, "Worker", None)
    monkeypatch.setattr(session, "_run_blocks", lambda blocks, *_: asked.append(blocks))
    first = session.qualify(budget=60.0, out=machine / "runs", only=["vector"])
    session.qualify(budget=60.0, resume=first.run)
    names = [{task.benchmark for block in blocks for task in block.tasks} for blocks in asked]
    assert names == [{"vector"}] * 2


def with_packages(**packages):
    found = machine_fakes.healthy(0)
    named = {name.replace("_", "-"): version for name, version in packages.items()}
    return replace(found, software=replace(found.software, packages=named))


@pytest.fixture
def begun(machine, monkeypatch):
    """A run with an attempt, made under numpy 2.4.5, and what looks at the machine from then on."""
    looks = {"now": with_packages(numpy="2.4.5")}
    monkeypatch.setattr(session, "inspect", lambda **_: looks["now"])
    monkeypatch.setattr(session, "Worker", None)

    def measure(blocks, executor, _):
        task = blocks[0].tasks[0]
        executor.skip(task, "interrupted")
        request = Request(benchmark=task.benchmark, case=task.case, settings={}, timeout=1.0)
        executor._append_attempt(task, request, Reply(status=Status.FAILED, reason="interrupted"))

    monkeypatch.setattr(session, "_run_blocks", measure)
    out = machine / "my runs"
    done = session.qualify(budget=60.0, out=out, only=["vector"])
    return done.run, looks


def test_packages_that_nothing_of_ours_loads_do_not_stand_in_the_way_of_a_resume(begun):
    run, looks = begun
    looks["now"] = with_packages(numpy="2.4.5", transformers="5.23.0", deepspeed="0.19.8")
    assert session.qualify(budget=60.0, resume=run).run == run


def test_what_changed_is_named_and_the_command_that_starts_anew_is_offered(begun):
    run, looks = begun
    looks["now"] = with_packages(numpy="2.4.6", transformers="5.23.0")
    with pytest.raises(UsageError) as refused:
        session.qualify(budget=60.0, resume=run)
    assert "numpy 2.4.5 → 2.4.6" in refused.value.message
    assert "transformers" not in refused.value.message
    command = f"trainrig qualify --only vector --budget 1m --out '{run.parent}'"
    assert (refused.value.hint or "").endswith(command)
    assert read_run(run).verdict is not None, "a refused resume leaves the run as it is"


def test_what_the_verdict_needs_may_take_the_time_of_what_it_does_not(machine, monkeypatch):
    needed, other = (
        tuple(
            t
            for b in qualify_plan((HOST,), 240.0)
            for t in b.tasks
            if t.planned.required == is_needed
        )
        for is_needed in (True, False)
    )
    blocks = (
        Block(name="needed", tasks=needed, share=0.2),
        Block(name="needed, last", tasks=needed, share=0.3),
        Block(name="other", tasks=other, share=0.5),
    )
    monkeypatch.setattr(time, "monotonic", lambda: 1000.0)
    done = []

    class Recorder:
        def run_block(self, block, seconds):
            done.append((block.name, pytest.approx(seconds)))

        def decide(self):
            done.append("decide")

        def use_time_left(self):
            done.append("left")

    session._run_blocks(blocks, Recorder(), 1100.0)
    assert done == [
        ("needed", 70.0),  # all but the share of what is needed as well and comes last
        ("needed, last", 100.0),
        "decide",
        ("other", 100.0),
        "left",
    ]


def test_what_the_verdict_needs_last_keeps_its_share_whatever_came_before(machine, monkeypatch):
    """Shares are of the whole time: what is optional takes none of what is kept back."""
    tasks = qualify_plan((HOST,), 240.0)[0].tasks
    shares = {"first": 0.3, "second": 0.1, "third": 0.2}
    blocks = tuple(Block(name=name, tasks=tasks, share=share) for name, share in shares.items())
    now, got = 1000.0, []
    monkeypatch.setattr(time, "monotonic", lambda: now)

    class Greedy:
        def run_block(self, block, seconds):
            nonlocal now
            got.append(pytest.approx(seconds))
            now += seconds

        decide = use_time_left = lambda self: None

    session._run_blocks(blocks, Greedy(), 1100.0)
    assert got == [70.0, 10.0, 20.0]
