"""NVIDIA's driver library, behind one access function.

`ask` is the only place that calls NVML: its structures change between versions
without a sign, its functions fail one by one, and garbage raises all sorts of
errors.  Every answer is plain data (numbers, text, lists, dicts), or
``{"missing": why}``.  Nothing here judges an answer; nvidia.py does.

The inventory runs in a child process of its own (`python nvml.py` prints one
JSON object; with seconds and names behind it, the answers to those questions
again and again): a driver that hangs or crashes then costs one probe and not the
program.  For that reason this file imports nothing of trainrig and starts fast.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

# More GPUs than that in one machine are a garbled count.
MAX_DEVICES = 128
_MAX_LINKS = 18
_ERRORS = (ValueError, TypeError, OverflowError, MemoryError, OSError, AttributeError)

# NVML's numbers for the kinds of clock, of ECC counter and of direct access between GPUs.
_GRAPHICS, _SM, _MEMORY = 0, 1, 2
_CORRECTED, _UNCORRECTED = 0, 1
_VOLATILE, _AGGREGATE = 0, 1
_READ, _WRITE = 0, 1
_TEMPERATURE_OF_GPU = 0
_SLOWDOWN = 1
# ... and of what holds clocks down.
_BY_HEAT, _BY_BOARD = 1, 3

# What is asked of every device: our name for it, NVML's function, its arguments.
_QUESTIONS: dict[str, tuple[Any, ...]] = {
    "name": ("nvmlDeviceGetName",),
    "uuid": ("nvmlDeviceGetUUID",),
    "pci": ("nvmlDeviceGetPciInfo",),
    "memory": ("nvmlDeviceGetMemoryInfo",),
    "memory_bus": ("nvmlDeviceGetMemoryBusWidth",),
    "cores": ("nvmlDeviceGetNumGpuCores",),
    "capability": ("nvmlDeviceGetCudaComputeCapability",),
    "vbios": ("nvmlDeviceGetVbiosVersion",),
    "pcie_generation": ("nvmlDeviceGetCurrPcieLinkGeneration",),
    "pcie_width": ("nvmlDeviceGetCurrPcieLinkWidth",),
    "pcie_max_generation": ("nvmlDeviceGetMaxPcieLinkGeneration",),
    "pcie_max_width": ("nvmlDeviceGetMaxPcieLinkWidth",),
    "power": ("nvmlDeviceGetPowerUsage",),
    "power_limit": ("nvmlDeviceGetPowerManagementLimit",),
    "power_default": ("nvmlDeviceGetPowerManagementDefaultLimit",),
    "power_range": ("nvmlDeviceGetPowerManagementLimitConstraints",),
    "ecc": ("nvmlDeviceGetEccMode",),
    "uncorrected_volatile": ("nvmlDeviceGetTotalEccErrors", _UNCORRECTED, _VOLATILE),
    "uncorrected_aggregate": ("nvmlDeviceGetTotalEccErrors", _UNCORRECTED, _AGGREGATE),
    "corrected_volatile": ("nvmlDeviceGetTotalEccErrors", _CORRECTED, _VOLATILE),
    "corrected_aggregate": ("nvmlDeviceGetTotalEccErrors", _CORRECTED, _AGGREGATE),
    "retired_single": ("nvmlDeviceGetRetiredPages", 0),
    "retired_double": ("nvmlDeviceGetRetiredPages", 1),
    "retirement_pending": ("nvmlDeviceGetRetiredPagesPendingStatus",),
    "remapped": ("nvmlDeviceGetRemappedRows",),
    "sm_clock": ("nvmlDeviceGetClockInfo", _SM),
    "memory_clock": ("nvmlDeviceGetClockInfo", _MEMORY),
    "max_sm_clock": ("nvmlDeviceGetMaxClockInfo", _SM),
    "max_memory_clock": ("nvmlDeviceGetMaxClockInfo", _MEMORY),
    "application_clock": ("nvmlDeviceGetApplicationsClock", _GRAPHICS),
    "temperature": ("nvmlDeviceGetTemperature", _TEMPERATURE_OF_GPU),
    "throttle": ("nvmlDeviceGetCurrentClocksThrottleReasons",),
    "slowed_by_heat": ("nvmlDeviceGetViolationStatus", _BY_HEAT),
    "slowed_by_board": ("nvmlDeviceGetViolationStatus", _BY_BOARD),
    "pcie_replays": ("nvmlDeviceGetPcieReplayCounter",),
    "energy": ("nvmlDeviceGetTotalEnergyConsumption",),
    "utilization": ("nvmlDeviceGetUtilizationRates",),
    "mig": ("nvmlDeviceGetMigMode",),
    "persistence": ("nvmlDeviceGetPersistenceMode",),
    "compute_mode": ("nvmlDeviceGetComputeMode",),
    "processes": ("nvmlDeviceGetComputeRunningProcesses",),
    "fan": ("nvmlDeviceGetFanSpeed",),
    "bar1": ("nvmlDeviceGetBAR1MemoryInfo",),
    "slowdown_temperature": ("nvmlDeviceGetTemperatureThreshold", _SLOWDOWN),
}


QUESTION_NAMES = tuple(_QUESTIONS)


def missing(reason: str) -> dict[str, str]:
    """Return the JSON form of a value that could not be read."""
    return {"missing": reason}


def is_missing(value: object) -> bool:
    """Return whether an answer is a reason instead of a value."""
    return isinstance(value, dict) and "missing" in value


def ask(function: str, *arguments: Any) -> Any:
    """Return an NVML function's answer as plain data; ``{"missing": why}`` where there is none."""
    return plain(_call(function, *arguments))


