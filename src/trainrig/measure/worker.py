"""The parent's side of a worker process: one case at a time, each under a hard time limit.

A crash, an out-of-memory kill, a hang or garbage instead of a reply costs one
case: the reply says what happened and the worker is started afresh for the next
one.  The parent sleeps in `select` while a case runs, and takes no processor
time from it.  Every request has a number that its reply must repeat, so that no
stale answer is ever taken for the next case's.

The kernel ends a worker with the thread that started it (PR_SET_PDEATHSIG):
start workers from a thread that outlives them.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from pydantic import ConfigDict, TypeAdapter, ValidationError

from trainrig.errors import UnavailableError, first_problem
from trainrig.measure.timing import Settings
from trainrig.record import Case, Status
from trainrig.units import format_time

# Importing torch from a cold disk takes tens of seconds on some machines.
START_TIMEOUT = 120.0
# The second time its files are in memory.
RESTART_TIMEOUT = 30.0
_TICK = 1.0
# A reply with thousands of samples is 50 kB; what is longer than this is none.
_MAX_LINE = 1 << 22

Heard = Callable[[Mapping[str, Any]], None]

# The worker's word that a held case is prepared.
HOLDING = b'{"holding": true}'


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One case for a worker."""

    family: str
    case: Case
    settings: Settings
    timeout: float
    """Hard limit in seconds until it says something: the reply, preparation and the answer's check
    included, or news of a training's next step."""
    limit: float = math.inf
    """Hard limit in seconds of the whole case, whatever it says meanwhile."""
    hold: bool = False
    """Wait for the parent's word between preparing and timing: several devices start together."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """What the program needs besides and the case does not say: where data lies."""

    def to_line(self, number: int) -> bytes:
        """The request as the worker reads it; its reply repeats ``number``."""
        settings = {
            "max_time": self.settings.max_time,
            "warmup_time": self.settings.warmup_time,
            "target": self.settings.target,
        }
        request = {
            "id": number,
            "family": self.family,
            "case": dict(self.case),
            "settings": settings,
            "hold": self.hold,
            "extra": dict(self.extra),
        }
        return json.dumps(request).encode() + b"\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What became of a case in one worker."""

    __pydantic_config__: ClassVar[ConfigDict] = {"extra": "forbid", "allow_inf_nan": False}

    status: Status
    reason: str | None = None
    samples: tuple[float, ...] = ()
    stop: str | None = None
    disturbed: str | None = None
    conditions: Case = field(default_factory=dict)
    started: str | None = None
    duration: float | None = None


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
        self._heard: Heard = lambda _: None
        self._start()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*self._command, self.device],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # Ctrl-C in the terminal reaches the parent alone
            )
        self._buffer = b""
        self._ready: dict[str, Any] | None = None

    def wait_ready(self, timeout: float = START_TIMEOUT) -> dict[str, Any]:
        """What the worker says of itself once torch is loaded.

        Raises UnavailableError when it does not come up.
        """
        if self._ready is not None:
            return self._ready
        line = self._read_line(timeout)
        self._ready = _parse_ready(line)
        if self._ready is None:
            alive = line is None and self._reap() is None
            self._kill()
            said = f"it said {line[:80]!r}" if line is not None else self._last_words()
            how = f"not within {timeout:.0f} s" if alive else said
            raise UnavailableError(
                f"the worker for {self.device} did not start: {how}", f"its log is {self._log}"
            )
        return self._ready

    def run(
        self,
        request: Request,
        released: Callable[[], None] = lambda: None,
        heard: Heard = lambda _: None,
    ) -> Reply:
        """Run one case.  Whatever happens to the worker becomes the reply's status.

        A request with `hold` is prepared first; then ``released`` is called, and
        when it returns the timing starts.  ``heard`` is given what the worker tells
        before its reply, at once.
        """
        self._busy = True
        self._heard = heard
        try:
            reply = self._run(request, released)
        finally:
            self._busy = False
            if self._stopped:
                self._close()
        return reply

    def _run(self, request: Request, released: Callable[[], None]) -> Reply:
        start = time.monotonic()
        try:
            self._come_up()
        except UnavailableError as error:
            if request.hold:
                released()
            return self._replace(Reply(status=Status.FAILED, reason=error.message))
        self._number += 1
        kills_before = _oom_kills()
        self._send(request.to_line(self._number))
        until = start + request.limit
        line = self._read_line(request.timeout, until)
        if request.hold:
            released()  # also when it died: the others must not wait for it
            if line == HOLDING:
                self._send(b"go\n")
                line = self._read_line(request.timeout, until)
        duration = time.monotonic() - start
        if line is None:
            patience = min(request.timeout, request.limit)
            return self._replace(self._post_mortem(patience, kills_before, duration))
        try:
            return parse_reply(line, self._number)
        except ValueError as error:
            reason = f"the worker's answer makes no sense: {error}"
            return self._replace(Reply(status=Status.FAILED, reason=reason, duration=duration))

    def _come_up(self) -> None:
        """Ready for a case; one that died since the last case is started again first."""
        was_ready = self._ready is not None
        if was_ready and self._process.poll() is not None:
            self._restart()
        self.wait_ready(START_TIMEOUT if self._number == 0 else RESTART_TIMEOUT)

    def _replace(self, reply: Reply) -> Reply:
        """Start afresh, since what the process would say next cannot be trusted."""
        self._restart()
        return reply

    def _restart(self) -> None:
        self._kill()
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
        self._kill()
        if not self._busy:  # else whoever reads from the pipes closes them
            self._close()

    def _post_mortem(self, timeout: float, kills_before: int, duration: float) -> Reply:
        """Why no reply came; the process is gone afterwards."""
        code = self._reap()
        self._kill()
        if code is None:
            reason = f"no answer within {format_time(timeout)}; the worker was killed"
            return Reply(status=Status.TIMEOUT, reason=reason, duration=duration)
        if code == -signal.SIGKILL and _oom_kills() > kills_before:
            reason = "the kernel's out-of-memory killer ended the worker"
            return Reply(status=Status.OOM, reason=reason, duration=duration)
        how = f"signal {_signal_name(-code)}" if code < 0 else f"exit code {code}"
        reason = f"the worker died with {how}: {self._last_words()}"
        return Reply(status=Status.FAILED, reason=reason, duration=duration)

    def _read_line(self, timeout: float, until: float = math.inf) -> bytes | None:
        """The next line that is no news, or None at death or after ``timeout`` seconds of silence.

        News is a sign of life: the time starts anew, but none is waited for beyond ``until``.
        """
        while True:
            line = self._read_any(min(time.monotonic() + timeout, until))
            news = _parse_news(line)
            if news is None:
                return line
            self._heard(news)

    def _read_any(self, deadline: float) -> bytes | None:
        assert self._process.stdout is not None
        pipe = self._process.stdout.fileno()
        while b"\n" not in self._buffer:
            left = deadline - time.monotonic()
            if left <= 0.0:
                return None
            readable, _, _ = select.select([pipe], [], [], min(left, _TICK))
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

    def _reap(self) -> int | None:
        """The exit code, or None while it lives; a pipe closes a moment before that is known."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(0.5)
        return self._process.poll()

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _close(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()

    def _last_words(self) -> str:
        """The last line of the worker's log."""
        try:
            lines = self._log.read_text(errors="replace").strip().splitlines()
        except OSError:
            lines = []
        return lines[-1][:200] if lines else "it said nothing"


