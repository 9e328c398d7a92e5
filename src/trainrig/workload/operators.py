"""What is run: shapes to FLOPs and bytes, one formula each for the whole program.

FLOP convention: a multiply and an add are two.  Bytes are the ones a perfect
cache would move: each operand read once, each result written once; what the
hardware moves besides (write-allocate reads, spilled tiles) is not counted, so
that a rate in counted bytes/s never exceeds the real one.

Sources: the 2mkn convention is that of BLAS and of every data sheet's tensor
peak; STREAM (McCalpin) counts its kernels' bytes the same way.

A transformer's operations are priced forward and backward.  An operation's FLOPs are those of its
matrix products; a norm, an activation or a softmax has none, by the field's convention, and is
priced by its bytes.

Backward of y = x·W is two products of the same size: the gradients of x and of W.  A fused
attention keeps no scores and computes them once more in its backward: `Cost.again`, which counts
for the hardware and not for the model (FlashAttention, Dao et al. 2022, appendix B).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trainrig.errors import UsageError

DTYPE_BYTES = {"fp64": 8, "fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "int8": 1}

# FLOPs and operands an element: (flops, arrays read, arrays written).
# scale: y = a·x.  add: z = x + y.  gelu (tanh form): counted as 8 FLOPs an element by
# convention; its true cost is the device's tanh, so only its bytes are judged.
VECTOR_OPS = {"scale": (1, 1, 1), "add": (1, 2, 1), "gelu": (8, 1, 1)}

# Arrays read and written by one pass, as STREAM counts them.
COPY_DIRECTIONS = {
    "h2d": (1, 1),
    "d2h": (1, 1),
    "d2d": (1, 1),
    "read": (1, 0),
    "write": (0, 1),
    "copy": (1, 1),
    "triad": (2, 1),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """FLOPs and bytes of one call of an operation."""

    flops: int
    num_bytes: int


def dtype_bytes(dtype: str) -> int:
    """Return bytes of one element in memory; tf32 is stored as fp32.  UsageError if unknown."""
    if dtype not in DTYPE_BYTES:
        raise UsageError(f"unknown dtype {dtype!r}", "one of: " + ", ".join(DTYPE_BYTES))
    return DTYPE_BYTES[dtype]


def output_bytes(dtype: str) -> int:
    """Return bytes of one element of a matmul's result.

    Int8 accumulates in int32, fp8 yields bf16.
    """
    return {"int8": 4, "fp8": 2}.get(dtype, dtype_bytes(dtype))


def matmul(m: int, k: int, n: int, dtype: str) -> Work:
    """Return (m,k)·(k,n): 2mkn FLOPs; both operands read once, the result written once."""
    operands = (m * k + k * n) * dtype_bytes(dtype)
    return Work(flops=2 * m * k * n, num_bytes=operands + m * n * output_bytes(dtype))


def vector(op: str, num_elements: int, dtype: str) -> Work:
    """Return an elementwise operation on ``num_elements``; see VECTOR_OPS for what is counted."""
    if op not in VECTOR_OPS:
        raise UsageError(f"unknown vector operation {op!r}", "one of: " + ", ".join(VECTOR_OPS))
    flops, reads, writes = VECTOR_OPS[op]
    num_bytes = (reads + writes) * num_elements * dtype_bytes(dtype)
    return Work(flops=flops * num_elements, num_bytes=num_bytes)


def copy(direction: str, num_bytes: int) -> Work:
    """Return one pass over arrays of ``num_bytes`` each; what crosses a link is counted once."""
    if direction not in COPY_DIRECTIONS:
        raise UsageError(
            f"unknown copy direction {direction!r}", "one of: " + ", ".join(COPY_DIRECTIONS)
        )
    reads, writes = COPY_DIRECTIONS[direction]
    passes = 1 if direction in ("h2d", "d2h") else reads + writes
    flops = 2 * (num_bytes // 8) if direction == "triad" else 0
    return Work(flops=flops, num_bytes=passes * num_bytes)


Product = tuple[int, int, int, int]
"""``count`` products (m,k)·(k,n) in one call, as (count, m, n, k): 2·count·m·n·k FLOPs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """One pass, in one direction."""

    products: tuple[Product, ...] = ()
    """The matrix products that are calls of their own; ``flops`` counts them."""
    flops: int = 0
    again: int = 0
    """FLOPs computed a second time, not part of ``flops``."""
    read_bytes: int
    write_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """An operation of the model: what it is, and what it costs in both directions."""

    name: str
    kind: str
    forward: Cost
    backward: Cost
    heads: Heads | None = None
    """Sizes of a fused attention."""


