"""The collective that a rank waits in is named; parts of a step by the clock of a stream."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from trainrig.train.native import collectives
from trainrig.train.native.collectives import Collectives, fsdp_hooks
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


def test_the_operation_is_named_while_it_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    told: Any = Told()
    seen: list[list[str]] = []
    for name in ("_gather", "_scatter"):
        monkeypatch.setattr(collectives, name, lambda *_, **__: seen.append(told.operations[-1:]))
    wire = Collectives(told)
    with wire.waiting("all_reduce"):
        assert told.operations == ["all_reduce"]
    gather, scatter = fsdp_hooks(wire)
    gather(torch.zeros(2), torch.zeros(1), None)
    scatter(torch.zeros(1), torch.zeros(2), None, None)
    assert seen == [["all_gather"], ["reduce_scatter"]]
    assert told.operations == ["all_reduce", "", "all_gather", "", "reduce_scatter", ""]


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
        watch.inner("forward", start)
    watch.end()
    assert watch.read(marked) == {
        "time": 6.0,
        "data_wait": 0.0,
        "forward": 3.0,
        "backward": 3.0,
        "optimizer": 0.0,
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
