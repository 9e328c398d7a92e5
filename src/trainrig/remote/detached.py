"""Jobs: commands that go on when the terminal is closed, and how they are found again.

A job is a folder in ``$XDG_STATE_HOME/trainrig/jobs``: ``job.json`` (what was started, where, when,
as which process), ``output.log``, and ``code`` once it has ended.  A job without ``code`` whose
process is gone was killed, or the machine was restarted under it: it is "lost", not "ended".
"""

from __future__ import annotations

import dataclasses
import json
import os
import secrets
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from trainrig.errors import DataError, UsageError, unknown
from trainrig.process.programs import signal_session, start_detached, started_at
from trainrig.store import store_errors

State = Literal["running", "ended", "lost"]
_POLL_S = 0.2
_GRACE_S = 30.0
"""Seconds between SIGTERM and SIGKILL: ranks of a training save in 25."""
_YOUNG_S, _AGAIN_S = 10.0, 2.0
"""A job younger than the first has nothing to save: it is asked a second time after the second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DetachedJob:
    """One job as its folder describes it."""

    id: str
    command: tuple[str, ...]
    folder: str
    """Working folder of the command."""
    started: str
    """UTC, ISO 8601."""
    pid: int
    """Of the session that it is in."""
    ticks: int | None
    """When the process was started, as the kernel counts; with the pid it names one process."""
    log: str
    state: State
    code: int | None
    """Exit code where it has ended."""

    @property
    def standing(self) -> str:
        """``running``, or ``ended, exit code 0``."""
        return self.state if self.code is None else f"{self.state}, exit code {self.code}"

    @property
    def shown_command(self) -> str:
        """What was typed, without the interpreter's path."""
        words = self.command
        if words[1:3] == ("-m", "trainrig"):
            words = ("trainrig", *words[3:])
        return " ".join(words)


def jobs_folder() -> Path:
    """Where jobs are, whether it is there or not."""
    home = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return Path(home) / "trainrig" / "jobs"


def start_job(command: Sequence[str], name: str) -> DetachedJob:
    """Start a command as a job.  Raises StoreError where its folder cannot be made."""
    now = datetime.now(UTC)
    id_ = f"{now:%Y%m%dT%H%M%SZ}-{name}-{secrets.token_hex(3)}"
    folder = jobs_folder() / id_
    with store_errors(folder):
        folder.mkdir(parents=True, mode=0o700)
        pid = start_detached(command, folder / "output.log", folder / "code")
        about = {
            "command": list(command),
            "folder": str(Path.cwd()),
            "started": now.isoformat(timespec="seconds"),
            "pid": pid,
            "ticks": started_at(pid),
        }
        (folder / "job.json.new").write_text(json.dumps(about) + "\n")
        (folder / "job.json.new").rename(folder / "job.json")
    return read_job(folder)


def start_trainrig(arguments: Sequence[str], name: str) -> DetachedJob:
    """Start a command of this program as a job."""
    return start_job([sys.executable, "-m", "trainrig", *arguments], name)


def read_job(folder: Path) -> DetachedJob:
    """The job in a folder.  Raises DataError for one that is none or damaged."""
    try:
        about = json.loads((folder / "job.json").read_text())
        code = _code(folder)
        is_there = about["ticks"] is not None and started_at(about["pid"]) == about["ticks"]
        state: State = "ended" if code is not None else "running" if is_there else "lost"
        if state == "lost" and (code := _code(folder)) is not None:  # it ended while we looked
            state = "ended"
        return DetachedJob(
            id=folder.name,
            command=tuple(map(str, about["command"])),
            folder=str(about["folder"]),
            started=str(about["started"]),
            pid=int(about["pid"]),
            ticks=about["ticks"],
            log=str(folder / "output.log"),
            state=state,
            code=code,
        )
    except (OSError, ValueError, LookupError, TypeError):
        raise DataError(f"not a job, or a damaged one: {folder}") from None


def _code(folder: Path) -> int | None:
    try:
        return int((folder / "code").read_text())
    except (OSError, ValueError):
        return None


def all_jobs() -> list[DetachedJob]:
    """Every job, the newest last; folders that hold none are passed over."""
    found = []
    for path in sorted(jobs_folder().glob("*/job.json")):
        try:
            found.append(read_job(path.parent))
        except DataError:
            continue
    return found


def find_job(name: str | None) -> DetachedJob:
    """The job with an id or a part of one; the newest that runs, else the newest, without a name.

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
    """What a job has printed and prints, until it is over; without ``from_start`` its last 4 kB."""
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


def end_job(
    job: DetachedJob, grace_s: float = _GRACE_S, sleep: Callable[[float], None] = time.sleep
) -> DetachedJob:
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
        sleep(_POLL_S)
        left -= _POLL_S
        if left < again:  # its keeper may have taken the signal before the command was there
            signal_session(job.pid, signal.SIGTERM)
            again = -1.0
    if read_job(folder).state == "lost":  # it had just begun, and its keeper listened to nothing
        with store_errors(folder):
            (folder / "code").write_text(f"{128 + signal.SIGTERM}\n")
    if read_job(folder).state == "running":
        signal_session(job.pid, signal.SIGKILL)
        for _ in range(25):
            if read_job(folder).state != "running":
                break
            sleep(_POLL_S)
    return read_job(folder)


def summary_of(job: DetachedJob) -> dict[str, object]:
    """A job as it is printed in JSON."""
    return dataclasses.asdict(job)
