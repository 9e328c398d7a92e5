"""Jobs: commands that go on when the terminal is closed, and how they are found again.

A job is a folder in ``$XDG_STATE_HOME/trainrig/jobs``: ``job.json`` (what was started, where, when,
as which process), ``output.log``, and ``code`` once it has ended.  A command that a signal killed
is "killed", with its cause: by SIGKILL where the kernel ran out of memory meanwhile, by SIGKILL of
somebody, by a fault of its own.  A job without ``code`` whose processes are gone was killed with
its keeper; it is "lost" only where the machine was restarted under it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import secrets
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from trainrig.errors import DataError, UsageError, unknown
from trainrig.process.programs import signal_session, start_detached, started_at
from trainrig.remote import tmux_session
from trainrig.safe_read import make_private
from trainrig.store import store_errors

State = Literal["running", "ended", "killed", "lost"]
_POLL_S = 0.2
_GRACE_S = 30.0
"""Seconds between SIGTERM and SIGKILL: ranks of a training save in 25."""
_YOUNG_S, _AGAIN_S = 10.0, 2.0
"""A job younger than the first has nothing to save: it is asked a second time after the second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DetachedJob:
    """Job as its folder describes it."""

    id: str
    command: tuple[str, ...]
    folder: str
    """Working folder of the command."""
    started: str
    """UTC, ISO 8601."""
    pid: int
    """Name of the tmux session that it runs in."""
    ticks: int | None
    """When the process was started, as the kernel counts; with the pid it names one process."""
    log: str
    state: State
    code: int | None
    """Exit code where it has ended."""
    cause: str = ""
    """Reason for which it was killed or lost."""
    tmux: str | None = None
    """Name of its tmux session."""

    @property
    def standing(self) -> str:
        """Return ``running``, ``ended, exit code 0``, or ``killed: by SIGKILL …``."""
        match self.state:
            case "killed":
                return f"killed: {self.cause}"
            case "lost":
                return f"lost: {self.cause}"
            case "ended":
                return f"ended, exit code {self.code}"
        return "running"

    @property
    def shown_command(self) -> str:
        """Command as it was typed, without the interpreter's path."""
        words = self.command
        if words[1:3] == ("-m", "trainrig"):
            words = ("trainrig", *words[3:])
        return " ".join(words)


def jobs_folder() -> Path:
    """Return where jobs are, whether it is there or not."""
    home = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return Path(home) / "trainrig" / "jobs"


def start_job(command: Sequence[str], name: str, in_tmux: bool = False) -> DetachedJob:
    """Start a command as a job.

    Raises StoreError where its folder cannot be made, UnavailableError where tmux is wanted and
    cannot be had.
    """
    now = datetime.now(UTC)
    id_ = f"{now:%Y%m%dT%H%M%SZ}-{name}-{secrets.token_hex(3)}"
    folder = jobs_folder() / id_
    session = f"trainrig-{name}-{id_[-6:]}" if in_tmux else None
    if session is not None:
        tmux_session.require_tmux()
    with store_errors(folder):
        make_private(folder)
        log, code = folder / "output.log", folder / "code"
        if session is not None:
            pid = tmux_session.start_in_tmux(session, command, log, code)
        else:
            pid = start_detached(command, log, code)
        about = {
            "command": list(command),
            "folder": str(Path.cwd()),
            "started": now.isoformat(timespec="seconds"),
            "pid": pid,
            "ticks": started_at(pid),
            "tmux": session,
            **_since_boot(),
        }
        (folder / "job.json.new").write_text(json.dumps(about) + "\n")
        (folder / "job.json.new").rename(folder / "job.json")
    return read_job(folder)


def start_trainrig(arguments: Sequence[str], name: str, in_tmux: bool = False) -> DetachedJob:
    """Start a command of this program as a job."""
    return start_job([sys.executable, "-m", "trainrig", *arguments], name, in_tmux)


