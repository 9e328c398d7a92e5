"""A training whose ranks die goes on: attempts, who was lost, and the one series that comes out.

The ranks are small programs without torch that keep their next step in a file; what they do to
themselves they do at a step, so that no clock decides what is seen.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trainrig.process import lost_ranks, supervisor
from trainrig.process.events import Events, Position, read_events
from trainrig.process.lost_ranks import Restart, final_rows, lost_before, restarts_of
from trainrig.process.supervisor import Command, Ended, launch
from trainrig.record import Status
from trainrig.train.engines import ENGINES

# Six steps; the first rank saves after every second one.  `attempt` counts from 0.
HEAD = """
import os, signal, sys, time
from pathlib import Path
from trainrig.process.events import Events
folder, rank = Path(sys.argv[1]), int(os.environ.get("RANK", "0"))
size = int(os.environ.get("WORLD_SIZE", "1"))
events = Events(folder, rank)
events.start()
saved = folder / "saved"
attempt = len(list(folder.glob("port-*")))
def meet(name):
    (folder / f"{name}-{attempt}-{rank}").touch()
    while len(list(folder.glob(f"{name}-{attempt}-*"))) < size:
        time.sleep(0.01)
meet("begin")
if rank == 0:
    (folder / f"port-{os.environ.get('MASTER_PORT', attempt)}").touch()
def train(act=lambda step: None):
    for step in range(int(saved.read_text()) if saved.exists() else 0, 6):
        events.set_position(step=step, part="forward")
        act(step)
        events.set_position(part="backward", operation="all_reduce")
        meet(f"step{step}")
        events.emit("row", step=step, loss=1.0 / (step + 1), size=size)
        if rank == 0 and step % 2:
            saved.write_text(str(step + 1))
        meet(f"saved{step}")
    events.emit("done")
def die(number):
    os.kill(os.getpid(), number)
    while True:
        time.sleep(60)
"""


def run(folder: Path, body: str, **how: Any) -> tuple[Ended, list[Mapping[str, Any]]]:
    """How it ended, and the first rank's events."""
    program = folder / "rank.py"
    program.write_text(HEAD + body)
    argv = (sys.executable, str(program), str(folder))
    command = Command(argv=argv, ranks=2, **{"max_restarts": 1, **how})
    ended = launch(command, folder, stall_timeout=2.0)
    return ended, [event for _, event in read_events(folder, 0)]


@pytest.fixture(autouse=True)
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "_GRACE", 0.1)


def steps_of(events: list[Mapping[str, Any]]) -> list[int]:
    return [event["step"] for event in events if event["event"] == "row"]


KILLED = """
def act(step):
    if rank == 1 and step == 3 and attempt == 0:
        die(signal.SIGKILL)
train(act)
"""


def test_a_killed_rank_costs_the_steps_behind_the_checkpoint(tmp_path: Path) -> None:
    ended, events = run(tmp_path, KILLED)
    assert ended.status is Status.OK and ended.lost is None
    assert steps_of(events) == [0, 1, 2, 2, 3, 4, 5]
    rows = final_rows([event for event in events if event["event"] == "row"])
    assert [row["step"] for row in rows] == list(range(6))
    (restart,) = restarts_of(events)
    assert restart.cause.startswith("rank 1 was ended by SIGKILL in forward of step 3 (process ")
    assert (restart.rank, restart.operation, restart.ranks) == (1, "forward of step 3", 2)
    assert restart.host and restart.pid and restart.since
    assert (restart.step, restart.steps_lost) == (2, 1)
    assert restart.time_lost_s is not None and restart.time_lost_s > 0.0
    assert len(list(tmp_path.glob("port-*"))) == 2  # a new attempt meets on a port of its own


def test_without_restarts_the_first_loss_is_the_end(tmp_path: Path) -> None:
    ended, events = run(tmp_path, KILLED, max_restarts=0)
    assert ended.status is Status.FAILED and steps_of(events) == [0, 1, 2]
    assert ended.lost is not None and ended.lost.rank == 1 and restarts_of(events) == ()


def test_a_hung_rank_is_stopped_and_the_others_go_on(tmp_path: Path) -> None:
    ended, events = run(tmp_path, KILLED.replace("SIGKILL", "SIGSTOP"))
    assert ended.status is Status.OK
    (restart,) = restarts_of(events)
    assert "rank 1 is stopped in forward of step 3 (process" in restart.cause
    assert "rank 0 waits in all_reduce in backward of step 3" in restart.cause
    assert (restart.rank, restart.operation) == (1, "forward of step 3")


