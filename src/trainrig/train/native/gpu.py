"""Settings of a process on a GPU: TF32, order of attention's kernels, NUMA binding.

Unverified on hardware.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import torch
from torch.nn import attention

_HOPPER = (9, 0)


@contextmanager
def settings(device: str, precision: str, without: Collection[str] = ()) -> Iterator[None]:
    """Multiply in ``precision`` in the body, and prefer attention's kernels by speed.

    ``without``: some of UNFUSED; sdpa leaves torch its own order.

    torch asks for flash attention first.  On Hopper and after it cuDNN's is faster (its release
    notes of 9.0; torch 2.5 had it first for a while), and FlashAttention 3 where it is installed
    and torch (2.11 and later) can call it.  Each falls back to the next where it takes no such
    shape or mask.  Which kernel ran is looked at, not set: see `layout_observed`.
    """
    if not device.startswith("cuda"):
        yield
        return
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    with attention_in_order(device, without):
        yield


@contextmanager
def attention_in_order(device: str, without: Collection[str] = ()) -> Iterator[None]:
    """Prefer attention's kernels by speed in the body, in our engine and in drivers."""
    if not device.startswith("cuda") or "sdpa" in without:
        yield
        return
    capability = torch.cuda.get_device_capability(device)
    with attention.sdpa_kernel(order_of(capability), set_priority=True):
        if flash_3 := _flash_3(capability):
            attention.activate_flash_attention_impl(flash_3)
        yield


def bind_to_node(device: str, devices: Path = Path("/sys/bus/pci/devices")) -> frozenset[int]:
    """Keep this process on the processors beside its GPU, in every engine's ranks.

    Returns:
        Those processors; empty where the system doesn't say or none of them is this process's,
        and nothing is changed.
    """
    gpu = torch.cuda.get_device_properties(device)
    if not hasattr(gpu, "pci_bus_id"):
        return frozenset()
    address = f"{gpu.pci_domain_id:04x}:{gpu.pci_bus_id:02x}:{gpu.pci_device_id:02x}.0"
    try:
        text = (devices / address / "local_cpulist").read_text()
    except OSError:
        return frozenset()
    ends = [part.split("-") for part in text.strip().split(",") if part]
    local_cpus = {cpu for end in ends for cpu in range(int(end[0]), int(end[-1]) + 1)}
    usable = frozenset(local_cpus & os.sched_getaffinity(0))
    if usable:
        os.sched_setaffinity(0, usable)
        torch.set_num_threads(min(torch.get_num_threads(), len(usable)))
    return usable


def order_of(capability: tuple[int, int]) -> list[attention.SDPBackend]:
    """Return the kernels of attention, the first that takes a call has it."""
    kinds = attention.SDPBackend
    fused = [kinds.FLASH_ATTENTION, kinds.CUDNN_ATTENTION]
    if capability >= _HOPPER and _flash_3(capability) is None:
        fused.reverse()
    return [*fused, kinds.EFFICIENT_ATTENTION, kinds.MATH]


def _flash_3(capability: tuple[int, int]) -> str | None:
    """FlashAttention 3 is Hopper's alone; its package is called so."""
    can = hasattr(attention, "activate_flash_attention_impl") and capability == _HOPPER
    return "FA3" if can and find_spec("flash_attn_interface") is not None else None
