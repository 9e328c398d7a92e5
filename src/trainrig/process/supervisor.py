"""Start child processes, watch them, and leave none behind.

`Child` is one process in a session of its own.  `launch` starts the ranks of a training and watches
them to their end; `worker` keeps one child and asks it.

Each rank has RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT in its environment: what
torchrun gives, without its agent, which was seen to ignore SIGTERM for minutes after a link had
failed.  Here nothing is asked to end, but a SIGTERM is passed on (ranks save, and leave): at the
first death, after a stall, at Ctrl-C and at the end all that is left is killed, with what it
started.  Should this process be killed itself, the kernel kills the ranks.

The parent sleeps and reads the ranks' events and heartbeats (`events`); it never reads their logs,
but for the last line of one that died without an event.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from trainrig.errors import UnavailableError, UsageError
from trainrig.process.child import PARENT
from trainrig.process.events import Position, event_line, events_path, position_of, read_events
from trainrig.process.lost_ranks import Lost, place, stalled
from trainrig.process.programs import last_line
from trainrig.process.python_env import without_python_paths
from trainrig.record import Status

STALL_TIMEOUT = 600.0
"""Seconds without an event or a heartbeat of any rank: the first step may compile."""
MAX_STALL_TIMEOUT = 3600.0
"""The most that it may be: a collective that waits longer is given up by the rank itself."""
SAVE_TIMEOUT = 25.0
"""Seconds that ranks have to save after a SIGTERM: Slurm kills after 30."""
NOTHING = "it printed nothing"
DEATH_TIMEOUT = 5.0
"""Seconds for a killed process to die: what a driver holds does so when its call returns."""
_CHANCES = 3
_POLL = 0.05
_TICK = 1.0
_RETRYABLE_KINDS = ("peer", "error")
"""Kinds of failures that another attempt need not have: of a lost peer, a device, a driver."""
_GRACE = 2.0
"""After the first death the others have so long to emit why they cannot go on."""

OnEvent = Callable[[int, Mapping[str, Any]], None]
"""(rank, event), at once."""


class Terminated(KeyboardInterrupt):
    """SIGTERM came: ranks of a training are given the time to save."""


class Child:
    """A process in a session of its own: Ctrl-C in the terminal reaches the parent alone."""

    def __init__(
        self, command: Sequence[str], log: Path, env: Mapping[str, str], *, piped: bool = False
    ) -> None:
        """Start it at once.  ``piped``: stdin and stdout are pipes, else stdout is the log too.

        Raises UnavailableError: too many processes, no such program.
        """
        self.log = log
        self.kills_before = oom_kills()
        with log.open("ab" if piped else "wb") as file:
            try:
                self.process = subprocess.Popen(
                    command,
                    env=env,
                    stdin=subprocess.PIPE if piped else subprocess.DEVNULL,
                    stdout=subprocess.PIPE if piped else file,
                    stderr=file,
                    start_new_session=True,
                )
            except OSError as error:
                words = f"{command[0]} cannot be started: {error.strerror}"
                raise UnavailableError(words) from None

    def wait(self, timeout: float | None) -> int | None:
        """Return the exit code; None if it lives longer."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.process.wait(timeout)
        return None

    def bind(self, cpus: Collection[int]) -> None:
        """Keep it on these processors, and what it starts: it has no threads yet.

        Raises UnavailableError where the system refuses.
        """
        try:
            os.sched_setaffinity(self.process.pid, cpus)
        except ProcessLookupError:
            return  # it is over: how it ended is told elsewhere
        except OSError as error:
            words = f"it cannot be bound to processors {min(cpus)} to {max(cpus)}: {error.strerror}"
            raise UnavailableError(words) from None

    def kill(self) -> None:
        """Kill it and all that it started, without waiting; it may be over already."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def end(self) -> None:
        """Kill it and all that it started, and see it dead."""
        self.kill()
        self.wait(DEATH_TIMEOUT)

    def see_out(self, timeout: float | None = None) -> int | None:
        """Return the exit code, None after ``timeout``.

        Nothing of it is left then, whatever ends this.
        """
        try:
            return self.wait(timeout)
        finally:
            self.end()

    def how_it_ended(self, name: str, where: str = "") -> Ended:
        """Why a child that is over has failed: the memory's killer, a signal or its exit code."""
        code, words = self.process.returncode, last_line(self.log, "")
        if code == -signal.SIGKILL and oom_kills() > self.kills_before:
            reason = f"the kernel's out-of-memory killer ended {name}{where}"
            return Ended(status=Status.OOM, reason=reason)
        if code < 0:
            how = f"was ended by {signal_name(-code)}{where}" + (f": {words}" if words else "")
        else:
            how = f"ended with exit code {code}{where}: {words or NOTHING}"
        return Ended(status=Status.FAILED, reason=f"{name} {how}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """Command that starts the ranks of a training."""

    argv: tuple[str, ...]
    """Of each rank."""
    ranks: int = 1
    env: Mapping[str, str] = field(default_factory=dict)
    prepare: tuple[str, ...] = ()
    """A program of ours that runs first, alone."""
    external: bool = False
    """The ranks' Python has packages of its own: no path of ours is handed on."""
    max_restarts: int = 0
    """Most restarts after a rank was lost; all ranks are started again."""
    fewer: tuple[int, ...] = ()
    """Numbers of ranks that it may go on with where one stays lost, the largest first."""
    cpus: tuple[frozenset[int], ...] = ()
    """The processors that each rank is bound to; none of a rank that is not bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """Status and reason of a command, or a child, that ended."""

    status: Status
    reason: str | None = None
    duration: float = 0.0
    lost: Lost | None = None
    """The rank whose loss ended it: others may go on where they have a checkpoint."""


def launch(
    command: Command,
    folder: Path,
    *,
    stall_timeout: float = STALL_TIMEOUT,
    limit: float = math.inf,
    on_event: OnEvent = lambda _rank, _event: None,
    tick: Callable[[], None] = lambda: None,
) -> Ended:
    """Run a command's ranks to their end, for ``limit`` seconds at most.

    ``tick`` is called about once a second meanwhile.

    A rank that dies or hangs ends all.  They are started again up to ``command.max_restarts``
    times, and find by themselves what they go on from; after an attempt without a step it is with
    fewer ranks, where the command allows that: one stays lost.  What has a reason of its own (no
    memory, a loss that is no number) would end so again, and is left.

    UsageError for a port that is taken.
    """
    began = time.monotonic()
    if command.prepare and (failed := _prepare(command, folder, stall_timeout)) is not None:
        return failed
    restarts = 0
    while True:
        stepped: list[int] = []

        def watched(rank: int, event: Mapping[str, Any], stepped: list[int] = stepped) -> None:
            if event["event"] == "row":
                stepped.append(rank)
            on_event(rank, event)

        ended = _attempt(command, folder, stall_timeout, began + limit, watched, tick)
        if ended.lost is None or restarts == command.max_restarts:
            return replace(ended, duration=time.monotonic() - began)
        restarts += 1
        if not stepped and command.fewer:
            command = _without_device(command, ended.lost.rank)
        restart = {**ended.lost.event(), "ranks": command.ranks}
        with events_path(folder, 0).open("ab") as file:  # which no rank has open now
            file.write(event_line("restart", **restart))


def _without_device(command: Command, rank: int) -> Command:
    """Return next smaller number of ranks; on GPUs that are named, without that of the lost one."""
    env = dict(command.env)
    if devices := env.get(_DEVICES, "").split(",") if _DEVICES in env else []:
        env[_DEVICES] = ",".join(device for n, device in enumerate(devices) if n != rank)
    cpus = tuple(device for n, device in enumerate(command.cpus) if n != rank)
    return replace(command, ranks=command.fewer[0], fewer=command.fewer[1:], env=env, cpus=cpus)


_DEVICES = "CUDA_VISIBLE_DEVICES"


def _attempt(
    command: Command,
    folder: Path,
    stall_timeout: float,
    until: float,
    on_event: OnEvent,
    tick: Callable[[], None],
) -> Ended:
    """Return one start of all ranks, to their end.

    Where another program takes a free port before the first rank does, they are started again on
    another one.
    """
    before = {path: path.stat().st_size for path in folder.glob("events-*.jsonl")}
    chances = _CHANCES
    while True:
        chances -= 1
        with _Ranks(command, folder) as ranks:
            ended = ranks.watch(stall_timeout, until, on_event, tick)
        if not ranks.lost_port or "MASTER_PORT" in os.environ or not chances:
            return ended
        for path in folder.glob("events-*.jsonl"):
            os.truncate(path, before.get(path, 0))


def follow(command: Command, folder: Path) -> int:
    """Run one rank whose place ``command.env`` says, and whose others run elsewhere: its exit code.

    Its log is rank.log in ``folder``.  It is killed with us.
    """
    env = _environment(external=command.external) | dict(command.env)
    code = Child(command.argv, folder / "rank.log", env).see_out()
    assert code is not None
    return code


def _prepare(command: Command, folder: Path, timeout: float) -> Ended | None:
    """Run the program that comes first; None if it went well."""
    env = _environment(external=False) | dict(command.env)
    child = Child(command.prepare, folder / "prepare.log", env)
    if (code := child.see_out(timeout)) is None:
        return Ended(status=Status.TIMEOUT, reason=f"the preparation took over {timeout:.0f} s")
    return child.how_it_ended("the preparation") if code else None


class _Ranks:
    """The ranks' processes.  Leaving the context kills what is left of them."""

    def __init__(self, command: Command, folder: Path) -> None:
        self._folder = folder
        self.children: list[Child] = []
        self._died: list[int] = []
        sizes = [events_path(folder, rank) for rank in range(command.ranks)]
        self._offsets = [path.stat().st_size if path.exists() else 0 for path in sizes]
        self._last: list[list[Mapping[str, Any]]] = [[] for _ in range(command.ranks)]
        """Each rank's ``failed`` and ``done`` events."""
        self._on_event: OnEvent = lambda _rank, _event: None
        self.lost_port = False
        """True after another program took the ranks' port."""
        env = _environment(external=command.external)
        if command.ranks > 1:
            size = str(command.ranks)
            env |= {"WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
            env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(master_port())}
        try:
            for rank in range(command.ranks):
                if command.ranks > 1:  # a single one has no place: engines wrap by its presence
                    env |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
                log = folder / f"rank-{rank}.log"
                self.children.append(Child(command.argv, log, env | dict(command.env)))
                if rank < len(command.cpus) and command.cpus[rank]:
                    self.children[-1].bind(command.cpus[rank])
        except BaseException:
            self.kill()
            raise

    def __enter__(self) -> _Ranks:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is not None and issubclass(kind, Terminated):
                self._let_ranks_save()
        finally:
            self.kill()

    def _let_ranks_save(self) -> None:
        """Pass SIGTERM on: a rank that saves does, and leaves; any other is gone at once."""
        for child in self.children:
            if child.process.poll() is None:
                child.process.terminate()
        end = time.monotonic() + SAVE_TIMEOUT
        while None in self._codes() and time.monotonic() < end:
            time.sleep(_POLL)
        self._read_events(self._on_event)

    def kill(self) -> None:
        """End every rank and all that it started."""
        for child in self.children:
            child.kill()
        for child in self.children:
            child.wait(DEATH_TIMEOUT)

    def watch(
        self, stall_timeout: float, until: float, on_event: OnEvent, tick: Callable[[], None]
    ) -> Ended:
        """Until all have ended well, one has not, or none has moved for ``stall_timeout``.

        ``until``: when they are given up whatever they do, on time.monotonic.
        """
        self._on_event = on_event
        last = ticked = time.monotonic()
        positions = self._positions()
        while True:
            codes = self._codes()
            before, positions = positions, self._positions()
            if self._read_events(on_event) or positions != before:
                last = time.monotonic()
            ended = [rank for rank, code in enumerate(codes) if code is not None]
            if not all(codes[rank] == 0 and self._is_done(rank) for rank in ended):
                last = time.monotonic()  # the events that the others still emit
                while time.monotonic() < last + _GRACE and None in self._codes():
                    self._read_events(on_event)
                    time.sleep(_POLL)
                self._codes()
                self._read_events(on_event)
                return self._blame()
            if len(ended) == len(codes):
                return Ended(status=Status.OK)
            if time.monotonic() - last > stall_timeout:
                lost = stalled(self._folder, self._processes(), stall_timeout)
                return Ended(status=Status.TIMEOUT, reason=lost.cause, lost=lost)
            if time.monotonic() > until:
                return Ended(status=Status.TIMEOUT, reason="the time for it was over before it was")
            if time.monotonic() - ticked > _TICK:
                ticked = time.monotonic()
                tick()
            time.sleep(_POLL)

    def _codes(self) -> list[int | None]:
        """Return the exit codes; who died is noted in the order in which it is seen."""
        codes = [child.process.poll() for child in self.children]
        ended = [rank for rank, code in enumerate(codes) if code is not None]
        self._died += [rank for rank in ended if rank not in self._died]
        return codes

    def _is_done(self, rank: int) -> bool:
        """Return whether a rank's last event is ``done``."""
        return bool(self._last[rank]) and self._last[rank][-1]["event"] == "done"

    def _read_events(self, on_event: OnEvent) -> bool:
        """Hand on new events of all ranks; whether there were any."""
        any_new = False
        for rank in range(len(self.children)):
            for behind, event in read_events(self._folder, rank, self._offsets[rank]):
                self._offsets[rank], any_new = behind, True
                if event["event"] in ("failed", "done"):
                    self._last[rank].append(event)
                    self.lost_port |= event.get("kind") == "port"
                on_event(rank, event)
        return any_new

    def _blame(self) -> Ended:
        """Return the rank that died first by the evidence, and its reason."""
        codes = self._codes()
        failures = [
            (rank, event)
            for rank in self._died
            for event in self._last[rank]
            if event["event"] == "failed"
        ]
        failures.sort(key=lambda failure: failure[1].get("kind") == "peer")
        killed = [rank for rank in self._died if (codes[rank] or 0) < 0]
        silent = [rank for rank in self._died if not self._last[rank]]
        if not killed and failures and (failures[0][1].get("kind") != "peer" or not silent):
            rank, event = failures[0]
            status = Status.OOM if event.get("kind") == "oom" else Status.FAILED
            ended = Ended(status=status, reason=f"rank {rank}: {event.get('reason')}")
            return self._with_lost(ended, rank) if event.get("kind") in _RETRYABLE_KINDS else ended
        rank = [*killed, *silent, *(rank for rank in self._died if codes[rank]), *self._died][0]
        where = place(position_of(self._folder, rank), *self._processes()[rank])
        ended = self.children[rank].how_it_ended(f"rank {rank}", where)
        return ended if ended.status is Status.OOM else self._with_lost(ended, rank)

    def _with_lost(self, ended: Ended, rank: int) -> Ended:
        host, pid = self._processes()[rank]
        position, cause = position_of(self._folder, rank), ended.reason or ""
        lost = Lost(cause=cause, rank=rank, host=host, pid=pid, position=position)
        return replace(ended, lost=lost)

    def _processes(self) -> dict[int, tuple[str, int | None]]:
        host = socket.gethostname()
        return {rank: (host, child.process.pid) for rank, child in enumerate(self.children)}

    def _positions(self) -> dict[int, Position | None]:
        return {rank: position_of(self._folder, rank) for rank in range(len(self.children))}


def master_port() -> int:
    """MASTER_PORT where it is set, else a free one.

    UsageError if it is taken, UnavailableError where the ranks could not reach each other on it.
    """
    inherited_port = os.environ.get("MASTER_PORT")
    if inherited_port is not None and not (
        inherited_port.isdecimal() and 0 < int(inherited_port) < 65536
    ):
        raise UsageError(f"MASTER_PORT = {inherited_port!r} is no port", "a number from 1 to 65535")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", int(inherited_port or 0)))
        except OSError as error:
            raise UsageError(
                f"port {inherited_port} is not available: {error.strerror}",
                "unset MASTER_PORT, and a free one is taken",
            ) from None
        port = int(probe.getsockname()[1])
    with socket.socket() as listening:
        try:
            listening.bind(("127.0.0.1", 0))
            listening.listen()
            socket.create_connection(listening.getsockname(), timeout=10.0).close()
        except OSError as error:  # they would wait for each other in vain
            raise UnavailableError(
                f"ranks cannot reach each other by 127.0.0.1: {error.strerror or error}",
                "ip link set lo up, or see what the firewall says",
            ) from None
    return port


_PLACES = re.compile(
    r"((LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE)|ROLE_NAME|MASTER_(ADDR|PORT))$"
    r"|(TORCHELASTIC|ACCELERATE|FSDP|PMI|OMPI_COMM|MV2_COMM)_"
)
"""Variables of a job that this process may be a part of; its ranks are not."""


def _environment(*, external: bool) -> dict[str, str]:
    """Ranks in our Python import the package that this process runs; the working folder is none."""
    outside = {name: value for name, value in os.environ.items() if not _PLACES.match(name)}
    outside[PARENT] = str(os.getpid())
    if external:
        return without_python_paths(outside)
    source_folder = str(Path(__file__).resolve().parent.parent.parent)
    path = os.pathsep.join(filter(None, [source_folder, outside.get("PYTHONPATH")]))
    return outside | {"PYTHONPATH": path, "PYTHONSAFEPATH": "1"}


def signal_name(number: int) -> str:
    """Return ``SIGKILL`` of 9; a real-time signal has no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def oom_kills() -> int:
    """Return the kernel's count of out-of-memory kills since boot; 0 where unreadable."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            name, _, value = line.partition(" ")
            if name == "oom_kill":
                return int(value)
    return 0
