"""Facts that a rank reads off its live objects, in every engine: layout, software, memory.

The most memory is what the process held while it trained beyond what it held before: on a GPU what
torch's allocator handed out; on the CPU resident memory, which holds what malloc keeps as well.

Imports the standard library and torch alone: a driver runs in its engine's environment.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import math
import os
import platform
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import trainrig.train.native.gpu as gpu

RANK, SIZE = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


Facts = dict[str, Any]


def facts_of(
    wrapped: Any, masters: Iterable[Any], optimizer: Any, device: str, *packages: str
) -> Facts:
    """Return the layout's facts that live objects show between two steps.

    ``masters``: what the optimizer updates; ``packages``: the engine's, to state their versions.
    """
    masters = list(masters)
    states = [(w, value) for w, state in optimizer.state.items() for value in state.values()]
    moments = [  # Adafactor's rows and columns of a matrix are none, and it has no others of it
        value
        for weight, value in states
        if isinstance(value, torch.Tensor) and value.ndim > 0 and value.numel() == weight.numel()
    ]
    if len(moments) < len(optimizer.state):
        moments = []
    per_weight = max(1, round(len(moments) / max(1, len(optimizer.state))))
    places = [device]
    if isinstance(wrapped, torch.nn.DataParallel):
        places = [f"cuda:{number}" for number in wrapped.device_ids]
    ranked = dist.is_initialized()
    return {
        "wrapped": type(wrapped).__name__,
        "ranks": dist.get_world_size() if ranked else len(places),
        "transport": dist.get_backend() if ranked else None,
        "masters": elements(masters),
        "master_dtype": kind(masters),
        "states": elements(moments) // per_weight,
        "moments": per_weight if moments else 0,
        "state_dtype": kind(moments),
        "optimizer": type(optimizer).__name__,
        "fused": all(group.get("fused") for group in optimizer.param_groups),
        "device": device,
        "placed": devices_of(places),
        "threads": torch.get_num_threads(),
        "tf32": multiplies_in_tf32() if device.startswith("cuda") else None,
        "software": software(*packages),
    }


@contextlib.contextmanager
def settings_as_ours(device: str) -> Iterator[None]:
    """In the body a driver's rank has the process settings that a rank of our engine has.

    These are the processors beside its GPU and the order of attention's kernels: a comparison of
    engines that differ in them would be one of settings.
    """
    if device.startswith("cuda"):
        device = f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
        gpu.bind_to_node(device)
    with gpu.attention_in_order(device):
        yield


def multiplies_in_tf32() -> bool:
    """Return whether a GPU's fp32 products run in TF32; torch 2.9 names it per backend."""
    matmul = torch.backends.cuda.matmul
    precision = getattr(matmul, "fp32_precision", None)
    return bool(matmul.allow_tf32) if precision is None else precision == "tf32"


def watch_matrix(block: Any, facts: Facts) -> Callable[[], None]:
    """Count a block's forwards and look at what comes out, until what is returned is called.

    Its first product is watched: the dtype of what it gives is what the block computes in.  Counted
    is where one begins: a second forward stops where backward has all that it needs.
    """
    matrix: Any = next(part for part in block.modules() if _is_matrix(part))

    def began(*_: Any) -> None:
        facts["block_forwards"] += 1

    before = matrix.register_forward_pre_hook(began)
    after = matrix.register_forward_hook(lambda _, __, out: facts.update(of_result(out)))

    def leave() -> None:
        before.remove()
        after.remove()

    return leave


def _is_matrix(part: Any) -> bool:
    """Return a weight that DeepSpeed shares has its own shape beside it, and is empty now."""
    weight = getattr(part, "weight", None)
    return weight is not None and len(getattr(weight, "ds_shape", weight.shape)) == 2


def code_of(package: str, model: torch.nn.Module) -> list[str]:
    """Forwards of the live modules that a package has put in place of their own, by name."""
    forwards = set()
    for module in model.modules():
        forward = getattr(module.forward, "__func__", module.forward)
        if str(getattr(forward, "__module__", "")).split(".")[0] == package:
            forwards.add(forward.__qualname__.removesuffix(".forward"))
    return sorted(forwards)


