"""`trainrig burn`: plan → machine → one process a device → records, series, verdict.

GPUs burn side by side, then the host by itself, so that feeding the GPUs and heating the processor
do not disturb each other.  What is to be done is written before anything is started (predicted
records without a value, one a device and phase): what is missing of it afterwards is seen whatever
ended the run.  The parent reads events and sensors, once a second, and computes nothing.

Series of the run: ``telemetry`` (`measure.noise`), ``burn`` with a row for each slice of work, and
``burn-digests`` with the digests of training steps, of devices and of the golden file.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from trainrig.analysis.burn_facts import DIGESTS, TELEMETRY, burn_summary
from trainrig.benchmarks.burn import (
    BENCHMARK,
    CORES,
    MATMUL,
    MEMORY,
    STRESS,
    burn_case,
    metric_of,
)
from trainrig.catalog.lookup import find_chip
from trainrig.errors import StoreError
from trainrig.machine import environment_digest, inspect, to_dict
from trainrig.machine.snapshot import Gpu, Snapshot, value_or
from trainrig.measure.noise import Telemetry
from trainrig.process.python_env import check_torch
from trainrig.process.supervisor import Command, Ended, launch
from trainrig.record import Kind, Record, Scalar, Status
from trainrig.runner.burn_events import BurnState, SeenDevice, SeenPart, state_text
from trainrig.runner.burn_golden import Golden, key_of
from trainrig.runner.burn_plan import BurnPart, BurnRequest, check_request, plan_parts
from trainrig.runner.burn_stress import stress, stress_program
from trainrig.runner.expectations import claims_for, limit_of_point
from trainrig.runner.progress import (
    Progress,
    Watcher,
    hold_machine_lock,
    interrupted_once,
    null_progress,
)
from trainrig.runner.targets import Target, described, find_targets
from trainrig.runner.view import RunOutcome, fill_run
from trainrig.store import RunWriter, create_run, read_run
from trainrig.units import format_quantity

_STALL_S = 180.0
"""Seconds without an event: a product of a slow processor, memory that is taken."""
_LATE_S = 300.0
"""Seconds allowed for preparing, beyond the time of all phases."""
_TICK_S = 1.0
_TALK_S = 15.0
"""Between two lines of progress where there is no live view."""

Look = Callable[[Sequence[BurnState]], None]
"""Called about once a second with all devices."""


def burn(
    request: BurnRequest,
    *,
    out: Path = Path("runs"),
    watch: Watcher = null_progress,
    look: Look | None = None,
) -> RunOutcome:
    """Burn, judge, and leave a run in ``out``.

    Raises UsageError for what is not there or cannot be, before anything is written; StoreError
    when the run cannot be written.
    """
    planned = plan_burn(request)
    check_torch()
    config = {
        "trainrig": version("trainrig"),
        "python": sys.version.split()[0],
        "seconds": request.seconds,
        "mode": request.mode,
        "devices": list(request.devices),
        **({"dtypes": list(request.dtypes)} if request.dtypes else {}),
        **({"memory": f"{request.memory_bytes}B"} if request.memory_bytes is not None else {}),
        **({"golden": str(request.golden)} if request.golden is not None else {}),
    }
    run = create_run(out, BENCHMARK.name, config)

    def fill() -> None:
        with hold_machine_lock(watch, request.seconds):
            _Burn(run, request, planned, watch, look).carry_out()

    with run, interrupted_once():
        outcome = fill_run(run, fill, "interrupted before its time was over")
    planned.golden.add_run(run.path, outcome.verdict.outcome)
    return outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedBurn:
    """Burn of a request on this machine: its devices, parts and run."""

    golden: Golden
    snapshot: Snapshot
    targets: tuple[Target, ...]
    lanes: tuple[tuple[BurnPart, ...], ...]
    left_out: tuple[Gpu, ...]
    """GPUs that are meant and that this torch was not built for."""


def plan_burn(request: BurnRequest) -> PlannedBurn:
    """Look at the machine, and plan.  UsageError, DataError: what is refused before all else."""
    check_request(request)
    golden = Golden.read(request.golden)
    snapshot = described(inspect())
    targets = find_targets(snapshot)
    lanes = plan_parts(request, targets, stress=stress_program() is not None)
    return PlannedBurn(
        golden=golden,
        snapshot=snapshot,
        targets=targets,
        lanes=lanes,
        left_out=_left_out(request, snapshot, os.environ),
    )


def _left_out(
    request: BurnRequest, snapshot: Snapshot, environ: Mapping[str, str]
) -> tuple[Gpu, ...]:
    """Return GPUs left out of a burn: a CPU-only torch must not silently burn the host alone."""
    software = snapshot.software
    is_built = software.torch_cuda is not None or software.torch_hip is not None
    if request.devices or request.mode == CORES or is_built or "CUDA_VISIBLE_DEVICES" in environ:
        return ()
    return tuple(gpu for gpu in value_or(snapshot.gpus, ()) if gpu.vendor == "nvidia")


class _Burn:
    """A burn that is under way."""

    def __init__(
        self,
        run: RunWriter,
        request: BurnRequest,
        planned: PlannedBurn,
        watch: Watcher,
        look: Look | None,
    ) -> None:
        self._run, self._request, self._plan = run, request, planned
        self._watch, self._look = watch, look
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._full: StoreError | None = None
        self._states: dict[Target, BurnState] = {}
        self._claims: tuple[Record, ...] = ()
        self._environment = ""
        self._talked = time.monotonic()

    def carry_out(self) -> None:
        """Write down what is planned, then burn."""
        snapshot, lanes = self._plan.snapshot, self._plan.lanes
        self._environment = environment_digest(snapshot)
        self._run.write_machine(to_dict(snapshot))
        self._claims = claims_for(snapshot, self._plan.targets)
        for gpu in self._plan.left_out:
            self._leave_out(gpu)
        for part in (part for lane in lanes for part in lane):
            self._append(_planned(part, self._environment))
            self._states.setdefault(part.target, BurnState(target=part.target))
        self._watch(Progress(text=f"run {self._run.path}", level="stage"))
        telemetry = Telemetry(in_detail=True)
        sampling = threading.Thread(target=self._sample, args=(telemetry,), daemon=True)
        sampling.start()
        try:
            for lane in lanes:
                self._run_lane(lane)
        finally:
            self._stop.set()
            sampling.join(2 * _TICK_S)
            telemetry.close()
            if any(target.is_gpu for target in self._states):
                with suppress(StoreError):
                    after = dataclasses.replace(snapshot, gpus_after=inspect().gpus)
                    self._run.write_machine(to_dict(after))
        if self._full is not None:
            raise self._full

    def _leave_out(self, gpu: Gpu) -> None:
        """Write the records of devices that are left out."""
        name = value_or(gpu.name, "unknown GPU")
        target = Target(
            torch_device="cuda", name=name, index=gpu.index, memory_bytes=0, chip=find_chip(name)
        )
        part = BurnPart(target=target, mode=MATMUL, dtype="bf16", seconds=0.0)
        planned = self._append(_planned(part, self._environment))
        reason = "this torch was built without CUDA; or leave the GPUs out: --devices cpu"
        ended = Ended(status=Status.SKIPPED, reason=reason)
        self._append(SeenPart(part).record(planned, ended))

    # ---- a lane

    def _run_lane(self, parts: Sequence[BurnPart]) -> None:
        """Burn a lane's devices side by side; a fault of one does not stop the others."""
        by_target: dict[Target, list[BurnPart]] = {}
        for part in parts:
            by_target.setdefault(part.target, []).append(part)
        with ThreadPoolExecutor(len(by_target)) as threads:
            futures = [
                threads.submit(self._run_device, target, device_parts)
                for target, device_parts in by_target.items()
            ]
            try:
                self._wait_for(futures)
            except BaseException:
                self._stop.set()
                raise
        for future in futures:
            future.result()

    def _wait_for(self, futures: Sequence[Future[None]]) -> None:
        pending: set[Future[None]] = set(futures)
        while pending:
            _, pending = wait(pending, timeout=_TICK_S)
            self._show()
            if self._full is not None:
                raise self._full

    def _run_device(self, target: Target, parts: Sequence[BurnPart]) -> None:
        """Run all phases of one device in one process, then write its records."""
        lane = SeenDevice(parts)
        folder = self._run.log_path(f"burn-{target.torch_device.replace(':', '-')}").with_suffix("")
        folder.mkdir()
        phases = [self._phase(part) for part in parts]
        (folder / "plan.json").write_text(
            json.dumps({"device": target.torch_device, "phases": phases})
        )
        state = self._states[target]
        state.ends_at = time.monotonic() + sum(part.seconds + part.stress_s for part in parts)
        state.doing = "starting"
        stressed_part = next((part for part in parts if part.stress_s), None)

        def on_event(_: int, event: Mapping[str, Any]) -> None:
            with self._lock:
                lane.take(event, state, self._row)

        try:
            ended = launch(
                Command(  # the driver's numbers are CUDA's then, whatever cards are beside
                    argv=(*self._request.program, str(folder)),
                    env={"CUDA_DEVICE_ORDER": "PCI_BUS_ID"},
                ),
                folder,
                stall_timeout=_STALL_S,
                limit=sum(part.seconds for part in parts) * 1.5 + _LATE_S,
                on_event=on_event,
                tick=self._tick,
            )
        except KeyboardInterrupt:  # what was found until then is written
            ended = Ended(status=Status.SKIPPED, reason="interrupted before its time was over")
        for part, seen in zip(parts, lane.seen, strict=True):
            self._finish(part, seen, lane, ended)
        program = stress_program()
        if stressed_part and program and ended.status is Status.OK and not self._stop.is_set():
            self._run_stress(program, stressed_part)
        state.doing, state.rate = "done" if ended.status is Status.OK else "failed", None
        if ended.status is Status.OK:
            shutil.rmtree(folder, ignore_errors=True)

    def _phase(self, part: BurnPart) -> dict[str, Any]:
        phase: dict[str, Any] = {"mode": part.mode, "dtype": part.dtype, "seconds": part.seconds}
        if part.mode == MEMORY:
            phase |= {
                "memory_bytes": self._request.memory_bytes,
                "free_bytes": part.target.memory_bytes,
            }
        return phase | dict(self._request.phase_settings)

    def _tick(self) -> None:
        """Stop the device's thread when the run is over."""
        if self._stop.is_set():
            raise KeyboardInterrupt

    def _run_stress(self, program: str, part: BurnPart) -> None:
        """Run stress-ng's verified stressors for part of the time."""
        self._states[part.target].doing = STRESS
        outcome = stress(program, part.stress_s, self._run.log_path(STRESS), self._stop.is_set)
        with self._lock:
            record = _planned(part, self._environment).replace(
                kind=Kind.MEASURED,
                case=burn_case(STRESS),
                metric=metric_of(STRESS)[0],
                unit=metric_of(STRESS)[1],
                value=outcome.rate,
                status=outcome.status,
                reason=outcome.reason,
                conditions=dict(outcome.conditions),
            )
            self._append(record)

    # ---- what is written

    def _append(self, record: Record) -> Record:
        return self._run.append(record)

    def _row(self, name: str, row: Mapping[str, Any]) -> None:
        try:
            self._run.append_series(name, row)
        except StoreError as error:
            self._full = error
            self._stop.set()

    def _finish(self, part: BurnPart, seen: SeenPart, lane: SeenDevice, ended: Ended) -> None:
        """Write the record of a phase and check its digests."""
        with self._lock:
            planned = _planned(part, self._environment)
            record = seen.record(planned, ended, is_last=seen is lane.seen[-1])
            if part.mode == MEMORY and (requested := self._request.memory_bytes) is not None:
                record = record.replace(
                    conditions={**record.conditions, "requested_bytes": requested}
                )
            record = record.replace(limit=limit_of_point(record, self._claims))
            self._append(record)
            if seen.digests is not None:
                key = key_of(part.target.name, part.dtype, lane.ready)
                row = {"device": part.target.name, "index": part.target.index, "key": key}
                self._row(DIGESTS, {**row, **seen.digests})
                if (stored := self._plan.golden.find(key)) is not None:
                    self._row(DIGESTS, {**stored, "index": None, "golden": True})
        name = f"{part.target.label}, {part.name}"
        words = f"{record.status}: {record.reason}"
        if record.status is Status.OK and record.value is not None:
            words = f"{format_quantity(record.value, record.unit)}, {seen.checked_text()}, no error"
        self._watch(Progress(text=f"{name}: {words}"))

    def _sample(self, telemetry: Telemetry) -> None:
        """Write a row of sensor readings each second until the burn is over."""
        while not self._stop.wait(_TICK_S):
            row = telemetry.row()
            with self._lock:
                self._row(TELEMETRY, row)
                for target, state in self._states.items():
                    series_name = "cpu" if target.index is None else f"gpu{target.index}"
                    state.temperature_c = _number(row.get(f"{series_name}_temperature_c"))
                    state.power_w = _number(row.get(f"{series_name}_power_w"))

    def _show(self) -> None:
        now = time.monotonic()
        for state in self._states.values():
            state.left_s = max(0.0, state.ends_at - now)
        if self._look is not None:
            self._look(list(self._states.values()))
        elif now - self._talked > _TALK_S:
            self._talked = now
            for state in self._states.values():
                if state.rate is not None:
                    self._watch(Progress(text=state_text(state), level="stage"))


def _number(value: Scalar) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _planned(part: BurnPart, environment: str) -> Record:
    """Return the record of a planned part, written before it runs."""
    metric, unit = metric_of(part.mode)
    return Record(
        kind=Kind.PREDICTED,
        benchmark=BENCHMARK.name,
        version=BENCHMARK.version,
        case=part.case,
        metric=metric,
        unit=unit,
        device=part.target.name,
        device_index=part.target.index,
        environment=environment,
        status=Status.MISSING,
        reason="no target: every result has to be right",
        conditions={"step": part.name, "required": True, "planned_s": part.seconds},
    )


def summary(result: RunOutcome) -> dict[str, Any]:
    """Return what ``burn --json`` prints last."""
    return {**result.to_dict(), "devices": burn_summary(read_run(result.run))}
