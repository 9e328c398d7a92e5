"""One look at a machine that works: sensors, processes, runs that are being written, jobs.

Sensors are `measure.noise.Telemetry`'s, the ones that a measurement has beside it.  A run is alive
where some process holds the lock of its records (/proc/locks, and the files that the process has
open: nothing is locked here, so that no writer is ever disturbed, and it does not matter in which
folder it writes); what it does is read from its series as they grow, a step or a slice of work a
line.  Nothing is asked of the processes themselves; those of other users are not seen into.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trainrig.analysis.burn_facts import WORK as BURN
from trainrig.errors import DataError
from trainrig.machine.memory import meminfo_sizes
from trainrig.machine.probes import inspect
from trainrig.machine.snapshot import Missing, Snapshot, value_or
from trainrig.machine.system_access import Host, ThisMachine
from trainrig.measure.noise import Telemetry
from trainrig.record import Scalar
from trainrig.remote.detached import all_jobs
from trainrig.store.run_folder import CONFIG, RECORDS, SERIES, parse_config, read_file
from trainrig.watch.processes import ProcessLoad, ProcessWatch

_MOST_BYTES = 1 << 22
"""Bytes at the end of a series that are read first, where it is long."""
_MOST_POINTS = 240
_GPU = re.compile(r"gpu(\d+)_(\w+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveDevice:
    """A device and what its sensors say, in base SI units."""

    name: str
    index: int | None
    """Number of the GPU; None for the processors."""
    readings: Mapping[str, Scalar]


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveTraining:
    """A training that is being written, at its last step."""

    run: str
    experiment: str
    step: int
    """Steps that are done."""
    loss: float | None
    grad_norm: float | None
    tokens_per_s: float | None
    age_s: float
    """Seconds since its series grew."""
    rates: tuple[float, ...]
    """Tokens per second of the last steps, for a chart."""
    losses: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveBurn:
    """A device of a burn that is being written."""

    run: str
    device: str
    part: str
    rate: float | None
    unit: str
    errors: int
    """Since it began."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveRun:
    """A run that a process writes."""

    run: str
    folder: str
    verb: str
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveView:
    """State of a machine at one moment."""

    at: float
    """Seconds since 1970."""
    devices: tuple[LiveDevice, ...]
    memory_total_bytes: int | None
    memory_available_bytes: int | None
    processes: tuple[ProcessLoad, ...]
    runs: tuple[LiveRun, ...]
    trainings: tuple[LiveTraining, ...]
    burns: tuple[LiveBurn, ...]
    jobs: Mapping[str, str]
    """Running: id → command."""

    def to_dict(self) -> dict[str, Any]:
        """Return the object that ``top --json`` prints."""
        return asdict(self)


