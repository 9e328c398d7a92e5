"""The most memory that a process held while it trained, beyond what it held before.

On a GPU what torch's allocator handed out; on the CPU resident memory, which holds what malloc
keeps as well.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def memory_before(device: str) -> int:
    """Bytes that the process holds before there is a model; what is measured starts there."""
    import torch

    if device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats(device)
        return int(torch.cuda.memory_allocated(device))
    gc.collect()
    _give_back()
    try:
        Path("/proc/self/clear_refs").write_text("5")  # VmHWM starts anew
    except OSError:
        return 0
    return _status_bytes("VmRSS")


def peak_memory(device: str, before: int) -> float:
    """Bytes at the peak beyond those before: of torch's allocator on a GPU, else resident."""
    import torch

    if device.startswith("cuda"):
        return float(torch.cuda.max_memory_allocated(device) - before)
    return float(max(0, _status_bytes("VmHWM") - before))


def peaks(devices: Sequence[str], before: int) -> dict[str, Any]:
    """What a rank tells of its memory: each device, and the most of them all."""
    from trainrig.train.drivers.common import gpu_peak, memory_of

    if devices[0].startswith("cuda"):  # before there was a model nothing lay on the others
        first, *rest = devices
        return memory_of([gpu_peak(first, before), *(gpu_peak(each, 0) for each in rest)])
    held = peak_memory("cpu", before)
    return memory_of([{"device": "cpu", "allocated": held, "reserved": None}])


def _give_back() -> None:
    """Hand what an earlier training freed to the kernel: kept, it would hide this one's (glibc)."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)


def _status_bytes(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return 0
