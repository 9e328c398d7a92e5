"""How weights, gradients and optimizer states lie on data-parallel ranks, and when these talk.

                     weights   gradients  states    what is said in a step
    Replicated  DDP  all       all        all       gradients are summed, in the last backward
    SplitStates 1    all       all        a share   the same; then the new weights are gathered
    Sharded     2    a share   a share    a share   weights are gathered before forward, gradients
                                                    reduced and scattered in each backward
    Sharded     3    a share   a share    a share   and gathered again, block by block, in backward

The numbers are those of ZeRO (Rajbhandari et al. 2020); 2 and 3 are torch's FSDP2 without and with
resharding after forward.  Between forward and backward a rank holds all weights under 2, one
block's under 3.  Gradients that are whole on a rank are summed over micro-batches and said once;
those of which it has a share are said with each micro-batch: keeping them whole would break the
promise that they are not.

In bf16 the model computes in bf16, and gradients are summed over micro-batches and ranks in fp32
and applied to fp32 masters, whatever the sharding.  Each class has the methods of
`precision.Weights`, by which the engine knows it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from trainrig.train.native.collectives import Collectives, fsdp_hooks, time_waits_for_shards
from trainrig.train.native.precision import DTYPES, Weights


class LossOf(nn.Module):
    """A model whose forward is its loss: wrappers know no other method."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """The mean over the targets."""
        return self.model.loss(inputs, labels)


class _Group:
    """What all shardings say to each other besides weights and gradients."""

    wire: Collectives
    even: bool

    def weight_of(self, num_targets: int) -> float | Tensor:
        """This rank's targets over the mean of all ranks': BERT hides a number that varies."""
        if self.even:
            return 1.0
        total = self.wire.all_reduce(torch.tensor(float(num_targets)))
        return num_targets * self.wire.size / total

    def mean(self, loss: Tensor) -> Tensor:
        """Over all ranks; each has weighed its own by its targets."""
        return self.wire.all_reduce(loss / self.wire.size)


class Replicated(_Group):
    """Every rank has everything: torch's DistributedDataParallel.

    Before the last micro-batch no rank says anything.  In its backward, gradients go out bucket by
    bucket as they become ready, in fp32, while the rest is still computed.
    """

    def __init__(self, inner: Weights | SplitStates, wire: Collectives, *, even: bool) -> None:
        self._inner, self.wire, self.even = inner, wire, even
        self.model, self.master = inner.model, inner.master
        self.norm, self.gradients = inner.norm, inner.gradients
        self.publish, self.groups = inner.publish, inner.groups
        self._names = {weight: name for name, weight in self.model.items()}
        self.wrapped = DistributedDataParallel(LossOf(inner.module), process_group=wire.group)
        # A hook is checked for annotations by type, which here are strings: it gets none.
        self.wrapped.register_comm_hook(None, lambda _, bucket: self._reduce(bucket))
        self._on_the_way: list[tuple[Tensor, list[Tensor]]] = []
        self._since: tuple[Any, float] | None = None

    def loss(self, inputs: Tensor, labels: Tensor, *, last: bool) -> Tensor:
        """The mean loss of a micro-batch; only the last one's backward synchronises."""
        self.wrapped.require_backward_grad_sync = last
        return self.wrapped(inputs, labels)

    def backward(self, loss: Tensor, *, last: bool) -> None:
        """Add the gradients; with the last micro-batch they become the mean over the ranks."""
        loss.backward()
        if not last:
            self._inner.collect()
            return
        if self._since is not None:  # all was computed when the last bucket went out
            self.wire.waited_since(*self._since)
        self.wire.name("")
        for flat, sums in self._on_the_way:
            parts = flat.split([part.numel() for part in sums])
            torch._foreach_copy_(
                sums, [part.view_as(to) for part, to in zip(parts, sums, strict=True)]
            )
        self._on_the_way, self._since = [], None
        if self._inner.narrow:
            self._inner.end_of_sum()

    def _reduce(self, bucket: dist.GradBucket) -> Any:
        """One bucket goes out.  In bf16 its gradients first join those of earlier micro-batches."""
        if self._inner.narrow:
            named = zip(bucket.parameters(), bucket.gradients(), strict=True)
            sums = [self._inner.add(self._names[weight], grad) for weight, grad in named]
            flat = torch.cat([part.view(-1) for part in sums]) / self.wire.size
            self._on_the_way.append((flat, sums))
        else:
            flat = bucket.buffer().div_(self.wire.size)
        future = self.wire.start_all_reduce(flat)
        if bucket.is_last():
            self._since = self.wire.watch.mark(), time.perf_counter()
        return future.then(lambda _: bucket.buffer())


