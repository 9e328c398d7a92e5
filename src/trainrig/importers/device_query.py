"""CUDA samples' deviceQuery: what the runtime says of each GPU, as the machine of a run.

Source: github.com/NVIDIA/cuda-samples deviceQuery.cpp; CUDA 8 to 13 (read 2026-11-28).
"""

from __future__ import annotations

import re
from typing import Any

from trainrig.importers.extract import device_name, point
from trainrig.importers.file import FilePart
from trainrig.importers.importer import Importer, ImportHints, Reading
from trainrig.importers.spelling import marks_of
from trainrig.machine.nvidia import read_device
from trainrig.machine.snapshot import Gpu, GpuLink, Missing

_DEVICE = re.compile(r'^Device (\d{1,3}): "(.+)"\s*$')
_FIELD = re.compile(r"^\s+(?P<name>[^:]+?):\s+(?P<value>\S.*)$")
_PEER = re.compile(
    r"^> Peer(?:-to-Peer \(P2P\))? access from .+ \(GPU(\d{1,3})\) -> .+ \(GPU(\d{1,3})\) : (\w+)"
)
_OTHER = re.compile(
    r"deviceQuery|CUDA Device Query|^Detected \d+ CUDA|^Result = |^\s+(?:\(|<|Compute)"
)
_BYTES = re.compile(r"\((\d{1,18}) bytes\)")
_MEMORY = "Total amount of global memory"
_CORES = re.compile(r"(\d{1,7}) CUDA Cores$")
_BUS_WIDTH = re.compile(r"(\d{1,5})-bit")
_VERSION = re.compile(r"(\d{1,2})\.(\d{1,2})")
_ADDRESS = re.compile(r"(\d{1,5}) / (\d{1,3}) / (\d{1,2})")


def _read(file: FilePart, _: ImportHints) -> Reading:
    blocks: list[tuple[int, int, dict[str, str]]] = []
    links: dict[tuple[int, int], str] = {}
    for number, line in file.lines:
        if match := _DEVICE.match(line):
            blocks.append((number, int(match[1]), {"name": match[2]}))
        elif match := _PEER.match(line):
            pair = sorted((int(match[1]), int(match[2])))
            is_open = match[3] == "Yes" and links.get((pair[0], pair[1])) in (None, "ok")
            links[pair[0], pair[1]] = "ok" if is_open else "not supported"
        elif blocks and (match := _FIELD.match(line)):
            if match["name"] == _MEMORY and not _BYTES.search(match["value"]):
                raise file.refuse(number, "a size without its bytes: it is broken off")
            blocks[-1][2].setdefault(match["name"], match["value"].strip())
        elif not (_OTHER.search(line) or (blocks and line[:1].isspace())):
            continue
        file.use(number)
    if not blocks:
        raise file.refuse(file.last, "no device in it", "import the output of deviceQuery")
    gpus = [_gpu(index, fields) for _, index, fields in blocks]
    records = [
        point(
            file,
            number,
            "gpu-state",
            {"tool": IMPORTER.name},
            ("memory_total", "B"),
            None if isinstance(size := gpu.memory.total_bytes, Missing) else float(size),
            device=device_name(fields["name"]) or "GPU",
            index=index,
            reason=size.reason if isinstance(size, Missing) else None,
        )
        for gpu, (number, index, fields) in zip(gpus, blocks, strict=True)
    ]
    path = Missing("deviceQuery does not say; nvidia-smi topo -m does")
    pairs = [
        GpuLink(a=a, b=b, path=path, p2p_read=state, p2p_write=state)
        for (a, b), state in sorted(links.items())
        if a != b
    ]
    return Reading(gpus=gpus, links=pairs, records=records)


def _gpu(index: int, fields: dict[str, str]) -> Gpu:
    def value(name: str, pattern: re.Pattern[str]) -> int | dict[str, str]:
        text = next((text for field, text in fields.items() if name in field), "")
        field_match = pattern.search(text)
        return int(field_match[1]) if field_match else {"missing": f"deviceQuery has no {name}"}

    capability = _VERSION.match(fields.get("CUDA Capability Major/Minor version number", ""))
    address = _ADDRESS.match(fields.get("Device PCI Domain ID / Bus ID / location ID", ""))
    answers: dict[str, Any] = {
        "name": fields["name"],
        "memory": {"total": value(_MEMORY, _BYTES)},
        "cores": value("CUDA Cores/MP", _CORES),
        "memory_bus": value("Memory Bus Width", _BUS_WIDTH),
        "ecc": [{"Enabled": 1, "Disabled": 0}.get(fields.get("Device has ECC support", ""))],
    }
    if capability:
        answers["capability"] = [int(capability[1]), int(capability[2])]
    if address:
        domain, bus, device = (int(part) for part in address.groups())
        answers["pci"] = {"busId": f"{domain:08x}:{bus:02x}:{device:02x}.0"}
    return read_device(index, answers)


IMPORTER = Importer(
    name="deviceQuery",
    title="CUDA samples: what the runtime says of each GPU",
    order=139,
    marks=marks_of("deviceQuery"),
    read=_read,
    definition="memory that CUDA shows, which is a little less than the card has",
    judged_by="the doctor's checks of memory size and direct access",
    source="github.com/NVIDIA/cuda-samples deviceQuery.cpp",
    tested_on=("device-query.txt",),
)
