"""NVIDIA's GPUs as the driver describes them: what NVML answered, judged.

NVML marks values that it does not have with 2^32-1 or about 9.2e18, and a sick
driver answers with garbage.  A value outside what any GPU can be is `Missing`.
The answers come from nvml.py, run as a child process.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from trainrig.machine import nvml
from trainrig.machine.parse import (
    integer,
    json_object,
    number,
    objects,
    percent,
    scaled,
    text,
    yes_or_no,
)
from trainrig.machine.snapshot import Gpu, GpuLink, Missing, PcieLink, if_known
from trainrig.machine.system_access import Host

NVML_PROGRAM = os.path.abspath(nvml.__file__)

# Without persistence mode the driver initialises each GPU anew: 1 to 2 s each.  A healthy driver
# with persistence mode answers in 0.1 s, so the patience is paid only where it is needed.
PATIENCE_S = 8.0

_BLANKS = frozenset([2**32 - 1, 2**31 - 1, 2**64 - 1, 2**63 - 1])
_UUID = re.compile(r"(?:GPU|MIG)-[0-9a-zA-Z/-]{4,90}")
_BUS_ID = re.compile(r"(?:[0-9a-f]{4})?([0-9a-f]{4}):([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])", re.I)
_DRIVER = re.compile(r"\d{2,4}\.\d{1,4}(?:\.\d{1,4})?")

# Bits of NVML's clock event reasons, as nvml.h defines them.
_REASONS = {
    0x1: "idle",
    0x2: "application_clocks",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake",
    0x100: "display_clocks",
}
_PATHS = {0: "board", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
_ACCESS = {
    0: "ok",
    1: "chipset not supported",
    2: "GPU not supported",
    3: "topology not supported",
    4: "disabled by a driver setting",
    5: "not supported",
}
_SWITCH = 2  # NVML's number for this kind of remote end
_COMPUTE_MODES = {0: "default", 1: "exclusive thread", 2: "prohibited", 3: "exclusive process"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    """Driver and GPUs of the whole machine, as NVML describes them."""

    version: str | Missing
    cuda: str | Missing
    gpus: tuple[Gpu, ...] | Missing
    links: tuple[GpuLink, ...] | Missing


def ask_driver(host: Host, patience_s: float = PATIENCE_S) -> Driver:
    """Ask NVML for everything, in a child process that gets `patience_s` seconds."""
    output = host.run(sys.executable, "-P", NVML_PROGRAM, timeout_s=patience_s)
    if isinstance(output, Missing) and "did not answer" in output.reason:
        output = Missing(f"NVIDIA's driver did not answer in {patience_s:g} s")
    elif isinstance(output, Missing):
        output = Missing(f"NVIDIA's driver could not be asked: {output.reason}")
    return read_inventory(json_object(output, "the reader of NVML"))


def read_inventory(answer: Mapping[str, Any] | Missing) -> Driver:
    """Return the driver's description in the answer of `nvml.inventory`."""
    if not isinstance(answer, Missing):
        answer = _reason_of(answer) or answer
    if isinstance(answer, Missing):
        return Driver(version=answer, cuda=answer, gpus=answer, links=answer)
    devices = answer.get("devices")
    listed = list(devices) if isinstance(devices, list) else []
    gpus = tuple(
        read_device(i, device) for i, device in enumerate(listed) if isinstance(device, dict)
    )
    return Driver(
        version=_matching(_DRIVER, answer.get("driver"), "driver version"),
        cuda=_cuda_version(answer.get("cuda")),
        gpus=gpus,
        links=_links(objects(answer.get("pairs")), gpus, listed),
    )


def _reason_of(value: object) -> Missing | None:
    """Return the reason in ``{"missing": why}``."""
    if isinstance(value, Mapping) and isinstance(value.get("missing"), str):
        return Missing(str(value["missing"])[:200])
    return None


def _answered(facts: Mapping[str, Any], path: str) -> Any | Missing:
    """Return one answer, with blanks and reasons as Missing; ``ecc.0`` is the first part of one."""
    value: Any = facts
    for name in path.split("."):
        if isinstance(value, list):
            value = {str(place): part for place, part in enumerate(value)}
        value = value.get(name) if isinstance(value, Mapping) else None
        if why := _reason_of(value):
            return why
    if value is None or (isinstance(value, int) and value in _BLANKS):
        return Missing(f"NVML has no {path.partition('.')[0].replace('_', ' ')}")
    return value


def read_device(index: int, facts: Mapping[str, Any]) -> Gpu:
    """Return a GPU from NVML's answers about it; what was not asked is Missing."""
    why = _reason_of(facts)
    if why is not None:  # the device is counted, but the driver does not hand it out
        facts = {name: {"missing": why.reason} for name in nvml.QUESTION_NAMES}
    links = objects(facts.get("links"))
    known = isinstance(facts.get("links"), list)
    no_links = None if known else _as_missing(facts.get("links"), "list of NVLinks")
    single, double = (_count(_answered(facts, f"retired_{n}")) for n in ("single", "double"))
    return Gpu.of(
        index=index,
        vendor="nvidia",
        link=PcieLink(
            **{name: read(_answered(facts, f"pcie_{name}")) for name, read in _LINK.items()}
        ),
        retired_pages=if_known(lambda single_bit, two: single_bit + two, single, double),
        nvlinks_active=no_links or sum(link.get("state") == 1 for link in links),
        nvlinks_inactive=no_links or sum(link.get("state") != 1 for link in links),
        **{name: read(_answered(facts, path)) for name, (path, read) in _READERS.items()},
    )


