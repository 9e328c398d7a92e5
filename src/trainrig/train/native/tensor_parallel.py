"""Tensor and sequence parallel: a model's matrices over the ranks of one mesh dimension.

`apply` spreads a model, or a pipeline stage, by its family's plan (`models.parallel_plan`); torch's
own `parallelize_module` does the rest.  What a rank then computes and sends stands there.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import parallelize_module

from trainrig.errors import UsageError
from trainrig.models.layers import Stretch
from trainrig.models.parallel_plan import plan_of
from trainrig.train.native import host_sums
from trainrig.workload.model import ModelShape


def apply(
    model: nn.Module, shape: ModelShape, mesh: DeviceMesh, *, sequence_parallel: bool
) -> None:
    """Spread ``model`` over ``mesh`` (one-dimensional), in place, before anything shards it.

    UsageError where heads, columns or the vocabulary have no equal shares.
    """
    ranks = mesh.size()
    counts = {
        "heads": shape.attention.num_heads,
        "heads of keys and values": shape.attention.num_kv_heads,
    }
    for divided_thing, count in (
        counts | {"columns of the feed-forward net": shape.ffn.width}
    ).items():
        if count % ranks:
            raise UsageError(
                f"{shape.name} has {count} {divided_thing}, not a multiple of tp = {ranks}"
            )
    if shape.moe.num_experts and not sequence_parallel:
        words = "each rank would send every token to experts: tokens are split before them"
        raise UsageError(words, "--sequence-parallel, or --tp 1")
    if shape.vocab < ranks**2:
        raise UsageError(
            f"{shape.name} has a vocabulary of {shape.vocab}: too few for tp = {ranks}"
        )
    plan = plan_of(model, sequence_parallel=sequence_parallel, look_up=host_sums.embedding)
    parallelize_module(model, mesh, plan, src_data_rank=None)
    if isinstance(getattr(model, "head_bias", None), nn.Parameter):
        bias = distribute_tensor(model.head_bias.data, mesh, [Shard(0)], src_data_rank=None)
        model.head_bias = nn.Parameter(bias)
    if getattr(model, "encoder_norm", None) is not None:
        model.encoder_norm.register_forward_hook(lambda *called: _gather(called[-1], mesh))
    if sequence_parallel:
        model.stretch = Stretch(spread=ranks)


def _gather(memory: Tensor, mesh: DeviceMesh) -> Tensor:
    """Gather the encoder's result on each rank, once for all blocks of the decoder.

    As a DTensor, whose gradient is a partial sum until all blocks have added theirs.
    """
    if not isinstance(memory, DTensor):
        return DTensor.from_local(memory, mesh, [Replicate()], run_check=False)
    return memory.redistribute(placements=[Replicate()])


def place_gradients(parameters: Iterable[Any]) -> None:
    """Give each gradient the placements of its parameter, once after the last backward pass.

    A norm's under sequence parallel is a partial sum until then.  Not needed where `fully_shard`
    has the parameters: it does this itself.
    """
    for parameter in parameters:
        grad = parameter.grad
        if isinstance(grad, DTensor) and grad.placements != parameter.placements:
            parameter.grad = grad.redistribute(placements=parameter.placements)
