"""Progress of an open run, a line for each point as it is known; how it is alone and interrupted.

How progress is shown is the watcher's business.  The first Ctrl-C or SIGTERM ends the measuring;
later ones do not disturb the closing.
"""

from __future__ import annotations

import fcntl
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TextIO

from trainrig.analysis.best import is_reference
from trainrig.benchmarks.spec import case_text
from trainrig.process.supervisor import Terminated
from trainrig.record import Record, Status
from trainrig.units import format_quantity, format_share


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """One thing that happened."""

    text: str
    """``bf16 matmul 161 TFLOPS: normal for RTX 4090 (published 156–174, n = 3)``."""
    level: str = "point"
    """``stage``: a new part begins; ``running``: replaced by the next; ``point``: a result."""
    done: int = 0
    """Cases finished."""
    total: int = 0
    """Cases planned."""
    retry: int = 0
    """Cases of this round of measuring again that are over."""
    retries: int = 0
    """Cases of this round; 0 where they are measured for the first time."""
    left: float = 0.0
    """Remaining seconds of the budget."""


Watcher = Callable[[Progress], None]


def null_progress(_: Progress) -> None:
    """Ignore all progress."""


def describe(point: Record, expected: Record | None) -> str:
    """Return ``matmul bf16 4096 × 4096 × 4096: 161 TFLOPS, normal for RTX 4090 (..., n = 3)``."""
    name = f"{point.benchmark} {case_text(point.benchmark, point.case)}"
    if point.status is not Status.OK or point.value is None:
        return f"{name}: {point.status.value}, {point.reason}"
    # What is at least so much has no other side.
    spread = _spread(point) if point.disturbed is None else ""
    number = f"{format_quantity(point.value, point.unit)}{spread}"
    if "emulated" in point.conditions:
        number += " (emulated)"
    if point.disturbed is not None:
        return f"{name}: at least {number}, noisy ({point.disturbed})"
    return ", ".join(filter(None, (f"{name}: {number}", _judgement(point, expected))))


def _judgement(point: Record, expected: Record | None) -> str:
    """Return a point's comparison with its target; the verdict says once if there is none."""
    assert point.value is not None
    if expected is None or expected.interval is None:
        share = point.value / point.limit.value if point.limit is not None else 0.0
        if is_reference(point):
            return f"{format_share(share)} of its reference" if share else ""
        return f"{format_share(share)} of the claim" if share else ""
    if expected.band is None and expected.value:
        return f"predicted {format_quantity(expected.value, expected.unit)}"
    low, high = expected.interval
    grounds = f"{expected.source}: {_range(low, high, point.unit)}"
    measured_low, measured_high = point.interval or (point.value, point.value)
    if measured_high < low:
        return f"below what is expected ({grounds})"
    if measured_low > high:
        return f"above what is expected ({grounds})"
    return f"normal for {point.device} ({grounds})"


def _range(low: float, high: float, unit: str) -> str:
    return f"{format_quantity(low, unit)} to {format_quantity(high, unit)}"


def _spread(point: Record) -> str:
    """Return the half-width of the interval where it is wide enough to matter."""
    if point.interval is None or not point.value:
        return ""
    share = (point.interval[1] - point.interval[0]) / 2.0 / point.value
    return f" ±{format_share(share)}" if share > 0.02 else ""


_ENDING = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def interrupted_once() -> Iterator[None]:
    """Turn the first SIGINT or SIGTERM into KeyboardInterrupt; ignore later ones.

    SIGTERM is what a scheduler or a shutdown sends.  Whoever is in more of a hurry
    has SIGKILL, and the run is valid after that too.
    """
    signals: list[int] = []

    def interrupt(number: int, _: FrameType | None) -> None:
        signals.append(number)
        if len(signals) == 1:
            raise Terminated if number == signal.SIGTERM else KeyboardInterrupt

    try:
        before = {number: signal.signal(number, interrupt) for number in _ENDING}
    except ValueError:  # not in the main thread: signals are the embedding program's business
        yield
        return
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def hold_machine_lock(watch: Watcher, patience: float) -> Iterator[None]:
    """Hold this user's lock on the machine: two runs at a time would be each other's noise.

    Waits ``patience`` seconds at most for whoever holds it, then goes on beside it.
    """
    with ExitStack() as stack:
        with suppress(OSError):  # no folder for it, or another user's file
            path = Path(tempfile.gettempdir(), f"trainrig-{os.getuid()}.lock")
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            lock = stack.enter_context(open(os.open(path, flags, 0o600), "r+", encoding="utf-8"))
            end, is_held = time.monotonic() + patience, _is_locked(lock)
            if not is_held:
                text = f"process {lock.read(20)} measures on this machine: waiting until it ends"
                watch(Progress(text=text, level="stage"))
            while not is_held and time.monotonic() < end:
                time.sleep(min(0.5, patience))
                is_held = _is_locked(lock)
            if is_held:
                lock.truncate(0)
                lock.seek(0)
                lock.write(str(os.getpid()))
                lock.flush()
        yield


def _is_locked(lock: TextIO) -> bool:
    """Try to take the lock; return whether this process holds it."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
