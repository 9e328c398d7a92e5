"""The host's own health: disks, file systems, network cards, sensors, settings, tools.

Read from sysfs and /proc where that needs no root; disks' own reports (SMART) come from `smart`.

Sources: the kernel's Documentation/hwmon/sysfs-interface.rst,
admin-guide/ras (EDAC), ABI/stable/sysfs-class-infiniband, ABI/testing/sysfs-fs-ext4, md.rst.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

from trainrig.machine.driver_state import driver_state, pci_states
from trainrig.machine.health import (
    FileSystem,
    GpuProcess,
    Health,
    HostSettings,
    NetworkPort,
    Sensor,
    Toolchain,
)
from trainrig.machine.kernel_log import kernel_events
from trainrig.machine.parse import first, integer, number, text
from trainrig.machine.pci import read_link
from trainrig.machine.ports import listeners, readable_secrets, tunnels
from trainrig.machine.smart import disk_health
from trainrig.machine.snapshot import Disk, Gpu, Missing, PciGpu, value_or
from trainrig.machine.system_access import Host

_CPU = "/sys/devices/system/cpu"
_DATA_FILE_SYSTEMS = re.compile(
    r"ext[234]|xfs|btrfs|zfs|f2fs|ntfs3?|fuseblk|vfat|exfat|nfs4?|cifs|smb3|lustre|(?:fuse\.)?ceph"
    r"|beegfs|gpfs|fuse\.(?:sshfs|s3fs)|9p|virtiofs|overlay"
)
_SYSTEM_PLACES = ("/boot", "/snap", "/run", "/proc", "/sys", "/dev", "/usr/lib/modules", "/etc/")


def health(
    host: Host,
    disks: Iterable[Disk],
    bus: Iterable[PciGpu] | Missing,
    gpus: Iterable[Gpu],
) -> Health:
    """Read all facts of the host's health, its parts at the same time."""
    devices = () if isinstance(bus, Missing) else tuple(bus)
    with ThreadPoolExecutor(max_workers=10) as pool:
        driver = pool.submit(driver_state, host)
        states = pool.submit(pci_states, host, devices)
        log = pool.submit(kernel_events, host)
        sockets = pool.submit(listeners, host)
        clients = pool.submit(tunnels, host)
        smart = pool.submit(disk_health, host, [disk.name for disk in disks])
        mounts = pool.submit(filesystems, host)
        cards = pool.submit(network_ports, host)
        tools = pool.submit(toolchain, host)
        set_to = pool.submit(settings, host)
    return Health(
        driver=driver.result(),
        bus=bus if isinstance(bus, Missing) else states.result(),
        kernel_log=log.result(),
        listeners=sockets.result(),
        tunnels=clients.result(),
        disks=smart.result(),
        filesystems=mounts.result(),
        network=cards.result(),
        sensors=sensors(host),
        gpu_processes=gpu_processes(host, gpus),
        toolchain=tools.result(),
        settings=set_to.result(),
        readable_secrets=readable_secrets(host),
    )


# ---- file systems


def filesystems(host: Host) -> tuple[FileSystem, ...] | Missing:
    """Return the mounted file systems that hold data, by their path."""
    table = host.read("/proc/self/mounts")
    if isinstance(table, Missing):
        return table
    by_path: dict[str, FileSystem] = {}
    writable = _writable(host.read("/proc/self/mountinfo"))
    for line in table.splitlines():
        words = line.split()
        if len(words) < 4 or not _DATA_FILE_SYSTEMS.fullmatch(words[2]):
            continue
        path = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), words[1])
        if path.startswith(_SYSTEM_PLACES):
            continue
        options = tuple(words[3].split(","))
        device = words[0].removeprefix("/dev/")
        by_path[path] = FileSystem(
            path=path,
            filesystem=words[2],
            read_only="ro" in options and words[1] not in writable,
            options=options,
            errors=integer(host.read(f"/sys/fs/ext4/{device}/errors_count"), "errors")
            if words[2] == "ext4"
            else Missing("ext4 alone counts them"),
        )
    return tuple(by_path.values())


def _writable(mounts: str | Missing) -> frozenset[str]:
    """Return the places whose file system may be written, however they are mounted.

    Containers get the driver's files as read-only mounts of the host's file system.
    """
    places = set()
    for line in value_or(mounts, "").splitlines():
        place, _, system = line.partition(" - ")
        words, last = place.split(), system.split()
        if len(words) > 4 and len(last) > 2 and "rw" in last[2].split(","):
            places.add(words[4])
    return frozenset(places)


# ---- network cards


def network_ports(host: Host) -> tuple[NetworkPort, ...] | Missing:
    """Return Ethernet and InfiniBand ports; one without a card behind it is virtual."""
    names = host.names("/sys/class/net")
    if isinstance(names, Missing):
        return names
    ports = [_ethernet(host, name) for name in names if name != "lo"]
    for card in value_or(host.names("/sys/class/infiniband"), ()):
        numbers = value_or(host.names(f"/sys/class/infiniband/{card}/ports"), ())
        ports += [_infiniband(host, card, number) for number in numbers]
    return tuple(ports)


