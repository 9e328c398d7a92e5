"""copy: moving memory, across the link to a device, within it, and on the host.

Definition: bytes over the median time of a call, on arrays of ``bytes`` each.
Links (per device): h2d and d2h are one asynchronous copy between host memory
(``pinned`` or ``pageable``) and the device; what crosses is counted once.
d2d copies within the device; read plus written bytes are counted.
Host loops (per node, fp64, all of torch's threads): read sums an array, write
fills it, copy is a = b, triad is a = b + 3·c.  Bytes are counted as STREAM does
(1, 1, 2 and 3 arrays).  A processor that reads a line before it overwrites it
(write-allocate) moves one array more in write, copy and triad than is counted,
so their rates can stay at 1/2, 2/3 and 3/4 of what the memory does.

Always ``cache: cold``: calls rotate through sets of arrays that together exceed
four times the last-level cache (`buffers`).

Answers: arrays hold whole numbers whose sums are exact in fp64 in any order, so
every comparison is for equality.  Sources change and targets are poisoned with
NaN between checks; what the timed calls left is checked before that.

Source: STREAM, J. D. McCalpin, https://www.cs.virginia.edu/stream/ref.html.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainrig import workload
from trainrig.errors import UsageError
from trainrig.measure import buffers
from trainrig.measure.family import Family, Metric, Prepared, Unsupported
from trainrig.record import Case

if TYPE_CHECKING:
    import torch

LINKS = ("h2d", "d2h")
HOST_LOOPS = ("read", "write", "copy", "triad")
DIRECTIONS = (*LINKS, "d2d", *HOST_LOOPS)
MEMORIES = {
    **dict.fromkeys(LINKS, ("pinned", "pageable")),
    "d2d": ("device",),
    **dict.fromkeys(HOST_LOOPS, ("host",)),
}
DEFAULT_BYTES = 1 << 27
# Sums of whole numbers below 2^20 stay exact in fp64 up to 2^33 elements of 8 bytes.
MAX_BYTES = 1 << 36
_MAX_VALUE = 1 << 19
_FIELDS = {"direction", "bytes", "memory", "cache"}
FACTOR = 3.0


def _check(case: Case) -> None:
    direction = str(case.get("direction"))
    if direction not in DIRECTIONS:
        raise UsageError(
            f"unknown copy direction {direction!r}", "one of: " + ", ".join(DIRECTIONS)
        )
    size = case.get("bytes")
    if not isinstance(size, int) or isinstance(size, bool) or not _is_size(size):
        raise UsageError(f"copy size {size!r}", f"a multiple of 8 bytes, from 8 to {MAX_BYTES}")
    if case.get("memory") not in MEMORIES[direction]:
        raise UsageError(
            f"{direction} has no memory {case.get('memory')!r}",
            "one of: " + ", ".join(MEMORIES[direction]),
        )
    if case.get("cache") != "cold":
        raise UsageError(f"copy is measured cold, not {case.get('cache')!r}")
    extra = set(case) - _FIELDS
    if extra:
        raise UsageError(f"copy has no case field {sorted(extra)[0]!r}")


def _is_size(size: int) -> bool:
    return 8 <= size <= MAX_BYTES and size % 8 == 0


def _size(case: Case) -> int:
    size = case["bytes"]
    assert isinstance(size, int)
    return size


def _work(case: Case) -> workload.Work:
    return workload.copy(str(case["direction"]), _size(case))


def _metrics(case: Case) -> tuple[Metric, ...]:
    amount = _work(case).num_bytes
    return (Metric(name="byte_rate", unit="B/s", amount=amount, formula="counted bytes / time"),)


def _memory(case: Case) -> int:
    """One set on the device that the case runs on; more where there is room (`buffers`)."""
    direction = str(case["direction"])
    arrays = 1 if direction in LINKS else sum(workload.COPY_DIRECTIONS[direction])
    return arrays * _size(case) + 4 * 8 * buffers.CHECK_ELEMENTS


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrays:
    """The arrays of a case, each (sets, elements) of fp64."""

    sources: tuple[torch.Tensor, ...]
    target: torch.Tensor
    """(sets, 1) for read: its sums."""
    block: torch.Tensor
    """(elements of the repeated block,) on the host: what the sources were filled with."""


def _prepare(case: Case, device: str) -> Prepared:
    import torch

    direction = str(case["direction"])
    if (direction in HOST_LOOPS) != (device == "cpu"):
        raise Unsupported(f"{direction} is for {_place(direction)}, not for {device}")
    arrays = _allocate(torch, case, device)
    count = arrays.target.shape[0]
    written = [0.0] * count
    calls = [_operation(torch, direction, arrays, row, written) for row in range(count)]
    return Prepared(
        call=buffers.rotation(calls), wrong=_checker(torch, direction, arrays, calls, written)
    )


def _place(direction: str) -> str:
    return "the host" if direction in HOST_LOOPS else "a GPU"


def _allocate(torch: Any, case: Case, device: str) -> Arrays:
    """Sources filled, target touched; on which side each lies is the direction's meaning."""
    direction, size = str(case["direction"]), _size(case)
    num_sources = {"write": 0, "triad": 2}.get(direction, 1)
    # A link is cold when its host side is; device memory is behind the link either way.
    side = "cpu" if direction in LINKS else device
    arrays_a_set = 1 if direction in LINKS else sum(workload.COPY_DIRECTIONS[direction])
    count = buffers.num_sets(case, arrays_a_set * size, side)
    pinned = case["memory"] == "pinned"

    def make(place: str, elements: int = size // 8) -> Any:
        on_host = pinned and place == "cpu"
        return buffers.rows(torch, count, elements, torch.float64, place, pinned=on_host)

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
    """The operation that is timed, on one set."""
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
        found = _first(check, [row for row in range(len(calls)) if _touched(arrays.target[row])])
        if found is not None:
            return found
        shift += 1
        for source in arrays.sources:
            source.add_(1.0)
        arrays.target.fill_(torch.nan)
        for call in calls:
            call()
        _wait(torch, arrays)
        found = _first(check, range(len(calls)))
        arrays.target.fill_(torch.nan)
        return found

    return wrong


def _first(check: Callable[[int], str | None], rows: Sequence[int]) -> str | None:
    return next((found for found in map(check, rows) if found is not None), None)


def _wait(torch: Any, arrays: Arrays) -> None:
    """Until asynchronous copies have arrived."""
    if any(array.is_cuda for array in (arrays.target, *arrays.sources)):
        torch.cuda.synchronize()


def _touched(target: torch.Tensor) -> bool:
    """Whether any call has written to a poisoned row since."""
    return not bool(target.isnan().all())


def wrong_write(target: torch.Tensor, value: float) -> str | None:
    """What is wrong with a row that should hold ``value`` everywhere, or None."""
    bad = int((target != value).sum())
    return f"{bad} elements of the written array are not what was written" if bad else None


def wrong_sum(arrays: Arrays, row: int, shift: int) -> str | None:
    """What is wrong with the sum of a row, or None.

    The exact sum follows from the block alone, without the array that was read: a
    row starts where the one before it ended in the repeated block.
    """
    size = arrays.sources[0].shape[1]
    ahead = _block_sum(arrays.block, (row + 1) * size) - _block_sum(arrays.block, row * size)
    exact = ahead + shift * size
    found = float(arrays.target[row, 0])
    return None if found == exact else f"the sum of what was read is {found}, not {exact}"


def _block_sum(block: torch.Tensor, elements: int) -> int:
    """Sum of the first ``elements`` of the endlessly repeated block."""
    whole, rest = divmod(elements, int(block.numel()))
    return whole * int(block.sum()) + int(block[:rest].sum())


def wrong_copy(target: torch.Tensor, sources: Sequence[torch.Tensor]) -> str | None:
    """What is wrong with a row that holds its source, or first + 3·second, or None."""
    bad = 0
    for start in range(0, target.numel(), buffers.CHECK_ELEMENTS):
        piece = slice(start, start + buffers.CHECK_ELEMENTS)
        parts = [source[piece].to(target.device) for source in sources]
        expected = parts[0] if len(parts) == 1 else parts[0] + parts[1] * FACTOR
        bad += int((target[piece] != expected).sum())
    return f"{bad} of {target.numel()} elements arrived wrong" if bad else None


FAMILY = Family(
    name="copy",
    version=1,
    check=_check,
    work=_work,
    metrics=_metrics,
    memory=_memory,
    prepare=_prepare,
)