class GrowingFile:
    """A file of lines that grows: what is new in it, look by look."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._place: int | None = None

    def news(self) -> list[dict[str, Any]]:
        """Return the whole lines since the last look; of a long file first its end."""
        try:
            with self.path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                if self._place is None or self._place > size:
                    self._place = max(0, size - _MOST_BYTES)
                file.seek(self._place)
                data = file.read()
        except OSError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._place += len(whole)
        return list(_rows(whole.splitlines()))


def _rows(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    for line in lines:
        try:
            row = json.loads(line)
        except ValueError:  # the first line of a long file's end is half a line
            continue
        if isinstance(row, dict):
            yield row


class _Growing:
    """The series of one live run."""

    def __init__(self, folder: Path, verb: str) -> None:
        self.folder, self.verb = folder, verb
        self.series: dict[str, GrowingFile] = {}
        self.rows: dict[str, list[dict[str, Any]]] = {}
        self.errors: dict[str, int] = {}
        self.grown: dict[str, float] = {}

    def look(self, now: float) -> None:
        """Read what was written since."""
        for path in sorted((self.folder / SERIES).glob("[!.]*.jsonl")):
            name = path.stem
            if not name.startswith("steps-") and name != BURN:
                continue
            new_rows = self.series.setdefault(name, GrowingFile(path)).news()
            for row in new_rows if name == BURN else ():
                device = str(row.get("device"))
                self.errors[device] = self.errors.get(device, 0) + int(row.get("errors") or 0)
            if new_rows:
                self.grown[name] = now
            self.rows[name] = [*self.rows.get(name, []), *new_rows][-_MOST_POINTS:]

    def trainings(self, now: float) -> Iterator[LiveTraining]:
        for name, rows in self.rows.items():
            if name.startswith("steps-") and rows:
                last = rows[-1]
                yield LiveTraining(
                    run=self.folder.name,
                    experiment=name.removeprefix("steps-"),
                    step=int(last.get("step") or 0) + 1,
                    loss=_number(last.get("loss")),
                    grad_norm=_number(last.get("grad_norm")),
                    tokens_per_s=_number(last.get("tokens_per_s")),
                    age_s=now - self.grown.get(name, now),
                    rates=_numbers(rows, "tokens_per_s"),
                    losses=_numbers(rows, "loss"),
                )

    def burns(self) -> Iterator[LiveBurn]:
        last = {str(row.get("device")): row for row in self.rows.get(BURN, ())}
        for device, row in last.items():
            yield LiveBurn(
                run=self.folder.name,
                device=device,
                part=str(row.get("part", "")),
                rate=_number(row.get("rate")),
                unit=str(row.get("unit", "")),
                errors=self.errors.get(device, 0),
            )


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _numbers(rows: Iterable[Mapping[str, Any]], name: str) -> tuple[float, ...]:
    return tuple(value for row in rows if (value := _number(row.get(name))) is not None)


class LiveWatch:
    """A machine, look by look."""

    def __init__(
        self,
        telemetry: Telemetry | None = None,
        host: Host | None = None,
        snapshot: Snapshot | None = None,
    ) -> None:
        self._host = host or ThisMachine()
        self._telemetry = telemetry or Telemetry(in_detail=True)
        self._snapshot = snapshot or inspect(self._host, patience_s=_PATIENCE_S)
        self._processes = ProcessWatch(self._host)
        self._growing: dict[Path, _Growing] = {}

    def look(self) -> LiveView:
        """Look at the machine at this moment."""
        now = time.time()
        jobs = {job.id: job.shown_command for job in all_jobs() if job.state == "running"}
        runs = tuple(self._alive())
        for run in runs:
            folder = Path(run.folder)
            self._growing.setdefault(folder, _Growing(folder, run.verb)).look(now)
        alive = [self._growing[Path(run.folder)] for run in runs]
        sizes = meminfo_sizes(self._host.read("/proc/meminfo"))
        return LiveView(
            at=now,
            devices=tuple(self._devices(self._telemetry.row())),
            memory_total_bytes=_bytes(sizes, "MemTotal"),
            memory_available_bytes=_bytes(sizes, "MemAvailable"),
            processes=self._processes.look({run.pid: run.run for run in runs}),
            runs=runs,
            trainings=tuple(training for live_run in alive for training in live_run.trainings(now)),
            burns=tuple(burn for live_run in alive for burn in live_run.burns()),
            jobs=jobs,
        )

    def _alive(self) -> Iterator[LiveRun]:
        """Yield the runs that some process writes."""
        for pid in sorted(lock_holders(self._host)):
            names = self._host.names(f"/proc/{pid}/fd")
            for name in () if isinstance(names, Missing) else names:
                path = Path(value_or(self._host.link_text(f"/proc/{pid}/fd/{name}"), ""))
                if path.name != RECORDS:
                    continue
                run = path.parent
                try:
                    config = parse_config(read_file(run / CONFIG), run)
                except DataError:
                    continue
                verb = str(config.get("verb", "?"))
                yield LiveRun(run=run.name, folder=str(run), verb=verb, pid=pid)

    def _devices(self, row: Mapping[str, Scalar]) -> Iterator[LiveDevice]:
        """Yield the processors, then each GPU that is there, whether its driver answers or not."""
        gpus: dict[int, dict[str, Scalar]] = {}
        host: dict[str, Scalar] = {}
        for name, value in row.items():
            if (match := _GPU.fullmatch(name)) is not None:
                gpus.setdefault(int(match[1]), {})[match[2]] = value
            elif name not in ("t", "m", "suspended_s"):  # clocks: each reading has its own time
                host[name] = value
        yield LiveDevice(
            name=value_or(self._snapshot.cpu.model, "processor"), index=None, readings=host
        )
        known = {gpu.index: gpu for gpu in value_or(self._snapshot.gpus, ())}
        for index in sorted({*known, *gpus}):
            name = value_or(known[index].name, "GPU") if index in known else "GPU"
            yield LiveDevice(name=name, index=index, readings=gpus.get(index, {}))


_PATIENCE_S = 2.5


def lock_holders(host: Host) -> set[int]:
    """Return processes that hold some file's lock for themselves.

    Format: ``1: FLOCK  ADVISORY  WRITE 4242 08:01:131 0 EOF`` (proc(5)).
    """
    text = host.read("/proc/locks")
    if isinstance(text, Missing):
        return set()
    pids = re.findall(r"^\d+: FLOCK\s+\S+\s+WRITE\s+(\d+) ", text, re.MULTILINE)
    return {int(pid) for pid in pids}


def _bytes(sizes: object, name: str) -> int | None:
    value = sizes.get(name) if isinstance(sizes, Mapping) else None
    return value if isinstance(value, int) else None
