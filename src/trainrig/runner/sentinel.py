"""Repeat one small case on each device at the start, between blocks and at the end of a run.

It tells a machine that changed under the run (somebody began to use the card, a host's memory is
busy since then) from one that was slow all along: `analysis.judge_sentinel` reads the series.  The
case is a stream through memory, which a warm chip's clock hardly changes.  It
takes the first worker of each device's team, which is there anyway, for a sixth of a second.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Executor as Threads

from trainrig.analysis.judge_sentinel import SENTINEL
from trainrig.benchmarks.vector import BENCHMARK, sentinel_case
from trainrig.process.worker import Reply, Request, Worker
from trainrig.record import Status
from trainrig.runner.targets import Target
from trainrig.stats import median
from trainrig.store import RunWriter

_SAMPLING_S, _WARM_UP_S = 0.12, 0.03
_PATIENCE_S = 20.0
_LEAST_RUN_S = 60.0
"""Shortest run in seconds: in shorter ones the repeats would cost more than 1 %."""


class Sentinel:
    """Looks at every device again and again, and writes down what it saw."""

    def __init__(self, run: RunWriter, seconds: float) -> None:
        """``seconds``: how long the run may take; short ones are not looked at."""
        self._run = run
        self._start = time.monotonic()
        self._is_on = seconds >= _LEAST_RUN_S

    def look(
        self, teams: Sequence[tuple[Target, Worker]], threads: Threads, deadline: float
    ) -> None:
        """Measure the case on all devices at once; nothing where too little time is left."""
        if not self._is_on or deadline - time.monotonic() < 10.0 * _SAMPLING_S:
            return
        replies = threads.map(lambda pair: pair[1].run(_request()), teams)
        for (target, _), reply in zip(teams, replies, strict=True):
            self._write(target, reply)

    def _write(self, target: Target, reply: Reply) -> None:
        if reply.status is not Status.OK or not reply.samples:
            return
        row = {
            "t": time.time(),
            "m": time.monotonic(),
            "start": self._start,
            "device": target.name,
            "index": target.index,
            "time_s": median(reply.samples),
            "disturbed": reply.disturbed,
        }
        self._run.append_series(SENTINEL, row)


def _request() -> Request:
    return Request(
        benchmark=BENCHMARK.name,
        module=BENCHMARK.module,
        case=sentinel_case(),
        settings={"max_time": _SAMPLING_S, "warmup_time": _WARM_UP_S, "extra_time": 0.0},
        timeout=_PATIENCE_S,
    )
