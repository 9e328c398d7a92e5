"""What a device runs for the operations of a model, by kernel stack: products, streams, launches.

The operations of `blocks` are the mathematics; software runs them as more or fewer kernels, and
moves more bytes than a perfect cache would.  A stack is stated (`KernelChoices.stack`):

eager         one kernel for each line of Python: the score matrix is scaled, masked, normalised,
              dropped out and cast in turn; heads are copied into place; RMSNorm is six kernels
fused         fused softmax, norms and activations (Megatron, apex); scores still reach memory
flash         fused attention, everything else eager
flash+fused   both (Transformer Engine, Liger)
compiled      fused attention, pointwise work fused by a compiler, launches from one graph

For each kind of operation the table says how many times its counted bytes are moved and in how
many kernels, forward and backward.  The passes follow from reading what the stacks run (bytes
read and written by each kernel over those of the operation) and were not fitted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from trainrig.workload.adapters import has_adapter
from trainrig.workload.arrays import is_any
from trainrig.workload.numerics import Numerics
from trainrig.workload.operators import STATE_BYTES, Heads, Operator, Product


@dataclass(frozen=True, slots=True)
class Passes:
    """Times that an operation's bytes are moved, and its kernels."""

    forward: float
    backward: float
    forward_kernels: int
    backward_kernels: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """Kernels that one device runs for some parts in one direction."""

    products: tuple[Product, ...] = ()
    adapters: tuple[Product, ...] = ()
    """Products of adapters, in their own type."""
    batched: tuple[Product, ...] = ()
    """Products of attention that is not fused: many small ones in one call."""
    attention: tuple[Heads, ...] = ()
    """Fused attentions; the direction says whether forward or backward."""
    streams: tuple[tuple[float, int], ...] = ()
    """(bytes, kernels) of memory-bound work."""
    launches: int = 0


# Eager: softmax is scale 2, mask 2, softmax 2, dropout 2½ (a byte of mask) over 2 counted, and
# backward dropout 2½, softmax 3, scale 2 (a sum hands its gradient on) over 3.  GELU's tanh form,
# line by line, is eight kernels.  RMSNorm is square, mean, root, two multiplications, two casts.  A
# residual's dropout moves 2½ beside its 3.  Cross-entropy shifts, casts to fp32, takes
# the log-softmax and the loss, over one read in 16 bit.
# Tokens that torch's operations sort by expert move 50 bytes an element forward and 88 back, where
# 10 and 16 are counted: taken by index, weighted in fp32, padded to tiles, taken and put back, put
# where they were, widened and summed; back with zeros first and indices accumulated.  Compiled 32
# and 51 (an estimate: operations are those of torch's own trainer of mixtures, bytes by hand).
# Kernels of states (`operators.state_kernels`) are launched one behind another from one function,
# without the modules that other launches of a fused stack have around them: a third of the time.
_MOVED = {  # eager, fused, compiled
    "softmax": ((4.25, 2.5, 4, 3), (2.1, 1.9, 2, 2), (1.6, 1.5, 1, 1)),
    "unmasked": ((2.0, 1.7, 2, 2), (2.0, 1.7, 2, 2), (1.6, 1.5, 1, 1)),
    "norm": ((1.0, 1.7, 1, 2), (1.0, 1.3, 1, 2), (0.7, 1.0, 1, 2)),
    "rms": ((4.5, 4.0, 6, 10), (1.0, 1.3, 1, 2), (0.7, 1.0, 1, 2)),
    "activation": ((1.0, 1.0, 1, 1), (1.0, 1.0, 1, 1), (1.0, 1.0, 1, 1)),
    "written out": ((9.0, 7.0, 8, 14), (1.0, 1.0, 1, 1), (1.0, 1.0, 1, 1)),
    "gated": ((1.7, 1.7, 2, 3), (1.0, 1.0, 1, 1), (1.0, 1.0, 1, 1)),
    "rotary": ((4.0, 4.0, 10, 12), (1.0, 1.0, 2, 2), (1.0, 1.0, 1, 1)),
    "residual": ((1.0, 1.0, 1, 1), (1.0, 1.0, 1, 1), (0.7, 0.7, 0, 0)),
    "sorted": ((5.0, 5.5, 1, 1), (1.0, 1.0, 1, 1), (3.2, 3.2, 1, 1)),
    "ssd": ((1.0, 1.0, 9, 22), (1.0, 1.0, 3, 7), (1.0, 1.0, 9, 22)),
    "delta": ((1.0, 1.0, 14, 26), (1.0, 1.0, 5, 9), (1.0, 1.0, 14, 26)),
    "lightning": ((1.0, 1.0, 10, 16), (1.0, 1.0, 3, 5), (1.0, 1.0, 10, 16)),
    "dropout": ((0.85, 0.85, 1, 1), (0.2, 0.5, 0, 1), (0.2, 0.3, 0, 0)),
    "copies": ((1.0, 1.0, 4, 5), (0.5, 0.5, 2, 2), (0.25, 0.25, 1, 1)),
    "cross_entropy": ((7.0, 4.5, 5, 5), (5.0, 3.0, 6, 3), (2.5, 2.0, 2, 2)),
    "embedding": ((1.5, 2.0, 1, 2), (1.5, 2.0, 1, 2), (1.0, 2.0, 1, 2)),
}
_EAGER, _FUSED, _COMPILED = (
    {kind: Passes(*passes[column]) for kind, passes in _MOVED.items()} for column in range(3)
)
_FLASH_COPIES = {"copies": Passes(0.25, 0.5, 1, 2)}
STACKS = {
    "eager": _EAGER,
    "fused": _FUSED,
    "flash": _EAGER | _FLASH_COPIES,
    "flash+fused": _FUSED | _FLASH_COPIES | {"cross_entropy": Passes(2.0, 1.5, 2, 1)},
    "compiled": _COMPILED,
}
"""Passes of each kind of operation by each stack of kernels."""


