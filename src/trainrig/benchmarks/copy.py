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
from trainrig.benchmarks import spec
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

_USUAL_BYTES = 1 << 28
_LARGE_BYTES = 1 << 26
# Of the link's claim.  The one published card of generation 5 has 0.87 and 0.74; half of the lanes,
# or one generation less, leave 0.5.
_LEAST_SHARES = {"h2d": 0.75, "d2h": 0.65}
_DIRECTION_TEXT = {"h2d": "host to GPU", "d2h": "GPU to host", "d2d": "within the GPU"}


def copy_case(direction: str, num_bytes: int = _USUAL_BYTES, memory: str = "host") -> Case:
    """Return a copy case; copies are always measured cold."""
    return {"direction": direction, "bytes": num_bytes, "memory": memory, "cache": "cold"}


def _check_more(case: Case) -> None:
    direction, size = str(case["direction"]), spec.size_in(case, "bytes")
    if size % 8:
        raise UsageError(f"copy size {size}", f"a multiple of 8 bytes, from 8 to {MAX_BYTES}")
    if case["memory"] not in (memories := MEMORIES[direction]):
        raise UsageError(
            f"unknown memory {case['memory']!r} for {direction}", spec.one_of(memories)
        )


def _work(case: Case) -> workload.Work:
    return workload.copy(str(case["direction"]), spec.size_in(case, "bytes"))


def arrays_on_device(case: Case) -> int:
    """Arrays of one set on the device that the case runs on."""
    direction = str(case["direction"])
    return 1 if direction in LINKS else sum(workload.COPY_DIRECTIONS[direction])


def _memory(case: Case) -> int:
    """Return the bytes of one buffer set; more are used where there is room (`measure.buffers`)."""
    return arrays_on_device(case) * spec.size_in(case, "bytes") + 4 * 8 * spec.CHECK_ELEMENTS


def _qualify(scope: spec.Scope) -> list[spec.PlannedCase]:
    kinds = [(loop, "host") for loop in ("copy", "read", "write", "triad")]
    if scope.is_gpu:
        kinds = [("h2d", "pinned"), ("d2h", "pinned"), ("d2d", "device")]
        kinds += [("h2d", "pageable"), ("d2h", "pageable")]
    return [
        spec.PlannedCase(
            case=copy_case(direction, memory=memory),
            step=f"host memory {direction}" if memory == "host" else f"{direction} {memory}",
            required=memory in ("pinned", "device") or direction == "copy",
            shared=direction in LINKS,
        )
        for direction, memory in kinds
    ]


def _select(selection: spec.Selection) -> list[spec.PlannedCase]:
    spec.check_options("copy", "--op", selection.ops, DIRECTIONS)
    sizes = [parse_count(size, MAX_BYTES) for size in selection.sizes or ("256Mi",)]
    return [
        spec.PlannedCase(
            case=copy_case(op, size, memory), step=f"{memory} {op} copy", required=True
        )
        for op in selection.ops or HOST_LOOPS
        for size in sizes
        for memory in MEMORIES[op]
    ]


def _label(case: Case) -> str:
    direction, memory = str(case.get("direction", "")), case.get("memory")
    words = [_DIRECTION_TEXT.get(direction, direction)]
    if isinstance(size := case.get("bytes"), int):
        words.append(f"{binary(size)}B")
    if isinstance(memory, str) and memory != "device":
        words.append(memory)
    return ", ".join(filter(None, words))


def _claim(case: Case) -> spec.Claim | None:
    if case.get("direction") in LINKS:
        return spec.LINK_CLAIM, {"direction": case["direction"]}
    return (spec.MEMORY_CLAIM, {}) if case.get("cache") == "cold" else None


def _link_level(direction: str, memory: str) -> spec.LevelRule:
    """Return the rule that takes a direction's copies as one level of the link's waterfall."""
    link = spec.Quantity(
        name=_DIRECTION_TEXT[direction], metric="byte_rate", order=30 + LINKS.index(direction)
    )
    return spec.LevelRule(
        quantity=link,
        name=f"{memory.capitalize()} memory",
        order=10 if memory == "pinned" else 20,
        fits=lambda case, count: (
            count == 1 and (case.get("direction"), case.get("memory")) == (direction, memory)
        ),
    )


BENCHMARK = spec.Benchmark(
    name="copy",
    version=1,
    title="moving memory: links, within a GPU, on the host",
    order=30,
    module="trainrig.measure.copy",
    role=spec.Role.TRANSFER,
    example=copy_case("triad", 64),
    fields={
        "direction": DIRECTIONS,
        "bytes": MAX_BYTES,
        "memory": ("pinned", "pageable", "device", "host"),
        "cache": ("cold",),
    },
    check_more=_check_more,
    work=_work,
    metrics=lambda case: (spec.byte_rate(_work(case)),),
    memory=_memory,
    qualify=_qualify,
    weight=2.0,
    options={"size": "bytes: 256MiB", "op": ", ".join(DIRECTIONS), "device": ""},
    select=_select,
    label=_label,
    sizes=frozenset(["bytes"]),
    levels=(
        spec.LevelRule(
            quantity=spec.MEMORY,
            name="Best cold stream",
            order=10,
            fits=lambda case, count: (
                count == 1 and case.get("cache") == "cold" and case.get("direction") not in LINKS
            ),
        ),
        *(_link_level(direction, memory) for direction in LINKS for memory in MEMORIES[direction]),
    ),
    claim=_claim,
    # Published bandwidths come from arrays far beyond the caches, most without their size.
    least_share=lambda case: (
        _LEAST_SHARES.get(str(case.get("direction"))) if case.get("memory") == "pinned" else None
    ),
    is_large=lambda case: "bytes" not in case or spec.number_in(case, "bytes") >= _LARGE_BYTES,
)
