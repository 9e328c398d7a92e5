"""What a device runs for the operations of a model, by kernel stack: products, streams, launches.

The operations of `blocks` are the mathematics; software runs them as more or fewer kernels, and
moves more bytes than a perfect cache would.  A stack is stated (`Layout.kernels`):

eager         one kernel for each line of Python: the score matrix is scaled, masked, normalised,
              dropped out and cast in turn; heads are copied into place; RMSNorm is six kernels
fused         fused softmax, norms and activations (Megatron, apex); scores still reach memory
flash         fused attention, everything else eager
flash+fused   both (Transformer Engine, Liger)
compiled      fused attention, pointwise work fused by a compiler, launches from one graph

For each kind of operation the table says how many times its counted bytes are moved and in how
many kernels, forward and backward.  The passes follow from reading what the stacks run (bytes
read and written by each kernel over those of the operation); they are not fitted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from trainrig.workload.parts import Cost, Heads, Part, Product


@dataclass(frozen=True, slots=True)
class Passes:
    """How often an operation's bytes are moved, and in how many kernels."""

    forward: float
    backward: float
    forward_kernels: int
    backward_kernels: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """What one device runs for some parts in one direction."""

    products: tuple[Product, ...] = ()
    attention: tuple[Heads, ...] = ()
    """Fused attentions; the direction says whether forward or backward."""
    streams: tuple[tuple[float, int], ...] = ()
    """(bytes, kernels) of memory-bound work."""
    launches: int = 0

    def __add__(self, other: Kernels) -> Kernels:
        return Kernels(
            products=self.products + other.products,
            attention=self.attention + other.attention,
            streams=self.streams + other.streams,
            launches=self.launches + other.launches,
        )


# Softmax, eager: scale 2, mask 2, softmax 2, dropout 2½ (a byte of mask) over 2 counted; backward
# as many less the mask's, over 3.  Norm, eager: the fp32 result is cast for what follows.  RMSNorm,
# eager: square, mean, root, two multiplications, two casts.  Residual with its dropout: (3 + 2½)/3.
# Cross-entropy, eager: shift, cast to fp32, log-softmax, loss, over one read in 16 bit.
_EAGER = {
    "softmax": Passes(4.25, 3.2, 4, 4),
    "norm": Passes(2.0, 1.7, 2, 3),
    "rms": Passes(4.5, 4.0, 6, 10),
    "activation": Passes(1.5, 1.5, 2, 2),
    "gated": Passes(1.7, 1.7, 2, 3),
    "rotary": Passes(4.0, 4.0, 10, 12),
    "residual": Passes(1.0, 1.0, 1, 1),
    "dropout": Passes(0.85, 0.85, 1, 1),
    "copies": Passes(1.0, 1.0, 4, 5),
    "cross_entropy": Passes(7.0, 4.5, 5, 5),
    "embedding": Passes(1.5, 2.0, 1, 2),
}
_FUSED = {
    "softmax": Passes(2.1, 1.9, 2, 2),
    "norm": Passes(1.0, 1.3, 1, 2),
    "rms": Passes(1.0, 1.3, 1, 2),
    "activation": Passes(1.0, 1.0, 1, 1),
    "gated": Passes(1.0, 1.0, 1, 1),
    "rotary": Passes(1.0, 1.0, 2, 2),
    "residual": Passes(1.0, 1.0, 1, 1),
    "dropout": Passes(0.2, 0.5, 0, 1),
    "copies": Passes(0.5, 0.5, 2, 2),
    "cross_entropy": Passes(5.0, 3.0, 6, 3),
    "embedding": Passes(1.5, 2.0, 1, 2),
}
_FLASH = _EAGER | {"copies": Passes(0.25, 0.5, 1, 2)}
_FLASH_FUSED = _FUSED | {
    "copies": Passes(0.25, 0.5, 1, 2),
    "cross_entropy": Passes(2.0, 1.5, 2, 1),
}
_COMPILED = {
    "softmax": Passes(1.6, 1.5, 1, 1),
    "norm": Passes(0.7, 1.0, 1, 2),
    "rms": Passes(0.7, 1.0, 1, 2),
    "activation": Passes(1.0, 1.0, 1, 1),
    "gated": Passes(1.0, 1.0, 1, 1),
    "rotary": Passes(1.0, 1.0, 1, 1),
    "residual": Passes(0.7, 0.7, 0, 0),
    "dropout": Passes(0.2, 0.3, 0, 0),
    "copies": Passes(0.25, 0.25, 1, 1),
    "cross_entropy": Passes(2.5, 2.0, 2, 2),
    "embedding": Passes(1.0, 2.0, 1, 2),
}
STACKS = {
    "eager": _EAGER,
    "fused": _FUSED,
    "flash": _FLASH,
    "flash+fused": _FLASH_FUSED,
    "compiled": _COMPILED,
}
"""What each stack makes of each kind of operation."""

