"""The disks: name, model, size, kind, and where they are mounted (`lsblk -J -b -O`).

Devices without data of their own (loop, RAM, empty card readers, optical drives)
are left out.  What lies on a disk, partitions, RAID sets or volumes, is listed by
its mounts.  A virtual disk reports a rotation rate that means nothing: unknown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from trainrig.machine.host import Host
from trainrig.machine.snapshot import Disk, Missing, Mount
from trainrig.machine.values import first, integer, json_object, objects, text, yes_or_no

_NOT_DISKS = ("loop", "ram", "zram", "sr", "fd", "nbd")
_VIRTUAL = ("vd", "xvd")

Device = Mapping[str, object]


def disks(host: Host) -> tuple[Disk, ...] | Missing:
    """The disks of this machine."""
    return parse_lsblk(host.run("lsblk", "-J", "-b", "-O"))


def parse_lsblk(output: str | Missing) -> tuple[Disk, ...] | Missing:
    """The disks in what `lsblk -J -b` prints, whichever columns it has."""
    value = json_object(output, "lsblk")
    if isinstance(value, Missing):
        return value
    if not isinstance(value.get("blockdevices"), list):
        return Missing("lsblk listed no block devices")
    found = (_disk(device) for device in objects(value["blockdevices"]))
    return tuple(disk for disk in found if disk is not None)


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
        mounts=_unique(_mounts(device, depth=0)),
    )


def _mounts(device: Device, depth: int) -> Iterator[Mount]:
    points = device.get("mountpoints")
    listed = points if isinstance(points, list) else [device.get("mountpoint")]
    for point in listed:
        if isinstance(point, str) and point:
            yield _mount(device, point)
    if depth < 16:
        for child in objects(device.get("children")):
            yield from _mounts(child, depth + 1)


def _mount(device: Device, point: str) -> Mount:
    return Mount(
        path=point,
        filesystem=text(device.get("fstype"), "file system"),
        size_bytes=integer(device.get("fssize"), "file system size"),
        available_bytes=integer(device.get("fsavail"), "free space"),
    )


def _unique(mounts: Iterator[Mount]) -> tuple[Mount, ...]:
    return tuple({mount.path: mount for mount in mounts}.values())
