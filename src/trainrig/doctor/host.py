"""Is the host in the way: memory, disks, file systems, NUMA, clocks, heat, sensors."""

from __future__ import annotations

import re
from collections.abc import Iterator

from trainrig.doctor.check import (
    HealthCheck,
    NotApplicable,
    devices,
    finding,
    gpus_of,
)
from trainrig.machine.health import Health
from trainrig.machine.snapshot import Dimm, Missing, Snapshot, value_or
from trainrig.record import Finding, Severity
from trainrig.units import format_memory, format_share

_LEAST_AVAILABLE = 0.1
_MOST_SWAP_USED, _MOST_SWAPPED_OUT = 0.1, 0.05
_RATED_TOLERANCE = 0.97
# Servers' processors hold modules a step below their rate; a profile that is off costs more.
_USUAL_SHARE = 0.85
_LEAST_FREE_SHARE, _LEAST_FREE_BYTES = 0.05, 20 * 10**9
_NOT_DATA = ("/boot", "/snap", "/efi", "/media", "/run", "/dev", "/etc", "/proc", "/sys", "/nix")
_UNSUITED = frozenset(["vfat", "exfat", "ntfs", "ntfs3", "fuseblk"])
# Chips whose temperatures are what they say; super-I/O chips report unconnected inputs.
_TRUSTED_CHIPS = re.compile(r"coretemp|k10temp|zenpower|cpu_thermal|nvme")
_NEAR_LIMIT_C = 5.0


def _health(snapshot: Snapshot) -> Health:
    assert not isinstance(snapshot.health, Missing)
    return snapshot.health


# ---- main memory


def _memory_room(snapshot: Snapshot) -> Iterator[Finding]:
    memory = snapshot.memory
    total, free = memory.total_bytes, memory.available_bytes
    if isinstance(total, int) and isinstance(free, int) and free < total * _LEAST_AVAILABLE:
        evidence = f"{format_memory(free)} of {format_memory(total)} memory are available"
        yield finding("memory-low", "warning", evidence, "find what uses it: ps aux --sort=-rss")
    swap, free_swap = value_or(memory.swap_total_bytes, 0), value_or(memory.swap_free_bytes, 0)
    # What was never used again is swapped out on sound machines, too: a little of main memory.
    most = max(swap * _MOST_SWAP_USED, value_or(total, 0) * _MOST_SWAPPED_OUT)
    if swap - free_swap > most:
        evidence = f"{format_memory(swap - free_swap)} of {format_memory(swap)} swap are in use"
        fix = (
            "free memory: ps aux --sort=-rss; once more is available than is swapped out: "
            "sudo swapoff -a && sudo swapon -a"
        )
        yield finding("swap-used", "warning", evidence, fix)


def _memory_modules(snapshot: Snapshot) -> Iterator[Finding]:
    # What a virtual machine shows as modules has no speed.
    dimms = [
        dimm
        for dimm in value_or(snapshot.memory.dimms, ())
        if isinstance(dimm.speed_mt_per_s, float)
    ]
    sizes = sorted({dimm.size_bytes for dimm in dimms if isinstance(dimm.size_bytes, int)})
    if len(sizes) > 1:
        shown = " + ".join(format_memory(dimm.size_bytes) for dimm in dimms if _sized(dimm))  # type: ignore[arg-type]
        evidence = f"memory modules of unequal size: {shown}"
        fix = "use equal modules in all channels; beyond the smaller size one channel is left"
        yield finding("memory-unequal", "warning", evidence, fix)
    if len(dimms) > 1 and snapshot.memory.channels == 1:
        evidence = f"{len(dimms)} modules share one memory channel"
        fix = "move one to a slot of the other channel: mostly the second and fourth from the CPU"
        yield finding("memory-single-channel", "warning", evidence, fix)
    slow = [dimm for dimm in dimms if _share_of_rated(dimm) < _RATED_TOLERANCE]
    if slow:
        evidence = (
            f"{len(slow)} of {len(dimms)} modules run at {slow[0].speed_mt_per_s:g} MT/s; "
            f"they are made for {slow[0].rated_mt_per_s:g}"
        )
        fix = "choose the memory's profile (XMP, EXPO) in the firmware; use one module a channel"
        share = min(_share_of_rated(dimm) for dimm in slow)
        severity: Severity = "warning" if share < _USUAL_SHARE else "info"
        yield finding("memory-below-rated", severity, evidence, fix)


