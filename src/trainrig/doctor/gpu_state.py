"""Are the GPUs sound and at their speed: memory errors, Xids, power, heat, modes, others' programs.

What measurements reveal (a slow card among fast ones, a number below its band) is not judged here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from trainrig.catalog.lookup import chip_by_pci_id, find_chip
from trainrig.doctor.check import (
    NO_GPU,
    HealthCheck,
    devices,
    finding,
    gpus_of,
    is_mobile,
    meanings_by_number,
    needs_gpus,
    needs_health,
    numbers,
)
from trainrig.machine.health import KernelEvent
from trainrig.machine.snapshot import (
    FAULTY_REASONS,
    GPU_KEYS,
    NOT_READ,
    Gpu,
    Missing,
    Snapshot,
    value_or,
)
from trainrig.record import Finding, Severity
from trainrig.units import format_memory

# Drivers round a limit to whole watts or percents.
_LIMIT_TOLERANCE = 0.99
# NVIDIA's limit of retired pages before a card is to be replaced ("Dynamic Page Retirement").
_MOST_RETIRED = 60
_NEAR_SLOWDOWN_C = 5.0
_FANS_NEEDED_C = 75.0
_IDLE_UTILIZATION = 0.05


def _power_limits(snapshot: Snapshot) -> Iterator[Finding]:
    for gpu in gpus_of(snapshot):
        limit, default = gpu.power.limit_w, gpu.power.limit_default_w
        if isinstance(limit, Missing) or isinstance(default, Missing):
            continue
        if limit < default * _LIMIT_TOLERANCE:
            evidence = f"GPU {gpu.index}: limited to {limit:.0f} W; its default is {default:.0f} W"
            fix = f"sudo nvidia-smi -i {gpu.index} -pl {default:.0f}"
            yield finding("power-limit-below-default", "warning", evidence, fix)


_AT_POWER_LIMIT = {
    "cause": "the load takes as much power as the limit allows",
    "risk": "none: cards are made to run so; a higher limit makes it faster and hotter",
}


def _throttling(snapshot: Snapshot) -> Iterator[Finding]:
    for gpu in gpus_of(snapshot):
        reasons = value_or(gpu.clocks.throttle_reasons, ())
        bad = [reason for reason in reasons if reason in FAULTY_REASONS]
        if bad:
            heat = gpu.cooling.temperature_c
            at = "" if isinstance(heat, Missing) else f" at {heat:.0f} °C"
            evidence = f"GPU {gpu.index}{at} is slowed down: {', '.join(bad)}"
            fix = "check fans, air flow and power cables; watch: nvidia-smi -q -d PERFORMANCE"
            yield finding("throttled", "warning", evidence, fix)
        elif "sw_power_cap" in reasons:
            evidence = f"GPU {gpu.index} runs at its power limit"
            fix = "none under full load: the limit sets its speed"
            yield finding("throttled", "info", evidence, fix, **_AT_POWER_LIMIT)


def _unlike_gpus(snapshot: Snapshot) -> Iterator[Finding]:
    gpus = gpus_of(snapshot)
    names = sorted({gpu.name for gpu in gpus if isinstance(gpu.name, str)})
    if len(names) > 1:
        evidence = f"different models in one machine: {', '.join(names)}"
        fix = "train on equal cards (CUDA_VISIBLE_DEVICES); the slowest sets the pace of all"
        yield finding("gpus-differ", "warning", evidence, fix)
        return
    limits = {gpu.power.limit_w for gpu in gpus if isinstance(gpu.power.limit_w, float)}
    if len(limits) > 1:
        shown = ", ".join(f"{limit:.0f} W" for limit in sorted(limits))
        fix = "set one limit for all: sudo nvidia-smi -pl WATTS"
        yield finding("gpus-differ", "warning", f"equal GPUs with different limits: {shown}", fix)


def _mode_findings(snapshot: Snapshot) -> Iterator[Finding]:
    cut = [gpu for gpu in gpus_of(snapshot) if gpu.mode.mig is True]
    if cut:
        evidence = f"{numbers(cut)} is in MIG mode: a process gets a slice, not the card"
        fix = f"for the whole card: sudo nvidia-smi -i {cut[0].index} -mig 0"
        yield finding("mig-enabled", "info", evidence, fix)
    off = [gpu for gpu in gpus_of(snapshot) if gpu.mode.persistence is False and not is_mobile(gpu)]
    if off:
        evidence = f"{numbers(off)}: persistence mode is off; the first use after a pause waits"
        yield finding("persistence-off", "info", evidence, "sudo nvidia-smi -pm 1")


def _modes_note(snapshot: Snapshot) -> str:
    """Say nothing of MIG where the driver does not: cards without it have no such mode."""
    is_known = all(isinstance(gpu.mode.mig, bool) for gpu in gpus_of(snapshot))
    return "" if is_known else "Persistence is on"


def _memory_errors(snapshot: Snapshot) -> Iterator[Finding]:
    """Find errors that ECC could not correct, and ECC that is off on a card made for it."""
    for gpu in value_or(snapshot.gpus_after, ()) or gpus_of(snapshot):
        new = value_or(gpu.ecc.uncorrected_volatile, 0)
        old = value_or(gpu.ecc.uncorrected_aggregate, 0)
        if new:
            evidence = f"GPU {gpu.index}: {new} uncorrectable memory errors since the driver loaded"
            fix = f"drain it; nvidia-smi -q -i {gpu.index} -d ECC,ROW_REMAPPER; reset or replace it"
            yield finding("ecc-uncorrected-errors", "error", evidence, fix)
        elif old:
            evidence = (
                f"GPU {gpu.index}: {old} uncorrectable memory errors in its life, none lately"
            )
            fix = f"watch it: nvidia-smi -q -i {gpu.index} -d ECC"
            yield finding("ecc-uncorrected-errors", "warning", evidence, fix)
    off = [
        gpu
        for gpu in gpus_of(snapshot)
        if gpu.ecc.enabled is False and gpu.vendor == "nvidia" and not _off_by_default(gpu)
    ]
    if off:
        evidence = f"{numbers(off)}: ECC is off"
        yield finding("ecc-off", "info", evidence, "sudo nvidia-smi -e 1; reboot")


# A GPU without MIG shows what its sheet names, less ECC of GDDR (1/16) and what the driver keeps.
_LEAST_OF_SHEET = 0.88
# Equal cards of one machine differ by pages that were retired: by megabytes.
_LEAST_OF_SIBLINGS = 0.99


def _memory_size(snapshot: Snapshot) -> Iterator[Finding]:
    """Find GPUs that show less memory than their data sheet or their siblings have."""
    gpus = _whole_gpus(snapshot)
    for gpu in gpus:
        num_bytes = gpu.memory.total_bytes
        if isinstance(num_bytes, Missing) or isinstance(gpu.name, Missing):
            continue
        claimed = _claimed_bytes(gpu)
        most, source = max(_sizes_of_model(gpus, gpu.name)), "the others have"
        if claimed and num_bytes < _LEAST_OF_SHEET * claimed:
            most, source = int(claimed), "its data sheet says"
        elif num_bytes >= _LEAST_OF_SIBLINGS * most:
            continue
        shown = format_memory(num_bytes)
        evidence = f"GPU {gpu.index}: {shown} of memory; {source} {format_memory(most)}"
        yield finding(
            "gpu-memory-short", "error", evidence, f"{_DRAIN}; or a virtual GPU: its host"
        )


def _whole_gpus(snapshot: Snapshot) -> list[Gpu]:
    """Return the GPUs that show all of their memory: MIG shows a part."""
    return [gpu for gpu in gpus_of(snapshot) if gpu.mode.mig is not True]


def _claimed_bytes(gpu: Gpu) -> float | None:
    """Return the memory that a GPU's data sheet claims, in bytes."""
    chip = find_chip(value_or(gpu.name, "")) or chip_by_pci_id(value_or(gpu.pci_id, ""))
    return chip.memory.size if chip is not None else None