def linear(
    name: str, rows: int, wide_in: int, wide_out: int, dtype: str, groups: int = 1
) -> Operator:
    """Return (rows, wide_in)·(wide_in, wide_out): 2·rows·wide_in·wide_out, backward twice.

    ``groups``: weights, each of which multiplies its part of the rows, in one call.
    """
    elements = rows * wide_in, groups * wide_in * wide_out, rows * wide_out
    product = groups, -(-rows // groups), wide_out, wide_in
    flops = 2 * rows * wide_in * wide_out
    return _product(name, "matmul", product, flops, elements, dtype_bytes(dtype))


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """The sizes of one attention: ``queries`` tokens look at ``keys`` tokens."""

    batch: int
    queries: int
    keys: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    half: bool = False
    """Causal, counted as half of the scores."""

    @property
    def score_flops(self) -> int:
        """q·kᵀ of all heads; weights·v costs the same."""
        full = 2 * self.batch * self.num_heads * self.queries * self.keys * self.head_dim
        return full // 2 if self.half else full


def fused_attention(name: str, heads: Heads, dtype: str, bias: int = 0) -> list[Operator]:
    """softmax(q·kᵀ)·v in one kernel: scores never reach memory, and are computed twice.

    ``bias``: elements of an additive position bias that is read, and whose gradient is written.
    """
    size = dtype_bytes(dtype)
    tokens = heads.batch * heads.head_dim
    q = tokens * heads.queries * heads.num_heads
    kv = 2 * tokens * heads.keys * heads.num_kv_heads
    sums = 4 * heads.batch * heads.num_heads * heads.queries  # log-sum-exp in fp32
    return [
        Operator(
            name=name,
            kind="attention",
            heads=heads,
            forward=Cost(
                flops=2 * heads.score_flops,
                read_bytes=(q + kv + bias) * size,
                write_bytes=q * size + sums,
            ),
            backward=Cost(
                flops=4 * heads.score_flops,
                again=heads.score_flops,
                read_bytes=(3 * q + kv + bias) * size + sums,  # q, o and do
                write_bytes=(q + kv + bias) * size,
            ),
        )
    ]


def plain_attention(name: str, heads: Heads, dtype: str, bias: int = 0) -> list[Operator]:
    """Attention in three operations, whose scores are written and read back."""
    size = dtype_bytes(dtype)
    tokens = heads.batch * heads.head_dim
    q = tokens * heads.queries * heads.num_heads
    k = tokens * heads.keys * heads.num_kv_heads
    scores = heads.batch * heads.num_heads * heads.queries * heads.keys
    flops = heads.score_flops
    num, m, n, k_dim = heads.batch * heads.num_heads, heads.queries, heads.keys, heads.head_dim
    return [
        _product(f"{name}.scores", "attention", (num, m, n, k_dim), flops, (q, k, scores), size),
        elementwise(f"{name}.softmax", "softmax", scores, dtype, reads=1, extra=bias),
        _product(f"{name}.values", "attention", (num, m, k_dim, n), flops, (scores, k, q), size),
    ]


def position_scores(name: str, heads: Heads, dtype: str) -> list[Operator]:
    """Queries by keys of positions, which samples share, shifted and added to the scores.

    Row i of the product begins with the distances of the first query: a column of zeros is put
    before it, and what comes is read with one column less (Dai et al. 2019, appendix B).
    """
    q = heads.batch * heads.queries * heads.num_heads * heads.head_dim
    scores = heads.batch * heads.num_heads * heads.queries * heads.keys
    product = heads.num_heads, heads.batch * heads.queries, heads.keys, heads.head_dim
    elements = (q, heads.num_heads * heads.keys * heads.head_dim, scores)
    sizes = (product, heads.score_flops, elements, dtype_bytes(dtype))
    shift = elementwise(f"{name}.shift", "elementwise", scores, dtype, reads=2)
    return [_product(f"{name}.positions", "attention", *sizes), shift]


def _product(
    name: str, kind: str, product: Product, flops: int, elements: tuple[int, int, int], size: int
) -> Operator:
    """left·right = out, and backward the gradients of both; a weight's lies as the weight does."""
    first, right, out = elements
    num, m, n, k = product
    of_right = (num, n, k, m) if kind == "matmul" else (num, k, n, m)
    return Operator(
        name=name,
        kind=kind,
        forward=Cost(
            products=(product,),
            flops=flops,
            read_bytes=(first + right) * size,
            write_bytes=out * size,
        ),
        backward=Cost(
            products=((num, m, k, n), of_right),
            flops=2 * flops,
            read_bytes=(2 * out + first + right) * size,  # the result's gradient for each of both
            write_bytes=(first + right) * size,
        ),
    )


def elementwise(
    name: str, kind: str, elements: int, dtype: str, *, reads: int, extra: int = 0
) -> Operator:
    """Return one result from ``reads`` arrays of as many elements.

    ``extra`` elements are read besides.

    Backward reads the result's gradient and the inputs, and writes each input's gradient.
    """
    size = dtype_bytes(dtype)
    return Operator(
        name=name,
        kind=kind,
        forward=Cost(read_bytes=(reads * elements + extra) * size, write_bytes=elements * size),
        backward=Cost(
            read_bytes=(elements + reads * elements) * size,
            write_bytes=(reads * elements + extra) * size,
        ),
    )


def state_kernels(name: str, rows: Any, wide: Any, deep: int) -> Operator:
    """Kernels of a layer that keeps a state instead of keys, beside its projections.

    ``name``: one of STATE_BYTES; ``rows``: tokens; ``wide``: width of its values; ``deep``:
    elements of a key.  Rows and wide are numbers, or arrays over layouts.  All of the kernels wait
    for memory.

    FLOPs are those of the recurrence, 2 · wide · deep for each product with the state: a key times
    a value is added, a query reads (Mamba-2, Dao and Gu 2024, arXiv 2405.21060, section 2); the
    delta rule first reads what the key has (Yang et al. 2024, arXiv 2412.06464, equation 10).  What
    kernels compute within chunks instead is theirs.
    """
    flops = 2 * STATE_PRODUCTS[name] * rows * wide * deep
    # Half is read and half written, in ten-thousandths of a byte: integers, also in arrays.
    halves = (round(5_000 * _TRITON * num_bytes) for num_bytes in STATE_BYTES[name])
    products = (rows * wide * half // 10_000 for half in halves)
    forward, backward = (
        Cost(flops=flops * times, read_bytes=half, write_bytes=half)
        for times, half in enumerate(products, 1)
    )
    return Operator(name=f"attention.{name}", kind=name, forward=forward, backward=backward)


# Mamba-2 by mamba_ssm's kernels (ssd_combined.py, with chunks as long as a state is deep, groups
# that have a quarter of the values' width): forward convolution 6, states of chunks in fp32 6.5,
# their passing 6, C·B in fp32 2, scan 7.5, gated norm 6; backward all but the scan and norm once
# more 22.5, gradients of the norm 12, of states 6.5, their passing 12, of x 9.5, of B, C and C·B
# 15, of decays 5, the products of the last three 3, convolution 9.  The gated delta rule by
# flash-linear-attention's (gated_delta_rule/chunk.py, chunks of 64, heads of 128, queries and keys
# repeated for each head of values): forward convolution 8, repeating 6, norms of queries and keys
# 8, keys by keys 4, the triangle's inverse 3, w and u 9, states 12, results 12, gated norm 6;
# backward w, u and states once more 21, norm 10, values within a chunk 8, states 16, queries and
# keys 24, w and u 13, sums 6, norms 12, repeating 6, convolution 12.  Lightning attention by its
# own (Qin et al. 2024, arXiv 2401.04658, algorithms 1 and 2, blocks in turn with the state on the
# chip) in MiniMax-01's layer: forward activations of queries, keys and values 12, attention 8, norm
# 4, sigmoid 4, gating 6; backward gating 10, sigmoid 6, norm 6, within blocks 14, between them 20,
# activations 18.
STATE_BYTES = {"ssd": (34.0, 94.5), "delta": (68.0, 128.0), "lightning": (34.0, 74.0)}
"""Bytes an element of the values that kernels of a recurrent layer read and write, each direction:
counted by hand from the tensors that each of them takes and makes."""
STATE_PRODUCTS = {"ssd": 2, "delta": 3, "lightning": 2}
"""Products of a token with the state, each way."""
_TRITON = 1.35
"""Factor by which such kernels take longer than these bytes at a stream's rate: 8 x 8192 tokens
with 64 heads of 128 take 6.0 ms forward on a B200 (flashinfer's pull request 4078), 48 of the 68
bytes."""


def residual(name: str, elements: int, dtype: str) -> Operator:
    """x + f(x); backward adds the two gradients that meet where x forks."""
    size = dtype_bytes(dtype)
    add = Cost(read_bytes=2 * elements * size, write_bytes=elements * size)
    return Operator(name=name, kind="elementwise", forward=add, backward=add)


def norm(name: str, rows: int, wide: int, dtype: str) -> Operator:
    """LayerNorm or RMSNorm; its own few weights are not counted."""
    return elementwise(name, "norm", rows * wide, dtype, reads=1)


def embedding(name: str, rows: int, wide: int, dtype: str) -> Operator:
    """Return rows looked up; backward adds each row's gradient into the table's."""
    size = dtype_bytes(dtype)
    ids = 8 * rows
    return Operator(
        name=name,
        kind="embedding",
        forward=Cost(read_bytes=rows * wide * size + ids, write_bytes=rows * wide * size),
        backward=Cost(read_bytes=2 * rows * wide * size + ids, write_bytes=rows * wide * size),
    )


def cross_entropy(rows: int, vocab: int, dtype: str) -> Operator:
    """Softmax of the logits against one target each; backward writes the logits' gradient."""
    size = dtype_bytes(dtype)
    logits, targets = rows * vocab * size, 8 * rows
    return Operator(
        name="cross_entropy",
        kind="cross_entropy",
        forward=Cost(read_bytes=logits + targets, write_bytes=4 * rows),
        backward=Cost(read_bytes=logits + targets + 4 * rows, write_bytes=logits),
    )