def _ethernet(host: Host, name: str) -> NetworkPort:
    folder = f"/sys/class/net/{name}"
    state = host.read(f"{folder}/operstate")
    speed = number(host.read(f"{folder}/speed"), "speed", most=1e7)
    inside = value_or(host.names(folder), ())
    now, most = _pcie(host, folder)
    return NetworkPort(
        name=name,
        kind="ethernet",
        up=state if isinstance(state, Missing) else state in ("up", "unknown"),
        speed_bits_per_s=speed if isinstance(speed, Missing) else speed * 1e6,
        link_now=now,
        link_most=most,
        firmware=Missing("ethtool tells it"),
        virtual="device" not in inside,
        is_usb="/usb" in value_or(host.resolve(f"{folder}/device"), ""),
    )


def _infiniband(host: Host, card: str, port: str) -> NetworkPort:
    folder = f"/sys/class/infiniband/{card}"
    state = host.read(f"{folder}/ports/{port}/state")
    rate = number(host.read(f"{folder}/ports/{port}/rate"), "rate", most=1e5)
    now, most = _pcie(host, folder)
    return NetworkPort(
        name=f"{card}:{port}",
        kind="infiniband",
        up=state if isinstance(state, Missing) else "ACTIVE" in state,
        speed_bits_per_s=rate if isinstance(rate, Missing) else rate * 1e9,
        link_now=now,
        link_most=most,
        firmware=text(host.read(f"{folder}/fw_ver"), "firmware"),
        virtual=False,
        is_ethernet=host.read(f"{folder}/ports/{port}/link_layer") == "Ethernet",
        link_downs=integer(
            host.read(f"{folder}/ports/{port}/counters/link_downed"), "count of lost links"
        ),
    )


def _pcie(host: Host, folder: str) -> tuple[int | Missing, int | Missing]:
    """Return lanes × 2**generation of a card's link, as it runs and at its most."""
    link = read_link(host, f"{folder}/device")
    pairs = ((link.generation, link.width), (link.max_generation, link.max_width))
    products = []
    for generation, width in pairs:
        if isinstance(generation, Missing) or isinstance(width, Missing):
            return Missing("no PCIe link"), Missing("no PCIe link")
        products.append(2**generation * width)
    return products[0], products[1]


# ---- sensors, settings, tools, processes


def sensors(host: Host) -> tuple[Sensor, ...] | Missing:
    """Return temperatures and fans of the kernel's hardware monitors."""
    chips = host.names("/sys/class/hwmon")
    if isinstance(chips, Missing):
        return chips
    readings = []
    for chip in chips:
        folder = f"/sys/class/hwmon/{chip}"
        name = value_or(host.read(f"{folder}/name"), chip)
        for file in value_or(host.names(folder), ()):
            match = re.fullmatch(r"(temp|fan)(\d{1,2})_input", file)
            if match is None:
                continue
            start = f"{folder}/{match[1]}{match[2]}"
            is_heat = match[1] == "temp"
            unit = 1e-3 if is_heat else 1.0
            value = number(host.read(f"{start}_input"), "value", most=1e6)
            limit = number(host.read(f"{start}_{'crit' if is_heat else 'min'}"), "limit", most=1e6)
            if isinstance(value, Missing):
                continue
            readings.append(
                Sensor(
                    chip=name,
                    label=value_or(host.read(f"{start}_label"), f"{match[1]}{match[2]}"),
                    kind="temperature" if is_heat else "fan",
                    value=value * unit,
                    limit=limit if isinstance(limit, Missing) else limit * unit,
                )
            )
    return tuple(readings)


def processor_heat_files(host: Host) -> tuple[str, ...]:
    """Return the kernel's files with the processors' temperatures (in 0.001 °C)."""
    files = []
    for chip in value_or(host.names("/sys/class/hwmon"), ()):
        folder = f"/sys/class/hwmon/{chip}"
        if value_or(host.read(f"{folder}/name"), "") in _PROCESSOR_CHIPS:
            names = value_or(host.names(folder), ())
            files += [f"{folder}/{name}" for name in names if re.fullmatch(r"temp\d+_input", name)]
    return tuple(sorted(files))


_PROCESSOR_CHIPS = frozenset(["coretemp", "k10temp", "zenpower", "cpu_thermal"])


