"""Which cases a qualification runs, in which order, and which of them it cannot do without.

A step is what a person would name ("bf16 matmul"); it is satisfied by any
undisturbed point of it.  Required steps come first in their block, so that a
small budget spends itself on them; what does not fit is recorded as skipped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from trainrig.measure.family import family
from trainrig.record import Case
from trainrig.runner.layers import (
    gpu_cases,
    gpu_required,
    host_cases,
    host_required,
    step_name,
)
from trainrig.runner.targets import Target

# Below this, one pair of workers serves all families of a device: importing torch takes
# seconds that such a budget does not have.
SMALL_BUDGET = 60.0
SUSTAINED_BUDGET = 60.0
"""From this budget on, a sustained matmul run is part of the plan."""

UNVERIFIED = "unverified on hardware"
"""Said of what no machine of several GPUs has shown to work yet."""

MEMORY_SHARE = 0.5
"""Of a device's memory for one case: the check of the answer and the allocator need the rest."""

_CPU_SIZES = (2048, 512, 1024, 256, 128, 4096)
_SMALL_CPU_SIZES = (512, 1024, 2048)
_GPU_SIZES = (8192, 4096, 2048, 1024, 512, 128, 16384)
# Sizes that load a device: what runs there speaks for the device, smaller ones for launches.
_TELLING_CPU = frozenset([512, 1024, 2048, 4096])
_TELLING_GPU = frozenset([8192, 16384])
_VECTOR_SIZES = (1 << 24, 1 << 22, 1 << 20, 1 << 18, 1 << 16, 1 << 14)
_COPY_BYTES = 1 << 28


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One case on one device (or on several at once)."""

    target: Target
    family: str
    case: Case
    step: str
    """``bf16 matmul``: what progress and verdict call it."""
    required: bool = False
    sustained: float = 0.0
    """Seconds of continuous load, for sustained runs and disks; 0 for ordinary cases."""
    count: int = 1
    """How many devices run it at the same time."""
    notes: Case = field(default_factory=dict)
    """What the conditions of its point say besides."""
    skip: str | None = None
    """Why it is recorded and not run."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """What its worker needs besides and the case does not say: where data lies."""

    @property
    def fits_memory(self) -> bool:
        """Whether its operands fit on the device with room to spare; a disk's worker sees to it."""
        if self.family == "storage":
            return True
        return family(self.family).memory(self.case) <= MEMORY_SHARE * self.target.memory_bytes


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


def qualify_plan(
    targets: Sequence[Target], budget: float, native_bf16: bool = True
) -> tuple[Block, ...]:
    """The blocks of a qualification of ``targets`` within ``budget`` seconds.

    On a machine with GPUs the host's arithmetic is not measured, its memory is.
    ``native_bf16``: whether the CPU has bf16 instructions; without them bf16 is
    emulated, slow, and not required.
    """
    have_gpu = any(target.is_gpu for target in targets)
    blocks: list[tuple[float, Block]] = []
    for target in targets:
        small = budget < SMALL_BUDGET
        if target.is_gpu:
            tasks = _gpu_tasks(target)
        else:
            sizes = _SMALL_CPU_SIZES if small else _CPU_SIZES
            tasks = _host_tasks(target, sizes, native_bf16, have_gpu)
        if budget >= SUSTAINED_BUDGET and (target.is_gpu or not have_gpu):
            tasks = [*tasks, _sustained(target, tasks, budget)]
        if not small and (target.is_gpu or not have_gpu):
            tasks = [*tasks, *_layers(target, native_bf16)]
        blocks += _split(target, tasks, small=small)
    gpus = tuple(target for target in targets if target.is_gpu)
    if len(gpus) > 1:
        blocks.append((2.0, together(gpus, [matmul_case("fp16", _GPU_SIZES[0])])))
    whole = sum(weight for weight, _ in blocks)
    return tuple(replace(block, share=weight / whole) for weight, block in blocks)


def together(targets: tuple[Target, ...], cases: Sequence[Case]) -> Block:
    """Matmul cases on several devices at once: they share power, air and PCIe."""
    tasks = tuple(
        Task(
            target=target,
            family="matmul",
            case=case,
            step=f"{case['dtype']} matmul, {len(targets)} at once",
            count=len(targets),
            required=True,
            notes={"caveat": UNVERIFIED},
        )
        for case in cases
        for target in targets
    )
    name = f"{len(targets)} GPUs at once ({UNVERIFIED})"
    return Block(targets=targets, name=name, tasks=tasks, share=0.0)


def matmul_case(dtype: str, m: int, k: int | None = None, n: int | None = None) -> Case:
    """A matmul case; square unless all three sizes are given."""
    return {"dtype": dtype, "m": m, "k": k or m, "n": n or m, "cache": "hot"}


def vector_case(op: str, num_elements: int, cache: str, dtype: str = "fp32") -> Case:
    """A vector case."""
    return {"op": op, "dtype": dtype, "num_elements": num_elements, "cache": cache}


