"""Find the rank of a training that was lost, where and since when, and count restarts.

An attempt is one start of all ranks.  Each rank appends to its events: ``start`` (its host and
process, and where the process before it was last), then rows.  Between two attempts the first
rank's events have ``restart`` with who was lost: of our supervisor, which saw it die, or, under
torchrun, of the new first rank, which reads what the last attempt has left.

A step that was lost is trained again: of several rows of one step the last counts.  The time that
a loss costs is that from the end of the last step that counts to the end of the next one.

Pure standard library: ranks import it.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trainrig.process import flight_recorder
from trainrig.process.events import Position, position_of, read_events

Event = Mapping[str, Any]
_TICK = 0.5
_WATCHERS_PER_NODE = 2
_LONGEST_INTERVAL = 30.0
"""Seconds between two looks at all ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """A rank that ended, or hangs."""

    cause: str
    """``rank 1 was ended by SIGKILL in backward of step 3 (process 42 on node7, since …)``."""
    rank: int
    host: str = ""
    pid: int | None = None
    position: Position | None = None

    def event(self) -> dict[str, Any]:
        """Return the fields of the event ``restart``."""
        at = self.position
        return {
            "cause": self.cause,
            "rank": self.rank,
            "host": self.host,
            "pid": self.pid,
            "operation": None if at is None else str(at),
            "since": None if at is None else at.since,
        }


def place(position: Position | None, host: str = "", pid: int | None = None) -> str:
    """`` in backward of step 3 (process 42 on node7, since 12:30:05 UTC)``: what is known of it."""
    process = f"process {pid}" if pid else ""
    since = time.strftime("since %H:%M:%S UTC", time.gmtime(position.since)) if position else ""
    details = ", ".join(filter(None, [" on ".join(filter(None, [process, host])), since]))
    text = "" if position is None else f" in {position}"
    return f"{text} ({details})" if details else text


def stalled(folder: Path, processes: Mapping[int, tuple[str, int | None]], timeout: float) -> Lost:
    """Return the rank that hangs; its cause names missing ranks and the collective others wait in.

    ``processes``: host and process id of each rank.
    """
    positions = {rank: position_of(folder, rank) for rank in processes}
    stopped = {rank for rank, process in processes.items() if _is_stopped(*process)}
    absent: list[Lost] = []
    waiting: list[str] = []
    for rank, position in positions.items():
        host, pid = processes[rank]
        if position is None:
            how = "has not reported where it is"
        elif rank in stopped or not position.operation:
            how = "is stopped" if rank in stopped else "is"
        else:
            waiting.append(f"rank {rank} waits in {position}")
            continue
        cause = f"rank {rank} {how}{place(position, host, pid)}"
        absent.append(Lost(cause=cause, rank=rank, host=host, pid=pid, position=position))
    recorded = flight_recorder.explain(flight_recorder.ask(folder))
    enqueued = [] if recorded is None else [f"by what was enqueued {recorded}"]
    words = "; ".join([*(lost.cause for lost in absent), *waiting, *enqueued])
    sentence = f"no progress for {timeout:.0f} s: {words}"
    if absent:
        first = min(absent, key=lambda lost: lost.rank not in stopped)
        return replace(first, cause=sentence)
    # All wait: the one that has waited longest may be in another collective than the others.
    rank, position = min(positions.items(), key=lambda item: item[1].since if item[1] else 0.0)
    host, pid = processes[rank]
    return Lost(cause=sentence, rank=rank, host=host, pid=pid, position=position)


def _is_stopped(host: str, pid: int | None) -> bool:
    """Return whether SIGSTOP or a debugger holds a process of this host, by /proc."""
    if pid is None or host not in ("", socket.gethostname()):
        return False
    with contextlib.suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "Tt"
    return False


def watch_for_stall(
    folder: Path, ranks: int, timeout: float, give_up: Callable[[Lost], Any]
) -> None:
    """Call ``give_up`` with who hangs once no rank has moved for ``timeout`` seconds.

    Our supervisor does this for its ranks; this is for a starter that only sees who dies.  The
    first two ranks of a node watch, since one may be the one that hangs: each reads a file of every
    rank, from a folder that all hosts see, and no more often than a twentieth of ``timeout``.
    """
    if int(os.environ.get("LOCAL_RANK", "0")) >= _WATCHERS_PER_NODE:
        return
    interval = max(_TICK, min(timeout / 20, _LONGEST_INTERVAL))

    def watch() -> None:
        last, positions = time.monotonic(), None
        while time.monotonic() - last < timeout:
            time.sleep(min(interval, timeout / 4))
            now = [position_of(folder, rank) for rank in range(ranks)]
            if now != positions:
                last, positions = time.monotonic(), now
        processes = {rank: process_of(folder, rank) for rank in range(ranks)}
        give_up(stalled(folder, processes, timeout))

    threading.Thread(target=watch, name="stall", daemon=True).start()


