"""The machine as a table: what `inspect` prints, and what a report repeats.

Handed a snapshot and the catalog's names for PCI ids; looks nothing up.  What
is missing is printed with its reason, in the place of the value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

from trainrig.machine.snapshot import Disk, Gpu, MemoryInfo, Missing, PcieLink, Snapshot, value_or
from trainrig.record import Finding
from trainrig.report import document as doc
from trainrig.report.link_report import topology_blocks
from trainrig.units import counted, format_memory, format_quantity, format_share, format_time

Rows = Iterator[tuple[str, str]]
Value = TypeVar("Value")

_VECTOR_FLAGS = (
    "avx2 fma avx512f avx512_bf16 avx512_fp16 avx512_vnni amx_bf16 amx_int8 "
    "asimd sve sve2 bf16 i8mm"
)
"""Instruction sets that decide how fast a CPU computes, of the hundred flags it reports."""
_MOST_MOUNTS = 4


_TONES: dict[str, doc.Tone] = {"error": "bad", "warning": "warn", "info": ""}


def machine_document(
    snapshot: Snapshot, chips: Mapping[str, str], findings: Sequence[Finding]
) -> doc.Document:
    """Return the machine, section by section, then the findings with what to do about them."""
    items = tuple(
        doc.Item(
            text=f"{f.evidence} [{f.id}]", fix=f.fix, label=f.severity, tone=_TONES[f.severity]
        )
        for f in findings
    )
    lines = [
        (title if place == 0 else "", name, value)
        for title, rows in machine_rows(snapshot, chips)
        for place, (name, value) in enumerate(rows)
    ]
    table = doc.table(
        lines,
        doc.column("", lambda line: line[0], kind="code"),
        doc.column("", lambda line: line[1], kind="code"),
        doc.words("", lambda line: doc.Cell(line[2], "dim" if "unknown" in line[2][:7] else "")),
    )
    links = topology_blocks(snapshot)
    drawn = (doc.Section("Links", tuple(links)),) if links else ()
    findings_block: doc.Block = doc.Findings(items) if items else doc.Paragraph("no findings")
    return doc.Document(
        title="machine", blocks=(table, *drawn, doc.Section("Findings", (findings_block,)))
    )


def machine_rows(
    snapshot: Snapshot, chips: Mapping[str, str]
) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return the machine as sections of (name, value); `chips` is PCI id → the catalog's name."""
    sections = {
        "host": _host_rows(snapshot),
        "cpu": _cpu_rows(snapshot),
        "main memory": _memory_rows(snapshot.memory),
        "disks": _disk_rows(snapshot.disks),
        "GPUs": _gpu_rows(snapshot, chips),
        "software": _software_rows(snapshot),
    }
    return [
        (title, section_rows) for title, rows in sections.items() if (section_rows := list(rows))
    ]


