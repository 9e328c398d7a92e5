"""Is memory sound, and is the host in the way: errors, repairs, quotas, swap."""

from __future__ import annotations

from collections.abc import Iterator

from trainrig.doctor import finding_ids as ids
from trainrig.doctor.finding_ids import finding, gpus_of
from trainrig.machine.snapshot import Snapshot, value_or
from trainrig.record import Finding
from trainrig.units import format_memory

_LEAST_AVAILABLE = 0.1
_MOST_SWAP_USED = 0.1
_LEAST_SHM_BYTES = 2**30


def _gpu_memory(snapshot: Snapshot) -> Iterator[Finding]:
    for gpu in gpus_of(snapshot):
        new = value_or(gpu.ecc_uncorrected_volatile, 0)
        old = value_or(gpu.ecc_uncorrected_aggregate, 0)
        if new:
            evidence = f"GPU {gpu.index}: {new} uncorrectable memory errors since the driver loaded"
            fix = f"drain it; nvidia-smi -q -i {gpu.index} -d ECC,ROW_REMAPPER; reset or replace it"
            yield finding(ids.ECC_UNCORRECTED_ERRORS, "error", evidence, fix)
        elif old:
            evidence = (
                f"GPU {gpu.index}: {old} uncorrectable memory errors in its life, none lately"
            )
            fix = f"watch it: nvidia-smi -q -i {gpu.index} -d ECC"
            yield finding(ids.ECC_UNCORRECTED_ERRORS, "warning", evidence, fix)
        if gpu.remap_failed is True:
            evidence = f"GPU {gpu.index}: a damaged memory row could not be replaced"
            yield finding(ids.MEMORY_REPAIR_FAILED, "error", evidence, "replace the card")
        if gpu.remap_pending is True or gpu.retirement_pending is True:
            evidence = f"GPU {gpu.index}: a memory repair waits for a reset"
            fix = f"stop its jobs; sudo nvidia-smi -r -i {gpu.index}, or reboot"
            yield finding(ids.MEMORY_REPAIR_PENDING, "warning", evidence, fix)


def _quota(snapshot: Snapshot) -> Iterator[Finding]:
    quota, threads = snapshot.cpu.quota_cpus, snapshot.cpu.usable_threads
    if isinstance(quota, float) and isinstance(threads, int) and quota < threads:
        evidence = f"the control group allows {quota:g} processors; {threads} are visible"
        fix = f"start the container with more (--cpus), or set OMP_NUM_THREADS={max(1, int(quota))}"
        yield finding(ids.CPU_QUOTA, "warning", evidence, fix)


def _host_memory(snapshot: Snapshot) -> Iterator[Finding]:
    memory = snapshot.memory
    total, free = memory.total_bytes, memory.available_bytes
    if isinstance(total, int) and isinstance(free, int) and free < total * _LEAST_AVAILABLE:
        evidence = f"{format_memory(free)} of {format_memory(total)} memory are available"
        yield finding(ids.MEMORY_LOW, "warning", evidence, "find what uses it: ps aux --sort=-rss")
    swap, left = value_or(memory.swap_total_bytes, 0), value_or(memory.swap_free_bytes, 0)
    if swap - left > swap * _MOST_SWAP_USED:
        evidence = f"{format_memory(swap - left)} of {format_memory(swap)} swap are in use"
        yield finding(ids.SWAP_USED, "warning", evidence, "free memory, or: sudo swapoff -a")
    shm = memory.shm_bytes
    if isinstance(shm, int) and shm < _LEAST_SHM_BYTES:
        evidence = f"/dev/shm has {format_memory(shm)}; data loaders and NCCL pass buffers there"
        fix = "start the container with --ipc=host or --shm-size=8g"
        yield finding(ids.SHM_SMALL, "info", evidence, fix)


CHECKS = (_gpu_memory, _quota, _host_memory)
