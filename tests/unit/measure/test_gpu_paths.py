"""The paths of a GPU through the measuring half, followed on a fake one (`fake_cuda`).

Each promise of theirs has a test that its plain mutant fails: the device is the current one, what
was queued before is waited for, the device's clock is read and not the host's, TF32 is off where it
was not asked for, and clocks are read under load.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fake_cuda import BUSY_HZ, LINK_RATE, PRODUCT_RATES, TF32_RATE, Call, FakeCuda, seconds_of_call
from machine_fakes import FakeHost
from trainrig.benchmarks.copy import copy_case
from trainrig.benchmarks.matmul import matmul_case
from trainrig.benchmarks.vector import vector_case
from trainrig.machine.nvidia import read_device
from trainrig.machine.snapshot import Gpu, Missing, value_or
from trainrig.measure import buffers, clock, copy, layer, matmul, noise, timing, worker_main
from trainrig.measure.clock import CudaClock, clock_for
from trainrig.measure.timing import Unsupported
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


def test_a_gpu_that_is_hot_is_measured_and_its_record_says_so(
    cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C7: half of the time, by the driver's counter; H9: what others used is asked for, too."""
    cuda.wind(noise)
    asked: list[float | None] = []

    def hot(device: str, *, since: float | None = None, **_: object) -> Gpu:
        asked.append(since)
        counted = {"violationTime": int(cuda.now / 2.0 * 1e9)}
        return read_device(1, {"throttle": 0x40, "slowed_by_heat": counted, "pcie_generation": 1})

    monkeypatch.setattr(noise, "gpu_conditions", hot)
    answer = reply("copy", copy_case("h2d", 1 << 16, "pinned"))
    seen = answer["conditions"]
    assert answer["disturbed"] is None
    assert seen["throttled_share"] == pytest.approx(0.5)
    assert (seen["throttle_reasons"], seen["pcie_generation"]) == ("hw_thermal_slowdown", 1)
    assert asked[0] is None and asked[1] is not None


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


def test_a_worker_makes_its_gpu_the_current_one_and_names_it(
    cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C2: whatever is served, and whoever forgets to say where."""
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "1")
    ready = worker_main.introduce("cuda:1")
    assert cuda.current == 1
    assert ready["uuid"] == "GPU-00000000-0000-0000-0000-000000000001"
    assert ready["memory_bytes"] == cuda.memory_bytes
    assert "NVIDIA_TF32_OVERRIDE" not in os.environ, "M9: sound cards would compute wrong answers"


@pytest.mark.parametrize(
    ("files", "node", "cpus"),
    [
        ({"bus/pci/devices/0000:41:00.0/numa_node": "1", "node/node1/cpulist": "4-6,9"}, 1, {5, 6}),
        ({"bus/pci/devices/0000:41:00.0/numa_node": "-1"}, None, None),
        ({"bus/pci/devices/0000:41:00.0/numa_node": "1", "node/node1/cpulist": "7"}, None, None),
        ({}, None, None),
    ],
)
def test_a_worker_stays_beside_its_gpu(
    cuda: FakeCuda,
    monkeypatch: pytest.MonkeyPatch,
    files: dict[str, str],
    node: int | None,
    cpus: set[int] | None,
) -> None:
    """M6: this process may use processors 2, 5 and 6 of two nodes."""
    place = {"pci_domain_id": 0, "pci_bus_id": 0x41, "pci_device_id": 0}
    bound: list[object] = []
    sysfs = {
        f"/sys/{name if name.startswith('bus') else 'devices/system/' + name}": text
        for name, text in files.items()
    }
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(**place))
    monkeypatch.setattr(worker_main, "ThisMachine", lambda: FakeHost(sysfs))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {2, 5, 6})
    monkeypatch.setattr(os, "sched_setaffinity", lambda _, chosen: bound.append(chosen))
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    assert value_or(worker_main.bind_to_node.__wrapped__("cuda:1"), None) == node
    assert bound == ([] if cpus is None else [cpus])


@pytest.mark.parametrize(("quota", "threads"), [(None, 8), (Missing("?"), 8), (3.5, 3), (0.5, 1)])
def test_torch_takes_no_more_threads_than_the_quota(
    monkeypatch: pytest.MonkeyPatch, quota: object, threads: int
) -> None:
    """M2: with 8 threads in a container of 2 processors the quota holds each case back."""
    now = [8]
    monkeypatch.setattr(worker_main, "cpu_quota", lambda _: quota)
    monkeypatch.setattr(torch, "get_num_threads", lambda: now[0])
    monkeypatch.setattr(torch, "set_num_threads", lambda count: now.__setitem__(0, count))
    assert worker_main.introduce("cpu")["threads"] == threads


def test_links_need_no_more_pinned_memory_than_shows_the_link(
    cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    """M4: two processors with 1.1 GB of cache each would need 9 GiB here and on the card."""
    monkeypatch.setattr(buffers, "_cpu_cache_bytes", lambda: 2304 << 20)
    monkeypatch.setattr(buffers, "_free_bytes", lambda _: 1 << 40)
    monkeypatch.setattr(buffers, "rows", lambda *given, **_: rows.append(given[1]))
    monkeypatch.setattr(buffers, "fill", lambda *_: None)
    rows: list[int] = []
    with contextlib.suppress(AttributeError):  # of the arrays that are not there
        copy.prepare(copy_case("h2d", 256 << 20, "pinned"), "cuda:0")
    assert set(rows) == {4}


def test_fp8_says_how_it_accumulates_and_takes_the_device_s_own_kind(
    cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    """M7, M8: CDNA 3 refuses the kind that all others take."""
    assert matmul._fp8(torch, "cuda:0") is torch.float8_e4m3fn
    named = SimpleNamespace(gcnArchName="gfx942:sramecc+:xnack-")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: named)
    assert matmul._fp8(torch, "cuda:0") is torch.float8_e4m3fnuz
    try:
        prepared = matmul.prepare(matmul_case("fp8", SIZE), "cpu")
    except Unsupported:
        pytest.skip("this processor multiplies no fp8")
    assert prepared.conditions == {"fast_accumulate": False}
    assert matmul.prepare(matmul_case("fp32", SIZE), "cpu").conditions == {}


def test_the_second_operand_of_int8_is_column_major_on_a_gpu(cuda: FakeCuda) -> None:
    generator = torch.Generator().manual_seed(1)
    strides = [
        matmul._operands(torch, "int8", (8, 16, 24), device, generator)[1].stride()
        for device in ("cuda:0", "cpu")
    ]
    assert strides == [(1, 16), (24, 1)]
    if torch.backends.cpu.get_cpu_capability() == "AVX2":
        pytest.skip("int8 products of numbers above 64 saturate on AVX2")
    assert reply("matmul", matmul_case("int8", SIZE))["status"] is Status.OK


@pytest.mark.parametrize("several", [True, False])
def test_threads_stay_where_their_memory_is_on_a_host_of_several_nodes(several, monkeypatch):
    monkeypatch.setattr(worker_main, "has_several_nodes", lambda _: several)
    monkeypatch.setenv("OMP_PROC_BIND", "")  # put back afterwards
    monkeypatch.delenv("OMP_PROC_BIND")
    worker_main.introduce("cpu")
    assert os.environ.get("OMP_PROC_BIND") == ("true" if several else None)
