"""The few numbers of the step's model that are fitted, and the ones that are stated.

Each scales a physical quantity that `rates` or `workload` counts; none knows a model, a chip or a
source.  They were fitted to published steps by `tools/accuracy.py --fit`, which also refits them
without each group of sources to show what they are worth on figures that they have not seen.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """Factors on counted seconds, and shares."""

    products: float = 1.05
    """Products of matrices inside a step against the same alone: other clocks, cold caches."""
    attention: float = 1.0
    """Fused attention, likewise."""
    streams: float = 1.0
    """Memory-bound kernels, likewise."""
    launch: float = 1.3
    """Host seconds of a kernel, with the Python around it, against its launch."""
    tensor: float = 1.1
    """Collectives of tensor parallel against the same alone."""
    data: float = 1.1
    """Collectives of data parallel that nothing hides."""
    hidden: float = 0.8
    """Share of the computation beside it that a collective can hide behind."""
    contention: float = 0.08
    """Share of a hidden collective that the computation beside it loses."""
    send: float = 1.3
    """Sends between pipeline stages against the same alone."""
    optimizer: float = 1.2
    """The optimizer's streams, with clipping and zeroing."""

    def vector(self) -> tuple[float, ...]:
        """In the order of the fields."""
        return dataclasses.astuple(self)


CONSTANTS = Constants()

HOST_ADAM_BYTES = 28
"""Read and written in host memory for each parameter of an offloaded Adam: p, m, v, g; p, m, v."""
HOST_MEMORY = 120e9
"""B/s of host memory that all devices of a node share; presumed."""
