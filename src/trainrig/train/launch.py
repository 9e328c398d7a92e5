"""Start the ranks of a training, watch them, and leave none behind.

Each rank is a process in a session of its own with RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and
MASTER_PORT in its environment: what torchrun gives, without its agent, which was seen to ignore
SIGTERM for minutes after a link had failed.  Here nothing is asked to end: at the first death,
after a silence, at Ctrl-C and at the end all that is left is killed, with what it started.  Should
this process be killed itself, the kernel kills the ranks.

The parent sleeps and reads what the ranks tell (`telling`); it never reads their logs, but for the
last line of one that died without a word.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainrig.errors import UnavailableError, UsageError
from trainrig.record import Status
from trainrig.train.interpreters import without_ours
from trainrig.train.telling import Where, read_events, where_is

SILENCE = 600.0
"""Seconds in which no rank says a word or goes on to another part: the first step may compile."""
LONGEST = 3600.0
"""The most that it may be: a collective that waits longer is given up by the rank itself."""
PARENT = "TRAINRIG_PARENT"
"""Whose end is a rank's end too: it may have come before a rank could ask to be told."""
_CHANCES = 3
_POLL = 0.05
_GRACE = 2.0
"""After the first death the others have so long to tell why they cannot go on."""

Heard = Callable[[int, Mapping[str, Any]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """How a backend is started."""

    argv: tuple[str, ...]
    """Of each rank."""
    ranks: int = 1
    env: Mapping[str, str] = field(default_factory=dict)
    prepare: tuple[str, ...] = ()
    """A program of ours that runs first, alone."""
    foreign: bool = False
    """The ranks' Python has packages of its own: no path of ours is handed on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How it ended."""

    status: Status
    reason: str | None = None
    duration: float = 0.0


def launch(
    command: Command,
    folder: Path,
    *,
    silence: float = SILENCE,
    heard: Heard = lambda _rank, _event: None,
) -> Ended:
    """Run a command's ranks to their end.  UsageError for a port that is taken.

    A free port that another program takes before the first rank does is another one's turn.
    """
    began = time.monotonic()
    if command.prepare:
        ended = _prepare(command, folder, silence)
        if ended is not None:
            return ended
    status, reason = Status.FAILED, None
    for _ in range(_CHANCES):
        with _Ranks(command, folder) as ranks:
            status, reason = ranks.watch(silence, heard)
        if not ranks.lost_port or "MASTER_PORT" in os.environ:
            break
        for path in folder.glob("events-*.jsonl"):
            path.unlink()
    return Ended(status=status, reason=reason, duration=time.monotonic() - began)


def _prepare(command: Command, folder: Path, silence: float) -> Ended | None:
    """The program that runs first; None if it went well."""
    first = Command(argv=command.prepare, env=command.env)
    with _Ranks(first, folder, log="prepare") as ranks:
        code = ranks.wait(silence)
        struck = code == -signal.SIGKILL and ranks.were_struck()
    if code == 0:
        return None
    if code is None:
        return Ended(status=Status.TIMEOUT, reason=f"the preparation took over {silence:.0f} s")
    if struck:
        words = "the kernel's out-of-memory killer ended the preparation"
        return Ended(status=Status.OOM, reason=words)
    said = f"ended by {_signal(-code)}" if code < 0 else _last_line(folder / "prepare-0.log")
    return Ended(status=Status.FAILED, reason=f"the preparation failed: {said}")


class _Ranks:
    """The processes.  Leaving the context kills what is left of them."""

    def __init__(self, command: Command, folder: Path, log: str = "rank") -> None:
        self._folder, self._log = folder, log
        port = master_port() if command.ranks > 1 else 0
        self._kills_before = _oom_kills()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._died: list[int] = []
        self.lost_port = False
        """Whether another program took the ranks' port."""
        try:
            for rank in range(command.ranks):
                self._processes.append(self._start(command, rank, port))
        except BaseException:
            self.kill()
            raise

    def _start(self, command: Command, rank: int, port: int) -> subprocess.Popen[bytes]:
        env = _place_of(rank, command.ranks, port) if command.ranks > 1 else {}
        env[PARENT] = str(os.getpid())
        with (self._folder / f"{self._log}-{rank}.log").open("wb") as log:
            try:
                return subprocess.Popen(
                    command.argv,
                    env=_environment(command) | env | dict(command.env),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,  # Ctrl-C in the terminal reaches the parent alone
                )
            except OSError as error:  # too many processes, no interpreter
                raise UnavailableError(
                    f"rank {rank} cannot be started: {error.strerror}: {command.argv[0]}"
                ) from None

    def __enter__(self) -> _Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        """End every rank and all that it started."""
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError, PermissionError):  # it is over, or was
                os.killpg(process.pid, signal.SIGKILL)
        for process in self._processes:
            process.wait()

    def wait(self, timeout: float) -> int | None:
        """The exit code of a single process; None if it takes longer."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._processes[0].wait(timeout)
        return None

    def were_struck(self) -> bool:
        """Whether the kernel's out-of-memory killer has struck since they were started."""
        return _oom_kills() > self._kills_before

    def watch(self, silence: float, heard: Heard) -> tuple[Status, str | None]:
        """Until all have ended well, one has not, or none has gone on for ``silence``."""
        offsets, last, places = [0] * len(self._processes), time.monotonic(), self._places()
        events: list[list[Mapping[str, Any]]] = [[] for _ in self._processes]
        while True:
            codes = [process.poll() for process in self._processes]
            before, places = places, self._places()
            if self._hear(offsets, events, heard) or places != before:
                last = time.monotonic()
            self._died += [r for r, c in enumerate(codes) if c is not None and r not in self._died]
            if all(code is not None for code in codes):
                break
            if any(code != 0 or not _is_done(events[r]) for r, code in _ended(codes)):
                self._listen_on(offsets, events, heard)
                break
            if time.monotonic() - last > silence:
                return Status.TIMEOUT, self._who_waits(silence)
            time.sleep(_POLL)
        return self._judge([process.poll() for process in self._processes], events)

    def _hear(
        self, offsets: list[int], events: list[list[Mapping[str, Any]]], heard: Heard
    ) -> bool:
        """New events of all ranks; whether there were any."""
        any_new = False
        for rank in range(len(self._processes)):
            for behind, event in read_events(self._folder, rank, offsets[rank]):
                offsets[rank], any_new = behind, True
                if event["event"] in ("failed", "done"):
                    events[rank].append(event)
                    self.lost_port |= event.get("kind") == "port"
                heard(rank, event)
        return any_new

    def _listen_on(
        self, offsets: list[int], events: list[list[Mapping[str, Any]]], heard: Heard
    ) -> None:
        """After a death: what the others still say."""
        until = time.monotonic() + _GRACE
        while time.monotonic() < until and None in [p.poll() for p in self._processes]:
            self._hear(offsets, events, heard)
            time.sleep(_POLL)
        self._died += [
            rank
            for rank, process in enumerate(self._processes)
            if process.poll() is not None and rank not in self._died
        ]
        self._hear(offsets, events, heard)

    def _judge(
        self, codes: Sequence[int | None], events: Sequence[Sequence[Mapping[str, Any]]]
    ) -> tuple[Status, str | None]:
        """What became of the training, and which rank is to blame for it."""
        done = [_is_done(told) for told in events]
        if all(code == 0 for code in codes) and all(done):
            return Status.OK, None
        for rank in self._died:
            code = codes[rank]
            if code == -signal.SIGKILL and self.were_struck():
                where = self._at(rank)
                return Status.OOM, f"the kernel's out-of-memory killer ended rank {rank}{where}"
            if code is not None and code < 0:
                return Status.FAILED, f"rank {rank} was ended by {_signal(-code)}{self._at(rank)}"
        failed = [
            (rank, event)
            for rank in self._died
            for event in events[rank]
            if event["event"] == "failed"
        ]
        failed.sort(key=lambda found: found[1].get("kind") == "peer")
        speechless = [rank for rank in self._died if not events[rank]]
        if failed and (failed[0][1].get("kind") != "peer" or not speechless):
            rank, event = failed[0]
            status = Status.OOM if event.get("kind") == "oom" else Status.FAILED
            return status, f"rank {rank}: {event.get('reason')}"
        rank = [*speechless, *(rank for rank in self._died if codes[rank]), *self._died][0]
        said = _last_line(self._folder / f"{self._log}-{rank}.log")
        where = self._at(rank)
        return Status.FAILED, f"rank {rank} ended with exit code {codes[rank]}{where}: {said}"

    def _places(self) -> dict[int, Where | None]:
        return {rank: where_is(self._folder, rank) for rank in range(len(self._processes))}

    def _at(self, rank: int) -> str:
        where = where_is(self._folder, rank)
        return f" in {where}" if where is not None else ""

    def _who_waits(self, silence: float) -> str:
        """After a silence: who waits in which collective, and who did not come there."""
        places = self._places()
        stopped = {r for r, process in enumerate(self._processes) if _is_stopped(process.pid)}
        waiting = [
            f"rank {r} waits in {p}"
            for r, p in places.items()
            if p and p.operation and r not in stopped
        ]
        absent = [
            f"rank {r} {'is stopped' if r in stopped else 'is'} in {p}"
            if p
            else f"rank {r} has not said where it is"
            for r, p in places.items()
            if p is None or not p.operation or r in stopped
        ]
        return f"no word for {silence:.0f} s: " + "; ".join([*absent, *waiting])


def _is_done(events: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a rank's last word was that it is done."""
    return bool(events) and events[-1]["event"] == "done"


def _ended(codes: Sequence[int | None]) -> list[tuple[int, int]]:
    """Those that have ended, with their exit codes."""
    return [(rank, code) for rank, code in enumerate(codes) if code is not None]


def _is_stopped(pid: int) -> bool:
    """Whether a process is held by SIGSTOP or a debugger, where the system tells."""
    with contextlib.suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "Tt"
    return False


def master_port() -> int:
    """MASTER_PORT where it is set, else a free one.

    UsageError if it is taken, UnavailableError where nobody would be heard on it.
    """
    given = os.environ.get("MASTER_PORT")
    if given is not None and not (given.isdecimal() and 0 < int(given) < 65536):
        raise UsageError(f"MASTER_PORT = {given!r} is no port", "a number from 1 to 65535")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", int(given or 0)))
        except OSError as error:
            raise UsageError(
                f"port {given} is not to be had: {error.strerror}",
                "unset MASTER_PORT, and a free one is taken",
            ) from None
        port = int(probe.getsockname()[1])
    _check_loopback()
    return port


def _check_loopback() -> None:
    """Raise UnavailableError where ranks would wait for each other in vain."""
    with socket.socket() as listening:
        try:
            listening.bind(("127.0.0.1", 0))
            listening.listen()
            socket.create_connection(listening.getsockname(), timeout=10.0).close()
        except OSError as error:
            raise UnavailableError(
                f"ranks cannot reach each other by 127.0.0.1: {error.strerror or error}",
                "ip link set lo up, or see what the firewall says",
            ) from None


def _place_of(rank: int, ranks: int, port: int) -> dict[str, str]:
    """A rank's place among the others.  A single process has none: engines wrap by its presence."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


_PLACES = re.compile(
    r"((LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE)|ROLE_NAME|MASTER_(ADDR|PORT))$"
    r"|(TORCHELASTIC|ACCELERATE|FSDP|PMI|OMPI_COMM|MV2_COMM)_"
)
"""Variables of a job that this process may be a part of; its ranks are not."""


def _environment(command: Command) -> dict[str, str]:
    """Ranks in our Python import the package that this process runs; the working folder is none."""
    outside = {name: value for name, value in os.environ.items() if not _PLACES.match(name)}
    if command.foreign:
        return without_ours(outside)
    own = str(Path(__file__).resolve().parent.parent.parent)
    path = os.pathsep.join(filter(None, [own, outside.get("PYTHONPATH")]))
    return outside | {"PYTHONPATH": path, "PYTHONSAFEPATH": "1"}


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal has no name
        return f"signal {number}"


def _oom_kills() -> int:
    """How often the kernel's out-of-memory killer has struck since boot; 0 where unreadable."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            name, _, value = line.partition(" ")
            if name == "oom_kill":
                return int(value)
    return 0


def _last_line(log: Path) -> str:
    try:
        lines = log.read_text(errors="replace").strip().splitlines()
    except OSError:
        lines = []
    return lines[-1][:200] if lines else "it said nothing"
