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
four times the last-level cache (`measure.buffers`).

Source: STREAM, J. D. McCalpin, https://www.cs.virginia.edu/stream/ref.html.
"""

from __future__ import annotations

from trainrig import workload
from trainrig.benchmarks.spec import (
    CHECK_ELEMENTS,
    LINK_CLAIM,
    MEMORY,
    MEMORY_CLAIM,
    Benchmark,
    Claim,
    LevelRule,
    Metric,
    PlannedCase,
    Quantity,
    Role,
    Scope,
    Selection,
    check_choice,
    check_fields,
    check_options,
    number_in,
)
from trainrig.errors import UsageError
from trainrig.record import Case
from trainrig.units import binary, parse_count

LINKS = ("h2d", "d2h")
HOST_LOOPS = ("read", "write", "copy", "triad")
DIRECTIONS = (*LINKS, "d2d", *HOST_LOOPS)
MEMORIES = {
    **dict.fromkeys(LINKS, ("pinned", "pageable")),
    "d2d": ("device",),
    **dict.fromkeys(HOST_LOOPS, ("host",)),
}
# Sums of whole numbers below 2^20 stay exact in fp64 up to 2^33 elements of 8 bytes.
MAX_BYTES = 1 << 36
FIELDS = frozenset(["direction", "bytes", "memory", "cache"])

_USUAL_BYTES = 1 << 28
_LARGE_BYTES = 1 << 26
_DIRECTION_TEXT = {"h2d": "host to GPU", "d2h": "GPU to host", "d2d": "within the GPU"}


def copy_case(direction: str, num_bytes: int = _USUAL_BYTES, memory: str = "host") -> Case:
    """A copy case; copies are always measured cold."""
    return {"direction": direction, "bytes": num_bytes, "memory": memory, "cache": "cold"}


def _check(case: Case) -> None:
    check_choice("copy", case, "direction", DIRECTIONS)
    size = case.get("bytes")
    if not isinstance(size, int) or isinstance(size, bool) or not _is_size(size):
        raise UsageError(f"copy size {size!r}", f"a multiple of 8 bytes, from 8 to {MAX_BYTES}")
    direction = str(case["direction"])
    check_choice(direction, case, "memory", MEMORIES[direction])
    if case.get("cache") != "cold":
        raise UsageError(f"copy is measured cold, not {case.get('cache')!r}")
    check_fields("copy", case, FIELDS)


def _is_size(size: int) -> bool:
    return 8 <= size <= MAX_BYTES and size % 8 == 0


def array_bytes(case: Case) -> int:
    """Bytes of one array of a checked case."""
    return int(str(case["bytes"]))


def _work(case: Case) -> workload.Work:
    return workload.copy(str(case["direction"]), array_bytes(case))


def _metrics(case: Case) -> tuple[Metric, ...]:
    return (
        Metric(
            name="byte_rate",
            unit="B/s",
            amount=_work(case).num_bytes,
            formula="counted bytes / time",
            is_claimed=True,
        ),
    )


def arrays_on_device(case: Case) -> int:
    """Arrays of one set on the device that the case runs on."""
    direction = str(case["direction"])
    return 1 if direction in LINKS else sum(workload.COPY_DIRECTIONS[direction])


def _memory(case: Case) -> int:
    """One set; more where there is room (`measure.buffers`)."""
    return arrays_on_device(case) * array_bytes(case) + 4 * 8 * CHECK_ELEMENTS


def _qualify(scope: Scope) -> list[PlannedCase]:
    kinds = [(loop, "host") for loop in ("copy", "read", "write", "triad")]
    if scope.is_gpu:
        kinds = [("h2d", "pinned"), ("d2h", "pinned"), ("d2d", "device")]
        kinds += [("h2d", "pageable"), ("d2h", "pageable")]
    return [
        PlannedCase(
            case=copy_case(direction, memory=memory),
            step=f"host memory {direction}" if memory == "host" else f"{direction} {memory}",
            required=memory in ("pinned", "device") or direction == "copy",
        )
        for direction, memory in kinds
    ]


def _select(selection: Selection) -> list[PlannedCase]:
    if not (selection.sizes or selection.ops):
        return []
    check_options("copy", "--op", selection.ops, DIRECTIONS)
    sizes = [parse_count(size, MAX_BYTES) for size in selection.sizes or ("256Mi",)]
    return [
        PlannedCase(case=copy_case(op, size, memory), step=f"{memory} {op} copy", required=True)
        for op in selection.ops or HOST_LOOPS
        for size in sizes
        for memory in MEMORIES[op]
    ]


def _label(case: Case) -> str:
    direction, memory = str(case.get("direction")), case.get("memory")
    words = [_DIRECTION_TEXT.get(direction, direction)]
    if isinstance(size := case.get("bytes"), int):
        words.append(f"{binary(size)}B")
    if isinstance(memory, str) and memory != "device":
        words.append(memory)
    return ", ".join(words)


def _claim(case: Case) -> Claim | None:
    if case.get("direction") in LINKS:
        return LINK_CLAIM, {"direction": case["direction"]}
    return (MEMORY_CLAIM, {}) if case.get("cache") == "cold" else None


def _crosses(direction: str, memory: str) -> LevelRule:
    """A level of the waterfall of a link."""
    link = Quantity(
        name=_DIRECTION_TEXT[direction], metric="byte_rate", order=30 + LINKS.index(direction)
    )
    return LevelRule(
        quantity=link,
        name=f"{memory.capitalize()} memory",
        order=10 if memory == "pinned" else 20,
        fits=lambda case, count: (
            count == 1 and (case.get("direction"), case.get("memory")) == (direction, memory)
        ),
    )


BENCHMARK = Benchmark(
    name="copy",
    version=1,
    title="moving memory: links, within a GPU, on the host",
    order=30,
    module="trainrig.measure.copy",
    role=Role.TRANSFER,
    example=copy_case("triad", 64),
    check=_check,
    work=_work,
    metrics=_metrics,
    memory=_memory,
    qualify=_qualify,
    weight=2.0,
    options={"size": "bytes: 256MiB", "op": ", ".join(DIRECTIONS), "device": ""},
    select=_select,
    label=_label,
    sizes=frozenset(["bytes"]),
    levels=(
        LevelRule(
            quantity=MEMORY,
            name="Best cold stream",
            order=10,
            fits=lambda case, count: (
                count == 1 and case.get("cache") == "cold" and case.get("direction") not in LINKS
            ),
        ),
        *(_crosses(direction, memory) for direction in LINKS for memory in MEMORIES[direction]),
    ),
    claim=_claim,
    # Published bandwidths come from arrays far beyond the caches, most without their size.
    is_large=lambda case: "bytes" not in case or number_in(case, "bytes") >= _LARGE_BYTES,
)
