"""NVIDIA's GPUs as the driver describes them: what NVML answered, judged.

NVML marks values that it does not have with 2^32-1 or about 9.2e18, and a sick
driver answers with garbage.  A value outside what any GPU can be is `Missing`.
The answers come from nvml.py, run as a child process.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainrig.machine import nvml
from trainrig.machine.parse import integer, json_object, number, objects, text, yes_or_no
from trainrig.machine.snapshot import Gpu, GpuLink, Missing, PcieLink
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
    """What NVML says about the whole machine."""

    version: str | Missing
    cuda: str | Missing
    gpus: tuple[Gpu, ...] | Missing
    links: tuple[GpuLink, ...] | Missing


def ask_driver(host: Host, patience_s: float = PATIENCE_S) -> Driver:
    """Everything NVML knows, from a child process that gets `patience_s` seconds."""
    output = host.run(sys.executable, "-P", NVML_PROGRAM, timeout_s=patience_s)
    if isinstance(output, Missing) and "did not answer" in output.reason:
        output = Missing(f"NVIDIA's driver did not answer in {patience_s:g} s")
    elif isinstance(output, Missing):
        output = Missing(f"NVIDIA's driver could not be asked: {output.reason}")
    return read_inventory(json_object(output, "the reader of NVML"))


def read_inventory(answer: Mapping[str, Any] | Missing) -> Driver:
    """The driver's description in the answer of `nvml.inventory`."""
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
    """The reason in ``{"missing": why}``."""
    if isinstance(value, Mapping) and isinstance(value.get("missing"), str):
        return Missing(str(value["missing"])[:200])
    return None


def _answered(facts: Mapping[str, Any], name: str) -> Any | Missing:
    """One answer, with blanks and reasons as Missing."""
    value = facts.get(name)
    if isinstance(value, int) and value in _BLANKS:
        return Missing(f"NVML has no {name.replace('_', ' ')}")
    return _reason_of(value) or (Missing(f"NVML has no {name}") if value is None else value)


def read_device(index: int, facts: Mapping[str, Any]) -> Gpu:
    """One GPU out of NVML's answers about it; what was not asked is Missing."""
    why = _reason_of(facts)
    if why is not None:  # the device is counted, but the driver does not hand it out
        facts = {name: {"missing": why.reason} for name in nvml.QUESTION_NAMES}
    links = objects(facts.get("links"))
    known = isinstance(facts.get("links"), list)
    no_links = None if known else _as_missing(facts.get("links"), "list of NVLinks")
    return Gpu(
        index=index,
        vendor="nvidia",
        **_identity(facts),
        memory_total_bytes=_bounded(_member(facts, "memory", "total"), "memory size", 1, 2**50),
        memory_used_bytes=_bounded(_member(facts, "memory", "used"), "memory use", 0, 2**50),
        memory_bus_bits=_small(facts, "memory_bus", 1, 2**16),
        link=PcieLink(
            generation=_small(facts, "pcie_generation", 1, 9),
            width=_small(facts, "pcie_width", 1, 32),
            max_generation=_small(facts, "pcie_max_generation", 1, 9),
            max_width=_small(facts, "pcie_max_width", 1, 32),
        ),
        **_power(facts),
        **_errors(facts),
        **_clocks(facts),
        **_modes(facts),
        nvlinks_active=no_links or sum(link.get("state") == 1 for link in links),
        nvlinks_inactive=no_links or sum(link.get("state") != 1 for link in links),
    )


def _identity(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "name": text(_answered(facts, "name"), "name"),
        "uuid": _matching(_UUID, _answered(facts, "uuid"), "UUID"),
        "pci_address": pci_address(_member(facts, "pci", "busId")),
        "pci_id": _pci_id(_member(facts, "pci", "pciDeviceId")),
        "compute_capability": _capability(_answered(facts, "capability")),
        "vbios": text(_answered(facts, "vbios"), "VBIOS version"),
        "num_cores": _small(facts, "cores", 1, 10**6),
    }


