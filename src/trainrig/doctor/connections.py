"""Are the links whole: PCIe, NVLink, topology, direct access, memory window, network cards."""

from __future__ import annotations

from collections.abc import Iterator

from trainrig.doctor.check import (
    HealthCheck,
    NotApplicable,
    device_name,
    devices,
    finding,
    gpus_of,
    is_mobile,
    needs_devices,
    needs_gpus,
    needs_health,
    numbers,
)
from trainrig.machine.health import NetworkPort
from trainrig.machine.snapshot import Gpu, Missing, Snapshot, value_or
from trainrig.record import Finding, Severity
from trainrig.stats import grouped
from trainrig.units import format_quantity

# Below this share of the time in kernels a GPU counts as idle, and its link may run slow.
_IDLE_UTILIZATION = 0.05
_SMALL_WINDOW = 2**28
_MOST_CORRECTED = 100
_PATH_MEANINGS = {
    "board": "on one board",
    "PIX": "through one PCIe switch: near; tensor parallel works at the switch's speed",
    "PXB": "through several PCIe switches: near",
    "PHB": "through the processor's PCIe root: data parallel is fine, tensor parallel is slow",
    "NODE": "through two PCIe roots of one processor: data parallel is fine, tensor parallel slow",
    "SYS": "across the link between processors: the slowest way; keep tensor parallel groups apart",
}
_FEW_GPUS = 4
# A restart of either end counts as well.
_MOST_LINK_DOWNS = 10


def _narrow_links(snapshot: Snapshot) -> Iterator[Finding]:
    """Find GPUs on fewer PCIe lanes than they have; NVML counts those of card and slot."""
    on_bus = {device.address: device for device in value_or(snapshot.pci_gpus, ())}
    for gpu in gpus_of(snapshot):
        device = on_bus.get(gpu.pci_address) if isinstance(gpu.pci_address, str) else None
        widths = [gpu.link.max_width, device.link.max_width if device else None]
        lanes = max((width for width in widths if isinstance(width, int)), default=0)
        if isinstance(gpu.link.width, int) and gpu.link.width < lanes:
            slot = device.slot.max_width if device else None
            if is_mobile(gpu) and isinstance(slot, int) and slot <= gpu.link.width:
                continue  # soldered with fewer lanes
            yield _narrow_link_finding(f"GPU {gpu.index}", gpu.link.width, lanes, slot)
    described = {gpu.pci_address for gpu in gpus_of(snapshot)}
    for device in devices(snapshot):
        width, lanes = value_or(device.link.width, 0), value_or(device.link.max_width, 0)
        if device.address not in described and 0 < width < lanes:
            shown = f"{device_name(device)} at {device.address}"
            yield _narrow_link_finding(shown, width, lanes, device.slot.max_width)


_IDLE_LINK = {
    "cause": "an idle card lowers its link's speed to save power",
    "risk": "none, if it rises under load; else copies are slow",
    "undo": "nothing to undo",
}


def _slow_links(snapshot: Snapshot) -> Iterator[Finding]:
    """Find links below the highest PCIe generation of card and slot."""
    idle: list[Gpu] = []
    for gpu in gpus_of(snapshot):
        now, most = gpu.link.generation, gpu.link.max_generation
        if isinstance(now, Missing) or isinstance(most, Missing) or now >= most:
            continue
        if value_or(gpu.activity.utilization, 0.0) <= _IDLE_UTILIZATION:
            idle.append(gpu)
            continue
        evidence = f"GPU {gpu.index} runs its link at generation {now} of {most} under load"
        fix = "set the slot's link speed in the firmware to automatic; reseat the card"
        yield finding("pcie-link-below-max", "warning", evidence, fix)
    described = {gpu.pci_address for gpu in gpus_of(snapshot)}
    for device in devices(snapshot):
        now, most = device.link.generation, device.link.max_generation
        if device.address in described or isinstance(now, Missing) or isinstance(most, Missing):
            continue
        if now < most:
            shown = f"{device_name(device)} at {device.address}"
            evidence = f"{shown} runs its link at generation {now} of {most}, as an idle one does"
            fix = "look again under load: sudo lspci -vv | grep LnkSta"
            yield finding("pcie-link-below-max", "info", evidence, fix, **_IDLE_LINK)
    if idle:
        evidence = f"{numbers(idle)} idle, with a slow link to save power"
        fix = "nothing, if it rises under load: trainrig bench copy"
        yield finding("pcie-link-below-max", "info", evidence, fix, **_IDLE_LINK)


