"""The search through a written list of matmul shapes against measuring a fine grid of them.

Peer: a sweep, one look at each shape of the grid, in a scattered order, by the same function
in the same worker as the search.  The search runs three times, before, half-way
and after the sweep.  Then the winners are measured again in a fresh worker, in
turns.  Targets: 98 % of the sweep's best, in a quarter of its time.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from pathlib import Path

from _shared import options, say_load, verdict

from trainrig.machine import inspect
from trainrig.process.worker import Worker
from trainrig.runner.matmul_search import FastestShape, Prober, Shape, find_fastest, usual_shapes
from trainrig.runner.progress import null_progress
from trainrig.runner.session import Scene
from trainrig.runner.targets import Target, choose, find_targets
from trainrig.store import RunWriter, create_run
from trainrig.units import format_quantity, format_time

SHARE, TIME_SHARE = 0.98, 0.25
_ROUNDS = 25
_LONG = 1e6
SIZES = {False: tuple(range(256, 2048 + 1, 256)), True: tuple(range(1024, 16384 + 1, 1024))}


class Race:
    """A list on one device, searched, and a grid, swept."""

    def __init__(
        self,
        scene: Scene,
        target: Target,
        dtype: str,
        listed: Sequence[Shape],
        grid: Sequence[Shape],
    ) -> None:
        self.found: list[FastestShape] = []
        self.sweep_s = 0.0
        self.rates: dict[Shape, float] = {}
        self._scene = scene
        self._target = target
        self._dtype = dtype
        self.listed, self.grid = listed, grid

    @contextmanager
    def prober(self, name: str) -> Iterator[Prober]:
        """A fresh worker that has done one case already."""
        log = self._scene.run.log_path(name)
        with Worker(self._target.torch_device, log) as worker:
            prober = Prober(self._scene, self._target, self._dtype, worker)
            worker.wait_ready()
            if prober.look(self.grid[0]) is None:
                raise SystemExit(f"{self._dtype} matmul does not run here")
            yield prober

    def search(self, prober: Prober) -> None:
        """One search, as ``--peak`` makes it when its time is ample."""
        found = find_fastest(self.listed, prober.look, seconds=_LONG)
        assert found is not None
        self.found.append(found)
        print(
            f"search: {_name(found.shape)} {format_quantity(found.rate, 'FLOP/s')}, "
            f"{found.num_measured} shapes in {format_time(found.seconds)}",
            flush=True,
        )

    def sweep(self, prober: Prober, shapes: Sequence[Shape]) -> None:
        """One look at each of ``shapes``."""
        start = time.monotonic()
        for shape in shapes:
            rate = prober.look(shape)
            if rate is not None:
                self.rates[shape] = rate
        self.sweep_s += time.monotonic() - start

    @property
    def best(self) -> Shape:
        """The sweep's winner."""
        return max(self.rates, key=self.rates.__getitem__)


def again(prober: Prober, shapes: Sequence[Shape], rounds: int) -> dict[Shape, float]:
    """The median rate of each shape, measured in turns."""
    rates: dict[Shape, list[float]] = {shape: [] for shape in shapes}
    for _ in range(rounds):
        for shape, rate in [(shape, prober.look(shape)) for shape in rates]:
            rates[shape] += [] if rate is None else [rate]
    return {shape: statistics.median(found) for shape, found in rates.items()}


def main() -> None:
    """Search, sweep, search, re-measure; print the two ratios of each search."""
    parser = options(__doc__)
    parser.add_argument("--device", help="cpu or cuda:0; the first GPU, or else the CPU")
    parser.add_argument("--dtype", default=None, help="fp32 on a CPU without it")
    parser.add_argument("--sizes", help="of each axis: 256,512,1024")
    arguments = parser.parse_args()
    say_load()
    with tempfile.TemporaryDirectory() as folder, create_run(Path(folder), "bench", {}) as run:
        race, rounds = start(run, arguments), 2 if arguments.quick else _ROUNDS
        shapes = list(race.grid)
        random.Random(1).shuffle(shapes)
        with race.prober("search") as prober:
            race.search(prober)
            race.sweep(prober, shapes[: len(shapes) // 2])
            race.search(prober)
            race.sweep(prober, shapes[len(shapes) // 2 :])
            race.search(prober)
        best = race.best
        print(
            f"sweep:  {_name(best)} {format_quantity(race.rates[best], 'FLOP/s')}, "
            f"{len(shapes)} shapes in {format_time(race.sweep_s)}"
        )
        with race.prober("winners") as prober:
            rates = again(prober, [best, *(found.shape for found in race.found)], rounds)
    tell(race, rates)


def start(run: RunWriter, arguments: argparse.Namespace) -> Race:
    """Return what was asked for, or the usual."""
    snapshot = inspect()
    target = choose(find_targets(snapshot), arguments.device)[0]
    dtype = arguments.dtype or (target.arithmetic.fastest if target.is_gpu else "fp32")
    scene = Scene(
        run=run,
        snapshot=snapshot,
        targets=(target,),
        environment="benchmark",
        claims=(),
        deadline=time.monotonic() + _LONG,
        watch=null_progress,
    )
    print(f"{dtype} matmul on {target.label}")
    grid = tuple(product(_sizes(arguments.sizes, target, arguments.quick), repeat=3))
    listed = grid[::7] if arguments.quick else usual_shapes(target, dtype)
    return Race(scene, target, dtype, listed, grid)


def tell(race: Race, rates: dict[Shape, float]) -> None:
    """Both winners re-measured, and the ratios of the three searches."""
    for shape, rate in rates.items():
        print(f"again:  {_name(shape)} {format_quantity(rate, 'FLOP/s')}")
    shares = [rates[found.shape] / rates[race.best] for found in race.found]
    times = [found.seconds / race.sweep_s for found in race.found]
    print("rates over the sweep's winner: " + ", ".join(f"{share:.3f}" for share in shares))
    print("time over the sweep's:         " + ", ".join(f"{share:.3f}" for share in times))
    share, time_share = statistics.median(shares), max(times)
    print(
        f"ratio {share:.3f} of the sweep's best (median of three), target {SHARE}: "
        f"{verdict(share >= SHARE)}; in {time_share:.3f} of its time (longest of three), "
        f"target {TIME_SHARE}: {verdict(time_share <= TIME_SHARE)}"
    )


def _name(shape: Shape) -> str:
    return "×".join(map(str, shape))


def _sizes(text: str | None, target: Target, quick: bool) -> Sequence[int]:
    if text:
        return [int(size) for size in text.split(",")]
    return (64, 128, 256) if quick else SIZES[target.is_gpu]


if __name__ == "__main__":
    main()
