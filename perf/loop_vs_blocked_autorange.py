"""The matmul and vector suite against torch.utils.benchmark, point by point, in turns.

Peer: ``blocked_autorange(min_run_time=3)`` on the same prepared call (operands,
``out=``, threads), in one process that stays.  Ours: the runner's own path, two
fresh workers, the answer checked before and after.  As soon as a point of ours is
settled the peer times the same case; neither runs while the other does.

Targets: every point within 2 % half-width or marked noisy; medians of the others
within 3 % of the peer's; a third of the peer's time at most, both with the loading
of torch.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from _shared import options, say_load, verdict

from trainrig.benchmarks.matmul import matmul_case
from trainrig.benchmarks.spec import Benchmark, benchmark
from trainrig.machine import inspect
from trainrig.record import Case, Record, case_label
from trainrig.runner.executor import Executor
from trainrig.runner.plan import Block, Task, qualify_plan
from trainrig.runner.progress import Progress
from trainrig.runner.targets import Target, choose, find_targets
from trainrig.store import create_run, read_run
from trainrig.units import format_time

HALF_WIDTH, AGREEMENT, TIME_SHARE = 0.02, 0.03, 1.0 / 3.0
UNMARKED_SHARE = 0.5
_LONG = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One case, measured by both."""

    case: Case
    ours: Record
    ours_s: float
    """Seconds a call."""
    ours_took: float
    """Seconds for the point, both workers."""
    peer_s: float
    peer_took: float
    peer_iqr: float
    """Interquartile range over the median."""

    @property
    def ratio(self) -> float:
        """Our median over the peer's."""
        return self.ours_s / self.peer_s

    @property
    def half_width(self) -> float:
        """Of our interval, as a share of the value."""
        assert self.ours.interval is not None and self.ours.value is not None
        low, high = self.ours.interval
        return (high - low) / 2.0 / self.ours.value

    @property
    def marked(self) -> str | None:
        """Return why ours must not be relied on, or None."""
        if self.ours.disturbed is not None:
            return self.ours.disturbed
        return None if self.ours.stop == "converged" else f"stopped by {self.ours.stop}"


