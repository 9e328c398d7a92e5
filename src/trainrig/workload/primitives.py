"""What is run: shapes to FLOPs and bytes, one formula each for the whole program.

FLOP convention: a multiply and an add are two.  Bytes are the ones a perfect
cache would move: each operand read once, each result written once; what the
hardware moves besides (write-allocate reads, spilled tiles) is not counted, so
that a rate in counted bytes/s never exceeds the real one.

Sources: the 2mkn convention is that of BLAS and of every data sheet's tensor
peak; STREAM (McCalpin) counts its kernels' bytes the same way.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainrig.errors import UsageError

DTYPE_BYTES = {
    "fp64": 8,
    "fp32": 4,
    "tf32": 4,
    "bf16": 2,
    "fp16": 2,
    "fp8": 1,
    "int8": 1,
}

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

# Host and device links are rated by what crosses them: once, not read plus written.
_CROSSING = frozenset({"h2d", "d2h"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What one call of an operation costs."""

    flops: int
    num_bytes: int


def dtype_bytes(dtype: str) -> int:
    """Bytes of one element in memory; tf32 is stored as fp32.  UsageError if unknown."""
    if dtype not in DTYPE_BYTES:
        raise UsageError(f"unknown dtype {dtype!r}", "one of: " + ", ".join(DTYPE_BYTES))
    return DTYPE_BYTES[dtype]


def output_bytes(dtype: str) -> int:
    """Bytes of one element of a matmul's result: int8 accumulates in int32, fp8 yields bf16."""
    return {"int8": 4, "fp8": 2}.get(dtype, dtype_bytes(dtype))


def matmul(m: int, k: int, n: int, dtype: str) -> Work:
    """(m,k)·(k,n): 2mkn FLOPs; both operands read once, the result written once."""
    operands = (m * k + k * n) * dtype_bytes(dtype)
    return Work(flops=2 * m * k * n, num_bytes=operands + m * n * output_bytes(dtype))


def vector(op: str, num_elements: int, dtype: str) -> Work:
    """An elementwise operation on ``num_elements``; see VECTOR_OPS for what is counted."""
    if op not in VECTOR_OPS:
        raise UsageError(f"unknown vector operation {op!r}", "one of: " + ", ".join(VECTOR_OPS))
    flops, reads, writes = VECTOR_OPS[op]
    num_bytes = (reads + writes) * num_elements * dtype_bytes(dtype)
    return Work(flops=flops * num_elements, num_bytes=num_bytes)


def copy(direction: str, num_bytes: int) -> Work:
    """One pass over arrays of ``num_bytes`` each; what crosses a link is counted once."""
    if direction not in COPY_DIRECTIONS:
        raise UsageError(
            f"unknown copy direction {direction!r}", "one of: " + ", ".join(COPY_DIRECTIONS)
        )
    reads, writes = COPY_DIRECTIONS[direction]
    passes = 1 if direction in _CROSSING else reads + writes
    flops = 2 * (num_bytes // 8) if direction == "triad" else 0
    return Work(flops=flops, num_bytes=passes * num_bytes)
