"""A training's marks on a GPU lie in the stream where its work is (`fake_cuda`)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fake_cuda import FakeCuda
from trainrig.train import engines, layout_check
from trainrig.train.config import Experiment
from trainrig.train.drivers import common
from trainrig.train.drivers.common import memory_before, memory_of, multiplies_in_tf32
from trainrig.train.native import gpu, layout_observed, rank_main
from trainrig.train.native.step_timer import stopwatch_for


@pytest.mark.parametrize("local_rank", [0, 1])
def test_a_rank_s_parts_take_what_its_device_takes(
    monkeypatch: pytest.MonkeyPatch, local_rank: int
) -> None:
    monkeypatch.setenv("LOCAL_RANK", str(local_rank))
    with FakeCuda(2, work=lambda _: 0.25) as cuda:
        device = rank_main._device(Experiment.of(model="gpt2", device="cuda"))
        assert device == f"cuda:{torch.cuda.current_device()}" == f"cuda:{local_rank}"
        x, watch = torch.ones(4, device=device), stopwatch_for(device)
        cuda.synchronize()
        step = watch.begin()
        with watch.part("forward"):
            x = x * 2.0
        with watch.part("backward"):
            x = x * 2.0 + 1.0
        watch.end()
        found = watch.read(step)
        assert (found["forward"], found["backward"]) == pytest.approx((0.25, 0.5))
        assert found["time"] == pytest.approx(0.75)
        assert found["other"] == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize(("precision", "rounds"), [("tf32", True), ("fp32", False)])
def test_a_rank_multiplies_in_what_its_experiment_says_and_its_layout_finds_it(
    precision: str, rounds: bool
) -> None:
    """TF32 was neither set nor told, and published TF32 stood beside our fp32."""
    with FakeCuda(1):
        device = rank_main._device(Experiment.of(device="cuda"))
        with gpu.settings(device, precision):
            assert multiplies_in_tf32() is rounds
            assert layout_observed.settings(device)["tf32"] is rounds
    facts = {"weight_dtype": "float32", "tf32": rounds}
    assert layout_check._precision(facts) == precision


def test_attention_is_cudnn_s_first_where_that_is_faster() -> None:
    kinds = torch.nn.attention.SDPBackend
    first = {capability: gpu.order_of(capability)[0] for capability in ((8, 6), (9, 0), (12, 0))}
    assert first == {
        (8, 6): kinds.FLASH_ATTENTION,
        (9, 0): kinds.CUDNN_ATTENTION,
        (12, 0): kinds.CUDNN_ATTENTION,
    }
    assert len(set(gpu.order_of((9, 0)))) == 4  # what takes no such mask falls to the next


def test_ranks_on_gpus_get_threads_an_allocator_that_grows_and_a_recorder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OMP_NUM_THREADS", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(engines, "_cores", lambda: 16)
    own = Experiment.of(device="cuda", nproc=4)
    found = engines.ENGINES["native"].command(own, tmp_path, engines.Job()).env
    assert found["OMP_NUM_THREADS"] == "4"
    assert found["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:True"
    assert int(found["TORCH_FR_BUFFER_SIZE"]) > 0
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "max_split_size_mb:64")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    chosen = engines.ENGINES["native"].command(own.replace(nproc=1), tmp_path, engines.Job()).env
    assert (
        not {"OMP_NUM_THREADS", "PYTORCH_CUDA_ALLOC_CONF", "TORCH_FR_BUFFER_SIZE"} & chosen.keys()
    )
    monkeypatch.delenv("PYTORCH_ALLOC_CONF")
    monkeypatch.delenv("OMP_NUM_THREADS")
    without = own.replace(unfused="segments,omp")
    left = engines.ENGINES["native"].command(without, tmp_path, engines.Job()).env
    assert not {"OMP_NUM_THREADS", "PYTORCH_CUDA_ALLOC_CONF"} & left.keys()
    host = engines.ENGINES["native"].command(Experiment.of(device="cpu"), tmp_path, engines.Job())
    assert "PYTORCH_CUDA_ALLOC_CONF" not in host.env


def test_a_device_says_what_lies_outside_of_the_allocator() -> None:
    with FakeCuda(1):
        kept = torch.ones(1024, device="cuda:0")
        (told,) = memory_of(["cuda:0"], 0)["devices"]
        free, total = torch.cuda.mem_get_info("cuda:0")
        assert told["outside"] == total - free - kept.nbytes
        assert (told["retries"], told["ooms"]) == (0, 0)


def test_marks_lie_in_the_device_s_own_stream_whichever_is_current() -> None:
    with FakeCuda(2, work=lambda _: 0.25) as cuda:
        x, watch = torch.ones(4, device="cuda:1"), stopwatch_for("cuda:1")
        cuda.synchronize("cuda:1")
        step = watch.begin()
        with watch.part("forward"):
            x.mul_(2.0)
        watch.end()
        assert cuda.current == 0
        assert watch.read(step)["forward"] == pytest.approx(0.25)


def test_the_peak_is_of_the_device_that_is_asked_for() -> None:
    with FakeCuda(2):
        kept = torch.ones(1024, device="cuda:1")
        before = memory_before("cuda:1")
        torch.ones(4096, device="cuda:1")
        assert before == kept.nbytes
        assert memory_of(["cuda:1"], before)["peak"] == 4 * 4096
        assert memory_of(["cuda:0"], memory_before("cuda:0"))["peak"] == 0.0


def test_torch_keeps_its_order_and_ranks_their_processors_where_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bound: list[str] = []
    ordered: list[bool] = []
    monkeypatch.setattr(gpu, "bind_to_node", bound.append)
    sdpa_kernel = gpu.attention.sdpa_kernel

    def watched(*args: Any, **how: Any) -> Any:
        ordered.append(True)
        return sdpa_kernel(*args, **how)

    monkeypatch.setattr(gpu.attention, "sdpa_kernel", watched)
    with FakeCuda(1):
        with gpu.settings("cuda:0", "bf16", ("sdpa",)):
            assert ordered == []
        with gpu.settings("cuda:0", "bf16"):
            assert ordered == [True]
        rank_main._device(Experiment.of(device="cuda", unfused="numa"))
        assert bound == []
        rank_main._device(Experiment.of(device="cuda"))
        assert bound == ["cuda:0"]


def test_drivers_ranks_have_the_settings_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU another engine's rank is bound and ordered as ours is; on a host neither."""
    bound: list[str] = []
    ordered: list[str] = []

    @contextmanager
    def order(device: str) -> Iterator[None]:
        ordered.append(device)
        yield

    monkeypatch.setattr(gpu, "bind_to_node", bound.append)
    monkeypatch.setattr(gpu, "attention_in_order", order)
    monkeypatch.setenv("LOCAL_RANK", "3")
    with common.settings_as_ours("cuda"):
        assert (bound, ordered) == (["cuda:3"], ["cuda:3"])
    with common.settings_as_ours("cpu"):
        assert bound == ["cuda:3"]


def test_a_rank_stays_on_the_processors_beside_its_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu_here = SimpleNamespace(pci_domain_id=0, pci_bus_id=0x4B, pci_device_id=0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: gpu_here)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    chosen: list[frozenset[int]] = []
    monkeypatch.setattr(os, "sched_setaffinity", lambda _, cpus: chosen.append(cpus))
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    assert gpu.bind_to_node("cuda:0", tmp_path) == frozenset()
    (tmp_path / "0000:4b:00.0").mkdir()
    (tmp_path / "0000:4b:00.0" / "local_cpulist").write_text("2-3,6,40-47\n")
    assert gpu.bind_to_node("cuda:0", tmp_path) == {2, 3, 6}
    assert chosen == [{2, 3, 6}]
