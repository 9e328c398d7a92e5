"""nvidia-smi topo -m: how each pair of GPUs reaches each other, as the machine of a run.

NV# is that many NVLinks; PIX, PXB, PHB, NODE and SYS are paths over PCIe, from one bridge to the
link between two sockets.  NICs' columns are passed over.

Source: the legend that the program prints; nvidia-smi(1) (read 2026-11-22).
"""

from __future__ import annotations

import re

from trainrig.importers.file import FilePart
from trainrig.importers.importer import Importer, ImportHints, Reading
from trainrig.importers.spelling import marks_of
from trainrig.machine.nvidia import read_device
from trainrig.machine.snapshot import GpuLink, Missing

_NO_P2P = Missing("nvidia-smi topo -m does not say; topo -p2p does")
_CELL = re.compile(r"X|NV\d{1,3}|PIX|PXB|PHB|NODE|SYS|SOC|N/A")
_HEADER = re.compile(r"^\s*GPU0\s+(?!X\s)\S")
_LEGEND = re.compile(
    r"^\s*(?:X|SYS|NODE|PHB|PXB|PIX|SOC|NV#)\s+= |^\s*(?:Legend|NIC Legend)|"
    r"^\s*NIC\d+: |^(?:NIC\d+|mlx5_\d+)\s"
)
"""Rows of network cards, and what the program says of its words."""
_ROW = re.compile(r"^GPU(\d{1,3})\s+(.*)$")


def _read(file: FilePart, _: ImportHints) -> Reading:
    head = next((place for place, (_, line) in enumerate(file.lines) if _HEADER.match(line)), None)
    if head is None:
        raise file.refuse(1, "no matrix of GPUs in it", "import the output of nvidia-smi topo -m")
    columns = re.findall(r"\bGPU\d{1,3}\b", file.lines[head][1])
    rows: list[list[str]] = []
    last = file.lines[head][0]
    file.use(last)
    for number, line in file.lines[head + 1 :]:
        if _LEGEND.search(line):
            file.use(number)
        if line.strip().startswith("Legend"):
            for below, text in file.lines:
                if below > number and _LEGEND.search(text):
                    file.use(below)
            break
        if row := _ROW.match(line):
            file.use(number)
            rows.append(_cells(file, number, row, len(rows), len(columns)))
            last = number
    if len(rows) != len(columns):
        raise file.refuse(last, f"{len(columns)} GPUs in the head and {len(rows)} rows")
    links = tuple(
        _link(file, rows, a, b) for a in range(len(columns)) for b in range(a + 1, len(columns))
    )
    gpus = tuple(read_device(index, {}) for index in range(len(columns)))
    return Reading(gpus=gpus, links=links)


def _cells(file: FilePart, line: int, row: re.Match[str], index: int, num: int) -> list[str]:
    """Return the paths from one GPU to each, itself among them."""
    if int(row[1]) != index or index >= num:
        raise file.refuse(line, f"GPU{row[1]} where GPU{index} is due")
    cells = row[2].split()[:num]
    if len(cells) < num or cells[index] != "X" or not all(map(_CELL.fullmatch, cells)):
        raise file.refuse(line, "not a row of the matrix: one path to each GPU, X to itself")
    return cells


def _link(file: FilePart, rows: list[list[str]], a: int, b: int) -> GpuLink:
    there, back = rows[a][b], rows[b][a]
    if there != back:
        raise file.refuse(None, f"GPU{a} to GPU{b} is {there}, and back {back}")
    path = Missing("nvidia-smi says N/A") if there == "N/A" else there
    return GpuLink(a=a, b=b, path=path, p2p_read=_NO_P2P, p2p_write=_NO_P2P)


IMPORTER = Importer(
    name="nvidia-smi-topo",
    title="paths between GPUs (nvidia-smi topo -m, text)",
    order=135,
    marks=marks_of("nvidia-smi-topo"),
    read=_read,
    definition="the path between two GPUs: NV# are NVLinks, the others cross PCIe",
    judged_by="which pairs have no NVLink is shown; what it costs their bandwidth tests say",
    source="nvidia-smi(1), topo -m",
    tested_on=("topo-2x4090.txt", "topo-8xa100.txt"),
)