def _sizes_of_model(gpus: Sequence[Gpu], name: str) -> list[int]:
    """Return the memory in bytes of each GPU of a model."""
    sizes = [gpu.memory.total_bytes for gpu in gpus if gpu.name == name]
    return [size for size in sizes if isinstance(size, int)]


def _needs_memory_to_compare(snapshot: Snapshot) -> object:
    """Require a data sheet or a second GPU of its model for each GPU."""
    gpus = _whole_gpus(snapshot)
    lonely = [
        gpu
        for gpu in gpus
        if isinstance(gpu.name, str)
        and len(_sizes_of_model(gpus, gpu.name)) < 2
        and _claimed_bytes(gpu) is None
    ]
    if gpus_of(snapshot) and (lonely or not gpus):
        return Missing("no data sheet and no second GPU of its model to compare with")
    return needs_gpus(snapshot)


_DRAIN = "drain it; nvidia-smi -q -d ROW_REMAPPER,PAGE_RETIREMENT; replace the card if it goes on"
_COOLING = "check fans, air flow and power cables; watch: nvidia-smi -q -d TEMPERATURE,PERFORMANCE"
_SLOT = "reseat the card or its riser; look for errors of the slot: dmesg | grep -i pcie"
# Counters of a GPU: id, severity, what it means that load raised one by 1 at the least, what to do.
_COUNTED: dict[str, tuple[str, Severity, str, str]] = {
    "remapped_rows": ("memory-repaired", "error", "memory rows replaced", _DRAIN),
    "retired_pages": ("memory-repaired", "error", "memory pages retired", _DRAIN),
    "ecc_corrected_volatile": (
        *("memory-errors-corrected", "warning", "memory errors corrected"),
        "watch it: nvidia-smi -q -d ECC",
    ),
    "pcie_replays": ("pcie-replays", "warning", "packets of its link sent again", _SLOT),
    "slowed_by_heat_s": ("throttled", "warning", "s slowed down by heat", _COOLING),
    "slowed_by_board_s": ("throttled", "warning", "s slowed down by its power supply", _COOLING),
}


