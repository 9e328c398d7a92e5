"""A qualification of a machine that is not there: real plan, executor, expectations and judge.

The seam between `validation.verdicts` and the program: what moves in the program is followed here.
`qualify` runs as it is, with these in place of others: the first look at the machine, the worker
processes, the ranks of an exchange, the clock (it advances by what a worker says that it took), the
report's page.  Left out are training steps and the disk: processes and files of this machine.

Times beside the samples are presumed: 7 s until a worker is ready, what operands and checks take.
Devices that are measured side by side are threads, and the time of each is its own: all of them
begin when the main thread does, and that goes on when the last one is done.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import random
import tempfile
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from unittest import mock

from tests.support import machine_fakes

from trainrig.analysis.judge import judge
from trainrig.benchmarks.collective import bus_factor
from trainrig.benchmarks.spec import PlannedCase, Role, benchmark
from trainrig.catalog.chip import Chip
from trainrig.machine.snapshot import PcieLink, Snapshot
from trainrig.process.worker import Reply, Request
from trainrig.record import (
    PARENT_CLOCK,
    TOLD_SHARE,
    WORKER_CLOCK,
    Finding,
    Record,
    RunView,
    Status,
)
from trainrig.runner import crew, executor, sentinel, session
from trainrig.runner.expectations import expectations
from trainrig.runner.plan import Block, Task
from trainrig.runner.qualified_training import Text
from trainrig.runner.ranks import Deliver, Exchanger
from trainrig.runner.targets import Target
from trainrig.store import read_run
from validation import true_rates

LOAD_S = 7.0
HOST_BANDWIDTH, HOST_FLOPS = 24e9, 4e11
BUDGET = session.DEFAULT_BUDGET
_LEFT_OUT = "left out of the simulation"
_SCATTER = 0.004
"""How far workers of one device lie apart (standard deviation)."""
_ONE_SAMPLE = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One case that a worker was given."""

    device: str
    """``cuda:1``, ``cpu``."""
    request: Request
    worker: int
    """How many workers were started before this one."""
    rng: random.Random

    @property
    def is_gpu(self) -> bool:
        return self.device.startswith("cuda")

    @property
    def role(self) -> Role | None:
        return benchmark(self.request.benchmark).role


