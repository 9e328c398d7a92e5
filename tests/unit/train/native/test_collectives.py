"""Exposed communication by a clock of our own: each delay is found in its own part of the step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

from trainrig.train.native import collectives
from trainrig.train.native.collectives import Collectives, covered, fsdp_hooks
from trainrig.train.native.step_timer import Stopwatch, stopwatch_for


class Clock:
    """Stands still but for what the test lets pass."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def passes(self, seconds: float) -> None:
        self.now += seconds


class Told:
    """Where the rank said it was."""

    def __init__(self) -> None:
        self.operations: list[str] = []

    def set_position(self, *, operation: str) -> None:
        self.operations.append(operation)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(collectives.time, "perf_counter", found)

    def slow_link(*_: Any, **__: Any) -> None:
        found.passes(5.0)

    monkeypatch.setattr(dist, "all_reduce", slow_link)
    monkeypatch.setattr(collectives, "_gather", slow_link)
    return found


def step(clock: Clock, wire: Collectives, watch: Stopwatch[float]) -> dict[str, float]:
    """A step with a delay of its own size in each part, and a slow link in two of them."""
    marked = watch.begin()
    with watch.part("data_wait"):
        clock.passes(1.0)
    with watch.part("forward"):
        clock.passes(2.0)
        fsdp_hooks(wire)[0](torch.zeros(2), torch.zeros(1), None)
    with watch.part("backward"):
        clock.passes(3.0)
        since = watch.mark(), clock()
        clock.passes(0.5)  # the last bucket is on its way, and nothing is left to compute
        wire.waited_since(*since)
    with watch.part("optimizer"):
        clock.passes(4.0)
        with wire.waiting("all_reduce"):
            dist.all_reduce(torch.zeros(1))
    clock.passes(0.25)
    watch.end()
    return watch.read(marked)


def test_each_delay_is_found_in_its_own_part(clock: Clock) -> None:
    watch: Stopwatch[float] = Stopwatch(clock, lambda start, end: end - start)
    wire = Collectives(watch)
    assert step(clock, wire, watch) == {
        "time": 20.75,
        "data_wait": 1.0,
        "forward": 2.0,
        "backward": 3.0,
        "optimizer": 4.0,
        "communication": 10.5,
        "other": 0.25,
    }
    assert wire.take_overlapped() == 0.0  # all of it was waited for


def test_what_runs_beside_computation_is_told_apart(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[Any] = []

    class Future:
        def add_done_callback(self, call: Any) -> None:
            done.append(call)

    class Work:
        def get_future(self) -> Future:
            return Future()

    monkeypatch.setattr(dist, "all_reduce", lambda *_, **__: Work())
    watch: Stopwatch[float] = Stopwatch(clock, lambda start, end: end - start)
    wire = Collectives(watch)
    marked = watch.begin()
    with watch.part("backward"):
        wire.start_all_reduce(torch.zeros(1))
        clock.passes(3.0)  # computed meanwhile
        since = watch.mark(), clock()
        clock.passes(1.0)  # waited for
        done[0](None)
        wire.waited_since(*since)
    watch.end()
    assert watch.read(marked)["communication"] == 1.0
    assert watch.read(marked)["backward"] == 3.0
    assert wire.take_overlapped() == 3.0
    assert wire.take_overlapped() == 0.0
    assert wire.reduced == {torch.float32: 1}


def test_the_operation_is_named_while_it_is_waited_for(clock: Clock) -> None:
    told: Any = Told()
    watch: Stopwatch[float] = Stopwatch(clock, lambda start, end: end - start)
    with Collectives(watch, told).waiting("all_reduce"):
        dist.all_reduce(torch.zeros(1))
    assert told.operations == ["all_reduce", ""]


def test_buckets_that_are_on_their_way_at_once_count_once() -> None:
    spans = [(0.0, 4.0), (1.0, 2.0), (3.0, 6.0), (8.0, 9.0)]
    assert covered(spans) == covered(reversed(spans)) == 7.0
    assert covered([]) == 0.0


def test_on_a_gpu_what_runs_beside_computation_is_unknown(clock: Clock) -> None:
    """The host only starts it."""
    watch: Stopwatch[float] = Stopwatch(clock, lambda start, end: end - start)
    assert Collectives(watch, on_host=False).take_overlapped() is None


def test_on_a_cpu_the_host_waits_for_shards(clock: Clock) -> None:
    watch: Stopwatch[float] = Stopwatch(clock, lambda start, end: end - start)
    gather, _ = fsdp_hooks(Collectives(watch))
    marked = watch.begin()
    with watch.part("forward"):
        gather(torch.zeros(2), torch.zeros(1), None)
    watch.end()
    assert watch.read(marked)["communication"] == 5.0


class Event:
    """As torch.cuda.Event: passes when the device comes to it, not when it is recorded."""

    device = 0.0

    def __init__(self, *, enable_timing: bool) -> None:
        assert enable_timing
        self.at: float | None = None
        self.waited = False

    def record(self, stream: object) -> None:
        assert stream == "the stream of cuda:1"
        self.at = Event.device

    def synchronize(self) -> None:
        self.waited = True

    def elapsed_time(self, end: Event) -> float:
        assert end.waited and self.at is not None and end.at is not None
        return 1e3 * (end.at - self.at)


def test_a_gpus_marks_are_events_read_when_they_have_passed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: f"the stream of {device}")
    watch = stopwatch_for("cuda:1")
    marked = watch.begin()
    with watch.part("forward"):
        Event.device += 2.0
    with watch.part("backward"):
        Event.device += 3.0
        start = watch.mark()
        Event.device += 1.0
        watch.inner("communication", start)
    watch.end()
    assert watch.read(marked) == {
        "time": 6.0,
        "data_wait": 0.0,
        "forward": 2.0,
        "backward": 3.0,
        "optimizer": 0.0,
        "communication": 1.0,
        "other": 0.0,
    }


def test_parts_that_overlap_are_not_hidden_in_the_rest() -> None:
    """What is counted twice is a rest below nothing, which a finding tells of."""
    clock = Clock()
    watch: Stopwatch[float] = Stopwatch(clock, lambda start, end: end - start)
    marked = watch.begin()
    marked.parts = [("forward", 0.0, 2.0), ("backward", 1.0, 3.0)]
    clock.passes(3.0)
    watch.end()
    assert watch.read(marked)["other"] == -1.0
