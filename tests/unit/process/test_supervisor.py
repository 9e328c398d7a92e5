"""Starting and watching ranks: every way to end is one line, and no process is left.

The ranks here are small programs without torch; their parent and what they tell are real.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from trainrig.errors import UnavailableError, UsageError
from trainrig.process import supervisor
from trainrig.process.events import Events, position_of, read_events
from trainrig.process.programs import last_line
from trainrig.process.supervisor import Command, Ended, launch
from trainrig.record import Status

SRC = Path(__file__).resolve().parents[3] / "src"
# Every rank waits for the others' files before it goes on: no sleep decides what is seen.
HEAD = """
import os, signal, subprocess, sys, time
from pathlib import Path
from trainrig.process.events import Events
folder, rank = Path(sys.argv[1]), int(os.environ.get("RANK", "0"))
events = Events(folder, rank)
def meet(name):
    (folder / f"{name}-{rank}").touch()
    while len(list(folder.glob(f"{name}-*"))) < int(os.environ.get("WORLD_SIZE", "1")):
        time.sleep(0.01)
def forever():
    while True:
        time.sleep(60)
"""


def run(folder: Path, body: str, ranks: int = 2, **how: Any) -> Ended:
    program = folder / "rank.py"
    program.write_text(HEAD + body)
    env = {"TRAINRIG_TEST_RANKS": str(folder)}
    command = Command(argv=(sys.executable, str(program), str(folder)), ranks=ranks, env=env)
    return launch(command, folder, **how)


def left_behind(folder: Path) -> list[psutil.Process]:
    """Processes that a launch in ``folder`` started, and theirs."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("TRAINRIG_TEST_RANKS") == str(folder):
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return found


def without_process(reason: str | None) -> str:
    """A reason, without which process it was, on which host and since when: it must say that."""
    known = r" \(process \d+ on [^,;)]+(, since \d\d:\d\d:\d\d UTC)?\)"
    text, count = re.subn(known, "", reason or "")
    assert count
    return text


@pytest.fixture(autouse=True)
def none_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr("trainrig.process.supervisor._GRACE", 0.3)
    yield
    until = time.monotonic() + 10.0
    while left_behind(tmp_path) and time.monotonic() < until:
        os.sched_yield()  # a process that is not our child is killed, and ends when it next runs
    assert left_behind(tmp_path) == []


def test_ranks_that_end_well(tmp_path: Path) -> None:
    received: list[tuple[int, Mapping[str, Any]]] = []
    body = 'meet("a"); events.emit("row", step=0); events.emit("done")'
    ended = run(tmp_path, body, on_event=lambda rank, event: received.append((rank, event)))
    assert ended.status is Status.OK
    assert sorted((rank, event["event"]) for rank, event in received) == [
        (0, "done"),
        (0, "row"),
        (1, "done"),
        (1, "row"),
    ]


def test_a_rank_that_ends_without_a_word_has_failed(tmp_path: Path) -> None:
    body = 'print("last words"); events.emit("done") if rank == 0 else None'
    ended = run(tmp_path, body)
    assert ended.status is Status.FAILED
    assert without_process(ended.reason) == "rank 1 ended with exit code 0: last words"


@pytest.mark.parametrize("code", [0, 1])
def test_a_rank_that_leaves_early_without_a_word_is_named(tmp_path: Path, code: int) -> None:
    """The others would wait for it for long, or say that they lost it."""
    body = f"""
if rank == 1:
    events.set_position(part="joining the other ranks")
    meet("a")
    os._exit({code})
meet("a")
forever()
"""
    ended = run(tmp_path, body)
    assert ended.status is Status.FAILED
    words = f"rank 1 ended with exit code {code} in joining the other ranks of step 0: "
    assert without_process(ended.reason) == words + "it printed nothing"


def test_a_speechless_rank_comes_before_those_that_lost_it(tmp_path: Path) -> None:
    body = """
meet("a")
if rank == 0:
    events.emit("failed", reason="connection reset by peer", kind="peer")
meet("b")
os._exit(1 - rank)
"""
    ended = run(tmp_path, body)
    assert without_process(ended.reason) == "rank 1 ended with exit code 0: it printed nothing"


def test_a_rank_that_is_held_is_told_from_those_that_wait(tmp_path: Path) -> None:
    body = """
events.set_position(step=5, part="backward", operation="all_reduce")
meet("a")
os.kill(os.getpid(), signal.SIGSTOP) if rank else forever()
"""
    ended = run(tmp_path, body, stall_timeout=1.0)
    place = "in all_reduce in backward of step 5"
    words = without_process(ended.reason)
    assert words.endswith(f": rank 1 is stopped {place}; rank 0 waits {place}")


