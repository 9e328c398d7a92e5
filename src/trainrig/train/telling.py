"""What a rank tells its parent: events as lines in a file, and where it is at this moment.

    events-<rank>.jsonl   one JSON object a line, written by one call: a step's row, the layout as
                          found, the reason of a failure; and when, by the machine's monotonic clock
                          (``at``).  Nothing is read out of logs.
    where-<rank>          256 bytes of shared memory: step, part, and the collective that it waits
                          in.  It costs no system call, and is still there when the rank is not.

Both are plain files in the folder of an experiment, so that whoever starts a rank needs no pipe to
it.  Imports no torch: the parent reads what the ranks write.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainrig.train.drivers.place import Place


def events_path(folder: Path, rank: int) -> Path:
    """The file of a rank's events."""
    return folder / f"events-{rank}.jsonl"


_NEW = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND
"""A folder is of one training: a second one, started by hand, begins its events anew."""


class Teller:
    """The rank's side."""

    def __init__(self, folder: Path, rank: int) -> None:
        self.rank = rank
        self._events = os.open(events_path(folder, rank), _NEW)
        self._place = Place()
        self._place.open(folder, rank)

    def tell(self, event: str, **content: Any) -> None:
        """One event, whole or not at all."""
        told = {"event": event, "at": time.monotonic(), **content}
        line = json.dumps(told, separators=(",", ":"))
        os.write(self._events, line.encode() + b"\n")

    def at(
        self, *, step: int | None = None, part: str | None = None, operation: str | None = None
    ) -> None:
        """Where the rank is from now on; what is None stays as it was."""
        self._place.at(step=step, part=part, operation=operation)


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """Where a rank was when it was last seen."""

    step: int
    part: str
    operation: str
    """The collective it waits in; empty if it computes."""

    def __str__(self) -> str:
        what = f"{self.operation} in {self.part}" if self.operation else self.part
        return f"{what} of step {self.step}"


def where_is(folder: Path, rank: int) -> Where | None:
    """Where a rank is or was; None if it has not come so far as to say."""
    try:
        text = (folder / f"where-{rank}").read_bytes().partition(b"\0")[0].decode()
        step, part, operation = text.split("|")
        return Where(step=int(step), part=part, operation=operation)
    except (OSError, ValueError):
        return None


def read_events(folder: Path, rank: int, start: int = 0) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Whole events from byte ``start`` on, each with the byte behind it.

    A line that is none, of a rank that was torn off or of something foreign, is passed over.
    """
    try:
        with events_path(folder, rank).open("rb") as file:
            file.seek(start)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                start += len(line)
                if (event := _event(line)) is not None:
                    yield start, event
    except FileNotFoundError:
        return


def _event(line: bytes) -> Mapping[str, Any] | None:
    """What a line tells, with None for NaN and infinity: no file of ours may hold one."""
    try:
        found = json.loads(line, parse_constant=lambda _: None)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and isinstance(found.get("event"), str) else None