def parse_reply(line: bytes, number: int) -> Reply:
    """The reply in one line from a worker to request ``number``; ValueError if it is none."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        raise ValueError(f"not JSON: {line[:80]!r}") from None
    if not isinstance(found, dict) or found.pop("id", None) != number:
        raise ValueError(f"no reply to request {number}: {line[:80]!r}")
    try:
        reply = _reply_adapter().validate_python(found)
    except ValidationError as error:
        raise ValueError(first_problem(error)) from None
    if reply.status is Status.OK and min(reply.samples, default=0.0) <= 0.0:
        raise ValueError("no samples, or times that are not above zero")
    return reply


def _parse_news(line: bytes | None) -> Mapping[str, Any] | None:
    """What a worker tells before its reply: ``{"news": {...}}``; None for any other line."""
    if line is None or not line.startswith(b'{"news"'):
        return None
    try:
        news = json.loads(line)["news"]
    except (ValueError, RecursionError, KeyError):
        return None
    return news if isinstance(news, dict) else None


def _parse_ready(line: bytes | None) -> dict[str, Any] | None:
    try:
        found = json.loads(line or b"")
    except (ValueError, RecursionError):
        return None
    ready = found.get("ready") if isinstance(found, dict) else None
    return ready if isinstance(ready, dict) else None


@cache
def _reply_adapter() -> TypeAdapter[Reply]:
    return TypeAdapter(Reply)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal has no name
        return str(number)


def _oom_kills() -> int:
    """How often the kernel's out-of-memory killer has struck since boot; 0 where unreadable."""
    try:
        for line in Path("/proc/vmstat").read_text().splitlines():
            name, _, value = line.partition(" ")
            if name == "oom_kill":
                return int(value)
    except (OSError, ValueError):
        pass
    return 0
