"""bench: the cases that a person asks for, of one family, through the same path as qualify."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trainrig.errors import UsageError
from trainrig.measure.family import family
from trainrig.measure.matmul import DTYPES, MAX_SIZE
from trainrig.measure.scratch_file import MAX_BYTES
from trainrig.measure.storage import DEFAULT_BYTES, OPS
from trainrig.record import Case
from trainrig.runner.layers import asked_cases, step_name
from trainrig.runner.matmul_search import check_peak, peak_blocks
from trainrig.runner.plan import (
    Block,
    Task,
    copy_case,
    matmul_case,
    qualify_plan,
    vector_case,
)
from trainrig.runner.progress import Watcher, nobody
from trainrig.runner.session import Plan, Qualification, Scene, carry_out, check_budget
from trainrig.runner.storage import (
    check_folder,
    seconds_for,
    storage_block,
    storage_cases,
    storage_target,
)
from trainrig.runner.targets import Target, choose
from trainrig.store import read_run
from trainrig.workload import COPY_DIRECTIONS, VECTOR_OPS

_BYTES = re.compile(r"(\d+)\s*(k|m|g|ki|mi|gi)?b?", re.IGNORECASE)
_FACTORS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30}
_MAX_ELEMENTS = 1 << 33


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchRequest:
    """What ``trainrig bench`` was asked for; empty fields mean the usual."""

    family: str
    dtypes: tuple[str, ...] = ()
    sizes: tuple[str, ...] = ()
    ops: tuple[str, ...] = ()
    device: str | None = None
    peak: bool = False
    path: Path | None = None
    """storage: the folder whose disk is meant; the run's own without it."""


def bench(
    request: BenchRequest, *, budget: float, out: Path = Path("runs"), watch: Watcher = nobody
) -> Qualification:
    """Measure the cases of ``request`` and judge them as qualify does.

    Raises UsageError for an unknown family, dtype, size, operation or device,
    before anything is written.
    """
    check_budget(budget)
    family(request.family)
    if request.family == "step":
        raise UsageError("a training step is no case of bench", "trainrig train measures it")
    plan = _plan_peak(request, budget) if request.peak else _plan_cases(request, budget)
    # torch loading beside a disk's case would take processors from it, for nothing.
    early = request.family != "storage"
    return carry_out("bench", plan, budget=budget, out=out, watch=watch, early=early)


def summary(result: Qualification) -> dict[str, Any]:
    """What ``bench --json`` prints last: where the run lies, and its points."""
    points = [record for record in read_run(result.run).records if record.is_point]
    return {
        "verdict": result.verdict.outcome.value,
        "reason": result.verdict.reason,
        "run": str(result.run),
        "num_records": result.num_records,
        "points": [
            {
                "benchmark": p.benchmark,
                "case": dict(p.case),
                "metric": p.metric,
                "unit": p.unit,
                "value": p.value,
                "interval": p.interval,
                "status": p.status.value,
                "reason": p.reason,
                "disturbed": p.disturbed,
                "device": p.device,
                "device_index": p.device_index,
                "conditions": dict(p.conditions),
            }
            for p in points
        ],
    }


def _plan_peak(request: BenchRequest, budget: float) -> Plan:
    """A search for the fastest shape on the GPUs, on the host where there are none."""
    check_peak(request.family, request.ops, budget)
    _check_dtypes(request.dtypes)
    sizes = [_whole(size, MAX_SIZE) for size in request.sizes]

    def plan(scene: Scene) -> Sequence[Block]:
        gpus = tuple(target for target in scene.targets if target.is_gpu)
        usual = gpus if request.device is None and gpus else scene.targets
        return peak_blocks(scene, choose(usual, request.device), request.dtypes, sizes)

    return plan


def _plan_storage(request: BenchRequest, budget: float) -> Plan:
    """The disk under ``--path``, each operation at each size."""
    if request.dtypes or request.device:
        raise UsageError("storage has no --dtype and no --device", "choose with --op and --path")
    folder = None if request.path is None else check_folder(request.path)
    for op in request.ops:
        if op not in OPS:
            raise UsageError(f"unknown --op {op!r} for storage", "one of: " + ", ".join(OPS))
    sizes = [_whole(size, MAX_BYTES) for size in request.sizes] or [DEFAULT_BYTES]
    cases = [case for size in sizes for case in storage_cases(request.ops or OPS, size)]
    for case in cases:
        family("storage").check(case)

    def plan(scene: Scene) -> Sequence[Block]:
        target = storage_target(scene.snapshot, folder or scene.run.path)
        seconds = seconds_for(0.85 * budget, len(cases))  # the rest: looking, starting, judging
        block = storage_block(target, cases, seconds, 1.0)
        return [replace(block, tasks=tuple(replace(t, required=True) for t in block.tasks))]

    return plan


