"""Real ranks that train tiny models with all that a training has, layout after layout.

Clipped hard, by a schedule, with weight decay and dropout, and held-out losses between the steps;
what came out must be what one process has (`train`).  Started by
`trainrig.process.supervisor`, as ranks are.
"""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

import rank_program
from trainrig.data.batches import Batch
from trainrig.train.config import Experiment
from trainrig.train.native.collectives import Collectives
from trainrig.train.native.loop import Engine
from trainrig.train.native.parallelize import parallelize
from trainrig.train.native.step_timer import stopwatch_for
from trainrig.train.native.world import World
from trainrig.workload import custom

SAMPLES, TOKENS, VOCAB = 8, 16, 128
SIZES: dict[str, Any] = {
    "num_layers": 4,
    "hidden": 32,
    "num_heads": 4,
    "vocab": VOCAB,
    "max_positions": TOKENS,
}
SHAPES = {
    "gpt2": custom("gpt2", **SIZES),
    "llama": custom("llama", **SIZES),
    "bert": custom("bert", **SIZES),
    "mixture": custom("llama", num_experts=4, **SIZES),
}
USUAL: dict[str, Any] = {
    "batch_size": SAMPLES,
    "seq_len": TOKENS,
    "steps": 5,
    "precision": "fp32",
    "optimizer": "sgd",
    "lr": 2.0,
    "warmup": 2,
    "clip": 0.05,
    "weight_decay": 0.1,
    "dropout": 0.1,
    "heldout_batches": 2,
    "heldout_every": 2,
    "threads": 1,
}


class OfTests(Engine):
    """An engine of random samples, of which a rank reads its share."""

    def _batches(self, part: str) -> Any:
        own, rank = self.experiment, self._rank
        masked = self.shape.family == "bert"

        def batches(step: int) -> Batch:
            random = np.random.default_rng((len(part), step))
            tokens = random.integers(0, VOCAB, (own.global_samples, own.seq_len + 1))
            labels = tokens[:, 1:].copy()
            if masked:  # each rank another number of targets
                least = np.linspace(0.2, 0.9, len(labels))[:, None]
                labels[random.random(labels.shape) < least] = -100
                labels[:, 0] = tokens[:, 1]
            share = slice(rank * own.samples, (rank + 1) * own.samples)
            return Batch(inputs=tokens[share, :-1].copy(), labels=labels[share].copy())

        return batches


def train(experiment: Experiment) -> dict[str, Any]:
    """Losses, gradient norms, held-out losses and the numbers of weights that decay or not."""
    shape, watch = SHAPES[experiment.model], stopwatch_for("cpu")
    how: dict[str, Any] = {}
    if dist.is_initialized():
        world = World(experiment.layout, "cpu")
        wire = Collectives()
        spread = partial(parallelize, experiment=experiment, shape=shape, world=world, wire=wire)
        how = {"parallel": spread, "rank": world.data_rank, "tokens": world.tokens(TOKENS)}
    rows: list[dict[str, Any]] = []
    heldout: list[float] = []
    torch.manual_seed(os.getpid())  # nothing of what follows may depend on it
    with OfTests(experiment, shape, watch=watch, **how) as engine:
        engine.on_heldout = lambda _, loss: heldout.append(loss)
        engine.run(rows.append, lambda step: step >= experiment.steps)
        heldout.append(engine.heldout_loss())
        decayed = engine.weights.decayed(engine.optimizer.param_groups)
    return {
        "losses": [row["loss"] for row in rows],
        "grad_norms": [row["grad_norm"] for row in rows],
        "heldout": heldout,
        "decayed": decayed,
    }


if __name__ == "__main__":
    rank_program.main(lambda keys: train(Experiment.of(**keys)))
