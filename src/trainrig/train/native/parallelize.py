"""The one place where a layout is applied to a model, in one order, before it has memory.

    pipeline stages → tensor, context, expert parallel → 8-bit products → dropout → recomputation
    → compile → FSDP2 → memory → first weights

A model on meta is cut and spread first, so that a rank never holds more of the first weights than
it keeps; each rank then draws its own part (`models.fill_weights`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from trainrig import models
from trainrig.models import dropout, recompute
from trainrig.train.config import Experiment, objective_of
from trainrig.train.native import context_parallel, data_parallel, expert, pipeline, tensor_parallel
from trainrig.train.native.collectives import Collectives
from trainrig.train.native.pipeline import Pipeline
from trainrig.train.native.precision import to_float8
from trainrig.train.native.weight_source import first_weights
from trainrig.train.native.world import World
from trainrig.workload import ModelShape
from trainrig.workload.layout import Layout


def parallelize(
    model: nn.Module, experiment: Experiment, shape: ModelShape, world: World, wire: Collectives
) -> data_parallel.Spread:
    """Return the weights of one rank, of a ``model`` on meta that is changed in place."""
    layout, device = experiment.layout, world.device
    initial_weights = first_weights(experiment, shape)
    stages = pipeline.split(model, shape, layout, world.view("pp")) if layout.mesh.pp > 1 else []
    parts = [stage.module for stage in stages] or [model]
    for part in parts:
        if layout.mesh.tp > 1:
            split = bool(layout.mesh.sequence_parallel)
            tensor_parallel.apply(part, shape, world.view("tp"), sequence_parallel=split)
        if layout.mesh.cp > 1:
            context_parallel.apply(part, world.view("cp"))
        experts = expert.apply(part, shape, world.view("ep")) if layout.mesh.ep > 1 else []
        if layout.precision.compute == "fp8":
            to_float8(part, experiment.kernels.fp8_recipe, device)
        if experiment.dropout:
            dropout.apply(part, experiment.dropout, experiment.seed, **_parts(part, layout, world))
        recompute.apply(part, experiment.recompute)
        if experiment.compile:
            models.compile_blocks(part, chunk="chunk" not in experiment.unfused_parts)
        if world.shards:
            offload = layout.memory.offload == "host"
            how = {"offload": offload, "piped": bool(stages)}
            data_parallel.shard(
                part,
                layout.precision.compute,
                int(layout.sharding.zero),
                world,
                **how,
                experts=experts,
            )
        part.to_empty(device="cpu" if layout.memory.offload == "host" else device)
        models.fill_weights(part, experiment.seed, initial_weights)
    even = objective_of(shape) != "masked"
    if world.shards:
        weights: data_parallel.Spread = data_parallel.Sharded(
            parts, int(layout.sharding.zero), world, wire, even=even
        )
    else:
        kind = data_parallel.Spread if world.is_split else data_parallel.Replicated
        weights = kind(parts, layout.precision.compute, world, wire, even=even)
    if stages:
        weights.through(Pipeline(stages, layout, world.view("pp"), torch.device(device)))
    return weights


def _parts(model: Any, layout: Layout, world: World) -> dict[str, int]:
    """Return this rank's parts of the tokens and of attention's heads."""
    tp, cp = int(layout.mesh.tp), int(layout.mesh.cp)
    among = world.view("tp").get_local_rank() if tp > 1 else 0
    stretch = model.stretch
    tokens = stretch.part * stretch.spread + (among if stretch.spread > 1 else 0)
    return {"token_part": tokens, "head_part": among * cp + stretch.part}
