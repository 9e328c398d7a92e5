"""Collectives of the ranks, each timed and named while it is waited for.

Exposed communication is what a rank waits for and cannot compute in: it is taken out of the part
of the step that it happened in, and is a part of its own.  Overlapped communication ran beside
computation and costs no time by itself; it is told apart and belongs to no sum.

On the CPU (gloo) times are the host's.  On a GPU (NCCL) marks are events in the stream that
computes, so what lies between them is what computation waited for.  There the host only starts
what runs beside computation, so how long that takes is told as unknown; and FSDP's collectives have
streams of their own, so marked is where the computing stream waits for what they bring.  That path
is unverified on hardware.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from trainrig.process.events import COMMUNICATION, Events
from trainrig.train.native.step_timer import Stopwatch

# Their names changed with torch 2.13.
_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


Span = tuple[float, float]
"""Start and end by the host's clock."""


class Collectives:
    """What ranks say to each other."""

    def __init__(
        self, watch: Stopwatch[Any], events: Events | None = None, *, on_host: bool = True
    ) -> None:
        """``on_host``: the host itself carries what is said, so its clock sees how long."""
        self.watch, self._events, self.on_host = watch, events, on_host
        self.group: Any = None
        """Of the sums that go on beside computation; None: all ranks."""
        self.reduced: Counter[torch.dtype] = Counter()
        """Collectives over gradients since the last look at it, by what they were in."""
        self._beside: list[Span] = []
        self._waited: list[Span] = []

    @contextmanager
    def waiting(self, operation: str) -> Iterator[None]:
        """The rank waits in ``operation``: exposed communication."""
        start = self.watch.mark()
        began = time.perf_counter()
        self.name(operation)
        yield
        self.name("")
        self.waited_since(start, began)

    def waited_since(self, start: Any, began: float) -> None:
        """Communication has been all that went on since a mark, and the host's time of it."""
        self._waited.append((began, time.perf_counter()))
        self.watch.inner(COMMUNICATION, start)

    def name(self, operation: str) -> None:
        """What would be to blame, did the rank hang now."""
        if self._events is not None:
            self._events.set_position(operation=operation)

    def start_all_reduce(self, tensor: Tensor) -> Any:
        """A sum over the ranks that goes on beside what follows; a future."""
        self.reduced[tensor.dtype] += 1
        self.name("all_reduce")
        began = time.perf_counter()
        future = dist.all_reduce(tensor, group=self.group, async_op=True).get_future()

        def done(_: Any) -> None:  # in a thread of gloo's
            self._beside.append((began, time.perf_counter()))

        future.add_done_callback(done)
        return future

    def take_overlapped(self) -> float | None:
        """Seconds of communication beside computation since the last call; None: unknown."""
        beside, waited, self._beside, self._waited = self._beside, self._waited, [], []
        if not self.on_host:
            return None
        return covered([*beside, *waited]) - covered(waited)


def covered(spans: Iterable[Span]) -> float:
    """Seconds that lie in one span at least: several at once count once."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


def fsdp_hooks(wire: Collectives) -> tuple[Any, Any]:
    """FSDP's all-gather and reduce-scatter, timed on the host, for its ``set_custom_…`` methods."""

    class _Allocating:
        def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> Tensor:
            return torch.empty(*size, dtype=dtype, device=device)

    class Gather(_Allocating):
        def __call__(
            self, output_tensor: Tensor, input_tensor: Tensor, group: Any, async_op: bool = False
        ) -> Any:
            with wire.waiting("all_gather"):
                return _gather(output_tensor, input_tensor, group=group, async_op=async_op)

    class Scatter(_Allocating):
        def __call__(
            self,
            output_tensor: Tensor,
            input_tensor: Tensor,
            group: Any,
            op: Any,
            async_op: bool = False,
        ) -> Any:
            wire.reduced[input_tensor.dtype] += 1
            with wire.waiting("reduce_scatter"):
                return _scatter(output_tensor, input_tensor, op=op, group=group, async_op=async_op)

    return Gather(), Scatter()
