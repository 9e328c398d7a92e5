"""How long saving a checkpoint keeps a training waiting, and what it costs the steps beside it.

A training of one process; each round it saves beside its steps (`native.checkpoint.Saver`), trains
on until that checkpoint is whole, and then writes the same state by torch.save into one file,
synced, while it waits.  Peer: torch.save.  Target: the median of five stalls under 100 ms.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from _shared import middle, options, say_load, verdict

from trainrig.data.batches import Batch
from trainrig.train.checkpoint_folder import draft_of
from trainrig.train.config import Experiment
from trainrig.train.native.checkpoint import Saver
from trainrig.train.native.loop import Engine
from trainrig.workload import ModelShape, custom, named

MOST_SECONDS = 0.1
ROUNDS = 5


def main() -> None:
    """The stall, the peer's, and steps beside the writing and without."""
    parser = options(__doc__)
    arguments = parser.parse_args()
    torch.set_num_threads(1 if arguments.quick else 2)
    say_load()
    shape, rounds = named("gpt2-small-cpu"), ROUNDS
    if arguments.quick:
        shape = custom("gpt2", num_layers=1, hidden=64, vocab=512, max_positions=64)
        rounds = 2
    own = Experiment.of(precision="fp32", batch_size=1, seq_len=64, warmup=0)
    with tempfile.TemporaryDirectory() as folder:
        report(own, shape, Path(folder), rounds)


def report(own: Experiment, shape: ModelShape, folder: Path, rounds: int) -> None:
    """Rounds of both ways to save, and their medians."""
    stalls, wholes, peers, beside, alone = ([0.0][:0] for _ in range(5))
    with Engine(own, shape, batches=batches(own, shape)) as engine, Saver(engine, folder) as saver:
        steps(engine, 3)
        saver.save()  # its buffers are made by the first one
        first = saver.blocked
        saver.wait()
        for _ in range(rounds):
            alone += steps(engine, 3)
            start = time.perf_counter()
            saver.save()
            stalls.append(saver.blocked)
            draft = draft_of(folder, saver.saved_step)
            while not beside or draft.exists():
                beside += steps(engine, 1)
            saver.wait()
            wholes.append(time.perf_counter() - start)
            peers.append(by_torch_save(engine, folder / "peer.pt"))
        size = sum(tensor.nbytes for tensor in engine.state()[0].values())
    stall, peer = statistics.median(stalls), statistics.median(peers)
    print(f"{size / 1e6:.0f} MB of weights and optimizer states, {rounds} rounds")
    print(f"  the training waits     {middle(stalls)}; for the first save {first * 1e3:.1f} ms")
    print(f"  until it is whole      {middle(wholes)}")
    print(f"  torch.save, synced     {middle(peers)}")
    print(f"  a step without saving  {middle(alone)}")
    print(f"  a step beside writing  {middle(beside)}")
    met = verdict(stall < MOST_SECONDS)
    print(f"ratio {stall / peer:.3f} of torch.save's stall (target: under 100 ms: {met})")


def steps(engine: Engine, count: int) -> list[float]:
    """Seconds of each of so many steps."""
    found = []
    for _ in range(count):
        start, behind = time.perf_counter(), engine.next_step + 1
        engine.run(lambda _: None, lambda step, behind=behind: step >= behind)  # type: ignore[misc]
        found.append(time.perf_counter() - start)
    return found


def by_torch_save(engine: Engine, path: Path) -> float:
    """Seconds until the state is on the disk."""
    start = time.perf_counter()
    with path.open("wb") as file:
        torch.save(engine.state(), file)
        file.flush()
        os.fsync(file.fileno())
    return time.perf_counter() - start


def batches(own: Experiment, shape: ModelShape) -> Callable[[int], Batch]:
    """Random tokens of a step."""

    def batch(step: int) -> Batch:
        random = np.random.default_rng((own.seed, step))
        tokens = random.integers(0, shape.vocab, (own.batch_size, own.seq_len))
        return Batch(inputs=tokens, labels=np.roll(tokens, -1, axis=1))

    return batch


if __name__ == "__main__":
    main()
