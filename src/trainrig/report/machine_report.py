"""The machine as a table: what `inspect` prints, and what a report repeats.

Handed a snapshot and the catalog's names for PCI ids; looks nothing up.  What
is missing is printed with its reason, in the place of the value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trainrig.machine.snapshot import (
    Disk,
    Gpu,
    MemoryInfo,
    Missing,
    PcieLink,
    Snapshot,
    value_or,
)
from trainrig.record import Finding
from trainrig.report.document import (
    Block,
    Cell,
    Column,
    Document,
    Findings,
    Item,
    Paragraph,
    Section,
    Table,
    Tone,
)
from trainrig.units import format_memory, format_quantity, format_share, format_time

Row = tuple[str, str]

_VECTOR_FLAGS = (
    "avx2 fma avx512f avx512_bf16 avx512_fp16 avx512_vnni amx_bf16 amx_int8 "
    "asimd sve sve2 bf16 i8mm"
)
"""Instruction sets that decide how fast a CPU computes, of the hundred flags it reports."""
_MOST_MOUNTS = 4


def machine_rows(snapshot: Snapshot, chips: Mapping[str, str]) -> list[tuple[str, list[Row]]]:
    """The machine as sections of (name, value); `chips` is PCI id → the catalog's name."""
    sections = [
        ("host", _host_rows(snapshot)),
        ("cpu", _cpu_rows(snapshot)),
        ("memory", _memory_rows(snapshot.memory)),
        ("disks", _disk_rows(snapshot.disks)),
        ("GPUs", _gpu_rows(snapshot, chips)),
        ("software", _software_rows(snapshot)),
    ]
    return [(title, rows) for title, rows in sections if rows]


def machine_document(
    snapshot: Snapshot, chips: Mapping[str, str], findings: Sequence[Finding]
) -> Document:
    """What `inspect` prints: the machine, and what is wrong with it at a glance."""
    tones: dict[str, Tone] = {"error": "bad", "warning": "warn", "info": ""}
    items = tuple(
        Item(text=f"{f.evidence} [{f.id}]", fix=f.fix, label=f.severity, tone=tones[f.severity])
        for f in findings
    )
    table = Table(
        (Column("", "code"), Column("", "code"), Column("", "words")),
        tuple(
            (
                title if place == 0 else "",
                name,
                Cell(value, "dim" if "unknown" in value[:7] else ""),
            )
            for title, rows in machine_rows(snapshot, chips)
            for place, (name, value) in enumerate(rows)
        ),
    )
    found: Block = Findings(items) if items else Paragraph("no findings")
    return Document(title="machine", blocks=(table, Section("Findings", (found,))))


def _host_rows(snapshot: Snapshot) -> list[Row]:
    host = snapshot.host
    maker = [part for part in (host.vendor, host.product) if isinstance(part, str)]
    kind = f"container: {_shown(host.container)}; virtual machine: {_shown(host.virtualization)}"
    rows = [
        ("name", _shown(host.hostname)),
        ("system", f"{_shown(host.os)}, kernel {_shown(host.kernel)}"),
        ("kind", kind),
    ]
    if maker:
        rows.append(("product", " ".join(maker)))
    if isinstance(host.uptime_s, float):
        rows.append(("up for", format_time(host.uptime_s)))
    return rows


def _cpu_rows(snapshot: Snapshot) -> list[Row]:
    cpu = snapshot.cpu
    counts = f"{_shown(cpu.cores)} cores, {_shown(cpu.threads)} threads on {_shown(cpu.sockets)}"
    quota = f", quota {cpu.quota_cpus:g} processors" if isinstance(cpu.quota_cpus, float) else ""
    named = (("now", cpu.clock_hz), ("base", cpu.base_clock_hz), ("at most", cpu.max_clock_hz))
    clocks = [f"{format_quantity(v, 'Hz')} {n}" for n, v in named if isinstance(v, float)]
    rows = [
        ("model", _shown(cpu.model)),
        ("count", f"{counts} socket(s), {_shown(cpu.numa_nodes)} NUMA node(s)"),
        ("usable", f"{_shown(cpu.usable_threads)} threads{quota}"),
        ("clock", ", ".join(clocks) or _shown(cpu.clock_hz)),
    ]
    if isinstance(cpu.caches, tuple):
        sizes = (f"{cache.name} {format_memory(cache.total_bytes)}" for cache in cpu.caches)
        rows.append(("caches", ", ".join(sizes)))
    if isinstance(cpu.flags, tuple):
        vectors = [flag for flag in _VECTOR_FLAGS.split() if flag in cpu.flags]
        rows.append(("vectors", " ".join(vectors) or "none known"))
    return rows


def _memory_rows(memory: MemoryInfo) -> list[Row]:
    free = f"{_size(memory.available_bytes)} available"
    limit = memory.limit_bytes
    bound = f", limit {format_memory(limit)}" if isinstance(limit, int) else ""
    rows = [("size", f"{_size(memory.total_bytes)}, {free}{bound}")]
    if isinstance(memory.dimms, tuple):
        kinds = {_shown(dimm.type) for dimm in memory.dimms}
        speed, channels = _shown(memory.speed_mt_per_s), _shown(memory.channels)
        shape = f"{len(memory.dimms)} × {' / '.join(sorted(kinds))}"
        rows.append(("modules", f"{shape} at {speed} MT/s; channels: {channels}"))
    else:
        rows.append(("modules", _shown(memory.dimms)))
    rows.append(("/dev/shm", _size(memory.shm_bytes)))
    return rows


