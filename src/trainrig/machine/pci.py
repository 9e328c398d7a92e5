"""GPUs and accelerators on the PCI bus, by id, with or without a driver.

Read from sysfs, which needs neither lspci nor root.  Counted are display and 3D
controllers (class 03) of the makers of GPUs, which leaves out the graphics of
server management chips, and every processing accelerator (class 12).  What chip
an id is, the catalog knows; here is only the name in the system's own pci.ids,
where there is one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping

from trainrig.machine.parse import integer, link_generation, text
from trainrig.machine.snapshot import Missing, PcieLink, PciGpu, unknown_link, value_or
from trainrig.machine.system_access import Host

_DEVICES = "/sys/bus/pci/devices"
_NAME_FILES = ("/usr/share/misc/pci.ids", "/usr/share/hwdata/pci.ids")
NVIDIA, AMD, INTEL, HABANA = "10de", "1002", "8086", "1da3"
_GPU_VENDORS = frozenset([NVIDIA, AMD, INTEL, HABANA])
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_HEX = re.compile(r"0x([0-9a-f]{4,8})", re.IGNORECASE)


def pci_gpus(host: Host) -> tuple[PciGpu, ...] | Missing:
    """Return the GPUs and accelerators on the bus, in the bus's order."""
    addresses = host.names(_DEVICES)
    if isinstance(addresses, Missing):
        return addresses
    gpu_addresses = [address for address in addresses if _is_gpu(host, address)]
    pairs = {a: _pair(host, f"{_DEVICES}/{a}", "vendor", "device") for a in gpu_addresses}
    ids = {address: value_or(pair, "") for address, pair in pairs.items()}
    names = _names(host, ids.values())
    return tuple(_pci_gpu(host, address, ids[address], names) for address in gpu_addresses)


def _is_gpu(host: Host, address: str) -> bool:
    if not _ADDRESS.fullmatch(address):
        return False
    pci_class = _hex(host.read(f"{_DEVICES}/{address}/class"))
    if isinstance(pci_class, Missing):
        return False
    if pci_class.startswith("12"):
        return True
    vendor = _hex(host.read(f"{_DEVICES}/{address}/vendor"))
    return pci_class.startswith("03") and vendor in _GPU_VENDORS


def _pci_gpu(host: Host, address: str, pci_id: str, names: Mapping[str, str] | Missing) -> PciGpu:
    folder = f"{_DEVICES}/{address}"
    pci_class = _hex(host.read(f"{folder}/class"))
    return PciGpu(
        address=address,
        pci_id=pci_id,
        subsystem_id=_pair(host, folder, "subsystem_vendor", "subsystem_device"),
        pci_class="" if isinstance(pci_class, Missing) else pci_class[:4],
        name=names if isinstance(names, Missing) else text(names.get(pci_id), "name in pci.ids"),
        driver=_driver(host, folder),
        numa_node=integer(host.read(f"{folder}/numa_node"), "NUMA node"),
        link=read_link(host, folder),
        slot=_slot(host, folder),
    )


def _pair(host: Host, folder: str, *names: str) -> str | Missing:
    parts = []
    for name in names:
        part = _hex(host.read(f"{folder}/{name}"))
        if isinstance(part, Missing):
            return part
        parts.append(part)
    return ":".join(parts)


def _hex(content: str | Missing) -> str | Missing:
    """Return ``10de`` for ``0x10de``."""
    if isinstance(content, Missing):
        return content
    match = _HEX.fullmatch(content)
    return match[1].lower() if match else Missing(f"not a PCI id: {content[:40]!r}")


def _driver(host: Host, folder: str) -> str | None | Missing:
    names = host.names(folder)
    if isinstance(names, Missing):
        return names
    if "driver" not in names:
        return None
    target = host.resolve(f"{folder}/driver")
    return target if isinstance(target, Missing) else os.path.basename(target)


def read_link(host: Host, folder: str) -> PcieLink:
    """Return the link of one PCI device, from its folder in sysfs."""
    return PcieLink(
        generation=link_generation(host.read(f"{folder}/current_link_speed")),
        width=_width(host.read(f"{folder}/current_link_width")),
        max_generation=link_generation(host.read(f"{folder}/max_link_speed")),
        max_width=_width(host.read(f"{folder}/max_link_width")),
    )


def _slot(host: Host, folder: str) -> PcieLink:
    """Return the link of the port above the device, which is the folder above it in sysfs."""
    place = host.resolve(folder)
    above = place if isinstance(place, Missing) else os.path.dirname(place)
    if isinstance(above, Missing) or not _ADDRESS.fullmatch(os.path.basename(above)):
        return unknown_link("no port above the device is visible")
    return read_link(host, above)


def _width(width: str | Missing) -> int | Missing:
    """Return a link's width; the kernel writes 0 or 255 where a device has no link of its own."""
    width_read = integer(width, "link width")
    if isinstance(width_read, Missing) or 1 <= width_read <= 32:
        return width_read
    return Missing(f"not a link width: {width_read}")


def _names(host: Host, wanted: Iterable[str]) -> Mapping[str, str] | Missing:
    """Return id → name of the wanted ids; the file is not opened where there are none."""
    ids = set(wanted)
    if not ids:
        return {}
    for path in _NAME_FILES:
        content = host.read(path)
        if not isinstance(content, Missing):
            return names_in_pci_ids(content, ids)
    return Missing("this system has no pci.ids")


def names_in_pci_ids(content: str, wanted: set[str]) -> Mapping[str, str]:
    """Return the names in a pci.ids: a line a vendor, below it, after one tab, a line a device."""
    names, vendor = {}, ""
    vendors = {pci_id.partition(":")[0] for pci_id in wanted}
    for line in content.splitlines():
        if line[:1] not in ("\t", "#", ""):
            vendor = line[:4] if line[4:6] == "  " else ""
        elif vendor in vendors and line[:1] == "\t" and line[1:2] not in ("\t", ""):
            pci_id = f"{vendor}:{line[1:5]}"
            if pci_id in wanted:
                names[pci_id] = line[5:].strip()
    return names
