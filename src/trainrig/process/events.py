"""Messages from a child to its parent: events, and a heartbeat.

An event is one JSON object on one line, ``{"event": NAME, "at": SECONDS, ...}``, with the machine's
monotonic clock.  A worker that answers requests writes its events to a pipe (`worker`); a rank of a
training writes them to a file, so that whoever starts it (torchrun too) needs no pipe to it:

    events-<rank>.jsonl   each line written by one call: a step's row, the observed layout, the
                          reason of a failure.  Nothing is read out of logs.
    where-<rank>          256 bytes of shared memory: since when the rank is in which step, part and
                          collective.  They cost no system call and outlive the rank.

A rank that is started again appends to the events of the one before it (`lost_ranks`).

Pure standard library: foreign Pythons import it.
"""

from __future__ import annotations

import json
import mmap
import os
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

PARTS = ("data_wait", "forward", "backward", "optimizer")
"""Keys of a row, the event that a rank writes of each step: seconds of its parts."""
OTHER = "other"

_HEARTBEAT_BYTES = 256
_APPENDED = os.O_WRONLY | os.O_CREAT | os.O_APPEND


class Events:
    """The child's side: appends events to its file and moves its heartbeat."""

    def __init__(self, folder: Path, rank: int) -> None:
        self.folder, self.rank = folder, rank
        self._before = position_of(folder, rank)
        self._file = os.open(events_path(folder, rank), _APPENDED)
        self._step, self._part = 0, "start"
        with (folder / f"where-{rank}").open("wb+") as file:
            # A hole would be filled later, and on a full disk that kills the process.
            file.write(bytes(_HEARTBEAT_BYTES))
            file.flush()
            self._memory = mmap.mmap(file.fileno(), _HEARTBEAT_BYTES)

    def start(self) -> None:
        """Say which process this is, how many there are, and where the one before it was last."""
        self.emit(
            "start",
            host=socket.gethostname(),
            pid=os.getpid(),
            ranks=int(os.environ.get("WORLD_SIZE", "1")),
            clock=time.time() - time.monotonic(),
            before=None if self._before is None else asdict(self._before),
        )

    def emit(self, event: str, **content: Any) -> None:
        """Write one event, whole or not at all."""
        os.write(self._file, event_line(event, **content))

    def set_position(
        self, *, step: int | None = None, part: str | None = None, operation: str = ""
    ) -> None:
        """Move the heartbeat; None leaves a field as it was, no operation means computing."""
        self._step = self._step if step is None else step
        self._part = self._part if part is None else part
        place = f"{time.time():.3f}|{self._step}|{self._part}|{operation}"
        text = place.encode()[: _HEARTBEAT_BYTES - 1]
        self._memory[: len(text) + 1] = text + b"\0"


def events_path(folder: Path, rank: int) -> Path:
    """Return the file of a rank's events."""
    return folder / f"events-{rank}.jsonl"


def event_line(event: str, **content: Any) -> bytes:
    """Return an event as it is written."""
    line = json.dumps({"event": event, "at": time.monotonic(), **content}, separators=(",", ":"))
    return line.encode() + b"\n"


def parse_event(line: bytes) -> dict[str, Any] | None:
    """Return the event in a line, with None for NaN and infinity.

    None for a line that holds no event.
    """
    try:
        content = json.loads(line, parse_constant=lambda _: None)
    except (ValueError, RecursionError):
        return None
    is_event = isinstance(content, dict) and isinstance(content.get("event"), str)
    return content if is_event else None


def read_events(folder: Path, rank: int, start: int = 0) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield whole events from byte ``start`` on, each with the byte behind it.

    A line without an event, of a rank that was torn off or of a foreign program, is passed over.
    """
    try:
        with events_path(folder, rank).open("rb") as file:
            file.seek(start)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                start += len(line)
                if (event := parse_event(line)) is not None:
                    yield start, event
    except FileNotFoundError:
        return


@dataclass(frozen=True, kw_only=True)
class Position:
    """The place in the training where a rank's heartbeat last moved."""

    step: int
    part: str
    operation: str
    """The collective it waits in; empty if it computes."""
    since: float = 0.0
    """Seconds since the epoch, by the rank's clock; 0: not known."""

    def __str__(self) -> str:
        activity = f"{self.operation} in {self.part}" if self.operation else self.part
        return f"{activity} of step {self.step}"


def position_of(folder: Path, rank: int) -> Position | None:
    """Return a rank's position, also after its death; None if it has not written one."""
    try:
        text = (folder / f"where-{rank}").read_bytes().partition(b"\0")[0].decode()
        since, step, part, operation = text.split("|")
        return Position(step=int(step), part=part, operation=operation, since=float(since))
    except (OSError, ValueError):
        return None
