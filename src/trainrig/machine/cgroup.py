"""Read the limits of this process's control group: processors and memory.

In a container the machine is often larger than what one may use of it.  Both
versions of control groups are read; a limit set on any parent counts, so the
smallest on the way to the root is taken.  Inside a container the path that
/proc names may not exist in the container's own view; its root then stands for
it.  Source: the kernel's Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/.
"""

from __future__ import annotations

from trainrig.machine.parse import first, integer, scaled
from trainrig.machine.snapshot import Missing
from trainrig.machine.system_access import Host

_ROOT = "/sys/fs/cgroup"
# cgroup v1 writes "no limit" as the largest multiple of a page below 2^63.
_V1_NO_LIMIT = 2**60


def cpu_quota(host: Host) -> float | None | Missing:
    """Return the CPU time that this process may use, in processors; None: no limit."""
    folders = _folders(host, "cpu")
    if isinstance(folders, Missing):
        return folders
    quotas = []
    for folder in folders[0]:  # ``200000 100000`` is two processors, ``max 100000`` no limit
        line = host.read(f"{folder}/cpu.max")
        words = [] if isinstance(line, Missing) else line.split()
        quotas.append(_ratio(*words) if len(words) == 2 else None)
    for folder in folders[1]:
        quota, period = (host.read(f"{folder}/cpu.cfs_{name}_us") for name in ("quota", "period"))
        quotas.append(_ratio(quota, period))
    return min((quota for quota in quotas if quota is not None), default=None)


def memory_limit(host: Host) -> int | None | Missing:
    """Return the memory in bytes that this process may use; None: no limit."""
    folders = _folders(host, "memory")
    if isinstance(folders, Missing):
        return folders
    paths = [f"{folder}/memory.max" for folder in folders[0]]
    paths += [f"{folder}/memory.limit_in_bytes" for folder in folders[1]]
    limits = [integer(host.read(path), "limit") for path in paths]
    known = [limit for limit in limits if not isinstance(limit, Missing) and limit < _V1_NO_LIMIT]
    return min(known, default=None)


def memory_left(host: Host) -> int | None | Missing:
    """Return the memory in bytes that this process's groups may still take; None: no limit.

    Pages of files that nobody has used lately are given back when they are asked for.
    """
    folders = _folders(host, "memory")
    if isinstance(folders, Missing):
        return folders
    names = ("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")
    free = []
    for names_of_folder, (most, now) in zip(folders, names, strict=True):
        for folder in names_of_folder:
            limit = integer(host.read(f"{folder}/{most}"), "limit")
            used = integer(host.read(f"{folder}/{now}"), "used memory")
            if isinstance(limit, Missing) or isinstance(used, Missing) or limit >= _V1_NO_LIMIT:
                continue
            content = host.read(f"{folder}/memory.stat")
            lines = [] if isinstance(content, Missing) else content.splitlines()
            pairs = (line.split() for line in lines)
            counters = dict(pair for pair in pairs if len(pair) == 2)
            cached = integer(counters.get("inactive_file", "0"), "cached files")
            free.append(max(0, limit - used + (0 if isinstance(cached, Missing) else cached)))
    return min(free, default=None)


def throttled_s(host: Host) -> float | Missing:
    """Return the seconds in which its own group's quota held this process back."""
    folders = _folders(host, "cpu")
    if isinstance(folders, Missing):
        return folders
    seconds: list[float | Missing] = []
    for version, name, unit in ((0, "throttled_usec", 1e-6), (1, "throttled_time", 1e-9)):
        for folder in folders[version]:
            content = host.read(f"{folder}/cpu.stat")
            if isinstance(content, Missing):
                seconds.append(content)
                continue
            pairs = (line.split() for line in content.splitlines())
            counters = dict(pair for pair in pairs if len(pair) == 2)
            seconds.append(scaled(counters.get(name), unit, name))
    return first(seconds, "count of throttled time")


def _ratio(quota: str | Missing, period: str | Missing) -> float | None:
    above, below = integer(quota, "quota"), integer(period, "period")
    if isinstance(above, Missing) or isinstance(below, Missing) or above == 0 or below == 0:
        return None
    return above / below


def _folders(host: Host, controller: str) -> tuple[list[str], list[str]] | Missing:
    """Return the folders of this process's group and of its parents, of version 2 and of version 1.

    The lines are ``0::/user.slice`` and ``4:cpu,cpuacct:/user.slice``.  A controller of version 1
    is mounted alone, or with those it is grouped with.
    """
    membership = host.read("/proc/self/cgroup")
    if isinstance(membership, Missing):
        return membership
    folders: dict[str, list[str]] = {"": [], controller: []}
    for line in membership.splitlines():
        _, controllers, path = (line.split(":", 2) + ["", "-"])[:3]
        for wanted in {"", controller}.intersection(controllers.split(",")):
            if folders[wanted] or path == "-":
                continue
            names = dict.fromkeys([controller, controllers]) if wanted else [""]
            parts = [part for part in path.split("/") if part and part != ".."]
            folders[wanted] = [
                "/".join([f"{_ROOT}/{name}".rstrip("/"), *parts[:length]])
                for name in names
                for length in range(len(parts), -1, -1)
            ]
    return folders[""], folders[controller]
