"""The one place where a layout is applied to a model, in one order, before it has memory.

    pipeline stages → tensor parallel → context parallel → recomputation → compile → FSDP2
    → memory → first weights

A model on meta is cut and spread first, so that a rank never holds more of the first weights than
it keeps; each rank then draws its own part (`models.fill_weights`).
"""

from __future__ import annotations

from torch import nn

from trainrig import models
from trainrig.models import recompute
from trainrig.train.config import Experiment, objective_of
from trainrig.train.native import data_parallel, tensor_parallel
from trainrig.train.native.collectives import Collectives
from trainrig.train.native.world import World
from trainrig.workload import ModelShape


def parallelize(
    model: nn.Module, experiment: Experiment, shape: ModelShape, world: World, wire: Collectives
) -> data_parallel.Spread:
    """The weights of one rank, of a ``model`` on meta that is changed in place."""
    own, device = experiment.layout, world.device
    parts = [model]
    sharded = own.zero > 0 or world.is_split
    sharded = sharded and world.dp * world.cp > 1
    for part in parts:
        if own.tp > 1:
            split = bool(own.sequence_parallel)
            tensor_parallel.apply(part, shape, world.view("tp"), sequence_parallel=split)
        recompute.apply(part, experiment.recompute)
        if experiment.compile:
            models.compile_blocks(part)
        if sharded:
            offload = own.offload == "host"
            data_parallel.shard(
                part, own.precision, int(own.zero), world, offload=offload, piped=len(parts) > 1
            )
        part.to_empty(device="cpu" if own.offload == "host" else device)
        models.fill_weights(part, experiment.seed)
    even = objective_of(shape) != "masked"
    if sharded:
        return data_parallel.Sharded(parts, int(own.zero), world, wire, even=even)
    kind = data_parallel.Spread if world.is_split else data_parallel.Replicated
    return kind(parts, own.precision, world, wire, even=even)