_STORM = 50
"""Corrected errors of a run's minutes from which on memory fails again and again: about a thousand
an hour, which is a burn's limit, too (analysis/watched.toml)."""
_ONLY_GROW = (*_COUNTED, "ecc_uncorrected_volatile", "ecc_uncorrected_aggregate")


def _under_load(snapshot: Snapshot) -> Iterator[Finding]:
    """Find counters of GPUs that changed while a run loaded them."""
    seen = snapshot.gpus_after
    if seen == NOT_READ:
        return
    after = {value_or(gpu.uuid, gpu.index): gpu for gpu in value_or(seen, ())}
    for gpu in gpus_of(snapshot):
        later = after.get(value_or(gpu.uuid, gpu.index))
        if later is None:
            why = f": {seen.reason}" if isinstance(seen, Missing) else ""
            evidence = f"GPU {gpu.index} did not answer any more after the load{why}"
            fix = "dmesg | grep -i -e xid -e pcie; reboot; take it out of service if it stays"
            yield finding("gpu-lost", "error", evidence, fix)
            continue
        for name, (id_, severity, words, fix) in _COUNTED.items():
            first, last = GPU_KEYS.get(gpu, name), GPU_KEYS.get(later, name)
            if not isinstance(first, Missing) and value_or(last, first) - first >= 1:
                is_storm = name == "ecc_corrected_volatile" and last - first >= _STORM
                evidence = f"GPU {gpu.index}: {last - first:.0f} {words} during the run"
                yield finding(id_, "error" if is_storm else severity, evidence, fix)
        for name in _ONLY_GROW:
            first, last = GPU_KEYS.get(gpu, name), GPU_KEYS.get(later, name)
            if not isinstance(first, Missing) and value_or(last, first) < first:
                evidence = (
                    f"GPU {gpu.index}: {name.replace('_', ' ')} went from {first:g} back to "
                    f"{last:g}: what happened during the run is not known"
                )
                fix = "see why it was reset: dmesg | grep -i nvrm; then repeat it"
                yield finding("counter-went-back", "error", evidence, fix)


