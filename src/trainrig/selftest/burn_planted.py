"""Faults that a burn's checks must find, put in below them, and the checks at small sizes.

The checks know nothing of it: while `inject` is entered, every operation of torch passes through a
dispatch mode that flips one bit, once or for good, in what an operation reads or has written, or
keeps cells of a buffer from changing.  A healthy twin runs in the same mode with no fault in it.

    for fault in FAULTS:
        for variant in fault.variants:
            with inject(fault, variant):
                assert observe(fault)            # what the check says
        with inject(fault, None):
            assert not observe(fault)
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trainrig.measure.burn import make_check, reset_torch
from trainrig.selftest.registry import plant_seed

if TYPE_CHECKING:
    import torch

_SIZE = 64
_MATMUL_BITS = {"bf16": 16, "fp16": 16, "fp32": 32, "fp64": 64}
_MANTISSA = {"bf16": 7, "fp16": 10, "fp32": 23, "fp64": 52}
NAN, NEGATIVE_ZERO = "NaN", "-0"


def bit_name(dtype: str, bit: int) -> str:
    """Return ``mantissa 0``, ``exponent 3``, ``sign``."""
    mantissa = _MANTISSA[dtype]
    if bit < mantissa:
        return f"mantissa {bit}"
    return "sign" if bit == _MATMUL_BITS[dtype] - 1 else f"exponent {bit - mantissa}"


@dataclass(frozen=True, slots=True, kw_only=True)
class BurnFault:
    """Kind of fault, and the check that must find it."""

    name: str
    """``a flipped bit in C``."""
    check: str
    """``burn.matmul``."""
    phase: Mapping[str, Any]
    """Phase of a burn at small sizes: mode, dtype, shape."""
    variants: tuple[str, ...] = ("",)
    """Names of bits; each must be found."""
    where: str = ""
    """Operation of torch and its tensor that is spoiled: ``mm.out``."""
    finds: str = "wrong-answer"
    """The finding that it becomes."""
    slices: int = 2
    """Slices of work after which the fault must have been found."""


def _matmul(where: str, name: str, dtype: str, *more: str) -> BurnFault:
    bits = tuple(bit_name(dtype, bit) for bit in range(_MATMUL_BITS[dtype]))
    return BurnFault(
        name=f"a flipped bit in {name}, {dtype}",
        check="burn.matmul",
        phase={"mode": "matmul", "dtype": dtype, "seconds": 0.0, "shape": [_SIZE] * 3},
        variants=(*bits, *more),
        where=where,
    )


_STEP = {"mode": "step", "dtype": "fp32", "seconds": 0.0, "sizes": "tiny"}
_MEMORY = {
    "mode": "memory",
    "dtype": None,
    "seconds": 0.0,
    "memory_bytes": 1 << 16,
    "chunk": 1 << 14,
}
_CORES = {"mode": "cpu", "dtype": None, "seconds": 0.0, "size": 32}

FAULTS: tuple[BurnFault, ...] = (
    _matmul("mm.out", "C", "bf16", NAN, NEGATIVE_ZERO),
    _matmul("mm.out", "C", "fp32", NAN, NEGATIVE_ZERO),
    _matmul("mm.out", "C", "fp64", NAN, NEGATIVE_ZERO),
    _matmul("mm.left", "A", "bf16", NAN, NEGATIVE_ZERO),
    _matmul("mm.left", "A", "fp32", NAN, NEGATIVE_ZERO),
    _matmul("mm.right", "B", "bf16", NAN, NEGATIVE_ZERO),
    _matmul("mm.right", "B", "fp32", NAN, NEGATIVE_ZERO),
    BurnFault(
        name="a first product that is wrong, and all others with it",
        check="burn.matmul",
        phase={"mode": "matmul", "dtype": "fp32", "seconds": 0.0, "shape": [_SIZE] * 3},
        variants=("exponent 1", "mantissa 22", "sign"),
        where="mm.every",
    ),
    BurnFault(
        name="a flipped bit in an intermediate of a step",
        check="burn.step",
        phase=_STEP,
        variants=tuple(bit_name("fp32", bit) for bit in range(_MATMUL_BITS["fp32"])),
        where="silu.out",
    ),
    BurnFault(
        name="a flipped bit in a gradient of a step",
        check="burn.step",
        phase=_STEP,
        variants=("mantissa 0", "exponent 2", "sign"),
        where="silu_backward.out",
    ),
    BurnFault(
        name="a flipped bit in a weight after the optimizer",
        check="burn.step",
        phase=_STEP,
        variants=("mantissa 0", "exponent 2", "sign"),
        where="addcdiv_.out",
    ),
    BurnFault(
        name="a cell of memory that sticks",
        check="burn.memory",
        phase=_MEMORY,
        variants=("at 0", "at 1"),
        where="copy_.stuck",
        slices=64,
    ),
    BurnFault(
        name="two addresses that are one cell",
        check="burn.memory",
        phase=_MEMORY,
        where="copy_.alias",
    ),
    BurnFault(
        name="a processor that computes otherwise",
        check="burn.cpu",
        phase=_CORES,
        variants=("mantissa 0", "exponent 2", "sign"),
        where="exp.out",
    ),
)
"""Faults of a burn that `trainrig selftest` plants."""


def faults() -> tuple[BurnFault, ...]:
    """Return every fault that a burn's checks must find."""
    return FAULTS


