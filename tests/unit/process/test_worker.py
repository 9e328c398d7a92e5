"""Workers that crash, hang, lie or run out of memory: each costs one case and becomes a reply."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainrig.errors import UnavailableError
from trainrig.process import worker as worker_module
from trainrig.process.child import device_fault
from trainrig.process.worker import Reply, Request, Worker, parse_reply
from trainrig.record import Status

FAULTY = (
    sys.executable,
    str(Path(__file__).resolve().parents[3] / "tests" / "support" / "faulty_worker.py"),
)
QUICK = {"max_time": 0.02}


def ask(family: str, timeout: float = 20.0, *, hold: bool = False) -> Request:
    return Request(benchmark=family, case={}, settings=QUICK, timeout=timeout, hold=hold)


@pytest.fixture(autouse=True)
def _find_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(worker_module.__file__).parents[2]))


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Worker]]:
    made: list[Worker] = []

    def start(device: str = "cpu", **given: object) -> Worker:
        made.append(Worker(device, tmp_path / "log", command=FAULTY, **given))
        return made[-1]

    yield start
    for worker in made:
        worker.stop()


def after(worker: Worker, fault: str, timeout: float = 20.0) -> Reply:
    """The reply to a fault, once the next case was seen to run."""
    reply = worker.run(ask(fault, timeout))
    fine = worker.run(ask("fine"))
    assert fine.status is Status.OK, fine
    return reply


def test_a_case_that_runs(make: Callable[..., Worker]) -> None:
    worker = make()
    assert worker.wait_ready()["torch"] == "stand-in"
    reply = worker.run(ask("fine"))
    assert reply.status is Status.OK
    assert reply.samples
    assert min(reply.samples) > 0.0
    assert reply.conditions["clock"] == "host perf_counter"
    assert reply.started is not None
    assert reply.duration is not None


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("abort", "was ended by SIGABRT"),
        ("kill", "was ended by SIGKILL"),
        ("segfault", "was ended by SIGSEGV"),
        ("exit", "exit code 7"),
        ("system-exit", "exit code 9"),
        ("half", "exit code 0"),
    ],
)
def test_a_crash_costs_one_case(make: Callable[..., Worker], fault: str, words: str) -> None:
    reply = after(make(), fault)
    assert reply.status is Status.FAILED
    assert words in str(reply.reason)


def test_a_hang_ends_at_the_limit(make: Callable[..., Worker]) -> None:
    worker = make()
    worker.wait_ready()
    reply = after(worker, "hang", timeout=0.3)
    assert reply.status is Status.TIMEOUT
    assert "300 ms" in str(reply.reason)


def test_a_worker_that_a_driver_holds_is_left_behind(
    make: Callable[..., Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even SIGKILL ends a process within a call of a driver that hangs."""

    def held(timeout: float | None = None) -> int:
        assert timeout is not None, "this would wait for ever"
        raise subprocess.TimeoutExpired("worker", timeout)

    worker = make()
    worker.wait_ready()
    stuck = worker._process
    with monkeypatch.context() as patch:
        patch.setattr(stuck, "wait", held)
        reply = after(worker, "hang", timeout=0.3)
    assert reply.status is Status.TIMEOUT
    assert worker._process is not stuck
    stuck.wait()


