"""A few steps of a training under torch's profiler, and where their time went (`trainrig.trace`).

Profiled steps are slower than others by what each recorded operation costs (about 2 µs), so the
parts are told for a step of their own length, ``step_s``.

Imports torch and `trainrig.trace` alone: drivers of other engines have it, too.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile, record_function

from trainrig.trace import (
    PHASE,
    PIPED,
    STEP,
    WAIT,
    MissingActivityError,
    break_down,
    read_events,
    step_spans,
)

STEPS = 5


class Recorder:
    """Steps under the profiler: `start`, a few times `step`, `stop`."""

    def __init__(self, *, piped: bool = False, keep: Path | None = None) -> None:
        """Prepare a profiler.

        Args:
            piped: The training has pipeline stages.
            keep: The file that the trace is written to, packed by gzip; None: it is not kept.
        """
        self._keep = keep
        self._piped, self._on_gpu = piped, torch.cuda.is_available()
        kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self._on_gpu else [])]
        self._profile = profile(activities=kinds, record_shapes=True)
        self._waits = _waits_recorded()

    def start(self) -> None:
        """Start the profiler."""
        self._profile.start()
        self._profile.add_metadata_json(PIPED, json.dumps(self._piped))
        self._waits.__enter__()

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """The body is a step, with all that a GPU still has to do of it."""
        with record_function(STEP):
            yield
            if self._on_gpu:
                torch.cuda.synchronize()

    def stop(self) -> dict[str, Any]:
        """Return what is emitted of the steps since `start`.

        Returns:
            ``steps``, the parts of each step; ``missing``, why there are none, else empty;
            ``trace``, the name of the file that is kept.
        """
        self._waits.__exit__(None, None, None)
        self._profile.stop()
        trace_entry = {"trace": self._keep.name} if self._keep else {}
        events = read_events(self._trace())
        try:
            steps = [
                break_down(events, span, piped=self._piped, on_device=self._on_gpu)
                for span in step_spans(events)
            ]
        except MissingActivityError as error:
            return {"steps": [], "missing": str(error), **trace_entry}
        return {"steps": steps, "missing": "", **trace_entry}

    def _trace(self) -> Any:
        """Return the trace that Kineto exports.

        It alone has streams and which operation launched what.
        """
        with tempfile.TemporaryDirectory(prefix="trainrig-") as folder:
            path = os.path.join(folder, "trace.json")
            self._profile.export_chrome_trace(path)
            if self._keep is not None:
                with open(path, "rb") as file, gzip.open(self._keep, "wb", 6) as packed:
                    shutil.copyfileobj(file, packed)
            with open(path, encoding="utf-8", errors="replace") as file:
                return json.load(file)


def profiled(
    step: Callable[[], None], *, piped: bool, keep: Path | None = None, steps: int = STEPS
) -> dict[str, Any]:
    """Profile ``steps`` calls, after one that is not looked at; see `Recorder`."""
    step()  # as many steps are under way then as later
    recorder = Recorder(piped=piped, keep=keep)
    recorder.start()
    for _ in range(steps):
        with recorder.step():
            step()
    return recorder.stop()


def trace_file(folder: Path, rank: int, *, is_kept: bool) -> Path | None:
    """Return where a rank's trace is kept, below the folder of its events; None: nowhere."""
    return folder / f"trace-rank{rank}.json.gz" if is_kept else None


def phase(name: str) -> contextlib.AbstractContextManager[Any]:
    """The body is phase ``name`` of a profiled step: forward, backward."""
    return record_function(PHASE + name)


@contextlib.contextmanager
def _waits_recorded() -> Iterator[None]:
    """Record in the body where Python waits for a collective or a message."""
    original = dist.Work.wait

    def wait(work: Any, *args: Any, **how: Any) -> Any:
        with record_function(WAIT):
            return original(work, *args, **how)

    dist.Work.wait = wait
    try:
        yield
    finally:
        dist.Work.wait = original
