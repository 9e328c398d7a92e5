"""Placement of weights, gradients and optimizer states on data-parallel ranks, and their exchanges.

                weights   gradients  states    what is said in a step
    ZeRO 0 DDP  all       all        all       gradients are summed, in the last backward
    ZeRO 1      a share*  all        a share   weights are gathered before the first forward,
                                               gradients reduced and scattered in the last backward
    ZeRO 2      a share*  a share    a share   the same in each micro-batch
    ZeRO 3      a share   a share    a share   and gathered again, block by block, in backward

    * whole from the first forward to the last backward (1), from forward to backward (2)

Through a pipeline micro-batches overlap: under ZeRO 2 weights are whole for the step, under ZeRO 3
a stage's ends are gathered as often as its blocks.

The numbers are those of ZeRO (Rajbhandari et al. 2020).  1, 2 and 3 are torch's FSDP2, by its
public setters: on a mesh of two axes it shards over one and replicates over the other (hybrid
sharding; with shards of one rank it is DDP, which goes with tensor and pipeline parallelism).
Plain data parallelism is torch's DDP, whose buckets leave in backward, each gradient copied once.

In bf16 the model computes in bf16, and gradients are summed over micro-batches and ranks in fp32
and applied to fp32 masters, whatever the sharding.  Losses are divided by the targets of all ranks
before backward: gradients are sums, and no rank averages them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from trainrig.models.recompute import blocks_of
from trainrig.train.native.collectives import Collectives, fsdp_hooks
from trainrig.train.native.pipeline import Pipeline
from trainrig.train.native.precision import DTYPES, Weights, as_placed, local, total_norm
from trainrig.train.native.world import DATA, EXPERTS, World
from trainrig.workload.tensors import model_tensors


class LossOf(nn.Module):
    """A model whose forward is its loss: wrappers know no other method."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Tensor, labels: Tensor, **samples: Tensor) -> Tensor:
        """Return the mean over the targets."""
        return self.model.loss(inputs, labels, **samples)


class _InOrder(LossOf):
    """A model whose forward may be something else: a number of each weight, from first to last.

    Its backward reaches the weights from the last to the first, whatever the model computes.
    """

    is_order = False

    def forward(self, inputs: Tensor, labels: Tensor, **samples: Tensor) -> Tensor:
        """Return the mean over the targets; or the order."""
        if not self.is_order:
            return super().forward(inputs, labels, **samples)
        named = dict(self.model.named_parameters())
        numbers = [named[tensor.name].view(-1)[0] for tensor in model_tensors(self.model.shape)]
        return torch.stack(numbers).sum()


class Spread(Weights):
    """Weights on one of several ranks: what these say to each other besides weights and gradients.

    By itself it is a rank of tensor or pipeline parallelism alone.
    """

    def __init__(
        self,
        modules: Sequence[nn.Module],
        dtype: str,
        world: World,
        wire: Collectives,
        *,
        even: bool,
    ) -> None:
        """``even``: all ranks have as many targets."""
        super().__init__(modules, dtype)
        self.world, self.wire, self.even = world, wire, even
        self._copies: set[int] = set()

    def through(self, pipeline: Pipeline) -> None:
        """Run a step's micro-batches so; a copy of a tied weight is left out of the norm."""
        self.pipeline = pipeline
        for stage in pipeline.stages:
            named = dict(stage.module.named_parameters())
            self._copies |= {id(named[name]) for name in stage.copies}

    def run(
        self,
        inputs: Tensor,
        labels: Tensor,
        factor: Tensor | float,
        scale: Tensor | float = 1.0,
        **samples: Tensor,
    ) -> Tensor:
        """Forward and backward of a step's micro-batches, through the pipeline; the loss.

        ``factor``: what a sum over targets is multiplied by; ``scale``: the gradients besides.
        """
        loss = self.pipeline.run(inputs, labels, factor * scale, **samples) * factor
        for weight in self.model.values():
            weight.grad = as_placed(weight.grad, weight)
        self.pipeline.add_tied()
        self.collect()
        return loss

    def weight_of(self, num_targets: int) -> float | Tensor:
        """Return this rank's targets over all ranks': BERT hides a number that varies."""
        if self.even:
            return 1.0 / (self.world.dp * self.world.cp)
        # Filled on the device: NCCL sums nothing that lies on the host.
        total = torch.full((1,), float(num_targets), device=self.world.device)
        with self.wire.waiting("all_reduce"):
            self.world.sum(total, *DATA)
        return num_targets / total[0]

    def total(self, loss: Tensor) -> Tensor:
        """Over all ranks: each has divided its own by all targets."""
        with self.wire.waiting("all_reduce"):
            return self.world.sum(loss.clone(), "pp", *DATA)

    def decayed(self, groups: Sequence[dict[str, Any]]) -> tuple[int, int]:
        """Return decayed and undecayed weights of all stages, without copies of tied ones."""
        named = self.master.items()
        copies = frozenset(
            id(weight) for name, weight in named if id(self.model[name]) in self._copies
        )
        counts = torch.tensor(self._count(groups, copies), device=self.world.device)
        totals = self.world.sum(counts, "pp").tolist()
        return totals[0], totals[1]

    def norm(self) -> Tensor:
        """Return the norm of all gradients; squares are summed over the axes that shard them."""
        squares: dict[tuple[str, ...], list[Tensor]] = {}
        for name, master in self.master.items():
            if master.grad is not None and id(self.model[name]) not in self._copies:
                grad = master.grad = as_placed(master.grad, master)
                squares.setdefault(_sharded_over(grad), []).append(local(grad))
        total = torch.zeros((), device=self.world.device)
        for axes, grads in squares.items():
            square = total_norm(grads).square().to(total.device)
            with self.wire.waiting("all_reduce"):
                total += self.world.sum(square, *axes)
        return self.world.sum(total, "pp").sqrt()


