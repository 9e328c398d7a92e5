"""Real ranks of our engine under one layout after the other: what they compute and exchange."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

import rank_program
from trainrig.data.batches import Batch
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


def engine_for(experiment: Experiment) -> tuple[Engine, Mapping[str, str] | None]:
    """The engine of one rank and its groups' axes, or of one process that is in no group."""
    shape, watch = SHAPES[experiment.model], stopwatch_for("cpu")
    if not dist.is_initialized():
        alone = batches_for(experiment, shape, 0)
        return Engine(experiment, shape, batches=alone, watch=watch), None
    world, wire = World(experiment.layout, "cpu"), Collectives()
    wire.axes = world.axes
    parallel = partial(parallelize, experiment=experiment, shape=shape, world=world, wire=wire)
    batches = batches_for(experiment, shape, world.data_rank)
    how = {"batches": batches, "parallel": parallel, "tokens": world.tokens(experiment.seq_len)}
    return Engine(experiment, shape, watch=watch, **how), world.axes


def probe(experiment: Experiment) -> dict[str, Any]:
    """Losses and gradient norms of plain gradient descent, and the facts of the layout."""
    rows: list[dict[str, Any]] = []
    facts: dict[str, Any] = {}
    for how in (experiment, probe_of(experiment)):
        engine, axes = engine_for(how)
        with engine:
            facts = facts or layout_observed.first_step(engine, axes)
            if how is not experiment:
                engine.run(rows.append, lambda step: step >= STEPS)
    return {
        "facts": facts,
        "losses": [row["loss"] for row in rows],
        "grad_norms": [row["grad_norm"] for row in rows],
        "parts": rows[-1],
    }


def clipped(experiment: Experiment) -> dict[str, torch.Tensor]:
    """The whole weights after a few steps with clipping and decay."""
    engine, _ = engine_for(experiment.replace(**CLIPPED))
    with engine:
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


def answer(keys: dict[str, Any]) -> dict[str, Any]:
    """Its probe, with the clipped weights of all ranks compared and rank 0's kept."""
    own = Experiment.of(**keys["experiment"])
    weights = clipped(own)
    if dist.get_rank() == 0:
        torch.save(weights, keys["weights"])
    return probe(own) | {"digests": digests(weights)}


if __name__ == "__main__":
    rank_program.main(answer)