def test_a_rank_that_stays_lost_is_gone_on_without(tmp_path: Path) -> None:
    """The first attempt had a step; the second had none, and so the third is smaller."""
    body = """
def act(step):
    if rank == 1 and (attempt or step == 3):
        die(signal.SIGKILL)
train(act)
"""
    ended, events = run(tmp_path, body, max_restarts=2, fewer=(1,))
    assert ended.status is Status.OK
    rows = final_rows([event for event in events if event["event"] == "row"])
    assert [(row["step"], row["size"]) for row in rows] == [
        *((step, 2) for step in (0, 1)),
        *((step, 1) for step in (2, 3, 4, 5)),
    ]
    first, second = restarts_of(events)
    assert (first.ranks, first.steps_lost, second.ranks, second.steps_lost) == (2, 1, 1, 0)
    assert first.step == second.step == 2


def test_the_gpu_of_a_lost_rank_is_left_out() -> None:
    command = Command(argv=(), ranks=4, fewer=(2, 1), env={"CUDA_VISIBLE_DEVICES": "4,5,6,7"})
    fewer = supervisor._without_device(command, 1)
    assert (fewer.ranks, fewer.fewer, fewer.env) == (2, (1,), {"CUDA_VISIBLE_DEVICES": "4,6,7"})
    assert supervisor._without_device(Command(argv=(), ranks=2, fewer=(1,)), 0).env == {}


@pytest.mark.parametrize("kind", ["Diverged", "oom"])
def test_what_would_end_so_again_is_not_tried_again(tmp_path: Path, kind: str) -> None:
    body = f"""
if rank == 1:
    events.emit("failed", reason="no way", kind="{kind}")
    sys.exit(1)
train()
"""
    ended, events = run(tmp_path, body, max_restarts=3)
    assert (ended.reason, ended.lost) == ("rank 1: no way", None)
    assert restarts_of(events) == () and len(list(tmp_path.glob("port-*"))) <= 1


def test_an_error_of_a_device_is_one_that_another_attempt_need_not_have(tmp_path: Path) -> None:
    body = """
if rank == 1 and attempt == 0:
    events.emit("failed", reason="CUDA error: uncorrectable ECC error", kind="error")
    sys.exit(1)
train()
"""
    ended, events = run(tmp_path, body)
    assert ended.status is Status.OK
    assert [r.cause for r in restarts_of(events)] == ["rank 1: CUDA error: uncorrectable ECC error"]


def test_an_undisturbed_training_has_no_restart(tmp_path: Path) -> None:
    ended, events = run(tmp_path, "train()")
    assert ended.status is Status.OK and restarts_of(events) == ()
    assert steps_of(events) == list(range(6))


# ---- what another starter's ranks tell


def begin(folder: Path, size: int, monkeypatch: pytest.MonkeyPatch) -> list[Events]:
    monkeypatch.setenv("WORLD_SIZE", str(size))
    ranks = [Events(folder, rank) for rank in range(size)]
    for rank in ranks:
        rank.start()
    return ranks


def test_ranks_tell_after_a_restart_who_was_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = begin(tmp_path, 3, monkeypatch)
    assert lost_before(tmp_path) is None
    for rank in first:
        rank.set_position(step=4, part="backward", operation="all_reduce")
    first[2].set_position(step=4, part="forward")
    first[0].emit("failed", reason="RuntimeError: connection reset by peer", kind="peer")
    second = begin(tmp_path, 2, monkeypatch)  # the third has no successor
    lost = lost_before(tmp_path)
    assert lost is not None and (lost.rank, lost.pid) == (1, lost.pid)
    first[1].emit("failed", reason="x", kind="peer")  # of another attempt by now
    assert lost.cause.startswith("rank 1 ended without a word in all_reduce in backward of step 4")
    assert isinstance(lost.position, Position) and lost.position.since
    second[0].emit("restart", **lost.event())
    assert lost_before(tmp_path) is None
    for rank in second:
        rank.emit("done")
    begin(tmp_path, 2, monkeypatch)
    assert lost_before(tmp_path) is None


