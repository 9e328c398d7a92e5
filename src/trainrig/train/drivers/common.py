"""What every driver does around the engine that it drives: emit events, weigh, leave.

Imports the standard library and torch alone: a driver runs in its engine's environment.
"""

from __future__ import annotations

import gc
import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

RANK, SIZE = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def software(*packages: str) -> dict[str, str]:
    """What this rank runs on: versions of Python, torch and ``packages``, and what carries."""
    found = {"python": platform.python_version(), "torch": str(torch.__version__)}
    for name in packages:
        try:
            found[name] = version(name)
        except PackageNotFoundError:  # a source folder on the path has no metadata
            found[name] = str(getattr(sys.modules.get(name), "__version__", "unknown"))
    if torch.version.cuda is not None:
        found["cuda"] = torch.version.cuda
    if dist.is_initialized():
        found["transport"] = _transport()
    return found | {"interpreter": sys.executable}


def _transport() -> str:
    """``gloo``, which is a part of torch, or ``nccl 2.27.5``."""
    name = str(dist.get_backend())
    if name != "nccl":
        return name
    return f"nccl {'.'.join(map(str, torch.cuda.nccl.version()))}"


def has_compiled() -> bool:
    """Whether torch.compile has made anything in this process.

    Wrapping alone compiles nothing: TORCHDYNAMO_DISABLE, or a compiler whose errors are suppressed,
    leaves the wrapper in its place and runs what is inside as it is.
    """
    dynamo = sys.modules.get("torch._dynamo.utils")
    return dynamo is not None and dynamo.counters["frames"]["ok"] > 0


def elements(tensors: Any) -> int:
    """Elements on this rank."""
    return sum((t.to_local() if hasattr(t, "to_local") else t).numel() for t in tensors)


def kind(tensors: Any) -> str | None:
    """The dtypes of tensors, in words."""
    return names(tensor.dtype for tensor in tensors)


def names(dtypes: Any) -> str | None:
    """``bfloat16, float32``; None of nothing."""
    return ", ".join(sorted({str(dtype).removeprefix("torch.") for dtype in dtypes})) or None


def resident() -> int:
    """Resident memory in bytes; its peak begins anew."""
    gc.collect()
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return 0
    return _status("VmRSS")


def peaks(options: dict[str, Any], before: int) -> dict[str, Any]:
    """The most memory beyond ``before``, of each device; a GPU's as torch's allocator has it."""
    if not options["device"].startswith("cuda"):
        held = float(max(0, _status("VmHWM") - before))
        return memory_of([{"device": "cpu", "allocated": held, "reserved": None}])
    used = [d for d in range(torch.cuda.device_count()) if torch.cuda.max_memory_allocated(d)]
    return memory_of([gpu_peak(f"cuda:{number}", 0) for number in used])


def gpu_peak(device: str, before: int) -> dict[str, Any]:
    """The most that torch's allocator handed out on a GPU, beyond ``before``, and that it held."""
    return {
        "device": device,
        "allocated": float(torch.cuda.max_memory_allocated(device) - before),
        "reserved": float(torch.cuda.max_memory_reserved(device)),
    }


def memory_of(devices: list[dict[str, Any]]) -> dict[str, Any]:
    """What is told of a rank's memory: the most of all its devices, and each."""
    held = [each["reserved"] for each in devices if each["reserved"] is not None]
    return {
        "peak": max((each["allocated"] for each in devices), default=None),
        "reserved": max(held, default=None),
        "devices": devices,
    }


def devices_of(devices: list[str]) -> dict[str, Any]:
    """Which devices these are, whatever they are called here: UUIDs of GPUs, cores of a host."""
    return {
        "visible": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "devices": [_gpu(each) if each.startswith("cuda") else _host() for each in devices],
    }


def _gpu(device: str) -> dict[str, Any]:
    found = torch.cuda.get_device_properties(device)
    uuid = getattr(found, "uuid", None)  # torch prints it without its GPU-
    named = None if uuid is None else f"GPU-{str(uuid).removeprefix('GPU-')}"
    return {"device": device, "name": str(found.name), "uuid": named}


def _host() -> dict[str, Any]:
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    return {"device": "cpu", "name": None, "uuid": None, "cores": cores}


def _status(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return 0
