"""Was the machine quiet while a case ran?  Readings around it, and the rules that judge them.

`watch` reads the host's counters, this process's threads and the GPU before and
after its body, and leaves flat conditions and, where a rule was broken, the
reason why the case must not be judged.  `telemetry_row` is the parent's view,
about once a second, for the run's series.  The raw readings are those of
`machine.telemetry`; the thresholds are here and stand in docs/definitions.md.

The sharpest witness is the kernel's count of how long each of our own threads
was ready to run and had no processor (/proc/self/task/*/schedstat, nanoseconds).
A team of threads is as slow as its last member: with two threads and one busy
neighbour, `torch.mul` went from 6 µs to 8 ms a call with an interquartile range
under one percent, while that count stood at 100 % of the time (quiet: 0.1 to 1 %).
/proc/stat counts in ticks of 10 ms, so its shares are judged only beyond one tick.

A rank of a training cannot judge: beside it other ranks of the same training run, and to its
counters they are others.  `watch_neighbours` is the parent's: what all processors did, less
what this process and the children that it has waited for used, is what others took.

Sources: the kernel's Documentation/scheduler/sched-stats.rst and accounting/psi.rst;
NVML's clock event reasons.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache

from trainrig.machine.cgroup import cpu_quota
from trainrig.machine.counters import (
    WEAR,
    GpuWatch,
    HostConditions,
    HostLoad,
    HostReading,
    between,
    gpu_conditions,
    throttled_share,
)
from trainrig.machine.energy import package_meters
from trainrig.machine.host_state import processor_heat_files
from trainrig.machine.parse import scaled
from trainrig.machine.snapshot import Gpu, Missing, if_known, value_or
from trainrig.machine.system_access import ThisMachine
from trainrig.measure.stretches import Stretches
from trainrig.measure.waits import (
    MAX_THREAD_WAIT,
    MIN_MAIN_THREAD,
    OwnThreads,
    compare_waits,
    thread_waits,
)
from trainrig.record import Scalar

# Shares of the window.
MAX_STEAL = 0.02
MAX_QUOTA = 0.01
# A neighbour on another processor costs no waiting, but memory bandwidth and boost clock.
MAX_OTHER = 0.05
# A GPU works ahead of the thread that feeds it, so the host may stumble more.
MAX_GPU_THREAD_WAIT = 0.10

STEAL = "the hypervisor took {} of the processors"
OTHERS = "other processes used {} of the processors"
QUOTA = "the container's CPU quota held it back {} of it"

# /proc/stat counts in these.
TICK_S = 0.01
# Device work that is queued while a GPU's clocks are read: clocks at rest say nothing.
_BUSY_S = 0.03
_SHORTEST_CALL_S = 1e-6
# In /dev where NVIDIA's driver is (dxg: in Windows' subsystem for Linux).
_DRIVER_DEVICES = ("nvidia", "nvhost", "nvgpu", "dxg")
# The driver renews what each process used of a GPU about so often.
_USE_PERIOD_S = 1.0


@dataclass(slots=True, kw_only=True)
class Watched:
    """Conditions observed around a measurement; filled in when the watch ends."""

    conditions: dict[str, Scalar] = field(default_factory=dict)
    disturbed: str | None = None
    keep_busy: Callable[[], object] = lambda: None
    """Set by the body for a GPU: queues more of the same work while its clocks are read."""
    is_quiet: Callable[[], bool] = lambda: True
    """For the body to ask at the end of each stretch of samples."""
    quiet_share: float | None = None
    """Set by the body where its samples are of quiet stretches alone: their share of all."""


@contextmanager
def watch(device: str) -> Iterator[Watched]:
    """Read the machine's counters before and after the body."""
    watched = Watched()
    load, host = _host_load(), ThisMachine()
    gpu_before, began = None if device == "cpu" else _gpu_now(device), time.time()
    before = load.read()
    waits_before, ran_before, start = thread_waits(host), time.thread_time(), time.perf_counter()
    stretches = None if device != "cpu" else Stretches(load, host)
    watched.is_quiet = watched.is_quiet if stretches is None else stretches.is_quiet
    yield watched
    wall, ran = time.perf_counter() - start, time.thread_time() - ran_before
    threads = compare_waits(waits_before, thread_waits(host), main_ran=ran / wall, wall=wall)
    conditions = between(before, load.read())
    if stretches is not None and watched.quiet_share is not None:
        conditions, threads = stretches.conditions()
    watched.conditions = {**describe_host(conditions, threads), "threads": _num_threads()}
    if watched.quiet_share is not None:
        watched.conditions["quiet_share"] = watched.quiet_share
    if device == "cpu":
        quota = value_or(cpu_quota(ThisMachine()), None)
        if quota is not None and quota < _num_threads():  # half a processor: it is always held back
            conditions = replace(conditions, throttled_fraction=Missing("less than a thread needs"))
        watched.disturbed = judge_host(conditions, threads)
        return
    assert gpu_before is not None
    watched.keep_busy()
    gpu = _gpu_now(device, since=began - _USE_PERIOD_S)
    slowed = throttled_share(gpu_before, gpu, time.time() - began)
    _synchronize(device)
    watched.conditions.update(describe_gpu(gpu) | known({"throttled_share": slowed}))
    watched.disturbed = judge_gpu(gpu, threads)


