"""The ranks of a training, as one mesh with a name for each axis; who reads what, who sums what.

    pp             stages of layers
    dp_replicate   ranks that hold the same weights and train on other samples (or tokens)
    dp_shard       ranks that share one copy of what ZeRO shards; they train on other samples, too
    tp             ranks that share each matrix; neighbours, so that they lie in one node

Ranks of context parallelism hold the same weights and read other tokens of one sequence: for
weights and gradients they are data-parallel ranks, and lie innermost in `dp_shard` where something
is sharded, else in `dp_replicate`.  Their own group, and that of the ranks that share experts, are
views beside the mesh.  Axes of one rank are left out.

The one place where processes join a group.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from trainrig.workload.exchanges import uses_fsdp2
from trainrig.workload.layout import Layout

PATIENCE = timedelta(hours=2)
"""Timeout of a collective.  The parent's is shorter: it sees which rank is missing."""
DATA = ("dp_replicate", "dp_shard")
"""Axes over which gradients and losses are summed."""
EXPERTS = ("ep_replicate", "ep_shard")
"""Axes over which experts' gradients are summed; their rows are so by being sent."""


def join(device: str) -> None:
    """Join the other processes.  On a GPU what lies on the host goes another way, by gloo."""
    backend = "cpu:gloo,cuda:nccl" if device.startswith("cuda") else "gloo"
    dist.init_process_group(backend, timeout=PATIENCE)


def host_group() -> Any:
    """Return a new group of all ranks, by gloo, for a thread or a purpose of its own.

    None of one process.

    What two threads say on one group gets mixed up: each needs its own.
    """
    return dist.new_group(backend="gloo", timeout=PATIENCE) if dist.is_initialized() else None


class World:
    """One rank's view of all; the processes have joined a group before (`join`)."""

    def __init__(self, layout: Layout, device: str) -> None:
        from torch.distributed.device_mesh import init_device_mesh

        mesh_sizes = layout.mesh.of_one
        others = mesh_sizes.dp * mesh_sizes.cp
        shard = (
            1
            if layout.sharding.zero == 0
            else (int(layout.sharding.shard_size) or mesh_sizes.dp) * mesh_sizes.cp
        )
        self.ranks, self.dp, self.cp, self.device = (
            mesh_sizes.ranks,
            mesh_sizes.dp,
            mesh_sizes.cp,
            device,
        )
        self.sizes = {"pp": mesh_sizes.pp, "dp_replicate": others // shard, "dp_shard": shard}
        self.sizes["tp"] = mesh_sizes.tp
        self.is_split = mesh_sizes.tp * mesh_sizes.pp > 1
        """Data parallelism is not all there is."""
        # Shards of one rank: how FSDP2 is told that all is replicated.
        fsdp_axes = {"dp_shard"} if uses_fsdp2(layout) else set[str]()
        present = [axis for axis, size in self.sizes.items() if size > 1 or axis in fsdp_axes]
        present = present or ["dp_replicate"]
        self._kind = torch.device(device).type
        self.mesh = init_device_mesh(
            self._kind, tuple(self.sizes[axis] for axis in present), mesh_dim_names=tuple(present)
        )
        self._views: dict[str, Any] = dict.fromkeys(present, self.mesh)
        inner = mesh_sizes.cp * mesh_sizes.tp
        if mesh_sizes.cp > 1:
            self._views["cp"] = self._mesh_of_axis("cp", mesh_sizes.cp, mesh_sizes.tp)
        if mesh_sizes.ep > 1:
            same = mesh_sizes.dp * inner // mesh_sizes.ep
            copies, shards = (1, same) if layout.sharding.zero else (same, 1)
            self._experts((mesh_sizes.pp, copies, shards, mesh_sizes.ep))
        self.shards = "dp_shard" in present
        """Weights are FSDP2's."""
        rank = dist.get_rank()
        self.data_rank = rank // inner % mesh_sizes.dp
        """Number among the ranks that read samples of their own."""
        self._part = rank // mesh_sizes.tp % mesh_sizes.cp
        self.stage = rank // (inner * mesh_sizes.dp)

    def tokens(self, seq_len: int) -> slice:
        """Return the part of each sequence that this rank reads."""
        tokens_per_rank = seq_len // self.cp
        return slice(self._part * tokens_per_rank, (self._part + 1) * tokens_per_rank)

    def _mesh_of_axis(self, axis: str, size: int, inner: int) -> Any:
        """Return a mesh of one axis that lies across the others', with a group of its own.

        Groups of equal ranks would be one, and nobody could say whose a collective is.
        """
        from torch.distributed.device_mesh import DeviceMesh

        starts = [n for n in range(self.ranks) if n // inner % size == 0]
        every = [[start + turn * inner for turn in range(size)] for start in starts]
        groups = [dist.new_group(ranks) for ranks in every]
        group_number = next(
            number for number, ranks in enumerate(every) if dist.get_rank() in ranks
        )
        return DeviceMesh.from_group(groups[group_number], self._kind, mesh_dim_names=(axis,))

    def _experts(self, sizes: tuple[int, int, int, int]) -> None:
        """One mesh for the ranks that share all experts and for those that have the same ones.

        Those have copies of them, or share one copy where something is sharded.

        All ranks of a stage have tokens of their own, whatever axis they lie on: those of tensor
        parallelism by the parts of the sequence (sequence parallel).
        """
        from torch.distributed.device_mesh import init_device_mesh

        names = ("ep_stage", "ep_replicate", "ep_shard", "ep")
        backend = dist.get_backend_config()
        mesh = init_device_mesh(
            self._kind,
            sizes,
            mesh_dim_names=names,
            backend_override=dict.fromkeys(names[1:], backend),
        )
        self._views |= dict.fromkeys(names[1:], mesh)
        self.sizes |= dict(zip(names[1:], sizes[1:], strict=True))

    def view(self, *axes: str) -> Any:
        """Return the mesh of some axes alone; with no such axis of several ranks, KeyError."""
        mesh = self._views[axes[0]]
        return mesh if mesh.mesh_dim_names == axes else mesh[axes if len(axes) > 1 else axes[0]]

    def group(self, axis: str) -> Any:
        """Return the process group of an axis of several ranks."""
        return self._views[axis].get_group(axis)

    @property
    def data(self) -> tuple[str, ...]:
        """Axes of several ranks that train on other samples or tokens."""
        return tuple(axis for axis in DATA if self.sizes[axis] > 1)

    @property
    def axes(self) -> dict[str, str]:
        """Return the axis of each process group, by the group's name."""
        axis_by_group = {dist.group.WORLD.group_name: "world"}
        for axis, mesh in self._views.items():
            axis_by_group[mesh.get_group(axis).group_name] = axis
        return axis_by_group

    def sum(self, number: Tensor, *axes: str) -> Tensor:
        """Return a number's sum over the ranks of these axes, in place.

        Those of one rank add nothing.
        """
        for axis in axes:
            if self.sizes[axis] > 1:
                dist.all_reduce(number, group=self.group(axis))
        return number