def test_going_on_is_a_sign_of_life(tmp_path: Path) -> None:
    """Steps may be longer than the silence that is allowed: parts of them are shorter."""
    body = """
for step in range(40):
    events.set_position(step=step)
    time.sleep(0.05)
events.emit("done")
"""
    assert run(tmp_path, body, ranks=1, stall_timeout=1.0).status is Status.OK


def test_ranks_are_no_part_of_the_job_around_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under torchrun or MPI a single process would wait for ranks that do not exist."""
    around = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "TORCHELASTIC_USE_AGENT_STORE", "PMI_SIZE")
    for name in around:
        monkeypatch.setenv(name, "3")
    monkeypatch.setenv("MASTER_ADDR", "10.0.0.1")
    body = 'events.emit("env", **os.environ); events.emit("done")'
    for ranks in (1, 2):
        folder = tmp_path / str(ranks)
        folder.mkdir()
        assert run(folder, body, ranks).status is Status.OK
        (_, found), *_ = read_events(folder, 0)
        there = {name: found[name] for name in (*around, "MASTER_ADDR") if name in found}
        place = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
        assert there == (place if ranks == 2 else {})


def test_a_folder_with_files_like_pythons_own_is_no_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('shadowed')")
    monkeypatch.chdir(tmp_path)
    command = Command(
        argv=(sys.executable, "-m", "trainrig.process.child"),
        env={"TRAINRIG_TEST_RANKS": str(tmp_path)},
        prepare=(sys.executable, "-m", "trainrig.process.events"),
    )
    ended = launch(command, tmp_path)
    assert without_process(ended.reason) == "rank 0 ended with exit code 0: it printed nothing"


def test_a_killed_rank_is_named_with_its_place(tmp_path: Path) -> None:
    body = """
if rank == 1:
    events.set_position(step=3, part="backward")
    meet("a")
    os.kill(os.getpid(), signal.SIGKILL)
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
events.set_position(step=3, part="backward", operation="all_reduce")
meet("a")
forever()
"""
    ended = run(tmp_path, body)
    assert ended.status is Status.FAILED
    assert without_process(ended.reason) == "rank 1 was ended by SIGKILL in backward of step 3"


def test_the_rank_to_blame_comes_before_those_that_lost_it(tmp_path: Path) -> None:
    body = """
meet("a")
if rank == 0:
    events.emit("failed", reason="RuntimeError: connection closed by peer", kind="peer")
else:
    events.emit("failed", reason="the loss is nan at step 4: training stopped", kind="Diverged")
meet("b")
sys.exit(1)
"""
    ended = run(tmp_path, body)
    assert ended.status is Status.FAILED
    assert ended.reason == "rank 1: the loss is nan at step 4: training stopped"


def test_too_little_memory_is_told_apart(tmp_path: Path) -> None:
    ended = run(tmp_path, 'events.emit("failed", reason="no room", kind="oom"); sys.exit(1)', 1)
    assert (ended.status, ended.reason) == (Status.OOM, "rank 0: no room")


def test_a_hang_names_who_waits_and_who_did_not_come(tmp_path: Path) -> None:
    body = """
part, operation = ("forward", "") if rank else ("backward", "all_reduce")
events.set_position(step=5, part=part, operation=operation)
meet("a")
events.emit("row", step=4)
forever()
"""
    ended = run(tmp_path, body, stall_timeout=0.5)
    assert ended.status is Status.TIMEOUT
    assert without_process(ended.reason).endswith(
        "rank 1 is in forward of step 5; rank 0 waits in all_reduce in backward of step 5"
    )


def test_an_interruption_leaves_no_process(tmp_path: Path) -> None:
    def interrupt(_rank: int, _event: Mapping[str, Any]) -> None:
        assert left_behind(tmp_path)
        raise KeyboardInterrupt

    body = """
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
signal.signal(signal.SIGTERM, signal.SIG_IGN)
events.emit("row", step=0)
forever()
"""
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, body, on_event=interrupt)


def test_a_sigterm_is_passed_on_and_what_ranks_say_meanwhile_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0 saves and leaves; rank 1 does not listen, and is killed."""
    monkeypatch.setattr(supervisor, "SAVE_TIMEOUT", 1.0)
    told: list[str] = []

    def terminate(rank: int, event: Mapping[str, Any]) -> None:
        told.append(f"{rank} {event['event']}")
        if event["event"] == "row":
            raise supervisor.Terminated

    body = """
def save(*_):
    events.emit("checkpoint", step=1)
    os._exit(0)
signal.signal(signal.SIGTERM, signal.SIG_IGN if rank else save)
meet("a")
if rank == 0:
    events.emit("row", step=0)
forever()
"""
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, body, on_event=terminate)
    assert told == ["0 row", "0 checkpoint"]