Fault = Callable[[Asked, Reply], Reply]
"""What a worker says in place of a healthy one's reply."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What is simulated."""

    chip: Chip | None
    """None: a machine without GPUs."""
    count: int = 1
    faults: tuple[Fault, ...] = ()
    before: Callable[[Snapshot], Snapshot] = lambda snapshot: snapshot
    """What the first look at it sees."""
    after: Callable[[Snapshot], Snapshot] = lambda snapshot: snapshot
    """What later ones see besides."""
    speed: Callable[[Asked], float] = lambda _: 1.0
    launch_scatter: float = 0.01
    """How far workers lie apart in what the host takes for a launch (standard deviation)."""
    later: tuple[float, float] = (math.inf, 1.0)
    """From so many seconds on everything on GPUs has a share of its speed, and nothing shows it."""
    link_share: float = 1.0
    """What links between GPUs carry of a healthy one's rate."""
    budget: float = BUDGET
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What came out."""

    outcome: str
    """PASS, FAIL, ..., or the name of the exception."""
    reason: str
    findings: tuple[Finding, ...] = ()
    records: tuple[Record, ...] = ()


_START = 1000.0


class _Clock:
    def __init__(self) -> None:
        self._main = threading.get_ident()
        self._times = {self._main: _START}

    @property
    def now(self) -> float:
        me = threading.get_ident()
        if me == self._main:
            self._times = {me: max(self._times.values())}
        return self._times.setdefault(me, self._times[self._main])

    @now.setter
    def now(self, time: float) -> None:
        self._times[threading.get_ident()] = time

    def spend(self, seconds: float) -> None:
        self.now += seconds

    def as_module(self) -> types.SimpleNamespace:
        return types.SimpleNamespace(monotonic=lambda: self.now, time=lambda: self.now)


def snapshot_of(chip: Chip | None, count: int) -> Snapshot:
    """A healthy machine with GPUs of one model."""
    bare = machine_fakes.healthy(count if chip else 0)
    cpu = dataclasses.replace(bare.cpu, model="Test CPU")
    memory = dataclasses.replace(bare.memory, available_bytes=256 << 30, limit_bytes=None)
    if chip is None:
        software = dataclasses.replace(bare.software, torch_cuda=None)
        return dataclasses.replace(bare, cpu=cpu, memory=memory, gpus=(), software=software)
    pci_id = chip.pci_ids[0] if chip.pci_ids else "10de:ffff"
    width = chip.pcie.lanes or 16
    generation = chip.pcie.generation or 5
    link = PcieLink(generation=generation, width=width, max_generation=generation, max_width=width)
    power = chip.board.tdp or 400.0
    gpus = tuple(
        machine_fakes.gpu(
            number,
            name=chip.name,
            pci_id=pci_id,
            vendor="amd" if chip.vendor == "AMD" else "nvidia",
            link=link,
            memory_total_bytes=int(chip.memory.size or 16e9),
            power_limit_w=power,
            power_limit_default_w=power,
            power_limit_max_w=power,
            compute_capability=chip.compute.capability or "9.0",
        )
        for number in range(count)
    )
    pci = tuple(
        machine_fakes.pci_device(str(g.pci_address), pci_id, link=link, slot=link) for g in gpus
    )
    software = bare.software
    if chip.vendor == "AMD":
        software = dataclasses.replace(software, torch_cuda=None, torch_hip="6.4")
    return dataclasses.replace(
        bare, cpu=cpu, memory=memory, gpus=gpus, pci_gpus=pci, software=software
    )


class _Worker:
    """Stands for `process.worker.Worker`: answers by the truth of its device."""

    def __init__(self, device: str, clock: _Clock, machine: Machine, number: int) -> None:
        self.device, self._clock, self._machine, self._number = device, clock, machine, number
        self._rng = random.Random(f"{machine.chip and machine.chip.name} {machine.seed} {number}")
        self._bias = self._rng.gauss(0.0, _SCATTER)
        self._launch = true_rates.LAUNCH * (1.0 + abs(self._rng.gauss(0.0, machine.launch_scatter)))
        self._ready = clock.now + LOAD_S
        self._first: float | None = None

    def __enter__(self) -> _Worker:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing was started."""

    def wait_ready(self, timeout: float = 1.0) -> dict[str, Any]:
        self._clock.now = max(self._clock.now, self._ready)
        return {"torch": "simulated", "threads": 2}

    def run(
        self,
        request: Request,
        released: Callable[[], None] = lambda: None,
        on_event: Callable[..., None] = lambda _: None,
    ) -> Reply:
        self.wait_ready()
        if request.hold:
            released()
        asked = Asked(device=self.device, request=request, worker=self._number, rng=self._rng)
        self._first = self._clock.now if self._first is None else self._first
        reply = self._healthy(asked)
        passed = self._clock.now + (reply.duration or 0.1) - self._first
        clocks = {WORKER_CLOCK: passed, PARENT_CLOCK: passed, TOLD_SHARE: 1.0}
        reply = dataclasses.replace(reply, conditions={**reply.conditions, **clocks})
        for fault in self._machine.faults:
            reply = fault(asked, reply)
        self._clock.spend(reply.duration or 0.1)
        return reply

    def _healthy(self, asked: Asked) -> Reply:
        call = seconds_of(asked, self._machine.chip)
        if call is None:
            reason = f"{asked.request.case['dtype']} matmul does not run here: not implemented"
            return Reply(status=Status.SKIPPED, reason=reason, duration=0.05)
        since, share = self._machine.later
        share = share if asked.is_gpu and self._clock.now - _START > since else 1.0
        call = call * (1.0 + self._bias) / self._machine.speed(asked) / share + self._launch
        scatter = [call * (1.0 + self._rng.gauss(0.0, _ONE_SAMPLE)) for _ in range(12)]
        return Reply(
            status=Status.OK,
            samples=tuple(scatter),
            stop="converged",
            conditions={"clock": "CUDA events" if asked.is_gpu else "host perf_counter"},
            started="2026-11-20T00:00:00.000+00:00",
            duration=_duration(asked, call),
        )


