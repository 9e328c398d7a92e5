"""The machine's state around a measurement: cheap to read, twice, and compared.

`HostLoad.read` takes well under a millisecond; `between` turns two readings into
what happened meanwhile.  Whether that disturbed a measurement is for `measure`
to judge.

Definitions.  Busy: processor time the kernel counts as user, nice, system, irq
and softirq, over all logical processors, less what the measuring process itself
used; the kernel counts in ticks of 10 ms, so a short span reads coarsely.
Steal: time a virtual machine wanted to run and the hypervisor ran another.
Source: the kernel's proc(5) and cgroup-v2.rst.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainrig.machine import nvml
from trainrig.machine.cgroup import throttled_s
from trainrig.machine.nvidia import NVML_PROGRAM, PATIENCE_S, read_device
from trainrig.machine.parse import integer, json_object, number, objects, percent, scaled
from trainrig.machine.snapshot import Gpu, Missing, if_known
from trainrig.machine.system_access import Host, ThisMachine
from trainrig.process.supervisor import Child

_CPUS = "/sys/devices/system/cpu"
_TICKS_PER_S = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
# Reading a frequency can interrupt that processor; a few of them tell enough.
_MAX_CLOCKS = 4
_WATCH_PERIOD_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HostReading:
    """The host's counters at one moment."""

    time_s: float
    """Monotonic."""
    own_cpu_s: float
    """Processor time of the measuring process so far."""
    threads: int | Missing
    busy_s: float | Missing
    steal_s: float | Missing
    throttled_s: float | Missing
    """Time in which the control group's quota held this process back."""
    thermal_events: int | Missing
    load_1m: float | Missing
    clock_hz: float | Missing
    """Median of a few processors' current clocks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostConditions:
    """Load of the host between two readings."""

    wall_s: float
    busy_other_fraction: float | Missing
    """Share of all processors' time that other processes used, 0 to 1."""
    steal_fraction: float | Missing
    """Share of all processors' time that the hypervisor took, 0 to 1."""
    own_cpus: float
    """Processors' worth of time the measuring process used."""
    throttled_fraction: float | Missing
    """Share of the time in which the control group's quota was used up."""
    thermal_events: int | Missing
    """Times a processor slowed down because it was hot."""
    load_1m: float | Missing
    clock_hz: float | Missing


