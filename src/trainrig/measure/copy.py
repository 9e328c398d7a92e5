"""The copies and loops that `benchmarks.copy` times, and the check of what they left.

Answers: arrays hold whole numbers whose sums are exact in fp64 in any order, so
every comparison is for equality.  Sources change and targets are poisoned with
NaN between checks; what the timed calls left is checked before that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainrig.benchmarks.copy import HOST_LOOPS, LINKS, arrays_on_device
from trainrig.benchmarks.spec import CHECK_ELEMENTS, size_in
from trainrig.measure import buffers
from trainrig.measure.timing import Prepared, Unsupported
from trainrig.record import Case

if TYPE_CHECKING:
    import torch

_MAX_VALUE = 1 << 19
FACTOR = 3.0
_MAX_LINK_BYTES = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrays:
    """The arrays of a case, each (sets, elements) of fp64."""

    sources: tuple[torch.Tensor, ...]
    target: torch.Tensor
    """(sets, 1) for read: its sums."""
    block: torch.Tensor
    """(elements of the repeated block,) on the host: what the sources were filled with."""


def prepare(case: Case, device: str) -> Prepared:
    """Allocate the arrays of a direction; return the call to time and its check."""
    import torch

    direction = str(case["direction"])
    if (direction in HOST_LOOPS) != (device == "cpu"):
        side = "the host" if direction in HOST_LOOPS else "a GPU"
        raise Unsupported(f"{direction} is for {side}, not for {device}")
    arrays = _allocate(torch, case, device)
    count = arrays.target.shape[0]
    written = [0.0] * count
    calls = [_operation(torch, direction, arrays, row, written) for row in range(count)]
    return Prepared(
        call=buffers.rotation(calls),
        wrong=_checker(torch, direction, arrays, calls, written),
        conditions=buffers.conditions(case, _cold_side(case, device)),
    )


def _cold_side(case: Case, device: str) -> str:
    return "cpu" if case["direction"] in LINKS else device


def _allocate(torch: Any, case: Case, device: str) -> Arrays:
    """Sources filled, target touched; on which side each lies is the direction's meaning."""
    direction, size = str(case["direction"]), size_in(case, "bytes")
    num_sources = {"write": 0, "triad": 2}.get(direction, 1)
    # A link is cold when its host side is; device memory is behind the link either way.  A link is
    # slower than any cache, and pinned memory is scarce: some sets do where caches are huge.
    is_link = direction in LINKS
    max_bytes = max(_MAX_LINK_BYTES, size) if is_link else None
    count = buffers.num_sets(
        case, arrays_on_device(case) * size, _cold_side(case, device), max_bytes
    )
    pinned = case["memory"] == "pinned"

    def make(side: str, elements: int = size // 8) -> Any:
        on_host = pinned and side == "cpu"
        return buffers.rows(torch, count, elements, torch.float64, side, pinned=on_host)

    generator = torch.Generator().manual_seed(size)
    block = torch.randint(
        _MAX_VALUE, (min(count * size // 8, buffers.BLOCK_ELEMENTS),), generator=generator
    ).double()
    sources = tuple(make("cpu" if direction == "h2d" else device) for _ in range(num_sources))
    for source in sources:
        buffers.fill(source, block.to(source.device))
    if direction == "read":
        target = make("cpu", 1)
    else:
        target = make("cpu" if direction == "d2h" else device)
    return Arrays(sources=sources, target=target, block=block)


def _operation(
    torch: Any, direction: str, arrays: Arrays, row: int, written: list[float]
) -> Callable[[], object]:
    """Return the operation to time on one set of arrays."""
    target = arrays.target[row]
    sources = [source[row] for source in arrays.sources]
    if direction == "write":

        def write() -> None:  # another value each time: a write that was left out is seen
            written[row] += 1.0
            target.fill_(written[row])

        return write
    if direction == "read":
        (source,), total = sources, target[0]
        return lambda: torch.sum(source, dim=0, out=total)
    if direction == "triad":
        first, second = sources
        return lambda: torch.add(first, second, alpha=FACTOR, out=target)
    (source,) = sources
    return lambda: target.copy_(source, non_blocking=True)


def _checker(
    torch: Any,
    direction: str,
    arrays: Arrays,
    calls: Sequence[Callable[[], object]],
    written: list[float],
) -> Callable[[], str | None]:
    """Check what earlier calls left; then change sources, poison targets, run all and check."""
    shift = 0
    arrays.target.fill_(torch.nan)

    def check(row: int) -> str | None:
        if direction == "write":
            return wrong_write(arrays.target[row], written[row])
        if direction == "read":
            return wrong_sum(arrays, row, shift)
        return wrong_copy(arrays.target[row], [source[row] for source in arrays.sources])

    def wrong() -> str | None:
        nonlocal shift
        _wait(torch, arrays)
        error = _first(check, buffers.written_rows(arrays.target))
        if error is not None:
            return error
        shift += 1
        for source in arrays.sources:
            source.add_(1.0)
        arrays.target.fill_(torch.nan)
        for call in calls:
            call()
        _wait(torch, arrays)
        error = _first(check, range(len(calls)))
        arrays.target.fill_(torch.nan)
        return error

    return wrong


def _first(check: Callable[[int], str | None], rows: Sequence[int]) -> str | None:
    return next((error for error in map(check, rows) if error is not None), None)


def _wait(torch: Any, arrays: Arrays) -> None:
    """Wait until asynchronous copies have arrived."""
    if any(array.is_cuda for array in (arrays.target, *arrays.sources)):
        torch.cuda.synchronize()


def wrong_write(target: torch.Tensor, value: float) -> str | None:
    """Return what is wrong with a row that should hold ``value`` everywhere, or None."""
    bad = int((target != value).sum())
    return f"{bad} elements of the written array are not what was written" if bad else None


def wrong_sum(arrays: Arrays, row: int, shift: int) -> str | None:
    """Return what is wrong with the sum of a row, or None.

    The exact sum follows from the block alone, without the array that was read: a
    row starts where the one before it ended in the repeated block.
    """
    size = arrays.sources[0].shape[1]
    ahead = _block_sum(arrays.block, (row + 1) * size) - _block_sum(arrays.block, row * size)
    exact = ahead + shift * size
    total = float(arrays.target[row, 0])
    return None if total == exact else f"the sum of what was read is {total}, not {exact}"


def _block_sum(block: torch.Tensor, elements: int) -> int:
    """Sum of the first ``elements`` of the endlessly repeated block."""
    num_blocks, remainder = divmod(elements, int(block.numel()))
    return num_blocks * int(block.sum()) + int(block[:remainder].sum())


def wrong_copy(target: torch.Tensor, sources: Sequence[torch.Tensor]) -> str | None:
    """Say what is wrong with a row that should equal its source, or first + 3·second, or None."""
    bad = 0
    for start in range(0, target.numel(), CHECK_ELEMENTS):
        piece = slice(start, start + CHECK_ELEMENTS)
        inputs = [source[piece].to(target.device) for source in sources]
        expected = inputs[0] if len(inputs) == 1 else inputs[0] + inputs[1] * FACTOR
        if not target[piece].equal(expected):  # counting takes several times as long
            bad += int((target[piece] != expected).sum())
    return f"{bad} of {target.numel()} elements arrived wrong" if bad else None