@cache
def _host_load() -> HostLoad:
    return HostLoad()


def _num_threads() -> int:
    import torch

    return int(torch.get_num_threads())


def _synchronize(device: str) -> None:
    import torch

    torch.cuda.synchronize(device)


def _gpu_now(device: str, *, since: float | None = None) -> Gpu:
    known_by = gpu_uuid(device) or int(device.partition(":")[2] or 0)
    return gpu_conditions(known_by, holds_context=True, since=since)


def gpu_uuid(device: str) -> str | None:
    """Return ``GPU-`` and what torch says; None where its build says nothing."""
    import torch

    uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    return None if uuid is None else f"GPU-{str(uuid).removeprefix('GPU-')}"


def queue_more(call: Callable[[], object], per_call: float) -> Callable[[], None]:
    """Makes enough calls to keep a GPU busy while its clocks are read."""
    count = max(1, round(_BUSY_S / max(per_call, _SHORTEST_CALL_S)))

    def queue() -> None:
        for _ in range(count):
            call()

    return queue


Rule = tuple[float | Missing, float, str]
"""A share that was seen, the most that is allowed, and the words with ``{}`` for the share."""


def first_broken(rules: Iterable[Rule]) -> str | None:
    """Return the text of the first rule whose share is known and too large, or None."""
    for value, most, words in rules:
        if not isinstance(value, Missing) and value > most:
            return words.format(_percent(value))
    return None


def judge_host(host: HostConditions, threads: OwnThreads) -> str | None:
    """Return why a measurement on the host's processors must not be judged, or None."""
    grain = TICK_S / host.wall_s
    rules = (
        (threads.worst_wait, MAX_THREAD_WAIT, "a thread waited for a core {} of the time"),
        (host.throttled_fraction, MAX_QUOTA, QUOTA),
        (host.steal_fraction, MAX_STEAL + grain, STEAL),
        (host.busy_other_fraction, MAX_OTHER + grain, OTHERS),
    )
    if (broken := first_broken(rules)) is not None:
        return broken
    if threads.main_ran < MIN_MAIN_THREAD:
        return f"the measuring thread ran only {_percent(threads.main_ran)} of the time"
    if (events := value_or(host.thermal_events, 0)) > 0:
        return f"the processor slowed down {events} times because it was hot"
    return None


def judge_gpu(gpu: Gpu, threads: OwnThreads) -> str | None:
    """Return why a measurement on a GPU must not be judged, or None.

    A GPU that slowed itself down is none: that is the device, and its conditions say so.
    """
    waited = "the thread that feeds the GPU waited for a core {} of the time"
    used = "other processes used {} of the GPU"
    return first_broken(
        [
            (gpu.activity.others_utilization, MAX_OTHER, used),
            (threads.worst_wait, MAX_GPU_THREAD_WAIT, waited),
        ]
    )


def _percent(share: float) -> str:
    return f"{share * 100.0:.0f} %"


def describe_load(host: HostConditions) -> dict[str, Scalar]:
    """Return the known conditions of the host's processors: flat keys, base SI units."""
    return known(
        {
            "load_1m": host.load_1m,
            "other_cpu_share": host.busy_other_fraction,
            "steal_share": host.steal_fraction,
            "cpu_time_per_wall": host.own_cpus,
        }
    )


def describe_host(host: HostConditions, threads: OwnThreads) -> dict[str, Scalar]:
    """Return `describe_load`, and how the measuring threads fared."""
    return describe_load(host) | known(
        {
            "thread_wait_share": threads.worst_wait,
            "main_thread_share": threads.main_ran,
            "cpu_clock_hz": host.clock_hz,
        }
    )


def describe_gpu(gpu: Gpu) -> dict[str, Scalar]:
    """Flat, base SI units, without what is unknown."""
    clock = gpu.clocks.sm_hz
    unread = {"gpu_not_read": clock.reason} if isinstance(clock, Missing) else {}
    return unread | known(
        {
            "sm_clock_hz": clock,
            "memory_clock_hz": gpu.clocks.memory_hz,
            "power_w": gpu.power.draw_w,
            "temperature_c": gpu.cooling.temperature_c,
            "throttle_reasons": if_known(",".join, gpu.clocks.throttle_reasons),
            "pcie_generation": gpu.link.generation,
            "pcie_width": gpu.link.width,
            "other_gpu_processes": gpu.activity.num_processes,
            "other_gpu_share": gpu.activity.others_utilization,
        }
    )


