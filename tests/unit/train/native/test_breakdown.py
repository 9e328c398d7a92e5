"""A training's steps under torch's profiler: what is recorded, and who waited for what."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from trainrig.importers import read_file
from trainrig.trace import PIPED, TraceEvent, break_down
from trainrig.train.native import breakdown


def event(
    name: str, start: float, end: float, shapes: tuple[tuple[int, ...], ...] = ()
) -> TraceEvent:
    """One of the host's, in milliseconds."""
    return TraceEvent(
        name=name, category="cpu_op", start=start * 1e-3, end=end * 1e-3, shapes=shapes
    )


def parts(events: list[TraceEvent], *, piped: bool = False) -> dict[str, float]:
    """Milliseconds of a step of 100."""
    found = break_down(events, (0.0, 0.1), piped=piped, on_device=False)
    assert found["own_s"] + found["communication_s"] + found["bubble_s"] == pytest.approx(0.1)
    own_in = found.pop("own_in")
    return {name: round(seconds * 1e3, 6) for name, seconds in (found | own_in).items()}


def test_a_wait_for_a_collective_is_exposed_and_the_rest_of_it_overlapped() -> None:
    found = parts(
        [
            event("aten::mm", 0, 40),
            event("gloo:all_reduce", 30, 90),
            event("trainrig:wait", 60, 90),
            event("aten::mm", 40, 60),
            event("aten::mm", 90, 100),
        ]
    )
    assert (found["communication_s"], found["bubble_s"]) == (30, 0)
    assert found["overlapped_s"] == 30


def test_what_nothing_ran_in_is_shown_and_a_phase_has_its_own_work_alone() -> None:
    found = parts(
        [
            event("trainrig:phase:forward", 0, 40),
            event("aten::mm", 5, 40),
            event("trainrig:phase:backward", 40, 95),
            event("aten::mm", 40, 60),
            event("gloo:all_reduce", 55, 90),
            event("trainrig:wait", 60, 90),
            event("aten::mm", 90, 95),
        ]
    )
    assert (found["own_s"], found["communication_s"], found["idle_s"]) == (70, 30, 10)
    assert (found["forward"], found["backward"]) == (40, 25)


def test_an_operation_that_calls_another_is_work_too() -> None:
    """A product's own call lies around one that takes no time: all of it was taken for a wait."""
    outer, inner = event("aten::mm", 0, 50), event("aten::resolve_conj", 0, 1)
    found = parts([outer, inner, event("gloo:all_reduce", 10, 100)])
    assert (found["communication_s"], found["overlapped_s"]) == (50, 40)
    assert found["idle_s"] == 0


def test_ddp_waits_in_no_operation() -> None:
    found = parts(
        [event("aten::mm", 0, 50), event("gloo:all_reduce", 10, 80), event("aten::mm", 80, 100)]
    )
    assert (found["communication_s"], found["overlapped_s"]) == (30, 40)


def test_waiting_for_other_stages_is_the_bubble() -> None:
    events = [
        event("gloo:recv", 0, 20),
        event("trainrig:wait", 0, 20),
        event("aten::mm", 20, 70),
        event("gloo:all_reduce", 70, 100, shapes=((1,),)),  # the norm: earlier stages still train
        event("trainrig:wait", 70, 100),
    ]
    assert parts(events, piped=True)["bubble_s"] == 50
    # Without stages the sum is one like others, and the message a part of a ring's exchange.
    assert parts(events)["communication_s"] == 50


def test_real_steps_are_recorded_with_their_operations_and_phases() -> None:
    weight = torch.ones(64, 64)

    def step() -> None:
        with breakdown.phase("forward"):
            torch.mm(weight, weight)

    recorded = breakdown.profiled(step, piped=False, steps=2)
    assert recorded["missing"] == ""
    assert len(recorded["steps"]) == 2
    for found in recorded["steps"]:
        assert 0 < found["own_in"]["forward"] < found["step_s"]
        assert found["idle_s"] < found["own_s"] == found["step_s"]


def test_a_gpu_whose_kernels_were_not_recorded_is_told_and_has_no_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The steps run on the processor here; a GPU's profiler without CUPTI sees no more."""
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    recorder = breakdown.Recorder()
    recorder._on_gpu = True
    recorder.start()
    with recorder.step():
        torch.ones(3)
    recorded = recorder.stop()
    assert recorded["steps"] == []
    assert "CUPTI" in recorded["missing"]


@pytest.mark.parametrize("piped", [False, True])
def test_a_kept_trace_is_read_back_to_the_same_parts(tmp_path: Path, piped: bool) -> None:
    """Importing the file gives the parts of the step of median length, as the rank told them."""
    keep = breakdown.trace_file(tmp_path, 3, is_kept=True)
    matrix = torch.ones(64, 64)

    def step() -> None:
        torch.mm(matrix, matrix)

    told = breakdown.profiled(step, piped=piped, keep=keep, steps=3)
    assert keep is not None and told["trace"] == keep.name
    ((tool, reading),) = read_file(keep)
    assert tool == "torch-profiler"
    middle = sorted(told["steps"], key=lambda parts: parts["step_s"])[1]
    read = {record.metric.removeprefix("profiled_"): record.value for record in reading.records}
    assert read == {name[:-2]: middle[name] for name in middle if name.endswith("_s")}


def test_whether_there_were_stages_is_read_from_the_trace(tmp_path: Path) -> None:
    """A message in a step is a wait for a stage only where the training had stages."""
    for piped in (False, True):
        spans = [("trainrig:step", "user_annotation", 0, 100), ("gloo:recv", "cpu_op", 0, 40)]
        spans += [("trainrig:wait", "user_annotation", 0, 40), ("aten::mm", "cpu_op", 40, 60)]
        events = [
            {"ph": "X", "name": name, "cat": kind, "ts": start, "dur": duration, "tid": 1}
            for name, kind, start, duration in spans
        ]
        path = tmp_path / f"trace-{piped}.json"
        path.write_text(json.dumps({PIPED: piped, "traceEvents": events}))
        ((_, reading),) = read_file(path)
        read = {record.metric: record.value for record in reading.records}
        waits = (read["profiled_communication"], read["profiled_bubble"])
        assert waits == pytest.approx((0.0, 4e-5) if piped else (4e-5, 0.0))
