"""A child that stays and answers requests: one case at a time, each under a hard time limit.

A crash, an out-of-memory kill, a hang or garbage instead of a reply costs one case: the reply says
what happened and the worker is started afresh for the next one, as it is after an error of CUDA,
which leaves its process without the device.  The parent sleeps in `select` while a case runs, and
takes no processor time from it.  Every request has a number that its reply must repeat, so that no
stale answer is ever taken for the next case's.

Requests are JSON lines on the worker's stdin; its events (`events`) come by its stdout: ``ready``
once, ``holding`` where a held case is prepared, ``reply`` for each request.

The kernel ends a worker with the thread that started it (PR_SET_PDEATHSIG): start workers from a
thread that outlives them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import select
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from trainrig.errors import UnavailableError, first_problem
from trainrig.process.child import device_fault
from trainrig.process.events import parse_event
from trainrig.process.programs import last_line
from trainrig.process.supervisor import NOTHING, Child, oom_kills
from trainrig.record import PARENT_CLOCK, WORKER_CLOCK, Case, Status, read_by
from trainrig.units import format_time

# Importing torch from a cold disk takes tens of seconds on some machines.
START_TIMEOUT = 120.0
# The second time its files are in memory.
RESTART_TIMEOUT = 30.0
_TICK = 1.0
# A reply with thousands of samples is 50 kB; what is longer than this is none.
_MAX_LINE = 1 << 22


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One case for a worker."""

    benchmark: str
    case: Case
    settings: Mapping[str, float | None]
    """Sampling time, by the keys of `measure.timing.Settings`."""
    module: str = ""
    """The measuring half of its benchmark: where the worker finds ``prepare``."""
    timeout: float
    """Hard limit in seconds until the reply, preparation and the answer's check included; for a
    held case twice, until it is prepared and from its release."""
    hold: bool = False
    """Wait for the parent's word between preparing and timing: several devices start together."""

    def to_line(self, number: int) -> bytes:
        """Return the request as the worker reads it; its reply repeats ``number``."""
        return json.dumps({"id": number, **dataclasses.asdict(self)}).encode() + b"\n"


@read_by({"extra": "forbid", "allow_inf_nan": False})
class Reply:
    """The outcome of a case in one worker."""

    status: Status
    reason: str | None = None
    samples: tuple[float, ...] = ()
    stop: str | None = None
    disturbed: str | None = None
    conditions: Case = field(default_factory=dict)
    started: str | None = None
    duration: float | None = None
    clock: tuple[float, float] | None = None
    """Times on the worker's own clock when it took the request and when it answered."""


