"""Tensor and sequence parallel: which of a model's matrices are split by rows, which by columns.

A plan is what `torch.distributed.tensor.parallel.parallelize_module` takes.  In a block the
matrices that read hidden states are split by their outputs (heads of attention, columns of the
feed-forward net), those that write them by their inputs, so that only sums cross the ranks: two
all-reduces forward and two backward a block, where attention and the net begin and end.  Under
sequence parallel hidden states between them hold a rank's share of the tokens, norms work on that
share, and each all-reduce is a reduce-scatter and an all-gather.  The token embedding, and so the
head, is split by the vocabulary (`loss.cross_entropy` has the other half).

What enters attention and the net stays a DTensor (``use_local_output=False``): its gradient then is
a partial sum until all matrices that read it have added theirs.  As a local tensor it would be
reduced too early: under sequence parallel by an all-reduce for a reduce-scatter, twice the bytes;
for queries, keys and values apart by three all-reduces for one.

Sources: Shoeybi et al. 2019 (tensor parallel), Korthikanti et al. 2022 (sequence parallel).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Placement,
    Replicate,
    Shard,
    distribute_tensor,
)
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
)

Plan = dict[str, ParallelStyle]
LookUp = Callable[[Tensor, Tensor], Tensor]
"""Vectors of tokens, of their numbers and a table of weights, as torch's `embedding` finds them."""

_READ = ("qkv", "q", "k", "v", "up", "gate")
_WRITE = ("out", "down")
_ATTENTION_ARGUMENTS = {"gpt2": 1, "gpt-neo": 1, "bert": 1, "llama": 2, "t5": 1}
"""Number of attention's further arguments by family: masks, biases, angles; whole on each rank."""


def plan_of(model: nn.Module, *, sequence_parallel: bool, look_up: LookUp = F.embedding) -> Plan:
    """Of a whole model or a pipeline stage; its modules are named as in the whole.

    ``look_up`` stands for torch's `embedding` where that adds gradients up too coarsely.

    BERT's last dense layer and norm are computed by each rank for all tokens, as Megatron does.
    """
    family: str = model.shape.family
    between: Placement = Shard(1) if sequence_parallel else Replicate()
    shared = SequenceParallel(use_local_output=True)
    plan: Plan = {
        "tokens": _Vocabulary(between, look_up),
        "head": ColwiseParallel(),
        "bias.buckets": ColwiseParallel(),  # a number for each head: of the heads that are here
        "decoder_bias.buckets": ColwiseParallel(),
    }
    if sequence_parallel:
        plan |= {name: SequenceParallel() for name in ("norm", "encoder_norm")}
        plan |= {name: _share(dim) for name, dim in (("positions", 0), ("segments", 1))}
        if family == "bert":
            plan["norm"] = shared
            plan["transform"] = _whole(between)
    for stack in ("blocks", "decoder_blocks"):
        block = _block(family, between, shared, experts=model.shape.moe.num_experts > 0)
        plan |= {f"{stack}.*.{name}": style for name, style in block.items()}
    return {name: style for name, style in plan.items() if _has(model, name)}


def _block(family: str, between: Placement, norm: ParallelStyle, *, experts: bool) -> Plan:
    arguments = _ATTENTION_ARGUMENTS[family]
    plan: Plan = {"attention": _entry(between, arguments)}
    if (
        experts
    ):  # tokens go to them from where they lie; the router's gradient is summed like norms'
        plan["ffn.router"] = SequenceParallel(sequence_dim=0, use_local_output=True)
    else:
        plan["ffn"] = _entry(between, 0)
    # What the decoder looks at is whole on each rank, and was made a DTensor once for all blocks.
    plan["cross"] = PrepareModuleInput(
        input_layouts=(between, None, Replicate()),
        desired_input_layouts=(Replicate(), None, Replicate()),
        use_local_output=False,
    )
    for part in ("attention", "cross", "ffn"):
        plan |= {f"{part}.{name}": ColwiseParallel() for name in _READ}
        plan |= {f"{part}.{name}": RowwiseParallel(output_layouts=between) for name in _WRITE}
    if between.is_shard():
        plan |= dict.fromkeys(("norm_1", "norm_cross", "norm_2"), norm)
    return plan


class _Vocabulary(ParallelStyle):
    """A token embedding of whose rows each rank has some.

    torch's RowwiseParallel would make the gradient of all rows on each rank.
    """

    def __init__(self, between: Placement, look_up: LookUp) -> None:
        super().__init__()
        self.between, self.look_up = between, look_up

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        weight = distribute_tensor(module.weight.data, device_mesh, [Shard(0)], src_data_rank=None)
        module.weight = nn.Parameter(weight)
        module.forward = partial(_look_up, module, self.between, self.look_up)
        return module


def _look_up(embedding: nn.Module, between: Placement, look_up: LookUp, tokens: Tensor) -> Tensor:
    """Return vectors of those tokens whose rows are here, 0 for others, summed over the ranks."""
    whole: DTensor = embedding.weight
    mesh, local_table = whole.device_mesh, whole.to_local()
    local = tokens - mesh.get_local_rank() * -(-whole.shape[0] // mesh.size())
    elsewhere = (local < 0) | (local >= len(local_table))
    rows = look_up(local.masked_fill(elsewhere, 0), local_table)
    rows = rows.masked_fill(elsewhere[..., None], 0)
    summed = DTensor.from_local(rows, mesh, [Partial()], run_check=False)
    return summed.redistribute(placements=[between]).to_local()


def _entry(between: Placement, others: int) -> ParallelStyle:
    """Hidden states, whole on each rank, into a module that takes so many ``others``."""
    unsharded = (None,) * others
    return PrepareModuleInput(
        input_layouts=(between, *unsharded),
        desired_input_layouts=(Replicate(), *unsharded),
        use_local_output=False,
    )


def _whole(between: Placement) -> ParallelStyle:
    """Return all tokens for a module whose gradients are equal on all ranks."""
    return PrepareModuleInput(
        input_layouts=between, desired_input_layouts=Replicate(), use_local_output=True
    )


def _share(dim: int) -> ParallelStyle:
    """Return this rank's share of what a module returns for all tokens, which lie along ``dim``."""
    return PrepareModuleOutput(output_layouts=Replicate(), desired_output_layouts=Shard(dim))


def _has(model: nn.Module, name: str) -> bool:
    """Return whether a module has this name; a block's name is looked up in the first block."""
    at: nn.Module | None = model
    for step in name.split("."):
        children = {} if at is None else dict(at.named_children())
        at = next(iter(children.values()), None) if step == "*" else children.get(step)
    return at is not None