def test_who_says_why_comes_before_who_ended_without_a_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = begin(tmp_path, 3, monkeypatch)
    first[2].emit("failed", reason="CUDA error: unknown error", kind="error")
    first[0].emit("failed", reason="reset by peer", kind="peer")
    begin(tmp_path, 3, monkeypatch)
    lost = lost_before(tmp_path)
    assert lost is not None and lost.cause.startswith("rank 2: CUDA error: unknown error (process ")


def test_a_rank_sees_for_itself_that_nobody_moves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under torchrun nobody looks at those that live."""
    program = (
        HEAD
        + """
from dataclasses import asdict
from trainrig.process.lost_ranks import watch_for_stall
def give_up(lost):
    events.emit("failed", reason=lost.cause, kind="stall", lost=asdict(lost))
    os._exit(1)
watch_for_stall(folder, size, 1.0, give_up)
events.set_position(step=2, part="backward", operation="all_reduce")
while True:
    time.sleep(60)
"""
    )
    Events(tmp_path, 1).set_position(step=2, part="forward")
    done = subprocess.run(
        [sys.executable, "-c", program.replace('meet("begin")', ""), str(tmp_path)],
        env={"WORLD_SIZE": "2", "PYTHONPATH": str(Path(supervisor.__file__).parents[2])},
        check=False,
        timeout=60,
    )
    assert done.returncode == 1
    *_, (_, told) = read_events(tmp_path, 0)
    assert "rank 1 is in forward of step 2" in told["reason"]
    assert told["reason"].endswith("rank 0 waits in all_reduce in backward of step 2")
    begin(tmp_path, 2, monkeypatch)
    lost = lost_before(tmp_path)
    assert lost is not None and lost.cause == told["reason"] and lost.rank == 1
    assert str(lost.position) == "forward of step 2"


@pytest.mark.parametrize(("local_rank", "watches"), [("0", True), ("1", True), ("2", False)])
def test_two_ranks_of_a_node_watch_and_seldom(
    local_rank: str, watches: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 1,024 ranks not every one reads every other's file twice a second."""
    pauses: list[float] = []
    given_up = threading.Event()
    clock = count(0.0, 400.0)
    fake_time = SimpleNamespace(monotonic=lambda: next(clock), sleep=pauses.append)
    monkeypatch.setenv("LOCAL_RANK", local_rank)
    monkeypatch.setattr(lost_ranks, "time", fake_time)
    monkeypatch.setattr(lost_ranks, "position_of", lambda *_: None)
    monkeypatch.setattr(lost_ranks, "stalled", lambda *_: None)
    lost_ranks.watch_for_stall(tmp_path, 1024, 600.0, lambda _: given_up.set())
    assert given_up.wait(30) if watches else not given_up.is_set()
    assert set(pauses) == ({30.0} if watches else set())


def test_a_loss_before_any_step_is_told_and_costs_none() -> None:
    start = {"event": "start", "at": 10.0, "clock": 1000.0, "ranks": 2}
    events = [
        start,
        {"event": "restart", "at": 12.0, "cause": "a", "ranks": 2},
        {**start, "at": 13.0},
        {"event": "restart", "at": 15.0, "cause": "b", "ranks": 1},
        {**start, "at": 3.0, "clock": 1020.0, "ranks": 1},  # on another host
        {"event": "row", "step": 0, "at": 4.0},
        {"event": "restart", "at": 6.0, "cause": "c", "ranks": 1},
    ]
    assert restarts_of(events) == (
        Restart(cause="a", ranks=2, step=0, steps_lost=0, time_lost_s=5.0),
        Restart(cause="b", ranks=1, step=0, steps_lost=0, time_lost_s=9.0),
        Restart(cause="c", ranks=1),
    )


def test_a_folder_of_two_attempts_is_read_as_one_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second with one rank: nothing of the other counts any more."""
    for size, steps in ((2, range(5)), (1, range(3, 6))):
        for rank in begin(tmp_path, size, monkeypatch):
            for step in steps:
                rank.emit("row", step=step, loss=float(size))
            rank.emit("memory", peak=1.0 * size, devices=[])
            rank.emit("checkpoint", step=3)
    result = ENGINES["native"].collect(tmp_path)
    assert [(row["step"], row["loss"]) for row in result.rows] == [
        *((step, 2.0) for step in (0, 1, 2)),
        *((step, 1.0) for step in (3, 4, 5)),
    ]
    assert (result.ranks, result.hosts, result.memory) == (1, (socket.gethostname(),), 1.0)
    assert [row["step"] for row in result.stretch] == list(range(5))