@dataclass(slots=True)
class _Tally:
    """Kernels as they are counted."""

    products: list[Product] = field(default_factory=list)
    adapters: list[Product] = field(default_factory=list)
    batched: list[Product] = field(default_factory=list)
    attention: list[Heads] = field(default_factory=list)
    streams: list[tuple[float, int]] = field(default_factory=list)
    launches: int = 0


def kernels_of(parts: Iterable[Operator], numerics: Numerics, *, backward: bool) -> Kernels:
    """Return the kernels of a pass over ``parts``."""
    tally, is_wide, parts = _Tally(), True, list(parts)
    has_experts = any(part.name == "ffn.router" for part in parts)
    for part in parts:
        if part.heads is not None:
            tally.attention.append(part.heads)
            tally.launches += 2 if backward else 1
        elif part.forward.products:
            is_expert = has_experts and part.name in NETS
            _multiplied(tally, part, numerics, backward, is_wide=is_wide, is_expert=is_expert)
            is_wide = is_wide and part.kind != "attention"
        else:
            kind = _kind(part, numerics)
            is_wide = kind not in ("activation", "gated", "softmax", "unmasked")
            _moved(tally, part, numerics, kind, backward)
            if numerics.kernels.dropout and part.name.endswith((".residual", "embed.positions")):
                _moved(tally, part, numerics, "dropout", backward)
    return Kernels(
        products=tuple(tally.products),
        adapters=tuple(tally.adapters),
        batched=tuple(tally.batched),
        attention=tuple(tally.attention),
        streams=tuple(tally.streams),
        launches=tally.launches,
    )


def _multiplied(
    tally: _Tally,
    part: Operator,
    numerics: Numerics,
    backward: bool,
    *,
    is_wide: bool,
    is_expert: bool,
) -> None:
    """Products are calls; beside them heads are copied into place, or inputs are narrowed.

    ``is_wide``: autocast narrows what comes from a norm, for each product anew, and widens its
    gradient; what comes from attention or a fused activation is narrow already.  ``is_expert``: the
    weights are those of a mixture's experts.
    """
    products = (part.backward if backward else part.forward).products
    if part.kind == "attention":
        tally.batched += products
        tally.launches += len(products)
        _copied(tally, part, numerics, backward)
        return
    if backward and numerics.adapters.frozen:
        products = products[:1]
    extra = 1 if backward and not numerics.adapters.frozen else 0  # the bias' gradient is a sum
    tally.products += products
    tally.launches += len(products) + extra
    branch, _, name = part.name.partition(".")
    if numerics.adapters.frozen and branch in _OF_BLOCKS:
        tally.launches += _WIDENING * numerics.adapters.widens
        if has_adapter(numerics.adapters.targets, branch, name, is_expert=is_expert):
            is_one = is_expert and numerics.adapters.targets == "shared"
            _adapted(tally, part, numerics, backward, is_one=is_one)
    if backward:
        _added(tally, part, numerics)
    if numerics.formats.autocast and numerics.kernels.stack != "compiled" and is_wide:
        count, rows, _, wide_in = part.forward.products[0]
        tally.streams.append((6.0 * count * rows * wide_in, 1))
        tally.launches += 1


_WIDENING = 4
"""Launches that widen a matrix of four bits before each product: its scales, which are quantised
themselves, their offset, the matrix, and Python around it (bitsandbytes' `dequantize_4bit`)."""
_OF_BLOCKS = ("attention", "cross", "ffn")
"""Beginnings of the names of a block's operations, whose matrices may have adapters."""
NETS = ("ffn.gate", "ffn.up", "ffn.down")
"""Operations of a feed-forward net: of an expert's, in a block with a router."""


