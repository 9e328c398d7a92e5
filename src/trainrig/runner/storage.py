"""The disk under a folder as something to measure: target, tasks, and what a budget allows.

A run measures the disk that its own folder lies on; `bench` any folder.  fio does
it where it is installed, Python where it is not: another case, marked indicative.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from trainrig.errors import TrainrigError, UsageError
from trainrig.machine import Missing, Snapshot, value_or
from trainrig.machine.disks import name_of, place_of
from trainrig.measure import fio
from trainrig.measure.disk_activity import PREFIX
from trainrig.measure.scratch_file import BLOCK, allowed_bytes, free_bytes, probe
from trainrig.measure.storage import DEFAULT_BYTES, OPS, case_of
from trainrig.record import Case
from trainrig.runner.plan import SMALL_BUDGET, Block, Task
from trainrig.runner.targets import Target

SHARE = 0.15
"""Of a qualification's time, at most."""

_REQUIRED = ("read", "write")
_STEPS = {
    "read": "storage read",
    "write": "storage write",
    "randread": "storage random read",
    "fsync": "storage fsync",
    "tokens": "training loader",
}
_SECONDS = (0.5, 3.0)
# Laying the file down, checks and fio's start, for each case in each worker.
_OVERHEAD = 1.0
_WORKERS = 2
_SMALLEST = 16 * BLOCK


def storage_target(snapshot: Snapshot, folder: Path) -> Target:
    """The disk under an existing folder."""
    path = os.path.realpath(folder)
    place = place_of(path)
    disks = value_or(snapshot.disks, ())
    try:
        free = free_bytes(path)
    except TrainrigError:
        free = 0
    return Target(
        torch_device=PREFIX + path,
        name="unknown disk" if isinstance(place, Missing) else name_of(place, disks),
        index=None,
        memory_bytes=free,
        chip=None,
    )


def check_folder(folder: Path) -> Path:
    """Raises UsageError where there is no such folder."""
    if not folder.is_dir():
        raise UsageError(f"--path {folder}: no such folder", "name a folder on the disk you mean")
    return folder


def storage_cases(ops: Sequence[str], size: int) -> tuple[Case, ...]:
    """The cases of operations, with fio where it can be used."""
    tool = "python" if fio.unusable() else "fio"
    return tuple(case_of(op, tool, size) for op in ops)


def storage_block(target: Target, cases: Sequence[Case], seconds: float, share: float) -> Block:
    """The cases on one disk, each sampled for ``seconds`` in each worker."""
    notes = _notes(target)
    tasks = tuple(
        Task(
            target=target,
            family="storage",
            case=case,
            step=_STEPS[str(case["op"])],
            required=case["op"] in _REQUIRED,
            sustained=seconds,
            notes=notes if case["tool"] != "python" else {**notes, "indicative": _indicative()},
        )
        for case in cases
    )
    return Block(targets=(target,), name=f"storage on {target.label}", tasks=tasks, share=share)


def with_storage(blocks: Sequence[Block], target: Target, budget: float) -> tuple[Block, ...]:
    """A qualification's blocks and the storage of its folder, sized to the budget."""
    reason = _why_not(target, budget)
    if reason is not None:
        (case,) = storage_cases(OPS[:1], DEFAULT_BYTES)
        block = storage_block(target, [case], _SECONDS[0], 0.0)
        skipped = tuple(replace(task, skip=reason, required=False) for task in block.tasks)
        return (*blocks, replace(block, tasks=skipped))
    cases = storage_cases(OPS, _size(target))
    seconds = seconds_for(SHARE * budget, len(cases))
    share = min(SHARE, _WORKERS * len(cases) * (seconds + _OVERHEAD) / budget)
    others = tuple(replace(block, share=block.share * (1.0 - share)) for block in blocks)
    return (*others, storage_block(target, cases, seconds, share))


def seconds_for(whole: float, num_cases: int) -> float:
    """How long each worker may sample each case, so that all of it takes about ``whole``."""
    least, most = _SECONDS
    return min(max(whole / num_cases / _WORKERS - _OVERHEAD, least), most)


def _why_not(target: Target, budget: float) -> str | None:
    """Why a qualification leaves its disk alone, or None."""
    if budget < SMALL_BUDGET:
        return "left out of budgets below one minute"
    if _size(target) < _SMALLEST:
        return "too little space is free to measure with"
    try:
        probe(target.torch_device.removeprefix(PREFIX))
    except TrainrigError as error:
        return error.message
    return None


def _size(target: Target) -> int:
    """The file's size: a power of two that the free space allows."""
    size = DEFAULT_BYTES
    while size > allowed_bytes(target.memory_bytes) and size >= _SMALLEST:
        size //= 2
    return size


def _notes(target: Target) -> Case:
    place = place_of(target.torch_device.removeprefix(PREFIX))
    if isinstance(place, Missing):
        return {}
    return {"mount": place.mount, "filesystem": place.filesystem}


def _indicative() -> str:
    return f"one request at a time, by Python: {fio.unusable() or 'fio was not used'}"