def _since_boot() -> dict[str, Any]:
    """Return the boot's id, and how often the kernel has killed for want of memory since."""
    boot, memory = "", 0
    with contextlib.suppress(OSError, ValueError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        rows = dict(line.split() for line in Path("/proc/vmstat").read_text().splitlines())
        memory = int(rows.get("oom_kill", 0))
    return {"boot": boot, "oom_kills": memory}


def read_job(folder: Path) -> DetachedJob:
    """Return the job in a folder.  Raises DataError for one that is none or damaged."""
    try:
        about = json.loads((folder / "job.json").read_text())
        end = _end(folder)
        is_there = about["ticks"] is not None and started_at(about["pid"]) == about["ticks"]
        if end is None and not is_there:
            end = _end(folder)  # it may have ended while we looked
        state, cause = _standing(about, end, is_there)
        return DetachedJob(
            id=folder.name,
            command=tuple(map(str, about["command"])),
            folder=str(about["folder"]),
            started=str(about["started"]),
            pid=int(about["pid"]),
            ticks=about["ticks"],
            log=str(folder / "output.log"),
            state=state,
            code=end[0] if end is not None else None,
            cause=cause,
            tmux=about.get("tmux"),
        )
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        raise DataError(f"not a job, or a damaged one: {folder}") from None


def _standing(
    about: Mapping[str, Any], end: tuple[int, int, str] | None, is_there: bool
) -> tuple[State, str]:
    """Return a job's state, and why it is killed or lost."""
    if end is None:
        if is_there:
            return "running", ""
        if about.get("boot", "") != _since_boot()["boot"]:
            return "lost", "the machine was restarted under it"
        return "killed", "all of its processes at once, or its exit code could not be written"
    why = end[2] or _why_killed(*end[:2], int(about.get("oom_kills", end[1])))
    return ("killed", why) if why else ("ended", "")


def _why_killed(code: int, memory: int, before: int) -> str:
    """By which signal a command ended, and why; empty for one that ended by itself or when asked.

    ``memory``, ``before``: how often the kernel had killed for want of memory, then and at first.
    """
    if code == 128 + signal.SIGKILL:
        if memory > before:
            return "memory ran out: the kernel killed it, or another process beside it"
        return "by SIGKILL, from somebody or from a limit of memory of its group"
    fault = _FAULTS.get(code - 128)
    return f"by a fault of its own ({fault})" if fault else ""


_FAULTS = {
    int(one): one.name
    for one in (signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT)
}


def _end(folder: Path) -> tuple[int, int, str] | None:
    """Exit code, kills for want of memory at that time, and a cause that was written with them."""
    try:
        words = (folder / "code").read_text().split(maxsplit=2)
        return int(words[0]), int(words[1]) if words[1:] else 0, " ".join(words[2:])
    except (OSError, ValueError, IndexError):
        return None


def all_jobs() -> list[DetachedJob]:
    """Return every job, the newest last; folders that hold none are passed over."""
    found = []
    for path in sorted(jobs_folder().glob("*/job.json")):
        try:
            found.append(read_job(path.parent))
        except DataError:
            continue
    return found


def find_job(name: str | None) -> DetachedJob:
    """Return the job with an id or a part of one.

    The newest that runs, else the newest, without a name.

    Raises UsageError: none, or several fit.
    """
    jobs = all_jobs()
    if not jobs:
        raise UsageError("there are no jobs", "start one: trainrig train --detach")
    if name is None:
        return next((job for job in reversed(jobs) if job.state == "running"), jobs[-1])
    fitting = [job for job in jobs if job.id == name] or [job for job in jobs if name in job.id]
    if not fitting:
        raise unknown("job", name, [job.id for job in jobs])
    if len(fitting) > 1:
        listed = ", ".join(job.id for job in fitting[-5:])
        raise UsageError(f"{name!r} fits {len(fitting)} jobs: {listed}", "give more of the id")
    return fitting[0]


def follow(
    job: DetachedJob, *, from_start: bool = False, sleep: Callable[[float], None] = time.sleep
) -> Iterator[bytes]:
    """Yield a job's output until it is over; without ``from_start`` from its last 4 kB on."""
    folder = Path(job.log).parent
    with open(job.log, "rb") as file:
        if not from_start:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 4096))
            if file.tell():
                file.readline()  # the rest of a line
        while True:
            is_over = read_job(folder).state != "running"  # before reading: nothing is lost
            while piece := file.read(65_536):
                yield piece
            if is_over:
                return
            sleep(_POLL_S)


def end_job(job: DetachedJob, grace_s: float = _GRACE_S) -> DetachedJob:
    """End a job: SIGTERM to its session, so that it may save, then SIGKILL.  Returns how it ended.

    Raises UsageError for one that does not run.
    """
    folder = Path(job.log).parent
    if read_job(folder).state != "running":
        raise UsageError(f"{job.id} does not run", "trainrig jobs")
    signal_session(job.pid, signal.SIGTERM)
    left = grace_s
    age = datetime.now(UTC) - datetime.fromisoformat(job.started)
    again = grace_s - _AGAIN_S if age.total_seconds() < _YOUNG_S else -1.0
    while read_job(folder).state == "running" and left > 0:
        time.sleep(_POLL_S)
        left -= _POLL_S
        if left < again:  # its keeper may have taken the signal before the command was there
            signal_session(job.pid, signal.SIGTERM)
            again = -1.0
    if _end(folder) is None and read_job(folder).state != "running":
        with store_errors(folder):  # it had just begun, and its keeper listened to nothing
            (folder / "code").write_text(f"{128 + signal.SIGTERM}\n")
    if read_job(folder).state == "running":
        signal_session(job.pid, signal.SIGKILL)
        for _ in range(25):
            if read_job(folder).state != "running":
                break
            time.sleep(_POLL_S)
        if _end(folder) is None:
            with store_errors(folder):
                cause = f"it did not end within {grace_s:g} s of being asked to"
                (folder / "code").write_text(f"{128 + signal.SIGKILL} 0 {cause}\n")
    return read_job(folder)


def summary_of(job: DetachedJob) -> dict[str, object]:
    """Return a job as it is printed in JSON."""
    return dataclasses.asdict(job)