def observe(fault: BurnFault, device: str = "cpu") -> list[str]:
    """Return the errors that the fault's check reports at small sizes."""
    import torch

    errors: list[str] = []
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # sizes are so small that a team of threads only waits
    try:
        check = make_check(fault.phase, device)
        for _ in range(fault.slices):
            errors += check.run(0.0).errors
        errors += check.finish().errors
    finally:
        torch.set_num_threads(threads)
        reset_torch()
    return errors


@dataclass(slots=True)
class _Fault:
    """Fault at work: the operation and call that it spoils, and how."""

    operation: str
    how: str
    bit: int | None
    special: str = ""
    share: float = 0.0
    """Where in the tensor: 0 is its first element, below 1."""
    calls: int = 0
    pairs: dict[int, torch.Tensor] = field(default_factory=dict)

    SPOILED_CALL = 2
    """The first call makes what all others are compared with."""

    def before(self, arguments: tuple[Any, ...]) -> None:
        """Spoil an operand, for good."""
        if self.how in ("left", "right") and self.calls == self.SPOILED_CALL:
            self._flip(arguments[0 if self.how == "left" else 1])

    def after(self, result: Any, arguments: tuple[Any, ...]) -> None:
        """Spoil a result."""
        number, self.calls = self.calls, self.calls + 1
        if self.how == "every" or (self.how == "out" and number == self.SPOILED_CALL):
            self._flip(result)
        elif self.how in ("stuck", "alias"):
            self._hold(arguments[0])

    def _flip(self, tensor: torch.Tensor) -> None:
        import torch

        values = tensor.detach()
        flat = values.view(-1) if values.is_contiguous() else values.t().reshape(-1)
        place = int(self.share * flat.numel())
        if self.special:
            flat[place] = float("nan") if self.special == NAN else -0.0
            return
        words = {2: torch.int16, 4: torch.int32, 8: torch.int64}[flat.element_size()]
        bit = self.bit if self.bit is not None else 0
        bit_word = 1 << bit
        top = 8 * flat.element_size() - 1
        flat.view(words)[place] ^= bit_word - (1 << top + 1) if bit == top else bit_word

    def _hold(self, buffer: torch.Tensor) -> None:
        """A cell that does not take what is written; or the first cell of all is also the last."""
        flat = buffer.view(-1)
        if self.how == "stuck":
            place = int(self.share * flat.numel())
            flat[place] = flat[place] | (1 << 9) if self.bit else flat[place] & ~(1 << 9)
        elif flat.numel() > 64:
            flat[0] = flat[64]


def _fault_of(fault: BurnFault, variant: str, share: float) -> _Fault:
    operation, _, how = fault.where.rpartition(".")
    dtype = str(fault.phase["dtype"] or ("fp32" if "exp" in operation else "fp64"))
    if variant in (NAN, NEGATIVE_ZERO):
        return _Fault(operation, how, None, special=variant, share=share)
    if how == "stuck":
        return _Fault(operation, how, int(variant == "at 1"), share=share)
    names = {bit_name(dtype, bit): bit for bit in range(_MATMUL_BITS[dtype])}
    return _Fault(operation, how, names.get(variant), share=share)


@contextmanager
def inject(fault: BurnFault, variant: str | None, share: float | None = None) -> Iterator[None]:
    """Put a fault below everything that torch does.

    Threads that begin inside have it too: the check of processors makes one for each.

    Args:
        fault: What is planted.
        variant: The bit, by name; None for the same scene without the fault.
        share: Where in the tensor, from 0 to below 1; None for a place that the seed decides.
    """
    if share is None:
        share = random.Random(f"{plant_seed()} {fault.name} {variant}").random()
    active = None if variant is None else _fault_of(fault, variant, share)
    with _mode(active), _threads_with(active):
        yield


def _mode(active: _Fault | None) -> Any:
    from torch.utils._python_dispatch import TorchDispatchMode

    def dispatch(_: Any, func: Any, __: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        name = func._schema.name.partition("::")[2]
        matching_fault = active if active is not None and name == active.operation else None
        if matching_fault is not None:
            matching_fault.before(args)
        result = func(*args, **(kwargs or {}))
        if matching_fault is not None:
            matching_fault.after(result, args)
        return result

    return type("Below", (TorchDispatchMode,), {"__torch_dispatch__": dispatch})()


@contextmanager
def _threads_with(active: _Fault | None) -> Iterator[None]:
    """A dispatch mode is one thread's: threads that are made meanwhile enter it as well."""
    import threading

    thread: Any = threading.Thread
    original = thread.run

    def run(self: threading.Thread) -> None:
        with _mode(active):
            original(self)

    thread.run = run
    try:
        yield
    finally:
        thread.run = original