class HostLoad:
    """Reads the host's counters; make it once, read it before and after."""

    def __init__(self, host: Host | None = None) -> None:
        self._host = host if host is not None else ThisMachine()
        self._clocks, self._throttles = _counters(self._host)

    def read(self, own_cpu_s: float | None = None) -> HostReading:
        """Return the counters now; `own_cpu_s` replaces this process's own processor time."""
        host = self._host
        threads, busy, steal = parse_stat(host.read("/proc/stat"))
        clocks = _numbers(scaled(host.read(path), 1e3, "clock") for path in self._clocks)
        heat = _numbers(integer(host.read(path), "count") for path in self._throttles)
        no_clock = Missing("the processors' clock is not readable")
        return HostReading(
            time_s=time.monotonic(),
            own_cpu_s=time.process_time() if own_cpu_s is None else own_cpu_s,
            threads=threads,
            busy_s=busy,
            steal_s=steal,
            throttled_s=throttled_s(host),
            thermal_events=int(sum(heat)) if heat else Missing("no heat events are counted"),
            load_1m=number(host.read("/proc/loadavg"), "load"),
            clock_hz=clocks[len(clocks) // 2] if clocks else no_clock,
        )


def between(before: HostReading, after: HostReading) -> HostConditions:
    """Return the load of the host from `before` to `after`."""
    wall = max(after.time_s - before.time_s, 1e-9)
    own_cpu_s = max(after.own_cpu_s - before.own_cpu_s, 0.0)
    total = if_known(lambda threads: threads * wall, after.threads)
    return HostConditions(
        wall_s=wall,
        busy_other_fraction=_share(rise(before.busy_s, after.busy_s), own_cpu_s, total),
        steal_fraction=_share(rise(before.steal_s, after.steal_s), 0.0, total),
        own_cpus=own_cpu_s / wall,
        throttled_fraction=_share(rise(before.throttled_s, after.throttled_s), 0.0, wall),
        thermal_events=if_known(int, rise(before.thermal_events, after.thermal_events)),
        load_1m=after.load_1m,
        clock_hz=after.clock_hz,
    )


def gpu_conditions(
    device: int | str, *, holds_context: bool = False, since: float | None = None
) -> Gpu:
    """Return the state of one NVIDIA GPU, by NVML's index, by UUID or by PCI address.

    Only what a measurement asks for is read; its processes are those of others.
    ``holds_context`` says that this process itself has the GPU open: where the
    driver then does not list it, its process numbers are another namespace's.
    ``since`` (s since 1970) asks for what other processes used of it from then on.

    CUDA's index is not NVML's where CUDA_VISIBLE_DEVICES is set: give the UUID
    (torch prints it without its ``GPU-``; both are taken).
    """
    failed = nvml.start()
    if isinstance(device, str) and device.count("-") == 4 and ":" not in device:
        device = "GPU-" + device.removeprefix("GPU-")
    handle = nvml.handle_of(device) if failed is None else failed
    if isinstance(handle, dict):
        facts = dict.fromkeys(_GPU_FACTS, handle)
    else:
        facts = nvml.device_facts(handle, _GPU_FACTS)
    gpu = read_device(0, facts)
    used = [] if since is None or isinstance(handle, dict) else nvml.process_use(handle, since)
    return _other_processes(gpu, facts.get("processes"), used, holds_context=holds_context)


_GPU_FACTS = frozenset(
    ["sm_clock", "memory_clock", "power", "temperature", "throttle", "utilization", "processes"]
    + ["slowed_by_heat", "slowed_by_board", "pcie_generation", "pcie_width"]
)


WEAR = frozenset(["corrected_volatile", "uncorrected_volatile", "pcie_replays", "energy"])
"""Counters that grow while a device computes: errors, joules."""


def _other_processes(gpu: Gpu, processes: object, used: object, *, holds_context: bool) -> Gpu:
    """Return the processes on a GPU and their use of it, without this program's."""
    if isinstance(gpu.activity.num_processes, Missing) or not isinstance(processes, list):
        return gpu
    pids, own_pid = [listed.get("pid") for listed in objects(processes)], os.getpid()
    if holds_context and own_pid not in pids:
        elsewhere = Missing("the driver lists processes by the numbers of another namespace")
        return gpu.replace(num_processes=elsewhere, others_utilization=elsewhere)
    shares = {
        sample.get("pid"): percent(sample.get("smUtil"), "utilization")
        for sample in objects(used)
        if not _is_own_process(sample.get("pid"), own_pid, own_pid in pids)
    }
    return gpu.replace(
        num_processes=sum(not _is_own_process(pid, own_pid, own_pid in pids) for pid in pids),
        others_utilization=min(sum(_numbers(shares.values())), 1.0)
        if isinstance(used, list) and used
        else Missing("the driver does not tell what each process used"),
    )


class GpuWatch:
    """All NVIDIA GPUs again and again, read by a child: a driver that hangs holds nobody up."""

    def __init__(
        self, command: Sequence[str] | None = None, more: frozenset[str] = frozenset()
    ) -> None:
        """Start reading, once a second; ``command`` replaces the child's program.

        ``more`` names answers of NVML that are read besides, as WEAR.
        """
        names = sorted(_GPU_FACTS | more)
        program = [sys.executable, "-P", NVML_PROGRAM, str(_WATCH_PERIOD_S), *names]
        self._child = Child(command or program, Path(os.devnull), os.environ, piped=True)
        assert self._child.process.stdout is not None
        self._pipe = self._child.process.stdout
        os.set_blocking(self._pipe.fileno(), False)
        self._latest_s = time.monotonic()
        self._rest = b""

    def close(self) -> None:
        """End the child process that asks the driver."""
        self._child.end()

    def latest(self) -> tuple[Gpu, ...]:
        """Return the GPUs as the driver described them last; empty where it did not.  Never waits.

        A child that is silent for longer than a driver needs is ended.
        """
        lines, _, self._rest = (self._rest + (self._pipe.read() or b"")).rpartition(b"\n")
        now = time.monotonic()
        if not lines:
            if now - self._latest_s > PATIENCE_S:
                self._child.kill()
            return ()
        self._latest_s = now
        answer = json_object(lines.rpartition(b"\n")[2].decode("utf-8", "replace"), "NVML's reader")
        at = if_known(lambda gpu: number(gpu.get("at"), "moment"), answer)
        if isinstance(answer, Missing) or isinstance(at, Missing) or now - at > 3 * _WATCH_PERIOD_S:
            return ()
        return tuple(
            _other_processes(
                read_device(index, facts), facts.get("processes"), [], holds_context=False
            )
            for index, facts in enumerate(objects(answer.get("devices")))
        )


def throttled_share(before: Gpu, after: Gpu, wall_s: float) -> float | Missing:
    """Return the share of the time in which heat or the board's supply held the clocks down."""
    rises = (
        rise(before.clocks.slowed_by_heat_s, after.clocks.slowed_by_heat_s),
        rise(before.clocks.slowed_by_board_s, after.clocks.slowed_by_board_s),
    )
    return if_known(lambda rise: min(rise / wall_s, 1.0), max(_numbers(rises), default=rises[0]))


def _is_own_process(pid: object, own_pid: int, is_worker: bool) -> bool:
    """Return whether a process is this one, a child of it, or a worker beside it."""
    if pid == own_pid:
        return True
    status = ThisMachine().read(f"/proc/{pid}/stat")
    # "1234 (name) S 1 ...": the name may hold anything, a closing parenthesis too.
    words = [] if isinstance(status, Missing) else status.rpartition(")")[2].split()
    parent = int(words[1]) if len(words) > 1 and words[1].isdigit() else None
    return parent == own_pid or (is_worker and parent == os.getppid())


def parse_stat(
    content: str | Missing,
) -> tuple[int | Missing, float | Missing, float | Missing]:
    """Return logical processors, busy seconds and stolen seconds in /proc/stat."""
    if isinstance(content, Missing):
        return content, content, content
    lines = [line.split() for line in content.splitlines() if line.startswith("cpu")]
    threads = sum(len(words[0]) > len("cpu") for words in lines)
    ticks = [integer(word, "ticks") for word in lines[0][1:9]] if lines else []
    known = [tick for tick in ticks if not isinstance(tick, Missing)]
    if len(known) < 8 or threads == 0:
        unreadable = Missing("/proc/stat has no line of processor times")
        return unreadable, unreadable, unreadable
    user, nice, system, _idle, _iowait, irq, softirq, steal = known
    busy = user + nice + system + irq + softirq
    return threads, busy / _TICKS_PER_S, steal / _TICKS_PER_S


def _counters(host: Host) -> tuple[list[str], list[str]]:
    """Return the files with a few processors' clocks, and with each package's heat events."""
    names = host.names(_CPUS)
    listed = [] if isinstance(names, Missing) else [n for n in names if n[3:].isdigit()]
    cpus = sorted((name for name in listed if name.startswith("cpu")), key=lambda n: int(n[3:]))
    step = max(1, len(cpus) // _MAX_CLOCKS)
    clocks = [f"{_CPUS}/{cpu}/cpufreq/scaling_cur_freq" for cpu in cpus[::step][:_MAX_CLOCKS]]
    packages: dict[str, str] = {}
    for cpu in cpus:
        package = host.read(f"{_CPUS}/{cpu}/topology/physical_package_id")
        if not isinstance(package, Missing):
            packages.setdefault(package, f"{_CPUS}/{cpu}/thermal_throttle/package_throttle_count")
    return clocks, list(packages.values())


def _numbers(values: Iterable[float | Missing]) -> list[float]:
    """Return the values that are known, the smallest first."""
    return sorted(value for value in values if not isinstance(value, Missing))


def rise(before: float | Missing, after: float | Missing) -> float | Missing:
    """Return the increase of a counter; one that was reset in between tells nothing."""
    reset = Missing("the counter was reset")
    return if_known(lambda old, new: new - old if new >= old else reset, before, after)


def _share(part: float | Missing, less: float, whole: float | Missing) -> float | Missing:
    return if_known(lambda p, w: min(max(p - less, 0.0) / w, 1.0), part, whole)
