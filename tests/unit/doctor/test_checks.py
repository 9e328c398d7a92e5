"""Each finding: a planted fault is caught, and a healthy machine yields none."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from machine_fakes import gpu, healthy, pci_device, with_gpu
from trainrig.catalog.cuda import TorchSet, cuda_table
from trainrig.doctor import diagnose
from trainrig.machine.snapshot import GPU_KEYS, ONLY_TORCH, Missing, PcieLink, Snapshot

replace = dataclasses.replace
Fault = Callable[[Snapshot], Snapshot]


def link(now: int, width: int, most: int = 4, max_width: int = 16) -> PcieLink:
    return PcieLink(generation=now, width=width, max_generation=most, max_width=max_width)


def software(**changes: Any) -> Fault:
    return lambda s: replace(s, software=replace(s.software, **changes))


def on_gpu(**changes: Any) -> Fault:
    return lambda s: with_gpu(s, **changes)


def memory(**changes: Any) -> Fault:
    return lambda s: replace(s, memory=replace(s.memory, **changes))


def quota(cpus: float) -> Fault:
    return lambda s: replace(s, cpu=replace(s.cpu, quota_cpus=cpus))


def bus(*devices: Any, gpus: Any = (), container: str = "none") -> Fault:
    def plant(s: Snapshot) -> Snapshot:
        return replace(s, pci_gpus=devices, gpus=gpus, host=replace(s.host, container=container))

    return plant


def card(**changes: Any) -> Any:
    return pci_device("0000:01:00.0", "10de:2684", **changes)


def after_load(**changes: Any) -> Fault:
    """The first GPU's counters stood at 5 before, and differ when it is looked at again."""

    def plant(s: Snapshot) -> Snapshot:
        before = with_gpu(s, **dict.fromkeys(changes, 5))
        return replace(before, gpus_after=with_gpu(before, **changes).gpus)

    return plant