def _narrow_link_finding(shown: str, width: int, card: int, slot: int | Missing | None) -> Finding:
    evidence = f"{shown} has {width} of its {card} PCIe lanes"
    if isinstance(slot, int) and slot <= width:
        evidence += f"; its slot has {slot}"
        fix = "move it to a wider slot, or check how the board shares lanes between slots"
    else:
        fix = "reseat the card, clean its contacts, replace the riser; check the lane setting"
    return finding("pcie-link-below-max", "warning", evidence, fix)


def _inactive_nvlinks(snapshot: Snapshot) -> Iterator[Finding]:
    """Find links down beside links that are up; a card without a bridge has none up."""
    for gpu in gpus_of(snapshot):
        down, up = value_or(gpu.nvlinks.inactive, 0), value_or(gpu.nvlinks.active, 0)
        if down and up:
            evidence = f"GPU {gpu.index}: {down} of {down + up} NVLinks are down"
            fix = f"nvidia-smi nvlink -s -i {gpu.index}; sudo dmesg | grep -i nvlink"
            yield finding("nvlink-inactive", "warning", evidence, fix)


def _bus_errors(snapshot: Snapshot) -> Iterator[Finding]:
    """Find link errors that PCIe counted since boot (AER)."""
    health = snapshot.health
    for state in () if isinstance(health, Missing) else value_or(health.bus, ()):
        fatal, corrected = value_or(state.errors_fatal, 0), value_or(state.errors_corrected, 0)
        if fatal or corrected > _MOST_CORRECTED:
            counted = f"{fatal} fatal and {corrected} corrected link errors since boot"
            severity = "error" if fatal else "warning"
            fix = "reseat the card, try without a riser; look: sudo dmesg | grep -i aer"
            yield finding("pcie-errors", severity, f"{state.address}: {counted}", fix)  # type: ignore[arg-type]


def _pcie_note(snapshot: Snapshot) -> str:
    """Say nothing of errors where nothing counted them."""
    health = snapshot.health
    states = () if isinstance(health, Missing) else value_or(health.bus, ())
    is_counted = any(isinstance(state.errors_fatal, int) for state in states)
    return "" if is_counted else "Each GPU has its PCIe lanes and generation"


# ---- topology and direct access


def _missing_nvlinks(snapshot: Snapshot) -> Iterator[Finding]:
    """Find pairs of GPUs without NVLink beside pairs that have it."""
    links = value_or(snapshot.topology.links, ())
    paths = {(link.a, link.b): link.path for link in links if isinstance(link.path, str)}
    bridged = [pair for pair, path in paths.items() if path.startswith("NV")]
    without = [pair for pair, path in paths.items() if not path.startswith("NV")]
    gpus = {gpu.index for pair in bridged for gpu in gpus_of(snapshot) if gpu.index in pair}
    lonely = sorted({index for pair in without for index in pair if index not in gpus})
    if bridged and lonely:
        evidence = f"GPU {', '.join(map(str, lonely))} has no NVLink to any other; others have"
        fix = "nvidia-smi nvlink -s; power off and seat the bridge or module again"
        yield finding("nvlink-missing", "warning", evidence, fix)
    widths = {pair: int(paths[pair][2:]) for pair in bridged if paths[pair][2:].isdecimal()}
    most = max(widths.values(), default=0)
    thin = [pair for pair, width in widths.items() if width < most]
    if thin and len(thin) <= len(widths) // 2:
        pairs = ", ".join(f"{a}-{b}" for a, b in thin)
        evidence = f"GPU {pairs}: {min(widths.values())} NVLinks, other pairs {most}"
        fix = "nvidia-smi nvlink -s; nvidia-smi nvlink -e; reseat the module"
        yield finding("nvlink-uneven", "warning", evidence, fix)


