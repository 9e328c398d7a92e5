"""Clocks of the timing loop: the host's monotonic clock, or a GPU's events.

A clock times a batch of calls from the first one's start to the last one's end,
all device work done.  It is a parameter of the loop, so that the loop can be
tested under a clock that a test winds by hand.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import repeat
from typing import Any, Protocol


class Clock(Protocol):
    """Times a batch of calls; one of the program's three protocols."""

    name: str
    """Goes into the record: which clock took the samples."""
    resolution: float
    """Smallest step in seconds."""
    overhead: float
    """Seconds that a batch costs beyond its calls, at most."""

    def time(self, call: Callable[[], object], count: int) -> float:
        """Wall or device seconds that ``count`` calls take together."""

    def now(self) -> float:
        """Return seconds on a steady clock, for budgets."""


class HostClock:
    """perf_counter around calls that are done when they return: CPU operations."""

    name = "host perf_counter"
    resolution = max(time.get_clock_info("perf_counter").resolution, 1e-9)
    overhead = 1e-6

    def time(self, call: Callable[[], object], count: int) -> float:
        """Time ``count`` calls; return their total in seconds."""
        start = time.perf_counter_ns()
        for _ in repeat(None, count):
            call()
        return (time.perf_counter_ns() - start) * 1e-9

    def now(self) -> float:
        """Return seconds on perf_counter."""
        return time.perf_counter()


class CudaClock:
    """CUDA events around a batch on the current stream (NVIDIA, and AMD under ROCm).

    The time is the device's, from the first kernel's start to the last one's end.
    Gaps between kernels that the host was too slow to launch are inside it: they
    are part of what a program gets.
    """

    name = "CUDA events"
    resolution = 0.5e-6  # CUDA's documentation: cudaEventElapsedTime resolves about half a µs
    overhead = 10e-6  # from the start event to the first kernel's start, which the host launches

    def __init__(self, device: str) -> None:
        """Time on ``device`` (``cuda:0``), which becomes the current one."""
        import torch

        torch.cuda.set_device(device)
        self._cuda = torch.cuda
        self._start: Any = torch.cuda.Event(enable_timing=True)
        self._end: Any = torch.cuda.Event(enable_timing=True)

    def time(self, call: Callable[[], object], count: int) -> float:
        """Device seconds of ``count`` calls."""
        self._cuda.synchronize()
        self._start.record()
        for _ in repeat(None, count):
            call()
        self._end.record()
        self._end.synchronize()
        return float(self._start.elapsed_time(self._end)) * 1e-3

    def now(self) -> float:
        """Return seconds on the host's perf_counter."""
        return time.perf_counter()


def clock_for(device: str) -> Clock:
    """Return the clock of a device: ``cpu``, ``cuda:N`` or ``disk:FOLDER``."""
    return CudaClock(device) if device.startswith("cuda") else HostClock()
