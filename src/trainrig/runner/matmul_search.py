"""Which shape a device multiplies fastest: drives the search through a worker, stores every probe.

The search runs in one worker per device; each of its measurements leaves an
attempt record whose conditions say ``search: true``, so that it is not taken for
a point.  The winner becomes an ordinary case, expected, measured in two
fresh workers and judged like any other; the conditions of its point say of how
many shapes it is the peak.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack

from trainrig.benchmarks.matmul import BENCHMARK, DTYPES, MAX_SIZE, matmul_case, shape
from trainrig.benchmarks.spec import check_options
from trainrig.errors import UnavailableError, UsageError
from trainrig.measure.aggregate import Subject, attempt_record, point_records
from trainrig.measure.matmul_search import FastestShape, Grid, Seen, Shape, find_peak, flops
from trainrig.process.worker import Reply, Request, Worker
from trainrig.record import Scalar, Status, case_label
from trainrig.runner.bench import BenchRequest
from trainrig.runner.expectations import limit_of
from trainrig.runner.plan import Block, Task
from trainrig.runner.progress import Progress
from trainrig.runner.session import Scene
from trainrig.runner.targets import Target
from trainrig.units import format_quantity, format_share, format_time, parse_count

MIN_BUDGET = 15.0
"""Seconds: three workers must come up, and the search needs some time of its own."""

CPU_SIZES = (256, 512, 768, 1024, 1280, 1536, 2048, 2560, 3072, 4096, 6144, 8192)
GPU_SIZES = tuple(range(512, 16384 + 1, 512))
_USUAL_DTYPES = {False: ("fp32", "bf16"), True: ("bf16", "fp16")}

# Of the time that is left: the searches; the rest is for the winners' two fresh workers.
_SEARCHING = 0.7
# What the winners need at the least: two workers that load torch, and a sample or two.
_SETTLING = 6.0
# One look at a shape: this long, or a few calls of a slow one.
_LOOK_TIME = 0.04
_LOOK_CALLS = 3.5
_PATIENCE = 10.0


def plan_search(
    scene: Scene, targets: Sequence[Target], request: BenchRequest
) -> tuple[Block, ...]:
    """Search on each target for each dtype, and plan the winners; a block a target."""
    sizes = _sizes(request)
    blocks = []
    for number, target in enumerate(targets):
        dtypes = request.dtypes or _USUAL_DTYPES[target.is_gpu]
        left = scene.deadline - time.monotonic() - _SETTLING * (len(targets) - number)
        end = time.monotonic() + max(left, 0.0) * _SEARCHING / (len(targets) - number)
        block = Block(
            targets=(target,),
            name=f"the fastest shapes on {target.label}, in two fresh workers",
            tasks=_search_target(scene, target, dtypes, sizes, end),
            share=1.0 / len(targets),
        )
        blocks.append(block)
    return tuple(blocks)


def check_search(request: BenchRequest, budget: float) -> None:
    """Raises UsageError for what cannot be searched."""
    if budget < MIN_BUDGET:
        raise UsageError(
            f"a search for the peak does not fit {budget:g} s", f"give it --budget {MIN_BUDGET:g}s"
        )
    check_options("matmul", "--dtype", request.dtypes, DTYPES)
    _sizes(request)


def _sizes(request: BenchRequest) -> tuple[int, ...]:
    """Sizes of each of the three axes; none for the usual grid."""
    return tuple(parse_count(size, MAX_SIZE) for size in request.sizes)


def usual_grid(target: Target, dtype: str, sizes: Sequence[int] = ()) -> Grid:
    """The grid that is searched on a device: what fits half of its memory."""
    axis = tuple(sorted(set(sizes))) or (GPU_SIZES if target.is_gpu else CPU_SIZES)
    return Grid(m=axis, k=axis, n=axis, fits=lambda s: _task(target, dtype, s).fits_memory)


def _search_target(
    scene: Scene, target: Target, dtypes: Sequence[str], sizes: Sequence[int], end: float
) -> tuple[Task, ...]:
    """The winners' tasks of one device, one a dtype."""
    scene.watch(Progress(text=f"search for the fastest shapes on {target.label}", level="stage"))
    tasks = []
    with ExitStack() as stack:
        log = scene.run.log_path(f"search-{target.torch_device.replace(':', '-')}")
        worker = stack.enter_context(Worker(target.torch_device, log))
        for number, dtype in enumerate(dtypes):
            grid = usual_grid(target, dtype, sizes)
            seconds = (end - time.monotonic()) / (len(dtypes) - number)
            found = _search(scene, Prober(scene, target, dtype, worker), grid, seconds)
            tasks.append(_winner(scene, target, dtype, grid, found))
    return tuple(tasks)


