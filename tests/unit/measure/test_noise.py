"""The rules by which a machine counts as busy, and the readings that they judge."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
import types
from collections.abc import Iterator
from typing import Any

import pytest

import machine_fakes
from machine_fakes import FakeHost
from trainrig.machine.counters import HostConditions, HostReading, between
from trainrig.machine.snapshot import FAULTY_REASONS, Gpu, Missing
from trainrig.machine.system_access import ThisMachine
from trainrig.measure import noise
from trainrig.measure.noise import judge, judge_gpu, judge_host
from trainrig.measure.stretches import Stretches
from trainrig.measure.waits import (
    MAX_THREAD_WAIT,
    MIN_MAIN_THREAD,
    OwnThreads,
    compare_waits,
    is_held_up,
    thread_waits,
)

UNKNOWN = Missing("not here")


def host(**changes: Any) -> HostConditions:
    """A quiet host over a second."""
    quiet = {
        "wall_s": 1.0,
        "busy_other_fraction": 0.01,
        "steal_fraction": 0.0,
        "own_cpus": 2.0,
        "throttled_fraction": 0.0,
        "thermal_events": 0,
        "load_1m": 2.0,
        "clock_hz": 3e9,
    }
    return HostConditions(**{**quiet, **changes})


def gpu(**changes: Any) -> Gpu:
    """A GPU at full load with nobody else on it."""
    quiet = {
        "sm_clock_hz": 2.5e9,
        "memory_clock_hz": 1e10,
        "power_w": 440.0,
        "temperature_c": 70.0,
        "throttle_reasons": ("sw_power_cap",),
        "utilization": 1.0,
        "num_processes": 0,
    }
    return machine_fakes.gpu(**{**quiet, **changes})


def threads(worst_wait: float | Missing = 0.003, main_ran: float = 0.999) -> OwnThreads:
    return OwnThreads(main_ran=main_ran, worst_wait=worst_wait)


def test_a_quiet_host_is_quiet() -> None:
    assert judge_host(host(), threads()) is None
    assert judge_host(host(), threads(worst_wait=0.04)) is None  # a guest that does nothing else
    assert judge_gpu(gpu(), threads()) is None


@pytest.mark.parametrize(
    ("changes", "own", "words"),
    [
        ({}, threads(worst_wait=0.98), "a thread waited for a core 98 % of the time"),
        ({}, threads(worst_wait=0.06), "waited for a core 6 %"),
        ({}, threads(main_ran=0.6), "the measuring thread ran only 60 % of the time"),
        ({"busy_other_fraction": 0.5}, threads(), "other processes used 50 % of the processors"),
        ({"steal_fraction": 0.1}, threads(), "the hypervisor took 10 % of the processors"),
        ({"throttled_fraction": 0.3}, threads(), "the container's CPU quota held it back 30 %"),
        ({"thermal_events": 3}, threads(), "slowed down 3 times because it was hot"),
    ],
)
def test_each_rule_of_the_host(changes: dict[str, Any], own: OwnThreads, words: str) -> None:
    reason = judge_host(host(**changes), own)
    assert reason is not None
    assert words in reason


@pytest.mark.parametrize(
    ("num", "num_waiting", "worst"),
    [
        (1, 1, 0.5),
        (16, 1, 0.5),
        (17, 1, 0.0),
        (17, 2, 0.0),
        (17, 3, 0.5),
        (21, 2, 0.0),
        (21, 3, 0.5),
    ],
)
def test_of_many_threads_the_ninth_tenth_counts(num: int, num_waiting: int, worst: float) -> None:
    before = dict.fromkeys(range(num), 1.0)
    after = {thread: 1.0 + 0.5 * (thread < num_waiting) for thread in before}
    waited = compare_waits(before, after, main_ran=1.0, wall=1.0).worst_wait
    assert waited == pytest.approx(worst)


def test_waits_that_one_reading_lacks_are_not_known() -> None:
    known = {1: 0.5}
    for before, after in ((known, {}), ({}, known), ({}, {})):
        waits = compare_waits(before, after, main_ran=1.0, wall=1.0)
        assert isinstance(waits.worst_wait, Missing)


def test_who_is_held_up() -> None:
    assert is_held_up(threads(worst_wait=0.06)) and is_held_up(threads(main_ran=0.94))
    assert not is_held_up(threads(worst_wait=MAX_THREAD_WAIT, main_ran=MIN_MAIN_THREAD))
    assert not is_held_up(threads(worst_wait=UNKNOWN))


def test_what_the_counters_cannot_resolve_is_not_judged() -> None:
    """One tick of 10 ms in a window of 50 ms on one processor is a fifth of it."""
    assert judge_host(host(wall_s=0.05, busy_other_fraction=0.2), threads()) is None
    assert judge_host(host(wall_s=1.0, busy_other_fraction=0.2), threads()) is not None
    assert judge_host(host(wall_s=0.05, steal_fraction=0.2), threads()) is None
    assert judge_host(host(wall_s=0.05, busy_other_fraction=0.4), threads()) is not None
    # The threads' own waiting is counted in nanoseconds.
    assert judge_host(host(wall_s=0.02), threads(worst_wait=0.2)) is not None


def test_what_is_missing_is_not_judged() -> None:
    blind = host(
        busy_other_fraction=UNKNOWN,
        steal_fraction=UNKNOWN,
        throttled_fraction=UNKNOWN,
        thermal_events=UNKNOWN,
        load_1m=UNKNOWN,
        clock_hz=UNKNOWN,
    )
    assert judge_host(blind, threads(worst_wait=UNKNOWN)) is None
    assert "main_thread_share" in noise.describe_host(blind, threads())
    assert "load_1m" not in noise.describe_host(blind, threads())
    unseen = gpu(
        others_utilization=UNKNOWN, num_processes=3, throttle_reasons=UNKNOWN, power_w=UNKNOWN
    )
    assert judge_gpu(unseen, threads(worst_wait=UNKNOWN)) is None
    assert "power_w" not in noise.describe_gpu(unseen)


@pytest.mark.parametrize(
    ("changes", "own", "words"),
    [
        ({"others_utilization": 0.12}, threads(), "other processes used 12 % of the GPU"),
        ({}, threads(worst_wait=0.5), "the thread that feeds the GPU waited"),
    ],
)
def test_each_rule_of_a_gpu(changes: dict[str, Any], own: OwnThreads, words: str) -> None:
    reason = judge_gpu(gpu(**changes), own)
    assert reason is not None
    assert words in reason


@pytest.mark.parametrize("reason", ["sw_power_cap", "idle", *sorted(FAULTY_REASONS)])
def test_a_gpu_that_slows_itself_down_is_noted_and_no_noise(reason: str) -> None:
    state = gpu(throttle_reasons=(reason,))
    assert judge_gpu(state, threads()) is None
    assert noise.describe_gpu(state)["throttle_reasons"] == reason


def test_a_desktop_that_has_the_gpu_open_is_no_noise() -> None:
    state = gpu(num_processes=2, others_utilization=0.01)
    assert judge_gpu(state, threads()) is None
    seen = noise.describe_gpu(state)
    assert (seen["other_gpu_processes"], seen["other_gpu_share"]) == (2, 0.01)
    assert (seen["pcie_generation"], seen["pcie_width"]) == (4, 16)


def test_conditions_are_flat_and_in_base_units() -> None:
    assert noise.describe_host(host(), threads()) == {
        "load_1m": 2.0,
        "other_cpu_share": 0.01,
        "steal_share": 0.0,
        "cpu_time_per_wall": 2.0,
        "thread_wait_share": 0.003,
        "main_thread_share": 0.999,
        "cpu_clock_hz": 3e9,
    }
    assert noise.describe_gpu(gpu())["other_gpu_processes"] == 0


def schedstat(*waits: int) -> FakeHost:
    return FakeHost(
        {f"/proc/self/task/{7 + i}/schedstat": f"900 {wait} 12" for i, wait in enumerate(waits)}
    )


def test_the_worst_thread_counts() -> None:
    before = thread_waits(schedstat(1_000_000, 5_000_000))
    after = thread_waits(schedstat(2_000_000, 105_000_000, 30_000_000))
    own = compare_waits(before, after, main_ran=0.9, wall=0.2)
    assert own.worst_wait == pytest.approx(0.5)
    # A thread that started meanwhile counts from its start.
    own = compare_waits(before, thread_waits(schedstat(0, 0, 50_000_000)), main_ran=1.0, wall=0.2)
    assert own.worst_wait == pytest.approx(0.25)


@pytest.mark.parametrize(("num_waiting", "worst"), [(1, 0.0), (60, 0.08)])
def test_one_of_many_threads_says_nothing(num_waiting: int, worst: float) -> None:
    """M10: of 512 threads one waits 8 % on a quiet machine; sixty do not."""
    waits = [80_000_000 if i < num_waiting else 0 for i in range(512)]
    before, after = thread_waits(schedstat(*[0] * 512)), thread_waits(schedstat(*waits))
    assert compare_waits(before, after, main_ran=1.0, wall=1.0).worst_wait == pytest.approx(worst)


@pytest.mark.parametrize(("quota", "words"), [(4.0, "CPU quota"), (0.5, None)])
def test_a_quota_of_less_than_a_thread_is_what_a_program_gets(
    monkeypatch: pytest.MonkeyPatch, quota: float, words: str | None
) -> None:
    monkeypatch.setattr(noise, "cpu_quota", lambda _: quota)
    monkeypatch.setattr(noise, "_num_threads", lambda: 1)
    monkeypatch.setattr(noise, "between", lambda *_: host(throttled_fraction=0.3))
    monkeypatch.setattr(noise, "compare_waits", lambda *_, **__: threads())
    with noise.watch("cpu") as watched:
        pass
    assert words is None if watched.disturbed is None else words in watched.disturbed


@pytest.mark.parametrize("content", ["", "1 2", "1 x 3", "1 -2 3"])
def test_threads_that_are_not_counted(content: str) -> None:
    waits = thread_waits(FakeHost({"/proc/self/task/7/schedstat": content}))
    assert waits == {}
    assert isinstance(compare_waits(waits, waits, main_ran=1.0, wall=1.0).worst_wait, Missing)


@pytest.fixture
def one_processor() -> Iterator[int]:
    """This test's thread, and what it starts, share one processor."""
    if not hasattr(os, "sched_setaffinity"):
        pytest.skip("no CPU affinity here")
    before = os.sched_getaffinity(0)
    chosen = min(before)
    os.sched_setaffinity(0, {chosen})
    yield chosen
    os.sched_setaffinity(0, before)


