"""Find the shape a device multiplies fastest: try a list of shapes, then repeat the best.

One worker per device looks at the shapes, the cheapest first, as far as the time goes.  A look is
short, so the best of many is partly lucky: the finalists are measured again, in turn, and ranked by
these later looks alone.  Each look leaves an attempt record whose conditions say ``search: true``,
so that it is not taken for a point.  The winner becomes an ordinary case, expected, measured in two
fresh workers and judged like any other; the conditions of its point say of how many shapes it is
the fastest.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import product

from trainrig.benchmarks.matmul import BENCHMARK, DTYPES, MAX_SIZE, matmul_case
from trainrig.benchmarks.spec import PlannedCase, check_options
from trainrig.catalog.arithmetic import HALF
from trainrig.errors import UnavailableError, UsageError
from trainrig.measure.aggregate import Subject, attempt_record, point_records
from trainrig.process.worker import Request, Worker
from trainrig.record import Case, Status, case_label
from trainrig.runner.bench import BenchRequest
from trainrig.runner.expectations import limit_of
from trainrig.runner.plan import Block, Task
from trainrig.runner.progress import Progress
from trainrig.runner.session import Scene
from trainrig.runner.targets import Target
from trainrig.stats import median
from trainrig.units import format_quantity, format_share, format_time, parse_count

Shape = tuple[int, int, int]
"""(m, k, n)."""

MIN_BUDGET = 15.0
"""Seconds: three workers must come up, and the search needs some time of its own."""

_USUAL_SIZES = {
    False: ((512, 1024, 2048, 4096), (256, 512, 1024, 2048)),
    True: ((4096, 7168, 8192, 14336), (4096, 8192, 16384)),
}
"""Sizes of m, n and of k to try, on a host and a GPU.  Tiles fill a chip's processors in waves, the
last one in part: powers of two and seven times a power of two leave little of it empty on chips of
46 to 304 processors.  A larger k repays what a tile costs to begin and to end."""

# Of the time that is left: the searches; the rest is for the winners' two fresh workers.
_SEARCHING = 0.7
# What the winners need at the least: two workers that load torch, and a sample or two.
_SETTLING = 6.0
# One look at a shape: this long, or a few calls of a slow one.
_LOOK_TIME = 0.04
_LOOK_CALLS = 3.5
_PATIENCE = 10.0
# Of a search's time, for measuring the finalists again, each this often.
_FINALS = 0.25
_NUM_FINALISTS = 4
_ROUNDS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class FastestShape:
    """The fastest of the shapes that were looked at."""

    shape: Shape
    rate: float
    """FLOP/s: median of its later looks."""
    num_measured: int
    """Shapes that there was time for."""
    seconds: float


def plan_search(
    scene: Scene, targets: Sequence[Target], request: BenchRequest
) -> tuple[Block, ...]:
    """Search on each target for each dtype, and plan the winners; a block a target."""
    blocks = []
    for number, target in enumerate(targets):
        dtypes = request.dtypes or _usual_dtypes(target)
        left_s = scene.deadline - time.monotonic() - _SETTLING * (len(targets) - number)
        end = time.monotonic() + max(left_s, 0.0) * _SEARCHING / (len(targets) - number)
        block = Block(
            name=f"the fastest shapes on {target.label}, in two fresh workers",
            tasks=_search_target(scene, target, request, dtypes, end),
            share=1.0 / len(targets),
        )
        blocks.append(block)
    return tuple(blocks)


def _usual_dtypes(target: Target) -> tuple[str, ...]:
    """Return default dtypes: 16-bit ones on a GPU, fp32 and faster on a host; none emulated."""
    if not target.is_gpu:
        return target.arithmetic.trained_in
    narrow = tuple(dtype for dtype in HALF if not target.arithmetic.is_emulated(dtype))
    return narrow if target.arithmetic.fastest in HALF else ("fp32",)


def check_search(request: BenchRequest, budget: float) -> None:
    """Raises UsageError for what cannot be searched."""
    if budget < MIN_BUDGET:
        raise UsageError(
            f"a search for the peak does not fit {budget:g} s", f"give it --budget {MIN_BUDGET:g}s"
        )
    check_options("matmul", "--dtype", request.dtypes, DTYPES)
    _axes(request.sizes, is_gpu=True)


def _axes(sizes: Sequence[str], *, is_gpu: bool) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Sizes of m and n, and of k: those that were asked for, or the usual ones."""
    chosen = tuple(sorted({parse_count(size, MAX_SIZE) for size in sizes}))
    return (chosen, chosen) if chosen else _USUAL_SIZES[is_gpu]


def usual_shapes(target: Target, dtype: str, sizes: Sequence[str] = ()) -> list[Shape]:
    """Return the shapes to try on a device: those that fit half of its memory."""
    wide, deep = _axes(sizes, is_gpu=target.is_gpu)
    return [mkn for mkn in product(wide, deep, wide) if _task(target, dtype, mkn).fits_memory]