class SplitStates(_Group):
    """ZeRO-1: each rank updates a share of the weights and gathers the others' shares.

    Weights lie one behind the other in one tensor for those that decay and one for the rest, so
    that a share is a slice of it, and gathering writes where the model reads.  The fp32 masters
    and the optimizer's states exist for the own slice alone.
    """

    def __init__(self, model: nn.Module, dtype: str, wire: Collectives) -> None:
        self.wire, self.even = wire, True
        self.module = model
        self.narrow = dtype != "fp32"
        first = dict(model.named_parameters())
        device = next(iter(first.values())).device
        self.master: dict[str, Tensor] = {}
        self._flat: dict[str, tuple[Tensor, Tensor]] = {}
        self._sums: dict[str, Tensor] = {}
        for part, chosen in _by_decay(first).items():
            count = sum(weight.numel() for weight in chosen.values())
            padded = -(-count // wire.size) * wire.size
            whole = torch.zeros(padded, device=device)
            torch.cat([weight.detach().view(-1) for weight in chosen.values()], out=whole[:count])
            self.master[part] = self._own(whole).clone() if self.narrow else self._own(whole)
            whole = whole.to(DTYPES[dtype])
            sums = torch.zeros(padded, device=device)
            self._flat[part] = whole, sums
            self._lay_out(chosen, whole, sums)
        self.model = dict(model.named_parameters())

    def _lay_out(self, chosen: dict[str, nn.Parameter], whole: Tensor, sums: Tensor) -> None:
        start = 0
        for name, weight in chosen.items():
            piece = slice(start, start + weight.numel())
            weight.data = whole[piece].view(weight.shape)
            self._sums[name] = sums[piece].view(weight.shape)
            if not self.narrow:
                weight.grad = self._sums[name]  # autograd adds to it, and DDP writes into it
            start = piece.stop

    def _own(self, whole: Tensor) -> Tensor:
        return whole.chunk(self.wire.size)[dist.get_rank(self.wire.group)]

    def collect(self) -> None:
        """After a backward pass that nobody else hears of."""
        if self.narrow:
            for name, weight in self.model.items():
                assert weight.grad is not None
                self.add(name, weight.grad)
                weight.grad = None

    def add(self, name: str, grad: Tensor) -> Tensor:
        """Add a gradient to the fp32 sum of its weight; the sum."""
        return self._sums[name].add_(grad)

    def end_of_sum(self) -> None:
        """The sums are those of all ranks; what autograd left in the weights is not needed."""
        for weight in self.model.values():
            weight.grad = None

    def norm(self) -> Tensor:
        """Of all gradients, which are whole here; the own slices go to the masters."""
        for part, (_, sums) in self._flat.items():
            self.master[part].grad = self._own(sums)
        return torch.nn.utils.get_total_norm(self.gradients())

    def gradients(self) -> list[Tensor]:
        """Gradients that this rank holds before an update: all."""
        return [sums for _, sums in self._flat.values()]

    def publish(self) -> None:
        """After an update: all slices become whole weights; gradients begin anew."""
        for part, (whole, sums) in self._flat.items():
            own = self._own(whole)
            if self.narrow:
                own.copy_(self.master[part])
            self.wire.all_gather(whole, own.clone())
            sums.zero_()

    def groups(self, decay: float) -> list[dict[str, Any]]:
        """Slices for the optimizer."""
        return [
            {"params": [master], "weight_decay": decay if part == "decay" else 0.0}
            for part, master in self.master.items()
        ]


def _by_decay(weights: dict[str, nn.Parameter]) -> dict[str, dict[str, nn.Parameter]]:
    """Matrices decay, vectors (biases, norms) do not."""
    parts = {
        "decay": {name: weight for name, weight in weights.items() if weight.ndim >= 2},
        "rest": {name: weight for name, weight in weights.items() if weight.ndim < 2},
    }
    return {part: chosen for part, chosen in parts.items() if chosen}


class Sharded(_Group):
    """ZeRO-2 and -3: torch's FSDP2 on each block and on what is around them."""

    def __init__(
        self,
        model: nn.Module,
        dtype: str,
        wire: Collectives,
        *,
        even: bool,
        reshard: bool,
        shard_size: int,
        offload: bool,
    ) -> None:
        self.wire, self.even, self.module = wire, even, model
        self._device = next(model.parameters()).device
        device = self._device.type
        mesh, replicas = _mesh(device, wire.size, shard_size)
        self._group = mesh.get_group()
        how = _policies(DTYPES[dtype], device, offload=offload)
        units = [*_blocks(model), model]
        from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

        for unit in units:
            fully_shard(unit, mesh=mesh, reshard_after_forward=reshard and unit is not model, **how)
        register_fsdp_forward_method(model, "loss")
        gather, scatter = fsdp_hooks(wire)
        for unit in units:
            unit.set_custom_all_gather(gather)
            unit.set_custom_reduce_scatter(scatter)
            if replicas is not None:
                unit.set_all_reduce_hook(self._among(replicas))
        if not wire.on_host:
            time_waits_for_shards(units, wire)
        self.model = dict(model.named_parameters())
        self.master: dict[str, Tensor] = dict(self.model)

    def _among(self, replicas: Any) -> Any:
        """Hybrid sharding: what one group has reduced and scattered, the groups average."""

        def reduce(share: Tensor) -> None:
            with self.wire.of_shards("all_reduce"):
                dist.all_reduce(share, group=replicas)
            share /= dist.get_world_size(replicas)

        return reduce

    def loss(self, inputs: Tensor, labels: Tensor, *, last: bool) -> Tensor:
        """The mean loss of a micro-batch."""
        return self.module.loss(inputs, labels)

    def backward(self, loss: Tensor, *, last: bool) -> None:
        """Add this rank's share of the gradients' mean over the ranks."""
        loss.backward()

    def norm(self) -> Tensor:
        """Of all gradients, of which this rank has a share."""
        shares: list[Any] = self.gradients()  # a DTensor's norm would be summed where none waits
        own = torch.nn.utils.get_total_norm([share.to_local() for share in shares])
        squared = own.square().to(self._device)  # offloaded shares are on the host
        with self.wire.waiting("all_reduce"):
            dist.all_reduce(squared, group=self._group)
        return squared.sqrt()

    def gradients(self) -> list[Tensor]:
        """Gradients that this rank holds before an update: its shares."""
        return [master.grad for master in self.master.values() if master.grad is not None]

    def publish(self) -> None:
        """After an update: gradients begin anew."""
        for weight in self.master.values():
            weight.grad = None

    def groups(self, decay: float) -> list[dict[str, Any]]:
        """Shares for the optimizer."""
        parts = _by_decay(dict(self.module.named_parameters()))
        return [
            {
                "params": list(chosen.values()),
                "weight_decay": decay if part == "decay" else 0.0,
            }
            for part, chosen in parts.items()
        ]


def _blocks(model: nn.Module) -> Iterable[nn.Module]:
    return [*model.blocks, *getattr(model, "decoder_blocks", [])]


def _mesh(device: str, ranks: int, shard_size: int) -> tuple[Any, Any]:
    """The ranks that share one copy, and the group of those with the same share of other copies."""
    from torch.distributed.device_mesh import init_device_mesh

    if not shard_size or shard_size == ranks:
        return init_device_mesh(device, (ranks,), mesh_dim_names=("shard",)), None
    sizes = (ranks // shard_size, shard_size)
    mesh = init_device_mesh(device, sizes, mesh_dim_names=("replicate", "shard"))
    return mesh["shard"], mesh.get_group("replicate")


def _policies(dtype: torch.dtype, device: str, *, offload: bool) -> dict[str, Any]:
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy

    found: dict[str, Any] = {}
    if dtype != torch.float32:
        found["mp_policy"] = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    if offload:
        found["offload_policy"] = CPUOffloadPolicy(pin_memory=device != "cpu")
    return found


class ManyDevices:
    """torch.nn.DataParallel: one process, whose first GPU sends weights and samples to the others.

    Kept in the program so that its cost beside DDP can be seen.  Unverified on hardware.
    """

    def __init__(self, inner: Weights, devices: list[int]) -> None:
        self._inner, self.model, self.module = inner, inner.model, inner.module
        self.wrapped = nn.DataParallel(LossOf(inner.module), device_ids=devices)
        self.master, self.narrow = inner.master, inner.narrow
        self.weight_of, self.mean = inner.weight_of, inner.mean
        self.norm, self.gradients = inner.norm, inner.gradients
        self.publish, self.groups = inner.publish, inner.groups

    def loss(self, inputs: Tensor, labels: Tensor, *, last: bool) -> Tensor:
        """The mean of the devices' mean losses."""
        return self.wrapped(inputs, labels).mean()

    def backward(self, loss: Tensor, *, last: bool) -> None:
        """Add the gradients, which arrive on the first device."""
        loss.backward()
        self._inner.collect()