def _gpus_across_sockets(snapshot: Snapshot) -> Iterator[Finding]:
    links = value_or(snapshot.topology.links, ())
    far = [link for link in links if link.path == "SYS"]
    if far and len(gpus_of(snapshot)) <= _FEW_GPUS and len(gpus_of(snapshot)) > 1:
        pairs = ", ".join(f"{link.a}-{link.b}" for link in far)
        evidence = f"GPU {pairs} reach each other across the link between processors (SYS)"
        fix = "move the cards to slots of one processor; the board's manual says which"
        yield finding("gpus-across-sockets", "info", evidence, fix)


def _topology_note(snapshot: Snapshot) -> str:
    """Describe the paths between GPUs, and what they are good for."""
    links = value_or(snapshot.topology.links, ())
    paths = sorted({link.path for link in links if isinstance(link.path, str)})
    words = [
        f"{path}: {_PATH_MEANINGS.get(path, 'NVLink: tensor parallel belongs here')}"
        for path in paths
    ]
    known = [link.p2p_read for link in links if isinstance(link.p2p_read, str)]
    if known:
        words.append(f"direct access: {known.count('ok')} of {len(links)} pairs")
    return "; ".join(words)


def _barred_direct_access(snapshot: Snapshot) -> Iterator[Finding]:
    """Find direct access that a setting or the chipset forbids; consumer cards have none."""
    links = value_or(snapshot.topology.links, ())
    names = {gpu.index: value_or(gpu.name, "") for gpu in gpus_of(snapshot)}
    barred: dict[str, list[str]] = {}
    for link in links:
        if not isinstance(link.p2p_read, str) or link.p2p_read == "ok":
            continue
        if not any("GeForce" in names.get(end, "") for end in (link.a, link.b)):
            barred.setdefault(link.p2p_read, []).append(f"{link.a}-{link.b}")
    for why, pairs in barred.items():
        evidence = f"no direct access between GPU {', '.join(pairs[:6])}: {why}"
        fix = "nvidia-smi topo -p2p r; switch the IOMMU and ACS off in the firmware; reboot"
        severity: Severity = "warning"
        if _is_virtual(snapshot):
            fix, severity = "ask who runs the virtual machine: the host decides", "info"
        yield finding("p2p-barred", severity, evidence, fix)
    yield from _redirected_traffic(snapshot)


def _is_virtual(snapshot: Snapshot) -> bool:
    return value_or(snapshot.host.virtualization, "none") != "none"


def _redirected_traffic(snapshot: Snapshot) -> Iterator[Finding]:
    links = value_or(snapshot.topology.links, ())
    over_pcie = any(
        link.p2p_read == "ok" and isinstance(link.path, str) and not link.path.startswith("NV")
        for link in links
    )
    health = snapshot.health
    if isinstance(health, Missing) or not over_pcie or _is_virtual(snapshot):
        return
    if health.settings.iommu == "translated":
        evidence = "the IOMMU translates, and GPUs reach each other over PCIe"
        fix = "add iommu=pt to GRUB_CMDLINE_LINUX in /etc/default/grub; sudo update-grub; reboot"
        yield finding("iommu-translates", "warning", evidence, fix)
    ports = [state.address for state in value_or(health.bus, ()) if state.acs_redirect is True]
    if ports:
        evidence = f"ACS sends traffic of {', '.join(ports)} through the root instead of the switch"
        fix = "sudo setpci -s BRIDGE ECAP_ACS+0x6.w=0000 for each bridge above; or off in firmware"
        yield finding("acs-redirects", "warning", evidence, fix)


def _resizable_bar(snapshot: Snapshot) -> Iterator[Finding]:
    small = [gpu for gpu in _small_windows(snapshot) if "GeForce" in value_or(gpu.name, "")]
    if small:
        evidence = f"{numbers(small)}: the host sees 256 MiB of its memory at a time"
        fix = "in the firmware: Above 4G Decoding on, Re-Size BAR on; CSM off"
        yield finding("resizable-bar-off", "info", evidence, fix)


def _small_windows(snapshot: Snapshot) -> list[Gpu]:
    return [
        gpu
        for gpu in gpus_of(snapshot)
        if isinstance(gpu.memory.bar1_bytes, int)
        and gpu.memory.bar1_bytes <= _SMALL_WINDOW
        and value_or(gpu.memory.total_bytes, 0) > 8 * _SMALL_WINDOW
    ]