def test_a_killed_parent_takes_its_ranks_along(tmp_path: Path) -> None:
    """The real rank's way of dying: the kernel ends it with its parent."""
    (tmp_path / "rank.py").write_text(
        HEAD + "import threading\nfrom trainrig.process.child import run_rank\n"
        "threading.Thread(target=forever, daemon=True).start()\n"
        "def train(folder, events):\n    events.emit('row'); forever()\n"
        "run_rank(train)\n"
    )
    parent = (
        "import sys; from pathlib import Path; from trainrig.process.supervisor import *\n"
        "f = Path(sys.argv[1])\n"
        "c = Command(argv=(sys.executable, str(f / 'rank.py'), str(f)), ranks=2, env="
        "{'TRAINRIG_TEST_RANKS': str(f)})\n"
        "seen = set()\n"
        "def on_event(rank, event):\n"
        "    seen.add(rank)\n"
        "    print(len(seen), flush=True)\n"
        "launch(c, f, on_event=on_event)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", parent, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(SRC)},
    ) as process:
        assert process.stdout is not None
        while process.stdout.readline().strip() != "2":
            assert process.poll() is None
        ranks = left_behind(tmp_path)
        assert len(ranks) == 2
        process.send_signal(signal.SIGKILL)
    gone, alive = psutil.wait_procs(ranks, timeout=30)
    assert not alive and len(gone) == 2


def test_a_rank_whose_parent_went_before_it_could_ask_leaves(tmp_path: Path) -> None:
    """The parent is gone while the rank still imports torch; and it may be process 1."""
    program = (
        "import os, sys; from pathlib import Path\n"
        "from trainrig.process import child as p\n"
        "assert not p._has_ended(str(os.getppid())) and not p._has_ended('')\n"
        "assert not p._has_ended(sys.argv[1])  # a script lies between\n"
        "assert p._has_ended(sys.argv[2])\n"
    )
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        gone.wait()
    subprocess.run(
        [sys.executable, "-c", program, "1", str(gone.pid)],
        env=os.environ | {"PYTHONPATH": str(SRC)},
        check=True,
    )


def test_a_port_that_is_taken_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        monkeypatch.setenv("MASTER_PORT", str(port))
        with pytest.raises(UsageError, match=f"port {port} is not available") as caught:
            run(tmp_path, "")
    assert "\n" not in caught.value.message
    monkeypatch.setenv("MASTER_PORT", "²")
    with pytest.raises(UsageError, match="no port"):
        run(tmp_path, "")


def test_ranks_that_could_not_hear_each_other_are_not_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a network namespace whose loopback is down they would wait for minutes."""

    def unreachable(*_: Any, **__: Any) -> None:
        raise OSError(101, "Network is unreachable")

    monkeypatch.setattr(socket, "create_connection", unreachable)
    with pytest.raises(UnavailableError, match=r"127.0.0.1: Network is unreachable") as caught:
        run(tmp_path, "")
    assert caught.value.hint is not None and "lo up" in caught.value.hint
    assert run(tmp_path, 'events.emit("done")', ranks=1).status is Status.OK


def test_another_port_is_taken_where_one_is_lost(tmp_path: Path) -> None:
    """Between the choice of a free one and its use by rank 0 another program may have it."""
    body = """
seen = folder / f"seen-{rank}"
ports = seen.read_text().split() if seen.exists() else []
seen.write_text(" ".join([*ports, os.environ["MASTER_PORT"]]))
meet(f"try{len(ports)}")
if len(ports) < 2 and rank == 0:
    events.emit("failed", reason="port 1 is in use", kind="port")
    sys.exit(1)