def of_result(out: torch.Tensor) -> Facts:
    """Return dtype and tokens of the pass that a result (samples, tokens, width) is part of."""
    return {"weight_dtype": kind([out]), "micro_tokens": out.numel() // out.shape[-1]}


def software(*packages: str) -> dict[str, str]:
    """Return the versions of Python, torch, ``packages`` and the transport of this rank."""
    versions = {"python": platform.python_version(), "torch": str(torch.__version__)}
    for name in packages:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:  # a source folder on the path has no metadata
            versions[name] = str(getattr(sys.modules.get(name), "__version__", "unknown"))
    if torch.version.cuda is not None:
        versions["cuda"] = torch.version.cuda
    if dist.is_initialized():
        name = str(dist.get_backend())  # gloo is a part of torch; NCCL has versions of its own
        number = f" {'.'.join(map(str, torch.cuda.nccl.version()))}" if name == "nccl" else ""
        versions["transport"] = name + number
    return versions | {"interpreter": sys.executable}


def narrowing(logits: torch.Tensor, labels: torch.Tensor, gradient: float, precision: str) -> float:
    """Return the factor by which rounding ``gradient`` at a target enlarges the logits' gradient.

    Compared with one that begins with 1 and is divided last; both are narrowed to ``precision``.
    That is what is left of it along itself, of the first targets: at most of labels' own gradients,
    which are nearly alike before anything is learned, so that all are rounded alike.  Powers of two
    are left out: they round nothing, and fp16's range is what its loss is scaled for.
    (..., V) and (...) → a number.
    """
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision)
    here = (labels.flatten() >= 0).nonzero().flatten()[:_LOOKED_AT]
    if dtype is None or not len(here):
        return 1.0
    exact = logits.detach().flatten(0, -2)[here].float().softmax(-1).double()
    exact[torch.arange(len(here), device=here.device), labels.flatten()[here]] -= 1.0

    def left(begun: float) -> torch.Tensor:
        wanted = exact * begun
        return (wanted.to(dtype).double() * wanted).sum() / wanted.square().sum()

    return float(left(math.frexp(gradient)[0]) / left(1.0))


_LOOKED_AT = 512
"""Targets, at the most."""


def has_compiled() -> bool:
    """Return whether torch.compile has compiled anything in this process.

    Wrapping alone compiles nothing: TORCHDYNAMO_DISABLE, or a compiler whose errors are suppressed,
    leaves the wrapper in its place and runs what is inside as it is.
    """
    dynamo = sys.modules.get("torch._dynamo.utils")
    return dynamo is not None and dynamo.counters["frames"]["ok"] > 0


def elements(tensors: Any) -> int:
    """Elements on this rank."""
    return sum((t.to_local() if hasattr(t, "to_local") else t).numel() for t in tensors)


def kind(tensors: Any) -> str | None:
    """Return the dtypes of tensors, in words."""
    return names(tensor.dtype for tensor in tensors)


def names(dtypes: Any) -> str | None:
    """Return ``bfloat16, float32``; None of nothing."""
    return ", ".join(sorted({str(dtype).removeprefix("torch.") for dtype in dtypes})) or None


def memory_before(device: str) -> int:
    """Return bytes that the process holds before there is a model.

    What is measured starts there.
    """
    if device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats(device)
        return int(torch.cuda.memory_allocated(device))
    gc.collect()
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):  # what an earlier training freed would hide this one's
        libc.malloc_trim(0)
    try:
        Path("/proc/self/clear_refs").write_text("5")  # VmHWM starts anew
    except OSError:
        return 0
    return _status_bytes("VmRSS")


def memory_of(devices: Sequence[str], before: int) -> Facts:
    """Return a rank's peak memory: of each device, and the largest.

    ``before``: of the first; before there was a model nothing lay on the others.
    """
    entries: list[dict[str, Any]] = []
    for device in devices:
        if device.startswith("cuda"):
            allocated = torch.cuda.max_memory_allocated(device) - (0 if entries else before)
            reserved = float(torch.cuda.max_memory_reserved(device))
        else:
            allocated, reserved = max(0, _status_bytes("VmHWM") - before), None
        entry = {"device": device, "allocated": float(allocated), "reserved": reserved}
        entries.append(entry | (_allocator_state(device) if device.startswith("cuda") else {}))
    return {
        "peak": max((entry["allocated"] for entry in entries), default=None),
        "reserved": max((entry["reserved"] or 0.0 for entry in entries), default=0.0) or None,
        "devices": entries,
    }


def _allocator_state(device: str) -> Facts:
    """Return the allocator's retries and failures, and the bytes in use outside of it.

    That is the context, NCCL's and cuBLAS's buffers, and other processes, in bytes.
    """
    stats = torch.cuda.memory_stats(device)
    free, total = torch.cuda.mem_get_info(device)
    return {
        "retries": stats.get("num_alloc_retries", 0),
        "ooms": stats.get("num_ooms", 0),
        "outside": float(total - free - torch.cuda.memory_reserved(device)),
    }


def devices_of(devices: Iterable[str]) -> Facts:
    """Return the identity of devices: UUIDs of GPUs, cores of a host."""
    descriptions: list[Facts] = []
    for device in devices:
        if device.startswith("cuda"):
            properties = torch.cuda.get_device_properties(device)
            uuid = getattr(properties, "uuid", None)  # torch prints it without its GPU-
            named = None if uuid is None else f"GPU-{str(uuid).removeprefix('GPU-')}"
            descriptions.append({"device": device, "name": str(properties.name), "uuid": named})
        else:
            cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
            descriptions.append({"device": device, "name": None, "uuid": None, "cores": cores})
    return {"visible": os.environ.get("CUDA_VISIBLE_DEVICES"), "devices": descriptions}


def _status_bytes(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return 0