def _call(function: str, *arguments: Any) -> Any:
    """Call NVML; return its own answer (a handle stays a handle), or ``{"missing": why}``."""
    try:
        import pynvml
    except ImportError:
        return missing("nvidia-ml-py is not installed")
    try:
        entry_point: Callable[..., Any] = getattr(pynvml, function)
        return entry_point(*arguments)
    except pynvml.NVMLError as error:
        return missing(_words(error, function))
    except _ERRORS as error:
        return missing(f"{function}: {type(error).__name__}")


def _words(error: Exception, function: str) -> str:
    try:
        return f"NVML: {str(error).lower()[:120]}"
    except _ERRORS:
        return f"NVML: {function} failed"


def plain(value: Any, depth: int = 0) -> Any:
    """Turn NVML's answer into numbers, text, lists and dicts."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, bytes | str):
        return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
    if depth > 3:
        return missing("nested too deeply")
    if isinstance(value, list | tuple):
        return [plain(item, depth + 1) for item in value[:4096]]
    if isinstance(value, dict):
        return {str(name): plain(item, depth + 1) for name, item in value.items()}
    names = [field[0] for field in getattr(value, "_fields_", ())] or list(vars(value))
    return {name: _member(value, name, depth) for name in names}


def _member(value: Any, name: str, depth: int) -> Any:
    """Return one member; nvidia-ml-py decodes texts when they are read and may fail."""
    try:
        return plain(getattr(value, name), depth + 1)
    except _ERRORS as error:
        return missing(f"{name}: {type(error).__name__}")


def start() -> dict[str, str] | None:
    """Open NVML; None if it did, else ``{"missing": why}``."""
    answer = _call("nvmlInit")
    return answer if is_missing(answer) else None


def handle_of(device: int | str) -> Any:
    """Return NVML's handle of a device by index, UUID or PCI address, or ``{"missing": why}``."""
    if isinstance(device, int):
        return _call("nvmlDeviceGetHandleByIndex", device)
    if device.startswith(("GPU-", "MIG-")):
        return _call("nvmlDeviceGetHandleByUUID", device.encode())
    return _call("nvmlDeviceGetHandleByPciBusId", device.encode())


def device_facts(handle: Any, names: frozenset[str] | None = None) -> dict[str, Any]:
    """Return the answers to all questions, or to those called `names`, about one device."""
    return {
        name: ask(question[0], handle, *question[1:])
        for name, question in _QUESTIONS.items()
        if names is None or name in names
    }


def process_use(handle: Any, since: float) -> Any:
    """Return each process's use of a device since a moment (s since 1970)."""
    return ask("nvmlDeviceGetProcessUtilization", handle, int(since * 1e6))


def inventory() -> dict[str, Any]:
    """Return the driver's answers about all devices and all pairs of them."""
    failed = start()
    if failed is not None:
        return failed
    count = ask("nvmlDeviceGetCount")
    if not isinstance(count, int) or not 0 <= count <= MAX_DEVICES:
        return count if is_missing(count) else missing(f"NVML counts {count!r} devices")
    handles = [handle_of(index) for index in range(count)]
    return {
        "driver": ask("nvmlSystemGetDriverVersion"),
        "cuda": ask("nvmlSystemGetCudaDriverVersion_v2"),
        "devices": [
            handle if is_missing(handle) else {**device_facts(handle), "links": _links(handle)}
            for handle in handles
        ],
        "pairs": [_pair(a, b, handles[a], handles[b]) for b in range(count) for a in range(b)],
    }


def _links(handle: Any) -> list[dict[str, Any]] | dict[str, str]:
    """Return the NVLinks of a device, or why NVML does not tell of any."""
    links = []
    failed = missing("no link asked for")
    for link in range(_MAX_LINKS):
        state = ask("nvmlDeviceGetNvLinkState", handle, link)
        if is_missing(state):
            failed = state
            continue
        end = {}
        if state == 1:
            end["remote"] = ask("nvmlDeviceGetNvLinkRemotePciInfo", handle, link)
            end["kind"] = ask("nvmlDeviceGetNvLinkRemoteDeviceType", handle, link)
        links.append({"state": state, **end})
    return links or failed


def _pair(a: int, b: int, first: Any, second: Any) -> dict[str, Any]:
    if is_missing(first) or is_missing(second):
        return {"a": a, "b": b}
    return {
        "a": a,
        "b": b,
        "ancestor": ask("nvmlDeviceGetTopologyCommonAncestor", first, second),
        "read": ask("nvmlDeviceGetP2PStatus", first, second, _READ),
        "write": ask("nvmlDeviceGetP2PStatus", first, second, _WRITE),
    }


def watch(period_s: float, names: frozenset[str]) -> None:
    """Print some answers of all devices, a line each time, until nobody reads them."""
    count = ask("nvmlDeviceGetCount") if start() is None else 0
    handles = [handle_of(index) for index in range(count if isinstance(count, int) else 0)]
    while handles:
        facts = [
            handle if is_missing(handle) else device_facts(handle, names) for handle in handles
        ]
        sys.stdout.write(json.dumps({"at": time.monotonic(), "devices": facts}) + "\n")
        sys.stdout.flush()
        time.sleep(period_s)


if __name__ == "__main__":
    if sys.argv[1:]:
        watch(float(sys.argv[1]), frozenset(sys.argv[2:]))
    else:
        sys.stdout.write(json.dumps(inventory()))