events.emit("done")
"""
    assert run(tmp_path, body).status is Status.OK
    assert len((tmp_path / "seen-0").read_text().split()) == 3
    assert [event["event"] for _, event in read_events(tmp_path, 0)] == ["done"]


@pytest.mark.parametrize(
    ("program", "status", "words"),
    [
        (
            "raise SystemExit('no weights')",
            Status.FAILED,
            "the preparation ended with exit code 1: no weights",
        ),
        (
            "import os; os.kill(os.getpid(), 9)",
            Status.FAILED,
            "the preparation was ended by SIGKILL",
        ),
        ("import time; time.sleep(600)", Status.TIMEOUT, "the preparation took over 1 s"),
    ],
)
def test_a_program_that_cannot_be_prepared_fails_alone(
    tmp_path: Path, program: str, status: Status, words: str
) -> None:
    command = Command(
        argv=(sys.executable, "-c", "raise SystemExit('started')"),
        prepare=(sys.executable, "-c", program),
        env={"TRAINRIG_TEST_RANKS": str(tmp_path)},
    )
    ended = launch(command, tmp_path, stall_timeout=1.0)
    assert ended.status is status
    assert ended.reason is not None and words in ended.reason


def test_events_are_read_whole_and_once(tmp_path: Path) -> None:
    events, began = Events(tmp_path, 0), time.monotonic()
    events.emit("row", step=0)
    ((behind, event),) = read_events(tmp_path, 0)
    assert event == {"event": "row", "at": event["at"], "step": 0}
    assert began <= event["at"] <= time.monotonic()
    with (tmp_path / "events-0.jsonl").open("ab") as file:
        file.write(b'{"event": "ro')
    assert list(read_events(tmp_path, 0, behind)) == []
    odd = b'w", "st\n\n\xff\xfe\n[1]\n{}\n{"event": 3}\n' + b"[" * 9999 + b"\n"
    with (tmp_path / "events-0.jsonl").open("ab") as file:
        file.write(odd)
    events.emit("row", loss=float("nan"), time=float("inf"))
    ((_, event),) = read_events(tmp_path, 0, behind)
    assert event.items() >= {"event": "row", "loss": None, "time": None}.items()
    assert list(read_events(tmp_path, 1)) == []
    events.set_position(step=2, part="forward", operation="all_gather")
    assert str(position_of(tmp_path, 0)) == "all_gather in forward of step 2"
    assert position_of(tmp_path, 1) is None


def test_a_position_outlives_what_is_written_over_it(tmp_path: Path) -> None:
    place = Events(tmp_path, 1)
    place.set_position(step=2, part="backward", operation="all_reduce")
    assert str(position_of(tmp_path, 1)) == "all_reduce in backward of step 2"
    place.set_position()
    assert str(position_of(tmp_path, 1)) == "backward of step 2"
    place.set_position(part="x" * 999)
    assert position_of(tmp_path, 1) is None  # too long to be told, and nothing else is overwritten
    assert (tmp_path / "where-1").stat().st_size == 256


def test_what_the_profiler_writes_is_no_last_word(tmp_path: Path) -> None:
    log = tmp_path / "rank-1.log"
    log.write_text("Bus error\nUSDT:2026-11-22 17:50:29 23:23 Handler.cpp:59] profiler_stop\n")
    assert last_line(log) == "Bus error"
    log.write_text("USDT:2026-11-22 17:50:12 23:23 Handler.cpp:52] profiler_start\n")
    assert last_line(log, "") == ""


def test_each_rank_is_kept_on_its_processors_and_what_it_starts(tmp_path: Path) -> None:
    usable = sorted(os.sched_getaffinity(0))
    bound = (frozenset(usable[:1]), frozenset(usable[-1:]))
    program = tmp_path / "rank.py"
    program.write_text(
        HEAD
        + """
child = "import os; print(sorted(os.sched_getaffinity(0)))"
there = subprocess.run([sys.executable, "-c", child], capture_output=True, text=True).stdout
events.emit("row", step=1, own=sorted(os.sched_getaffinity(0)), child=there.strip())
events.emit("done")
"""
    )
    command = Command(
        argv=(sys.executable, str(program), str(tmp_path)),
        ranks=2,
        env={"TRAINRIG_TEST_RANKS": str(tmp_path)},
        cpus=bound,
    )
    seen: dict[int, Any] = {}

    def keep(rank: int, event: Mapping[str, Any]) -> None:
        if event["event"] == "row":
            seen[rank] = event

    ended = launch(command, tmp_path, on_event=keep)
    assert ended.status is Status.OK, ended.reason
    for rank, cpus in enumerate(bound):
        assert seen[rank]["own"] == sorted(cpus)
        assert seen[rank]["child"] == str(sorted(cpus))
    assert os.sched_getaffinity(0) == set(usable)


def test_the_lost_rank_s_processors_go_with_it() -> None:
    own = tuple(frozenset({number}) for number in range(3))
    left = supervisor._without_device(Command(argv=(), ranks=3, fewer=(2,), cpus=own), 1)
    assert left.cpus == (frozenset({0}), frozenset({2}))


def test_processors_that_there_are_not_are_one_line(tmp_path: Path) -> None:
    sleeper = [sys.executable, "-c", "import time; time.sleep(60)"]
    child = supervisor.Child(sleeper, tmp_path / "log", {})
    try:
        with pytest.raises(UnavailableError, match="cannot be bound to processors 1000 to 1000"):
            child.bind({1000})
    finally:
        child.kill()
        child.wait(5.0)