def _memory_repairs(snapshot: Snapshot) -> Iterator[Finding]:
    """Find repairs of memory that failed, that wait, and that were made."""
    for gpu in value_or(snapshot.gpus_after, ()) or gpus_of(snapshot):
        if gpu.ecc.remap_failed is True:
            evidence = f"GPU {gpu.index}: a damaged memory row could not be replaced"
            yield finding("memory-repair-failed", "error", evidence, "replace the card")
        if gpu.ecc.remap_pending is True or gpu.ecc.retirement_pending is True:
            evidence = f"GPU {gpu.index}: a memory repair waits for a reset"
            fix = f"stop its jobs; sudo nvidia-smi -r -i {gpu.index}, or reboot"
            yield finding("memory-repair-pending", "warning", evidence, fix)
    for gpu in gpus_of(snapshot):
        pages, rows = value_or(gpu.ecc.retired_pages, 0), value_or(gpu.ecc.remapped_rows, 0)
        if pages >= _MOST_RETIRED:
            evidence = (
                f"GPU {gpu.index}: {pages} memory pages retired; {_MOST_RETIRED} are the limit"
            )
            fix = "replace the card: nvidia-smi -q -d PAGE_RETIREMENT is the evidence"
            yield finding("memory-pages-retired", "error", evidence, fix)
        elif pages or rows:
            repaired_text = (
                f"{pages} memory pages retired" if pages else f"{rows} memory rows replaced"
            )
            fix = f"watch it: nvidia-smi -q -i {gpu.index} -d ROW_REMAPPER,PAGE_RETIREMENT"
            yield finding(
                "memory-rows-replaced", "info", f"GPU {gpu.index}: {repaired_text} in its life", fix
            )


def _errors_note(snapshot: Snapshot) -> str:
    """Say of no earlier time what only counters since the driver loaded say."""
    is_whole = all(isinstance(gpu.ecc.uncorrected_aggregate, int) for gpu in gpus_of(snapshot))
    return "" if is_whole else "No memory error beyond correction since the driver loaded"


def _off_by_default(gpu: Gpu) -> bool:
    """Return whether a card comes with ECC off or without it, as those for desktops do."""
    words = ("GeForce", "RTX", "Quadro", "TITAN")
    return any(word in value_or(gpu.name, "GeForce") for word in words)


# ---- the kernel's log of GPUs

# "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)": it is well again.
_RECOVERY, _RECOVERED = 154, re.compile(r"\bto 0x0\b|\bto \S* ?\(None\)", re.IGNORECASE)
# Of NVLink 5, whose lines say "Fatal" or "Nonfatal".
_NVLINK = range(144, 151)