def test_the_out_of_memory_killer_is_told_from_a_crash(
    make: Callable[..., Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    kills = iter([4, 4, 5, 5, 5])
    monkeypatch.setattr(worker_module, "oom_kills", lambda: next(kills))
    monkeypatch.setattr("trainrig.process.supervisor.oom_kills", lambda: next(kills))
    reply = after(make(), "kill")
    assert reply.status is Status.OOM
    assert "out-of-memory killer" in str(reply.reason)


@pytest.mark.parametrize(
    ("fault", "status", "words"),
    [
        ("no-memory", Status.OOM, "8 GiB"),
        ("gpu-memory", Status.OOM, "CUDA out of memory"),
        ("cpu-memory", Status.OOM, "allocate memory"),
        ("error", Status.FAILED, "RuntimeError: no such thing"),
        ("unsupported", Status.SKIPPED, "no such operation here"),
        ("wrong", Status.FAILED, "wrong answer before timing: one row is off"),
        ("wrong-when-warm", Status.FAILED, "wrong answer after timing: one row is off"),
    ],
)
def test_a_case_that_fails_keeps_its_worker(
    make: Callable[..., Worker], fault: str, status: Status, words: str
) -> None:
    worker = make()
    worker.wait_ready()
    before = worker._process.pid
    reply = after(worker, fault)
    assert reply.status is status
    assert words in str(reply.reason)
    assert "second line" not in str(reply.reason)
    assert reply.samples == ()
    assert worker._process.pid == before


def test_an_error_of_cuda_costs_its_process(make: Callable[..., Worker]) -> None:
    """Its context is dead: each later case of it would fail by this one's fault."""
    worker = make()
    worker.wait_ready()
    before = worker._process.pid
    reply = after(worker, "cuda-error")
    assert reply.reason == "RuntimeError: CUDA error: an illegal memory access"
    assert worker._process.pid != before


@pytest.mark.parametrize(
    ("reason", "is_fault"),
    [
        ("AcceleratorError: CUDA error: uncorrectable ECC error encountered", True),
        ("RuntimeError: CUDA error: CUBLAS_STATUS_INTERNAL_ERROR when calling", True),
        ("AcceleratorError: CUDA error: unspecified launch failure", True),
        ("the worker was ended by SIGSEGV", True),
        ("the worker was ended by SIGKILL", False),
        ("RuntimeError: CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when calling", False),
        ("RuntimeError: CUDA error: no kernel image is available for execution", False),
        ("wrong answer before timing: 3 wrong elements", False),
        ("ValueError: no such thing", False),
    ],
)
def test_what_is_the_fault_of_a_device(reason: str, is_fault: bool) -> None:
    assert device_fault(reason) is is_fault


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("no-json", "not JSON: b'Segmentation fault"),
        ("endless", "not JSON: b'xxx"),
        ("stale", "no reply to request 1"),
    ],
)
def test_garbage_costs_one_case(make: Callable[..., Worker], fault: str, words: str) -> None:
    """The true reply that follows the garbage is not taken for the next case's."""
    reply = after(make(), fault)
    assert reply.status is Status.FAILED
    assert "makes no sense" in str(reply.reason)
    assert words in str(reply.reason)


def test_what_libraries_print_goes_to_the_log(make: Callable[..., Worker], tmp_path: Path) -> None:
    reply = make().run(ask("chatter"))
    assert reply.status is Status.OK
    log = (tmp_path / "log").read_text()
    for words in ("python was here", "a C library was here", "a child was here"):
        assert words in log


def test_a_worker_that_died_between_cases_is_replaced(make: Callable[..., Worker]) -> None:
    worker = make()
    assert worker.run(ask("leave")).status is Status.OK
    worker._process.wait(10.0)
    assert worker.run(ask("fine")).status is Status.OK


@pytest.mark.parametrize(
    ("device", "words"),
    [
        ("start-exit", "no torch for you"),
        ("start-garbage", "Welcome!"),
        ("start-other", "hello"),
    ],
)
def test_a_worker_that_does_not_start(make: Callable[..., Worker], device: str, words: str) -> None:
    worker = make(device)
    with pytest.raises(UnavailableError, match="did not start") as caught:
        worker.wait_ready()
    assert words in caught.value.message
    assert "log" in str(caught.value.hint)


def test_a_worker_that_hangs_at_the_start(make: Callable[..., Worker]) -> None:
    with pytest.raises(UnavailableError, match="did not start"):
        make("start-hang").wait_ready(0.2)


def test_running_on_a_worker_that_does_not_start_is_a_reply(make: Callable[..., Worker]) -> None:
    reply = make("start-exit").run(ask("fine"))
    assert reply.status is Status.FAILED
    assert "no torch for you" in str(reply.reason)


