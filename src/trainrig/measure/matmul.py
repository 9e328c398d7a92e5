"""The products that `benchmarks.matmul` times, and the check of their answers.

The answer is checked by Freivalds' method: for a random ±1 vector x, C·x must
equal A·(B·x) in fp64 within what rounding explains.  It costs O(n²), sees every
element of C, and misses a wrong row with probability at most one half; four
vectors bring that to 1/16 a row, and a fault in hardware rarely spoils one row.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from trainrig.benchmarks.matmul import shape
from trainrig.measure import EPS, torch_dtype
from trainrig.measure.timing import Prepared, Unsupported, unsupported_as
from trainrig.record import Case

if TYPE_CHECKING:
    import torch

_NUM_PROBES = 4
_SPOILED = {"int8": -(2**31)}
_MARGIN = 4.0

# Rounding of one element of the result, and of one step of its accumulation, as shares.
# fp8: Hopper's tensor cores keep about 14 bits while accumulating (DeepSeek-V3 report, 3.3.2).
_OUTPUT_EPS = {**EPS, "int8": 0.0, "fp8": 2.0**-8}
_ACCUMULATE_EPS = {"fp64": 2.0**-52, "int8": 0.0, "fp8": 2.0**-13}


def prepare(case: Case, device: str) -> Prepared:
    """Operands on the device, the product to time, and its check."""
    import torch

    dtype = str(case["dtype"])
    if dtype == "tf32" and device == "cpu":
        raise Unsupported("tf32 is a mode of NVIDIA's tensor cores; this is a CPU")
    torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
    m, k, n = shape(case)
    generator = torch.Generator(device=device).manual_seed(m * 31 + k * 7 + n)
    left, right = _operands(torch, dtype, (m, k, n), device, generator)
    multiply = _multiplier(torch, dtype, left, right)
    latest: list[torch.Tensor] = []

    def call() -> None:
        latest[:] = [multiply()]

    with unsupported_as(f"{dtype} matmul does not run here"):
        call()  # checked below, so that a slow case is not run once more

    def wrong() -> str | None:
        """Checks what the latest call left, and spoils it: a call that writes nothing is seen."""
        error = wrong_answer(left, right, latest[0], dtype, generator)
        latest[0].fill_(_SPOILED.get(dtype, math.nan))
        return error

    conditions = {"fast_accumulate": False} if dtype == "fp8" else {}
    return Prepared(call=call, wrong=wrong, conditions=conditions)


def _operands(
    torch: Any, dtype: str, mkn: tuple[int, int, int], device: str, generator: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Random operands: normal values (zeros would draw less power and clock higher).

    cuBLASLt's kernels for fp8 and int8 want the second one column-major.  Integers of a processor
    have seven bits: without VNNI it adds pairs of products of eight bits in 16, where they saturate
    (oneDNN's developer guide, Nuances of int8 Computations).
    """
    m, k, n = mkn
    if dtype == "int8":
        max_value = 64 if device == "cpu" else 128
        make = {"low": -max_value, "high": max_value, "device": device, "generator": generator}
        left = torch.randint(size=(m, k), dtype=torch.int8, **make)
        if device == "cpu":
            return left, torch.randint(size=(k, n), dtype=torch.int8, **make)
        return left, torch.randint(size=(n, k), dtype=torch.int8, **make).t()
    kind = torch_dtype(dtype)
    left = torch.randn(m, k, dtype=kind, device=device, generator=generator)
    if dtype == "fp8":
        right = torch.randn(n, k, dtype=kind, device=device, generator=generator)
        narrow = _fp8(torch, device)
        return left.to(narrow), right.to(narrow).t()
    return left, torch.randn(k, n, dtype=kind, device=device, generator=generator)


def _fp8(torch: Any, device: str) -> Any:
    """e4m3; AMD's CDNA 3 (gfx942) has a kind of its own, without a negative zero."""
    properties = torch.cuda.get_device_properties(device) if device != "cpu" else None
    is_cdna3 = str(getattr(properties, "gcnArchName", "")).startswith("gfx94")
    return torch.float8_e4m3fnuz if is_cdna3 else torch.float8_e4m3fn


def _multiplier(torch: Any, dtype: str, left: torch.Tensor, right: torch.Tensor) -> Any:
    """Return the product to time; it writes into one output where torch supports that."""
    if dtype == "int8":
        return lambda: torch._int_mm(left, right)
    if dtype == "fp8":
        one = torch.ones((), device=left.device)
        return lambda: torch._scaled_mm(
            left, right, scale_a=one, scale_b=one, out_dtype=torch.bfloat16
        )
    out = torch.empty(left.shape[0], right.shape[1], dtype=left.dtype, device=left.device)
    return lambda: torch.matmul(left, right, out=out)


def wrong_answer(
    left: torch.Tensor,
    right: torch.Tensor,
    product: torch.Tensor,
    dtype: str,
    generator: torch.Generator | None = None,
) -> str | None:
    """Return what is wrong with ``product`` = ``left`` (m,k) · ``right`` (k,n), or None.

    An element's error is its output rounding plus √k steps of accumulation, each a
    share of the magnitude that random signs give it: |row of left| · |column of right|
    / √k.  The sum over a row of n such errors grows as √n; the fp64 check itself adds
    n·2^-52.  Four times that is allowed: rounding was seen to reach half of it, over
    shapes from 1 to 1024 and all dtypes of a CPU.
    """
    import torch

    k, n = right.shape
    signs = torch.randint(0, 2, (n, _NUM_PROBES), device=right.device, generator=generator)
    probes = signs.to(torch.float64) * 2.0 - 1.0
    wide = right.to(torch.float64)  # one wide copy at a time, see Benchmark.memory
    between, size = wide @ probes, wide.norm() / math.sqrt(n * k)
    wide = left.to(torch.float64)
    expected, magnitude = wide @ between, wide.norm(dim=1, keepdim=True) * size
    del wide
    exact = product.to(torch.float64)
    if not bool(torch.isfinite(exact).all()):
        return "the result holds NaN or infinity"
    error = (exact @ probes - expected).abs().amax(dim=1, keepdim=True)
    eps = _OUTPUT_EPS[dtype] + _ACCUMULATE_EPS.get(dtype, 2.0**-23) * math.sqrt(k)
    allowed = _MARGIN * (math.sqrt(n) * eps + n * 2.0**-52) * magnitude
    bad = error > allowed
    if not bool(bad.any()):
        return None
    row = int((error - allowed).argmax())
    return (
        f"{int(bad.sum())} of {left.shape[0]} rows of the product are wrong: the sum of row {row} "
        f"is off by {float(error[row]):.3g}, rounding explains {float(allowed[row]):.3g}"
    )