def _resizable_bar_note(snapshot: Snapshot) -> str:
    """Say of cards without resizable BAR that a small window is all that they have."""
    small = _small_windows(snapshot)
    return f"{numbers(small)}: a window of 256 MiB, as cards of this kind have" if small else ""


# ---- network cards


def _network_findings(snapshot: Snapshot) -> Iterator[Finding]:
    health = snapshot.health
    ports = () if isinstance(health, Missing) else value_or(health.network, ())
    bands = [port for port in ports if port.kind == "infiniband"]
    up = [port for port in bands if port.up is True]
    down = [port.name for port in bands if port.up is False and not port.is_ethernet]
    if up and down:
        evidence = f"{', '.join(down)} is down; {len(up)} others are up"
        fix = "ibstat; check the cable and the switch's port; sudo systemctl status opensm"
        yield finding("infiniband-down", "warning", evidence, fix)
    yield from _uneven_ports(up)
    for port in up:
        downs = value_or(port.link_downs, 0)
        if downs > _MOST_LINK_DOWNS:
            evidence = f"{port.name} lost its link {downs} times since its counters began"
            fix = "reseat and clean the cable, then replace it; ibdiagnet names the other end"
            yield finding("infiniband-flapping", "warning", evidence, fix)
    for port in ports:
        if port.up is True:
            yield from _slow_port(port)


def _infiniband_up(snapshot: Snapshot) -> list[NetworkPort]:
    health = snapshot.health
    ports = () if isinstance(health, Missing) else value_or(health.network, ())
    return [port for port in ports if port.kind == "infiniband" and port.up is True]


def _gpudirect(snapshot: Snapshot) -> Iterator[Finding]:
    health = snapshot.health
    if not isinstance(health, Missing) and health.settings.peer_memory is False:
        evidence = "InfiniBand is up and nvidia_peermem is not loaded"
        fix = "sudo modprobe nvidia_peermem; not needed with open kernel modules and dma-buf"
        yield finding("gpudirect-off", "info", evidence, fix)


def _needs_gpudirect(snapshot: Snapshot) -> object:
    if not gpus_of(snapshot):
        return needs_gpus(snapshot)
    if isinstance(known := needs_health("network")(snapshot), Missing):
        return known
    if not _infiniband_up(snapshot):
        return NotApplicable("no InfiniBand here")
    return None


def _slow_port(port: NetworkPort) -> Iterator[Finding]:
    """Find a network card that its slot or its cable slows down."""
    now, most = value_or(port.link_now, 0), value_or(port.link_most, 0)
    speed = value_or(port.speed_bits_per_s, 0.0)
    # Generation and lanes, 2**generation × lanes, are gigabits a second nearly enough.
    if now and now < most and now < speed / 1e9:
        evidence = f"{port.name} has 1/{most // now} of the PCIe bandwidth that it can use"
        fix = "move the card to a wider slot, or reseat it; sudo lspci -vv | grep LnkSta"
        yield finding("nic-link-below-max", "warning", evidence, fix)
    is_card = port.kind == "ethernet" and not port.virtual and not port.is_usb
    if is_card and 0 < speed < 1e9:
        evidence = f"{port.name} runs at {format_quantity(speed, 'bit/s')}"
        fix = f"replace the cable; then: sudo ethtool -r {port.name}"
        yield finding("ethernet-slow", "warning", evidence, fix)


def _uneven_ports(up: list[NetworkPort]) -> Iterator[Finding]:
    """Find the slow ones among network cards that can do the same."""
    groups = grouped(up, lambda port: (port.is_ethernet, value_or(port.link_most, 0)))
    for equal in groups.values():
        yield from _slow_among_equal_ports(equal)


def _slow_among_equal_ports(up: list[NetworkPort]) -> Iterator[Finding]:
    rates = {value_or(port.speed_bits_per_s, 0.0) for port in up} - {0.0}
    if len(rates) > 1:
        slow = [port.name for port in up if port.speed_bits_per_s == min(rates)]
        shown = format_quantity(min(rates), "bit/s"), format_quantity(max(rates), "bit/s")
        if len(slow) * 2 <= len(up):
            evidence = f"{', '.join(slow)} runs at {shown[0]}, others at {shown[1]}"
            fix = "ibstat; replace the cable or clean its ends; check the switch's port"
            yield finding("infiniband-slow", "warning", evidence, fix)
    versions = {port.firmware for port in up if isinstance(port.firmware, str)}
    if len(versions) > 1:
        evidence = f"InfiniBand cards with firmware {', '.join(sorted(versions))}"
        fix = "sudo mlxfwmanager; bring all to one version"
        yield finding("firmware-differs", "info", evidence, fix)


