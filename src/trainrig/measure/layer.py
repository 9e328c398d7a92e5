"""The layers that `benchmarks.layer` times, and the check of output and every gradient.

The reference is our block in plain operations (no fused kernel), in fp64 for fp32 and tf32 and in
fp32 for 16-bit types, on the same device.  A block treats each sequence by itself, so the batch
that is measured repeats two sequences: the reference computes those two, every element of the
output is compared, and a weight's gradient is the two's times the repetitions.  The check costs
what two sequences cost, at any batch.

Errors are compared by rows and by columns: the norm of a row's error, over what a row's norm is
on average.  Rounding is the same share of every row; a wrong weight, a head that is missing or a
step that is left out is not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from trainrig.benchmarks.layer import layer_shape, layer_tokens
from trainrig.measure import EPS, torch_dtype
from trainrig.measure.layer_blocks import Runnable, build, fresh_state
from trainrig.measure.timing import Prepared, Unsupported, unsupported_as
from trainrig.record import Case

if TYPE_CHECKING:
    import torch

_ROUNDINGS = {"fp32": 64.0, "tf32": 16.0, "bf16": 12.0, "fp16": 12.0}
"""Units of rounding that the error of a row or column may reach; seen: 17, -, 5.6 and 3.1."""
_FLOOR = 0.1
"""Gradients this much smaller than others of their kind are compared with those: a key's bias
has none at all but for rounding."""
_ROW_KINKS, _WHOLE_KINKS = 3.0, 4.0
"""relu has a kink: rounding moves a share eps of its inputs across it, and each is an error of its
own size.  A whole gradient is off by the root of eps, and of a few dozen tokens a single one that
moves shows in its row; in these units: seen up to 2.1 and 1.7."""


_TOKENS_SUMMED = 16.0
"""torch's norms add up a weight's gradient over the tokens in the narrow type itself on a CPU: it
is off by a rounding for each so many tokens; seen: one for 45 in bf16, for 157 in fp32."""


def prepare(case: Case, device: str) -> Prepared:
    """Prepare one pass with fresh gradients, and the check of its results."""
    if case["dtype"] == "tf32" and device == "cpu":
        raise Unsupported("tf32 is a mode of NVIDIA's tensor cores; this is a CPU")
    with unsupported_as(f"{case['dtype']} layers do not run here"):
        return _prepare(case, device)


def _prepare(case: Case, device: str) -> Prepared:
    import torch

    dtype, wide = torch_dtypes(str(case["dtype"]))
    torch.backends.cuda.matmul.allow_tf32 = False
    generator = torch.Generator(device=device).manual_seed(_seed(case))
    state = fresh_state(case, generator)
    distinct, times = repetition(case)
    sequences = _sequences(case, distinct, generator)
    backward = case["pass"] == "forward+backward"
    expected = _reference(case, state, sequences, wide, times if backward else 0)
    torch.backends.cuda.matmul.allow_tf32 = case["dtype"] == "tf32"
    x, memory, dy = (_repeated(tensor, times, dtype) for tensor in sequences)
    runnable = build(case, state, x, memory)
    del state, sequences
    latest: dict[str, torch.Tensor] = {}
    call = _caller(runnable, dy if backward else None, latest)
    call()

    def wrong() -> str | None:
        """Checks what the latest call left, and spoils it: a call that writes nothing is seen."""
        error = wrong_answer(case, expected, _by_our_names(runnable, latest))
        for tensor in latest.values():
            tensor.fill_(math.nan)
        return error

    return Prepared(call=call, wrong=wrong)


def torch_dtypes(name: str) -> tuple[Any, Any]:
    """Return the dtype that is computed in, and the reference's."""
    import torch

    dtype = torch_dtype(name)
    return dtype, torch.float32 if dtype.itemsize == 2 else torch.float64


def repetition(case: Case) -> tuple[int, int]:
    """Return the number of distinct sequences of a batch and how often each is repeated."""
    batch, _ = layer_tokens(case)
    distinct = 1 if batch % 2 else 2
    return distinct, batch // distinct


def _seed(case: Case) -> int:
    shape, _ = layer_shape(case)
    batch, seq = layer_tokens(case)
    return batch * 31 + seq * 7 + shape.hidden


def _sequences(case: Case, count: int, generator: Any) -> tuple[torch.Tensor, ...]:
    """Inputs, what cross-attention looks at, and the output's gradient: (count, T, C) each."""
    import torch

    shape, _ = layer_shape(case)
    _, seq = layer_tokens(case)
    wide_out = shape.ffn.width if str(case["layer"]).startswith("dense") else shape.hidden
    return tuple(
        torch.randn(count, seq, width, generator=generator, device=generator.device)
        for width in (shape.hidden, shape.hidden, wide_out)
    )


def _repeated(sequences: torch.Tensor, times: int, dtype: Any) -> torch.Tensor:
    """Return the batch in the case's dtype: the distinct sequences, repeated."""
    return sequences.to(dtype).repeat(times, 1, 1).requires_grad_()