def _sized(dimm: Dimm) -> bool:
    return isinstance(dimm.size_bytes, int)


def _share_of_rated(dimm: Dimm) -> float:
    """Return a module's speed as a share of the one it is made for; 1 where either is not known."""
    rated, runs = dimm.rated_mt_per_s, dimm.speed_mt_per_s
    return 1.0 if isinstance(rated, Missing) or isinstance(runs, Missing) else runs / rated


def _memory_errors(snapshot: Snapshot) -> Iterator[Finding]:
    settings = _health(snapshot).settings
    bad = value_or(settings.memory_errors_uncorrected, 0)
    mild = value_or(settings.memory_errors_corrected, 0)
    if bad:
        evidence = f"{bad} memory errors that ECC could not correct since boot"
        fix = "sudo ras-mc-ctl --error-count names the module; replace it"
        yield finding("host-memory-uncorrected", "error", evidence, fix)
    elif mild:
        evidence = f"{mild} memory errors that ECC corrected since boot"
        fix = "sudo ras-mc-ctl --error-count names the module; reseat it, replace it if it goes on"
        yield finding("host-memory-corrected", "warning", evidence, fix)


def _numa_nodes(snapshot: Snapshot) -> Iterator[Finding]:
    nodes = value_or(snapshot.memory.nodes, ())
    empty = [node.index for node in nodes if node.total_bytes == 0 and isinstance(node.cpus, str)]
    if empty:
        evidence = (
            f"NUMA node {', '.join(map(str, empty))} of {len(nodes)} has no memory of its own"
        )
        fix = "spread the modules over all processors' channels; numactl -H shows the nodes"
        yield finding("numa-node-without-memory", "warning", evidence, fix)
    unplaced = [
        device.address
        for device in value_or(snapshot.pci_gpus, ())
        if isinstance(device.numa_node, Missing) and device.pci_id.startswith("10de:")
    ]
    if unplaced and len(nodes) > 1 and value_or(snapshot.host.virtualization, "none") == "none":
        evidence = f"the firmware does not place {', '.join(unplaced)} at a NUMA node"
        fix = "update the board's firmware; until then bind by hand: numactl --cpunodebind=N"
        yield finding("gpu-without-numa-node", "info", evidence, fix)


# ---- disks and file systems


def _disk_health(snapshot: Snapshot) -> Iterator[Finding]:
    for disk in value_or(_health(snapshot).disks, ()):
        look = f"back up now; sudo smartctl -x /dev/{disk.name}; replace the disk"
        if disk.passed is False or disk.spare_low is True:
            complaint = (
                "its spare blocks run out" if disk.spare_low is True else "it reports failure"
            )
            yield finding("disk-failing", "error", f"{disk.name}: {complaint}", look)
        errors = {
            "media errors": value_or(disk.media_errors, 0),
            "replaced sectors": value_or(disk.reallocated, 0),
            "sectors that cannot be read": value_or(disk.pending, 0),
        }
        seen = [f"{count} {name}" for name, count in errors.items() if count]
        if seen:
            evidence = f"{disk.name}: {', '.join(seen)}"
            fix = f"back up; sudo smartctl -t long /dev/{disk.name}; replace it if the count grows"
            yield finding("disk-errors", "warning", evidence, fix)
        if isinstance(disk.used, float) and disk.used >= 1.0:
            evidence = f"{disk.name}: {format_share(disk.used)} of its rated life is used up"
            yield finding("disk-worn", "warning", evidence, "plan its replacement; keep backups")
    for name in value_or(_health(snapshot).settings.raid_degraded, ()):
        evidence = f"{name} runs with a disk missing"
        fix = f"cat /proc/mdstat; sudo mdadm --manage /dev/{name} --add /dev/DISK"
        yield finding("raid-degraded", "warning", evidence, fix)


