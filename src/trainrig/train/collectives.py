"""Collectives of the ranks, each timed and named while it is waited for.

Exposed communication is what a rank waits for and cannot compute in: it is taken out of the part
of the step that it happened in, and is a part of its own.  Overlapped communication ran beside
computation and costs no time by itself; it is told apart and belongs to no sum.

On the CPU (gloo) times are the host's.  On a GPU (NCCL) marks are events in the stream that
computes, so what lies between them is what computation waited for; that path is unverified on
hardware.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from trainrig.train.parts import COMMUNICATION, Stopwatch
from trainrig.train.telling import Teller

# Their names changed with torch 2.13.
_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class Collectives:
    """What the ranks of a group say to each other."""

    def __init__(self, watch: Stopwatch[Any], teller: Teller | None = None) -> None:
        self.watch, self._teller = watch, teller
        self.group: Any = None
        """The ranks with other samples; None: all."""
        self.reduced = 0
        """Collectives over gradients since the last look at it."""
        self._busy = 0.0
        self._exposed = 0.0

    @property
    def size(self) -> int:
        """Ranks."""
        return dist.get_world_size(self.group)

    @contextmanager
    def waiting(self, operation: str) -> Iterator[None]:
        """The rank waits in ``operation``: exposed communication."""
        start = self.watch.mark()
        began = time.perf_counter()
        self.name(operation)
        yield
        self.name("")
        spent = time.perf_counter() - began
        self._busy += spent
        self._exposed += spent
        self.watch.inner(COMMUNICATION, start)

    def waited_since(self, start: Any, began: float) -> None:
        """Communication has been all that went on since a mark, and the host's time of it."""
        self._exposed += time.perf_counter() - began
        self.watch.inner(COMMUNICATION, start)

    def name(self, operation: str) -> None:
        """What would be to blame, did the rank hang now."""
        if self._teller is not None:
            self._teller.at(operation=operation)

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """The sum over the ranks, in place."""
        with self.waiting("all_reduce"):
            dist.all_reduce(tensor, group=self.group)
        return tensor

    def all_gather(self, whole: Tensor, own: Tensor) -> None:
        """Every rank's ``own``, one behind the other, in ``whole``."""
        with self.waiting("all_gather"):
            _gather(whole, own, group=self.group)

    def start_all_reduce(self, tensor: Tensor) -> Any:
        """A sum over the ranks that goes on beside what follows; a future."""
        self.reduced += 1
        self.name("all_reduce")
        began = time.perf_counter()
        future = dist.all_reduce(tensor, group=self.group, async_op=True).get_future()

        def done(_: Any) -> None:
            self._busy += time.perf_counter() - began

        future.add_done_callback(done)
        return future

    def take_overlapped(self) -> float:
        """Seconds of communication beside computation since the last call; 0 at least."""
        overlapped, self._busy, self._exposed = self._busy - self._exposed, 0.0, 0.0
        return max(0.0, overlapped)


def barrier() -> None:
    """All ranks have come here."""
    if dist.is_initialized():
        dist.barrier()


def fsdp_hooks(wire: Collectives) -> tuple[Any, Any]:
    """FSDP's all-gather and reduce-scatter, timed: for its ``set_custom_…`` methods."""
    from torch.distributed.fsdp._fully_shard._fsdp_api import AllGather, ReduceScatter

    class _Allocating:
        def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> Tensor:
            return torch.empty(*size, dtype=dtype, device=device)

    class Gather(_Allocating, AllGather):
        def __call__(
            self, output_tensor: Tensor, input_tensor: Tensor, group: Any, async_op: bool = False
        ) -> Any:
            with wire.waiting("all_gather"):
                return _gather(output_tensor, input_tensor, group=group, async_op=async_op)

    class Scatter(_Allocating, ReduceScatter):
        def __call__(
            self,
            output_tensor: Tensor,
            input_tensor: Tensor,
            group: Any,
            op: Any,
            async_op: bool = False,
        ) -> Any:
            wire.reduced += 1
            with wire.waiting("reduce_scatter"):
                return _scatter(output_tensor, input_tensor, op=op, group=group, async_op=async_op)

    return Gather(), Scatter()