def _sharded_over(grad: Any) -> tuple[str, ...]:
    """Return the axes of the mesh of which each rank holds another part of a gradient."""
    if not hasattr(grad, "placements"):
        return ()
    names = grad.device_mesh.mesh_dim_names
    pairs = zip(names, grad.placements, strict=True)
    # A shard of a shard (FSDP2 over tensor parallel) says of itself that it is none.
    return tuple(name for name, how in pairs if not (how.is_replicate() or how.is_partial()))


class Replicated(Spread):
    """Every rank has everything: torch's DistributedDataParallel.

    Before the last micro-batch no rank says anything.  In its backward, gradients go out bucket by
    bucket as they become ready, in fp32, while the rest is still computed.

    torch fills its buckets anew behind the first backward, in the order in which that reached the
    weights.  On more than two ranks sums are rounded by their place in a bucket: a training that is
    resumed must have the same ones from its first step.  So the first backward is one of `_InOrder`
    alone, before any step, and exchanges nothing; all steps have the buckets of `exchanges`.
    """

    def __init__(
        self,
        modules: Sequence[nn.Module],
        dtype: str,
        world: World,
        wire: Collectives,
        *,
        even: bool,
    ) -> None:
        super().__init__(modules, dtype, world, wire, even=even)
        self._names = {weight: name for name, weight in self.model.items()}
        group = world.group("dp_replicate")
        around = _InOrder(self.module)
        self.wrapped = DistributedDataParallel(around, process_group=group)
        # A hook is checked for annotations by type, which here are strings: it gets none.
        self.wrapped.register_comm_hook(
            None, lambda _, bucket: (self._keep if around.is_order else self._reduce)(bucket)
        )
        self._group = group
        self._on_the_way: list[tuple[Tensor, list[Tensor]]] = []
        around.is_order = True
        self.wrapped(None, None).backward()
        around.is_order = False
        for weight in self.model.values():
            weight.grad = None

    def loss(self, inputs: Tensor, labels: Tensor, *, last: bool, **samples: Tensor) -> Tensor:
        """Return the mean loss of a micro-batch; only the last one's backward synchronises."""
        self.wrapped.require_backward_grad_sync = last
        return self.wrapped(inputs, labels, **samples)

    def backward(self, loss: Tensor, *, last: bool) -> None:
        """Add the gradients; with the last micro-batch they become the sum over the ranks."""
        loss.backward()
        if not last:
            self.collect()
            return
        self.wire.name("")
        for flat, sums in self._on_the_way:
            parts = flat.split([part.numel() for part in sums])
            torch._foreach_copy_(
                sums, [part.view_as(to) for part, to in zip(parts, sums, strict=True)]
            )
        self._on_the_way = []
        if self.narrow:
            self.end_of_sum()

    def norm(self) -> Tensor:
        """Return the norm of all gradients, which every rank has whole."""
        return total_norm(self.gradients())

    def _keep(self, bucket: dist.GradBucket) -> Any:
        """One bucket stays as it is."""
        future: torch.futures.Future[Tensor] = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    def _reduce(self, bucket: dist.GradBucket) -> Any:
        """One bucket goes out.  In bf16 its gradients first join those of earlier micro-batches."""
        flat = bucket.buffer()
        if self.narrow:
            named = zip(bucket.parameters(), bucket.gradients(), strict=True)
            sums = [self.add(self._names[weight], grad) for weight, grad in named]
            flat = torch.cat([part.view(-1) for part in sums])
            self._on_the_way.append((flat, sums))
        self.wire.name("all_reduce")
        future = dist.all_reduce(flat, group=self._group, async_op=True).get_future()
        return future.then(lambda _: bucket.buffer())


