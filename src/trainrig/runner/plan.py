"""Plans of a run: cases, devices, their order, and shares of the time.

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
from trainrig.catalog.chip import DEFAULT_ACCUMULATE, Chip, peak
from trainrig.record import Case, dtype_of
from trainrig.runner.targets import Target

LINKS = "links"
"""Name under which users select the cases that cross links between devices."""
MEMORY_SHARE = 0.5
"""Share of a device's memory for one case; the answer's check and allocator need the rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One planned case on one device (or on several at once)."""

    target: Target
    benchmark: str
    planned: PlannedCase
    count: int = 1
    """Number of devices that run it at the same time."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Further input for its worker that the case does not name: the folder of the data."""

    @property
    def case(self) -> Case:
        """Case to measure."""
        return self.planned.case

    @property
    def spec(self) -> Benchmark:
        """Definition of its benchmark."""
        return benchmark(self.benchmark)

    @property
    def num_workers(self) -> int:
        """Fresh workers that measure it in one round."""
        return self.spec.workers(self.case)

    @property
    def fits_memory(self) -> bool:
        """Return whether its operands fit the device with room to spare; disks check themselves."""
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
    """Share of the remaining time for measuring; the shares of a plan add up to 1."""

    @property
    def targets(self) -> tuple[Target, ...]:
        """Return its devices, in the order of its tasks."""
        return tuple({task.target.torch_device: task.target for task in self.tasks}.values())


def tasks_of(spec: Benchmark, target: Target, planned: Sequence[PlannedCase]) -> tuple[Task, ...]:
    """Return tasks of planned cases on a device; an unverified one is never required."""
    return tuple(
        Task(
            target=target,
            benchmark=spec.name,
            count=spec.ranks(planned_case.case),
            planned=replace(
                planned_case,
                required=planned_case.required
                and planned_case.skip is None
                and "caveat" not in planned_case.notes,
                notes={
                    **target.notes,
                    **_emulated(spec, target, planned_case.case),
                    **planned_case.notes,
                },
            ),
        )
        for planned_case in planned
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
    """Plan the blocks of a qualification of ``targets`` within ``budget`` seconds.

    On a machine with GPUs the host's arithmetic is not measured, its memory is.  ``only``: names of
    benchmarks, and ``links``: what crosses what devices share; all without it.
    """
    gpus = tuple(target for target in targets if target.is_gpu)
    groups = [gpus, *((target,) for target in targets if not target.is_gpu)]
    weighted: list[tuple[float, Block]] = []
    fixed: list[Block] = []
    for group in filter(None, groups):
        label = group[0].label if len(group) == 1 else f"{len(group)} GPUs"
        planned: dict[str, list[Task]] = {}
        for target in group:
            scope = Scope(
                is_gpu=target.is_gpu,
                budget=budget,
                beside_gpus=bool(gpus) and not target.is_gpu,
                arithmetic=target.arithmetic,
                claimed_dtypes=_claimed_dtypes(target.chip),
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
                planned[spec.name] += at_once(spec, group, spec.qualify_together())
        for name in [name for name in planned if benchmark(name).max_share is not None]:
            fixed += _fixed(benchmark(name), label, planned.pop(name), budget)
        weighted += _blocks(label, planned, is_small=budget < SMALL_BUDGET)
    share_left = 1.0 - sum(block.share for block in fixed)
    total_weight = sum(weight for weight, _ in weighted)
    blocks = [
        *(replace(block, share=share_left * w / total_weight) for w, block in weighted),
        *fixed,
    ]
    return tuple(sorted(blocks, key=is_optional))


def _claimed_dtypes(chip: Chip | None) -> frozenset[str]:
    return frozenset(dtype for dtype in DEFAULT_ACCUMULATE if chip and peak(chip, dtype))


def _of_target(
    target: Target, scope: Scope, only: Collection[str]
) -> Iterator[tuple[str, Sequence[Task]]]:
    """Return each benchmark's tasks on a device; disk benchmarks run on disks alone."""
    for spec in benchmarks():
        if spec.is_disk == target.is_disk:
            tasks = tasks_of(spec, target, spec.qualify(scope))
            if chosen := [task for task in tasks if not only or _is_among(task, only)]:
                yield spec.name, chosen


def _is_among(task: Task, only: Collection[str]) -> bool:
    return task.benchmark in only or (task.planned.shared and LINKS in only)


def is_optional(block: Block) -> bool:
    """Return whether the verdict needs nothing of the block."""
    return not any(task.planned.required for task in block.tasks)


def _fixed(spec: Benchmark, label: str, tasks: Sequence[Task], budget: float) -> list[Block]:
    """Return a block of tasks with seconds of their own."""
    seconds = sum(
        t.num_workers * (t.planned.seconds + spec.launch_seconds)
        for t in tasks
        if not t.planned.skip
    )
    share = min(spec.max_share or 0.0, seconds / budget)
    return [Block(name=f"{spec.name} on {label}", tasks=tuple(tasks), share=share)] if tasks else []


def _blocks(
    label: str, planned: Mapping[str, Sequence[Task]], *, is_small: bool
) -> list[tuple[float, Block]]:
    """Return a group's required and optional blocks with weights; one block if small.

    The essentials are sustained load first, then the first case of every step, which tells most,
    before the others; then a bit of every benchmark.
    """
    tasks = [task for device_tasks in planned.values() for task in device_tasks]
    if not tasks:
        return []
    first_case = {(task.benchmark, task.planned.step): task.case for task in reversed(tasks)}
    tasks.sort(
        key=lambda t: (t.planned.seconds == 0.0, first_case[t.benchmark, t.planned.step] != t.case)
    )
    if is_small:
        tasks.sort(key=lambda task: not task.planned.required)
        return [(1.0, Block(name=label, tasks=tuple(tasks)))]
    position = {
        id(t): n / len(device_tasks)
        for device_tasks in planned.values()
        for n, t in enumerate(device_tasks)
    }
    required = [task for task in tasks if task.planned.required]
    optional = sorted((t for t in tasks if not t.planned.required), key=lambda t: position[id(t)])
    return [
        (
            sum(benchmark(name).weight for name in {task.benchmark for task in chosen}),
            Block(name=f"{title} on {label}", tasks=tuple(chosen)),
        )
        for title, chosen in (("what the verdict needs", required), ("what else", optional))
        if chosen
    ]


def at_once(
    spec: Benchmark, targets: Sequence[Target], planned: Sequence[PlannedCase]
) -> tuple[Task, ...]:
    """Return tasks that run each case on several devices at the same time."""
    return tuple(
        replace(task, count=len(targets))
        for planned_case in planned
        for target in targets
        for task in tasks_of(
            spec,
            target,
            [
                replace(
                    planned_case,
                    step=f"{planned_case.step}, {len(targets)} at once",
                    required=False,
                )
            ],
        )
    )
