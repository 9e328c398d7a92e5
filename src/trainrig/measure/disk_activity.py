"""A folder as a device: how it is named, and whether its disk was quiet while a case ran.

A worker for a disk is started for ``disk:FOLDER`` and never loads torch.  Around
a case it reads what the kernel counts of the block device under the folder
(/proc/diskstats, sectors of 512 bytes whatever the disk's own are) and of this
process and its children (/proc/self/io): the rest was moved by others.

Writes of others are judged only where the case itself writes nothing: the file
system's journal is written by the kernel in nobody's name.  Where a folder has no
block device of its own (a network, tmpfs, btrfs, overlay) others cannot be seen.

Source: the kernel's Documentation/admin-guide/iostats.rst and filesystems/proc.rst.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from trainrig.machine.counters import HostConditions, HostLoad, between
from trainrig.machine.parse import fields_of, integer
from trainrig.machine.snapshot import Missing, if_known
from trainrig.machine.system_access import Host, ThisMachine
from trainrig.measure.noise import (
    MAX_QUOTA,
    MAX_STEAL,
    OTHERS,
    QUOTA,
    STEAL,
    TICK_S,
    Watched,
    describe_load,
    first_broken,
    known,
    own_cpu_time,
)
from trainrig.record import Scalar

PREFIX = "disk:"
MAX_OTHER_IO = 0.05
"""Bytes that others moved, as a share of all."""
MAX_OTHER_CPU = 0.25
"""A disk needs little of a processor, but at once: an fsync of 0.1 ms took 4 ms, a scheduler's
tick, on two processors that others kept busy."""

_SECTOR = 512
# The system's own log lines and time stamps.
_TRIFLE = 1 << 20


def is_disk(device: str) -> bool:
    """Return whether a worker's device is a folder on a disk."""
    return device.startswith(PREFIX)


def folder_of(device: str) -> str:
    """Return the folder of ``disk:FOLDER``."""
    return device.removeprefix(PREFIX)


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """Bytes read from and written to a disk so far."""

    read: int
    written: int

    def since(self, before: Moved) -> Moved:
        """Return the bytes moved since ``before``."""
        return Moved(read=self.read - before.read, written=self.written - before.written)


@contextmanager
def watch(device: str, host: Host | None = None) -> Iterator[Watched]:
    """Read the counters of the disk under ``disk:FOLDER`` before and after the body."""
    machine = host or ThisMachine()
    watched, load, number = Watched(), HostLoad(machine), _device_number(folder_of(device))
    before, start = load.read(own_cpu_time()), time.perf_counter()
    disk_bytes, own_bytes = moved_on(machine, number), moved_by_us(machine)
    yield watched
    wall = time.perf_counter() - start
    conditions = between(before, load.read(own_cpu_time()))
    own_bytes = if_known(Moved.since, moved_by_us(machine), own_bytes)
    all_bytes = if_known(Moved.since, moved_on(machine, number), disk_bytes)
    cache = write_cache(machine, number)
    watched.conditions = describe(conditions, own_bytes, all_bytes, wall) | known(
        {"write_cache": cache}
    )
    watched.disturbed = judge(conditions, own_bytes, all_bytes)


def _device_number(folder: str) -> tuple[int, int]:
    try:
        device = os.stat(folder).st_dev
    except OSError:
        return 0, 0
    return os.major(device), os.minor(device)


def moved_on(host: Host, number: tuple[int, int]) -> Moved | Missing:
    """Return the bytes moved on the block device with that major and minor number."""
    table = host.read("/proc/diskstats")
    if isinstance(table, Missing):
        return table
    for line in table.splitlines():
        words = line.split()
        if words[:2] == [str(part) for part in number] and len(words) >= 10:
            sectors = (integer(words[column], "sectors") for column in (5, 9))
            return if_known(
                lambda read, written: Moved(read=read * _SECTOR, written=written * _SECTOR),
                *sectors,
            )
    return Missing("the folder lies on no block device of its own")


def write_cache(host: Host, number: tuple[int, int]) -> str | Missing:
    """Return ``write back`` if the disk caches writes, else ``write through``."""
    folder = "/sys/dev/block/{}:{}".format(*number)
    mode = host.read(f"{folder}/queue/write_cache")
    if isinstance(mode, Missing):  # a partition: its disk has the queue
        return host.read(f"{folder}/../queue/write_cache")
    return mode


def moved_by_us(host: Host) -> Moved | Missing:
    """Return the bytes this process and its ended children moved to and from any disk."""
    content = host.read("/proc/self/io")
    if isinstance(content, Missing):
        return content
    fields = fields_of(content)
    counts = (integer(fields.get(f"{way}_bytes"), "bytes") for way in ("read", "write"))
    return if_known(lambda read, written: Moved(read=read, written=written), *counts)


def _others(own_moved: Moved | Missing, everything: Moved | Missing) -> Moved | Missing:
    def left(own_bytes: Moved, total: Moved) -> Moved:
        return Moved(
            read=max(total.read - own_bytes.read, 0),
            written=max(total.written - own_bytes.written, 0),
        )

    return if_known(left, own_moved, everything)


def describe(
    host: HostConditions, own_moved: Moved | Missing, everything: Moved | Missing, wall: float
) -> dict[str, Scalar]:
    """Flat, base SI units, without what could not be read."""
    others = _others(own_moved, everything)
    rates = {
        "other_read_rate": if_known(lambda moved: moved.read / wall, others),
        "other_write_rate": if_known(lambda moved: moved.written / wall, others),
    }
    return describe_load(host) | known(rates)


def judge(
    host: HostConditions, own_moved: Moved | Missing, everything: Moved | Missing
) -> str | None:
    """Return why a measurement of the disk must not be judged, or None."""
    return first_broken(
        (
            (host.throttled_fraction, MAX_QUOTA, QUOTA),
            (host.steal_fraction, MAX_STEAL + TICK_S / host.wall_s, STEAL),
            (host.busy_other_fraction, MAX_OTHER_CPU, OTHERS),
            (
                _other_share(own_moved, everything),
                MAX_OTHER_IO,
                "others moved {} of the disk's bytes",
            ),
        )
    )


def _other_share(own_moved: Moved | Missing, everything: Moved | Missing) -> float | Missing:
    """Return other processes' share of the bytes moved; only reads where this one writes."""
    others = _others(own_moved, everything)
    if isinstance(own_moved, Missing) or isinstance(others, Missing):
        return Missing("the kernel does not count them")
    only_reads = own_moved.written <= _TRIFLE
    from_others = others.read + (others.written if only_reads else 0)
    if from_others <= _TRIFLE:
        return 0.0
    return from_others / (from_others + own_moved.read + own_moved.written)
