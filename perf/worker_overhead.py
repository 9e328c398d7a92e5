"""What supervision costs a case: through a worker process beside a call in this process.

The same case runs in turns in a supervised worker (request, reply, hard time
limit) and by a direct call of the function that the worker runs.  Peer: that
direct call.  Also printed: processor time of the waiting parent, which should be
none, and what keeping a record costs (one line, synced to the disk).
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from _shared import in_turns, middle, options, say_load

from trainrig.benchmarks.matmul import BENCHMARK
from trainrig.measure.aggregate import Subject, attempt_record
from trainrig.measure.worker_main import run_case
from trainrig.process.worker import Request, Worker
from trainrig.record import Status
from trainrig.store import create_run

CASE = {"dtype": "fp32", "m": 128, "k": 128, "n": 128, "cache": "hot"}


def main() -> None:
    """Print both medians, the difference and the ratio."""
    arguments = options(__doc__).parse_args()
    say_load()
    rounds, seconds = (2, 0.02) if arguments.quick else (30, 0.2)
    settings, module = {"max_time": seconds}, BENCHMARK.module
    request = Request(
        benchmark=BENCHMARK.name, module=module, case=CASE, settings=settings, timeout=60.0
    )
    direct = {"module": module, "case": CASE, "settings": settings}
    parent_cpu: list[float] = []
    with tempfile.TemporaryDirectory() as folder, create_run(Path(folder), "bench", {}) as run:
        with Worker("cpu", run.log_path("worker")) as worker:
            worker.wait_ready()
            reply = worker.run(request)
            assert reply.status is Status.OK, reply.reason
            run_case(direct, "cpu")  # loads torch in this process too
            found = in_turns(
                rounds,
                {
                    "worker": lambda: beyond_sampling(
                        lambda: worker.run(request).duration or 0.0, parent_cpu
                    ),
                    "direct": lambda: wall(lambda: run_case(direct, "cpu")),
                },
            )
        record = attempt_record(
            request, reply, Subject(device="x", index=None, count=1, environment="x"), 1
        )
        kept = [wall(lambda: run.append(record)) for _ in range(rounds)]
    totals = [whole for whole, _ in found["worker"]]
    extra = [whole - inside for whole, inside in found["worker"]]
    print(f"a case in a worker   {middle(totals)}")
    print(f"a case by a call     {middle(found['direct'])}")
    print(f"request and reply    {middle(extra)}")
    print(f"parent's processor   {middle(parent_cpu)}")
    print(f"keeping a record     {middle(kept)}")
    share = statistics.median(extra) / statistics.median(totals)
    ratio = statistics.median(totals) / statistics.median(found["direct"])
    print(
        f"ratio {ratio:.3f} of a direct call; supervision itself is {share * 100:.2f} % of a case"
    )


def beyond_sampling(run: Callable[[], float], cpu: list[float]) -> tuple[float, float]:
    """(wall seconds of a case, the seconds that the worker itself counts)."""
    start_cpu, start = time.process_time(), time.perf_counter()
    inside = run()
    whole = time.perf_counter() - start
    cpu.append(time.process_time() - start_cpu)
    return whole, inside


def wall(run: Callable[[], Any]) -> float:
    """Wall seconds of a call."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
