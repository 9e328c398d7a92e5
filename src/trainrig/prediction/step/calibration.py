"""The few numbers of the step's model that are fitted, and the ones that are stated.

Each scales a physical quantity that `rates` or `workload` counts; none knows a model, a chip or a
source.  The fitted ones stand in step.toml, which `python -m validation.accuracy --fit` writes:
fitted to published steps, each group of sources counting the same, and refitted without each group
in turn to show what they are worth on figures that they have not seen.  The others are stated:
their defaults here are what is believed, and a fit of them was worth nothing on rows of other
software and later chips (`python -m validation.out_of_family`).
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

PATH = Path(__file__).parent / "step.toml"
LAST_CHANGED = "2026-11-20T16:00"
"""Rows that were added to the table of published steps later (its column ``unseen_since``) take no
part in any fit, this one's successors included: they stay unseen by the constants."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """Factors on counted seconds, and shares.  The defaults are what is believed before a fit."""

    products: float = 1.17
    """Products of matrices in tensor cores without pause against the same alone: such a chip runs
    at lower clocks (the power of a product depends on its data), and caches are cold.  In a step
    they are longer by the products' share of that: the limit is on power over many kernels, of
    which streams leave some.  Between 1 and 1.25: the slowest sustained clocks of a
    chip at its power limit."""
    attention: float = 1.5
    """Fused attention of the flash stack, which is older software's."""
    newest: float = 1.0
    """Fused attention of later software: flash+fused (FA3, cuDNN) and compiled (torch 2).  At
    least 1: the kernel's rate is its fastest, measured by itself."""
    streams: float = 1.1
    """Memory-bound kernels, likewise."""
    launch: float = 2.5
    """Host seconds of a kernel, with the Python and autograd around it, against its launch."""
    tensor: float = 1.0
    """Collectives of tensor parallel against the same alone."""
    data: float = 1.2
    """Collectives of data parallel against the same alone."""
    hidden: float = 1.0
    """Share of the computation beside it that a collective can hide behind: all of it, since its
    stream waits for nothing else; what the two take from each other is `contention`'s."""
    contention: float = 0.3
    """Share of a hidden collective that the computation beside it loses: its kernels hold 16 to 32
    of 108 to 132 processors (NCCL's channels) and move each byte through memory three times.
    Between 0.1 (few channels, as over PCIe) and 0.5."""
    sliced: float = 0.1
    """Contention of tensor parallel's user buffers, which copy engines move (Transformer Engine's
    ring exchange): memory's share alone.  Between 0 and `contention`."""
    send: float = 1.2
    """Sends between pipeline stages against the same alone."""
    optimizer: float = 1.0
    """The optimizer's streams, with clipping and zeroing."""
    fixed: float = 1e-3
    """s of each step that no part explains: fetching data, reading the loss, logging."""
    faster: float = 1.5
    """Half width of the 80 % interval towards shorter steps, against the uncertainty that the parts
    add up to: one step in ten is expected below it."""
    slower: float = 2.0
    """Half width towards longer times, beyond which is one in ten.  It is the wider side: what a
    program does besides, that nobody prints, only adds."""


BELIEVED = Constants()


@cache
def fitted() -> Constants:
    """Return the constants of step.toml."""
    with PATH.open("rb") as file:
        return Constants(**tomllib.load(file)["step"])


HOST_ADAM_BYTES = 28
"""Read and written in host memory for each parameter of an offloaded Adam: p, m, v, g; p, m, v."""
HOST_CLIP_BYTES = 14
"""Read and written beside it where the host also scales gradients (8) and narrows weights (6):
DeepSpeed's `unscale_and_clip_grads`, and its copy of fp32 masters to the device."""
PORT = 19.6e9
"""B/s that one of a node's ports into the network reaches; presumed to be of 200 Gbit/s."""
DISPATCHING = 20
"""Processors of a chip that move tokens to experts beside computation (DeepSeek-V3's report, arXiv
2412.19437, section 3.2.2, on chips of 132)."""