def copy_case(direction: str, num_bytes: int = _COPY_BYTES, memory: str = "host") -> Case:
    """A copy case; copies are always measured cold."""
    return {"direction": direction, "bytes": num_bytes, "memory": memory, "cache": "cold"}


def _host_tasks(
    target: Target, sizes: Sequence[int], native_bf16: bool, memory_only: bool
) -> list[Task]:
    tasks = _copies(
        target, [("copy", "host"), ("read", "host"), ("write", "host"), ("triad", "host")]
    )
    if memory_only:
        return tasks
    native = ("fp32", "bf16") if native_bf16 else ("fp32",)
    others = [d for d in ("int8", "fp64", "bf16", "fp16") if d not in native]
    matmuls = _matmuls(target, native, sizes, set(native))
    # How fast a CPU is at the others is anyone's guess (fp16 can be 200 times slower than
    # fp32), so that the small sizes come first and tell what the large ones would cost.
    matmuls += _matmuls(target, others, sorted(sizes), set())
    return matmuls + _vectors(target) + tasks


def _gpu_tasks(target: Target) -> list[Task]:
    dtypes = ("bf16", "fp16", "tf32", "fp32", "fp8", "int8", "fp64")
    matmuls = _matmuls(target, dtypes, _GPU_SIZES, {"fp16", "fp32"})
    links = [("h2d", "pinned"), ("d2h", "pinned"), ("d2d", "device")]
    return (
        matmuls
        + _vectors(target)
        + _copies(target, [*links, ("h2d", "pageable"), ("d2h", "pageable")])
    )


def _matmuls(
    target: Target, dtypes: Iterable[str], sizes: Sequence[int], required: set[str]
) -> list[Task]:
    """All dtypes at the first size, then at the second, and so on.

    Of a required dtype the sizes that load the device are required.
    """
    telling = _TELLING_GPU if target.is_gpu else _TELLING_CPU
    return [
        Task(
            target=target,
            family="matmul",
            case=matmul_case(dtype, size),
            step=f"{dtype} matmul",
            required=dtype in required and size in telling,
        )
        for size in sizes
        for dtype in dtypes
    ]


def _vectors(target: Target) -> list[Task]:
    """Cold at the largest size (memory), then hot over all sizes (the caches' curve)."""
    cases = [vector_case(op, _VECTOR_SIZES[0], "cold") for op in ("scale", "add", "gelu")]
    cases += [vector_case(op, size, "hot") for size in _VECTOR_SIZES for op in ("scale", "gelu")]
    return [
        Task(
            target=target,
            family="vector",
            case=case,
            step=f"{case['op']} vector",
            required=case["op"] == "scale" and case["cache"] == "cold",
        )
        for case in cases
    ]


def _copies(target: Target, kinds: Sequence[tuple[str, str]]) -> list[Task]:
    return [
        Task(
            target=target,
            family="copy",
            case=copy_case(direction, memory=memory),
            step=f"host memory {direction}" if memory == "host" else f"{direction} {memory}",
            required=memory in ("pinned", "device") or direction == "copy",
        )
        for direction, memory in kinds
    ]


def _layers(target: Target, native_bf16: bool) -> list[Task]:
    """Transformer layers; required ones first."""
    native = ("fp32", "bf16") if native_bf16 else ("fp32",)
    required = gpu_required() if target.is_gpu else host_required(native)
    return [
        Task(
            target=target,
            family="layer",
            case=case,
            step=step_name(case),
            required=case in required,
        )
        for case in (gpu_cases() if target.is_gpu else host_cases(native))
    ]


def _sustained(target: Target, tasks: Sequence[Task], budget: float) -> Task:
    """A long run of the first required matmul: what remains when the chip is warm."""
    first = next(t for t in tasks if t.family == "matmul" and t.required)
    return Task(
        target=target,
        family="matmul",
        case={**first.case, "sustained": True},
        step="sustained matmul",
        sustained=min(60.0, budget / 12.0),
    )


# How many parts of the time a family gets.
_WEIGHTS = {"matmul": 5.0, "vector": 3.0, "copy": 2.0, "layer": 3.0}


def _split(target: Target, tasks: Sequence[Task], *, small: bool) -> list[tuple[float, Block]]:
    """One block a family; with a small budget one block, its required tasks first."""
    if small:
        ordered = tuple(sorted(_first_of_each_step(tasks), key=lambda task: not task.required))
        return [(1.0, Block(targets=(target,), name=target.label, tasks=ordered, share=0.0))]
    blocks = []
    for name, weight in _WEIGHTS.items():
        own = [task for task in tasks if task.family == name]
        if own:
            ordered = tuple(sorted(own, key=lambda task: bool(task.sustained)))
            block = Block(
                targets=(target,), name=f"{name} on {target.label}", tasks=ordered, share=0.0
            )
            blocks.append((weight, block))
    return blocks


def _first_of_each_step(tasks: Sequence[Task]) -> list[Task]:
    """The first task of every step, then the others."""
    seen: set[str] = set()
    first: list[Task] = []
    others: list[Task] = []
    for task in tasks:
        (others if task.step in seen else first).append(task)
        seen.add(task.step)
    return first + others