@pytest.mark.usefixtures("one_processor")
def test_a_neighbour_on_our_processor_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault that every rule above is for: somebody else's work where ours should run."""
    if not thread_waits(ThisMachine()):
        pytest.skip("this kernel does not count the waiting of threads")
    monkeypatch.setattr(noise, "_num_threads", lambda: 1)
    busy = [sys.executable, "-c", "print(1, flush=True)\nwhile True: pass"]
    with subprocess.Popen(busy, stdout=subprocess.PIPE) as neighbour:
        assert neighbour.stdout is not None
        neighbour.stdout.readline()  # it runs
        with noise.watch("cpu") as watched:
            spin(50_000_000)
        neighbour.kill()
    assert watched.disturbed is not None
    assert "waited for a core" in watched.disturbed
    assert watched.conditions["threads"] == 1


def spin(own_ns: int) -> None:
    """Use this much processor time of our own, however long that takes."""
    end = time.thread_time_ns() + own_ns
    while time.thread_time_ns() < end:
        pass


def test_a_measuring_thread_that_sleeps_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one does whose partner in a barrier has lost its processor."""
    monkeypatch.setattr(noise, "_num_threads", lambda: 1)
    with noise.watch("cpu") as watched:
        threading.Event().wait(0.05)
    assert watched.disturbed is not None
    assert float(watched.conditions["main_thread_share"] or 0.0) < 0.98


def test_a_failing_body_is_not_swallowed() -> None:
    with pytest.raises(ZeroDivisionError), noise.watch("cpu"):
        raise ZeroDivisionError


@pytest.mark.parametrize(("per_call", "calls"), [(0.01, 3), (5e-6, 6000), (0.0, 30_000), (9.0, 1)])
def test_a_gpu_is_kept_busy_while_it_is_read(per_call: float, calls: int) -> None:
    made: list[int] = []
    noise.queue_more(lambda: made.append(1), per_call)()
    assert len(made) == calls


def test_a_row_of_telemetry() -> None:
    first, second = noise.telemetry_row(), noise.telemetry_row()
    assert float(second["t"] or 0.0) >= float(first["t"] or 0.0) > 1.7e9
    assert all(value is None or isinstance(value, str | int | float) for value in second.values())
    if sys.platform == "linux":
        assert {"t", "load_1m", "cpu_share"} <= second.keys()


def test_telemetry_names_each_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = [machine_fakes.gpu(i, power_w=100.0 + i, utilization=1.0) for i in range(2)]
    reader = types.SimpleNamespace(latest=lambda: gpus)
    monkeypatch.setattr(noise, "GpuWatch", lambda more: reader)
    monkeypatch.setattr(noise, "ThisMachine", lambda: FakeHost({"/dev/nvidiactl": ""}))
    row = noise.Telemetry().row()
    assert (row["gpu0_power_w"], row["gpu1_power_w"]) == (100.0, 101.0)
    assert row["gpu1_utilization"] == 1.0


@pytest.mark.parametrize(
    ("own", "steal", "words"),
    [
        (19.0, 0.0, None),
        (14.0, 0.0, "other processes used 25 % of the processors"),
        (19.0, 1.0, "the hypervisor took 5 % of the processors"),
    ],
)
def test_who_took_the_processors(own: float, steal: float, words: str | None) -> None:
    before = reading(0.0, 0.0, 0.0, 0.0)
    assert judge(between(before, reading(10.0, own, 19.0, steal))) == words


def reading(at: float, own: float, busy: float, steal: float) -> HostReading:
    """Two processors, at a time."""
    gone = Missing("not read")
    return HostReading(
        time_s=at,
        own_cpu_s=own,
        threads=2,
        busy_s=busy,
        steal_s=steal,
        throttled_s=gone,
        thermal_events=gone,
        load_1m=gone,
        clock_hz=gone,
    )


class FakeCounters:
    """A machine of two processors whose counters a test moves; stands for clocks, too."""

    def __init__(self) -> None:
        self.at = self.ran = self.waited = self.busy = self.steal = 0.0

    def read(self) -> HostReading:
        return reading(self.at, 2.0 * self.ran, self.busy, self.steal)

    def perf_counter(self) -> float:
        return self.at

    def thread_time(self) -> float:
        return self.ran

    def names(self, _: str) -> list[str]:
        return ["7"]

    def pass_by(self, wall: float, waited: float = 0.0, ran: float = 1.0, others: float = 0.0):
        """Shares of a stretch of time."""
        self.at += wall
        self.ran += ran * wall
        self.waited += waited * wall
        self.busy += 2.0 * ran * wall + 2.0 * others * wall


@pytest.fixture
def counters(monkeypatch: pytest.MonkeyPatch) -> FakeCounters:
    fake = FakeCounters()
    monkeypatch.setattr("trainrig.measure.stretches.time", fake)
    monkeypatch.setattr("trainrig.measure.stretches.thread_waits", lambda _: {7: fake.waited})
    return fake


def test_a_stretch_is_quiet_where_nothing_held_our_threads_up(counters: FakeCounters) -> None:
    stretches = Stretches(counters, ThisMachine())  # type: ignore[arg-type]
    counters.pass_by(0.02)
    assert stretches.is_quiet()
    counters.pass_by(0.02, waited=0.06)
    assert not stretches.is_quiet()
    counters.pass_by(0.02, ran=0.94)
    assert not stretches.is_quiet()
    counters.pass_by(0.02, waited=0.04)
    assert stretches.is_quiet()


def test_what_happened_in_quiet_stretches_is_judged_by_all_rules(counters: FakeCounters) -> None:
    """A burst that was left out is no noise; others beside quiet stretches are."""
    stretches = Stretches(counters, ThisMachine())  # type: ignore[arg-type]
    for _ in range(10):
        counters.pass_by(0.03, waited=0.5, others=0.5)
        stretches.is_quiet()
        counters.pass_by(0.07)
        stretches.is_quiet()
    host, threads = stretches.conditions()
    assert host.wall_s == pytest.approx(0.7)
    assert judge_host(host, threads) is None
    for _ in range(10):
        counters.pass_by(0.07, others=0.2)
        stretches.is_quiet()
    assert judge_host(*stretches.conditions()) == "other processes used 10 % of the processors"
