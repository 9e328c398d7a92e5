"""What the control group of this process allows: processors and memory.

In a container the machine is often larger than what one may use of it.  Both
versions of control groups are read; a limit set on any parent counts, so the
smallest on the way to the root is taken.  Inside a container the path that
/proc names may not exist in the container's own view; its root then stands for
it.  Source: the kernel's Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/.
"""

from __future__ import annotations

from collections.abc import Iterator

from trainrig.machine.parse import first, integer, scaled
from trainrig.machine.snapshot import Missing
from trainrig.machine.system_access import Host

_ROOT = "/sys/fs/cgroup"
# cgroup v1 writes "no limit" as the largest multiple of a page below 2^63.
_V1_NO_LIMIT = 2**60


def cpu_quota(host: Host) -> float | None | Missing:
    """Processors' worth of CPU time this process may use; None: no limit."""
    membership = host.read("/proc/self/cgroup")
    if isinstance(membership, Missing):
        return membership
    found = [_v2_quota(host, folder) for folder in _folders(membership, "", _ROOT)]
    for mount in _v1_mounts(membership, "cpu"):
        found += [_v1_quota(host, folder) for folder in _folders(membership, "cpu", mount)]
    return min((quota for quota in found if quota is not None), default=None)


def memory_limit(host: Host) -> int | None | Missing:
    """Bytes of memory this process may use; None: no limit."""
    membership = host.read("/proc/self/cgroup")
    if isinstance(membership, Missing):
        return membership
    paths = [f"{folder}/memory.max" for folder in _folders(membership, "", _ROOT)]
    for mount in _v1_mounts(membership, "memory"):
        folders = _folders(membership, "memory", mount)
        paths += [f"{folder}/memory.limit_in_bytes" for folder in folders]
    limits = [integer(host.read(path), "limit") for path in paths]
    known = [limit for limit in limits if not isinstance(limit, Missing) and limit < _V1_NO_LIMIT]
    return min(known, default=None)


def throttled_s(host: Host) -> float | Missing:
    """Seconds in which the quota held this process back; its own group's counter only."""
    membership = host.read("/proc/self/cgroup")
    if isinstance(membership, Missing):
        return membership
    files = [(folder, "throttled_usec", 1e-6) for folder in _folders(membership, "", _ROOT)]
    for mount in _v1_mounts(membership, "cpu"):
        folders = _folders(membership, "cpu", mount)
        files += [(folder, "throttled_time", 1e-9) for folder in folders]
    found = [_counter(host.read(f"{folder}/cpu.stat"), name, unit) for folder, name, unit in files]
    return first(found, "count of throttled time")


def _counter(content: str | Missing, name: str, unit_s: float) -> float | Missing:
    if isinstance(content, Missing):
        return content
    fields = dict(line.split()[:2] for line in content.splitlines() if len(line.split()) == 2)
    return scaled(fields.get(name), unit_s, name)


def _v2_quota(host: Host, folder: str) -> float | None:
    """From ``cpu.max``: ``200000 100000`` is two processors, ``max 100000`` no limit."""
    line = host.read(f"{folder}/cpu.max")
    words = [] if isinstance(line, Missing) else line.split()
    return _ratio(*words) if len(words) == 2 else None


def _v1_quota(host: Host, folder: str) -> float | None:
    quota = host.read(f"{folder}/cpu.cfs_quota_us")
    period = host.read(f"{folder}/cpu.cfs_period_us")
    return _ratio(quota, period)


def _ratio(quota: str | Missing, period: str | Missing) -> float | None:
    above, below = integer(quota, "quota"), integer(period, "period")
    if isinstance(above, Missing) or isinstance(below, Missing) or above == 0 or below == 0:
        return None
    return above / below


def _folders(membership: str, controller: str, mount: str) -> Iterator[str]:
    """The folders of this process's group and of its parents, up to the root."""
    path = _group_path(membership, controller)
    if path is None:
        return
    parts = [part for part in path.split("/") if part and part != ".."]
    for length in range(len(parts), -1, -1):
        yield "/".join([mount, *parts[:length]])


def _group_path(membership: str, controller: str) -> str | None:
    """The path in ``4:cpu,cpuacct:/user.slice`` or, for the v2 hierarchy, ``0::/user.slice``."""
    for line in membership.splitlines():
        fields = line.split(":", 2)
        if len(fields) == 3 and controller in fields[1].split(","):
            return fields[2]
    return None


def _v1_mounts(membership: str, controller: str) -> list[str]:
    """Where a v1 controller is mounted: alone, or with those it is grouped with."""
    for line in membership.splitlines():
        fields = line.split(":", 2)
        if len(fields) == 3 and controller in fields[1].split(","):
            return [f"{_ROOT}/{name}" for name in dict.fromkeys([controller, fields[1]])]
    return []
