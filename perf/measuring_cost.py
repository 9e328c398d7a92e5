"""What measuring costs a training step: marks, reading them, and telling each step's row.

Two answers.  Cost per event × events of a step, over the step's median time.  And the same training
in turns with and without all of it (no marks, no row told), as a ratio with its interval.  Peer:
the training without.  Target: under 1 % by the count, and a ratio whose interval ends below 1.01.
The model of the ratio is a light one, of some 50 ms a step: on a larger one it costs less.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from _shared import options, say_load, trained_in, verdict

from trainrig.data.batches import Batch
from trainrig.measure import noise
from trainrig.process.events import PARTS
from trainrig.train.config import Experiment
from trainrig.train.native.loop import Engine, Row
from trainrig.train.native.step_timer import Marked, Stopwatch, stopwatch_for
from trainrig.workload import ModelShape, custom, named

MAX_SHARE = 0.01


def main() -> None:
    """Both answers, each with its target."""
    parser = options(__doc__)
    parser.add_argument("--pairs", type=int, default=300)
    arguments = parser.parse_args()
    torch.set_num_threads(1 if arguments.quick else 2)
    say_load()
    if arguments.quick:
        small = custom("gpt2", num_layers=1, hidden=64, vocab=512, max_positions=64)
        by_events(
            Experiment.of(precision="fp32", batch_size=1, seq_len=64, warmup=0), small, steps=3
        )
        in_pairs(
            Experiment.of(precision="fp32", batch_size=1, seq_len=64, warmup=0), small, pairs=5
        )
        return
    usual = Experiment.of(precision=trained_in()[0], warmup=0)
    by_events(usual, named("gpt2-small-cpu"), steps=12)
    light = custom("gpt2", num_layers=4, hidden=256, vocab=2048, max_positions=128)
    in_pairs(
        Experiment.of(precision="fp32", batch_size=4, seq_len=128, warmup=0),
        light,
        pairs=arguments.pairs,
    )


def by_events(experiment: Experiment, shape: ModelShape, *, steps: int) -> None:
    """Cost of each kind of event, how many a step has, and their share of it."""
    rows: list[Row] = []
    with Engine(experiment, shape, batches=_batches(experiment, shape)) as engine:
        engine.run(rows.append, lambda step: step >= steps)
    step = statistics.median(row["time"] for row in rows[1:])
    watch, tell = stopwatch_for("cpu"), _teller()
    marked = watch.begin()
    for name in PARTS:
        with watch.part(name):
            pass
    watch.end()
    events: list[tuple[str, int, Callable[[], object]]] = [
        ("a part marked", len(PARTS), lambda: _empty_part(watch)),
        ("a step begun", 1, watch.begin),
        ("a step's marks read", 1, lambda: watch.read(marked)),
        ("a step's row told", 1, lambda: tell(rows[-1])),
        ("threads and host read, twice a run", 0, lambda: _watched("cpu")),
    ]
    watch.begin()
    total = 0.0
    print(f"a step of {shape.num_layers} layers, width {shape.hidden}: {step * 1e3:.1f} ms")
    for name, count, event in events:
        cost = _seconds(event)
        total += count * cost
        print(f"  {name:36s} {cost * 1e6:8.1f} µs × {count}")
    share = total / step
    print(f"  in all {total * 1e6:.0f} µs, {share:.3%} of a step (target 1 %: ", end="")
    print(f"{verdict(share < MAX_SHARE)})")


def _empty_part(watch: Stopwatch[Any]) -> None:
    with watch.part("forward"):
        pass


def _watched(device: str) -> None:
    with noise.watch(device):
        pass


def _teller() -> Callable[[Row], None]:
    """Return what a worker does for each step: one line of JSON to its parent."""
    sink = open(os.devnull, "w")  # noqa: SIM115 - lives as long as the program

    def tell(row: Row) -> None:
        sink.write(json.dumps({"news": {"row": row}}) + "\n")
        sink.flush()

    return tell


def _seconds(event: Callable[[], object], times: int = 200) -> float:
    """The median of a few means."""
    means = []
    for _ in range(7):
        start = time.perf_counter()
        for _ in range(times):
            event()
        means.append((time.perf_counter() - start) / times)
    return statistics.median(means)


class Unmeasured(Stopwatch[float]):
    """Marks nothing."""

    def __init__(self) -> None:
        super().__init__(lambda: 0.0, lambda start, end: end - start)

    def begin(self) -> Marked[float]:
        return Marked(0.0, [], 0.0)

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        yield


def in_pairs(experiment: Experiment, shape: ModelShape, *, pairs: int) -> None:
    """The same engine, a step with and a step without, first and second in turns."""
    tell = _teller()
    logs: list[float] = []
    with Engine(experiment, shape, batches=_batches(experiment, shape)) as engine:
        measured, bare = engine.watch, Unmeasured()
        for _ in range(5):
            _timed(engine, measured, tell)
        for number in range(pairs):
            order = (measured, bare) if number % 2 else (bare, measured)
            took = {id(watch): _timed(engine, watch, tell) for watch in order}
            logs.append(math.log(took[id(measured)] / took[id(bare)]))
    ratio, low, high = _interval(logs)
    print(f"the same step, {pairs} pairs, {shape.num_layers} layers, width {shape.hidden}")
    print(
        f"ratio {ratio:.4f} of the time without measuring, 95 % interval {low:.4f} to {high:.4f} "
        f"(target 1.01: {verdict(high <= 1 + MAX_SHARE, can_tell=not low <= 1.01 < high)})"
    )


def _timed(engine: Engine, watch: Stopwatch[Any], tell: Callable[[Row], None]) -> float:
    """Seconds of one step; the row of a measured one is told, of the other one only settled."""
    engine.watch = watch
    start = time.perf_counter()
    engine.step()
    if isinstance(watch, Unmeasured):
        engine._pending.clear()
    else:
        engine.drain(tell)
    return time.perf_counter() - start


def _interval(logs: list[float]) -> tuple[float, float, float]:
    """Median of the pairs' ratios and the interval of the median by its order statistics."""
    from scipy.stats import binom

    ordered = sorted(logs)
    rank = int(binom.ppf(0.025, len(logs), 0.5))
    return (
        math.exp(statistics.median(logs)),
        math.exp(ordered[max(0, rank - 1)]),
        math.exp(ordered[min(len(logs) - 1, len(logs) - rank)]),
    )


def _batches(experiment: Experiment, shape: ModelShape) -> Callable[[int], Batch]:
    def batch(step: int) -> Batch:
        random = np.random.default_rng((experiment.seed, step))
        tokens = random.integers(0, shape.vocab, (experiment.batch_size, experiment.seq_len))
        return Batch(inputs=tokens, labels=np.roll(tokens, -1, axis=1))

    return batch


if __name__ == "__main__":
    main()
