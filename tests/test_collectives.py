"""Exposed communication by a clock of our own: each delay is found in its own part of the step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

from trainrig.train import collectives
from trainrig.train.collectives import Collectives
from trainrig.train.parts import Stopwatch


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

    def at(self, *, operation: str) -> None:
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
        wire.all_gather(torch.zeros(2), torch.zeros(1))
    with watch.part("backward"):
        clock.passes(3.0)
        since = watch.mark(), clock()
        clock.passes(0.5)  # the last bucket is on its way, and nothing is left to compute
        wire.waited_since(*since)
    with watch.part("optimizer"):
        clock.passes(4.0)
        wire.all_reduce(torch.zeros(1))
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
    assert wire.reduced == 1


def test_the_operation_is_named_while_it_is_waited_for(clock: Clock) -> None:
    told: Any = Told()
    watch: Stopwatch[float] = Stopwatch(clock, lambda start, end: end - start)
    Collectives(watch, told).all_reduce(torch.zeros(1))
    assert told.operations == ["all_reduce", ""]