def _search_target(
    scene: Scene, target: Target, request: BenchRequest, dtypes: Sequence[str], end: float
) -> tuple[Task, ...]:
    """Search on one device and return the fastest shape's task for each dtype."""
    scene.watch(Progress(text=f"search for the fastest shapes on {target.label}", level="stage"))
    wide, deep = _axes(request.sizes, is_gpu=target.is_gpu)
    tasks = []
    with ExitStack() as stack:
        log = scene.run.log_path(f"search-{target.torch_device.replace(':', '-')}")
        worker = stack.enter_context(Worker(target.torch_device, log))
        for number, dtype in enumerate(dtypes):
            shapes = usual_shapes(target, dtype, request.sizes)
            seconds = (end - time.monotonic()) / (len(dtypes) - number)
            fastest = None
            try:
                worker.wait_ready()
                look = Prober(scene, target, dtype, worker).look
                fastest = find_fastest(shapes, look, seconds=seconds)
            except UnavailableError as error:
                scene.watch(Progress(text=error.message))
            if fastest is None:  # the smallest shape, as an ordinary case, will say why
                tasks.append(_task(target, dtype, (wide[0], deep[0], wide[0])))
                continue
            notes: Case = {
                "peak_of": len(shapes),
                "peak_measured": fastest.num_measured,
                "peak_search_s": fastest.seconds,
                "peak_axes": f"m and n: {_listed(wide)}; k: {_listed(deep)}",
            }
            task = _task(target, dtype, fastest.shape, notes)
            scene.watch(Progress(text=_text_of(scene, task, fastest)))
            tasks.append(task)
    return tuple(tasks)


def _listed(sizes: Sequence[int]) -> str:
    return " ".join(map(str, sizes))


def find_fastest(
    shapes: Iterable[Shape],
    look: Callable[[Shape], float | None],
    *,
    seconds: float,
    clock: Callable[[], float] = time.monotonic,
) -> FastestShape | None:
    """Return the fastest of ``shapes`` by ``look``, which gives FLOP/s, or None if it cannot run.

    None where the cheapest shape does not run.
    """
    start = clock()
    rates: dict[Shape, float] = {}
    num_measured, per_flop = 0, 0.0
    for mkn in sorted(shapes, key=flops):
        before = clock()
        if before - start + per_flop * flops(mkn) > (1.0 - _FINALS) * seconds and rates:
            break
        rate = look(mkn)
        num_measured += 1
        per_flop = (clock() - before) / flops(mkn)
        if rate is not None:
            rates[mkn] = rate
        elif not rates:
            return None
    finalists = sorted(rates, key=rates.__getitem__, reverse=True)[:_NUM_FINALISTS]
    repeats: dict[Shape, list[float]] = {}
    for _ in range(_ROUNDS):
        for mkn in finalists:
            if (rate := look(mkn)) is not None:
                repeats.setdefault(mkn, []).append(rate)
        if clock() - start > seconds:
            break
    if not repeats:
        return None
    best = max(repeats, key=lambda mkn: median(repeats[mkn]))
    return FastestShape(
        shape=best,
        rate=median(repeats[best]),
        num_measured=num_measured,
        seconds=clock() - start,
    )


def flops(mkn: Shape) -> int:
    """2·m·k·n."""
    m, k, n = mkn
    return 2 * m * k * n


def _text_of(scene: Scene, task: Task, fastest: FastestShape) -> str:
    """Return ``bf16 matmul: fastest of 48 shapes is 4096×2048×4096 at 430 GFLOPS, ...``."""
    unit = BENCHMARK.metrics(task.case)[0].unit
    limit = limit_of(task, scene.claims)
    ceiling = "claim" if task.target.is_gpu else "reference"
    share = f", {format_share(fastest.rate / limit.value)} of the {ceiling}" if limit else ""
    return (
        f"{task.case['dtype']} matmul: fastest of {task.planned.notes['peak_of']} shapes is "
        f"{'×'.join(map(str, fastest.shape))} at {format_quantity(fastest.rate, unit)}{share} "
        f"({fastest.num_measured} shapes measured in {format_time(fastest.seconds)})"
    )


def _task(target: Target, dtype: str, mkn: Shape, notes: Case | None = None) -> Task:
    planned = PlannedCase(
        case=matmul_case(dtype, *mkn),
        step=f"{dtype} matmul peak",
        required=True,
        notes=notes or {},
    )
    return Task(target=target, benchmark=BENCHMARK.name, planned=planned)


class Prober:
    """Takes one short look at a shape in a worker and keeps it as a record."""

    def __init__(self, scene: Scene, target: Target, dtype: str, worker: Worker) -> None:
        self._scene = scene
        self._target = target
        self._dtype = dtype
        self._worker = worker
        self._call_rate = 0.0
        self._looks: dict[Shape, int] = {}

    def look(self, mkn: Shape) -> float | None:
        """FLOP/s at the first quartile of its samples, since noise only ever slows."""
        case = matmul_case(self._dtype, *mkn)
        self._scene.watch(Progress(text=f"looking at {case_label(case)}", level="running"))
        call_time = flops(mkn) / self._call_rate if self._call_rate else 0.0
        left_s = max(self._scene.deadline - time.monotonic(), 1.0)
        request = Request(
            benchmark=BENCHMARK.name,
            module=BENCHMARK.module,
            case=case,
            settings={"max_time": max(_LOOK_TIME, _LOOK_CALLS * call_time)},
            # Generous, since a shape may be far slower than the best one.
            timeout=min(_PATIENCE + 100.0 * call_time, left_s),
        )
        reply = self._worker.run(request)
        self._looks[mkn] = number = self._looks.get(mkn, 0) + 1
        subject = Subject(
            device=self._target.name,
            index=self._target.index,
            count=1,
            environment=self._scene.environment,
        )
        record = attempt_record(request, reply, subject, attempt=number)
        stored = self._scene.run.append(
            record.replace(conditions={**record.conditions, "search": True})
        )
        if stored.is_wrong_answer:
            # That is a fault of the device, not of the shape: it is judged.
            for point in point_records([stored]):
                self._scene.run.append(point)
        if reply.status is not Status.OK:
            return None
        rate = flops(mkn) / sorted(reply.samples)[len(reply.samples) // 4]
        self._call_rate = max(self._call_rate, rate)
        return rate
