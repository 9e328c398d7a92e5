"""What is run, on which device, in which order, and with what share of the time.

What the verdict needs comes before everything else, on all devices, sustained load first; then
what there is time for.  What does not fit is recorded as skipped, and tried again when everything
else is done.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from trainrig.benchmarks.spec import (
    SMALL_BUDGET,
    Benchmark,
    PlannedCase,
    Role,
    Scope,
    benchmark,
    benchmarks,
)
from trainrig.record import Case, dtype_of
from trainrig.runner.targets import Target

LINKS = "links"
"""What a person calls the cases that cross what devices share."""
MEMORY_SHARE = 0.5
"""Of a device's memory for one case: the check of the answer and the allocator need the rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One planned case on one device (or on several at once)."""

    target: Target
    benchmark: str
    planned: PlannedCase
    count: int = 1
    """How many devices run it at the same time."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """What its worker needs besides and the case does not say: where data lies."""

    @property
    def case(self) -> Case:
        """What is measured."""
        return self.planned.case

    @property
    def spec(self) -> Benchmark:
        """What is known of its benchmark."""
        return benchmark(self.benchmark)

    @property
    def num_workers(self) -> int:
        """Fresh workers that measure it in one round."""
        return self.spec.workers(self.case)

    @property
    def fits_memory(self) -> bool:
        """Whether its operands fit on the device with room to spare; a disk's worker sees to it."""
        if self.spec.is_disk:
            return True
        return self.spec.memory(self.case) <= MEMORY_SHARE * self.target.memory_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Tasks that share one pair of fresh workers on each device, and their share of the time.

    Devices work side by side where they share nothing that is measured.
    """

    name: str
    tasks: tuple[Task, ...]
    share: float = 1.0
    """Of the time that is left for measuring; the shares of a plan add up to 1."""

    @property
    def targets(self) -> tuple[Target, ...]:
        """Its devices, in the order of its tasks."""
        return tuple({task.target.torch_device: task.target for task in self.tasks}.values())


def tasks_of(spec: Benchmark, target: Target, planned: Sequence[PlannedCase]) -> tuple[Task, ...]:
    """Planned cases on a device; nothing that is unverified can be required."""
    return tuple(
        Task(
            target=target,
            benchmark=spec.name,
            count=spec.ranks(one.case),
            planned=replace(
                one,
                required=one.required and one.skip is None and "caveat" not in one.notes,
                notes={**target.notes, **_emulated(spec, target, one.case), **one.notes},
            ),
        )
        for one in planned
    )


def _emulated(spec: Benchmark, target: Target, case: Case) -> Case:
    """Condition of a point whose format the device has no instructions for."""
    slower = dict(target.arithmetic.emulated).get(str(dtype_of(case)))
    multiplies = spec.role in (Role.PRODUCT, Role.BLOCK)
    return {"emulated": slower} if multiplies and slower else {}


def qualify_plan(
    targets: Sequence[Target],
    budget: float,
    only: Collection[str] = (),
) -> tuple[Block, ...]:
    """The blocks of a qualification of ``targets`` within ``budget`` seconds.

    On a machine with GPUs the host's arithmetic is not measured, its memory is.  ``only``: names of
    benchmarks, and ``links``: what crosses what devices share; all without it.
    """
    gpus = tuple(target for target in targets if target.is_gpu)
    groups = [gpus, *((target,) for target in targets if not target.is_gpu)]
    weighted: list[tuple[float, Block]] = []
    fixed: list[Block] = []
    for group in filter(None, groups):
        where = group[0].label if len(group) == 1 else f"{len(group)} GPUs"
        planned: dict[str, list[Task]] = {}
        for target in group:
            scope = Scope(
                is_gpu=target.is_gpu,
                budget=budget,
                beside_gpus=bool(gpus) and not target.is_gpu,
                arithmetic=target.arithmetic,
                free_bytes=target.memory_bytes,
                tool=target.tool,
                tool_note=target.tool_note,
                unusable=target.unusable,
                peers=len(group),
                is_first=target is group[0],
            )
            for name, tasks in _of_target(target, scope, only):
                planned.setdefault(name, []).extend(tasks)
        for spec in benchmarks() if len(group) > 1 else ():
            if spec.name in planned and (not only or spec.name in only):
                planned[spec.name] += at_once(spec, group, spec.together())
        for name in [name for name in planned if benchmark(name).max_share is not None]:
            fixed += _fixed(benchmark(name), where, planned.pop(name), budget)
        weighted += _blocks(where, planned, is_small=budget < SMALL_BUDGET)
    left = 1.0 - sum(block.share for block in fixed)
    whole = sum(weight for weight, _ in weighted)
    blocks = [*(replace(block, share=left * w / whole) for w, block in weighted), *fixed]
    return tuple(sorted(blocks, key=is_optional))


def _of_target(
    target: Target, scope: Scope, only: Collection[str]
) -> Iterator[tuple[str, Sequence[Task]]]:
    """What each benchmark measures of a device; a disk's are measured of disks alone."""
    for spec in benchmarks():
        if spec.is_disk == target.is_disk:
            tasks = tasks_of(spec, target, spec.qualify(scope))
            if chosen := [task for task in tasks if not only or _is_among(task, only)]:
                yield spec.name, chosen


