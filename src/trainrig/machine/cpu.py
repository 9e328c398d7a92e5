"""The processors: model, cores, caches, clocks, and how much of them one may use.

`lscpu -J` is read first (it knows sockets and caches on every architecture);
where util-linux is absent, /proc/cpuinfo gives model, flags and counts.

Clocks.  Maximum: what cpufreq allows, which a virtual machine does not tell.
Base: cpufreq's base frequency, else the figure in the model's name, else the
rate of the time-stamp counter, which on x86 runs at the base clock; Linux prints
twice that rate as bogomips.  Current: the median over the logical processors.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator, Mapping

from trainrig.machine.cgroup import cpu_quota
from trainrig.machine.parse import (
    blocks_of,
    fields_of,
    first,
    integer,
    json_object,
    number,
    objects,
    scaled,
    size_bytes,
    text,
)
from trainrig.machine.snapshot import Cache, Cpu, Missing
from trainrig.machine.system_access import Host

_CPUFREQ = "/sys/devices/system/cpu/cpu0/cpufreq"
_CACHE_TEXT = re.compile(r"(?P<size>[^()]+?)\s*(?:\((?P<count>\d{1,6}) instances?\))?")
_NAME_CLOCK = re.compile(r"@\s*(\d{1,2}\.\d{1,3})\s*GHz")

Fields = Mapping[str, str]


def cpu_info(host: Host) -> Cpu:
    """Return the processors of this machine."""
    fields = lscpu_fields(host.run("lscpu", "-J"))
    cores = cpuinfo_cores(host.read("/proc/cpuinfo"))
    known = fields if not isinstance(fields, Missing) else _fields_of_cpuinfo(cores, fields)
    caches = lscpu_caches(host.run("lscpu", "-J", "-B", "-C"))
    if isinstance(caches, Missing) and not isinstance(known, Missing):
        read = [_cache_of_field(level, known.get(f"{level} cache")) for level in _LEVELS]
        caches = tuple(cache for cache in read if cache is not None) or caches
    max_clocks = [
        scaled(_field(known, "CPU max MHz"), 1e6, "maximum clock"),
        scaled(host.read(f"{_CPUFREQ}/cpuinfo_max_freq"), 1e3, "maximum clock"),
    ]
    return Cpu(
        model=_field(known, "Model name", "BIOS Model name"),
        vendor=_field(known, "Vendor ID", "BIOS Vendor ID"),
        family=_field(known, "CPU family"),
        model_number=_field(known, "Model"),
        stepping=_field(known, "Stepping"),
        sockets=_count(known, "Socket(s)"),
        cores=physical_cores(known),
        threads=_count(known, "CPU(s)"),
        numa_nodes=_count(known, "NUMA node(s)"),
        flags=_flags(known),
        caches=caches,
        base_clock_hz=_base_clock(host, known),
        max_clock_hz=first(max_clocks, "maximum clock"),
        clock_hz=_clock(host, cores),
        usable_threads=host.usable_threads(),
        quota_cpus=cpu_quota(host),
    )


def lscpu_fields(output: str | Missing) -> Fields | Missing:
    """Return field → value of lscpu's JSON, flat or nested, or of its text.

    A repeated field keeps its first value; a machine with two kinds of cores repeats the model
    name: the names are joined.
    """
    if isinstance(output, str) and output.lstrip().startswith("Architecture:"):
        return fields_of(output)
    value = json_object(output, "lscpu")
    if isinstance(value, Missing):
        return value
    fields: dict[str, str] = {}
    for name, data in _walk(value.get("lscpu"), depth=0):
        if name == "Model name" and name in fields and data not in fields[name]:
            fields[name] += f" + {data}"
        fields.setdefault(name, data)
    return fields if fields else Missing("lscpu printed no fields")


def _walk(entries: object, depth: int) -> Iterator[tuple[str, str]]:
    for entry in objects(entries):
        name, data = entry.get("field"), entry.get("data")
        if isinstance(name, str) and isinstance(data, str):
            yield name.strip().rstrip(":"), data.strip()
        if depth < 8:
            yield from _walk(entry.get("children"), depth + 1)


def cpuinfo_cores(content: str | Missing) -> tuple[Fields, ...] | Missing:
    """Return the blocks of /proc/cpuinfo, one a logical processor."""
    if isinstance(content, Missing):
        return content
    blocks = map(fields_of, blocks_of(content))
    cores = tuple(fields for fields in blocks if "processor" in fields)
    return cores or Missing("/proc/cpuinfo names no processor")


def _fields_of_cpuinfo(cores: tuple[Fields, ...] | Missing, why: Missing) -> Fields | Missing:
    """Return /proc/cpuinfo's fields under lscpu's names, or `why` lscpu did not answer."""
    if isinstance(cores, Missing):
        return Missing(f"{why.reason}; {cores.reason}")
    names = {"model name": "Model name", "vendor_id": "Vendor ID", "cpu family": "CPU family"}
    names |= {"model": "Model", "stepping": "Stepping", "flags": "Flags", "bogomips": "BogoMIPS"}
    names |= {"Features": "Flags", "cpu cores": "Core(s) per socket"}
    fields = {name: cores[0][old] for old, name in names.items() if old in cores[0]}
    fields["CPU(s)"] = str(len(cores))
    sockets = {core["physical id"] for core in cores if "physical id" in core}
    return {**fields, "Socket(s)": str(len(sockets))} if sockets else fields


def physical_cores(fields: Fields | Missing) -> int | Missing:
    """Return sockets × cores a socket; on ARM clusters × cores a cluster; else by threads."""
    groups = first([_count(fields, "Socket(s)"), _count(fields, "Cluster(s)")], "sockets")
    names = ("Core(s) per socket", "Core(s) per cluster")
    cores_per_group = first([_count(fields, name) for name in names], "cores")
    if not isinstance(groups, Missing) and not isinstance(cores_per_group, Missing):
        return groups * cores_per_group
    threads, per_core = _count(fields, "CPU(s)"), _count(fields, "Thread(s) per core")
    if not isinstance(threads, Missing) and not isinstance(per_core, Missing) and per_core:
        return threads // per_core
    return first([groups, cores_per_group], "cores")


def _field(fields: Fields | Missing, *names: str) -> str | Missing:
    if isinstance(fields, Missing):
        return fields
    return first([text(fields.get(name), name) for name in names], names[0])


def _count(fields: Fields | Missing, name: str) -> int | Missing:
    count = integer(_field(fields, name), name)
    return count if isinstance(count, Missing) or count > 0 else Missing(f"no {name}: 0")


def _flags(fields: Fields | Missing) -> tuple[str, ...] | Missing:
    if isinstance(fields, Missing):
        return fields
    return tuple(fields["Flags"].split()) if fields.get("Flags") else Missing("no flags reported")


_LEVELS = ("L1d", "L1i", "L2", "L3")


def lscpu_caches(output: str | Missing) -> tuple[Cache, ...] | Missing:
    """Return the caches in `lscpu -J -B -C`."""
    value = json_object(output, "lscpu")
    if isinstance(value, Missing):
        return value
    caches = []
    for entry in objects(value.get("caches")):
        name = text(entry.get("name"), "name")
        size_of_one = integer(entry.get("one-size"), "size")
        total = integer(entry.get("all-size"), "size")
        if isinstance(name, str) and isinstance(size_of_one, int) and isinstance(total, int):
            caches.append(Cache(name=name, total_bytes=total, instance_bytes=size_of_one))
    return tuple(caches) if caches else Missing("lscpu listed no caches")


def _cache_of_field(name: str, value: str | None) -> Cache | None:
    """Return the cache of ``64 KiB (2 instances)``; without the count its meaning is unclear."""
    match = _CACHE_TEXT.fullmatch(value) if value else None
    total = size_bytes(match["size"], name) if match else Missing(name)
    if match is None or isinstance(total, Missing) or not match["count"] or int(match["count"]) < 1:
        return None
    return Cache(name=name, total_bytes=total, instance_bytes=total // int(match["count"]))


def _base_clock(host: Host, fields: Fields | Missing) -> float | Missing:
    stated = scaled(host.read(f"{_CPUFREQ}/base_frequency"), 1e3, "base clock")
    model = _field(fields, "Model name")
    match = None if isinstance(model, Missing) else _NAME_CLOCK.search(model)
    named = float(match[1]) * 1e9 if match else Missing("the model's name has no clock")
    return first([stated, named, _counter_rate(fields)], "base clock")


def _counter_rate(fields: Fields | Missing) -> float | Missing:
    """Return the rate of x86's time-stamp counter, where the flags say that it is constant."""
    flags = _flags(fields)
    if isinstance(flags, Missing) or "constant_tsc" not in flags:
        return Missing("no constant time-stamp counter")
    return scaled(_field(fields, "BogoMIPS"), 1e6 / 2, "bogomips")


def _clock(host: Host, cores: tuple[Fields, ...] | Missing) -> float | Missing:
    if isinstance(cores, Missing):
        return cores
    listed = [number(core.get("cpu MHz"), "clock") for core in cores]
    known = [clock * 1e6 for clock in listed if not isinstance(clock, Missing)]
    if known:
        return statistics.median(known)
    return scaled(host.read(f"{_CPUFREQ}/scaling_cur_freq"), 1e3, "current clock")