def _power(facts: Mapping[str, Any]) -> dict[str, Any]:
    least, most = _two(_answered(facts, "power_range"), "power range")
    values = {
        "power_w": _answered(facts, "power"),
        "power_limit_w": _answered(facts, "power_limit"),
        "power_limit_default_w": _answered(facts, "power_default"),
        "power_limit_min_w": least,
        "power_limit_max_w": most,
    }
    return {name: _milliwatts(value) for name, value in values.items()}


def _errors(facts: Mapping[str, Any]) -> dict[str, Any]:
    remapped = _answered(facts, "remapped")
    rows = remapped if isinstance(remapped, list) and len(remapped) == 4 else [remapped] * 4
    current, _ = _two(_answered(facts, "ecc"), "ECC mode")
    kinds = ("uncorrected", "corrected")
    counters = [f"{kind}_{since}" for kind in kinds for since in ("volatile", "aggregate")]
    return {
        "ecc": yes_or_no(current, "ECC mode"),
        **{
            f"ecc_{name}": _bounded(_answered(facts, name), "ECC counter", 0, 10**9)
            for name in counters
        },
        "retired_pages": _retired(facts),
        "retirement_pending": yes_or_no(_answered(facts, "retirement_pending"), "pending pages"),
        "remapped_rows": _bounded(rows[1], "remapped rows", 0, 10**6),
        "remap_pending": yes_or_no(rows[2], "pending remap"),
        "remap_failed": yes_or_no(rows[3], "failed remap"),
    }


def _clocks(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "sm_clock_hz": _megahertz(_answered(facts, "sm_clock")),
        "memory_clock_hz": _megahertz(_answered(facts, "memory_clock")),
        "max_sm_clock_hz": _megahertz(_answered(facts, "max_sm_clock")),
        "max_memory_clock_hz": _megahertz(_answered(facts, "max_memory_clock")),
        "application_sm_clock_hz": _megahertz(_answered(facts, "application_clock")),
    }


def _modes(facts: Mapping[str, Any]) -> dict[str, Any]:
    busy = number(_member(facts, "utilization", "gpu"), "utilization", most=100)
    mig, _ = _two(_answered(facts, "mig"), "MIG mode")
    processes = _answered(facts, "processes")
    return {
        "temperature_c": number(_answered(facts, "temperature"), "temperature", most=200),
        "throttle_reasons": throttle_reasons(_answered(facts, "throttle")),
        "utilization": busy if isinstance(busy, Missing) else busy / 100,
        "mig": yes_or_no(mig, "MIG mode"),
        "persistence": yes_or_no(_answered(facts, "persistence"), "persistence mode"),
        "compute_mode": _named(_COMPUTE_MODES, _answered(facts, "compute_mode"), "compute mode"),
        "num_processes": len(processes) if isinstance(processes, list) else _as_missing(processes),
    }


def throttle_reasons(bits: object) -> tuple[str, ...] | Missing:
    """Names of the bits; a bit that this program does not know keeps its number."""
    mask = integer(bits, "throttle reasons")
    if isinstance(mask, Missing):
        return mask
    known = tuple(name for bit, name in _REASONS.items() if mask & bit)
    unknown = mask & ~sum(_REASONS)
    return known + ((f"unknown_0x{unknown:x}",) if unknown else ())


def pci_address(value: object) -> str | Missing:
    """``0000:01:00.0`` of NVML's ``00000000:01:00.0``."""
    match = _BUS_ID.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        return _as_missing(value, "PCI address")
    return f"{match[1]}:{match[2]}:{match[3]}.{match[4]}".lower()


def _pci_id(value: object) -> str | Missing:
    """``10de:2684`` of 0x268410DE."""
    found = integer(value, "PCI id")
    if isinstance(found, Missing):
        return found
    if found & 0xFFFF != 0x10DE or found >= 2**32:
        return Missing(f"not a PCI id of NVIDIA: {found:#x}")
    return f"{found & 0xFFFF:04x}:{found >> 16:04x}"


