"""Which cases a qualification runs, in which order, and which of them it cannot do without.

Every benchmark's spec says what it runs on a device; here those cases become tasks and blocks with
shares of the time.  A step is what a person would name ("bf16 matmul"); it is satisfied by any
clean point of it.  Required steps come first in their block, so that a small budget spends
itself on them; what does not fit is recorded as skipped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from trainrig.benchmarks.spec import (
    WORKERS,
    Benchmark,
    PlannedCase,
    Scope,
    benchmark,
    benchmarks,
)
from trainrig.record import Case
from trainrig.runner.targets import Target

MEMORY_SHARE = 0.5
"""Of a device's memory for one case: the check of the answer and the allocator need the rest."""

_TOGETHER_WEIGHT = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One case on one device (or on several at once)."""

    target: Target
    benchmark: str
    case: Case
    step: str
    """``bf16 matmul``: what progress and verdict call it."""
    required: bool = False
    seconds: float = 0.0
    """Of sampling in each worker, for sustained load and disks; 0: as the time allows."""
    count: int = 1
    """How many devices run it at the same time."""
    notes: Case = field(default_factory=dict)
    """What the conditions of its point say besides."""
    skip: str | None = None
    """Why it is recorded and not run."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """What its worker needs besides and the case does not say: where data lies."""

    @property
    def spec(self) -> Benchmark:
        """What is known of its benchmark."""
        return benchmark(self.benchmark)

    @property
    def fits_memory(self) -> bool:
        """Whether its operands fit on the device with room to spare; a disk's worker sees to it."""
        if self.spec.is_disk:
            return True
        return self.spec.memory(self.case) <= MEMORY_SHARE * self.target.memory_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Tasks that share one pair of fresh workers on a device, and their share of the time.

    A block with several targets runs each case on all of them at the same time.
    """

    targets: tuple[Target, ...]
    name: str
    tasks: tuple[Task, ...]
    share: float
    """Of the time that is left for measuring; the shares of a plan add up to 1."""


def tasks_of(spec: Benchmark, target: Target, planned: Sequence[PlannedCase]) -> tuple[Task, ...]:
    """PlannedCase cases on a device."""
    return tuple(
        Task(
            target=target,
            benchmark=spec.name,
            case=one.case,
            step=one.step,
            required=one.required and one.skip is None,
            seconds=one.seconds,
            notes={**target.notes, **one.notes},
            skip=one.skip,
        )
        for one in planned
    )


def qualify_plan(
    targets: Sequence[Target], budget: float, native_bf16: bool = True
) -> tuple[Block, ...]:
    """The blocks of a qualification of ``targets`` within ``budget`` seconds.

    On a machine with GPUs the host's arithmetic is not measured, its memory is.
    """
    gpus = tuple(target for target in targets if target.is_gpu)
    weighted: list[tuple[float, Block]] = []
    fixed: list[Block] = []
    for target in targets:
        scope = Scope(
            is_gpu=target.is_gpu,
            budget=budget,
            beside_gpus=bool(gpus) and not target.is_gpu,
            native_bf16=native_bf16,
            free_bytes=target.memory_bytes,
            tool=target.tool,
            tool_note=target.tool_note,
            unusable=target.unusable,
        )
        specs = [spec for spec in benchmarks() if spec.is_disk == target.is_disk]
        blocks = [(spec, _block(spec, target, spec.qualify(scope), budget)) for spec in specs]
        blocks = [(spec, block) for spec, block in blocks if block.tasks]
        fixed += [block for spec, block in blocks if spec.max_share is not None]
        weights = [(spec.weight, block) for spec, block in blocks if spec.max_share is None]
        weighted += [_in_one(target, weights)] if scope.is_small and weights else weights
    for spec in benchmarks() if len(gpus) > 1 else ():
        if planned := spec.together():
            weighted.append((_TOGETHER_WEIGHT, at_once(spec, gpus, planned)))
    left = 1.0 - sum(block.share for block in fixed)
    whole = sum(weight for weight, _ in weighted)
    return (*(replace(block, share=left * w / whole) for w, block in weighted), *fixed)


def _block(spec: Benchmark, target: Target, planned: Sequence[PlannedCase], budget: float) -> Block:
    """A benchmark's cases on a device; sustained load last, for the device is hot then."""
    tasks = tasks_of(spec, target, planned)
    share = 0.0
    if spec.max_share is None:
        tasks = tuple(sorted(tasks, key=lambda task: task.seconds > 0.0))
    else:
        seconds = sum(task.seconds + spec.around for task in tasks if not task.skip)
        share = min(spec.max_share, WORKERS * seconds / budget)
    return Block(targets=(target,), name=f"{spec.name} on {target.label}", tasks=tasks, share=share)


def _in_one(target: Target, weights: Sequence[tuple[float, Block]]) -> tuple[float, Block]:
    """One block of all: the first task of every step before the others, required ones first."""
    tasks = [task for _, block in weights for task in block.tasks]
    first = {(task.benchmark, task.step): task for task in reversed(tasks)}
    ordered = sorted(
        tasks,
        key=lambda task: (not task.required, first[task.benchmark, task.step] is not task),
    )
    return 1.0, Block(targets=(target,), name=target.label, tasks=tuple(ordered), share=0.0)


def at_once(spec: Benchmark, targets: tuple[Target, ...], planned: Sequence[PlannedCase]) -> Block:
    """Cases on several devices at the same time."""
    tasks = tuple(
        replace(task, step=f"{task.step}, {len(targets)} at once", count=len(targets))
        for one in planned
        for target in targets
        for task in tasks_of(spec, target, [one])
    )
    caveats = {str(task.notes["caveat"]): None for task in tasks if "caveat" in task.notes}
    name = f"{len(targets)} GPUs at once" + "".join(f" ({caveat})" for caveat in caveats)
    return Block(targets=targets, name=name, tasks=tasks, share=0.0)