def _is_among(task: Task, only: Collection[str]) -> bool:
    return task.benchmark in only or (task.planned.shared and LINKS in only)


def is_optional(block: Block) -> bool:
    """Whether the verdict needs nothing of it."""
    return not any(task.planned.required for task in block.tasks)


def _fixed(spec: Benchmark, where: str, tasks: Sequence[Task], budget: float) -> list[Block]:
    """A block of tasks with seconds of their own."""
    seconds = sum(
        t.num_workers * (t.planned.seconds + spec.around) for t in tasks if not t.planned.skip
    )
    share = min(spec.max_share or 0.0, seconds / budget)
    return [Block(name=f"{spec.name} on {where}", tasks=tuple(tasks), share=share)] if tasks else []


def _blocks(
    where: str, planned: Mapping[str, Sequence[Task]], *, is_small: bool
) -> list[tuple[float, Block]]:
    """What a group of devices must do and what it may, with weights; one block of all if small.

    The essentials are sustained load first, then the first case of every step, which tells most,
    before the others; then a bit of every benchmark.
    """
    tasks = [task for own in planned.values() for task in own]
    if not tasks:
        return []
    first = {(task.benchmark, task.planned.step): task.case for task in reversed(tasks)}
    tasks.sort(
        key=lambda t: (t.planned.seconds == 0.0, first[t.benchmark, t.planned.step] != t.case)
    )
    if is_small:
        tasks.sort(key=lambda task: not task.planned.required)
        return [(1.0, Block(name=where, tasks=tuple(tasks)))]
    place = {id(t): n / len(own) for own in planned.values() for n, t in enumerate(own)}
    required = [task for task in tasks if task.planned.required]
    others = sorted((t for t in tasks if not t.planned.required), key=lambda t: place[id(t)])
    return [
        (
            sum(benchmark(name).weight for name in {task.benchmark for task in chosen}),
            Block(name=f"{what} on {where}", tasks=tuple(chosen)),
        )
        for what, chosen in (("what the verdict needs", required), ("what else", others))
        if chosen
    ]


def at_once(
    spec: Benchmark, targets: Sequence[Target], planned: Sequence[PlannedCase]
) -> tuple[Task, ...]:
    """Cases on several devices at the same time, one after another on all of them."""
    return tuple(
        replace(task, count=len(targets))
        for one in planned
        for target in targets
        for task in tasks_of(
            spec,
            target,
            [replace(one, step=f"{one.step}, {len(targets)} at once", required=False)],
        )
    )