def _capability(value: object) -> str | Missing:
    major, minor = _two(value, "compute capability")
    high = _bounded(major, "compute capability", 1, 99)
    low = _bounded(minor, "compute capability", 0, 9)
    if isinstance(high, Missing):
        return high
    return low if isinstance(low, Missing) else f"{high}.{low}"


def _cuda_version(value: object) -> str | Missing:
    """``12.4`` of 12040."""
    found = _bounded(_reason_of(value) or value, "CUDA version", 1000, 99990)
    if isinstance(found, Missing):
        return found
    return f"{found // 1000}.{found % 1000 // 10}"


def _member(facts: Mapping[str, Any], name: str, member: str) -> Any | Missing:
    value = _answered(facts, name)
    if isinstance(value, Missing):
        return value
    return _answered(value, member) if isinstance(value, dict) else Missing(f"NVML has no {name}")


def _small(facts: Mapping[str, Any], name: str, least: int, most: int) -> int | Missing:
    return _bounded(_answered(facts, name), name.replace("_", " "), least, most)


def _bounded(value: object, what: str, least: int, most: int) -> int | Missing:
    found = integer(value, what)
    if isinstance(found, Missing) or least <= found <= most:
        return found
    return Missing(f"not a possible {what}: {found}")


def _milliwatts(value: object) -> float | Missing:
    found = number(value, "power", most=1e7)
    return found if isinstance(found, Missing) else found / 1000


def _megahertz(value: object) -> float | Missing:
    found = number(value, "clock", most=1e5)
    return found if isinstance(found, Missing) else found * 1e6


def _two(value: object, what: str) -> tuple[Any, Any]:
    if isinstance(value, list) and len(value) == 2:
        return value[0], value[1]
    return (_as_missing(value, what),) * 2


def _named(names: Mapping[int, str], value: object, what: str) -> str | Missing:
    found = integer(_reason_of(value) or value, what)
    if isinstance(found, Missing):
        return found
    return names.get(found, Missing(f"not a known {what}: {found}"))


def _matching(pattern: re.Pattern[str], value: object, what: str) -> str | Missing:
    if isinstance(value, str) and pattern.fullmatch(value):
        return value
    return _as_missing(value, what)


def _as_missing(value: object, what: str = "answer") -> Missing:
    if isinstance(value, Missing):
        return value
    return _reason_of(value) or Missing(f"not a {what}: {str(value)[:40]!r}")


def _retired(facts: Mapping[str, Any]) -> int | Missing:
    single, double = _answered(facts, "retired_single"), _answered(facts, "retired_double")
    if isinstance(single, list) and isinstance(double, list):
        return len(single) + len(double)
    return _as_missing(single if not isinstance(single, list) else double)


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
    """NVLinks where there are any between the two, directly or through a switch; else the bus."""
    address = gpus[pair["b"]].pci_address
    ends = [end for end, _ in _active(devices[pair["a"]]) if isinstance(end, str)]
    count = sum(end == address for end in ends)
    count = count or min(_switch_links(devices[pair[end]], gpus) for end in ("a", "b"))
    return f"NV{count}" if count else _named(_PATHS, pair.get("ancestor"), "common ancestor")


def _active(device: object) -> list[tuple[str | Missing, object]]:
    """PCI address and kind of what is at the other ends of a device's active NVLinks."""
    links = objects(device.get("links")) if isinstance(device, dict) else []
    found = []
    for link in links:
        remote = link.get("remote")
        if link.get("state") == 1 and isinstance(remote, dict):
            found.append((pci_address(remote.get("busId")), link.get("kind")))
    return found


def _switch_links(device: object, gpus: tuple[Gpu, ...]) -> int:
    """Links that end at an NVLink switch, which reaches every other GPU.

    Drivers that do not name the kind of the other end leave its address: what is
    no GPU is then a switch.
    """
    addresses = {gpu.pci_address for gpu in gpus}
    ends = _active(device)
    return sum(
        kind == _SWITCH if isinstance(kind, int) else isinstance(end, str) and end not in addresses
        for end, kind in ends
    )
