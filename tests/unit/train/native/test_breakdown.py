"""A profiled step in parts: intervals, and who waited for what."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from trainrig.train.native import breakdown
from trainrig.train.native.breakdown import both, length, merged, without

CPU, CUDA = torch.autograd.DeviceType.CPU, torch.autograd.DeviceType.CUDA


def event(name: str, start: float, end: float, device: Any = CPU, shapes: Any = ()) -> Any:
    """One of the profiler's, in milliseconds."""
    span = SimpleNamespace(start=start * 1e3, end=end * 1e3)
    return SimpleNamespace(
        name=name, time_range=span, device_type=device, cpu_children=[], input_shapes=shapes
    )


def parts(events: list[Any], *, piped: bool = False) -> dict[str, float]:
    """Milliseconds of a step of 100."""
    found = breakdown._parts(events, (0.0, 0.1), piped=piped)
    assert found["own_s"] + found["communication_s"] + found["bubble_s"] == pytest.approx(0.1)
    own_in = found.pop("own_in")
    return {name: round(seconds * 1e3, 6) for name, seconds in (found | own_in).items()}


def test_intervals() -> None:
    assert merged([(3, 4), (0, 1), (1, 2), (5, 5)]) == [(0, 2), (3, 4)]
    assert both([(0, 4), (6, 9)], [(1, 2), (3, 7), (8, 10)]) == [(1, 2), (3, 4), (6, 7), (8, 9)]
    assert without([(0, 10)], [(1, 2), (4, 6), (9, 12)]) == [(0, 1), (2, 4), (6, 9)]
    assert without([(0, 1), (2, 3)], []) == [(0, 1), (2, 3)]
    assert length([(0, 2), (1, 4)]) == 4


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
    outer.cpu_children = [inner]
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
        event("gloo:all_reduce", 70, 100, shapes=[[1]]),  # the norm: earlier stages still train
        event("trainrig:wait", 70, 100),
    ]
    assert parts(events, piped=True)["bubble_s"] == 50
    assert parts(events)["communication_s"] == 30  # without stages it is a sum like others


def test_on_a_gpu_kernels_beside_others_are_overlapped() -> None:
    found = parts(
        [
            event("ampere_gemm", 0, 60, CUDA),
            event("ncclDevKernel_ReduceScatter_Sum_f32", 40, 80, CUDA),
            event("ncclDevKernel_SendRecv", 85, 95, CUDA),
        ]
    )
    assert (found["communication_s"], found["bubble_s"]) == (20, 10)
    assert (found["overlapped_s"], found["idle_s"]) == (20, 10)
