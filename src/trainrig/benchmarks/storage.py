"""storage: a folder's disk: sequential and random reads, writes, fsync, and feeding tokens.

Definition.  One call is one block: of 1 MiB, at the next place in the file (read,
write); of 16 MiB, and the fdatasync after it (flushed-write); of 4 KiB at a random
place (randread); or a 4 KiB write through the page cache and the fsync after it
(fsync).  All but fsync go past the page cache (O_DIRECT).  All of it in one file
of ``bytes`` that exists already and has no name (`measure.scratch_file`), so that
writing overwrites.  What the disk, its controller or a hypervisor caches is part
of the number; flushed-write and fsync wait until their caches are empty.

``tool`` fio: libaio, ``depth`` blocks in flight; a sample is a window's time over its
blocks.  ``tool`` python: one block at a time, under the timing loop; indicative,
since one request in flight is not what a disk can do.  The tool is part of the
case, so that the two never meet.

tokens: one call is the next batch of the training loader (``batch_size`` × ``seq_len``
tokens of two bytes, causal, samples in shuffled order, prefetching), from a file that
lies in the page cache: what the loader can feed, not what the disk can.

A qualification measures the disk that its own folder lies on; `bench` any folder.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from trainrig.benchmarks import spec
from trainrig.errors import UsageError
from trainrig.record import Case
from trainrig.units import binary, parse_count
from trainrig.workload import Work

IO_OPS = ("read", "write", "flushed-write", "randread", "fsync")
WRITES = ("write", "flushed-write", "fsync")
OPS = (*IO_OPS, "tokens")
TOOLS = ("fio", "python")
BLOCK = 1 << 20
PAGE = 4096
MAX_BYTES = 1 << 29
MAX_SHARE_OF_FREE = 0.025
"""Share of the free space for one file; each of two workers has its own."""
FLUSHED = 16 * BLOCK
BLOCKS = {"read": BLOCK, "write": BLOCK, "flushed-write": FLUSHED, "randread": PAGE, "fsync": PAGE}
DEPTHS = {"read": 8, "write": 8, "flushed-write": 1, "randread": 32, "fsync": 1}
"""Blocks in flight under fio; python has one."""
USUAL_BYTES = 1 << 28
BATCH, SEQ = 8, 1024
TOKEN_BYTES = 2

_SHARE = 0.15
_SHARE_OF_BENCH = 0.85
"""The rest is for looking, starting and judging."""
_SECONDS = (0.5, 3.0)
# Laying the file down, checks and fio's start, for each case in each worker.
_AROUND = 1.0
_WORKERS = 2
_SMALLEST = 16 * BLOCK
_REQUIRED = ("read", "write")
_TEXTS = {
    "read": ("storage read", "sequential read"),
    "write": ("storage write", "sequential write"),
    "flushed-write": ("storage flushed write", "sequential write, flushed"),
    "randread": ("storage random read", "random read"),
    "fsync": ("storage fsync", "write and fsync"),
    "tokens": ("training loader", "training loader"),
}
"""Operation → what its step is called, and its label."""


def storage_case(op: str, tool: str, num_bytes: int = USUAL_BYTES) -> Case:
    """Return the case of an operation with a tool; tokens have one tool, the loader."""
    if op == "tokens":
        return {
            "op": op,
            "bytes": num_bytes,
            "batch_size": BATCH,
            "seq_len": SEQ,
            "io": "mapped",
            "cache": "hot",
            "tool": "loader",
        }
    return {
        "op": op,
        "bytes": num_bytes,
        "block": math.gcd(BLOCKS[op], num_bytes),  # whole blocks, in a small file too
        "depth": DEPTHS[op] if tool == "fio" else 1,
        "io": "fsync" if op == "fsync" else "direct",
        "tool": tool,
    }


def _check_more(case: Case) -> None:
    op, size = str(case["op"]), spec.size_in(case, "bytes")
    if size % BLOCK:
        raise UsageError(f"storage size {size}", "whole MiB, from 1MiB to 512MiB")
    expected = storage_case(op, str(case["tool"]), size)
    for name in expected.keys() | case.keys():
        if (name in case, case.get(name)) != (name in expected, expected.get(name)):
            raise UsageError(f"storage {op} with {name} {case.get(name)!r}", f"case: {expected}")


def call_bytes(case: Case) -> int:
    """Return bytes of one call."""
    if case["op"] == "tokens":
        return spec.size_in(case, "batch_size") * spec.size_in(case, "seq_len") * TOKEN_BYTES
    return spec.size_in(case, "block")


def _metrics(case: Case) -> tuple[spec.Metric, ...]:
    amount = float(call_bytes(case))
    num_bytes = spec.Metric(name="byte_rate", unit="B/s", amount=amount, formula="bytes / time")
    operations = spec.Metric(name="op_rate", unit="IO/s", amount=1.0, formula="1 / time")
    match case["op"]:
        case "randread":
            return operations, num_bytes
        case "fsync":
            return operations, spec.Metric(name="time", unit="s", amount=None, formula="time")
        case "tokens":
            tokens, how = amount / TOKEN_BYTES, "tokens / time"
            rate = spec.Metric(name="token_rate", unit="token/s", amount=tokens, formula=how)
            return rate, num_bytes
        case _:
            return (num_bytes,)


# ---- what is run


def allowed_bytes(free: int) -> int:
    """Return largest file that may be written where ``free`` bytes are free, in whole blocks."""
    return min(MAX_BYTES, int(free * MAX_SHARE_OF_FREE)) // BLOCK * BLOCK


def _qualify(scope: spec.Scope) -> Sequence[spec.PlannedCase]:
    """Plan every operation, with a file size and time that the disk and the budget allow."""
    size = USUAL_BYTES
    while size > allowed_bytes(scope.free_bytes) and size >= _SMALLEST:
        size //= 2
    reason = scope.unusable
    if scope.is_small:
        reason = spec.SMALL_REASON
    elif size < _SMALLEST:
        reason = "too little space is free to measure with"
    if reason is not None:
        case = storage_case(OPS[0], scope.tool)
        return [spec.PlannedCase(case=case, step=_TEXTS[OPS[0]][0], skip=reason)]
    cases = [storage_case(op, scope.tool, size) for op in OPS]
    return _planned(cases, _SHARE * scope.budget, scope.tool_note, _REQUIRED)


def _planned(
    cases: Sequence[Case], seconds: float, tool_note: str, required: Sequence[str]
) -> list[spec.PlannedCase]:
    """Cases that take about ``seconds`` together, each sampled as long as the others."""
    min_seconds, max_seconds = _SECONDS
    case_seconds = min(max(seconds / len(cases) / _WORKERS - _AROUND, min_seconds), max_seconds)
    return [
        spec.PlannedCase(
            case=case,
            step=_TEXTS[str(case["op"])][0],
            required=case["op"] in required,
            seconds=case_seconds,
            notes={"indicative": tool_note} if case["tool"] == "python" else {},
        )
        for case in cases
    ]


def _select(selection: spec.Selection) -> list[spec.PlannedCase]:
    spec.check_options("storage", "--op", selection.ops, OPS)
    sizes = [parse_count(size, MAX_BYTES) for size in selection.sizes] or [USUAL_BYTES]
    cases = [
        storage_case(op, selection.tool, size) for size in sizes for op in selection.ops or OPS
    ]
    return _planned(cases, _SHARE_OF_BENCH * selection.budget, selection.tool_note, OPS)


# ---- what is shown


def _label(case: Case) -> str:
    op = str(case.get("op", ""))
    words = [_TEXTS[op][1] if op in _TEXTS else op]
    if isinstance(block := case.get("block"), int):
        words.append(f"{binary(block)}B blocks")
    words += spec.sizes_text(case)
    words += [f"depth {case['depth']}"] if "depth" in case else []
    words += [str(case["tool"])] if case.get("tool") else []
    return ", ".join(filter(None, words))


def _sequential(op: str, order: int) -> spec.LevelRule:
    """Return a level of the disk's own waterfall: disks bound loading and checkpoints only."""
    step, label = _TEXTS[op]
    return spec.LevelRule(
        quantity=spec.Quantity(name=step, metric="byte_rate", order=order),
        name=label.capitalize(),
        order=10,
        fits=lambda case, _: case.get("op") == op,
    )