class Worker:
    """A worker process for one device.  Use as a context manager."""

    def __init__(
        self,
        device: str,
        log: Path,
        *,
        command: Sequence[str] | None = None,
        tick: Callable[[], None] = lambda: None,
    ) -> None:
        """Start the process at once and return without waiting for it.

        ``tick`` is called about once a second while a case runs.  ``command``
        replaces the program that serves, for tests that plant faults.
        """
        self.device = device
        self._log = log
        self._command = command or (sys.executable, "-m", "trainrig.measure.worker_main")
        self._tick = tick
        self._number = 0
        self._lock = threading.Lock()  # between a restart and a stop from another thread
        self._stopped = False
        self._busy = False
        self._first: tuple[float, float] | None = None
        self._start()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _start(self) -> None:
        # CUDA's own order is fastest first; the driver's tools count by bus.
        env = {**os.environ, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
        self._child = Child([*self._command, self.device], self._log, env, piped=True)
        self._process = self._child.process
        self._first = None
        self._buffer = b""
        self._ready: dict[str, Any] | None = None

    def wait_ready(self, timeout: float = START_TIMEOUT) -> dict[str, Any]:
        """Return the content of the worker's ``ready`` event, once torch is loaded.

        Raises UnavailableError when it does not come up.
        """
        if self._ready is not None:
            return self._ready
        line = self._read_line(time.monotonic() + timeout)
        event = parse_event(line or b"")
        if event is None or event["event"] != "ready":
            alive = line is None and self._child.wait(0.5) is None
            self._child.end()
            printed = (
                f"it wrote {line[:80]!r}" if line is not None else last_line(self._log, NOTHING)
            )
            why = f"not within {timeout:.0f} s" if alive else printed
            raise UnavailableError(
                f"the worker for {self.device} did not start: {why}", f"its log is {self._log}"
            )
        self._ready = {name: event[name] for name in event if name not in ("event", "at")}
        return self._ready

    def run(self, request: Request, released: Callable[[], None] = lambda: None) -> Reply:
        """Run one case.  Whatever happens to the worker becomes the reply's status.

        A request with `hold` is prepared first; then ``released`` is called, and when it returns
        the timing starts.
        """
        self._busy = True
        try:
            reply = self._run(request, released)
            if not self._is_trusted:  # what the process would say next is not
                self._restart()
            return reply
        finally:
            self._busy = False
            if self._stopped:
                self._close()

    def _run(self, request: Request, released: Callable[[], None]) -> Reply:
        start = time.monotonic()
        self._is_trusted = False
        try:
            self._come_up()
        except UnavailableError as error:
            if request.hold:
                released()
            return Reply(status=Status.FAILED, reason=error.message)
        self._number += 1
        self._child.kills_before = oom_kills()
        self._send(request.to_line(self._number))
        sent = time.monotonic()
        line = self._read_line(time.monotonic() + request.timeout)
        if request.hold:
            released()  # also when it died: the others must not wait for it
            if (parse_event(line or b"") or {}).get("event") == "holding":
                self._send(b"go\n")
                line = self._read_line(time.monotonic() + request.timeout)
        duration = time.monotonic() - start
        if line is None:
            return self._post_mortem(request.timeout, duration)
        try:
            reply = parse_reply(line, self._number)
        except ValueError as error:
            reason = f"the worker's answer makes no sense: {error}"
            return Reply(status=Status.FAILED, reason=reason, duration=duration)
        reply = self._with_clocks(reply, sent, time.monotonic())
        # An error of CUDA stays with its process: the next case needs another one.
        self._is_trusted = not (reply.status is Status.FAILED and device_fault(reply.reason or ""))
        return reply

    def _with_clocks(self, reply: Reply, sent: float, answered: float) -> Reply:
        """Return the reply with what both clocks say since this process's first request.

        A worker that waits takes a request at once, and its answer is read at once.
        """
        if reply.clock is None:
            return reply
        began, ended = reply.clock
        parent_time, first = self._first = self._first or (began, sent)
        clocks = {WORKER_CLOCK: ended - parent_time, PARENT_CLOCK: answered - first}
        return dataclasses.replace(reply, conditions={**reply.conditions, **clocks})

    def _come_up(self) -> None:
        """Ready for a case; one that died since the last case is started again first."""
        was_ready = self._ready is not None
        if was_ready and self._process.poll() is not None:
            self._restart()
        self.wait_ready(START_TIMEOUT if self._number == 0 else RESTART_TIMEOUT)

    def _restart(self) -> None:
        self._child.end()
        with self._lock:
            if not self._stopped:
                self._close()
                self._start()

    def _send(self, data: bytes) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it died between cases: no reply will come
            self._process.stdin.write(data)
            self._process.stdin.flush()

    def stop(self) -> None:
        """End the process, also from another thread; it holds nothing that needs saving."""
        with self._lock:
            self._stopped = True
        self._child.end()
        if not self._busy:  # else whoever reads from the pipes closes them
            self._close()

    def _post_mortem(self, timeout: float, duration: float) -> Reply:
        """Return why no reply came; the process is gone afterwards."""
        code = self._child.wait(0.5)  # a pipe closes a moment before the exit code is known
        self._child.end()
        if code is None:
            reason = f"no answer within {format_time(timeout)}; the worker was killed"
            return Reply(status=Status.TIMEOUT, reason=reason, duration=duration)
        ended = self._child.how_it_ended("the worker")
        return Reply(status=ended.status, reason=ended.reason, duration=duration)

    def _read_line(self, deadline: float) -> bytes | None:
        """Return worker's next line; None at its death, or where none comes until ``deadline``."""
        assert self._process.stdout is not None
        pipe = self._process.stdout.fileno()
        while b"\n" not in self._buffer:
            remaining_s = deadline - time.monotonic()
            if remaining_s <= 0.0:
                return None
            readable, _, _ = select.select([pipe], [], [], min(remaining_s, _TICK))
            if not readable:
                self._tick()
                continue
            data = os.read(pipe, 1 << 16)
            if not data:
                return None
            self._buffer += data
            if len(self._buffer) > _MAX_LINE:
                return self._buffer[:80]
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _close(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


def parse_reply(line: bytes, number: int) -> Reply:
    """Return reply in one line from a worker to request ``number``; ValueError if it is none."""
    try:
        content = json.loads(line)
    except (ValueError, RecursionError):
        raise ValueError(f"not JSON: {line[:80]!r}") from None
    if not isinstance(content, dict) or content.pop("id", None) != number:
        raise ValueError(f"no reply to request {number}: {line[:80]!r}")
    try:
        reply = _reply_adapter().validate_python(
            {name: content[name] for name in content if name not in ("event", "at")}
        )
    except ValidationError as error:
        raise ValueError(first_problem(error)) from None
    if reply.status is Status.OK and min(reply.samples, default=0.0) <= 0.0:
        raise ValueError("no samples, or times that are not above zero")
    return reply


@cache
def _reply_adapter() -> TypeAdapter[Reply]:
    return TypeAdapter(Reply)
