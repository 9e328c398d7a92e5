"""The fake behaves as CUDA does where our paths depend on it."""

from __future__ import annotations

import math

import pytest
import torch

from fake_cuda import BUSY_HZ, IDLE_HZ, FakeCuda


def a_second(_: object) -> float:
    return 1.0


def marks() -> tuple[torch.cuda.Event, torch.cuda.Event]:
    return torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)


def test_tensors_say_on_which_device_they_lie_and_hold_right_numbers() -> None:
    with FakeCuda(2) as cuda:
        x = torch.full((2, 2), 3.0, device="cuda:1")
        y = (x @ x)[0]
        assert str(x.device) == str(y.device) == "cuda:1"
        assert y.is_cuda
        assert not torch.zeros(1).is_cuda
        assert y.tolist() == [18.0, 18.0]
        assert y.cpu().device.type == "cpu"
        assert {call.device for call in cuda.calls} == {1}
    assert not torch.cuda.is_available()


def test_work_takes_time_on_its_device_and_none_on_the_host_until_it_is_waited_for() -> None:
    with FakeCuda(2, work=a_second) as cuda:
        start = cuda.now
        x = torch.ones(4, device="cuda:1")
        x += 1.0
        assert cuda.now == start
        assert cuda.busy("cuda:1")
        assert not cuda.busy("cuda:0")
        torch.cuda.synchronize("cuda:0")
        assert cuda.now == start
        assert float(x.sum()) == 8.0
        assert cuda.now == start + 3.0


def test_an_event_is_recorded_on_the_current_device_not_on_the_tensors() -> None:
    with FakeCuda(2, work=a_second):
        x = torch.ones(4, device="cuda:1")
        for device, seconds in (("cuda:0", 0.0), ("cuda:1", 1.0)):
            torch.cuda.set_device(device)
            start, end = marks()
            start.record()
            x += 1.0
            end.record()
            end.synchronize()
            assert start.elapsed_time(end) == seconds * 1e3


def test_elapsed_time_is_refused_as_cuda_refuses_it() -> None:
    with FakeCuda(1, work=a_second):
        start, end = marks()
        with pytest.raises(RuntimeError, match="recorded"):
            start.elapsed_time(end)
        start.record()
        torch.ones(1, device="cuda:0")
        end.record()
        with pytest.raises(RuntimeError, match="completed"):
            start.elapsed_time(end)
        with pytest.raises(RuntimeError, match="enable_timing"):
            torch.cuda.Event().elapsed_time(end)


def test_streams_of_a_device_run_side_by_side() -> None:
    with FakeCuda(1, work=a_second) as cuda:
        start, side = cuda.now, torch.cuda.Stream()
        x = torch.ones(1, device="cuda:0")
        with torch.cuda.stream(side):
            x.add(1.0)
            x.add(1.0)
        side.synchronize()
        assert cuda.now == start + 2.0
        torch.cuda.current_stream().wait_stream(side)
        x.add(1.0)
        torch.cuda.synchronize()
        assert cuda.now == start + 3.0


def test_launches_take_the_host_s_time_where_the_test_says_so() -> None:
    with FakeCuda(1, work=lambda _: 1e-6, launch=1e-5) as cuda:
        start = cuda.now
        x = torch.ones(1, device="cuda:0")
        for _ in range(9):
            x.add_(1.0)
        assert cuda.now == pytest.approx(start + 1e-4)


def test_a_copy_that_does_not_block_is_not_there_before_it_is_waited_for() -> None:
    with FakeCuda(1, work=a_second):
        x = torch.ones(2, device="cuda:0")
        early = x.to("cpu", non_blocking=True)
        assert all(math.isnan(value) for value in early.tolist())
        torch.cuda.synchronize()
        assert early.tolist() == [1.0, 1.0]
        assert x.to("cpu").tolist() == [1.0, 1.0]


def test_memory_is_counted_and_runs_out() -> None:
    with FakeCuda(1, memory_bytes=1 << 20):
        x = torch.empty(1 << 19, dtype=torch.uint8, device="cuda:0")
        assert torch.cuda.memory_allocated("cuda:0") == 1 << 19
        assert torch.cuda.mem_get_info("cuda:0") == (1 << 19, 1 << 20)
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(1 << 20, dtype=torch.uint8, device="cuda:0")
        del x
        assert torch.cuda.memory_allocated() == 0
        assert torch.cuda.max_memory_allocated() == 1 << 19


def test_an_error_of_cuda_stays() -> None:
    with FakeCuda(1) as cuda:
        x = torch.ones(1, device="cuda:0")
        cuda.error = "CUDA error: an illegal memory access was encountered"
        for _ in range(2):
            with pytest.raises(RuntimeError, match="illegal memory access"):
                x.add_(1.0)
        with pytest.raises(RuntimeError, match="illegal memory access"):
            torch.cuda.synchronize()


def test_clocks_fall_at_rest_and_devices_are_known_by_their_uuid() -> None:
    with FakeCuda(2, work=a_second) as cuda:
        uuid = str(torch.cuda.get_device_properties(1).uuid)
        assert cuda.conditions(uuid).clocks.sm_hz == IDLE_HZ
        torch.ones(1, device="cuda:1")
        assert cuda.conditions(uuid).clocks.sm_hz == BUSY_HZ
        assert cuda.conditions(0).clocks.sm_hz == IDLE_HZ


def test_random_numbers_are_drawn_for_the_device_of_the_generator() -> None:
    with FakeCuda(2):
        generator = torch.Generator(device="cuda:1").manual_seed(3)
        assert torch.randn(2, generator=generator, device=generator.device).is_cuda
        torch.cuda.manual_seed_all(7)
    with pytest.raises(RuntimeError, match="ordinal"), FakeCuda(1):
        torch.cuda.set_device(4)