def _disk_rows(disks: tuple[Disk, ...] | Missing) -> list[Row]:
    if isinstance(disks, Missing):
        return [("", _shown(disks))]
    return [(disk.name, _disk(disk)) for disk in disks]


def _disk(disk: Disk) -> str:
    """Disks are sold in powers of 1000; of a cluster's dozens of mounts the shortest paths."""
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
    return ", ".join(part for part in parts if part)


def _gpu_rows(snapshot: Snapshot, chips: Mapping[str, str]) -> list[Row]:
    if isinstance(snapshot.pci_gpus, Missing) and isinstance(snapshot.gpus, Missing):
        return [("", _shown(snapshot.pci_gpus))]
    described = value_or(snapshot.gpus, ())
    rows: list[Row] = []
    for gpu in described:
        rows += _gpu(gpu, chips)
    listed = {gpu.pci_address for gpu in described}
    for device in value_or(snapshot.pci_gpus, ()):
        if device.address not in listed:
            name = chips.get(device.pci_id) or value_or(device.name, "not in the catalog")
            driver = "no driver" if device.driver is None else f"driver {_shown(device.driver)}"
            words = f"{name} ({device.pci_id}), {driver}, PCIe {_link(device.link)}"
            rows.append((device.address, words))
    if isinstance(snapshot.gpus, Missing) and rows:
        rows.append(("driver", _shown(snapshot.gpus)))
    for link in value_or(snapshot.topology.links, ()):
        access = "direct access" if link.p2p_read == "ok" else "no direct access"
        rows.append((f"{link.a} – {link.b}", f"{_shown(link.path)}, {access}"))
    return rows or [("", "none on the PCI bus")]


def _gpu(gpu: Gpu, chips: Mapping[str, str]) -> list[Row]:
    chip = chips.get(value_or(gpu.pci_id, ""))
    used = f"{_size(gpu.memory_used_bytes)} of {_size(gpu.memory_total_bytes)} used"
    capability = value_or(gpu.compute_capability, None)
    now, limit, default = (
        _unit(value, "W") for value in (gpu.power_w, gpu.power_limit_w, gpu.power_limit_default_w)
    )
    clock, most = _unit(gpu.sm_clock_hz, "Hz"), _unit(gpu.max_sm_clock_hz, "Hz")
    heat = f", {gpu.temperature_c:.0f} °C" if isinstance(gpu.temperature_c, float) else ""
    rows = [
        (str(gpu.index), _shown(gpu.name) + (f" (catalog: {chip})" if chip else "")),
        ("", used + (f", compute capability {capability}" if capability else "")),
        ("", f"PCIe {_link(gpu.link)}, at {value_or(gpu.pci_address, 'unknown address')}"),
        ("", f"{now} of {limit} (default {default}), SM clock {clock} of {most}{heat}"),
    ]
    state = _state(gpu)
    return [*rows, ("", state)] if state else rows


def _state(gpu: Gpu) -> str:
    """Modes and troubles, where known."""
    parts = []
    if isinstance(gpu.ecc, bool):
        parts.append(f"ECC {'on' if gpu.ecc else 'off'}")
    if gpu.mig is True:
        parts.append("MIG on")
    if isinstance(gpu.persistence, bool):
        parts.append(f"persistence {'on' if gpu.persistence else 'off'}")
    if isinstance(gpu.utilization, float):
        parts.append(f"{format_share(gpu.utilization)} busy")
    reasons = [reason for reason in value_or(gpu.throttle_reasons, ()) if reason != "idle"]
    if reasons:
        parts.append("held down by: " + ", ".join(reasons))
    return ", ".join(parts)


def _link(link: PcieLink) -> str:
    now = f"{_bare(link.generation)}.0 ×{_bare(link.width)}"
    return f"{now} of {_bare(link.max_generation)}.0 ×{_bare(link.max_width)}"


def _software_rows(snapshot: Snapshot) -> list[Row]:
    software = snapshot.software
    torch = _shown(software.torch)
    if not isinstance(software.torch, Missing):
        versions = (("CUDA", software.torch_cuda), ("HIP", software.torch_hip))
        builds = [f"{name} {found}" for name, found in versions if isinstance(found, str)]
        torch += f", built for {' and '.join(builds) or 'the CPU alone'}"
    rows = [
        ("python", software.python),
        ("torch", torch),
        ("CUDA", f"toolkit {_shown(software.cuda_toolkit)}"),
    ]
    if isinstance(software.nvidia_driver, str):
        most = _shown(software.cuda_driver)
        rows.append(("driver", f"{software.nvidia_driver}, CUDA {most} at most"))
    packages = [f"{n} {v}" for n, v in software.packages.items() if n != "torch"]
    settings = [f"{n}={v}" for n, v in software.environment.items()]
    rows += [("packages", ", ".join(packages))] if packages else []
    return rows + ([("settings", ", ".join(settings))] if settings else [])


def _shown(value: object) -> str:
    if isinstance(value, Missing):
        return f"unknown ({value.reason})"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _bare(value: object) -> str:
    return "?" if isinstance(value, Missing) else str(value)


def _size(value: int | Missing) -> str:
    return _shown(value) if isinstance(value, Missing) else format_memory(value)


def _unit(value: float | Missing, unit: str) -> str:
    return "?" if isinstance(value, Missing) else format_quantity(value, unit)
