"""The elementwise operations that `benchmarks.vector` times, and the check of their answers.

The answer is checked against fp64: scale and add are correctly rounded single
operations, so they must agree exactly after rounding to the dtype; gelu within
four units of rounding of its argument.  Every output is poisoned with NaN
before it is timed, and checked after: what no call wrote is seen.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from trainrig import workload
from trainrig.benchmarks.spec import size_in
from trainrig.benchmarks.vector import BENCHMARK
from trainrig.measure import EPS, buffers, torch_dtype
from trainrig.measure.timing import Prepared
from trainrig.record import Case

if TYPE_CHECKING:
    import torch

# Exact in every dtype; not a power of two, so that a product must be rounded.
FACTOR = 1.25
# gelu: rounding of the output and of tanh's argument, as a share of |x| (|gelu(x)| ≤ |x|),
# and the smallest step near zero (fp16 has subnormals of 2^-24).
_TINY = {"fp64": 1e-300, "fp32": 1e-37, "bf16": 1e-37, "fp16": 2.0**-24}


def prepare(case: Case, device: str) -> Prepared:
    """Buffers on the device, the operation to time, and its check."""
    import torch

    op, dtype, size = str(case["op"]), str(case["dtype"]), size_in(case, "num_elements")
    count = buffers.num_sets(case, BENCHMARK.work(case).num_bytes, device)
    kind = torch_dtype(dtype)
    generator = torch.Generator().manual_seed(size * 31 + len(dtype))
    inputs = []
    for _ in range(workload.VECTOR_OPS[op][1]):
        block = torch.randn(min(size * count, buffers.BLOCK_ELEMENTS), generator=generator)
        inputs.append(buffers.rows(torch, count, size, kind, device))
        buffers.fill(inputs[-1], block.to(device, kind))
    output = buffers.rows(torch, count, size, kind, device)
    calls = [
        _operation(torch, op, [array[row] for array in inputs], output[row]) for row in range(count)
    ]
    return Prepared(
        call=buffers.rotation(calls),
        wrong=_checker(torch, op, dtype, inputs, output, calls),
        conditions=buffers.conditions(case, device),
    )


def _operation(
    torch: Any, op: str, inputs: list[torch.Tensor], out: torch.Tensor
) -> Callable[[], object]:
    """Return the operation to time."""
    if op == "add":
        x, y = inputs
        return lambda: torch.add(x, y, out=out)
    (x,) = inputs
    if op == "scale":
        return lambda: torch.mul(x, FACTOR, out=out)
    gelu = torch._C._nn.gelu  # torch.nn.functional.gelu, which documents no `out`
    return lambda: gelu(x, approximate="tanh", out=out)


def _checker(
    torch: Any,
    op: str,
    dtype: str,
    inputs: list[torch.Tensor],
    output: torch.Tensor,
    calls: list[Callable[[], object]],
) -> Callable[[], str | None]:
    """Check what earlier calls left, then run every set once more on poisoned outputs."""
    output.fill_(torch.nan)

    def wrong() -> str | None:
        error = wrong_answer(op, dtype, inputs, output, buffers.written_rows(output))
        if error is None:
            output.fill_(torch.nan)
            for call in calls:
                call()
            error = wrong_answer(op, dtype, inputs, output)
        output.fill_(torch.nan)
        return error

    return wrong


def wrong_answer(
    op: str,
    dtype: str,
    inputs: list[torch.Tensor],
    output: torch.Tensor,
    rows: list[int] | None = None,
) -> str | None:
    """Return what is wrong with ``output`` (count, n) = op(``inputs``) in ``rows``, or None.

    Looks at every element of up to 4 Mi, else at a strided sample with both ends; at all rows
    where none are named.
    """
    rows = list(range(output.shape[0])) if rows is None else rows
    if not rows:
        return None
    for piece in buffers.pieces((len(rows), output.shape[1])):
        wide = [array[rows, piece].double() for array in inputs]
        expected = reference(op, wide).to(output.dtype).double()
        error = (output[rows, piece].double() - expected).abs()
        allowed = 0.0 if op != "gelu" else wide[0].abs() * (4.0 * EPS[dtype]) + _TINY[dtype]
        bad = ~(error <= allowed)  # NaN compares false: it is bad
        if bool(bad.any()):
            row, column = (int(i) for i in bad.nonzero()[0])
            index = column * (piece.step or 1) + (piece.start or 0)
            return (
                f"{int(bad.sum())} wrong elements; the first one, {index}, is "
                f"{float(output[rows[row], index]):.6g} and should be "
                f"{float(expected[row, column]):.6g}"
            )
    return None


def reference(op: str, inputs: list[torch.Tensor]) -> torch.Tensor:
    """Return the operation in fp64, written out by its definition.

    gelu(x) = x/2 · (1 + tanh(√(2/π) · (x + 0.044715·x³))), Hendrycks and Gimpel 2016.
    """
    x = inputs[0]
    if op == "scale":
        return x * FACTOR
    if op == "add":
        return x + inputs[1]
    inner = 0.7978845608028654 * (x + 0.044715 * x * x * x)
    return 0.5 * x * (1.0 + inner.tanh())