def _disk_space(snapshot: Snapshot) -> Iterator[Finding]:
    seen = set()
    for disk in value_or(snapshot.disks, ()):
        for mount in disk.mounts:
            size, free = mount.size_bytes, mount.available_bytes
            if mount.path.startswith(_NOT_DATA) or mount.path in seen:
                continue
            seen.add(mount.path)
            if not isinstance(size, int) or not isinstance(free, int):
                continue
            if free < size * _LEAST_FREE_SHARE and free < _LEAST_FREE_BYTES:
                evidence = f"{mount.path} has {format_memory(free)} of {format_memory(size)} left"
                fix = f"du -xh --max-depth=2 {mount.path} | sort -h | tail; move or delete"
                yield finding("disk-full", "warning", evidence, fix)


def _file_systems(snapshot: Snapshot) -> Iterator[Finding]:
    health = _health(snapshot)
    for system in value_or(health.filesystems, ()):
        errors = value_or(system.errors, 0)
        guarded = "errors=remount-ro" in system.options
        if errors or (system.read_only and guarded):
            complaint = (
                f"{errors} errors since it was checked" if errors else "went read-only by an error"
            )
            severity: Severity = "error" if system.read_only else "warning"
            evidence = f"{system.path} ({system.filesystem}): {complaint}"
            fix = f"back up; unmount it; sudo fsck -f on its device ({system.path}); check the disk"
            yield finding("filesystem-errors", severity, evidence, fix)
        if system.filesystem in _UNSUITED and not system.path.startswith(_NOT_DATA):
            evidence = f"{system.path} is {system.filesystem}: slow for many files, no Unix rights"
            fix = "keep runs and tokens on ext4 or xfs; copy, format, copy back"
            yield finding("filesystem-unsuited", "info", evidence, fix)
        if "sync" in system.options and system.filesystem not in ("nfs", "nfs4"):
            evidence = f"{system.path} is mounted with sync: every write waits for the disk"
            fix = f"sudo mount -o remount,async {system.path}; correct /etc/fstab"
            yield finding("mounted-sync", "warning", evidence, fix)


# ---- settings and sensors


def _clock_governors(snapshot: Snapshot) -> Iterator[Finding]:
    """Find clocks held at their lowest; drivers that choose by themselves say powersave, too."""
    settings = _health(snapshot).settings
    fixed = [
        name
        for name in value_or(settings.governors, ())
        if name.endswith("/powersave") and not name.startswith(("intel_pstate/", "amd-pstate-epp/"))
    ]
    if fixed:
        evidence = f"the CPU's clock is held at its lowest ({fixed[0]})"
        fix = "sudo cpupower frequency-set -g schedutil"
        yield finding("governor-powersave", "warning", evidence, fix)


def _clock_sync(snapshot: Snapshot) -> Iterator[Finding]:
    if _health(snapshot).settings.clock_synchronised is False:
        fix = "sudo timedatectl set-ntp true"
        yield finding("clock-not-synchronised", "info", "no server keeps the clock right", fix)


def _host_sensors(snapshot: Snapshot) -> Iterator[Finding]:
    for sensor in value_or(_health(snapshot).sensors, ()):
        if isinstance(sensor.limit, Missing):
            continue
        name = f"{sensor.chip} {sensor.label}"
        if sensor.kind == "temperature" and _TRUSTED_CHIPS.match(sensor.chip):
            if 40 < sensor.limit < 130 and sensor.value >= sensor.limit - _NEAR_LIMIT_C:
                evidence = f"{name}: {sensor.value:.0f} °C, critical at {sensor.limit:.0f} °C"
                fix = "check the cooler, its paste and the air flow; watch: sensors"
                yield finding("host-hot", "warning", evidence, fix)
        elif sensor.kind == "fan" and sensor.limit > 0 and sensor.value < sensor.limit:
            evidence = f"{name}: {sensor.value:.0f} turns a minute, {sensor.limit:.0f} at least"
            fix = "look whether it turns; clean or replace it; watch: sensors"
            yield finding("host-fan-slow", "warning", evidence, fix)


