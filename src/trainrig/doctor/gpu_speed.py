"""Are the GPUs as fast as they could be: links, power limits, heat, modes.

Judged is what the driver says of the card and its slot, not what was measured.
"""

from __future__ import annotations

from collections.abc import Iterator

from trainrig.doctor import finding_ids as ids
from trainrig.doctor.finding_ids import finding, gpus_of, indices_of
from trainrig.machine.snapshot import FAULTY_REASONS, Gpu, Missing, Snapshot, value_or
from trainrig.record import Finding

# Below this share of the time in kernels a GPU counts as idle, and its link may run slow.
_IDLE_UTILIZATION = 0.05
# Drivers round a limit to whole watts or percents.
_LIMIT_TOLERANCE = 0.99


def _widths(snapshot: Snapshot) -> Iterator[Finding]:
    """NVML's maximum counts only those lanes of a card that its slot has too; the bus all."""
    devices = {device.address: device for device in value_or(snapshot.pci_gpus, ())}
    for gpu in gpus_of(snapshot):
        device = devices.get(gpu.pci_address) if isinstance(gpu.pci_address, str) else None
        widths = [gpu.link.max_width, device.link.max_width if device else None]
        lanes = max((width for width in widths if isinstance(width, int)), default=0)
        if isinstance(gpu.link.width, int) and gpu.link.width < lanes:
            slot = device.slot.max_width if device else None
            yield _narrow(gpu, gpu.link.width, lanes, slot)


def _speeds(snapshot: Snapshot) -> Iterator[Finding]:
    """NVML's highest generation is what card and slot can do together."""
    idle: list[Gpu] = []
    for gpu in gpus_of(snapshot):
        now, most = gpu.link.generation, gpu.link.max_generation
        if isinstance(now, Missing) or isinstance(most, Missing) or now >= most:
            continue
        if value_or(gpu.utilization, 0.0) <= _IDLE_UTILIZATION:
            idle.append(gpu)
            continue
        evidence = f"GPU {gpu.index} runs its link at generation {now} of {most} under load"
        fix = "set the slot's link speed in the firmware to automatic; reseat the card"
        yield finding(ids.PCIE_LINK_BELOW_MAX, "warning", evidence, fix)
    if idle:
        evidence = f"{indices_of(idle)} idle, with a slow link to save power"
        fix = "nothing, if it rises under load: trainrig bench copy"
        yield finding(ids.PCIE_LINK_BELOW_MAX, "info", evidence, fix)


def _narrow(gpu: Gpu, width: int, card: int, slot: int | Missing | None) -> Finding:
    evidence = f"GPU {gpu.index} has {width} of its {card} PCIe lanes"
    if isinstance(slot, int) and slot <= width:
        evidence += f"; its slot has {slot}"
        fix = "move it to a wider slot, or check how the board shares lanes between slots"
    else:
        fix = "reseat the card, clean its contacts, replace the riser; check the lane setting"
    return finding(ids.PCIE_LINK_BELOW_MAX, "warning", evidence, fix)


def _nvlinks(snapshot: Snapshot) -> Iterator[Finding]:
    """Links down beside links that are up; a card without a bridge has none up."""
    for gpu in gpus_of(snapshot):
        down, up = value_or(gpu.nvlinks_inactive, 0), value_or(gpu.nvlinks_active, 0)
        if down and up:
            evidence = f"GPU {gpu.index}: {down} of {down + up} NVLinks are down"
            fix = f"nvidia-smi nvlink -s -i {gpu.index}; sudo dmesg | grep -i nvlink"
            yield finding(ids.NVLINK_INACTIVE, "warning", evidence, fix)


def _power_limits(snapshot: Snapshot) -> Iterator[Finding]:
    for gpu in gpus_of(snapshot):
        limit, default = gpu.power_limit_w, gpu.power_limit_default_w
        if isinstance(limit, Missing) or isinstance(default, Missing):
            continue
        if limit < default * _LIMIT_TOLERANCE:
            evidence = f"GPU {gpu.index}: limited to {limit:.0f} W; its default is {default:.0f} W"
            fix = f"sudo nvidia-smi -i {gpu.index} -pl {default:.0f}"
            yield finding(ids.POWER_LIMIT_BELOW_DEFAULT, "warning", evidence, fix)


def _throttling(snapshot: Snapshot) -> Iterator[Finding]:
    for gpu in gpus_of(snapshot):
        reasons = value_or(gpu.throttle_reasons, ())
        bad = [reason for reason in reasons if reason in FAULTY_REASONS]
        if bad:
            heat = gpu.temperature_c
            at = "" if isinstance(heat, Missing) else f" at {heat:.0f} °C"
            evidence = f"GPU {gpu.index}{at} is slowed down: {', '.join(bad)}"
            fix = "check fans, air flow and power cables; watch: nvidia-smi -q -d PERFORMANCE"
            yield finding(ids.THROTTLED, "warning", evidence, fix)
        elif "sw_power_cap" in reasons:
            evidence = f"GPU {gpu.index} runs at its power limit"
            fix = "none under full load: the limit sets its speed"
            yield finding(ids.THROTTLED, "info", evidence, fix)


def _unlike_gpus(snapshot: Snapshot) -> Iterator[Finding]:
    gpus = gpus_of(snapshot)
    names = sorted({gpu.name for gpu in gpus if isinstance(gpu.name, str)})
    if len(names) > 1:
        evidence = f"different models in one machine: {', '.join(names)}"
        fix = "train on equal cards (CUDA_VISIBLE_DEVICES); the slowest sets the pace of all"
        yield finding(ids.GPUS_DIFFER, "warning", evidence, fix)
        return
    limits = {gpu.power_limit_w for gpu in gpus if isinstance(gpu.power_limit_w, float)}
    if len(limits) > 1:
        shown = ", ".join(f"{limit:.0f} W" for limit in sorted(limits))
        fix = "set one limit for all: sudo nvidia-smi -pl WATTS"
        yield finding(ids.GPUS_DIFFER, "warning", f"equal GPUs with different limits: {shown}", fix)


def _modes(snapshot: Snapshot) -> Iterator[Finding]:
    cut = [gpu for gpu in gpus_of(snapshot) if gpu.mig is True]
    if cut:
        evidence = f"{indices_of(cut)} is in MIG mode: a process gets a slice, not the card"
        fix = f"for the whole card: sudo nvidia-smi -i {cut[0].index} -mig 0"
        yield finding(ids.MIG_ENABLED, "info", evidence, fix)
    off = [gpu for gpu in gpus_of(snapshot) if gpu.persistence is False]
    if off:
        evidence = f"{indices_of(off)}: persistence mode is off; the first use after a pause waits"
        yield finding(ids.PERSISTENCE_OFF, "info", evidence, "sudo nvidia-smi -pm 1")
    override = snapshot.software.environment.get("NVIDIA_TF32_OVERRIDE")
    if override is not None and gpus_of(snapshot):
        evidence = f"NVIDIA_TF32_OVERRIDE={override} rounds or forbids tf32 whatever a program asks"
        fix = "unset NVIDIA_TF32_OVERRIDE; products are measured here without it, trainings with it"
        yield finding(ids.TF32_OVERRIDDEN, "warning", evidence, fix)


CHECKS = (_widths, _speeds, _nvlinks, _power_limits, _throttling, _unlike_gpus, _modes)