def seconds_of(asked: Asked, chip: Chip | None) -> float | None:
    """What a call takes on a healthy device; None where it cannot do it."""
    case, spec = asked.request.case, benchmark(asked.request.benchmark)
    work = spec.work(case)
    if not asked.is_gpu or chip is None:
        return work.flops / HOST_FLOPS + work.num_bytes / HOST_BANDWIDTH
    if spec.role is Role.PRODUCT:
        rate = true_rates.product_rate(chip, str(case["dtype"]))
        sizes = [float(str(case[axis])) for axis in ("m", "k", "n")]
        return None if rate is None else work.flops / rate / true_rates.size_share(*sizes)
    if spec.role is Role.BLOCK:
        return work.flops / true_rates.layer_rate(chip, case)
    if case.get("direction") in ("h2d", "d2h"):
        rate = true_rates.link_rate(chip.pcie.generation or 5, chip.pcie.lanes or 16)
        return work.num_bytes / rate * (1.0 if case.get("memory") == "pinned" else 3.0)
    return work.num_bytes / true_rates.stream_rate(chip)


def _exchanged(task: Task, chip: Chip | None, share: float) -> Reply:
    """What healthy ranks say of one exchange."""
    case = task.case
    sent = float(str(case["bytes"])) * bus_factor(str(case["collective"]), task.count)
    call = sent / (true_rates.between_gpus(chip) * share) + true_rates.LAUNCH
    return Reply(
        status=Status.OK,
        samples=tuple(call * (1.0 + 0.002 * step) for step in range(-5, 6)),
        stop="converged",
        conditions={"clock": "host perf_counter"},
        started="2026-11-20T00:00:00.000+00:00",
        duration=12 * call,
    )


def _duration(asked: Asked, call: float) -> float:
    """Seconds of a case in a worker: operands and checks, warm-up, samples."""
    settings, spec = asked.request.settings, benchmark(asked.request.benchmark)
    most = settings["max_time"] or 0.0
    warm = settings.get("warmup_time") or 0.1 * most
    beside = 0.03 + spec.memory(asked.request.case) / (2e10 if asked.is_gpu else 2e9)
    sampled = most - warm if "sustained" in asked.request.case else max(0.1, 10 * call)
    return beside + max(warm, call) + min(max(most - warm, call), sampled) + 2.0 * call


@contextmanager
def _in_place(machine: Machine) -> Iterator[None]:
    """The program with a machine, workers and a clock that are not there."""
    clock, started, looks = _Clock(), 0, 0

    def make(device: str, *_: object, **__: object) -> _Worker:
        nonlocal started
        started += 1
        return _Worker(device, clock, machine, started - 1)

    def look(*_: object, **_how: object) -> Snapshot:
        nonlocal looks
        looks += 1
        seen = machine.before(snapshot_of(machine.chip, machine.count))
        return seen if looks == 1 else machine.after(seen)

    def exchange(_: Exchanger, tasks: Sequence[Task], __: float, deliver: Deliver) -> None:
        """In place of ranks of a library that is not here: each as fast as the card's slot."""
        for task in tasks:
            reply = _exchanged(task, machine.chip, machine.link_share)
            clock.spend(reply.duration or 0.1)
            deliver(task, reply)

    no_disk = Target(
        torch_device="disk:/",
        name="disk",
        index=None,
        memory_bytes=0,
        chip=None,
        unusable=_LEFT_OUT,
    )
    no_text = Text(folder=None, reason=_LEFT_OUT, left_out=True)
    with (
        mock.patch.object(session, "inspect", look),
        mock.patch.object(session, "hold_machine_lock", return_value=contextlib.nullcontext()),
        mock.patch.object(session, "Worker", make),
        mock.patch.object(executor, "Worker", make),
        mock.patch.object(session, "time", clock.as_module()),
        mock.patch.object(executor, "time", clock.as_module()),
        mock.patch.object(sentinel, "time", clock.as_module()),
        mock.patch.object(crew, "time", clock.as_module()),
        mock.patch.object(Exchanger, "__call__", exchange),
        mock.patch.object(session, "disk_target", return_value=no_disk),
        mock.patch.object(session, "text_to_train_on", return_value=no_text),
        mock.patch("trainrig.report.run_report.render_html", return_value=""),
        mock.patch("os.fsync"),
    ):
        yield


