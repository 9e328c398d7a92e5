"""bench: the cases of one benchmark that a person asks for, through the same path as qualify."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from trainrig.analysis.numa_advice import advice
from trainrig.benchmarks.collective import BACKENDS
from trainrig.benchmarks.copy import BENCHMARK as COPY
from trainrig.benchmarks.copy import LINKS, MAX_BYTES, copy_case
from trainrig.benchmarks.link import pairs
from trainrig.benchmarks.numa import USUAL_BYTES, placements
from trainrig.benchmarks.spec import (
    SMALL_BUDGET,
    Benchmark,
    PlannedCase,
    Role,
    Selection,
    benchmarks,
    check_options,
    find,
    role_of,
)
from trainrig.catalog.arithmetic import UNKNOWN, Arithmetic
from trainrig.errors import UnavailableError, UsageError
from trainrig.machine.numa_nodes import node_cpus, usable_cpus
from trainrig.machine.snapshot import Missing, value_or
from trainrig.machine.system_access import ThisMachine
from trainrig.measure.buffers import cpu_cache_bytes
from trainrig.process.python_env import check_torch
from trainrig.record import Record
from trainrig.runner.plan import Block, qualify_plan, tasks_of
from trainrig.runner.progress import Watcher, null_progress
from trainrig.runner.ranks import HANG_TIMEOUT, PROGRAM, Exchanger, place
from trainrig.runner.session import Plan, Scene, carry_out, check_budget
from trainrig.runner.targets import HOST, Target, choose, disk_target, disk_tool
from trainrig.runner.view import RunOutcome
from trainrig.stats import grouped
from trainrig.store import read_run
from trainrig.units import counted, duration_text, parse_count


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchRequest:
    """Request of ``trainrig bench``; empty fields mean the defaults."""

    benchmark: str
    dtypes: tuple[str, ...] = ()
    sizes: tuple[str, ...] = ()
    ops: tuple[str, ...] = ()
    device: str | None = None
    peak: bool = False
    path: Path | None = None
    """For disks: a folder on the one that is meant; the run's own without it."""
    ranks: tuple[int, ...] = ()
    """Numbers of ranks with which each collective is measured."""
    low: str = ""
    high: str = ""
    """The smallest and the largest size of such a measurement."""
    backend: str = ""
    """nccl where there are GPUs, else gloo, where it is not named."""
    peer_access: str = ""
    """``on``, ``off`` or ``both``."""
    timeout: float | None = None
    """Seconds without a sign of any rank until the one that hangs is named."""

    def options(self) -> list[str]:
        """Return the words of the command line that ask for the same cases."""
        path = str(self.path.absolute()) if self.path is not None else None
        several = {"dtype": self.dtypes, "size": self.sizes, "op": self.ops}
        single = {
            "path": path,
            "device": self.device,
            "ranks": ",".join(map(str, self.ranks)),
            "min": self.low,
            "max": self.high,
            "backend": self.backend,
            "peer-access": self.peer_access,
            "timeout": duration_text(self.timeout) if self.timeout else None,
        }
        words = [
            f"--{name}={word}" for name, words_given in several.items() for word in words_given
        ]
        words += [f"--{name}={word}" for name, word in single.items() if word]
        return [*words, *(["--peak"] if self.peak else [])]


def bench(
    request: BenchRequest,
    *,
    budget: float,
    out: Path = Path("runs"),
    watch: Watcher = null_progress,
    program: Sequence[str] = PROGRAM,
) -> RunOutcome:
    """Measure the cases of ``request`` and judge them as qualify does.

    ``program``: what is started as each rank of a benchmark that has ranks.

    Raises UsageError for an unknown benchmark, dtype, size, operation or device,
    before anything is written.
    """
    check_budget(budget)
    spec = _benchable(request.benchmark)
    _check_options(spec, request)
    if not spec.is_disk:
        check_torch()
    if request.peak:
        plan = _plan_search(spec, request, budget)
    elif spec.is_disk:
        plan = _plan_disk(spec, request, budget)
    elif spec.role is Role.LINK:
        plan = _plan_links(spec, request)
    elif spec.role is Role.COLLECTIVE:
        plan = _plan_ranks(spec, request, budget)
    elif spec.role is Role.NUMA:
        plan = _plan_nodes(spec, request)
    else:
        plan = _plan_devices(spec, request, budget)
    # torch loading beside a disk's case would take processors from it, for nothing.
    early = not spec.is_disk and spec.role is not Role.COLLECTIVE
    return carry_out(
        "bench",
        plan,
        budget=budget,
        out=out,
        watch=watch,
        early=early,
        config={"benchmark": spec.name, "options": request.options()},
        exchange=partial(Exchanger, timeout=request.timeout or HANG_TIMEOUT, program=program),
    )


