"""The disks: name, model, size, kind, and where they are mounted (`lsblk -J -b -O`).

Devices without data of their own (loop, RAM, empty card readers, optical drives)
are left out.  What lies on a disk, partitions, RAID sets or volumes, is listed by
its mounts.  A virtual disk reports a rotation rate that means nothing: unknown.

On which file system a folder lies (/proc/self/mountinfo), and on which disks that lies.

Source: the kernel's Documentation/filesystems/proc.rst, 3.5.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from trainrig.machine.parse import first, integer, json_object, objects, text, yes_or_no
from trainrig.machine.snapshot import Disk, Missing, Mount, value_or
from trainrig.machine.system_access import Host, ThisMachine


@dataclass(frozen=True, slots=True, kw_only=True)
class MountPoint:
    """File system that a folder lies on, and where it is mounted."""

    mount: str
    filesystem: str


def place_of(folder: str, host: Host | None = None) -> MountPoint | Missing:
    """Return the file system of an existing folder: the innermost mount above it."""
    seen = host or ThisMachine()
    path = seen.resolve(folder)
    if isinstance(path, Missing):
        return path
    table = seen.read("/proc/self/mountinfo")
    if isinstance(table, Missing):
        return table
    places = [place for line in table.splitlines() if (place := _parse(line)) is not None]
    above = [p for p in places if os.path.commonpath([p.mount, path]) == p.mount]
    if not above:
        return Missing("no mount holds it")
    # Of mounts on one point the last one hides the others.
    return max(enumerate(above), key=lambda pair: (len(pair[1].mount), pair[0]))[1]


def _parse(line: str) -> MountPoint | None:
    """Read ``36 35 98:0 /root /mnt rw - ext4 /dev/sda1 rw``; optional fields end with a dash."""
    mounted, dash, system = line.partition(" - ")
    words, kind = mounted.split(" "), system.split(" ")
    if not dash or len(words) < 6 or not words[4].startswith("/") or not kind[0]:
        return None
    # Spaces, tabs, line ends and backslashes are written as three octal digits.
    mount = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), words[4])
    return MountPoint(mount=mount, filesystem=kind[0])


def name_of(place: MountPoint, disks: Iterable[Disk]) -> str:
    """Name disk and file system: ``Samsung SSD 990 PRO 2TB, ext4``; a set: ``2 × ...``."""
    under = [disk for disk in disks if place.mount in (mount.path for mount in disk.mounts)]
    if not under:
        return place.filesystem
    models = [_model(disk) for disk in under]
    first = models[0] if len(set(models)) == 1 else " + ".join(sorted(set(models)))
    number = f"{len(models)} × " if len(models) > 1 else ""
    return f"{number}{first}, {place.filesystem}"


def _model(disk: Disk) -> str:
    model = value_or(disk.model, "")
    if model:
        return model
    if disk.name.startswith(("vd", "xvd")):
        return "virtual disk"
    transport = value_or(disk.transport, "")
    return f"{transport} disk".strip() if transport else "unknown disk"


_NOT_DISKS = ("loop", "ram", "zram", "sr", "fd", "nbd")
_VIRTUAL = ("vd", "xvd")

Device = Mapping[str, object]


def disks(host: Host) -> tuple[Disk, ...] | Missing:
    """Return the disks of this machine."""
    return parse_lsblk(host.run("lsblk", "-J", "-b", "-O"))


def parse_lsblk(output: str | Missing) -> tuple[Disk, ...] | Missing:
    """Return the disks that `lsblk -J -b` prints, whichever columns it has."""
    value = json_object(output, "lsblk")
    if isinstance(value, Missing):
        return value
    if not isinstance(value.get("blockdevices"), list):
        return Missing("lsblk listed no block devices")
    disks_listed = (_disk(device) for device in objects(value["blockdevices"]))
    return tuple(disk for disk in disks_listed if disk is not None)


def _disk(device: Device) -> Disk | None:
    named = first([text(device.get("name"), "name"), text(device.get("kname"), "name")], "name")
    size = integer(device.get("size"), "size")
    if isinstance(named, Missing) or size == 0:
        return None
    name = named.removeprefix("/dev/")
    if name.startswith(_NOT_DISKS):
        return None
    if device.get("type") not in ("disk", None):
        return None
    rotational = yes_or_no(device.get("rota"), "rotation flag")
    return Disk(
        name=name,
        model=text(device.get("model"), "model"),
        size_bytes=size,
        rotational=Missing("a virtual disk") if name.startswith(_VIRTUAL) else rotational,
        transport=text(device.get("tran"), "transport"),
        mounts=tuple({mount.path: mount for mount in _mounts(device, depth=0)}.values()),
    )


def _mounts(device: Device, depth: int) -> Iterator[Mount]:
    points = device.get("mountpoints")
    listed = points if isinstance(points, list) else [device.get("mountpoint")]
    for point in listed:
        if isinstance(point, str) and point:
            yield Mount(
                path=point,
                filesystem=text(device.get("fstype"), "file system"),
                size_bytes=integer(device.get("fssize"), "file system size"),
                available_bytes=integer(device.get("fsavail"), "free space"),
            )
    if depth < 16:
        for child in objects(device.get("children")):
            yield from _mounts(child, depth + 1)
