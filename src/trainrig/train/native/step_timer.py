"""Time the parts of a step: data wait, forward, backward, optimizer.

A part is what lies between its own start and end marks; a step lasts from its start to the next
one's.  ``other`` is the rest, never a part that was left out: step − sum of the parts.  Where
several ranks train, a part holds its waiting for the others: how much that is, steps under a
profiler say (`breakdown`).  The head's gradients, which the loss computes in the forward pass
(`models.loss`), belong to backward, as in an engine whose autograd computes them there.

On the CPU a mark is the host's clock.  On a GPU it is an event in the stream, which costs the
device nothing and is read two steps later, when it has long passed: nothing waits for it.  What the
host does meanwhile shows where the device had to wait for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from trainrig.process.events import OTHER, PARTS

M = TypeVar("M")


@dataclass(slots=True)
class Marked(Generic[M]):
    """The marks of one step, to be read once they have passed."""

    start: M
    parts: list[tuple[str, M, M]] = field(default_factory=list)
    inner: list[tuple[str, str, M, M]] = field(default_factory=list)
    """Name, the part it is taken out of, its start and its end."""
    end: M | None = None


class Stopwatch(Generic[M]):
    """Marks the parts of one step after another."""

    def __init__(self, mark: Callable[[], M], seconds: Callable[[M, M], float]) -> None:
        """``seconds(a, b)`` lie between two marks; it may wait until ``b`` has passed."""
        self.mark, self._seconds = mark, seconds
        self._open: Marked[M] | None = None
        self._part = ""
        self.entered: Callable[[str], None] = lambda _: None
        """Told the name of each part when it begins."""
        self.recording: Callable[[str], AbstractContextManager[Any]] = lambda _: nullcontext()
        """Around each part, by its name: a profiler's label."""

    def begin(self) -> Marked[M]:
        """Return a step starts; the one before, if it was not ended, ends with the same mark."""
        now = self.mark()
        if self._open is not None:
            self._open.end = now
        self._open = Marked(now)
        return self._open

    def end(self) -> None:
        """The step ends, and what follows belongs to none: a checkpoint, an evaluation."""
        if self._open is not None:
            self._open.end = self.mark()
        self._open = None

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Time the body as part ``name`` of the current step."""
        assert name in PARTS
        if self._open is None:  # muted
            yield
            return
        self.entered(name)
        start, self._part = self.mark(), name
        with self.recording(name):
            yield
        self._open.parts.append((name, start, self.mark()))
        self._part = ""

    @contextmanager
    def muted(self) -> Iterator[None]:
        """Set no marks in the body: a CUDA graph that is being recorded can hold none."""
        open_parts, self._open = self._open, None
        yield
        self._open = open_parts

    @contextmanager
    def within(self, name: str) -> Iterator[None]:
        """Time the body as ``name``, and not as the part that it lies in."""
        if self._open is None:
            yield
            return
        start = self.mark()
        yield
        self.inner(name, start)

    def inner(self, name: str, start: M) -> None:
        """Count the time since ``start`` as ``name``, and not as the part that it lies in."""
        if self._open is not None:
            self._open.inner.append((name, self._part, start, self.mark()))

    def read(self, marked: Marked[M]) -> dict[str, float]:
        """Seconds of each part of an ended step, of the rest, and of the whole (``time``)."""
        assert marked.end is not None
        whole = self._seconds(marked.start, marked.end)
        seconds_by_part = dict.fromkeys(PARTS, 0.0)
        for name, start, end in marked.parts:
            seconds_by_part[name] += self._seconds(start, end)
        for name, outer, start, end in marked.inner:
            seconds = self._seconds(start, end)
            seconds_by_part[name] = seconds_by_part.get(name, 0.0) + seconds
            if outer:
                seconds_by_part[outer] -= seconds
        return {"time": whole, **seconds_by_part, OTHER: whole - sum(seconds_by_part.values())}


def stopwatch_for(device: str) -> Stopwatch[Any]:
    """Marks by perf_counter on the host, by events on a GPU."""
    if not device.startswith("cuda"):
        return Stopwatch(time.perf_counter, lambda start, end: end - start)
    import torch

    def mark() -> Any:
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(device))  # whichever device is the current one
        return event

    def seconds(start: Any, end: Any) -> float:
        end.synchronize()
        return float(start.elapsed_time(end)) * 1e-3

    return Stopwatch(mark, seconds)
