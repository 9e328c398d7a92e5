"""Report the collective that a rank waits for, so that its parent can name it in a hang.

No clock: what communication costs is read by the profiler, the same for all layouts (`breakdown`).
Named are the sums that the engine starts itself and, on the CPU, FSDP's collectives; on a GPU the
host waits for none of them, and NCCL's own recorder knows (`process.flight_recorder`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from trainrig.process.events import Events

# Their names changed with torch 2.13.
_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class Collectives:
    """Names in the rank's heartbeat; without one nobody is told."""

    def __init__(self, events: Events | None = None) -> None:
        self._events = events

    @contextmanager
    def waiting(self, operation: str) -> Iterator[None]:
        """The rank waits in ``operation``."""
        self.name(operation)
        yield
        self.name("")

    def name(self, operation: str) -> None:
        """Return the name of the collective that the rank is in now."""
        if self._events is not None:
            self._events.set_position(operation=operation)


def fsdp_hooks(wire: Collectives) -> tuple[Any, Any]:
    """FSDP's all-gather and reduce-scatter with their names, for its ``set_custom_…`` methods."""

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
            with wire.waiting("reduce_scatter"):
                return _scatter(output_tensor, input_tensor, op=op, group=group, async_op=async_op)

    return Gather(), Scatter()