class _Memory:
    """Stands for `store.RunWriter`: a run of one case, which nobody reads from a disk."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.path = Path()

    def view(self, _: Path) -> RunView:
        """In place of reading it again."""
        return RunView(name="", records=tuple(self.records))

    def append(self, record: Record) -> Record:
        self.records.append(record)
        return record

    def log_path(self, name: str) -> Path:
        return Path(name)


_ONE_CASE = Task(
    target=Target(torch_device="cpu", name="Test CPU", index=None, memory_bytes=1 << 36, chip=None),
    benchmark="matmul",
    planned=PlannedCase(
        case={"dtype": "fp32", "m": 2048, "k": 2048, "n": 2048, "cache": "hot"},
        step="fp32 matmul",
        required=True,
    ),
)
_NOMINAL = 0.04
"""s of a call."""


def judged_alone(speed: Callable[[int], tuple[float, str | None]], floor: float) -> str:
    """The outcome of a machine with one required case: real executor, points, judge.

    ``speed(worker)`` is what a fresh worker sees as a share of the nominal speed, and why it would
    not be judged; ``floor`` the least that is expected, as such a share.
    """
    clock, run, started = _Clock(), _Memory(), 0

    class Fresh(_Worker):
        def run(self, request: Request, *_: Any, **__: Any) -> Reply:
            share, why = self._seen
            call = _NOMINAL / share
            steps = range(-5, 6)
            return Reply(
                status=Status.OK,
                samples=tuple(call * (1.0 + 0.002 * step) for step in steps),
                stop="converged",
                disturbed=why,
                duration=1.0,
            )

        def __init__(self, number: int) -> None:
            self._seen, self._ready, self._clock = speed(number), clock.now, clock

    def make(*_: object) -> Any:
        nonlocal started
        started += 1
        return Fresh(started - 1)

    (planned,) = expectations([_ONE_CASE], [], [], [], "e")
    rate = benchmark("matmul").metrics(_ONE_CASE.case)[0].of(_NOMINAL)
    band = (floor * rate, 1.2 * rate)
    planned = run.append(planned.replace(status=Status.OK, value=rate, interval=band))
    module = clock.as_module()
    with (
        mock.patch.object(executor, "time", module),
        mock.patch.object(crew, "time", module),
        mock.patch.object(executor, "read_run", run.view),
    ):
        one = executor.Executor(
            cast(Any, run),
            environment="e",
            deadline=clock.now + 200.0,
            watch=lambda _: None,
            expected={(planned.key, planned.device_index): planned},
            make_worker=make,
        )
        block = Block(name="one", tasks=(_ONE_CASE,))
        one.run_block(block, 100.0)
        one.use_time_left()
    return judge(run.records).outcome.value


def qualified(machine: Machine) -> Result:
    """The verdict on a machine; an exception of the program is an outcome."""
    with tempfile.TemporaryDirectory(prefix="verdicts-") as folder, _in_place(machine):
        try:
            done = session.qualify(budget=machine.budget, out=Path(folder))
        except Exception as error:  # noqa: BLE001 - whatever the program raises is the outcome
            return Result(outcome=type(error).__name__, reason=str(error)[:200])
        return Result(
            outcome=done.verdict.outcome.value,
            reason=done.verdict.reason,
            findings=done.verdict.findings,
            records=tuple(read_run(done.run).records),
        )