def process_of(folder: Path, rank: int) -> tuple[str, int | None]:
    """Host and process id of a rank's last start; nothing of one that has not said them."""
    starts = [event for _, event in read_events(folder, rank) if event["event"] == "start"]
    return (str(starts[-1]["host"]), starts[-1]["pid"]) if starts else ("", None)


def lost_before(folder: Path) -> Lost | None:
    """Return the rank lost in the attempt before this one, whose ranks have all started; or None.

    Who failed by something else than a lost peer comes before who ended without a word; of several
    of these, the one that has not moved for longest.
    """
    first = [event for _, event in read_events(folder, 0)]
    starts = [event for event in first if event["event"] == "start"]
    if len(starts) < 2 or any(event["event"] == "restart" for event in first[-2:]):
        return None
    before, now = starts[-2]["ranks"], starts[-1]["ranks"]
    ended = (_end_of(folder, rank, is_in_later_attempt=rank < now) for rank in range(before))
    return min(filter(None, ended), key=lambda ending: ending[0], default=(None, None))[1]


def _end_of(
    folder: Path, rank: int, *, is_in_later_attempt: bool
) -> tuple[tuple[int, float], Lost] | None:
    """Return how a rank of the last attempt ended, with the order in which ranks are blamed.

    None of one that was done, or never started.
    """
    events = [event for _, event in read_events(folder, rank)]
    position = position_of(folder, rank)
    if is_in_later_attempt:  # its last start and what follows is of this attempt
        last = max(n for n, event in enumerate(events) if event["event"] == "start")
        position = _position(events[last]["before"])
        events = events[:last]
    starts = [event for event in events if event["event"] == "start"]
    if not starts or events[-1]["event"] == "done":
        return None
    host, pid, end = starts[-1]["host"], starts[-1]["pid"], events[-1]
    where = place(position, host, pid)
    if end["event"] != "failed":
        cause = f"rank {rank} ended without a word{where}"
        order = (1, position.since if position else 0.0)
    else:
        cause = f"rank {rank}: {end['reason']}{where}"
        order = (2 if end["kind"] == "peer" else 0, 0.0)
    if (hung := end.get("lost")) is not None:  # it tells of another one, which hangs
        return order, Lost(**{**hung, "position": _position(hung["position"])})
    return order, Lost(cause=cause, rank=rank, host=host, pid=pid, position=position)


def _position(fields: Mapping[str, Any] | None) -> Position | None:
    return None if fields is None else Position(**fields)


def final_rows(rows: Sequence[Event]) -> tuple[Event, ...]:
    """Return the rows that count.

    A step that was trained again stands once, as it was the last time.
    """
    counted: list[Event] = []
    for row in rows:
        while counted and counted[-1]["step"] >= row["step"]:
            counted.pop()
        counted.append(row)
    return tuple(counted)


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """One loss, and how the training went on."""

    cause: str
    rank: int | None = None
    host: str | None = None
    pid: int | None = None
    operation: str | None = None
    """The lost rank's place: part, step, and the collective that it waited in."""
    since: float | None = None
    """Seconds since the epoch."""
    ranks: int | None = None
    """That went on."""
    step: int | None = None
    """The first that was trained then; None: none was."""
    steps_lost: int | None = None
    time_lost_s: float | None = None


def restarts_of(events: Sequence[Event]) -> tuple[Restart, ...]:
    """Return the restarts that the first rank's events tell of."""
    restarts: list[dict[str, Any]] = []
    rows: list[tuple[int, float]] = []
    clock, began, open_since = 0.0, 0.0, 0
    for event in events:
        name, at = event["event"], clock + float(event.get("at") or 0.0)
        if name == "start":
            clock = float(event["clock"])
            began = began or clock + float(event["at"])
        elif name == "restart":
            restarts.append({key: event.get(key) for key in _OF_EVENT} | {"_at": at})
        elif name == "row":
            before = len(rows)
            while rows and rows[-1][0] >= event["step"]:
                rows.pop()
            starts = [
                rows[-1][1] if rows else began,
                *(e["_at"] for e in restarts[open_since + 1 :]),
            ]
            for number, restart in enumerate(restarts[open_since:]):
                ends = [*starts[1:], at]
                restart["step"] = event["step"]
                restart["steps_lost"] = 0 if number else before - len(rows)
                restart["time_lost_s"] = max(0.0, ends[number] - starts[number])
            open_since = len(restarts)
            rows.append((event["step"], at))
    return tuple(
        Restart(**{k: v for k, v in restart.items() if k != "_at"}) for restart in restarts
    )


_OF_EVENT = ("cause", "rank", "host", "pid", "operation", "since", "ranks")
