"""On which file system a folder lies (/proc/self/mountinfo), and on which disks that lies.

Source: the kernel's Documentation/filesystems/proc.rst, 3.5.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass

from trainrig.machine.host import Host, ThisMachine
from trainrig.machine.snapshot import Disk, Missing, value_or


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a folder lies."""

    mount: str
    filesystem: str


def place_of(folder: str, host: Host | None = None) -> Place | Missing:
    """The file system of an existing folder: the innermost mount above it."""
    seen = host or ThisMachine()
    path = seen.resolve(folder)
    if isinstance(path, Missing):
        return path
    table = seen.read("/proc/self/mountinfo")
    return table if isinstance(table, Missing) else _innermost(table, path)


def _innermost(table: str, path: str) -> Place | Missing:
    # Of mounts on one point the last one hides the others.
    places = [place for line in table.splitlines() if (place := _parse(line)) is not None]
    above = [p for p in places if os.path.commonpath([p.mount, path]) == p.mount]
    if not above:
        return Missing("no mount holds it")
    return max(enumerate(above), key=lambda pair: (len(pair[1].mount), pair[0]))[1]


def _parse(line: str) -> Place | None:
    """``36 35 98:0 /root /mnt rw - ext4 /dev/sda1 rw``: optional fields end with a dash."""
    left, dash, right = line.partition(" - ")
    words, kind = left.split(" "), right.split(" ")
    if not dash or len(words) < 6 or not words[4].startswith("/") or not kind[0]:
        return None
    return Place(mount=_unescape(words[4]), filesystem=kind[0])


def _unescape(text: str) -> str:
    """Spaces, tabs, line ends and backslashes are written as three octal digits."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text)


def name_of(place: Place, disks: Iterable[Disk]) -> str:
    """``Samsung SSD 990 PRO 2TB, ext4``; ``2 × ...`` for a set; the file system alone elsewhere."""
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