class Sharded(Spread):
    """torch's FSDP2 on each block and on what is around them (`shard`)."""

    def __init__(
        self,
        modules: Sequence[nn.Module],
        zero: int,
        world: World,
        wire: Collectives,
        *,
        even: bool,
    ) -> None:
        super().__init__(modules, "fp32", world, wire, even=even)  # FSDP2 rounds what it gathers
        self._zero = zero
        if world.device == "cpu":
            gather, scatter = fsdp_hooks(wire)
            for unit in _units(modules):
                unit.set_custom_all_gather(gather)
                unit.set_custom_reduce_scatter(scatter)

    def loss(self, inputs: Tensor, labels: Tensor, *, last: bool, **samples: Tensor) -> Tensor:
        """Return mean loss of a micro-batch; under ZeRO 0 and 1 the last one's backward talks."""
        if self._zero < 2:
            self.sync(last=last)
        return self.module.loss(inputs, labels, **samples)

    def rest(self) -> None:
        """Free the weights that forward passes gathered."""
        for unit in _units(self.modules):
            unit.reshard()

    def sync(self, *, last: bool) -> None:
        """Set whether the next backward reduces gradients and frees whole weights."""
        for module in self.modules:
            root: Any = module
            root.set_requires_gradient_sync(last)
            root.set_reshard_after_backward(last)
            root.set_is_last_backward(last)


def shard(
    module: Any,
    dtype: str,
    zero: int,
    world: World,
    *,
    offload: bool,
    piped: bool,
    experts: Sequence[nn.Module] = (),
) -> None:
    """Make a model on meta, or one stage of it, one that FSDP2 shards; in place.

    ``experts``: what lies on the ranks with the same experts, each a unit of its own.
    """
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

    axes = tuple(axis for axis in DATA if axis == "dp_shard" or world.sizes[axis] > 1)
    how = policies(DTYPES[dtype], world.device, offload=offload)
    mesh = world.view(*axes)
    for unit in (*experts, *_units([module])):
        reshard = zero == 3 and (piped or unit is not module)
        where = world.view(*EXPERTS) if unit in experts else mesh
        fully_shard(unit, mesh=where, reshard_after_forward=reshard, **how)
        # Gradients are sums: no backend has to divide, and gloo cannot.
        unit.set_gradient_divide_factor(1.0)
        unit.set_force_sum_reduction_for_comms(True)
    if hasattr(module, "loss"):
        register_fsdp_forward_method(module, "loss")


def _units(modules: Iterable[Any]) -> list[Any]:
    """Return FSDP2's units: each block, and the module around the blocks."""
    return [unit for module in modules for unit in (*blocks_of(module), module)]


def policies(dtype: torch.dtype, device: str, *, offload: bool) -> dict[str, Any]:
    """Return FSDP2's policies: dtypes of compute and reduction, and CPU offload."""
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy

    policy_arguments: dict[str, Any] = {}
    if dtype != torch.float32:
        policy_arguments["mp_policy"] = MixedPrecisionPolicy(
            param_dtype=dtype, reduce_dtype=torch.float32
        )
    if offload:
        policy_arguments["offload_policy"] = CPUOffloadPolicy(
            pin_memory=not device.startswith("cpu")
        )
    return policy_arguments


class ManyDevices(Weights):
    """torch.nn.DataParallel: one process, whose first GPU sends weights and samples to the others.

    Kept in the program so that its cost beside DDP can be seen.  Unverified on hardware.
    """

    def __init__(self, model: nn.Module, dtype: str, devices: list[int]) -> None:
        super().__init__(model, dtype)
        self.wrapped = nn.DataParallel(LossOf(self.module), device_ids=devices)

    def loss(self, inputs: Tensor, labels: Tensor, *, last: bool, **samples: Tensor) -> Tensor:
        """Return the mean of the devices' mean losses."""
        return self.wrapped(inputs, labels, **samples).mean()