def _plan_cases(request: BenchRequest, budget: float) -> Plan:
    if request.family == "storage":
        return _plan_storage(request, budget)
    if request.path is not None:
        raise UsageError(f"{request.family} has no --path", "only storage lies on a path")
    cases = _cases(request)
    return lambda scene: _blocks(request, cases, choose(scene.targets, request.device), budget)


def _blocks(
    request: BenchRequest, cases: Sequence[Case], targets: Sequence[Target], budget: float
) -> Sequence[Block]:
    """The usual cases of a family, or exactly the ones asked for, each of them required."""
    if not cases:
        whole = qualify_plan(targets, max(budget, 60.0))
        own = [block for block in whole if block.tasks[0].family == request.family]
        shares = sum(block.share for block in own)
        return [replace(block, share=block.share / shares) for block in own]
    return [
        Block(
            targets=(target,),
            name=f"{request.family} on {target.label}",
            tasks=tuple(_task(request.family, case, target) for case in cases),
            share=1.0 / len(targets),
        )
        for target in targets
    ]


def _task(name: str, case: Case, target: Target) -> Task:
    if name == "layer":  # Hugging Face's is measured where it is installed
        ours = case["code"] == "trainrig"
        return Task(target=target, family=name, case=case, step=step_name(case), required=ours)
    words = [str(case[key]) for key in ("dtype", "op", "memory", "direction") if case.get(key)]
    return Task(
        target=target,
        family=name,
        case=case,
        step=" ".join([*words, name]),
        required=True,
    )


def _cases(request: BenchRequest) -> tuple[Case, ...]:
    """The cases asked for by dtype, size and operation; none when nothing was."""
    if not (request.dtypes or request.sizes or request.ops):
        return ()
    build = {
        "matmul": _matmul_cases,
        "vector": _vector_cases,
        "copy": _copy_cases,
        "layer": _layer_cases,
    }
    cases = build[request.family](request)
    for case in cases:
        family(request.family).check(case)
    return tuple(cases)


def _matmul_cases(request: BenchRequest) -> list[Case]:
    if request.ops:
        raise UsageError("matmul has no --op", "choose with --dtype and --size")
    _check_dtypes(request.dtypes)
    shapes = [_shape(size) for size in request.sizes or ("1024", "2048", "4096")]
    return [matmul_case(d, *shape) for shape in shapes for d in request.dtypes or ("fp32", "bf16")]


def _vector_cases(request: BenchRequest) -> list[Case]:
    ops = request.ops or ("scale",)
    for op in ops:
        if op not in VECTOR_OPS:
            raise UsageError(f"unknown --op {op!r} for vector", "one of: " + ", ".join(VECTOR_OPS))
    sizes = [_whole(size, _MAX_ELEMENTS) for size in request.sizes or ("65536", "16777216")]
    return [
        vector_case(op, size, cache, dtype)
        for op in ops
        for dtype in request.dtypes or ("fp32",)
        for size in sizes
        for cache in ("hot", "cold")
    ]


def _layer_cases(request: BenchRequest) -> list[Case]:
    return asked_cases(request.ops, request.sizes, request.dtypes)


def _copy_cases(request: BenchRequest) -> list[Case]:
    if request.dtypes:
        raise UsageError("copy has no --dtype", "choose with --op and --size")
    sizes = [_whole(size, 1 << 36) for size in request.sizes or ("256Mi",)]
    cases = []
    for op in request.ops or ("read", "write", "copy", "triad"):
        if op not in COPY_DIRECTIONS:
            raise UsageError(
                f"unknown --op {op!r} for copy", "one of: " + ", ".join(COPY_DIRECTIONS)
            )
        kinds = {"h2d": ("pinned", "pageable"), "d2h": ("pinned", "pageable"), "d2d": ("device",)}
        cases += [copy_case(op, size, kind) for size in sizes for kind in kinds.get(op, ("host",))]
    return cases


def _check_dtypes(dtypes: Sequence[str]) -> None:
    for dtype in dtypes:
        if dtype not in DTYPES:
            raise UsageError(f"unknown dtype {dtype!r}", "one of: " + ", ".join(DTYPES))


def _shape(text: str) -> tuple[int, ...]:
    """``4096`` or ``4096x1024x8192`` as (m,) or (m, k, n)."""
    parts = text.lower().replace("×", "x").split("x")
    if len(parts) not in (1, 3):
        raise UsageError(f"not a matmul size: {text!r}", "4096, or m,k,n as 4096x1024x8192")
    return tuple(_whole(part, MAX_SIZE) for part in parts)


def _whole(text: str, most: int) -> int:
    """A count or a number of bytes: ``65536``, ``256MiB``.  Raises UsageError out of range."""
    match = _BYTES.fullmatch(text.strip())
    value = int(match[1]) * _FACTORS[(match[2] or "").lower()] if match else 0
    if not 1 <= value <= most:
        raise UsageError(f"not a size: {text!r}", f"a whole number from 1 to {most}")
    return value