def _xid_findings(snapshot: Snapshot) -> Iterator[Finding]:
    health = snapshot.health
    events = () if isinstance(health, Missing) else value_or(health.kernel_log, ())
    worst: dict[tuple[int, str], KernelEvent] = {}
    for event in events:
        if event.kind == "xid" and event.code is not None:
            worst.setdefault((event.code, event.pci_address or ""), event)
    latest = {(e.code, e.pci_address or ""): e.text for e in events if e.kind == "xid"}
    for (code, address), event in worst.items():
        known = meanings_by_number("xid.toml").get(code)
        places = {gpu.pci_address: str(gpu.index) for gpu in gpus_of(snapshot)}
        number = places.get(address, address)
        row = known or {
            "severity": "warning",
            "meaning": "no meaning of this number is known here",
            "next": "look it up: docs.nvidia.com/deploy/xid-errors",
        }
        severity: Severity = row["severity"]  # type: ignore[assignment]
        text = latest[code, address]
        if code == _RECOVERY and _RECOVERED.search(text):
            continue
        if code in _NVLINK and "nonfatal" in text.lower():
            severity = "warning"
        by = f", program {event.program}" if event.program else ""
        times = sum(e.count for e in events if e.code == code and e.pci_address == address)
        name = f"Xid {code}" if known else f"unknown Xid {code}"
        evidence = f"GPU {number}: {name} ({times} in the log{by}): {row['meaning']}"
        if code == _RECOVERY:
            evidence += f": {text}"
        yield finding(f"xid-{severity}", severity, evidence, row["next"].replace("{gpu}", number))


# ---- heat, fans, other programs


def _heat_findings(snapshot: Snapshot) -> Iterator[Finding]:
    for gpu in gpus_of(snapshot):
        heat, limit = gpu.cooling.temperature_c, gpu.cooling.slowdown_temperature_c
        if isinstance(heat, Missing):
            continue
        if isinstance(limit, float) and heat >= limit - _NEAR_SLOWDOWN_C:
            evidence = f"GPU {gpu.index} is at {heat:.0f} °C; it slows down at {limit:.0f} °C"
            yield finding("gpu-hot", "warning", evidence, _COOLING)
        if gpu.cooling.fan == 0.0 and heat >= _FANS_NEEDED_C:
            evidence = f"GPU {gpu.index} is at {heat:.0f} °C and its fans stand still"
            fix = (
                "look whether they turn; replace the fan or card; sudo nvidia-settings resets them"
            )
            yield finding("gpu-fan-stopped", "warning", evidence, fix)


def _heat_note(snapshot: Snapshot) -> str:
    """Say nothing of fans where no driver tells their speed."""
    has_fans = any(isinstance(gpu.cooling.fan, float) for gpu in gpus_of(snapshot))
    return "" if has_fans else "The GPUs are cool"


def _other_programs(snapshot: Snapshot) -> Iterator[Finding]:
    health = snapshot.health
    listed = () if isinstance(health, Missing) else value_or(health.gpu_processes, ())
    for gpu in gpus_of(snapshot):
        processes = [process for process in listed if process.gpu == gpu.index]
        if not processes:
            continue
        names = ", ".join(
            f"{value_or(shown_process.program, 'hidden')} ({shown_process.pid})"
            for shown_process in processes[:4]
        )
        busy = value_or(gpu.activity.utilization, 0.0)
        severity: Severity = "warning" if busy > _IDLE_UTILIZATION else "info"
        evidence = f"GPU {gpu.index} is used by {names}, {busy:.0%} busy"
        fix = f"wait for it, or ask its owner: ps -o user,pid,etime,cmd -p {processes[0].pid}"
        yield finding("gpu-in-use", severity, evidence, fix)


def _needs_gpu_or_its_errors(snapshot: Snapshot) -> object:
    """Require the kernel's log; without a GPU only where the log speaks of one that was there."""
    needed = needs_health("kernel_log")(snapshot)
    if isinstance(needed, Missing) or gpus_of(snapshot) or devices(snapshot):
        return needed
    health = snapshot.health
    events = () if isinstance(health, Missing) else value_or(health.kernel_log, ())
    return None if any(event.kind in ("xid", "pcie") for event in events) else NO_GPU


def _needs_load(snapshot: Snapshot) -> object:
    if isinstance(snapshot.gpus, Missing):
        return needs_gpus(snapshot)
    if snapshot.gpus_after == NOT_READ:
        return Missing("nothing was measured; trainrig qualify looks under load")
    return None


