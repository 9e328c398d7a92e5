"""CUDA samples' bandwidthTest: host to device, device to host, within the device.

Mean of ten copies of the same buffer (32 MB in quick mode), pinned or pageable, timed on the
device; within the device read and written bytes are both counted.  GB/s are 10⁹ bytes a second
(CUDA 10 and later; MB/s of before are 1000 × 1024).

Source: NVIDIA/cuda-samples bandwidthTest.cu (read 2026-11-22).
"""

from __future__ import annotations

import re

from trainrig.importers.extract import device_name, point, take_lines, to_count, to_number
from trainrig.importers.file import FilePart
from trainrig.importers.importer import Importer, ImportHints, Reading
from trainrig.importers.spelling import marks_of
from trainrig.record import Record, Status

_WAYS = {"Host to Device": "h2d", "Device to Host": "d2h", "Device to Device": "d2d"}
_DEVICE = re.compile(r"^\s*Device (\d{1,3}): (.+?)\s*$")
_TITLE = re.compile(r"(Host to Device|Device to Host|Device to Device) Bandwidth, (\d+) Device")
_MEMORY = re.compile(r"(PINNED|PAGEABLE) Memory Transfers")
_COLUMNS = re.compile(r"Transfer Size \(Bytes\)\s+Bandwidth\(([GM])B/s\)")
_ROW = re.compile(r"^\s*(\d{1,18})\s+(\S+)\s*$")
_CSV = re.compile(
    r"bandwidthTest-(H2D|D2H|D2D)(?:-(Pinned|Paged|Pageable))?, Bandwidth = (\S+) ([GM])B/s, "
    r"Time = (\S+) s, Size = (\d+) bytes, NumDevsUsed = (\d+)"
)
_RESULT = re.compile(r"Result = (\w+)")
_ABOUT = re.compile(r"CUDA Bandwidth Test|^Running on|(?:Quick|Shmoo|Range) Mode|^NOTE: ")
_BROKEN = re.compile(r"bandwidthTest-\w+.*,")
# Before CUDA 10 it computes bytes × 2¹⁰ / (milliseconds × 2²⁰): its MB are 1000 × 1024 bytes.
_STEPS = {"G": 1e9, "M": 1.024e6}


class _Lines:
    """Collect the runs that the lines so far describe."""

    def __init__(self, file: FilePart, hints: ImportHints) -> None:
        self.file, self.hints = file, hints
        self.devices: dict[int, str | None] = {}
        self.records: list[Record] = []
        self.way: str | None = None
        self.is_titled = False
        """Whether a title stands above, whose table is still to come."""
        self.has_orphans = False
        """Whether rows stand below no title, of which nobody knows what was copied where."""
        self.memory: str | None = None
        self.step = "G"
        self.passed: bool | None = None

    def device(self, _: int, match: re.Match[str]) -> None:
        self.devices[int(match[1])] = device_name(match[2])

    def title(self, _: int, match: re.Match[str]) -> None:
        self.way, self.memory, self.is_titled = _WAYS[match[1]], None, True

    def kind(self, _: int, match: re.Match[str]) -> None:
        self.memory = match[1].lower()

    def columns(self, _: int, match: re.Match[str]) -> None:
        """Begin a table; one without a title of its own is not of the title before."""
        self.way = self.way if self.is_titled else None
        self.step, self.is_titled = match[1], False

    def result(self, _: int, match: re.Match[str]) -> None:
        self.passed = match[1] == "PASS"

    def csv(self, number: int, match: re.Match[str]) -> None:
        kind = {"Pinned": "pinned", None: "pinned"}.get(match[2], "pageable")
        self._add(number, (match[1].lower(), kind, match[6], match[3], match[4]))

    def broken(self, number: int, _: re.Match[str]) -> None:
        raise self.file.refuse(number, "a row of results that is broken off")

    def about(self, _: int, __: re.Match[str]) -> None:
        """Skip a line that is recognised and holds no number."""

    def row(self, number: int, match: re.Match[str]) -> None:
        if self.way is None:
            self.has_orphans = True
        else:
            self._add(number, (self.way, self.memory, match[1], match[2], self.step))

    def _add(self, number: int, cells: tuple[str, str | None, str, str, str]) -> None:
        way, memory, size, rate, step = cells
        num_bytes = to_count(self.file, number, size, "size")
        value = to_number(self.file, number, rate, "bandwidth") * _STEPS[step]
        copied = (way, memory, num_bytes, value)
        self.records.append(_record(self.file, number, copied, self.devices, self.hints))


def _read(file: FilePart, hints: ImportHints) -> Reading:
    lines = _Lines(file, hints)
    take_lines(
        file,
        (
            (_DEVICE, lines.device),
            (_TITLE, lines.title),
            (_MEMORY, lines.kind),
            (_COLUMNS, lines.columns),
            (_RESULT, lines.result),
            (_CSV, lines.csv),
            (_BROKEN, lines.broken),
            (_ROW, lines.row),
            (_ABOUT, lines.about),
        ),
    )
    records = lines.records
    if lines.passed is False and records:
        why = "the test says Result = FAIL"
        failed = [r.replace(value=None, status=Status.FAILED, reason=why) for r in records[-1:]]
        records = [*records[:-1], *failed]
    notes = [] if lines.passed is not None else ["it has no line 'Result': the run was cut off"]
    if lines.has_orphans:
        notes.append(
            "rows below no heading 'Host to Device Bandwidth' or the like were left out: what they "
            "copied is not known"
        )
    return Reading(records=records, notes=notes)


def _record(
    file: FilePart,
    line: int,
    copied: tuple[str, str | None, int, float],
    devices: dict[int, str | None],
    hints: ImportHints,
) -> Record:
    way, memory, size, rate = copied
    if rate < 0.0:
        raise file.refuse(line, "a bandwidth below zero")
    index, device = next(iter(devices.items()), (0, None))
    return point(
        file,
        line,
        "copy",
        {
            "direction": way,
            "bytes": size,
            **({"memory": kind} if (kind := "device" if way == "d2d" else memory) else {}),
            "tool": IMPORTER.name,
        },
        ("byte_rate", "B/s"),
        rate,
        device=device or device_name(hints.device),
        index=index,
        count=max(1, len(devices)),
    )


IMPORTER = Importer(
    name="bandwidthTest",
    title="CUDA samples: copies to, from and within a device",
    order=20,
    marks=marks_of("bandwidthTest"),
    read=_read,
    definition="bytes over the mean time of a copy of one buffer; within a device read and written "
    "bytes; GB/s of 10⁹, of one direction at a time",
    judged_by="pinned copies of 16 MiB and more: a least share of what the card's PCIe link claims",
    source="github.com/NVIDIA/cuda-samples bandwidthTest.cu",
    tested_on=("bandwidthTest-quick.txt", "bandwidthTest-shmoo.txt"),
)
