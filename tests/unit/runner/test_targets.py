"""Which GPUs are measured, under which numbers, with how much memory, and who is asked."""

from __future__ import annotations

import dataclasses

import pytest

from machine_fakes import gpu, healthy, with_gpu
from trainrig.doctor import diagnose
from trainrig.errors import UnavailableError, UsageError
from trainrig.machine.snapshot import Missing, from_dict, to_dict
from trainrig.process.worker import Worker
from trainrig.runner import targets
from trainrig.runner.targets import choose_gpus, described, find_targets

NO_NVML = Missing("NVML: nvml shared library not found")


def numbers(snapshot, environ):
    return [(t.torch_device, t.index) for t in find_targets(snapshot, environ) if t.is_gpu]


def amd(snapshot):
    """ROCm's torch, a graphics unit of an NVIDIA card beside three of AMD's."""
    software = dataclasses.replace(snapshot.software, torch_cuda=None, torch_hip="6.4")
    cards = [gpu(number, vendor="amd", name="AMD Instinct MI300X") for number in (1, 2, 3)]
    return dataclasses.replace(snapshot, software=software, gpus=(gpu(0), *cards))


@pytest.mark.parametrize(
    ("visible", "indexes"),
    [
        (None, [0, 1, 2]),
        ("1,0", [1, 0]),
        ("2", [2]),
        ("0,9,1", [0]),
        ("", []),
        ("GPU-00000000-0000-0000-0000-000000000002, 0", [2, 0]),
    ],
)
def test_torch_counts_what_it_may_see_in_the_order_of_the_list(visible, indexes):
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    wanted = [(f"cuda:{number}", index) for number, index in enumerate(indexes)]
    assert numbers(healthy(3), environ) == wanted


def test_a_slice_by_its_name_is_refused():
    with pytest.raises(UsageError, match="MIG"):
        find_targets(healthy(1), {"CUDA_VISIBLE_DEVICES": "MIG-1234"})


@pytest.mark.parametrize("name", ["MIG-8e1c", "MIG-GPU-00000000-0000-0000-0000-000000000001/1/0"])
def test_a_slice_is_of_the_gpu_that_its_name_says_or_the_only_one_cut_into_slices(name):
    sliced = dataclasses.replace(healthy(2), gpus=(gpu(0), gpu(1, mig=True)))
    slice_, _ = find_targets(sliced, {"CUDA_VISIBLE_DEVICES": name})
    assert (slice_.torch_device, slice_.index) == ("cuda:0", 1)
    assert slice_.name.endswith("(MIG slice)") and slice_.uuid is None and slice_.chip is None


def test_another_vendors_gpu_is_none_of_torchs():
    beside = dataclasses.replace(
        healthy(1), gpus=(gpu(0), gpu(1, vendor="amd", name="AMD Radeon 780M"))
    )
    assert numbers(beside, {}) == [("cuda:0", 0)]
    assert numbers(amd(healthy(1)), {}) == [("cuda:0", 1), ("cuda:1", 2), ("cuda:2", 3)]


@pytest.mark.parametrize(
    ("environ", "indexes"),
    [
        ({"HIP_VISIBLE_DEVICES": "2,0"}, [3, 1]),
        ({"CUDA_VISIBLE_DEVICES": "1"}, [2]),
        ({"ROCR_VISIBLE_DEVICES": "1,2"}, [2, 3]),
        ({"ROCR_VISIBLE_DEVICES": "1,2", "HIP_VISIBLE_DEVICES": "1"}, [3]),
    ],
)
def test_amd_has_lists_of_its_own(environ, indexes):
    assert [index for _, index in numbers(amd(healthy(1)), environ)] == indexes


def test_a_torch_for_processors_sees_no_gpu():
    software = dataclasses.replace(healthy(1).software, torch_cuda=None)
    assert numbers(dataclasses.replace(healthy(1), software=software), {}) == []


def test_gpus_that_no_driver_describes_are_asked_of_torch(monkeypatch):
    monkeypatch.setattr(targets, "_has_gpu_node", lambda: True)
    asked = []

    def ask(device):
        asked.append(device)
        return {"num_gpus": 2, "name": "Orin", "uuid": None, "memory_bytes": 30 << 30}

    bare = dataclasses.replace(healthy(0), gpus=NO_NVML, pci_gpus=())
    snapshot = described(bare, ask)
    first, second, _ = find_targets(from_dict(to_dict(snapshot)), {})
    assert (first.torch_device, first.name, first.memory_bytes) == ("cuda:0", "Orin", 30 << 30)
    assert second.torch_device == "cuda:1"
    assert set(asked) == {"cuda:0", "cuda:1"}
    assert [f.id for f in diagnose(snapshot)] == ["gpu-not-described"] * 2
    assert described(bare, lambda _: {}).gpus == NO_NVML


def test_where_the_kernel_offers_none_no_worker_is_started(monkeypatch):
    monkeypatch.setattr(targets, "_has_gpu_node", lambda: False)
    bare = dataclasses.replace(healthy(0), gpus=NO_NVML)
    assert described(bare, lambda _: pytest.fail("it was asked")) is bare


@pytest.mark.parametrize("changes", [{"memory_total_bytes": Missing("unified")}, {"mig": True}])
def test_unified_memory_and_a_slice_are_as_large_as_torch_finds_them(changes):
    snapshot = described(with_gpu(healthy(2), **changes), lambda _: {"memory_bytes": 5 << 30})
    first, second, _ = find_targets(snapshot, {})
    assert first.memory_bytes == 5 << 30
    assert second.memory_bytes > 20 << 30


def test_all_that_is_known_is_not_asked():
    snapshot = healthy(2)
    assert described(snapshot, lambda _: pytest.fail("it was asked")).gpus == snapshot.gpus


def test_workers_count_as_the_drivers_tools_do(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "FASTEST_FIRST")
    shown = ["sh", "-c", "echo $CUDA_DEVICE_ORDER >&2"]
    with Worker("cpu", tmp_path / "log", command=shown) as worker, pytest.raises(UnavailableError):
        worker.wait_ready(10.0)
    assert (tmp_path / "log").read_text().strip() == "PCI_BUS_ID"


def test_devices_are_chosen_by_the_drivers_numbers_and_the_host_stays():
    there = find_targets(healthy(3), {"CUDA_VISIBLE_DEVICES": "2,0"})
    assert [t.torch_device for t in choose_gpus(there, ["2"])] == ["cuda:0", "cpu"]
    assert [t.torch_device for t in choose_gpus(there, ["cpu"])] == ["cpu"]
    assert choose_gpus(there, ()) == there
    with pytest.raises(UsageError, match="no GPU '1'"):
        choose_gpus(there, ["1"])
