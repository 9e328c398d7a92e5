"""CUDA samples' p2pBandwidthLatencyTest: one table of what each pair of GPUs reaches.

Bandwidth from the row's GPU to the column's, GB/s of 10⁹; bidirectional ones are both directions
added up; the diagonal copies within one GPU (read and written bytes counted).  Latencies are of a
16-byte copy, the GPU's and the CPU's view, in microseconds.  ``P2P=Enabled`` is what was asked
for: where two GPUs have no peer access CUDA copies through the host and the program prints those
numbers under the same title, so that the connectivity matrix, or equal numbers, say "no P2P".

Source: NVIDIA/cuda-samples p2pBandwidthLatencyTest.cu (read 2026-11-22).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from trainrig.importers.extract import GIGA, device_name, point, to_number
from trainrig.importers.file import FilePart
from trainrig.importers.importer import Importer, ImportHints, Reading
from trainrig.importers.spelling import marks_of
from trainrig.record import Case, Record

_TITLE = re.compile(
    r"(?P<ways>Uni|Bi)directional P2P=(?P<state>Enabled|Disabled) Bandwidth"
    r"(?: \(P2P (?P<copies>Writes|Reads)\))?.*Matrix|"
    r"P2P=(?P<latency>Enabled|Disabled) Latency(?: \(P2P (?P<timed>Writes|Reads)\))?.*Matrix|"
    r"(?P<access>P2P Connectivity Matrix)"
)
_HEADER = re.compile(r"\s*(?P<corner>D\\D|GPU|CPU)(?P<columns>(?:\s+\d{1,3})+)\s*$")
_DEVICE = re.compile(r"Device: (\d{1,3}), (.+?)(?:, pciBusID.*)?$")


_ABOUT = re.compile(
    r"Peer-to-Peer\) GPU Bandwidth Latency Test|^Device: \d|^Device=\d+ (?:CAN|CANNOT)|\*\*\*NOTE|"
    r"^NOTE: |^So you can see lesser"
)
"""Lines that list devices, and notes."""


class _Table:
    """The matrix whose lines are being read."""

    def __init__(self, title: re.Match[str]) -> None:
        self.title = title
        self.corner = ""
        self.columns: list[int] = []
        self.rows = 0
        self.corners: set[str] = set()

    @property
    def is_open(self) -> bool:
        """True while rows of the matrix are still to come."""
        return not self.columns or self.rows < len(self.columns)

    def begin(self, header: re.Match[str]) -> None:
        """Begin the matrix under a title; latencies have two, as GPU and as CPU see them."""
        self.corner, self.rows = header["corner"], 0
        self.corners.add(self.corner)
        self.columns = [int(column) for column in header["columns"].split()]


def _read(file: FilePart, hints: ImportHints) -> Reading:
    names = {int(m[1]): device_name(m[2]) for _, line in file.lines if (m := _DEVICE.search(line))}
    access: dict[tuple[int, int], bool] = {}
    cells: list[tuple[int, Case, str, float, tuple[int, int]]] = []
    for table, number, pair, value in _cells(file):
        if table.title["access"]:
            access[pair] = value > 0.0
        else:
            cells.append((number, *_case(table, *pair), value, pair))
    records = list(_records(file, hints, cells, names, access))
    notes = []
    if not any(metric == "time" for _, _, metric, _, _ in cells):
        notes.append("it has no latencies")
    if not access:
        notes.append("it has no connectivity matrix")
    return Reading(records=records, notes=notes)


def _cells(file: FilePart) -> Iterator[tuple[_Table, int, tuple[int, int], float]]:
    """Yield every number of every matrix: its table, its line, row and column."""
    table: _Table | None = None
    number = 0
    for number, line in file.lines:
        if _ABOUT.search(line):
            file.use(number)
        if title := _TITLE.search(line):
            file.use(number)
            _check_whole(file, number, table)
            table = _Table(title)
        elif table is not None and (header := _HEADER.match(line)):
            file.use(number)
            if table.columns:
                _check_whole(file, number, table)
            if header["corner"] in table.corners:  # whose title is missing: of what, nobody knows
                table = None
            else:
                table.begin(header)
        elif table is not None and table.columns and table.is_open and not file.is_cut(number):
            file.use(number)
            row, values = _values(file, number, line, table)
            table.rows += 1
            for column, value in zip(table.columns, values, strict=True):
                yield table, number, (row, column), value
    _check_whole(file, number, table)


def _check_whole(file: FilePart, line: int, table: _Table | None) -> None:
    if table is not None and table.is_open:
        raise file.refuse(line, "a matrix ends before its last row")


def _values(file: FilePart, number: int, line: str, table: _Table) -> tuple[int, list[float]]:
    cells = line.split()
    expected = table.columns[table.rows]
    if len(cells) != 1 + len(table.columns) or cells[0] != str(expected):
        raise file.refuse(number, f"not the row of GPU {expected} of a matrix")
    values = [to_number(file, number, cell, "number of a matrix") for cell in cells[1:]]
    if min(values) < 0.0:
        raise file.refuse(number, "a number below zero in a matrix")
    return expected, values


def _case(table: _Table, row: int, column: int) -> tuple[Case, str]:
    title = table.title
    enabled = "Enabled" in (title["state"], title["latency"])
    pair: Case = {"peer_access": enabled, "from": row, "to": column}
    if (copies := title["copies"] or title["timed"]) == "Reads":
        # The usual copies write; CUDA 11.4 and later measure both, and so say which.
        pair = {**pair, "copies": copies.lower()}
    if title["latency"]:
        return {"direction": "p2p", **pair, "clock": table.corner.lower()}, "time"
    ways = 1 if title["ways"] == "Uni" else 2
    return {"direction": "p2p", **pair, "ways": ways}, "byte_rate"


def _records(
    file: FilePart,
    hints: ImportHints,
    cells: list[tuple[int, Case, str, float, tuple[int, int]]],
    names: dict[int, str | None],
    access: dict[tuple[int, int], bool],
) -> Iterator[Record]:
    for number, pair, metric, value, (row, column) in cells:
        is_within, case = row == column, pair
        if is_within:
            same = {
                key: pair[key] for key in ("peer_access", "ways", "clock", "copies") if key in pair
            }
            case = {"direction": "d2d", "gpu": row, **same}
        is_time = metric == "time"
        yield point(
            file,
            number,
            "link",
            case,
            (metric, "s" if is_time else "B/s"),
            value * (1e-6 if is_time else GIGA),
            device=names.get(row) or device_name(hints.device) or "GPU",
            index=row,
            count=1 if is_within else 2,
            conditions={"can_access": None if is_within else access.get((row, column))},
        )


IMPORTER = Importer(
    name="p2pBandwidthLatencyTest",
    title="CUDA samples: rate and latency of pairs of GPUs",
    order=30,
    marks=marks_of("p2pBandwidthLatencyTest"),
    read=_read,
    definition="bytes over time from one GPU to another, GB/s of 10⁹; bidirectional: both "
    "directions added up; latency of a small copy as GPU and CPU see it, µs",
    judged_by="peer access asked for and not had is said (no P2P); with it, equal numbers too",
    source="github.com/NVIDIA/cuda-samples p2pBandwidthLatencyTest.cu",
    tested_on=("p2p-2x4090.txt", "p2p-2x3090ti-nvlink.txt"),
)