def throttle_reasons(bits: object) -> tuple[str, ...] | Missing:
    """Return the names of the bits; a bit that this program does not know keeps its number."""

    def named(mask: int) -> tuple[str, ...]:
        known = tuple(name for bit, name in _REASONS.items() if mask & bit)
        unknown = mask & ~sum(_REASONS)
        return known + ((f"unknown_0x{unknown:x}",) if unknown else ())

    return if_known(named, integer(bits, "throttle reasons"))


def pci_address(value: object) -> str | Missing:
    """Return ``0000:01:00.0`` for NVML's ``00000000:01:00.0``."""
    match = _BUS_ID.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        return _as_missing(value, "PCI address")
    return f"{match[1]}:{match[2]}:{match[3]}.{match[4]}".lower()


def _pci_id(value: object) -> str | Missing:
    """Return ``10de:2684`` for 0x268410DE."""

    def named(pci_id: int) -> str | Missing:
        if pci_id & 0xFFFF != 0x10DE or pci_id >= 2**32:
            return Missing(f"not a PCI id of NVIDIA: {pci_id:#x}")
        return f"{pci_id & 0xFFFF:04x}:{pci_id >> 16:04x}"

    return if_known(named, integer(value, "PCI id"))


def _capability(value: object) -> str | Missing:
    if not isinstance(value, list) or len(value) != 2:
        return _as_missing(value, "compute capability")
    parts = [_bounded("compute capability", 1 - i, 99)(part) for i, part in enumerate(value)]
    return if_known(lambda major, minor: f"{major}.{minor}", *parts)


def _cuda_version(value: object) -> str | Missing:
    """Return ``12.4`` for 12040."""
    version = _bounded("CUDA version", 1000, 99990)(_reason_of(value) or value)
    return if_known(lambda number: f"{number // 1000}.{number % 1000 // 10}", version)


def _bounded(quantity: str, least: int, most: int) -> Callable[[object], int | Missing]:
    """Return a reader of whole numbers within bounds."""

    def within(count: int) -> int | Missing:
        return count if least <= count <= most else Missing(f"not a possible {quantity}: {count}")

    return lambda value: if_known(within, integer(value, quantity))


def _count(value: object) -> int | Missing:
    return len(value) if isinstance(value, list) else _as_missing(value)


def _process_ids(value: object) -> tuple[int, ...] | Missing:
    if not isinstance(value, list):
        return _as_missing(value)
    pids = [integer(process.get("pid"), "process") for process in objects(value)]
    return tuple(pid for pid in pids if not isinstance(pid, Missing))


def _milliwatts(value: object) -> float | Missing:
    return if_known(lambda milliwatts: milliwatts / 1000, number(value, "power", most=1e7))


def _nanoseconds(value: object) -> float | Missing:
    return scaled(value, 1e-9, "time")


def _megahertz(value: object) -> float | Missing:
    return scaled(value, 1e6, "clock", most=1e5)


def _named(names: Mapping[int, str], value: object, quantity: str) -> str | Missing:
    def name_of(code: int) -> str | Missing:
        return names.get(code, Missing(f"not a known {quantity}: {code}"))

    return if_known(name_of, integer(_reason_of(value) or value, quantity))


def _matching(pattern: re.Pattern[str], value: object, quantity: str) -> str | Missing:
    if isinstance(value, str) and pattern.fullmatch(value):
        return value
    return _as_missing(value, quantity)


def _as_missing(value: object, quantity: str = "answer") -> Missing:
    if isinstance(value, Missing):
        return value
    return _reason_of(value) or Missing(f"not a {quantity}: {str(value)[:40]!r}")


Reader = Callable[[Any], Any]

_LINK = dict.fromkeys(("generation", "max_generation"), _bounded("PCIe generation", 1, 9))
_LINK |= dict.fromkeys(("width", "max_width"), _bounded("PCIe width", 1, 32))