def _benchable(name: str) -> Benchmark:
    """Return the benchmark called ``name``.  Raises UsageError where `bench` does not run it."""
    spec = find(name)
    names = ", ".join(entry.name for entry in benchmarks() if entry.options)
    if spec is None:
        raise UsageError(f"unknown benchmark {name!r}", f"one of: {names}")
    if not spec.options:
        raise UsageError(f"bench does not run {name}: {spec.title}", f"run: {spec.command}")
    return spec


def _check_options(spec: Benchmark, request: BenchRequest) -> None:
    """Raise UsageError for an option that chooses nothing here."""
    given = {
        "dtype": request.dtypes,
        "size": request.sizes,
        "op": request.ops,
        "device": request.device,
        "peak": request.peak,
        "path": request.path,
        "ranks": request.ranks,
        "min": request.low,
        "max": request.high,
        "backend": request.backend,
        "peer-access": request.peer_access,
        "timeout": request.timeout,
    }
    for option, value in given.items():
        if value and option not in spec.options:
            raise UsageError(
                f"{spec.name} has no --{option}",
                "choose with " + ", ".join(f"--{option_name}" for option_name in spec.options),
            )
    if request.path is not None and not request.path.is_dir():
        raise UsageError(f"--path {request.path}: no such folder", "name a folder on that disk")


def _plan_search(spec: Benchmark, request: BenchRequest, budget: float) -> Plan:
    """Return a search for the fastest shape on the GPUs, on the host where there are none."""
    search = importlib.import_module(spec.search)
    search.check_search(request, budget)

    def plan(scene: Scene) -> Sequence[Block]:
        gpus = tuple(target for target in scene.targets if target.is_gpu)
        usual = gpus if request.device is None and gpus else scene.targets
        blocks: Sequence[Block] = search.plan_search(scene, choose(usual, request.device), request)
        return blocks

    return plan


def _plan_disk(spec: Benchmark, request: BenchRequest, budget: float) -> Plan:
    """Return the disk under ``--path``."""
    tool, note = disk_tool()
    planned = _select(spec, request, replace(Selection(budget=budget), tool=tool, tool_note=note))

    def plan(scene: Scene) -> Sequence[Block]:
        target = disk_target(scene.snapshot, request.path or scene.run.path)
        return [_block(spec, target, planned, 1.0)]

    return plan


def _plan_links(spec: Benchmark, request: BenchRequest) -> Plan:
    """Host and GPU, each way, of each GPU; then every pair of GPUs."""

    def plan(scene: Scene) -> Sequence[Block]:
        targets = choose(scene.targets, request.device or "gpu")
        if not all(target.is_gpu for target in targets):
            raise UsageError(
                f"{spec.name} measures the links of GPUs, and the host is none",
                "its own memory: trainrig bench copy; its ranks: trainrig bench collective",
            )
        num_gpus = sum(target.is_gpu for target in scene.targets)
        blocks = []
        for target in targets:
            crossing = [
                PlannedCase(
                    case=copy_case(way, memory="pinned"),
                    step=f"{way} pinned",
                    required=True,
                    shared=True,
                )
                for way in LINKS
            ]
            number = int(target.torch_device.partition(":")[2])
            tasks = (
                *tasks_of(COPY, target, crossing),
                *tasks_of(spec, target, list(pairs(number, num_gpus))),
            )
            blocks.append(
                Block(name=f"links of {target.label}", tasks=tasks, share=1.0 / len(targets))
            )
        return blocks

    return plan