def test_the_parent_ticks_while_a_case_runs(
    make: Callable[..., Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "_TICK", 0.05)
    ticks: list[int] = []
    worker = make(tick=lambda: ticks.append(1))
    worker.run(ask("hang", 0.4))
    assert ticks


def test_a_held_case_waits_for_the_word(make: Callable[..., Worker]) -> None:
    released: list[int] = []
    reply = make().run(ask("fine", hold=True), lambda: released.append(1))
    assert reply.status is Status.OK
    assert released == [1]


@pytest.mark.parametrize(("device", "fault"), [("cpu", "abort"), ("start-exit", "fine")])
def test_a_held_case_that_dies_holds_nobody_up(
    make: Callable[..., Worker], device: str, fault: str
) -> None:
    released: list[int] = []
    reply = make(device).run(ask(fault, hold=True), lambda: released.append(1))
    assert reply.status is Status.FAILED
    assert released == [1]


def test_stopping_from_another_thread_ends_the_case(make: Callable[..., Worker]) -> None:
    worker = make()
    worker.wait_ready()
    sent = threading.Event()
    send = worker._send

    def send_and_tell(data: bytes) -> None:
        send(data)
        sent.set()

    worker._send = send_and_tell
    replies: list[Reply] = []
    thread = threading.Thread(target=lambda: replies.append(worker.run(ask("hang"))))
    thread.start()
    assert sent.wait(10.0)
    worker.stop()
    thread.join(10.0)
    assert replies[0].status is Status.FAILED
    assert worker._process.poll() is not None
    assert worker._process.stdout is not None
    assert worker._process.stdout.closed


PARENT = """
import sys
from pathlib import Path
from trainrig.process.worker import Request, Worker
worker = Worker("cpu", Path(sys.argv[1]), command=sys.argv[2:])
worker.wait_ready()
print(worker._process.pid, flush=True)
worker.run(Request(benchmark="hang", case={}, settings={"max_time": 1.0}, timeout=600.0))
"""


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="Linux alone ends orphans")
def test_the_worker_dies_with_its_parent(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PARENT, str(tmp_path / "log"), *FAULTY]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        alive = os.pidfd_open(pid)
        try:
            parent.send_signal(signal.SIGKILL)
            gone, _, _ = select.select([alive], [], [], 10.0)
        finally:
            os.close(alive)
    assert gone, f"worker {pid} outlived its parent"


def test_a_good_reply_is_read_whole() -> None:
    line = (
        b'{"id": 3, "status": "ok", "samples": [0.5, 0.25], "stop": "time", "disturbed": "busy",'
        b' "conditions": {"threads": 2, "clock": "host"}, "started": "now", "duration": 1.5}'
    )
    assert parse_reply(line, 3) == Reply(
        status=Status.OK,
        samples=(0.5, 0.25),
        stop="time",
        disturbed="busy",
        conditions={"threads": 2, "clock": "host"},
        started="now",
        duration=1.5,
    )
    with pytest.raises(ValueError, match="no reply to request 4"):
        parse_reply(line, 4)


GOOD = {"id": 1, "status": "ok", "samples": [1e-3], "started": "now", "duration": 1.0}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"Segmentation fault (core dumped)", "not JSON"),
        (b"", "not JSON"),
        (b"\xff\xfe\x00", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[1, 2]", "no reply"),
        (GOOD | {"id": 0}, "no reply"),
        (GOOD | {"id": None}, "no reply"),
        (GOOD | {"status": "splendid"}, "status"),
        ({"id": 1}, "status"),
        (GOOD | {"more": 1}, "more"),
        (GOOD | {"samples": []}, "no samples"),
        (GOOD | {"samples": None}, "samples"),
        (GOOD | {"samples": [float("nan")]}, "samples"),
        (GOOD | {"samples": [1e-3, float("inf")]}, "samples"),
        (GOOD | {"samples": [1e-3, 0.0]}, "not above zero"),
        (GOOD | {"samples": [-1.0]}, "not above zero"),
        (GOOD | {"samples": ["fast"]}, "samples"),
        (GOOD | {"conditions": {"a": {"b": 1}}}, "conditions"),
        (GOOD | {"conditions": {"power_w": float("inf")}}, "conditions"),
        (GOOD | {"duration": "long"}, "duration"),
    ],
)
def test_what_is_no_reply(line: bytes | dict[str, object], words: str) -> None:
    assert parse_reply(json.dumps(GOOD).encode(), 1).samples == (1e-3,)
    data = line if isinstance(line, bytes) else json.dumps(line).encode()
    with pytest.raises(ValueError, match=words) as caught:
        parse_reply(data, 1)
    assert "\n" not in str(caught.value)


@given(
    st.binary(max_size=200)
    | st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from([*GOOD, "conditions", "x"]), inner, max_size=6)
        ),
        max_leaves=12,
    ).map(lambda value: json.dumps(value).encode())
)
@settings(max_examples=200, deadline=None, derandomize=True)
def test_no_line_ends_in_anything_but_a_reply_or_a_reason(line: bytes) -> None:
    with contextlib.suppress(ValueError):
        parse_reply(line, 1)