SILENT = Missing("NVML: driver not loaded")
FAULTS: list[tuple[str, str, str, Fault]] = [
    (
        "gpu-without-driver",
        "error",
        "RTX 4090 at 0000:01:00.0 has no driver",
        bus(card(driver=None), gpus=SILENT),
    ),
    ("gpu-without-driver", "error", "held by nouveau", bus(card(driver="nouveau"), gpus=SILENT)),
    ("gpu-without-driver", "error", "held by vfio-pci", bus(card(driver="vfio-pci"), gpus=SILENT)),
    ("gpu-without-driver", "error", "driver not loaded", bus(card(), gpus=SILENT)),
    ("gpu-without-driver", "error", "the driver does not list it", bus(card(), gpus=(gpu(1),))),
    (
        "gpu-without-driver",
        "error",
        "device 1da3:9999",
        bus(pci_device("0000:05:00.0", "1da3:9999", driver=None, pci_class="1200")),
    ),
    ("gpu-not-in-container", "info", "not given", bus(card(), gpus=(gpu(1),), container="docker")),
    (
        "torch-missing",
        "warning",
        "torch is not installed",
        software(torch=Missing("torch is not installed")),
    ),
    ("gpu-not-usable-by-torch", "error", "without CUDA", software(torch_cuda=None)),
    ("gpu-not-usable-by-torch", "error", "CUDA 12.8 at most", software(torch_cuda="13.0")),
    (
        "gpu-not-usable-by-torch",
        "error",
        "capability 7.0",
        lambda s: with_gpu(
            software(torch_cuda="13.0", cuda_driver="13.0")(s), compute_capability="7.0"
        ),
    ),
    (
        "gpu-not-usable-by-torch",
        "error",
        "capability 12.0",
        lambda s: with_gpu(software(torch_cuda="12.4")(s), compute_capability="12.0"),
    ),
    (
        "gpu-not-usable-by-torch",
        "error",
        "compute mode prohibited",
        on_gpu(compute_mode="prohibited"),
    ),
    (
        "gpu-not-usable-by-torch",
        "error",
        "without ROCm",
        lambda s: replace(
            s, pci_gpus=(), gpus=tuple(replace(g, vendor="amd", name="AMD Example") for g in s.gpus)
        ),
    ),
    ("gpu-hidden", "warning", "hides 2 GPU", software(environment={"CUDA_VISIBLE_DEVICES": ""})),
    ("gpu-not-described", "warning", "clocks, heat and errors", on_gpu(pci_address=ONLY_TORCH)),
    (
        "tf32-overridden",
        "warning",
        "NVIDIA_TF32_OVERRIDE=1 rounds",
        software(environment={"NVIDIA_TF32_OVERRIDE": "1"}),
    ),
    ("pcie-link-below-max", "warning", "8 of its 16 PCIe lanes", on_gpu(link=link(4, 8))),
    ("pcie-link-below-max", "warning", "generation 1 of 4 under load", on_gpu(link=link(1, 16))),
    ("pcie-link-below-max", "info", "GPU 0 idle", on_gpu(link=link(1, 16), utilization=0.0)),
    ("nvlink-inactive", "warning", "1 of 4 NVLinks", on_gpu(nvlinks_active=3, nvlinks_inactive=1)),
    ("power-limit-below-default", "warning", "limited to 300 W", on_gpu(power_limit_w=300.0)),
    ("ecc-uncorrected-errors", "error", "2 uncorrectable", on_gpu(ecc_uncorrected_volatile=2)),
    ("ecc-uncorrected-errors", "warning", "in its life", on_gpu(ecc_uncorrected_aggregate=2)),
    ("memory-repair-failed", "error", "could not be replaced", on_gpu(remap_failed=True)),
    ("memory-repair-pending", "warning", "waits for a reset", on_gpu(remap_pending=True)),
    ("memory-repair-pending", "warning", "waits for a reset", on_gpu(retirement_pending=True)),
    (
        "ecc-uncorrected-errors",
        "error",
        "2 uncorrectable",
        lambda s: replace(s, gpus_after=with_gpu(s, ecc_uncorrected_volatile=2).gpus),
    ),
    ("memory-repaired", "error", "1 memory rows", after_load(remapped_rows=6)),
    ("memory-repaired", "error", "1 memory pages", after_load(retired_pages=6)),
    ("memory-errors-corrected", "warning", "2 memory", after_load(ecc_corrected_volatile=7)),
    ("pcie-replays", "warning", "3 packets", after_load(pcie_replays=8)),
    ("throttled", "warning", "4 s slowed down by heat", after_load(slowed_by_heat_s=9.0)),
    ("throttled", "warning", "its power supply", after_load(slowed_by_board_s=9.0)),
    ("gpu-lost", "error", "GPU 0 did not answer", lambda s: replace(s, gpus_after=s.gpus[1:])),
    ("gpu-lost", "error", "not loaded", lambda s: replace(s, gpus_after=SILENT)),
    ("mig-enabled", "info", "GPU 0 is in MIG mode", on_gpu(mig=True)),
    ("throttled", "warning", "60 °C is slowed down", on_gpu(throttle_reasons=("hw_slowdown",))),
    ("throttled", "info", "at its power limit", on_gpu(throttle_reasons=("sw_power_cap",))),
    ("gpus-differ", "warning", "RTX 3090", on_gpu(name="NVIDIA GeForce RTX 3090")),
    (
        "gpus-differ",
        "warning",
        "400 W, 450 W",
        on_gpu(power_limit_w=400.0, power_limit_default_w=400.0),
    ),
    ("persistence-off", "info", "GPU 0", on_gpu(persistence=False)),
    ("cpu-quota", "warning", "allows 1.5 processors; 4 are visible", quota(1.5)),
    ("memory-low", "warning", "memory are available", memory(available_bytes=2**30)),
    ("swap-used", "warning", "swap are in use", memory(swap_free_bytes=2**30)),
    ("shm-small", "info", "64.0 MiB", memory(shm_bytes=2**26)),
]


def test_a_healthy_machine_yields_nothing() -> None:
    assert diagnose(healthy()) == ()


@pytest.mark.parametrize(("name", "severity", "evidence", "fault"), FAULTS)
def test_a_planted_fault_is_caught(name: str, severity: str, evidence: str, fault: Fault) -> None:
    found = [f for f in diagnose(fault(healthy())) if f.id == name and f.severity == severity]
    assert found, diagnose(fault(healthy()))
    assert evidence in found[0].evidence
    assert found[0].fix


