"""nvidia-smi -q: what the driver says of each GPU, as the machine of a run.

The text is turned into NVML's own answers and read by the reader of those (`machine.nvidia`): a
value that is N/A or impossible is missing with a reason.  Power, clock, temperature and error
counts are records as well, so that two files can be compared.  What is wrong with the GPUs the
doctor's checks say.

Source: nvidia-smi(1); outputs of drivers 440 to 610 (read 2026-11-22).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from trainrig.importers.extract import device_name, point
from trainrig.importers.file import FilePart
from trainrig.importers.importer import Importer, ImportHints, Reading
from trainrig.importers.spelling import marks_of
from trainrig.machine.nvidia import read_device
from trainrig.machine.snapshot import GPU_KEYS, Gpu, Missing
from trainrig.record import Record
from trainrig.units import one_line

_GPU = re.compile(r"^GPU ([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])\s*$")
_FIELD = re.compile(r"^(\s+)(\S[^:]*?)\s*(?::\s(.*))?$")
_HEAD = re.compile(r"^(Driver Version|CUDA Version|Attached GPUs)\s+:\s*(.*)$")
# The word before it may be gone: it looks like the level that a logger puts before its lines.
_WARNING = re.compile(r"^(?:WARNING: |(?=infoROM is corrupted))(.*)")

Fields = dict[str, str]
"""Path of a field, ``ecc errors/volatile/total``, in small letters: its value."""

# NVML's bit of a reason, by the words of the text.
_REASONS = {
    "idle": 0x1,
    "applications clocks setting": 0x2,
    "sw power cap": 0x4,
    "hw slowdown": 0x8,
    "sync boost": 0x10,
    "sw thermal slowdown": 0x20,
    "hw thermal slowdown": 0x40,
    "hw power brake slowdown": 0x80,
    "display clock setting": 0x100,
}
_COMPUTE_MODES = {"default": 0, "exclusive_thread": 1, "prohibited": 2, "exclusive_process": 3}


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuBlock:
    """Section of one GPU in an output: its fields by their path."""

    line: int
    index: int
    address: str
    fields: Fields


def reading_of(
    file: FilePart,
    blocks: Sequence[GpuBlock],
    *,
    version: str | None,
    driver: str | None,
    notes: Sequence[str] = (),
) -> Reading:
    """Return the reading of an output of nvidia-smi whose fields are those of ``nvidia-smi -q``."""
    gpus = tuple(
        read_device(gpu_block.index, _answers(gpu_block.address, gpu_block.fields))
        for gpu_block in blocks
    )
    records = [
        record
        for gpu, block in zip(gpus, blocks, strict=True)
        for record in _records(file, block.line, gpu)
    ]
    warnings = list(_warnings(file))
    return Reading(
        version=version, records=records, gpus=gpus, driver=driver, notes=[*notes, *warnings]
    )


def _warnings(file: FilePart) -> Iterator[str]:
    """Yield what nvidia-smi warns of around any of its forms: ``WARNING: infoROM is corrupted``."""
    for number, line in file.lines:
        if warning := _WARNING.match(line):
            file.use(number)
            yield f"nvidia-smi warns: {one_line(warning[1])}"


def _read(file: FilePart, _: ImportHints) -> Reading:
    head: Fields = {}
    blocks: list[tuple[int, str, Fields]] = []
    path: list[tuple[int, str]] = []
    file.use_all()
    _check_width(file)
    for number, line in file.lines:
        if match := _HEAD.match(line):
            head[match[1].lower()] = match[2].strip()
        elif match := _GPU.match(line):
            blocks.append((number, match[1], {}))
            path = []
        elif blocks and (match := _FIELD.match(line)):
            indent, name = len(match[1]), match[2].strip().lower()
            path = [level for level in path if level[0] < indent] + [(indent, name)]
            if match[3] is not None:
                blocks[-1][2]["/".join(level for _, level in path)] = match[3].strip()
        elif line.startswith("GPU ") and ":" in line and "(UUID: " not in line:
            raise file.refuse(number, "a GPU without a PCI address")
    if not blocks:
        raise file.refuse(
            len(file.lines), "it describes no GPU", "import the output of nvidia-smi -q"
        )
    notes = []
    attached = head.get("attached gpus", "")
    if attached.isdecimal() and int(attached) != len(blocks):
        notes.append(f"{attached} GPUs are attached and {len(blocks)} are described")
    # Driver 610 prints a remark behind it.
    driver = next(iter(head.get("driver version", "").split()), None)
    described = [
        GpuBlock(line=line, index=index, address=address, fields=fields)
        for index, (line, address, fields) in enumerate(blocks)
    ]
    return reading_of(file, described, version=driver, driver=driver, notes=notes)


def _check_width(file: FilePart) -> None:
    """Raise DataError where a terminal's width wrapped the lines: most widest ones go on below."""
    lines = dict(file.lines)
    width = max(map(len, lines.values()))
    wide = [number for number, line in lines.items() if len(line) == width]
    rests = [
        number + 1
        for number in wide
        if (continuation := lines.get(number + 1, " "))
        and not continuation[0].isspace()
        and ":" not in continuation
    ]
    if len(rests) > max(1, len(wide) // 2):
        raise file.refuse(rests[0], "what follows a line that was wrapped", "do not wrap lines")


def _answers(address: str, fields: Fields) -> dict[str, Any]:
    """Return the block of a GPU as `machine.nvml` would have been answered."""

    def number(*names: str, scale: float = 1.0, unit: str = "") -> float | int | dict[str, str]:
        for name in names:
            match = re.match(r"-?\d{1,15}(?:\.\d{1,6})?", _value(fields, name))
            # A value without its unit was cut off.
            if match and _value(fields, name).endswith(unit):
                value = float(match[0]) * scale
                return int(value) if value == int(value) else value
        return {"missing": f"nvidia-smi has no {names[0]}"}

    def switch(name: str, on: str = "Enabled", off: str = "Disabled") -> int | dict[str, str]:
        value = _value(fields, name)
        return {on: 1, off: 0}.get(value, {"missing": f"nvidia-smi has no {name}"})

    def pages(name: str) -> list[int] | dict[str, str]:
        count = _value(fields, name)
        few = count.isdecimal() and len(count) < 6
        return [0] * int(count) if few else {"missing": f"nvidia-smi has no {name}"}

    remapped = [
        number("remapped rows/correctable error"),
        number("remapped rows/uncorrectable error"),
        switch("remapped rows/pending", "Yes", "No"),
        switch("remapped rows/remapping failure occurred", "Yes", "No"),
    ]
    power = ("gpu power readings", "power readings")
    return {
        "name": fields.get("product name", ""),
        "uuid": fields.get("gpu uuid", ""),
        "pci": {"busId": address, "pciDeviceId": _hex(fields.get("pci/device id", ""))},
        "vbios": fields.get("vbios version", ""),
        "memory": {
            "total": number("fb memory usage/total", scale=2.0**20, unit="MiB"),
            "used": number("fb memory usage/used", scale=2.0**20, unit="MiB"),
        },
        "pcie_generation": number("pci/gpu link info/pcie generation/current"),
        "pcie_max_generation": number("pci/gpu link info/pcie generation/max"),
        "pcie_width": number("pci/gpu link info/link width/current"),
        "pcie_max_width": number("pci/gpu link info/link width/max"),
        "pcie_replays": number("pci/replays since reset"),
        "power": number(
            *_paths_in(power, "instantaneous power draw", "power draw", "average power draw"),
            scale=1e3,
            unit="W",
        ),
        "power_limit": number(
            *_paths_in(power, "current power limit", "power limit"), scale=1e3, unit="W"
        ),
        "power_default": number(*_paths_in(power, "default power limit"), scale=1e3, unit="W"),
        "power_range": [
            number(*_paths_in(power, "min power limit"), scale=1e3, unit="W"),
            number(*_paths_in(power, "max power limit"), scale=1e3, unit="W"),
        ],
        "ecc": [switch("ecc mode/current"), switch("ecc mode/pending")],
        **_ecc(fields),
        "retired_single": pages("retired pages/single bit ecc"),
        "retired_double": pages("retired pages/double bit ecc"),
        "retirement_pending": switch("retired pages/pending page blacklist", "Yes", "No"),
        "remapped": remapped,
        "sm_clock": number("clocks/sm", unit="MHz"),
        "memory_clock": number("clocks/memory", unit="MHz"),
        "max_sm_clock": number("max clocks/sm", unit="MHz"),
        "max_memory_clock": number("max clocks/memory", unit="MHz"),
        "application_clock": number("applications clocks/graphics", unit="MHz"),
        "temperature": number("temperature/gpu current temp", unit="C"),
        "slowdown_temperature": number("temperature/gpu slowdown temp", unit="C"),
        "fan": number("fan speed", unit="%"),
        "bar1": {"bar1Total": number("bar1 memory usage/total", scale=2.0**20, unit="MiB")},
        "throttle": _throttle(fields),
        "utilization": {"gpu": number("utilization/gpu", unit="%")},
        "mig": [switch("mig mode/current")],
        "persistence": switch("persistence mode"),
        "compute_mode": _COMPUTE_MODES.get(
            fields.get("compute mode", "").lower(), {"missing": "nvidia-smi has no compute mode"}
        ),
    }


def _value(fields: Fields, path: str) -> str:
    """Return the value at a path, or the only one of that name in a section below it.

    Newer drivers nest what older ones listed: ``gpu ceiling power limit/current power limit``.
    """
    if path in fields:
        return fields[path]
    section, _, name = path.rpartition("/")
    nested = {
        value
        for other, value in fields.items()
        if section and other.startswith(f"{section}/") and other.endswith(f"/{name}")
    }
    return nested.pop() if len(nested) == 1 else ""


def _paths_in(sections: tuple[str, ...], *names: str) -> list[str]:
    return [f"{section}/{name}" for section in sections for name in names]


def _hex(text: str) -> int | dict[str, str]:
    match = re.fullmatch(r"0x([0-9A-Fa-f]{1,8})", text)
    return int(match[1], 16) if match else {"missing": "nvidia-smi has no device id"}


def _throttle(fields: Fields) -> int | dict[str, str]:
    bits, seen = 0, False
    for path, value in fields.items():
        section, _, name = path.partition("/")
        # The reasons that belong to one stand below it.
        bit = _REASONS.get(name.rpartition("/")[2])
        if section in ("clocks event reasons", "clocks throttle reasons") and bit is not None:
            seen = True
            bits |= bit if value == "Active" else 0
    return bits if seen else {"missing": "nvidia-smi has no clocks event reasons"}


def _ecc(fields: Fields) -> dict[str, Any]:
    """Add up the counters of a kind, by either wording: ``Double Bit``, ``Uncorrectable``."""
    counts_by_kind: dict[str, Any] = {}
    for kind, words in (
        ("uncorrected", ("double bit/total", "dram uncorrectable", "sram uncorrectable")),
        ("corrected", ("single bit/total", "dram correctable", "sram correctable")),
    ):
        for age in ("volatile", "aggregate"):
            begin = f"ecc errors/{age}/"
            counts = [
                int(value)
                for path, value in fields.items()
                if path.startswith(begin)
                and path.removeprefix(begin).startswith(words)
                and re.fullmatch(r"\d{1,9}", value)
            ]
            missing = {"missing": f"nvidia-smi has no {kind} ECC errors ({age})"}
            counts_by_kind[f"{kind}_{age}"] = sum(counts) if counts else missing
    return counts_by_kind


_RECORDS = (
    ("power", "W", "power_w"),
    ("power_limit", "W", "power_limit_w"),
    ("sm_clock", "Hz", "sm_clock_hz"),
    ("temperature", "°C", "temperature_c"),
    ("memory_used", "B", "memory_used_bytes"),
    ("ecc_uncorrected", "1", "ecc_uncorrected_aggregate"),
    ("remapped_rows", "1", "remapped_rows"),
)


def _records(file: FilePart, line: int, gpu: Gpu) -> Iterator[Record]:
    name = device_name(None if isinstance(gpu.name, Missing) else gpu.name)
    for metric, unit, field in _RECORDS:
        value = GPU_KEYS.get(gpu, field)
        reason = value.reason if isinstance(value, Missing) else None
        yield point(
            file,
            line,
            "gpu-state",
            {"tool": IMPORTER.name},
            (metric, unit),
            None if reason else float(value),
            device=name or "GPU",
            index=gpu.index,
            reason=reason,
        )


IMPORTER = Importer(
    name="nvidia-smi",
    title="state of each GPU (nvidia-smi -q, text)",
    order=130,
    marks=marks_of("nvidia-smi"),
    read=_read,
    definition="what the driver said at one moment; clock, link and power of an idle GPU are not "
    "its best",
    judged_by="the doctor's checks of a GPU",
    source="nvidia-smi(1)",
    tested_on=("nvidia-smi-q-8xa100.txt", "nvidia-smi-q-ecc.txt"),
)
