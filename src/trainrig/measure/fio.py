"""fio: finding it, running it once on a file, and reading what it prints.

fio times itself.  With --status-interval it prints its counters since the start,
as one JSON object after another; two neighbours differ by what happened in a
window of about 100 ms, and the window's time over its operations is one sample:
seconds a call, as the timing loop has them.  No log file is written.

Latencies come from the last object, over all operations of the run.
Its output is external: what does not fit `importers.fio_json` is refused.

Source: fio's HOWTO (https://fio.readthedocs.io/en/latest/fio_doc.html), JSON output
and --status-interval.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from pydantic import ValidationError

from trainrig.errors import UnavailableError, first_problem
from trainrig.importers.fio_json import FioDirection, FioLatency, FioStatus, statuses_in
from trainrig.importers.fio_json import latencies as job_latencies
from trainrig.process.programs import last_line, run_program
from trainrig.units import format_time

MIN_VERSION = (3, 0)
"""First fio version that reports latencies in nanoseconds."""

_WINDOW_S = 0.1
# Beyond its run time fio starts its threads and ends them.
_PATIENCE_S = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Operations and seconds between two of fio's status reports."""

    end: float
    """Seconds since the start of the run."""
    call: float
    """Seconds a call, on average over the window."""
    num_calls: int


_START_S = 30.0
"""A first start reads the program from a disk that may be busy: five seconds were too few once."""


def unusable() -> str | None:
    """Return why fio cannot be used here, or None."""
    program = shutil.which("fio")
    if program is None:
        return "fio is not installed"
    try:
        done = run_program([program, "--version"], _START_S)
    except OSError as error:
        return f"fio does not start: {type(error).__name__}"
    if done.code is None:
        return f"fio does not start: no answer within {_START_S:.0f} s"
    version = re.match(rb"fio-(\d+)\.(\d+)", done.stdout)
    if done.code != 0 or version is None:
        return f"fio does not say its version: {last_line(done.stderr or done.stdout)}"
    if (int(version[1]), int(version[2])) < MIN_VERSION:
        major, minor = int(version[1]), int(version[2])
        return f"fio {major}.{minor} is too old, {MIN_VERSION[0]}.{MIN_VERSION[1]} is needed"
    return None


def run(options: Sequence[str], file: int, seconds: float) -> tuple[FioStatus, ...]:
    """Run one job on an open file for ``seconds``: its counts, window by window.

    Raises UnavailableError with what fio said where it failed.
    """
    program = shutil.which("fio")
    if program is None:
        raise UnavailableError("fio is not installed")
    window = max(_WINDOW_S, seconds / 200.0)
    command = [
        program,
        "--name=trainrig",
        "--thread",
        "--output-format=json",
        f"--filename=/proc/self/fd/{file}",
        f"--runtime={round(seconds * 1e3)}ms",
        f"--status-interval={round(window * 1e3)}ms",
        *options,
    ]
    limit = seconds + _PATIENCE_S
    done = run_program(command, limit, pass_fds=(file,), die_with_us=True)
    if done.code is None:
        raise UnavailableError(f"fio did not end within {format_time(limit)}")
    if done.code != 0:
        raise UnavailableError(f"fio failed: {last_line(done.stderr or done.stdout)}")
    return parse(done.stdout.decode("utf-8", "replace"))


def parse(output: str) -> tuple[FioStatus, ...]:
    """Return the objects in what fio printed, in order; lines between them are skipped.

    Raises UnavailableError for anything that is not fio's JSON of one job, and
    where the job failed.
    """
    try:
        statuses = statuses_in(output)
    except ValidationError as error:
        raise UnavailableError(f"fio printed what it should not: {first_problem(error)}") from None
    except (ValueError, RecursionError):
        raise UnavailableError("fio's answer is not JSON") from None
    if not statuses:
        raise UnavailableError("fio's answer is empty")
    if any(len(status.jobs) != 1 for status in statuses):
        raise UnavailableError("fio printed what it should not: jobs: not one job")
    last = statuses[-1].jobs[0]
    if last.error:
        raise UnavailableError(f"fio failed with error {last.error}")
    # A fdatasync is counted as a short read, in a job that reads nothing.
    if (last.read.short_ios and last.read.io_bytes) or last.write.short_ios:
        raise UnavailableError("fio read or wrote less than it asked for")
    return statuses


def io_windows(statuses: Sequence[FioStatus], way: str, block: int) -> tuple[Window, ...]:
    """Time per block of ``way`` (``read`` or ``write``), window by window."""
    windows = []
    counts = [_direction(status, way) for status in statuses]
    for before, after in pairwise([FioDirection(), *counts]):
        calls, spent = (after.io_bytes - before.io_bytes) // block, after.runtime - before.runtime
        # The last count comes when the job ends: a sliver of a window says little.
        if calls > 0 and spent >= _WINDOW_S * 500.0:
            span = spent * 1e-3
            windows.append(Window(end=after.runtime * 1e-3, call=span / calls, num_calls=calls))
    return tuple(windows)


def sync_windows(statuses: Sequence[FioStatus]) -> tuple[Window, ...]:
    """Time of a write and the fsync after it, on average over each window."""
    windows = []
    for before, after in pairwise(statuses):
        old, new = before.jobs[0], after.jobs[0]
        if old.sync is None or new.sync is None:
            raise UnavailableError("this fio does not say how long fsync took: 3.16 does")
        wrote = _mean_between(old.write.lat_ns, new.write.lat_ns)
        synced = _mean_between(old.sync.lat_ns, new.sync.lat_ns)
        if wrote is not None and synced is not None:
            count = new.sync.lat_ns.N - old.sync.lat_ns.N
            end, call = new.write.runtime * 1e-3, (wrote + synced) * 1e-9
            windows.append(Window(end=end, call=call, num_calls=count))
    return tuple(windows)


def _mean_between(before: FioLatency, after: FioLatency) -> float | None:
    """Mean latency of the operations between two counts, nanoseconds."""
    count = after.N - before.N
    if count <= 0:
        return None
    mean = (after.mean * after.N - before.mean * before.N) / count
    return mean if mean > 0.0 else None


def latencies(status: FioStatus, way: str) -> dict[str, float]:
    """Median and 99th percentile of ``read``, ``write`` or ``sync`` in seconds; none: empty."""
    return job_latencies(status.jobs[0], way)


def _direction(status: FioStatus, way: str) -> FioDirection:
    job = status.jobs[0]
    return job.read if way == "read" else job.write