class Peer:
    """The process that runs blocked_autorange; counts its own seconds."""

    def __init__(self, device: str, min_run_time: float) -> None:
        start = time.perf_counter()
        script = Path(__file__).with_name("_blocked_autorange.py")
        self._process = subprocess.Popen(
            [sys.executable, str(script), device, str(min_run_time)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.measure(benchmark("matmul"), matmul_case("fp32", 16))
        self.seconds = time.perf_counter() - start - min_run_time  # that case was for the loading

    def measure(self, spec: Benchmark, case: Case) -> dict[str, float]:
        """Median, interquartile range and seconds of one case."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps({"module": spec.module, "case": dict(case)}) + "\n")
        self._process.stdin.flush()
        found: dict[str, float] = json.loads(self._process.stdout.readline())
        return found

    def close(self) -> None:
        """End it."""
        self._process.communicate()


class Race:
    """Runs the suite by the runner and lets the peer time each point that is settled."""

    def __init__(self, target: Target, peer: Peer) -> None:
        self.pairs: list[Pair] = []
        self.ours_seconds = 0.0
        self._target = target
        self._peer = peer
        self._resumed = 0.0

    def run(self, tasks: Sequence[Task], folder: Path) -> None:
        """All tasks in one block: two fresh workers serve them."""
        with create_run(folder, "bench", {}) as run:
            executor = Executor(
                run,
                environment="benchmark",
                deadline=time.monotonic() + _LONG,
                watch=self._met,
            )
            self._run = run.path
            self._resumed = time.perf_counter()
            block = Block(name="suite", tasks=tuple(tasks))
            executor.run_block(block, _LONG)
            self.ours_seconds += time.perf_counter() - self._resumed

    def _met(self, event: Progress) -> None:
        """Told by the runner of each settled point: the peer's turn."""
        if event.level != "point":
            return
        point = read_run(self._run).records[-1]
        took = time.perf_counter() - self._resumed
        self.ours_seconds += took
        if point.value is not None:
            found = self._peer.measure(benchmark(point.benchmark), point.case)
            self._peer.seconds += found["seconds"]
            amount = benchmark(point.benchmark).metrics(point.case)[0].amount
            pair = Pair(
                case=point.case,
                ours=point,
                ours_s=amount / point.value,
                ours_took=took,
                peer_s=found["median_s"],
                peer_took=found["seconds"],
                peer_iqr=found["iqr_s"] / found["median_s"],
            )
            self.pairs.append(pair)
            print(_line(pair), flush=True)
        self._resumed = time.perf_counter()


def _line(pair: Pair) -> str:
    marked = f"  marked: {pair.marked}" if pair.marked else ""
    return (
        f"{pair.ours.benchmark:6s} {case_label(pair.case):28s} {format_time(pair.ours_s):>8s} "
        f"±{pair.half_width * 100:4.1f} %   peer {format_time(pair.peer_s):>8s} "
        f"iqr {pair.peer_iqr * 100:4.1f} %   ratio {pair.ratio:.3f}   "
        f"took {pair.ours_took:4.1f} s, peer {pair.peer_took:.1f} s{marked}"
    )


def suite(target: Target, quick: bool) -> list[Task]:
    """The matmul and vector cases of a qualification, by their usual order."""
    blocks = qualify_plan([target], 240.0)
    tasks = [t for block in blocks for t in block.tasks if t.benchmark in ("matmul", "vector")]
    dtypes = ("fp32", "bf16", "fp16" if target.is_gpu else "bf16")
    usual = [
        t
        for t in tasks
        if not t.planned.seconds and (t.benchmark == "vector" or t.case.get("dtype") in dtypes)
    ]
    small = [t for t in usual if t.case.get("m") == 128 or t.case.get("num_elements") == 1 << 14]
    return small[:3] if quick else usual


def _summary(race: Race, peer: Peer) -> None:
    pairs = race.pairs
    sure = [pair for pair in pairs if pair.marked is None]
    tight = [pair for pair in sure if pair.half_width <= HALF_WIDTH]
    away = [pair for pair in sure if abs(pair.ratio - 1.0) > AGREEMENT]
    share = race.ours_seconds / peer.seconds
    # A machine so busy that most points are marked proves nothing about the unmarked ones.
    enough = len(sure) >= UNMARKED_SHARE * len(pairs)
    print(
        f"{len(pairs)} points: {len(tight)} within 2 %, {len(pairs) - len(sure)} marked noisy, "
        f"{len(sure) - len(tight)} neither: "
        f"{verdict(len(sure) == len(tight), can_tell=enough)}"
    )
    if sure:
        ratios = sorted(pair.ratio for pair in sure)
        print(
            f"medians of the unmarked over the peer's: {ratios[0]:.3f} to {ratios[-1]:.3f}, "
            f"median {statistics.median(ratios):.3f}; {len(away)} of {len(sure)} differ by more "
            f"than 3 %: {verdict(not away, can_tell=enough)}"
        )
    print(
        f"ratio {share:.2f} of the peer's time ({format_time(race.ours_seconds)} against "
        f"{format_time(peer.seconds)}), target at most a third: {verdict(share <= TIME_SHARE)}"
    )


def main() -> None:
    """Race, a line a point, then the three targets."""
    parser = options(__doc__)
    parser.add_argument("--device", help="cpu or cuda:0; the first GPU, or else the CPU")
    arguments = parser.parse_args()
    say_load()
    targets = find_targets(inspect())
    target = choose(targets, arguments.device)[0]
    peer = Peer(target.torch_device, 0.1 if arguments.quick else 3.0)
    race = Race(target, peer)
    with tempfile.TemporaryDirectory() as folder:
        race.run(suite(target, arguments.quick), Path(folder))
    peer.close()
    _summary(race, peer)


if __name__ == "__main__":
    main()