def test_a_machine_that_tells_nothing_yields_no_fault() -> None:
    none = Missing("unreadable")
    blank = dict.fromkeys(GPU_KEYS.places.keys() - {"index", "vendor", "link"}, none)
    snapshot = replace(with_gpu(healthy(1), **blank), pci_gpus=none)
    snapshot = replace(snapshot, software=replace(snapshot.software, cuda_driver=none))
    assert diagnose(snapshot) == ()


def test_integrated_graphics_without_a_driver_are_no_fault() -> None:
    igpu = pci_device("0000:10:00.0", "1002:164e", driver=None)
    assert diagnose(replace(healthy(), pci_gpus=(igpu,))) == ()


def test_the_gravest_comes_first() -> None:
    fault = with_gpu(healthy(), persistence=False, power_limit_w=300.0, remap_failed=True)
    severities = [finding.severity for finding in diagnose(fault)]
    assert severities[0] == "error" and severities[-1] == "info"
    assert severities == sorted(severities, key=["error", "warning", "info"].index)


def test_a_narrow_slot_is_told_from_a_bad_seat() -> None:
    narrow = with_gpu(healthy(), link=link(4, 8, max_width=8))
    in_slot = (card(slot=link(4, 8, max_width=8)),)
    assert "its slot has 8" in diagnose(replace(narrow, pci_gpus=in_slot))[0].evidence
    assert "reseat" in diagnose(replace(narrow, pci_gpus=(card(),)))[0].fix


@pytest.mark.parametrize(
    ("reason", "container", "fix"),
    [
        ("NVML: rm has detected an nvml/rm version mismatch.", "none", "reboot"),
        ("NVIDIA's driver did not answer in 8 s", "none", "nvidia-smi -pm 1"),
        ("NVML: nvml shared library not found", "docker", "--gpus all"),
        ("NVML: nvml shared library not found", "none", "nvidia-smi"),
    ],
)
def test_the_next_step_suits_the_reason(reason: str, container: str, fix: str) -> None:
    fault = bus(card(), gpus=Missing(reason), container=container)(healthy())
    assert fix in diagnose(fault)[0].fix


@pytest.mark.parametrize(
    ("capability", "built", "usable"),
    [
        ("7.0", "12.8", True),
        ("7.5", "13.0", True),
        ("8.9", "11.8", True),
        ("9.0", "11.7", False),
        ("10.0", "12.8", True),
        ("6.1", "13.0", False),
        ("3.7", "12.1", False),
        ("3.7", "11.4", True),
        ("3.0", "11.4", False),
    ],
)
def test_which_cuda_knows_which_architecture(capability: str, built: str, usable: bool) -> None:
    fault = software(torch_cuda=built, cuda_driver="13.0")(healthy(1))
    found = diagnose(with_gpu(fault, compute_capability=capability))
    assert (found == ()) is usable


def test_counters_that_stand_still_are_no_finding() -> None:
    before = with_gpu(healthy(), pcie_replays=5, ecc_corrected_volatile=5, remapped_rows=0)
    assert diagnose(replace(before, gpus_after=before.gpus)) == diagnose(before)


@pytest.mark.parametrize("torch", cuda_table().torch, ids=lambda each: each.version)
@pytest.mark.parametrize("capability", ["5.2", "6.1", "7.0", "7.5", "8.9", "9.0", "10.3", "12.0"])
def test_the_doctor_and_the_installer_agree_on_the_cards_of_a_wheel(
    torch: TorchSet, capability: str
) -> None:
    build = f"{torch.version}+cu{torch.cuda.replace('.', '')}"
    built = software(torch=build, torch_cuda=torch.cuda, cuda_driver="13.0")(healthy(1))
    built = replace(built, host=replace(built.host, architecture="x86_64"))
    found = {one.id for one in diagnose(with_gpu(built, compute_capability=capability))}
    assert ("gpu-not-usable-by-torch" in found) == (not torch.runs_on(capability))


def test_the_fix_for_a_card_that_two_versions_dropped_is_the_older_one() -> None:
    built = software(torch_cuda="13.0", cuda_driver="13.0")(healthy(1))
    found = diagnose(with_gpu(built, compute_capability="3.7"))
    (fix,) = [one.fix for one in found if one.id == "gpu-not-usable-by-torch"]
    assert fix == "install a torch built for CUDA below 12.0"
