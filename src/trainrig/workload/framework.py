"""What lies between the tensors' sum and what the card shows: estimates, with intervals.

allocated   the sum of the tensors, as the framework's allocator hands them out
reserved    what the allocator has taken from the driver: blocks that are free or half used stay
device      everything on the card: the CUDA context, libraries, communicators' buffers besides

The figures are those that people see: 0.3 to 0.7 GiB for a context with its kernels, 8 to 32 MiB
of workspace for each cuBLAS handle, and some 10 to 40 MiB for each channel of NCCL that is in use.
"""

from __future__ import annotations

from typing import Any

from trainrig.workload.layout import Layout

GIB = 1 << 30

CONTEXT = 0.6 * GIB
"""Driver context, kernels, cuBLAS and cuDNN handles."""
COMMUNICATORS = 0.5 * GIB
"""NCCL's buffers where there are several GPUs."""
UNUSED = 0.06
"""Of what is allocated: blocks in the allocator's cache that fit nothing."""

_ALLOCATED = (0.90, 1.10)
_RESERVED = (0.80, 1.40)
"""Stated beforehand and never fitted: what `allocated` may be off by, and up to a third that the
allocator holds in blocks that fit nothing."""
_DEVICE = (0.85, 1.40)


def around(allocated: Any, layout: Layout) -> Any:
    """Bytes besides the tensors, for arrays too."""
    import numpy as np

    several = np.asarray(layout.gpus) > 1
    return CONTEXT + np.where(several, COMMUNICATORS, 0.0) + UNUSED * allocated


def reserved(allocated: Any) -> Any:
    """Bytes that the framework's allocator has taken from the driver."""
    return (1.0 + UNUSED) * allocated


def interval(allocated: Any, kind: str) -> tuple[Any, Any]:
    """Where 8 of 10 lie."""
    if kind == "allocated":
        low, high = _ALLOCATED
        return low * allocated, high * allocated
    if kind == "reserved":
        low, high = _RESERVED
        return low * allocated, high * allocated
    low, high = _DEVICE
    return low * allocated + 0.3 * GIB, high * allocated + CONTEXT + COMMUNICATORS + GIB
