"""Main memory: how much, how fast, on how many channels.

Sizes come from /proc/meminfo, modules from `dmidecode -t 17`, which only root may
read.  dmidecode's text is parsed here: it is one rule (a block a handle, a field
a line), and a general parser may raise on what broken firmware prints.

Channels are counted from the modules' locators where these name channels
(``P0_Node0_Channel1_Dimm0``, ``DIMM_A1``).  Boards that only number their
slots leave the number of channels unknown.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from trainrig.machine.cgroup import memory_limit
from trainrig.machine.parse import blocks_of, fields_of, first, number, size_bytes, text
from trainrig.machine.snapshot import Dimm, MemoryInfo, Missing, NumaNode
from trainrig.machine.system_access import Host

_CHANNEL_NAMED = re.compile(r".*?channel[\s_-]*[a-z0-9]", re.IGNORECASE)
# The letter before the slot's number is the channel; the last M of DIMM is not one.
_CHANNEL_LETTER = re.compile(r"(?=.*dimm)(.*(?<!dim)[a-p])\d{1,2}", re.IGNORECASE)
NODES = "/sys/devices/system/node"


def has_several_nodes(host: Host) -> bool:
    """Return whether the host has more than one NUMA node."""
    names = host.names(NODES)
    return not isinstance(names, Missing) and "node1" in names


def memory_info(host: Host) -> MemoryInfo:
    """Return the memory of this machine."""
    sizes = meminfo_sizes(host.read("/proc/meminfo"))
    dimms = parse_dimms(host.run("dmidecode", "-t", "17"))
    return MemoryInfo(
        total_bytes=_size(sizes, "MemTotal"),
        available_bytes=_size(sizes, "MemAvailable"),
        swap_total_bytes=_size(sizes, "SwapTotal"),
        swap_free_bytes=_size(sizes, "SwapFree"),
        limit_bytes=memory_limit(host),
        shm_bytes=host.capacity_bytes("/dev/shm"),
        dimms=dimms,
        speed_mt_per_s=slowest_speed(dimms),
        channels=count_channels(dimms),
        nodes=_nodes(host),
    )


def meminfo_sizes(content: str | Missing) -> Mapping[str, int] | Missing:
    """Name → bytes in /proc/meminfo, or in a node's copy of it (``Node 0 MemTotal: …``)."""
    if isinstance(content, Missing):
        return content
    sizes = {}
    for line in content.splitlines():
        name, _, value = line.partition(":")
        size = size_bytes(value, "size")
        if name.split() and not isinstance(size, Missing):
            sizes[name.split()[-1]] = size
    return sizes


def _size(sizes: Mapping[str, int] | Missing, name: str) -> int | Missing:
    if isinstance(sizes, Missing):
        return sizes
    return sizes[name] if name in sizes else Missing(f"/proc/meminfo has no {name}")


def parse_dimms(output: str | Missing) -> tuple[Dimm, ...] | Missing:
    """Return the populated slots in the text of `dmidecode -t 17`."""
    if isinstance(output, Missing):
        return output
    dimms = [_dimm(fields_of(block)) for block in blocks_of(output) if "Memory Device" in block]
    populated = tuple(dimm for dimm in dimms if not isinstance(dimm.size_bytes, Missing))
    return populated if populated else Missing("the firmware describes no memory module")


def _dimm(fields: Mapping[str, str]) -> Dimm:
    size = size_bytes(fields.get("Size"), "size")
    rated = number(fields.get("Speed"), "speed", most=1e5)
    names = ("Configured Memory Speed", "Configured Clock Speed")
    runs = [number(fields.get(name), "configured speed", most=1e5) for name in names]
    return Dimm(
        locator=text(fields.get("Locator"), "locator"),
        bank=text(fields.get("Bank Locator"), "bank locator"),
        size_bytes=Missing("an empty slot") if size == 0 else size,
        type=text(fields.get("Type"), "type"),
        rated_mt_per_s=_above_zero(rated),
        speed_mt_per_s=_above_zero(first(runs, "configured speed")),
        part_number=text(fields.get("Part Number"), "part number"),
    )


def _above_zero(value: float | Missing) -> float | Missing:
    return value if isinstance(value, Missing) or value > 0 else Missing("no speed: 0")


def slowest_speed(dimms: tuple[Dimm, ...] | Missing) -> float | Missing:
    """Return the speed of the slowest module; the firmware should run all at one speed."""
    if isinstance(dimms, Missing):
        return dimms
    speeds = [first([dimm.speed_mt_per_s, dimm.rated_mt_per_s], "speed") for dimm in dimms]
    known = [speed for speed in speeds if not isinstance(speed, Missing)]
    return min(known) if known else Missing("the firmware does not tell the modules' speed")


def count_channels(dimms: tuple[Dimm, ...] | Missing) -> int | Missing:
    """Return the number of channels with a module, or why the locators do not tell."""
    if isinstance(dimms, Missing):
        return dimms
    channels = set()
    for dimm in dimms:
        channel = _channel(dimm)
        if channel is None:
            name = repr(dimm.locator) if isinstance(dimm.locator, str) else "is unknown and"
            return Missing(f"the locator {name} names no channel")
        channels.add(channel)
    return len(channels)


def _channel(dimm: Dimm) -> str | None:
    for place in (dimm.bank, dimm.locator):
        if isinstance(place, str) and (match := _CHANNEL_NAMED.match(place)):
            return match[0].lower()
    if isinstance(dimm.locator, str) and (match := _CHANNEL_LETTER.fullmatch(dimm.locator)):
        return match[1].lower()
    return None


def _nodes(host: Host) -> tuple[NumaNode, ...] | Missing:
    names = host.names(NODES)
    if isinstance(names, Missing):
        return names
    indices = sorted(int(name[4:]) for name in names if re.fullmatch(r"node\d{1,5}", name))
    nodes = []
    for index in indices:
        sizes = meminfo_sizes(host.read(f"{NODES}/node{index}/meminfo"))
        cpus = text(host.read(f"{NODES}/node{index}/cpulist"), "processors of its own")
        nodes.append(NumaNode(index=index, total_bytes=_size(sizes, "MemTotal"), cpus=cpus))
    return tuple(nodes)
