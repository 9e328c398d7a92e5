"""The parent's side of a worker process: one case at a time, each under a hard time limit.

A crash, an out-of-memory kill or a hang costs one case: the reply says what
happened and the worker is started afresh for the next one.  The parent sleeps in
`select` while a case runs, and takes no processor time from it.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainrig.errors import UnavailableError
from trainrig.measure.loop import Settings
from trainrig.record import Case, Status

# Importing torch from a cold disk takes tens of seconds on some machines.
START_TIMEOUT = 120.0
_TICK = 1.0

# The worker's word that a held case is prepared.
HOLDING = b'{"holding": true}'


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One case for a worker."""

    family: str
    case: Case
    settings: Settings
    timeout: float
    """Hard limit in seconds, preparation and the answer's check included."""
    hold: bool = False
    """Wait for the parent's word between preparing and timing: several devices start together."""

    def to_line(self) -> bytes:
        """The request as the worker reads it."""
        settings = {
            "max_time": self.settings.max_time,
            "warmup_time": self.settings.warmup_time,
            "target": self.settings.target,
        }
        request = {
            "family": self.family,
            "case": dict(self.case),
            "settings": settings,
            "hold": self.hold,
        }
        return json.dumps(request).encode() + b"\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What became of a case in one worker."""

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
        self._command = command or (sys.executable, "-m", "trainrig.measure.serve")
        self._tick = tick
        self._buffer = b""
        self._ready: dict[str, Any] | None = None
        self._stopped = False
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
        self._ready = None

    def wait_ready(self, timeout: float = START_TIMEOUT) -> dict[str, Any]:
        """What the worker says of itself once torch is loaded.

        Raises UnavailableError when it does not come up.
        """
        if self._ready is None:
            line = self._read_line(timeout)
            if line is None:
                self._kill()
                raise UnavailableError(
                    f"the worker for {self.device} did not start: {self._last_words()}",
                    f"its log is {self._log}",
                )
            self._ready = json.loads(line)["ready"]
        return self._ready

    def run(self, request: Request, released: Callable[[], None] = lambda: None) -> Reply:
        """Run one case.  Whatever happens to the worker becomes the reply's status.

        A request with `hold` is prepared first; then ``released`` is called, and
        when it returns the timing starts.
        """
        self.wait_ready()
        kills_before = _oom_kills()
        start = time.monotonic()
        self._send(request.to_line())
        line = self._read_line(request.timeout)
        if request.hold:
            released()  # also when it died: the others must not wait for it
            if line == HOLDING:
                self._send(b"go\n")
                line = self._read_line(request.timeout)
        if line is not None:
            return _parse_reply(line)
        reply = self._post_mortem(request.timeout, kills_before, time.monotonic() - start)
        if not self._stopped:
            self._start()
        return reply

    def _send(self, data: bytes) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it died between cases: no reply will come
            self._process.stdin.write(data)
            self._process.stdin.flush()

    def stop(self) -> None:
        """End the process, also from another thread; it holds nothing that needs saving."""
        self._stopped = True
        self._kill()

    def _post_mortem(self, timeout: float, kills_before: int, duration: float) -> Reply:
        """Why no reply came; the process is gone afterwards."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            # Its pipe can close a moment before it can be reaped.
            self._process.wait(0.5)
        code = self._process.poll()
        self._kill()
        if code is None:
            reason = f"no answer within {timeout:.0f} s; the worker was killed"
            return Reply(status=Status.TIMEOUT, reason=reason, duration=duration)
        if code == -signal.SIGKILL and _oom_kills() > kills_before:
            reason = "the kernel's out-of-memory killer ended the worker"
            return Reply(status=Status.OOM, reason=reason, duration=duration)
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        reason = f"the worker died with {how}: {self._last_words()}"
        return Reply(status=Status.FAILED, reason=reason, duration=duration)

    def _read_line(self, timeout: float) -> bytes | None:
        """The next line from the worker, or None at its death or after ``timeout`` seconds."""
        assert self._process.stdout is not None
        pipe = self._process.stdout.fileno()
        deadline = time.monotonic() + timeout
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
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
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


def _parse_reply(line: bytes) -> Reply:
    """A reply line as the worker wrote it; what it lacks stays at its default."""
    found = json.loads(line)
    return Reply(
        status=Status(found["status"]),
        reason=found.get("reason"),
        samples=tuple(found.get("samples", ())),
        stop=found.get("stop"),
        disturbed=found.get("disturbed"),
        conditions=found.get("conditions", {}),
        started=found["started"],
        duration=found["duration"],
    )


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