# Field of a `Gpu`: the answer that it stands in, and how it is read.
_READERS: dict[str, tuple[str, Reader]] = {
    "name": ("name", lambda value: text(value, "name")),
    "uuid": ("uuid", lambda value: _matching(_UUID, value, "UUID")),
    "pci_address": ("pci.busId", pci_address),
    "pci_id": ("pci.pciDeviceId", _pci_id),
    "compute_capability": ("capability", _capability),
    "vbios": ("vbios", lambda value: text(value, "VBIOS version")),
    "num_cores": ("cores", _bounded("cores", 1, 10**6)),
    "memory_total_bytes": ("memory.total", _bounded("memory size", 1, 2**50)),
    "memory_used_bytes": ("memory.used", _bounded("memory use", 0, 2**50)),
    "memory_bus_bits": ("memory_bus", _bounded("memory bus", 1, 2**16)),
    "power_w": ("power", _milliwatts),
    "power_limit_w": ("power_limit", _milliwatts),
    "power_limit_default_w": ("power_default", _milliwatts),
    "power_limit_min_w": ("power_range.0", _milliwatts),
    "power_limit_max_w": ("power_range.1", _milliwatts),
    "ecc": ("ecc.0", lambda value: yes_or_no(value, "ECC mode")),
    **{
        f"ecc_{name}": (name, _bounded("ECC counter", 0, 10**9))
        for kind in ("uncorrected", "corrected")
        for name in (f"{kind}_volatile", f"{kind}_aggregate")
    },
    "retirement_pending": ("retirement_pending", lambda value: yes_or_no(value, "pending pages")),
    "remapped_rows": ("remapped.1", _bounded("remapped rows", 0, 10**6)),
    "remap_pending": ("remapped.2", lambda value: yes_or_no(value, "pending remap")),
    "remap_failed": ("remapped.3", lambda value: yes_or_no(value, "failed remap")),
    "sm_clock_hz": ("sm_clock", _megahertz),
    "memory_clock_hz": ("memory_clock", _megahertz),
    "max_sm_clock_hz": ("max_sm_clock", _megahertz),
    "max_memory_clock_hz": ("max_memory_clock", _megahertz),
    "application_sm_clock_hz": ("application_clock", _megahertz),
    "temperature_c": ("temperature", lambda value: number(value, "temperature", most=200)),
    "throttle_reasons": ("throttle", throttle_reasons),
    "slowed_by_heat_s": ("slowed_by_heat.violationTime", _nanoseconds),
    "slowed_by_board_s": ("slowed_by_board.violationTime", _nanoseconds),
    "pcie_replays": ("pcie_replays", _bounded("PCIe replays", 0, 10**12)),
    "energy_j": ("energy", lambda value: scaled(value, 1e-3, "energy")),
    "utilization": ("utilization.gpu", lambda value: percent(value, "utilization")),
    "mig": ("mig.0", lambda value: yes_or_no(value, "MIG mode")),
    "persistence": ("persistence", lambda value: yes_or_no(value, "persistence mode")),
    "compute_mode": ("compute_mode", lambda value: _named(_COMPUTE_MODES, value, "compute mode")),
    "num_processes": ("processes", _count),
    "process_ids": ("processes", _process_ids),
    "fan": ("fan", lambda value: percent(value, "fan speed")),
    "bar1_bytes": ("bar1.bar1Total", _bounded("window", 1, 2**50)),
    "slowdown_temperature_c": (
        "slowdown_temperature",
        lambda value: number(value, "temperature", most=200),
    ),
}


def _links(
    pairs: list[Mapping[str, Any]], gpus: tuple[Gpu, ...], devices: list[Any]
) -> tuple[GpuLink, ...]:
    known = range(len(gpus))
    return tuple(
        GpuLink(
            a=pair["a"],
            b=pair["b"],
            path=_path(pair, gpus, devices),
            p2p_read=_named(_ACCESS, pair.get("read"), "access status"),
            p2p_write=_named(_ACCESS, pair.get("write"), "access status"),
        )
        for pair in pairs
        if pair.get("a") in known and pair.get("b") in known
    )


def _path(pair: Mapping[str, Any], gpus: tuple[Gpu, ...], devices: list[Any]) -> str | Missing:
    """Return the NVLinks between two GPUs, direct or through a switch; else the path by the bus."""
    address = gpus[pair["b"]].pci_address
    ends = [end for end, _ in _active(devices[pair["a"]]) if isinstance(end, str)]
    count = sum(end == address for end in ends)
    count = count or min(_switch_links(devices[pair[end]], gpus) for end in ("a", "b"))
    return f"NV{count}" if count else _named(_PATHS, pair.get("ancestor"), "common ancestor")


def _active(device: object) -> list[tuple[str | Missing, object]]:
    """Return PCI address and kind of the other ends of a device's active NVLinks."""
    links = objects(device.get("links")) if isinstance(device, dict) else []
    ends = []
    for link in links:
        remote = link.get("remote")
        if link.get("state") == 1 and isinstance(remote, dict):
            ends.append((pci_address(remote.get("busId")), link.get("kind")))
    return ends


def _switch_links(device: object, gpus: tuple[Gpu, ...]) -> int:
    """Return the number of links that end at an NVLink switch, which reaches every other GPU.

    Drivers that do not name the kind of the other end leave its address: what is
    no GPU is then a switch.
    """
    addresses = {gpu.pci_address for gpu in gpus}
    ends = _active(device)
    return sum(
        kind == _SWITCH if isinstance(kind, int) else isinstance(end, str) and end not in addresses
        for end, kind in ends
    )
