"""The paths of a GPU through the measuring half, followed on a fake one (`fake_cuda`).

Each promise of theirs has a test that its plain mutant fails: the device is the current one, what
was queued before is waited for, the device's clock is read and not the host's, TF32 is off where it
was not asked for, and clocks are read under load.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from fake_cuda import BUSY_HZ, LINK_RATE, PRODUCT_RATES, TF32_RATE, Call, FakeCuda, seconds_of_call
from trainrig.benchmarks.copy import copy_case
from trainrig.benchmarks.matmul import matmul_case
from trainrig.benchmarks.vector import vector_case
from trainrig.measure import buffers, clock, layer, matmul, noise, timing, worker_main
from trainrig.measure.clock import CudaClock, clock_for
from trainrig.record import Status

SIZE = 64
PRODUCT = 2.0 * SIZE**3
"""FLOPs."""
SMALL_LAYER = {
    "layer": "BERT-large layer",
    "pass": "forward",
    "code": "trainrig",
    "attention": "sdpa",
    "batch_size": 2,
    "seq_len": 16,
    "hidden": 64,
    "heads": 4,
    "ffn": 256,
}


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCuda]:
    with FakeCuda(2) as fake:
        fake.wind(clock)
        monkeypatch.setattr(noise, "gpu_conditions", fake.conditions)
        monkeypatch.setattr(buffers, "_cpu_cache_bytes", lambda: 1 << 16)
        yield fake


def reply(name: str, case: dict[str, Any], device: str = "cuda:1") -> dict[str, Any]:
    return worker_main.run_case(
        {
            "id": 1,
            "module": f"trainrig.measure.{name}",
            "case": case,
            "settings": {"max_time": 0.05, "warmup_time": None},
        },
        device,
    )


def a_call(device: str = "cuda:1") -> Any:
    x = torch.ones(4, device=device)
    return lambda: x.add_(1.0)


@pytest.mark.parametrize("device", ["cuda:0", "cuda:1"])
def test_a_batch_takes_what_its_work_takes_on_its_device(cuda: FakeCuda, device: str) -> None:
    """Mutant 09: without set_device the events lie in the stream of GPU 0, which is empty."""
    cuda.work = lambda _: 2e-3
    assert clock_for(device).time(a_call(device), 5) == pytest.approx(10e-3)


def test_a_gpu_is_timed_by_its_own_clock(cuda: FakeCuda) -> None:
    """Mutant 7d: launches take the host no time, and so does what it does not wait for."""
    cuda.work = lambda _: 2e-3
    found = clock_for("cuda:1")
    assert found.name == "CUDA events"
    before = cuda.now
    seconds = found.time(a_call(), 3)
    assert seconds == pytest.approx(6e-3)
    assert cuda.now - before == pytest.approx(8e-3), "the call that made the tensor, then three"


def test_what_was_queued_before_does_not_hide_the_launches(cuda: FakeCuda) -> None:
    """Mutant 08: the start waits for an idle device.

    The host needs 10 µs for a launch and the device 1 µs for the work.  Behind a long queue ten
    launches are made while the device is still at what was before: 10 µs instead of 100.
    """
    cuda.work = lambda _: 1e-6
    cuda.launch = 1e-5
    found, call = CudaClock("cuda:1"), a_call()
    cuda.current_stream("cuda:1").put(1.0)
    assert found.time(call, 10) == pytest.approx(1e-4, rel=0.2)


def test_each_sample_starts_on_an_idle_device(cuda: FakeCuda) -> None:
    cuda.work, cuda.launch = (lambda _: 1e-6), 1e-5
    samples = timing.sample(
        CudaClock("cuda:1"), a_call(), timing.Settings(max_time=0.03, warmup_time=0.001)
    )
    assert samples.median == pytest.approx(1e-5, rel=0.2)


@pytest.mark.parametrize(
    ("dtype", "rate"),
    [
        ("fp32", PRODUCT_RATES[torch.float32]),
        ("tf32", TF32_RATE),
        ("bf16", PRODUCT_RATES[torch.bfloat16]),
        ("fp64", PRODUCT_RATES[torch.float64]),
    ],
)
@pytest.mark.parametrize("left_on", [False, True])
def test_a_product_runs_at_the_rate_of_its_dtype(
    cuda: FakeCuda, dtype: str, rate: float, left_on: bool
) -> None:
    """Mutant 10: fp32 is fp32 whatever ran before it; a default of torch may have TF32 on."""
    torch.backends.cuda.matmul.allow_tf32 = left_on
    answer = reply("matmul", matmul_case(dtype, SIZE))
    assert answer["status"] is Status.OK, answer
    assert min(answer["samples"]) == pytest.approx(PRODUCT / rate, rel=1e-6)


@pytest.mark.parametrize("dtype", ["fp32", "tf32"])
def test_a_layer_multiplies_in_its_own_dtype(cuda: FakeCuda, dtype: str) -> None:
    """Of a layer too: its reference never rounds, its timed calls only where it was asked for."""
    seen: list[bool] = []

    def work(call: Call) -> float:
        seen.append(call.tf32)
        return seconds_of_call(call)

    cuda.work = work
    torch.backends.cuda.matmul.allow_tf32 = True
    case = SMALL_LAYER | {"dtype": dtype}
    prepared = layer.prepare(case, "cuda:1")
    assert not seen[0], "the reference"
    seen.clear()
    prepared.call()
    assert set(seen) == {dtype == "tf32"}


def test_clocks_are_read_while_more_of_the_same_work_is_queued(cuda: FakeCuda) -> None:
    """Mutant 20: at rest they say nothing of what was measured."""
    answer = reply("matmul", matmul_case("fp32", SIZE))
    assert answer["conditions"]["sm_clock_hz"] == BUSY_HZ


@pytest.mark.parametrize("device", ["cuda:0", "cuda:1"])
@pytest.mark.parametrize(
    ("name", "case"),
    [
        ("matmul", matmul_case("bf16", SIZE)),
        ("vector", vector_case("scale", 1 << 12, "cold")),
        ("vector", vector_case("gelu", 1 << 12, "hot")),
        ("copy", copy_case("d2d", 1 << 16, "device")),
        ("copy", copy_case("h2d", 1 << 16, "pinned")),
        ("copy", copy_case("d2h", 1 << 16, "pinned")),
    ],
)
def test_each_family_works_on_the_device_that_was_asked_for(
    cuda: FakeCuda, name: str, case: dict[str, Any], device: str
) -> None:
    answer = reply(name, case, device)
    assert answer["status"] is Status.OK, answer
    assert {call.device for call in cuda.calls} == {int(device[-1])}
    assert answer["conditions"]["clock"] == "CUDA events"
    assert min(answer["samples"]) > 0.0


def test_a_copy_takes_what_the_link_takes(cuda: FakeCuda) -> None:
    answer = reply("copy", copy_case("d2h", 1 << 16, "pinned"))
    assert min(answer["samples"]) == pytest.approx((1 << 16) / LINK_RATE)


def test_no_memory_is_said_to_be_that(cuda: FakeCuda) -> None:
    cuda.devices[1].memory_bytes = 1 << 12
    answer = reply("matmul", matmul_case("fp32", SIZE))
    assert answer["status"] is Status.OOM


def test_an_error_of_cuda_while_timing_is_a_failure(cuda: FakeCuda) -> None:
    def work(call: Call) -> float:
        if len(cuda.calls) > 30:
            cuda.error = "CUDA error: an illegal memory access was encountered"
        return seconds_of_call(call)

    cuda.work = work
    answer = reply("matmul", matmul_case("fp32", SIZE))
    assert answer["status"] is Status.FAILED
    assert "illegal memory access" in answer["reason"]


@pytest.mark.parametrize(
    ("words", "status"),
    [
        ("CUDA error: uncorrectable ECC error encountered", Status.FAILED),
        ("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm`", Status.FAILED),
        ("CUDA error: out of memory", Status.OOM),
        ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`", Status.OOM),
        ("CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when calling `cublasLtMatmul`", Status.SKIPPED),
        ("torch._scaled_mm is only supported on CUDA devices with compute", Status.SKIPPED),
        ("self.size(0) needs to be greater than 16, but got 8", Status.SKIPPED),
    ],
)
def test_a_fault_of_the_first_product_is_no_lack_of_support(
    cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch, words: str, status: Status
) -> None:
    def broken(*_: object) -> Any:
        def multiply() -> None:
            raise torch.AcceleratorError(words)

        return multiply

    monkeypatch.setattr(matmul, "_multiplier", broken)
    assert reply("matmul", matmul_case("bf16", SIZE))["status"] is status


def test_a_worker_makes_its_gpu_the_current_one_and_names_it(cuda: FakeCuda) -> None:
    """C2: whatever is served, and whoever forgets to say where."""
    ready = worker_main._introduce("cuda:1")
    assert cuda.current == 1
    assert ready["uuid"] == "GPU-00000000-0000-0000-0000-000000000001"
    assert ready["memory_bytes"] == cuda.memory_bytes
