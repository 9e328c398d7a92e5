"""nvidia-smi nvlink -s and topo -p2p: NVLinks of each GPU, and pairs with direct access.

``nvlink -s`` prints a rate a link and direction, or that it is inactive.  ``topo -p2p r`` prints a
matrix of states; it doesn't say whether reads, writes or atomics were asked for, so that it is
taken for reads, which is the form that its help shows first.

Source: nvidia-smi(1), nvlink and topo; outputs of drivers 440 to 610 (read 2026-11-28).
"""

from __future__ import annotations

import re

from trainrig.importers.extract import to_number
from trainrig.importers.file import FilePart
from trainrig.importers.importer import Importer, ImportHints, Reading
from trainrig.importers.spelling import marks_of
from trainrig.machine.nvidia import read_device
from trainrig.machine.snapshot import Gpu, GpuLink, Missing

_GPU = re.compile(r"^GPU (?P<index>\d{1,3}): (?P<name>.+?) \(UUID: (?P<uuid>[\w/-]+)\)\s*$")
_LINK = re.compile(r"^\s+Link (?P<link>\d{1,2}): (?:(?P<rate>\S+) GB/s|<(?P<state>\w+)>)\s*$")
_ALL_DOWN = re.compile(r"all links are inactive", re.IGNORECASE)
_NO_NVLINK = re.compile(r"does not have or support NVLink", re.IGNORECASE)
_NOT_SAID = Missing("nvidia-smi nvlink -s says that all links are inactive, not how many")


def _read_nvlinks(file: FilePart, _: ImportHints) -> Reading:
    gpus: list[Gpu] = []
    is_up: list[bool] = []
    for number, line in file.lines:
        if match := _GPU.match(line):
            if gpus:
                gpus[-1] = _with_links(gpus[-1], is_up)
            answers = {"name": match["name"], "uuid": match["uuid"]}
            gpus.append(read_device(int(match["index"]), answers))
            is_up = []
        elif gpus and (match := _LINK.match(line)):
            if match["rate"]:
                to_number(file, number, match["rate"], "rate")
            is_up.append(match["rate"] is not None)
        elif gpus and _ALL_DOWN.search(line):
            gpus[-1] = gpus[-1].replace(nvlinks_active=0, nvlinks_inactive=_NOT_SAID)
        elif gpus and _NO_NVLINK.search(line):
            gpus[-1] = gpus[-1].replace(nvlinks_active=0, nvlinks_inactive=0)
        else:
            continue
        file.use(number)
    if not gpus:
        raise file.refuse(file.last, "no GPU in it", "import the output of nvidia-smi nvlink -s")
    gpus[-1] = _with_links(gpus[-1], is_up)
    return Reading(gpus=gpus)


def _with_links(gpu: Gpu, is_up: list[bool]) -> Gpu:
    if not is_up:
        return gpu
    return gpu.replace(nvlinks_active=sum(is_up), nvlinks_inactive=is_up.count(False))


# ---- topo -p2p


_HEAD = re.compile(r"^\s*GPU0(?:\s+GPU\d{1,3})*\s*$")
_ROW = re.compile(r"^\s*GPU(?P<index>\d{1,3})\s+(?P<cells>(?:(?:X|OK|CNS|GNS|TNS|NS|U)\s*)+)$")
_LEGEND = re.compile(r"^\s*(?:X|OK|CNS|GNS|TNS|NS|U|DR)\s+= |^\s*Legend")
_STATES = {
    "OK": "ok",
    "CNS": "chipset not supported",
    "GNS": "GPU not supported",
    "TNS": "topology not supported",
    "DR": "disabled by a driver setting",
    "NS": "not supported",
}


def _read_p2p(file: FilePart, _: ImportHints) -> Reading:
    rows: list[list[str]] = []
    for number, line in file.lines:
        if match := _ROW.match(line):
            cells = match["cells"].split()
            if int(match["index"]) != len(rows) or cells[len(rows) : len(rows) + 1] != ["X"]:
                raise file.refuse(number, "not the next row of the matrix")
            rows.append(cells)
        elif not (_HEAD.match(line) or _LEGEND.match(line)):
            continue
        file.use(number)
    if not rows or any(len(cells) != len(rows) for cells in rows):
        raise file.refuse(file.last, "the matrix has not a row for each column", "was it cut off?")
    none = Missing("nvidia-smi topo -p2p does not say; topo -m does")
    links = [
        GpuLink(a=a, b=b, path=none, p2p_read=_state(rows[a][b]), p2p_write=none)
        for a in range(len(rows))
        for b in range(a + 1, len(rows))
    ]
    gpus = [read_device(index, {}) for index in range(len(rows))]
    notes = ["it does not say whether reads or writes were asked for: taken for reads"]
    return Reading(gpus=gpus, links=links, notes=notes)


def _state(cell: str) -> str | Missing:
    return _STATES.get(cell, Missing("nvidia-smi says that it is unknown"))


IMPORTERS = (
    Importer(
        name="nvidia-smi-nvlink",
        title="NVLinks of each GPU (nvidia-smi nvlink -s)",
        order=136,
        marks=marks_of("nvidia-smi-nvlink"),
        read=_read_nvlinks,
        definition="links that are up and down; their rates are printed, not measured",
        judged_by="the doctor's check of NVLinks",
        source="nvidia-smi(1), nvlink -s",
        tested_on=("nvlink-2xa100.txt",),
    ),
    Importer(
        name="nvidia-smi-p2p",
        title="direct access between GPUs (nvidia-smi topo -p2p)",
        order=137,
        marks=marks_of("nvidia-smi-p2p"),
        read=_read_p2p,
        definition="whether one GPU may read another one's memory directly, or why not",
        judged_by="the doctor's check of direct access",
        source="nvidia-smi(1), topo -p2p",
        tested_on=("topo-p2p.txt",),
    ),
)