def _adapted(
    tally: _Tally, part: Operator, numerics: Numerics, backward: bool, *, is_one: bool
) -> None:
    """Two narrow products beside a frozen matrix, scaled and added to its result (Hu et al. 2021).

    Backward has their four; the gradient of what they scale is scaled, that of their input added.
    ``is_one``: one adapter for the rows of all experts.
    """
    rank, size = max(numerics.adapters.rank, 1), numerics.formats.compute
    is_fused = numerics.kernels.stack in ("flash+fused", "compiled")
    for num, num_rows, wide, wide_in in part.forward.products:
        count, rows = (1, num * num_rows) if is_one else (num, num_rows)
        if backward:
            tally.adapters += [(count, rows, rank, wide), (count, wide, rank, rows)]
            tally.adapters += [(count, rank, wide_in, rows), (count, rows, wide_in, rank)]
            moved = size * count * rows * (2.0 * wide + 3.0 * wide_in)
        else:
            tally.adapters += [(count, rows, rank, wide_in), (count, rows, wide, rank)]
            moved = size * count * rows * 5.0 * wide
        tally.launches += 4 if backward else 2
        if not is_fused:
            tally.streams.append((moved, 2))
            tally.launches += 2


def _added(tally: _Tally, part: Operator, numerics: Numerics) -> None:
    """Sums over a product's gradient that are kernels of their own, where nothing fuses them.

    A bias' gradient reads what comes back; and where several products have one input, each adds
    its own gradient to that of the others.
    """
    if numerics.kernels.stack not in ("eager", "flash"):
        return
    count, rows, columns, wide_in = part.forward.products[0]
    if not (numerics.norms.rms or numerics.adapters.frozen):
        tally.streams.append((1.0 * numerics.formats.compute * count * rows * columns, 1))
    if part.name.endswith(_FURTHER):
        size = 4 if numerics.formats.autocast else numerics.formats.compute
        tally.streams.append((3.0 * size * count * rows * wide_in, 1))
        tally.launches += 1


_FURTHER = ("attention.k", "attention.v", "ffn.gate")
"""Products whose input another one has, too."""


def _copied(tally: _Tally, part: Operator, numerics: Numerics, backward: bool) -> None:
    """Queries, keys, values and the result, not the scores: read and written."""
    (count, m, n, k), cost = part.forward.products[0], part.forward
    size = (cost.read_bytes + cost.write_bytes) / (count * (m * k + k * n + m * n))
    counted = 2.0 * count * (m + max(n, k)) * min(n, k) * size
    _streamed(tally, STACKS[numerics.kernels.stack]["copies"], counted, backward)


def _moved(tally: _Tally, part: Operator, numerics: Numerics, kind: str, backward: bool) -> None:
    cost = part.backward if backward else part.forward
    counted = 1.0 * (cost.read_bytes + cost.write_bytes)
    if numerics.formats.autocast and kind in _WIDENED:
        counted *= _WIDENED[kind][int(backward)]
    _streamed(tally, STACKS[numerics.kernels.stack][kind], counted, backward)


def _streamed(tally: _Tally, passes: Passes, counted: float, backward: bool) -> None:
    times = passes.backward if backward else passes.forward
    num = passes.backward_kernels if backward else passes.forward_kernels
    tally.streams.append((times * counted, max(1, num)))
    tally.launches += num


_WIDENED = {
    "norm": (2.0, 2.0),
    "rms": (1.5, 1.5),
    "residual": (1.7, 2.0),
    "dropout": (1.0, 2.0),
    "softmax": (1.95, 2.45),
    "unmasked": (2.0, 2.0),
    "embedding": (2.0, 2.0),
    "written out": (1.8, 1.8),
}
"""Factors on bytes of 16-bit operations that autocast runs in fp32, forward and backward: all of
it, or the part that was not fp32 yet.  Dropout comes before the sum, of which one term is 16 bit;
its gradient is narrowed first.  Scores are scaled in 16 bit, then meet an fp32 mask: 33 bytes a
score, one byte of dropout's mask and the cast for the product among them, and 37 in backward, which
casts twice (16 and 20 without either)."""


def _kind(part: Operator, numerics: Numerics) -> str:
    if part.kind == "norm":
        return "rms" if numerics.norms.rms else "norm"
    if part.kind == "softmax" and numerics.kernels.unmasked:
        return "unmasked"
    if part.kind in ("softmax", "cross_entropy", "embedding", *STATE_BYTES):
        return part.kind
    name = part.name.rpartition(".")[2]
    if name != "activation":
        is_sorted = numerics.kernels.sorts and name in ("gather", "scatter")
        return "sorted" if is_sorted else "rotary" if name == "rotary" else "residual"
    if is_any(part.forward.read_bytes > part.forward.write_bytes):
        return "gated"
    return "written out" if numerics.kernels.gelu_written_out else "activation"