def _search(scene: Scene, prober: Prober, grid: Grid, seconds: float) -> FastestShape | None:
    """The grid's fastest shape, or None where nothing runs or the worker does not come up."""
    try:
        start = time.monotonic()
        if not prober.warm_up(_smallest(grid)):
            return None
        return find_peak(grid, prober.look, seconds=seconds - (time.monotonic() - start))
    except UnavailableError as error:
        scene.watch(Progress(text=error.message))
        return None


def _winner(
    scene: Scene, target: Target, dtype: str, grid: Grid, found: FastestShape | None
) -> Task:
    if found is None:  # its reason is shown by running the smallest shape as an ordinary case
        return _task(target, dtype, _smallest(grid))
    task = _task(target, dtype, found.shape, found, grid)
    scene.watch(Progress(text=_text_of(scene, task, found)))
    return task


def _text_of(scene: Scene, task: Task, found: FastestShape) -> str:
    """``bf16 matmul: fastest of 1728 shapes is 256×1536×512 at 430 GFLOPS, 98 % of the claim``."""
    unit = BENCHMARK.metrics(task.case)[0].unit
    limit = limit_of(task, scene.claims)
    share = f", {format_share(found.rate / limit.value)} of the claim" if limit else ""
    return (
        f"{task.case['dtype']} matmul: fastest of {found.num_shapes} shapes is "
        f"{'×'.join(map(str, found.shape))} at {format_quantity(found.rate, unit)}{share} "
        f"({found.num_measured} shapes measured in {format_time(found.seconds)}; all of them "
        f"would take {format_time(found.sweep_seconds)})"
    )


def _task(
    target: Target,
    dtype: str,
    mkn: Shape,
    found: FastestShape | None = None,
    grid: Grid | None = None,
) -> Task:
    notes: dict[str, Scalar] = {}
    if found is not None and grid is not None:
        notes = {
            "peak_of": found.num_shapes,
            "peak_measured": found.num_measured,
            "peak_search_s": found.seconds,
            "peak_axes": " ".join(map(str, grid.m)),
        }
    return Task(
        target=target,
        benchmark=BENCHMARK.name,
        case=matmul_case(dtype, *mkn),
        step=f"{dtype} matmul peak",
        required=True,
        notes=notes,
    )


def _smallest(grid: Grid) -> Shape:
    return (min(grid.m), min(grid.k), min(grid.n))


class Prober:
    """Takes one short look at a shape in a worker and keeps it as a record."""

    def __init__(self, scene: Scene, target: Target, dtype: str, worker: Worker) -> None:
        self._scene = scene
        self._target = target
        self._dtype = dtype
        self._worker = worker
        self._call_rate = 0.0
        self._looks: dict[Shape, int] = {}

    def warm_up(self, mkn: Shape) -> bool:
        """Load what the first call of a kind loads; whether it runs at all."""
        self._worker.wait_ready()
        return self.look(mkn).rate is not None

    def look(self, mkn: Shape) -> Seen:
        """One measurement: the first quartile of its samples, since noise only ever slows."""
        start = time.monotonic()
        case = matmul_case(self._dtype, *mkn)
        self._scene.watch(Progress(text=f"looking at {case_label(case)}", level="running"))
        request = Request(
            benchmark=BENCHMARK.name,
            module=BENCHMARK.module,
            case=case,
            settings=self._settings(mkn),
            timeout=self._timeout(mkn),
        )
        reply = self._worker.run(request)
        self._keep(request, reply)
        if reply.status is not Status.OK:
            return Seen(rate=None, seconds=time.monotonic() - start)
        ordered = sorted(reply.samples)
        rate = flops(mkn) / ordered[len(ordered) // 4]
        self._call_rate = max(self._call_rate, rate)
        return Seen(rate=rate, seconds=time.monotonic() - start)

    def _settings(self, mkn: Shape) -> dict[str, float | None]:
        return {"max_time": max(_LOOK_TIME, _LOOK_CALLS * self._call_time(mkn))}

    def _timeout(self, mkn: Shape) -> float:
        """Hard limit: generous, since a shape may be far slower than the best one."""
        left = max(self._scene.deadline - time.monotonic(), 1.0)
        return min(_PATIENCE + 100.0 * self._call_time(mkn), left)

    def _call_time(self, mkn: Shape) -> float:
        return flops(mkn) / self._call_rate if self._call_rate else 0.0

    def _keep(self, request: Request, reply: Reply) -> None:
        mkn = shape(request.case)
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