def _plan_nodes(spec: Benchmark, request: BenchRequest) -> Plan:
    """Plan copies between each pair of NUMA nodes, and from each node to each GPU.

    UnavailableError where the kernel shows no nodes, or they are hidden.
    """
    nodes = node_cpus(ThisMachine(), usable_cpus())
    if isinstance(nodes, Missing):
        raise UnavailableError(
            f"this system shows no NUMA nodes: {nodes.reason}",
            "there is nothing to bind to; trainrig bench copy measures its memory as a whole",
        )
    if len(request.sizes) > 1:
        raise UsageError("numa measures one size", "--size 1Gi")
    # Both arrays of a copy together are cold at four times the last-level caches.
    min_bytes = 2 * value_or(cpu_cache_bytes(ThisMachine()), 0)
    usual = max(USUAL_BYTES, -(-min_bytes // (1 << 20)) << 20)
    size = parse_count(request.sizes[0], MAX_BYTES) if request.sizes else usual
    if size < min_bytes:
        raise UsageError(
            f"--size {request.sizes[0]}: caches would answer",
            f"{-(-min_bytes // (1 << 20))}Mi or more, twice the last-level caches",
        )
    for placement in placements(list(nodes), size, is_gpu=False):
        spec.check(placement.case)

    def plan(scene: Scene) -> Sequence[Block]:
        targets = choose(scene.targets, request.device)
        return [
            _block(
                spec,
                target,
                list(placements(list(nodes), size, is_gpu=target.is_gpu)),
                1.0 / len(targets),
            )
            for target in targets
        ]

    return plan


_ACCESS = {"": (True, False), "both": (True, False), "on": (True,), "off": (False,)}


def _plan_ranks(spec: Benchmark, request: BenchRequest, budget: float) -> Plan:
    """Plan the collective cases: one rank on each GPU, or ranks on the host."""
    check_options(spec.name, "--peer-access", [request.peer_access], tuple(_ACCESS))
    rank_place = place()
    if rank_place is not None and request.ranks not in ((), (rank_place.ranks,)):
        raise UsageError(
            f"--ranks {request.ranks[0]}, and WORLD_SIZE is {rank_place.ranks}",
            "leave it out: torchrun says how many there are",
        )
    rank_counts = request.ranks if rank_place is None else (rank_place.ranks,)
    selection = Selection(
        budget=budget,
        nodes=1 if rank_place is None else rank_place.nodes,
        ranks=rank_counts,
        low=request.low,
        high=request.high,
        backend=request.backend or BACKENDS[0],
        # One start of ranks that others have started.
        peer_access=_ACCESS[request.peer_access][: None if rank_place is None else 1],
    )
    _select(spec, request, selection)  # what is wrong with it whatever the machine is

    def plan(scene: Scene) -> Sequence[Block]:
        gpus = [target for target in scene.targets if target.is_gpu]
        backend = request.backend or ("nccl" if gpus else "gloo")
        usual = rank_counts or (max(2, len(gpus)) if backend == "nccl" else 2,)
        if not rank_counts and backend == "nccl" and len(gpus) == 1:
            usual = (1,)
        max_ranks = max(usual)
        if backend == "nccl" and max_ranks // selection.nodes > len(gpus):
            raise UsageError(
                f"{counted(max_ranks, 'rank')} by nccl need a GPU each, and torch sees "
                f"{len(gpus)} here",
                "--backend gloo exchanges what lies on the host; --ranks says how many",
            )
        target = gpus[0] if backend == "nccl" else choose(scene.targets, HOST)[0]
        planned = _select(spec, request, replace(selection, ranks=usual, backend=backend))
        name = f"{spec.name} on {target.label}" if not gpus else f"{spec.name} by {backend}"
        return [Block(name=name, tasks=tasks_of(spec, target, planned))]

    return plan


def _plan_devices(spec: Benchmark, request: BenchRequest, budget: float) -> Plan:
    """Exactly the cases that were chosen, or the usual ones of the benchmark."""

    def select(arithmetic: Arithmetic = UNKNOWN) -> Sequence[PlannedCase]:
        return _select(spec, request, Selection(budget=budget, arithmetic=arithmetic))

    is_chosen = request.dtypes or request.sizes or request.ops
    planned = select() if is_chosen else ()  # what is wrong with it whatever the machine is

    def plan(scene: Scene) -> Sequence[Block]:
        targets = choose(scene.targets, request.device)
        if planned:
            return [_block(spec, t, select(t.arithmetic), 1.0 / len(targets)) for t in targets]
        return qualify_plan(targets, max(budget, SMALL_BUDGET), only={spec.name})

    return plan


def _select(spec: Benchmark, request: BenchRequest, selection: Selection) -> Sequence[PlannedCase]:
    planned = spec.select(
        replace(selection, dtypes=request.dtypes, sizes=request.sizes, ops=request.ops)
    )
    for case in planned:
        spec.check(case.case)
    return planned


def _block(spec: Benchmark, target: Target, planned: Sequence[PlannedCase], share: float) -> Block:
    tasks = tasks_of(spec, target, planned)
    name = f"{spec.name} on {target.label}"
    return Block(name=name, tasks=tasks, share=share)


def summary(result: RunOutcome) -> dict[str, Any]:
    """Return what ``bench --json`` prints last: the run's folder and its points."""
    head = result.to_dict()
    points = [record for record in read_run(result.run).records if record.is_point]
    sizes = list(_exchanged(points))
    return {
        **{name: head[name] for name in ("answer", "verdict", "reason", "run")},
        "num_records": result.num_records,
        **({"sizes": sizes} if sizes else {}),
        **({"binding": lines} if (lines := list(advice(points))) else {}),
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


def _exchanged(points: Sequence[Record]) -> Iterator[dict[str, Any]]:
    """Return a row for each collective case, as JSON users read it."""
    collective_points = [point for point in points if role_of(point.benchmark) is Role.COLLECTIVE]
    for group in grouped(
        collective_points, lambda point: tuple(sorted(point.case.items()))
    ).values():
        values = {point.metric: point.value for point in group}
        representative = group[0]
        yield {
            **{
                name: representative.case.get(name)
                for name in ("collective", "ranks", "nodes", "bytes")
            },
            **{
                name: representative.case[name]
                for name in ("from", "to")
                if name in representative.case
            },
            "backend": representative.case.get("backend"),
            "peer_access": representative.case.get("peer_access", True),
            "algorithm_bandwidth": values.get("alg_rate"),
            "bus_bandwidth": values.get("bus_rate"),
            "time_s": values.get("time"),
            "status": representative.status.value,
            "reason": representative.reason,
        }
