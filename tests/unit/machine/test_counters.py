"""What happened between two readings of the kernel's counters."""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
from collections.abc import Callable, Iterator

import pytest

import machine_fakes
from machine_fakes import FakeHost
from trainrig.machine import counters, nvml
from trainrig.machine.counters import (
    GpuWatch,
    HostLoad,
    HostReading,
    between,
    gpu_conditions,
    parse_stat,
    throttled_share,
)
from trainrig.machine.snapshot import Missing, value_or

CPU = "/sys/devices/system/cpu"


def reading(**changes: float | Missing) -> HostReading:
    """A reading of four processors at time zero."""
    start = HostReading(
        time_s=100.0,
        own_cpu_s=5.0,
        threads=4,
        busy_s=1000.0,
        steal_s=10.0,
        throttled_s=0.0,
        thermal_events=3,
        load_1m=0.5,
        clock_hz=3e9,
    )
    return dataclasses.replace(start, **changes)  # type: ignore[arg-type]


def test_a_quiet_machine() -> None:
    after = reading(time_s=110.0, own_cpu_s=15.0, busy_s=1010.0)
    seen = between(reading(), after)
    assert (seen.busy_other_fraction, seen.steal_fraction, seen.own_cpus) == (0.0, 0.0, 1.0)
    assert (seen.thermal_events, seen.load_1m) == (0, 0.5)


def test_others_that_take_half_of_the_machine() -> None:
    after = reading(time_s=110.0, own_cpu_s=15.0, busy_s=1030.0)
    assert between(reading(), after).busy_other_fraction == 0.5


def test_a_hypervisor_that_takes_a_quarter() -> None:
    assert between(reading(), reading(time_s=110.0, steal_s=20.0)).steal_fraction == 0.25


def test_throttling_and_heat() -> None:
    after = reading(time_s=110.0, throttled_s=4.0, thermal_events=5)
    seen = between(reading(), after)
    assert (seen.throttled_fraction, seen.thermal_events) == (0.4, 2)


def test_own_time_beyond_the_kernels_ticks_is_not_negative() -> None:
    after = reading(time_s=100.01, own_cpu_s=5.01, busy_s=1000.0)
    assert between(reading(), after).busy_other_fraction == 0.0


def test_a_counter_that_fell_tells_nothing() -> None:
    seen = between(reading(), reading(time_s=110.0, busy_s=3.0))
    assert seen.busy_other_fraction == Missing("the counter was reset")


def test_missing_counters_stay_missing() -> None:
    none = Missing("no such file")
    seen = between(reading(steal_s=none), reading(time_s=110.0))
    assert seen.steal_fraction == none
    assert seen.wall_s == 10.0


def test_two_readings_at_one_moment_do_not_divide_by_zero() -> None:
    assert between(reading(), reading()).busy_other_fraction == 0.0


OWN = os.getpid()
LISTED = [{"pid": OWN}, {"pid": 1}]


@pytest.mark.parametrize(
    ("listed", "used", "processes", "share"),
    [
        (LISTED, [{"pid": OWN, "smUtil": 90}, {"pid": 1, "smUtil": 7}], 1, 0.07),
        (LISTED, [{"pid": OWN, "smUtil": 90}, {"pid": 1, "smUtil": 7}, {"pid": 2}], 1, 0.07),
        ([{"pid": OWN}], [{"pid": OWN, "smUtil": 90}, {"pid": 1, "smUtil": 3000}], 0, 0.0),
        (LISTED, {"missing": "NVML: not found"}, 1, None),
        ([{"pid": 1}], [{"pid": 1, "smUtil": 100}], None, None),  # another namespace: it may be us
    ],
)
def test_what_others_use_of_a_gpu(
    monkeypatch: pytest.MonkeyPatch,
    listed: object,
    used: object,
    processes: int | None,
    share: float | None,
) -> None:
    asked: list[float] = []

    def use(_: object, since: float) -> object:
        asked.append(since)
        return used

    monkeypatch.setattr(nvml, "start", lambda: None)
    monkeypatch.setattr(nvml, "handle_of", lambda _: object())
    monkeypatch.setattr(nvml, "device_facts", lambda *_: {"processes": listed})
    monkeypatch.setattr(nvml, "process_use", use)
    seen = gpu_conditions("GPU-1", holds_context=True, since=5.0)
    assert asked == [5.0]
    assert value_or(seen.activity.num_processes, None) == processes
    assert value_or(seen.activity.others_utilization, None) == share


