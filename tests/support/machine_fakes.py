"""A machine made of captured files and outputs, and a healthy snapshot to plant faults in."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from trainrig.machine.probes import inspect
from trainrig.machine.snapshot import Gpu, Missing, PcieLink, PciGpu, Snapshot
from trainrig.selftest.doctor_faults import FakeHost

FIXTURES = Path(__file__).parent / "fixtures" / "machine"


def fixture(name: str) -> str:
    return (FIXTURES / name).read_text(encoding="utf-8")


def pci_device(address: str, pci_id: str, **changes: Any) -> PciGpu:
    """A healthy card in a full slot, driven by NVIDIA's driver."""
    link = PcieLink(generation=4, width=16, max_generation=4, max_width=16)
    device = PciGpu(
        address=address,
        pci_id=pci_id,
        subsystem_id="1043:889a",
        pci_class="0300",
        name=Missing("this system has no pci.ids"),
        driver="nvidia",
        numa_node=0,
        link=link,
        slot=link,
    )
    return dataclasses.replace(device, **changes)


def gpu(index: int = 0, **changes: Any) -> Gpu:
    """A healthy RTX 4090 under load."""
    sound = Gpu.of(
        index=index,
        vendor="nvidia",
        name="NVIDIA GeForce RTX 4090",
        uuid=f"GPU-00000000-0000-0000-0000-00000000000{index}",
        pci_address=f"0000:0{index + 1}:00.0",
        pci_id="10de:2684",
        memory_total_bytes=24564 * 2**20,
        memory_used_bytes=2**28,
        memory_bus_bits=384,
        num_cores=16384,
        compute_capability="8.9",
        vbios="95.02.18.80.01",
        link=PcieLink(generation=4, width=16, max_generation=4, max_width=16),
        power_w=300.0,
        power_limit_w=450.0,
        power_limit_default_w=450.0,
        power_limit_min_w=150.0,
        power_limit_max_w=600.0,
        ecc=False,
        ecc_uncorrected_volatile=0,
        ecc_uncorrected_aggregate=0,
        ecc_corrected_volatile=0,
        ecc_corrected_aggregate=0,
        retired_pages=Missing("NVML: not supported"),
        retirement_pending=Missing("NVML: not supported"),
        remapped_rows=0,
        remap_pending=False,
        remap_failed=False,
        sm_clock_hz=2.52e9,
        memory_clock_hz=10.501e9,
        max_sm_clock_hz=3.12e9,
        max_memory_clock_hz=10.501e9,
        application_sm_clock_hz=Missing("NVML: not supported"),
        temperature_c=60.0,
        throttle_reasons=(),
        utilization=0.9,
        mig=Missing("NVML: not supported"),
        persistence=True,
        compute_mode="default",
        num_processes=0,
        nvlinks_active=Missing("NVML: not supported"),
        nvlinks_inactive=Missing("NVML: not supported"),
    )
    return sound.replace(**changes)


def healthy(num_gpus: int = 2) -> Snapshot:
    """A machine without a fault: two RTX 4090s, their driver, and a torch that fits."""
    bare = inspect(FakeHost(files={"/proc/meminfo": fixture("meminfo.txt")}))
    gpus = tuple(gpu(index) for index in range(num_gpus))
    software = dataclasses.replace(
        bare.software,
        torch="2.13.0+cu128",
        torch_cuda="12.8",
        torch_hip=None,
        nvidia_driver="570.86.15",
        cuda_driver="12.8",
        environment={},
    )
    return dataclasses.replace(
        bare,
        host=dataclasses.replace(bare.host, container="none"),
        gpus=gpus,
        pci_gpus=tuple(pci_device(str(g.pci_address), "10de:2684") for g in gpus),
        software=software,
    )


def with_gpu(snapshot: Snapshot, **changes: Any) -> Snapshot:
    """The snapshot with its first GPU changed."""
    assert isinstance(snapshot.gpus, tuple)
    changed = snapshot.gpus[0].replace(**changes)
    return dataclasses.replace(snapshot, gpus=(changed, *snapshot.gpus[1:]))