def _shown(value: Value | Missing, form: Callable[[Value], str] | None = None) -> str:
    """Return a value, or why it is unknown."""
    if isinstance(value, Missing):
        return f"unknown ({value.reason})"
    if form is not None:
        return form(value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def _plural(count: int | Missing, noun: str) -> str:
    return f"{noun}s {_shown(count)}" if isinstance(count, Missing) else counted(count, noun)


def _host_rows(snapshot: Snapshot) -> Rows:
    host = snapshot.host
    yield "name", _shown(host.hostname)
    yield "system", f"{_shown(host.os)}, kernel {_shown(host.kernel)}"
    virtual = f"virtual machine: {_shown(host.virtualization)}"
    yield "kind", f"container: {_shown(host.container)}; {virtual}"
    if maker := " ".join(part for part in (host.vendor, host.product) if isinstance(part, str)):
        yield "product", maker
    if isinstance(host.uptime_s, float):
        yield "up for", format_time(host.uptime_s)


def _cpu_rows(snapshot: Snapshot) -> Rows:
    cpu = snapshot.cpu
    yield "model", _shown(cpu.model)
    counts = f"{_shown(cpu.cores)} cores, {_shown(cpu.threads)} threads"
    nodes = _plural(cpu.numa_nodes, "NUMA node")
    yield "count", f"{counts}, {_plural(cpu.sockets, 'socket')}, {nodes}"
    quota = f", quota {cpu.quota_cpus:g} processors" if isinstance(cpu.quota_cpus, float) else ""
    yield "usable", f"{_shown(cpu.usable_threads)} threads{quota}"
    named = (("now", cpu.clock_hz), ("base", cpu.base_clock_hz), ("at most", cpu.max_clock_hz))
    clocks = [f"{format_quantity(v, 'Hz')} {n}" for n, v in named if isinstance(v, float)]
    yield "clock", ", ".join(clocks) or _shown(cpu.clock_hz)
    if isinstance(cpu.caches, tuple):
        sizes = (f"{cache.name} {format_memory(cache.total_bytes)}" for cache in cpu.caches)
        yield "caches", ", ".join(sizes)
    if isinstance(cpu.flags, tuple):
        vectors = [flag for flag in _VECTOR_FLAGS.split() if flag in cpu.flags]
        yield "vectors", " ".join(vectors) or "none known"


def _memory_rows(memory: MemoryInfo) -> Rows:
    limit = memory.limit_bytes
    bound = f", limit {format_memory(limit)}" if isinstance(limit, int) else ""
    free = f"{_shown(memory.available_bytes, format_memory)} available"
    yield "size", f"{_shown(memory.total_bytes, format_memory)}, {free}{bound}"
    if isinstance(memory.dimms, tuple):
        kinds = " / ".join(sorted({_shown(dimm.type) for dimm in memory.dimms}))
        speed, channels = _shown(memory.speed_mt_per_s), _shown(memory.channels)
        yield "modules", f"{len(memory.dimms)} × {kinds} at {speed} MT/s; channels: {channels}"
    else:
        yield "modules", _shown(memory.dimms)
    yield "/dev/shm", _shown(memory.shm_bytes, format_memory)


def _disk_rows(disks: tuple[Disk, ...] | Missing) -> Rows:
    """Disks are sold in powers of 1000; of a cluster's dozens of mounts the shortest paths."""
    if isinstance(disks, Missing):
        yield "", _shown(disks)
        return
    for disk in disks:
        size, spins = disk.size_bytes, disk.rotational
        paths = sorted((mount.path for mount in disk.mounts), key=lambda path: (len(path), path))
        more = len(paths) - _MOST_MOUNTS
        parts = [
            "size unknown" if isinstance(size, Missing) else format_quantity(size, "B"),
            value_or(disk.model, ""),
            value_or(disk.transport, ""),
            "" if isinstance(spins, Missing) else "rotating" if spins else "solid state",
            " ".join(paths[:_MOST_MOUNTS]) + (f" and {more} more" if more > 0 else ""),
        ]
        yield disk.name, ", ".join(part for part in parts if part)


def _gpu_rows(snapshot: Snapshot, chips: Mapping[str, str]) -> Rows:
    if isinstance(snapshot.pci_gpus, Missing) and isinstance(snapshot.gpus, Missing):
        yield "", _shown(snapshot.pci_gpus)
        return
    described = value_or(snapshot.gpus, ())
    for gpu in described:
        chip = chips.get(value_or(gpu.pci_id, ""))
        yield str(gpu.index), _shown(gpu.name) + (f" (catalog: {chip})" if chip else "")
        yield from (("", line) for line in _gpu_lines(gpu) if line)
    known = {gpu.pci_address for gpu in described}
    listed = [gpu for gpu in value_or(snapshot.pci_gpus, ()) if gpu.address not in known]
    for device in listed:
        name = chips.get(device.pci_id) or value_or(device.name, "not in the catalog")
        driver = "no driver" if device.driver is None else f"driver {_shown(device.driver)}"
        yield device.address, f"{name} ({device.pci_id}), {driver}, PCIe {_link(device.link)}"
    if isinstance(snapshot.gpus, Missing) and listed:
        yield "driver", _shown(snapshot.gpus)
    for link in value_or(snapshot.topology.links, ()):
        access = "direct access" if link.p2p_read == "ok" else "no direct access"
        yield f"{link.a} – {link.b}", f"{_shown(link.path)}, {access}"
    if not (described or listed):
        yield "", "none on the PCI bus"


def _gpu_lines(gpu: Gpu) -> Iterator[str]:
    used, total = (
        _shown(size, format_memory) for size in (gpu.memory.used_bytes, gpu.memory.total_bytes)
    )
    capability = value_or(gpu.compute_capability, None)
    yield f"{used} of {total} used" + (f", compute capability {capability}" if capability else "")
    yield f"PCIe {_link(gpu.link)}, at {value_or(gpu.pci_address, 'unknown address')}"
    power, temperature = gpu.power, gpu.cooling.temperature_c
    now, limit, default = (
        _unit(value, "W") for value in (power.draw_w, power.limit_w, power.limit_default_w)
    )
    clock, most = _unit(gpu.clocks.sm_hz, "Hz"), _unit(gpu.clocks.max_sm_hz, "Hz")
    heat = f", {temperature:.0f} °C" if isinstance(temperature, float) else ""
    yield f"{now} of {limit} (default {default}), SM clock {clock} of {most}{heat}"
    reasons = [reason for reason in value_or(gpu.clocks.throttle_reasons, ()) if reason != "idle"]
    persistence, utilization = gpu.mode.persistence, gpu.activity.utilization
    states = (
        (isinstance(gpu.ecc.enabled, bool), f"ECC {'on' if gpu.ecc.enabled is True else 'off'}"),
        (gpu.mode.mig is True, "MIG on"),
        (isinstance(persistence, bool), f"persistence {'on' if persistence is True else 'off'}"),
        (isinstance(utilization, float), f"{_shown(utilization, format_share)} busy"),
        (bool(reasons), "held down by: " + ", ".join(reasons)),
    )
    yield ", ".join(text for is_known, text in states if is_known)


def _link(link: PcieLink) -> str:
    now, width, most, widest = (
        value_or(value, "?")
        for value in (link.generation, link.width, link.max_generation, link.max_width)
    )
    return f"{now}.0 ×{width} of {most}.0 ×{widest}"


def _unit(value: float | Missing, unit: str) -> str:
    return "?" if isinstance(value, Missing) else format_quantity(value, unit)


def _software_rows(snapshot: Snapshot) -> Rows:
    software = snapshot.software
    yield "python", software.python
    versions = (("CUDA", software.torch_cuda), ("HIP", software.torch_hip))
    builds = " and ".join(
        f"{name} {installed}" for name, installed in versions if isinstance(installed, str)
    )
    built = f", built for {builds or 'the CPU alone'}"
    yield "torch", _shown(software.torch, lambda version: version + built)
    yield "CUDA", f"toolkit {_shown(software.cuda_toolkit)}"
    if isinstance(software.nvidia_driver, str):
        yield "driver", f"{software.nvidia_driver}, CUDA {_shown(software.cuda_driver)} at most"
    if packages := [f"{n} {v}" for n, v in software.packages.items() if n != "torch"]:
        yield "packages", ", ".join(packages)
    if settings := [f"{n}={v}" for n, v in software.environment.items()]:
        yield "settings", ", ".join(settings)
