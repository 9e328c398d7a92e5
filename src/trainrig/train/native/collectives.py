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
from collections.abc import Callable, Iterable, Iterator
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
    """What the ranks of a group say to each other."""

    def __init__(
        self, watch: Stopwatch[Any], events: Events | None = None, *, on_host: bool = True
    ) -> None:
        """``on_host``: the host itself carries what is said, so its clock sees how long."""
        self.watch, self._events, self.on_host = watch, events, on_host
        self.group: Any = None
        """The ranks with other samples; None: all."""
        self.reduced: Counter[torch.dtype] = Counter()
        """Collectives over gradients since the last look at it, by what they were in."""
        self._beside: list[Span] = []
        self._waited: list[Span] = []

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
        self.waited_since(start, began)

    def waited_since(self, start: Any, began: float) -> None:
        """Communication has been all that went on since a mark, and the host's time of it."""
        self._waited.append((began, time.perf_counter()))
        self.watch.inner(COMMUNICATION, start)

    @contextmanager
    def of_shards(self, operation: str) -> Iterator[None]:
        """FSDP says something: the host waits in it, or a GPU has a stream of its own for it.

        Marks in that stream would count what is overlapped as exposed.
        """
        if self.on_host:
            with self.waiting(operation):
                yield
            return
        self.name(operation)
        yield
        self.name("")

    def name(self, operation: str) -> None:
        """What would be to blame, did the rank hang now."""
        if self._events is not None:
            self._events.set_position(operation=operation)

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


def time_waits_for_shards(units: Iterable[Any], wire: Collectives) -> None:
    """On a GPU: mark where the stream that computes waits for FSDP's, and copies what it brought.

    That is in two methods of each unit's group of weights: before their use, and after backward.
    """
    for unit in units:
        state = unit._get_fsdp_state()
        for group in getattr(state, "_fsdp_param_groups", None) or [state._fsdp_param_group]:
            for name in ("wait_for_unshard", "finalize_backward"):
                setattr(group, name, _marked(getattr(group, name), wire.watch))


def _marked(call: Callable[[], None], watch: Stopwatch[Any]) -> Callable[[], None]:
    def waits() -> None:
        with watch.within(COMMUNICATION):
            call()

    return waits


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
            with wire.of_shards("all_gather"):
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
            wire.reduced[input_tensor.dtype] += 1
            with wire.of_shards("reduce_scatter"):
                return _scatter(output_tensor, input_tensor, op=op, group=group, async_op=async_op)

    return Gather(), Scatter()