def _needs_nvlinks(snapshot: Snapshot) -> object:
    """Require GPUs that have NVLinks, as far as is known."""
    counts = [
        count for gpu in gpus_of(snapshot) for count in (gpu.nvlinks.active, gpu.nvlinks.inactive)
    ]
    paths = [link.path for link in value_or(snapshot.topology.links, ())]
    known = [value for value in (*counts, *paths) if not isinstance(value, Missing)]
    if known and not any(value if isinstance(value, int) else value[:2] == "NV" for value in known):
        return NotApplicable("no NVLink here")
    return needs_gpus(snapshot)


def _needs_pairs(snapshot: Snapshot) -> object:
    if isinstance(snapshot.gpus, Missing):
        return needs_gpus(snapshot)
    if isinstance(snapshot.topology.links, Missing):
        return snapshot.topology.links
    return snapshot.topology.links or NotApplicable("fewer than two GPUs here")


CHECKS = (
    HealthCheck(
        id="pcie",
        title="Each GPU has its PCIe lanes, generation and a clean link",
        reads="NVML, /sys/bus/pci (link, AER counters)",
        finds=("pcie-link-below-max", "pcie-errors"),
        judge=lambda snapshot: (
            *_narrow_links(snapshot),
            *_slow_links(snapshot),
            *_bus_errors(snapshot),
        ),
        facts=(
            "gpus.link.width|pci_gpus.link.width",
            "gpus.link.max_width|pci_gpus.link.max_width",
            "gpus.link.generation|pci_gpus.link.generation",
            "gpus.link.max_generation|pci_gpus.link.max_generation",
        ),
        note=_pcie_note,
        needs=needs_devices,
    ),
    HealthCheck(
        id="nvlink",
        title="NVLinks are up, between all that have them",
        reads="NVML",
        finds=("nvlink-inactive", "nvlink-missing", "nvlink-uneven"),
        judge=lambda snapshot: (*_inactive_nvlinks(snapshot), *_missing_nvlinks(snapshot)),
        facts=("gpus.nvlinks.inactive|topology.links.path",),
        needs=_needs_nvlinks,
    ),
    HealthCheck(
        id="topology",
        title="GPUs are near each other",
        reads="NVML",
        finds=("gpus-across-sockets",),
        judge=_gpus_across_sockets,
        facts=("topology.links.path",),
        needs=_needs_pairs,
        note=_topology_note,
    ),
    HealthCheck(
        id="direct-access",
        title="GPUs read each other's memory directly where they can",
        reads="NVML, /sys/class/iommu, /proc/cmdline; lspci -vvv as root",
        finds=("p2p-barred", "iommu-translates", "acs-redirects"),
        judge=_barred_direct_access,
        facts=("topology.links.p2p_read",),
        needs=_needs_pairs,
        root="ACS settings of PCIe bridges",
        looks_without_root=True,
    ),
    HealthCheck(
        id="resizable-bar",
        title="The host sees all of a GPU's memory (resizable BAR)",
        reads="NVML",
        finds=("resizable-bar-off",),
        judge=_resizable_bar,
        facts=("gpus.memory.bar1_bytes",),
        note=_resizable_bar_note,
        needs=needs_gpus,
    ),
    HealthCheck(
        id="network",
        title="Network cards are up and at their speed",
        reads="/sys/class/net, /sys/class/infiniband, /proc/modules",
        finds=(
            "infiniband-down",
            "infiniband-slow",
            "infiniband-flapping",
            "firmware-differs",
            "nic-link-below-max",
            "ethernet-slow",
        ),
        judge=_network_findings,
        facts=("health.network",),
    ),
    HealthCheck(
        id="gpudirect",
        title="InfiniBand reaches the GPUs' memory (GPUDirect)",
        reads="/sys/class/infiniband, /proc/modules",
        finds=("gpudirect-off",),
        judge=_gpudirect,
        facts=("health.settings.peer_memory",),
        needs=_needs_gpudirect,
    ),
)