BENCHMARK = spec.Benchmark(
    name="storage",
    version=1,
    title="the disk under a folder",
    order=50,
    module="trainrig.measure.storage",
    role=spec.Role.DISK,
    example=storage_case("fsync", "fio", BLOCK),
    fields={"op": OPS, "bytes": MAX_BYTES, "tool": (*TOOLS, "loader")},
    optional=dict.fromkeys(("block", "depth", "io", "batch_size", "seq_len", "cache"), ()),
    check_more=_check_more,
    work=lambda case: Work(flops=0, num_bytes=call_bytes(case)),
    metrics=_metrics,
    memory=lambda case: spec.size_in(case, "bytes"),
    # Disks wander: other guests, the flash's own housekeeping, the heads of a turning one.
    agreement=0.25,
    two_sided=True,  # a hypervisor's cache is faster than its disk
    history_margin=0.3,
    # The file is laid down, read back, and after writing once more; fio starts and ends.
    cost=spec.CaseCost(fixed=0.3, fill=(5e8, 5e8), calls=0.0),
    qualify=_qualify,
    max_share=_SHARE,
    launch_seconds=_AROUND,
    options={
        "size": "bytes of the file: 256MiB",
        "op": ", ".join(OPS),
        "path": "a folder on the disk to measure",
    },
    select=_select,
    label=_label,
    sizes=frozenset(["bytes", "batch_size", "seq_len"]),
    levels=tuple(
        _sequential(op, 40 + n) for n, op in enumerate(("read", "write", "flushed-write"))
    ),
)