def known(values: dict[str, Scalar | Missing]) -> dict[str, Scalar]:
    """Return the values that are not Missing."""
    return {name: value for name, value in values.items() if not isinstance(value, Missing)}


def suspended_s() -> float | Missing:
    """Return the seconds since boot that the machine was suspended (the monotonic clock stops)."""
    if not hasattr(time, "CLOCK_BOOTTIME"):
        return Missing("this system has no clock that counts while it is suspended")
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic())


class Telemetry:
    """The machine second by second, for the parent; takes no torch, under 2 ms, never waits."""

    def __init__(self, *, in_detail: bool = False) -> None:
        """``in_detail``: heat and energy of the processors, errors and joules of GPUs too."""
        host = ThisMachine()
        self._heat = processor_heat_files(host) if in_detail else ()
        self._meters = value_or(package_meters(host), ()) if in_detail else ()
        self._load = HostLoad()
        self._latest: HostReading = self._load.read(own_cpu_s=0.0)
        devices = value_or(ThisMachine().names("/dev"), ())
        has_driver = any(name.startswith(_DRIVER_DEVICES) for name in devices)
        extra_fields = WEAR if in_detail else frozenset[str]()
        self._gpus = GpuWatch(more=extra_fields) if has_driver else None

    def close(self) -> None:
        """End the driver's reader; the process's end does so, too."""
        if self._gpus is not None:
            self._gpus.close()

    def row(self) -> dict[str, Scalar]:
        """Return one row: what the host did since the last one, and each GPU now."""
        reading = self._load.read(own_cpu_s=0.0)
        host = between(self._latest, reading)
        self._latest = reading
        row = known(
            {
                "t": time.time(),
                "m": time.monotonic(),
                "suspended_s": suspended_s(),
                "cpu_share": host.busy_other_fraction,
                "steal_share": host.steal_fraction,
                "load_1m": host.load_1m,
                "cpu_clock_hz": host.clock_hz,
            }
        )
        row |= self._host_in_detail()
        for gpu in self._gpus.latest() if self._gpus is not None else ():
            wear: dict[str, Scalar | Missing] = {
                "utilization": gpu.activity.utilization,
                "ecc_corrected": gpu.ecc.corrected_volatile,
                "ecc_uncorrected": gpu.ecc.uncorrected_volatile,
                "pcie_replays": gpu.pcie_replays,
                "energy_j": gpu.power.energy_j,
            }
            found = {**describe_gpu(gpu), **known(wear)}
            row |= {f"gpu{gpu.index}_{name}": value for name, value in found.items()}
        return row

    def _host_in_detail(self) -> dict[str, Scalar]:
        """Return the hottest sensor of the processors, and what they used since the first row."""
        host, row = ThisMachine(), dict[str, Scalar]()
        read = (scaled(host.read(path), 1e-3, "temperature", most=2e5) for path in self._heat)
        degrees = [value for value in read if not isinstance(value, Missing)]
        if degrees:
            row["cpu_temperature_c"] = max(degrees)
        for meter in self._meters:
            meter.take()
        sound = [meter for meter in self._meters if meter.points and meter.broken is None]
        if sound:
            row["cpu_energy_j"] = sum(meter.points[-1][1] for meter in sound)
        if sound and all(len(meter.points) > 1 for meter in sound):
            row["cpu_power_w"] = sum(
                (meter.points[-1][1] - meter.points[-2][1])
                / max(meter.points[-1][0] - meter.points[-2][0], 1e-3)
                for meter in sound
            )
        return row


@cache
def _telemetry() -> Telemetry:
    return Telemetry()


def telemetry_row() -> dict[str, Scalar]:
    """Return next row of series/telemetry.jsonl: ``t`` in seconds since 1970, then base SI units.

    ``m`` is the monotonic clock's, which orders rows; ``suspended_s`` what the machine has slept.
    ``cpu_share`` is what all processes used of all processors since the last row.
    """
    return _telemetry().row()


@contextmanager
def watch_neighbours() -> Iterator[Watched]:
    """Read the host's counters around a body that starts processes and waits for them."""
    watched, load = Watched(), HostLoad()
    before = load.read(own_cpu_time())
    yield watched
    watched.disturbed = judge(between(before, load.read(own_cpu_time())))


def judge(host: HostConditions) -> str | None:
    """Return why a training must not be judged, or None."""
    grain = TICK_S / host.wall_s
    return first_broken(
        (
            (host.busy_other_fraction, MAX_OTHER + grain, OTHERS),
            (host.steal_fraction, MAX_STEAL + grain, STEAL),
        )
    )


def own_cpu_time() -> float:
    """Processor seconds of this process and of its children that have ended."""
    return sum(os.times()[:4])