CHECKS = (
    HealthCheck(
        id="gpu-memory",
        title="The GPUs counted no memory error beyond correction",
        reads="NVML: ECC mode and counters",
        finds=("ecc-uncorrected-errors", "ecc-off"),
        judge=_memory_errors,
        note=_errors_note,
        facts=("gpus.ecc.uncorrected_volatile|gpus.ecc.uncorrected_aggregate",),
        needs=needs_gpus,
    ),
    HealthCheck(
        id="gpu-memory-repairs",
        title="No memory of the GPUs had to be replaced",
        reads="NVML: retired pages, remapped rows",
        finds=(
            "memory-repair-failed",
            "memory-repair-pending",
            "memory-pages-retired",
            "memory-rows-replaced",
        ),
        judge=_memory_repairs,
        facts=(
            "gpus.ecc.remap_failed|gpus.ecc.retired_pages",
            "gpus.ecc.remap_pending|gpus.ecc.retirement_pending",
            "gpus.ecc.remapped_rows|gpus.ecc.retired_pages",
        ),
        needs=needs_gpus,
    ),
    HealthCheck(
        id="gpu-memory-size",
        title="The GPUs show all of their memory",
        reads="NVML: memory; the catalog's data sheets; GPUs of one model side by side",
        finds=("gpu-memory-short",),
        judge=_memory_size,
        facts=("gpus.memory.total_bytes", "gpus.name"),
        needs=_needs_memory_to_compare,
    ),
    HealthCheck(
        id="xid",
        title="The driver logged no error of a GPU (Xid)",
        reads="dmesg, journalctl -k, /var/log/kern.log",
        finds=("xid-error", "xid-warning", "xid-info"),
        judge=_xid_findings,
        facts=("health.kernel_log",),
        needs=_needs_gpu_or_its_errors,
        root="the kernel's log, where the system hides it from users",
    ),
    HealthCheck(
        id="gpu-speed",
        title="Nothing holds the GPUs' clocks down",
        reads="NVML: throttle reasons, power limits, models",
        finds=("power-limit-below-default", "throttled", "gpus-differ"),
        judge=lambda snapshot: (
            *_power_limits(snapshot),
            *_throttling(snapshot),
            *_unlike_gpus(snapshot),
        ),
        facts=(
            "gpus.clocks.throttle_reasons",
            "gpus.power.limit_w",
            "gpus.power.limit_default_w",
        ),
        needs=needs_gpus,
    ),
    HealthCheck(
        id="gpu-heat",
        title="The GPUs are cool and their fans turn",
        reads="NVML: temperature, slowdown threshold, fan speed",
        finds=("gpu-hot", "gpu-fan-stopped"),
        judge=_heat_findings,
        note=_heat_note,
        facts=(
            "gpus.cooling.temperature_c",
            "gpus.cooling.slowdown_temperature_c|gpus.clocks.throttle_reasons",
        ),
        needs=needs_gpus,
    ),
    HealthCheck(
        id="gpu-modes",
        title="Persistence is on and MIG off",
        reads="NVML",
        finds=("mig-enabled", "persistence-off"),
        judge=_mode_findings,
        facts=("gpus.mode.persistence",),
        note=_modes_note,
        needs=needs_gpus,
    ),
    HealthCheck(
        id="gpu-in-use",
        title="No other program uses the GPUs",
        reads="NVML: processes; /proc/PID/comm",
        finds=("gpu-in-use",),
        judge=_other_programs,
        facts=("health.gpu_processes",),
        needs=lambda snapshot: None if gpus_of(snapshot) else NO_GPU,
        root="names of other users' programs, where /proc hides them",
        looks_without_root=True,
    ),
    HealthCheck(
        id="under-load",
        title="The GPUs' counters stood still under load",
        reads="NVML before and after a run",
        finds=(
            "gpu-lost",
            "memory-repaired",
            "memory-errors-corrected",
            "pcie-replays",
            "throttled",
            "counter-went-back",
        ),
        judge=_under_load,
        facts=("gpus_after?",),
        needs=_needs_load,
    ),
)