@pytest.mark.parametrize(
    ("heat", "board", "share"),
    [(0.5, 0.0, 0.25), (0.0, Missing("no"), 0.0), (Missing("no"), 1.0, 0.5), (9.0, 0.0, 1.0)],
)
def test_how_long_clocks_were_held_down(
    heat: float | Missing, board: float | Missing, share: float
) -> None:
    cool = machine_fakes.gpu(slowed_by_heat_s=0.0, slowed_by_board_s=0.0)
    hot = machine_fakes.gpu(slowed_by_heat_s=heat, slowed_by_board_s=board)
    assert throttled_share(cool, hot, 2.0) == share
    assert isinstance(throttled_share(machine_fakes.gpu(), hot, 2.0), Missing)


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], GpuWatch]]:
    monkeypatch.setattr(counters, "PATIENCE_S", 0.3)
    made: list[GpuWatch] = []

    def start(program: str) -> GpuWatch:
        made.append(GpuWatch([sys.executable, "-c", f"import time\n{program}"]))
        return made[-1]

    yield start
    for each in made:
        each._child.kill()
        each._child.process.communicate()


def test_a_driver_that_hangs_holds_up_nobody(
    watch: Callable[[str], GpuWatch], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counters, "PATIENCE_S", 60.0)
    hung = watch("time.sleep(600)")
    assert hung.latest() == ()
    assert hung._child.process.poll() is None  # nobody waited for its end
    hung._latest_s -= 61.0
    hung.latest()
    assert hung._child.wait(10.0) == -signal.SIGKILL


@pytest.mark.parametrize(
    ("age", "line", "count"),
    [
        ("0", '{"devices": [{"power": 5000}, {"missing": "lost"}], "at": %s}', 2),
        ("60", '{"devices": [{"power": 5000}], "at": %s}', 0),
        ("0", "Segmentation fault %s", 0),
        ("0", '{"devices": 3, "at": %s}', 0),
    ],
)
def test_the_latest_line_counts(
    watch: Callable[[str], GpuWatch], age: str, line: str, count: int
) -> None:
    said = watch(f"print({line!r} % (time.monotonic() - {age}), flush=True)")
    said._child.wait(20.0)
    gpus = said.latest()
    assert len(gpus) == count
    assert not gpus or (gpus[0].power.draw_w, gpus[1].index) == (5.0, 1)
    assert said.latest() == ()


STAT = "cpu  100 0 50 800 0 0 25 25 7 0\ncpu0 1 2\ncpu1 3 4\nintr 5\n"


def test_stat_counts_processors_busy_time_and_steal() -> None:
    threads, busy, steal = parse_stat(STAT)
    assert (threads, busy, steal) == (2, 1.75, 0.25)


@pytest.mark.parametrize("content", ["", "cpu 1 2 3", "cpu a b c d e f g h\ncpu0 1", "intr 3"])
def test_stat_of_another_shape_is_missing(content: str) -> None:
    assert all(isinstance(value, Missing) for value in parse_stat(content))


def test_reads_what_there_is() -> None:
    files = {
        "/proc/stat": STAT,
        "/proc/loadavg": "1.25 0.8 0.5 2/300 4242",
    }
    for cpu, (package, clock) in enumerate([("0", "3000000"), ("0", "4000000"), ("1", "5000000")]):
        files[f"{CPU}/cpu{cpu}/topology/physical_package_id"] = package
        files[f"{CPU}/cpu{cpu}/cpufreq/scaling_cur_freq"] = clock
        files[f"{CPU}/cpu{cpu}/thermal_throttle/package_throttle_count"] = "2"
    seen = HostLoad(FakeHost(files=files)).read(own_cpu_s=1.5)
    assert (seen.own_cpu_s, seen.load_1m, seen.clock_hz) == (1.5, 1.25, 4e9)
    assert seen.thermal_events == 4  # two packages, each counted once


def test_reads_this_machine() -> None:
    load = HostLoad()
    seen = between(load.read(), load.read())
    assert seen.wall_s > 0.0 and seen.own_cpus >= 0.0


def test_a_host_that_tells_nothing() -> None:
    load = HostLoad(FakeHost())
    seen = between(load.read(), load.read())
    known = {name for name in seen.__slots__ if not isinstance(getattr(seen, name), Missing)}
    assert known == {"wall_s", "own_cpus"}
