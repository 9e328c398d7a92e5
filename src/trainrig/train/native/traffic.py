"""Count one rank's exchanges and products in a step, where torch dispatches them.

Every collective and message passes torch's dispatcher, whoever starts it: our own calls, FSDP2, a
pipeline's schedule, DTensor's redistributions, compiled blocks.  Counted are, by operation, mesh
axis and dtype, how many there are and the bytes of the larger side: what is summed by all_reduce,
gathered by all_gather, summed by reduce_scatter, sent by all_to_all, send and recv (the size of
nccl-tests).  A group of one rank exchanges nothing.  Sums of single numbers (loss, norm, targets)
and whole numbers (sizes, tokens' counts) are counted apart: no formula speaks of them.

Products of matrices and kernels of attention are counted, too, and whether backward ran them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode  # its documented home
from torch.utils._pytree import tree_leaves

from trainrig.workload.exchanges import Exchange

_OPERATIONS = {
    "allreduce": "all_reduce",
    "all_reduce": "all_reduce",
    "allgather": "all_gather",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "all_to_all": "all_to_all",
    "broadcast": "broadcast",
    "send": "send",
    "isend": "send",
    "recv": "recv",
    "irecv": "recv",
}
_PRODUCTS = ("mm", "addmm", "_linear_pointwise", "_mkl_linear", "_scaled_mm")
_FLOAT8 = "Float8TrainingTensor"
_SPACES = ("c10d", "_c10d_functional")


class Traffic(TorchDispatchMode):
    """Counts while it is entered."""

    supports_higher_order_operators = True  # a compiled backward may run one

    def __init__(self, axes: Mapping[str, str]) -> None:
        """``axes``: the mesh axis of each process group, by the group's name."""
        super().__init__()
        self._axes = dict(axes)
        self._exchanges: Counter[tuple[str, str, str]] = Counter()
        self._bytes: Counter[tuple[str, str, str]] = Counter()
        self._counts: list[tuple[bool, list[Tensor]]] = []
        self.single_numbers = 0
        self.pinned: bool | None = None
        """Whether tokens came to a GPU from pinned memory; None: none came.  Unverified on
        hardware."""
        self.sizes: dict[str, int] = {}
        """Ranks of each axis that tensors were exchanged over."""
        self.products: Counter[bool] = Counter()
        """Products of two matrices; True: those that backward ran."""
        self.float8_products = 0
        """Products of 8-bit floats: of torchao's tensors, or its kernel in compiled code."""
        self.attention_kernels: set[str] = set()

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Compiled code runs compiled under this mode (asked by torch since 2.12)."""
        return True

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        """Return the counted exchanges in a fixed order."""
        return tuple(
            Exchange(
                operation=key[0],
                axis=key[1],
                dtype=key[2],
                count=count,
                num_bytes=self._bytes[key],
            )
            for key, count in sorted(self._exchanges.items())
        )

    @property
    def routed_rows(self) -> tuple[int, int]:
        """Return rows that experts' counts spoke of, sent or received.

        Forward, and computed again.
        """
        row_counts = [0, 0]
        for again, counts in self._counts:
            row_counts[again] += max(int(count.sum()) for count in counts)
        return row_counts[0], row_counts[1]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # it comes back as what DTensor makes of it
        out = func(*args, **(kwargs or {}))
        schema = getattr(func, "_schema", None)  # a higher-order operator has none
        if schema is None:
            return out
        space, _, name = schema.name.partition("::")
        if space in _SPACES:
            self._exchange(name, (*args, *(kwargs or {}).values()), out)
        elif name == "_to_copy" and out.is_cuda and args[0].device.type == "cpu" and args[0].ndim:
            self.pinned = self.pinned is not False and bool(args[0].is_pinned())
        elif name in _PRODUCTS:
            self.products[in_backward()] += 1
            narrow = name == "_scaled_mm" or any(k.__name__ == _FLOAT8 for k in types)
            self.float8_products += narrow
        elif "scaled_dot_product" in name and "backward" not in name:
            self.attention_kernels.add(name.removeprefix("_scaled_dot_product_"))
        return out

    def _exchange(self, name: str, args: Iterable[Any], out: Any) -> None:
        stem = name.strip("_").removesuffix("_out").removesuffix("_coalesced")
        for ending in ("_base", "_tensor", "_single", "_into"):
            stem = stem.removesuffix(ending)
        operation = _OPERATIONS.get(stem)
        args = list(args)
        group = _group_of(args)
        if operation is None or group is None or group.size() == 1:
            return
        sides = [_tensors(side) for side in (*args, out)]
        size = {id(side): sum(t.numel() * t.element_size() for t in side) for side in sides}
        largest = max(sides, key=lambda side: size[id(side)], default=[])
        if not largest or not largest[0].is_floating_point():
            if operation == "all_to_all":
                self._counts.append((in_backward(), [side[0] for side in sides if side][:2]))
            return
        if sum(t.numel() for t in largest) == 1:
            self.single_numbers += 1
            return
        name_of = self._axis(group)
        key = operation, name_of, str(largest[0].dtype).removeprefix("torch.")
        self.sizes[name_of] = group.size()
        self._exchanges[key] += 1
        self._bytes[key] += size[id(largest)]

    def _axis(self, group: Any) -> str:
        """Return a group's mesh axis by name; DTensor may know an earlier group of these ranks."""
        if group.group_name not in self._axes:
            ranks = dist.get_process_group_ranks(group)
            for name, axis in self._axes.items():
                if dist.get_process_group_ranks(_resolve(name)) == ranks:
                    return axis
            return f"{group.size()} ranks"
        return self._axes[group.group_name]


def in_backward() -> bool:
    """Return whether autograd runs this: backward itself, or a recomputation for it.

    Nothing public says it; checkpointing and FSDP ask the same question.
    """
    return bool(torch._C._current_graph_task_id() != -1)


def _tensors(side: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(side) if isinstance(leaf, Tensor)]


def _group_of(args: list[Any]) -> Any:
    """Return the process group of a call.

    An object of c10d's, or the name that functional ones take.
    """
    for arg in reversed(args):
        if isinstance(arg, torch.ScriptObject) and "ProcessGroup" in str(arg._type()):
            return dist.ProcessGroup.unbox(arg)
        if isinstance(arg, str) and arg not in _SUMS:
            return _resolve(arg)
    return None


def _resolve(name: str) -> Any:
    """Return a process group by its name, by which functional collectives know it.

    None of it public.
    """
    return torch.distributed.distributed_c10d._resolve_process_group(name)


_SUMS = frozenset(("sum", "avg", "max", "min", "product", "band", "bor", "bxor", ""))
