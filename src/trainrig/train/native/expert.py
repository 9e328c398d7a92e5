"""Expert parallel: each rank has some of the experts, and rows of tokens go to them and back.

The ranks train on other samples.  In a block each sends its rows, sorted by expert, to the ranks
that have the experts (an all-to-all of uneven shares), which multiply the rows of all ranks and
send the results back; backward does the same the other way.  How many rows go where is exchanged
first, and read on the host, which waits for it.  No row is dropped or padded.

An expert's gradient is the sum over all ranks of the group already: the experts are sharded and
summed over the other data-parallel ranks alone, all else over all of them.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

# Private by its module's name alone: no public function of torch is differentiable and compiles.
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard, distribute_tensor

from trainrig.errors import UsageError
from trainrig.models.experts import MixtureFeedForward
from trainrig.workload.model import ModelShape


def apply(model: nn.Module, shape: ModelShape, mesh: DeviceMesh) -> list[nn.Module]:
    """Spread the experts of ``model``, or of a stage, over ``mesh``, in place; their modules.

    Those are sharded apart from all else, over the ranks that have the same experts.  UsageError
    where there are none, or not as many for each rank.
    """
    ranks = mesh.size()
    if shape.moe.num_experts % ranks or not shape.moe.num_experts:
        raise UsageError(
            f"{shape.name} has {shape.moe.num_experts} experts, no equal shares of {ranks}"
        )
    expert_modules: list[nn.Module] = []
    for module in model.modules():
        if isinstance(module, MixtureFeedForward):
            module.exchange = partial(_exchange, mesh.get_group(), ranks)
            for name, weight in list(module.experts.named_parameters()):
                shard = distribute_tensor(weight.data, mesh, [Shard(0)], src_data_rank=None)
                setattr(module.experts, name, nn.Parameter(shard))
            expert_modules.append(module.experts)
    return expert_modules


def _exchange(group: Any, ranks: int, experts: nn.Module, rows: Tensor, counts: Tensor) -> Tensor:
    """Results of ``rows`` (R, C), sorted by expert; ``counts`` (E): rows of each."""
    arriving = torch.empty_like(counts)
    dist.all_to_all_single(arriving, counts, group=group)
    by_sender = arriving.view(ranks, -1)  # of this rank's experts
    sent, received = (
        row_counts.view(ranks, -1).sum(1).tolist() for row_counts in (counts, arriving)
    )
    got: Tensor = all_to_all_single_autograd(rows, received, sent, group)
    expert = torch.arange(by_sender.shape[1], device=rows.device).repeat(ranks)
    order = expert.repeat_interleave(arriving).argsort(stable=True)
    results = experts(got[order], by_sender.sum(0))
    unsorted = torch.empty_like(results).index_copy(0, order, results)
    back: Tensor = all_to_all_single_autograd(unsorted, sent, received, group)
    return back