def _needs_modules(snapshot: Snapshot) -> object:
    if value_or(snapshot.host.virtualization, "none") != "none":
        return NotApplicable("a virtual machine: its modules are not real ones")
    return None


CHECKS = (
    HealthCheck(
        id="memory-room",
        title="Main memory has room and nothing was swapped out",
        reads="/proc/meminfo",
        finds=("memory-low", "swap-used"),
        judge=_memory_room,
        facts=("memory.total_bytes", "memory.available_bytes"),
    ),
    HealthCheck(
        id="memory-modules",
        title="Memory modules are equal, in all channels, at their rated speed",
        reads="dmidecode -t 17",
        finds=("memory-unequal", "memory-single-channel", "memory-below-rated"),
        judge=_memory_modules,
        facts=(
            "memory.dimms.size_bytes",
            "memory.dimms.speed_mt_per_s",
            "memory.dimms.rated_mt_per_s",
        ),
        needs=_needs_modules,
        root="size, slot and speed of each memory module",
    ),
    HealthCheck(
        id="memory-errors",
        title="Main memory reports no errors",
        reads="/sys/devices/system/edac",
        finds=("host-memory-uncorrected", "host-memory-corrected"),
        judge=_memory_errors,
        facts=(
            "health.settings.memory_errors_corrected",
            "health.settings.memory_errors_uncorrected",
        ),
    ),
    HealthCheck(
        id="numa",
        title="Every NUMA node has memory, every GPU a node",
        reads="/sys/devices/system/node, /sys/bus/pci/devices/*/numa_node",
        finds=("numa-node-without-memory", "gpu-without-numa-node"),
        judge=_numa_nodes,
        facts=("memory.nodes.total_bytes",),
        note=lambda s: "" if gpus_of(s) or devices(s) else "Every NUMA node has memory",
    ),
    HealthCheck(
        id="disks",
        title="The disks report no failure",
        reads="smartctl -j, /proc/mdstat",
        finds=("disk-failing", "disk-errors", "disk-worn", "raid-degraded"),
        judge=_disk_health,
        facts=("health.disks.passed*",),
        root="the disks' own reports (SMART, NVMe)",
    ),
    HealthCheck(
        id="disk-space",
        title="The file systems have room",
        reads="lsblk",
        finds=("disk-full",),
        judge=_disk_space,
        facts=("disks.mounts.available_bytes*",),
    ),
    HealthCheck(
        id="filesystems",
        title="The file systems are sound and suited",
        reads="/proc/self/mounts, /sys/fs/ext4",
        finds=("filesystem-errors", "filesystem-unsuited", "mounted-sync"),
        judge=_file_systems,
        facts=("health.filesystems",),
    ),
    HealthCheck(
        id="governor",
        title="The CPU's clock may rise",
        reads="/sys/devices/system/cpu/*/cpufreq",
        finds=("governor-powersave",),
        judge=_clock_governors,
        facts=("health.settings.governors",),
    ),
    HealthCheck(
        id="clock",
        title="The clock is kept right",
        reads="timedatectl, chronyc",
        finds=("clock-not-synchronised",),
        judge=_clock_sync,
        facts=("health.settings.clock_synchronised",),
    ),
    HealthCheck(
        id="sensors",
        title="The host is cool and its fans turn",
        reads="/sys/class/hwmon (as lm-sensors)",
        finds=("host-hot", "host-fan-slow"),
        judge=_host_sensors,
        facts=("health.sensors",),
    ),
)