def settings(host: Host) -> HostSettings:
    """Read the settings of the host's firmware and kernel."""
    limits = host.read("/proc/self/limits")
    modules = host.read("/proc/modules")
    return HostSettings(
        governors=_governors(host),
        clock_synchronised=_clock(host),
        iommu=_iommu(host),
        memlock_bytes=_limit(limits, "Max locked memory"),
        open_files=_limit(limits, "Max open files"),
        memory_errors_corrected=_edac(host, "ce_count"),
        memory_errors_uncorrected=_edac(host, "ue_count"),
        raid_degraded=_raid(host.read("/proc/mdstat")),
        peer_memory=modules
        if isinstance(modules, Missing)
        else bool(re.search(r"^(?:nvidia_peermem|nv_peer_mem) ", modules, re.MULTILINE)),
    )


def _governors(host: Host) -> tuple[str, ...] | Missing:
    names = [name for name in value_or(host.names(_CPU), ()) if re.fullmatch(r"cpu\d+", name)]
    settings_by_cpu = [
        [host.read(f"{_CPU}/{name}/cpufreq/scaling_{part}") for part in ("driver", "governor")]
        for name in names
    ]
    known = {
        f"{value_or(driver, '?')}/{governor}"
        for driver, governor in settings_by_cpu
        if isinstance(governor, str)
    }
    return tuple(sorted(known)) if known else Missing("the kernel does not set this CPU's clock")


def _clock(host: Host) -> bool | Missing:
    output = host.run("timedatectl", "show", "-p", "NTPSynchronized", "--value")
    if isinstance(output, str) and output.strip() in ("yes", "no"):
        return output.strip() == "yes"
    chrony = host.run("chronyc", "-n", "tracking")
    if isinstance(chrony, str) and "Leap status" in chrony:
        return "Not synchronised" not in chrony
    return Missing("neither timedatectl nor chronyc answers here")


def _iommu(host: Host) -> Literal["off", "passthrough", "translated"] | Missing:
    units = host.names("/sys/class/iommu")
    if isinstance(units, Missing):
        return units if isinstance(host.names("/sys/class"), Missing) else "off"
    if not units:
        return "off"
    line = value_or(host.read("/proc/cmdline"), "")
    kind = value_or(host.read("/sys/kernel/iommu_groups/0/type"), "")
    return "passthrough" if "iommu=pt" in line or kind == "identity" else "translated"


def _limit(content: str | Missing, name: str) -> int | None | Missing:
    if isinstance(content, Missing):
        return content
    match = re.search(rf"^{name}\s+(\S+)", content, re.MULTILINE)
    if match is None:
        return Missing(f"no {name.lower()}")
    return None if match[1] == "unlimited" else integer(match[1], name.lower())


def _edac(host: Host, name: str) -> int | Missing:
    folder = "/sys/devices/system/edac/mc"
    controllers = [
        controller
        for controller in value_or(host.names(folder), ())
        if re.fullmatch(r"mc\d+", controller)
    ]
    counts = [
        integer(host.read(f"{folder}/{controller}/{name}"), "count") for controller in controllers
    ]
    known = [count for count in counts if isinstance(count, int)]
    return sum(known) if known else Missing("no memory controller reports errors (no ECC, no EDAC)")


def _raid(content: str | Missing) -> tuple[str, ...] | Missing:
    """Return the RAID sets with a missing disk, which is an underscore in ``[2/1] [U_]``."""
    if isinstance(content, Missing):
        return content
    sets = re.findall(r"^(md\S+) :[^\n]*\n[^\n]*\[([U_]+)\]", content, re.MULTILINE)
    return tuple(name for name, disks in sets if "_" in disks)


def toolchain(host: Host) -> Toolchain:
    """Read the versions of the tools that build extensions and run containers."""
    container_versions = [host.run("docker", "--version"), host.run("podman", "--version")]
    ctk = host.run("nvidia-ctk", "--version")
    return Toolchain(
        gcc=_version(host.run("gcc", "-dumpfullversion", "-dumpversion")),
        ninja=_version(host.run("ninja", "--version")),
        containers=_version(first(container_versions, "container engine")),
        container_toolkit=_version(ctk),
    )


def _version(output: str | Missing) -> str | Missing:
    if isinstance(output, Missing):
        return output
    match = re.search(r"\d{1,4}(?:\.\d{1,4})+|\d{1,4}", output)
    return match[0] if match else Missing(f"no version in {output[:40]!r}")


def gpu_processes(host: Host, gpus: Iterable[Gpu]) -> tuple[GpuProcess, ...] | Missing:
    """Return the processes with a context on a GPU."""
    listed = tuple(gpus)
    if not listed:
        return Missing("no GPU is described")
    known = [gpu for gpu in listed if not isinstance(gpu.activity.process_ids, Missing)]
    if not known:
        unknown = listed[0].activity.process_ids
        return unknown if isinstance(unknown, Missing) else ()
    return tuple(
        GpuProcess(gpu=gpu.index, pid=pid, program=text(host.read(f"/proc/{pid}/comm"), "program"))
        for gpu in known
        for pid in value_or(gpu.activity.process_ids, ())
    )