FLASH = ("flash", "flash+fused", "compiled")
"""Stacks whose attention keeps no scores."""


def forward(parts: Iterable[Part], stack: str, *, dropout: bool, rms: bool) -> Kernels:
    """The kernels of a forward pass over ``parts``."""
    return sum((_one(part, stack, dropout, rms, backward=False) for part in parts), Kernels())


def backward(parts: Iterable[Part], stack: str, *, dropout: bool, rms: bool) -> Kernels:
    """The kernels of a backward pass over ``parts``."""
    return sum((_one(part, stack, dropout, rms, backward=True) for part in parts), Kernels())


def _one(part: Part, stack: str, dropout: bool, rms: bool, *, backward: bool) -> Kernels:
    cost = part.backward if backward else part.forward
    if part.heads is not None:
        return Kernels(attention=(part.heads,), launches=2 if backward else 1)
    if cost.products:
        copies = _moved(part, stack, "copies", backward) if part.kind == "attention" else Kernels()
        return _multiplied(part, cost, backward) + copies
    kernels = _moved(part, stack, _kind(part, rms), backward)
    if dropout and (part.name.endswith(".residual") or part.name == "embed.positions"):
        kernels += _moved(part, stack, "dropout", backward)
    return kernels


def _multiplied(part: Part, cost: Cost, backward: bool) -> Kernels:
    """Products are calls; backward of a linear one also sums the bias' gradient."""
    extra = 1 if backward and part.kind == "matmul" else 0
    return Kernels(products=cost.products, launches=len(cost.products) + extra)


def _moved(part: Part, stack: str, kind: str, backward: bool) -> Kernels:
    passes, cost = STACKS[stack][kind], part.backward if backward else part.forward
    counted: float = cost.read_bytes + cost.write_bytes
    if kind == "copies":  # queries, keys, values and the result, not the scores
        counted = 2 * _operand_bytes(part)
    times = passes.backward if backward else passes.forward
    num = passes.backward_kernels if backward else passes.forward_kernels
    return Kernels(streams=((times * counted, max(1, num)),), launches=num)


def _operand_bytes(part: Part) -> float:
    """Bytes of the smaller operands of a product of heads: what is copied into place."""
    (count, m, n, k), cost = part.forward.products[0], part.forward
    size = (cost.read_bytes + cost.write_bytes) / (count * (m * k + k * n + m * n))
    wide = min(n, k)
    return count * (m + max(n, k)) * wide * size


def _kind(part: Part, rms: bool) -> str:
    if part.kind == "norm":
        return "rms" if rms else "norm"
    if part.kind in ("softmax", "cross_entropy", "embedding"):
        return part.kind
    name = part.name.rpartition(".")[2]
    if name == "activation":
        return "gated" if part.forward.read_bytes > part.forward.write_bytes else "activation"
    return "rotary" if name == "rotary" else "residual"