def _caller(
    runnable: Runnable, dy: torch.Tensor | None, latest: dict[str, torch.Tensor]
) -> Callable[[], None]:
    """Return a call of one pass.  Backward makes new gradients: none are zeroed or accumulated."""
    import torch

    wanted = {**runnable.inputs, **runnable.weights}

    def call() -> None:
        latest.clear()  # the last pass's results are free before this one's are made
        y = runnable.run()
        latest["output"] = y.detach()
        if dy is not None:
            gradients = torch.autograd.grad(y, tuple(wanted.values()), dy)
            latest.update(zip(wanted, gradients, strict=True))

    return call


def _by_our_names(
    runnable: Runnable, latest: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    native = {name: latest[name] for name in runnable.weights if name in latest}
    foreign = {name: tensor for name, tensor in latest.items() if name not in native}
    return foreign | (runnable.native(native) if native else {})


def _reference(
    case: Case, state: dict[str, Any], sequences: tuple[torch.Tensor, ...], wide: Any, times: int
) -> dict[str, torch.Tensor]:
    """Reference by our block in plain operations; gradients where ``times`` is not 0."""

    dtype, _ = torch_dtypes(str(case["dtype"]))
    # What the narrow type can hold, so that rounding the operands is not counted as an error.
    x, memory, dy = (tensor.to(dtype).to(wide).requires_grad_() for tensor in sequences)
    rounded = {name: weight.to(dtype).to(wide) for name, weight in state.items()}
    plain_case = {**case, "code": "trainrig", "attention": "plain"}
    runnable = build(plain_case, rounded, x, memory)
    tensors: dict[str, torch.Tensor] = {}
    _caller(runnable, dy if times else None, tensors)()
    for name in tensors:
        if name in runnable.weights or name == "bias":
            tensors[name] = tensors[name] * times  # of so many equal sequences
    return tensors


def wrong_answer(
    case: Case, expected: Mapping[str, torch.Tensor], results: Mapping[str, torch.Tensor]
) -> str | None:
    """Return what is wrong with a pass's results, or None.

    ``found`` may hold more sequences than ``expected``: those repeat.
    """
    for name, right in expected.items():
        whole_error, row_error = _errors(right, results[name], _scale(name, expected))
        most_whole, most_row = _allowed(case, name, results[name])
        error, most = (
            (whole_error, most_whole) if not whole_error <= most_whole else (row_error, most_row)
        )
        if not error <= most:  # NaN is not
            subject = "the output" if name == "output" else f"the gradient of {name}"
            return f"{subject} is off by {error:.2g} of its size, rounding explains {most:.2g}"
    return None


def _allowed(case: Case, name: str, result: torch.Tensor) -> tuple[float, float]:
    """Return the allowed relative error of a whole tensor and of one of its rows."""
    dtype = str(case["dtype"])
    eps = EPS[dtype]
    rounding = _ROUNDINGS[dtype] * eps
    if result.ndim < 2 and result.device.type == "cpu":
        batch, seq = layer_tokens(case)
        rounding = max(rounding, batch * seq / _TOKENS_SUMMED * eps)
    if name == "output" or layer_shape(case)[0].ffn.activation != "relu":
        return rounding, rounding
    tokens = repetition(case)[0] * layer_tokens(case)[1]
    return (
        max(rounding, _WHOLE_KINKS * math.sqrt(eps)),
        max(rounding, _ROW_KINKS * math.sqrt(eps + 4.0 / tokens)),
    )


def _scale(name: str, expected: Mapping[str, torch.Tensor]) -> float:
    """Root mean square of a tensor, held above a share of that of others of its kind."""
    kind = expected[name].ndim
    others = [t for n, t in expected.items() if t.ndim == kind and n != "output"]
    floor = _FLOOR * max((_rms(tensor) for tensor in others), default=0.0)
    return max(_rms(expected[name]), floor if name != "output" else 0.0)


def _rms(tensor: torch.Tensor) -> float:
    return float(tensor.norm()) / math.sqrt(tensor.numel())


def _errors(right: torch.Tensor, result: torch.Tensor, scale: float) -> tuple[float, float]:
    """Return the RMS error of the whole tensor and of its worst row or column, over ``scale``.

    Looks at one repetition of the sequences at a time: a wide copy of all would not fit.
    """
    if right.ndim < 2:
        whole_error = _rms(result.to(right.dtype) - right) / scale
        return whole_error, whole_error
    wholes, rows = [], []
    for sequence in result.split(right.shape[0]):
        error = (sequence.to(right.dtype) - right).flatten(0, -2)
        wholes.append(_rms(error) / scale)
        for axis in (0, 1):
            norms = error.norm(dim=axis) / math.sqrt(error.shape[axis])
            rows.append(float(norms.max()) / scale)
    return _largest(wholes), _largest(rows)


def _largest(values: list[float]) -> float:
    """Return the largest; NaN if one is."""
    return math.nan if any(map(math.isnan, values)) else max(values)
