"""Two real ranks that go through all layouts in one process group; rank 0 writes what came out.

Started by `trainrig.process.supervisor`, as ranks are.  A layout costs a second this way, not ten.
"""

from __future__ import annotations

import json
import os
import sys
import zlib
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from trainrig.data.batches import Batch
from trainrig.process.child import die_with_parent, leave
from trainrig.process.events import Events
from trainrig.train.config import Experiment, objective_of
from trainrig.train.native import layout_observed
from trainrig.train.native.collectives import Collectives
from trainrig.train.native.loop import Engine
from trainrig.train.native.parallelize import parallelize
from trainrig.train.native.step_timer import stopwatch_for
from trainrig.train.native.world import World
from trainrig.train.parity import STEPS, probe_of
from trainrig.workload import ModelShape, custom

CLIPPED: dict[str, Any] = {
    "steps": 3,
    "optimizer": "sgd",
    "lr": 0.5,
    "clip": 0.1,
    "weight_decay": 0.5,
}
"""What the comparison's own steps leave out: gradients that are shortened, weights that decay."""

SHAPE = custom("gpt2", num_layers=2, hidden=32, num_heads=2, vocab=128, max_positions=16)
BERT = custom("bert", num_layers=1, hidden=32, num_heads=2, vocab=128, max_positions=16)
WIDE = custom("gpt2", num_layers=2, hidden=256, num_heads=2, vocab=128, max_positions=16)
"""More than one of DDP's buckets."""
SHAPES = {"gpt2": SHAPE, "bert": BERT, "wide": WIDE}


def batches_for(experiment: Experiment, shape: ModelShape, rank: int) -> Any:
    """A rank's share of random tokens; of BERT's only some have a label, on each rank others."""

    def batches(step: int) -> Batch:
        random = np.random.default_rng((7, step))
        tokens = random.integers(0, 128, (experiment.global_samples, experiment.seq_len + 1))
        labels = tokens[:, 1:].copy()
        if objective_of(shape) == "masked":
            hidden = np.linspace(0.2, 0.9, len(labels))[:, None]
            labels[random.random(labels.shape) < hidden] = -100
            labels[:, 0] = tokens[:, 1]
        own = slice(rank * experiment.samples, (rank + 1) * experiment.samples)
        return Batch(inputs=tokens[own, :-1].copy(), labels=labels[own].copy())

    return batches


def engine_for(experiment: Experiment, wire: Any, watch: Any) -> Engine:
    """The engine of one rank; without a wire that of one process."""
    shape = SHAPES[experiment.model]
    if wire is None:
        return Engine(experiment, shape, batches=batches_for(experiment, shape, 0), watch=watch)
    world = World(experiment.layout, "cpu")
    wire.axes = world.axes
    parallel = partial(parallelize, experiment=experiment, shape=shape, world=world, wire=wire)
    batches = batches_for(experiment, shape, world.data_rank)
    tokens = world.tokens(experiment.seq_len)
    return Engine(experiment, shape, batches=batches, watch=watch, parallel=parallel, tokens=tokens)


def probe(experiment: Experiment, *, alone: bool) -> dict[str, Any]:
    """Losses and gradient norms of plain gradient descent, and the facts of the layout."""
    rows: list[dict[str, Any]] = []
    facts: dict[str, Any] = {}
    for how in (experiment, probe_of(experiment)):
        watch = stopwatch_for("cpu")
        wire: Any = None if alone else Collectives()
        with engine_for(how, wire, watch) as engine:
            facts = facts or layout_observed.first_step(engine, getattr(wire, "axes", None))
            if how is not experiment:
                engine.run(rows.append, lambda step: step >= STEPS)
    return {
        "facts": facts,
        "losses": [row["loss"] for row in rows],
        "grad_norms": [row["grad_norm"] for row in rows],
        "parts": rows[-1],
    }


def clipped(experiment: Experiment, *, alone: bool) -> dict[str, torch.Tensor]:
    """The whole weights after a few steps with clipping and decay."""
    watch = stopwatch_for("cpu")
    wire: Any = None if alone else Collectives()
    with engine_for(experiment.replace(**CLIPPED), wire, watch) as engine:
        engine.run(lambda _: None, lambda step: step >= CLIPPED["steps"])
    found = {}
    for name, weight in engine.weights.model.items():
        whole = weight.full_tensor() if hasattr(weight, "full_tensor") else weight
        found[name.removeprefix("model.")] = whole.detach().float()
    return found


def digests(weights: dict[str, torch.Tensor]) -> list[int]:
    """Of each rank's weights."""
    own = zlib.crc32(b"".join(weight.numpy().tobytes() for weight in weights.values()))
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, own)
    return every


def main() -> None:
    die_with_parent()
    folder, rank = Path(sys.argv[1]), int(os.environ["RANK"])
    events = Events(folder, rank)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    found = {}
    for name, content in json.loads((folder / "layouts.json").read_text()).items():
        events.set_position(part=name)
        found[name] = probe(Experiment.of(**content), alone=False)
        weights = clipped(Experiment.of(**content), alone=False)
        found[name]["digests"] = digests(weights)
        if rank == 0:
            torch.save(weights, folder / f"{name}.pt")
        events.emit("alive")
    if rank == 0:
        (folder / "found.json").write_text(json.dumps(found))
    dist.barrier()
    events.emit("done")
    leave(0)


if __name__ == "__main__":
    main()
