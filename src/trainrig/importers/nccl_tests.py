"""nccl-tests: all_reduce_perf, all_gather_perf and their siblings, as text or JSON (-J).

A row is one message size, out of place and in place.  Algorithm bandwidth is the message's bytes
over the mean time of a call; bus bandwidth is that times 2(n-1)/n for all_reduce, (n-1)/n for
all_gather, reduce_scatter and alltoall, and 1 for broadcast and reduce, so that it compares with
the rate of one GPU's link in one direction.  A row with values that were wrong (``#wrong``) is a
wrong answer whatever its rate.  Of one rank alone nothing is sent, so that its rates are skipped;
ranks that no line names, or whose lines are not all there, are not known.

Source: NVIDIA/nccl-tests src/util.cu and doc/PERFORMANCE.md (read 2026-11-22).
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import BeforeValidator, Field

from trainrig.errors import DataError
from trainrig.importers.extract import (
    EXTERNAL,
    GIGA,
    device_name,
    fitted,
    point,
    to_count,
    to_number,
    word,
)
from trainrig.importers.file import FilePart
from trainrig.importers.importer import Importer, ImportHints, Reading
from trainrig.importers.spelling import marks_of
from trainrig.record import WRONG_ANSWER, Case, Record, Status, read_by

COLLECTIVES = {
    "all_reduce": "all_reduce",
    "allreduce": "all_reduce",
    "all_gather": "all_gather",
    "allgather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "all_to_all": "all_to_all",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "sendrecv": "sendrecv",
    "gather": "gather",
    "scatter": "scatter",
    "hypercube": "hypercube",
}
"""Our word for a collective, by the name of its program or file."""
_TYPES = r"(?:u?int(?:8|32|64)|float|double|half|bfloat16|f8e4m3|f8e5m2|fp8_e4m3|fp8_e5m2)"
_ROW = re.compile(
    rf"^\s*(?P<size>\d{{1,18}})\s+(?P<count>\d{{1,18}})\s+(?P<type>{_TYPES})\s+"
    r"(?P<rest>.*)$"
)
_LOOKS_LIKE_ROW = re.compile(rf"^\s*\d\S*\s+\S+\s+\S+.*\.\d|\s{_TYPES}\s.*\.\d")
"""Between the header and the total: numbers from the first on, or a type of elements."""
_RANK = re.compile(
    r"Rank\s+(?P<rank>\d{1,7})\b.*?\bPid\s+(?P<pid>\d+)\s+on\s+(?P<host>\S+)\s+device\s+\d+\s+"
    r"\[[0-9A-Fa-fx:.]*\]\s*(?P<name>.*)$"
)
_IS_ABOUT = re.compile(
    r"^\s*#|_perf\b|nccl-tests version|\balgbw\b|Out of bounds|Avg bus bandwidth|NCCL version|"
    r"Collective test"
)
"""Lines around the rows: their head, the ranks, totals."""
_PROGRAM = re.compile(r"\b([a-z_]+)_perf\b")
_VERSION = re.compile(r"nccl-tests version (\S+)")
_LIBRARY = re.compile(r"nccl-library=(\d+)|NCCL version ([\d.]+)")
_TOTAL = re.compile(r"Out of bounds values\s*:\s*(\d+)\s+(\w+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """Facts that all rows of a run share."""

    collective: str | None
    device: str | None
    ranks: int | None
    nodes: int | None
    library: str | None = None


@read_by(EXTERNAL)
class _Side:
    """Out-of-place or in-place half of a row; times in microseconds, bandwidths in GB/s."""

    time: Annotated[float, Field(ge=0.0)] | None = None
    cpu_time: Annotated[float, Field(ge=0.0)] | None = None
    alg_bw: Annotated[float, Field(ge=0.0)]
    bus_bw: Annotated[float, Field(ge=0.0)]
    nwrong: Annotated[float, Field(ge=0.0)] | None = None


def _records(
    file: FilePart, line: int | None, run: _Run, size: int, more: Case, side: _Side
) -> Iterator[Record]:
    case: Case = {**_benchmark_case(run), "bytes": size, **more}
    wrong = side.nwrong or 0.0
    status, reason = Status.OK, None
    if wrong:
        status, reason = Status.FAILED, f"{WRONG_ANSWER}: {wrong:g} wrong values (#wrong)"
    elif run.ranks == 1:
        status, reason = Status.SKIPPED, "one rank: nothing was sent"
    timed = side.time if side.time is not None else side.cpu_time
    metrics = [("bus_rate", "B/s", side.bus_bw * GIGA), ("alg_rate", "B/s", side.alg_bw * GIGA)]
    if timed is not None:
        metrics.append(("time", "s", timed * 1e-6))
    for name, unit, value in metrics:
        yield point(
            file,
            line,
            "collective",
            case,
            (name, unit),
            value if status is Status.OK else None,
            device=run.device,
            count=run.ranks,
            status=status,
            reason=reason,
            conditions={
                "checked": side.nwrong is not None,
                "nccl": run.library,
                "timed": "cpu" if side.time is None else None,
            },
        )


def _benchmark_case(run: _Run) -> Case:
    """Return the case of all rows; what is not known is not in it."""
    stated = {"collective": run.collective, "ranks": run.ranks, "nodes": run.nodes}
    return {name: value for name, value in stated.items() if value is not None}


# ---- text


@dataclass(frozen=True, slots=True, kw_only=True)
class _Header:
    """Columns of a table's rows."""

    lead: tuple[str, ...] = ("redop", "root")
    """Between the type and the first time."""
    sides: int = 2
    """Out of place, and in place."""
    old: bool = False
    """True where the last column of a side is the largest error, as before version 2.13."""


def _has_all_columns(names: Sequence[str]) -> bool:
    """Return whether each side of the head has its four columns."""
    sides = names.count("algbw")
    times = names.count("time") + names.count("cputime")
    wrong = names.count("#wrong") + names.count("error")
    return (times, names.count("busbw"), wrong) == (sides, sides, sides)


def _header(line: str) -> _Header:
    names = line.split()
    begin = names.index("type") + 1
    lead = [name for name in names[begin : names.index("algbw")] if name not in ("time", "cputime")]
    return _Header(lead=tuple(lead), sides=names.count("algbw"), old="error" in names)


def _read_text(file: FilePart) -> Reading:
    run, notes = _text_run(file)
    records: list[Record] = []
    totals: list[tuple[int, str, str]] = []
    header, is_open, rows = _Header(), False, 0
    for number, line in file.lines:
        if _IS_ABOUT.search(line):
            file.use(number)
        if "algbw" in line and "busbw" in line and "type" in line:
            if not _has_all_columns(line.split()):
                raise file.refuse(number, "the head of the columns is broken off")
            header, is_open = _header(line), True
        elif total := _TOTAL.search(line):
            totals.append((number, total[1], total[2]))
            is_open = False
        try:
            row = _row_of(file, (number, line), run, header, is_open=is_open)
        except DataError:
            if number != file.last:
                raise
            notes.append(f"line {number} is broken off and was not read")
            continue
        rows += bool(row)
        records += row
    if rows and not totals:
        notes.append("it has no last line ('Out of bounds values'): the run was cut off")
    records += [_failed(file, line, run, num) for line, num, word_ in totals if word_ != "OK"]
    return Reading(version=_find(file, _VERSION), records=records, notes=notes)


def _row_of(
    file: FilePart, numbered: tuple[int, str], run: _Run, header: _Header, *, is_open: bool
) -> list[Record]:
    """Return the records of a line; none where it is no row.  Raises DataError for a broken one."""
    number, line = numbered
    if match := _ROW.search(line):
        file.use(number)
        return list(_row(file, number, run, match, header))
    if is_open and _LOOKS_LIKE_ROW.search(line) and not line.lstrip().startswith("#"):
        raise file.refuse(number, "a row of results that is broken off")
    return []


def _find(file: FilePart, pattern: re.Pattern[str]) -> str | None:
    match = pattern.search(file.text)
    return word(next(group for group in match.groups() if group)) if match else None


def _text_run(file: FilePart) -> tuple[_Run, list[str]]:
    """Read the run from the lines that list its ranks; return notes for the user beside it."""
    listed = {
        (int(match["rank"]), match["host"], match["pid"]): match["name"]
        for _, line in file.lines
        if (match := _RANK.search(line))
    }
    run = _Run(collective=_collective(file), device=None, ranks=None, nodes=None)
    run = dataclasses.replace(run, library=_find(file, _LIBRARY))
    if not listed:
        return run, ["no line of it names the ranks: how many there were is not known"]
    names = Counter(device_name(name) for name in listed.values())
    times = Counter(rank for rank, _, _ in listed)
    ranks, copies, notes = max(times) + 1, max(times.values()), []
    nodes: int | None = len({host for _, host, _ in listed})
    if len(times) != ranks:
        notes.append(f"the lines of {ranks - len(times)} of {ranks} ranks are not in it")
        nodes = None
    elif copies > 1:
        # Built without MPI each process counts its ranks from 0 and talks to no other.
        gpus = f"{ranks} GPUs each" if ranks > 1 else "one GPU each"
        reason = "nothing was sent" if ranks == 1 else "nothing was sent between them"
        notes.append(
            f"rank 0 is listed {copies} times: {copies} runs of {gpus} (built without MPI); "
            f"{reason}"
        )
        nodes = max(1, (nodes or 1) // copies)
    elif ranks == 1:
        notes.append("one rank: nothing was sent")
    if len(names) > 1:
        notes.append(f"ranks of {len(names)} models of GPU: the most common one is named")
    device = names.most_common(1)[0][0]
    return dataclasses.replace(run, device=device, ranks=ranks, nodes=nodes), notes


def _collective(file: FilePart) -> str | None:
    """Return the collective, by the program that the run names, else by the file's name."""
    named = [name for name in _PROGRAM.findall(file.text) if name in COLLECTIVES]
    if named:
        return COLLECTIVES[named[0]]
    if not file.is_only:
        return None
    by_length = sorted(COLLECTIVES, key=len, reverse=True)
    stem = file.name.lower()
    collective = next((length for length in by_length if length in stem), None)
    return COLLECTIVES[collective] if collective else None


def _row(
    file: FilePart, line: int, run: _Run, match: re.Match[str], header: _Header
) -> Iterator[Record]:
    cells = match["rest"].split()
    expected = 4 * header.sides
    lead: dict[str, str] = {}
    for name in header.lead:  # alltoall prints nothing under redop and root
        is_word = bool(cells) and not re.match(r"[-+.\d]|N/A$", cells[0])
        if is_word or (name == "root" and len(cells) > expected):
            lead[name] = cells.pop(0)
    # A time stamp may follow; fewer numbers than the header has are a line that was broken off.
    if len(cells) < expected:
        raise file.refuse(line, f"{len(cells)} numbers in a row that has {expected}")
    more: Case = {} if match["type"] == "float" else {"dtype": match["type"]}
    if lead.get("redop", "none") not in ("none", "sum"):
        more = {**more, "reduction": lead["redop"]}
    size = to_count(file, line, match["size"], "size")
    for place in range(header.sides):
        read = _side(file, line, cells[4 * place : 4 * place + 4], old=header.old)
        where: Case = {"in_place": True} if place else {}
        yield from _records(file, line, run, size, {**more, **where}, read)


def _side(file: FilePart, line: int, cells: Sequence[str], *, old: bool) -> _Side:
    time, alg, bus = (
        to_number(file, line, cell, column)
        for cell, column in zip(cells, ("time", "algbw", "busbw"), strict=False)
    )
    if min(time, alg, bus) < 0.0:
        raise file.refuse(line, "a time or bandwidth below zero")
    wrong = None
    if cells[3] != "N/A":
        wrong = to_number(file, line, cells[3], "count of wrong values")
        if old:  # the largest relative error: rounding leaves a little
            wrong = 0.0 if wrong <= _ROUNDING else wrong
    return _Side(time=time, alg_bw=alg, bus_bw=bus, nwrong=wrong)


_ROUNDING = 1e-3
"""Error that a sum in fp16 over many ranks may have; the column of versions before 2.13."""


def _failed(file: FilePart, line: int | None, run: _Run, num: str) -> Record:
    return point(
        file,
        line,
        "collective",
        _benchmark_case(run),
        ("bus_rate", "B/s"),
        None,
        device=run.device,
        count=run.ranks,
        status=Status.FAILED,
        reason=f"{WRONG_ANSWER}: out of bounds values: {num} FAILED",
    )


# ---- JSON


def _no_text(value: object) -> object:
    return None if value in ("nan", "N/A") else value


@read_by(EXTERNAL)
class _JsonRow:
    size: Annotated[int, Field(ge=0, lt=2**62)]
    type: str = "float"
    redop: str = "none"
    out_of_place: Annotated[_Side | None, BeforeValidator(_no_text)] = None
    in_place: Annotated[_Side | None, BeforeValidator(_no_text)] = None
    experiment_name: str = ""


@read_by(EXTERNAL)
class _Device:
    rank: int
    hostname: str = ""
    device_info: str = ""


@read_by(EXTERNAL)
class _Config:
    devices: tuple[_Device, ...] = ()
    nthreads: Annotated[int, Field(ge=1)] = 1
    ngpus: Annotated[int, Field(ge=1)] = 1


@read_by(EXTERNAL)
class _Bounds:
    count: Annotated[int, Field(ge=0)] = 0


@read_by(EXTERNAL)
class _Json:
    args: tuple[str, ...] = ()
    nccl_version: Annotated[int, Field(ge=0)] = 0
    config: _Config = field(default_factory=_Config)
    results: tuple[_JsonRow, ...]
    out_of_bounds: _Bounds | None = None


def _read_json(file: FilePart) -> Reading:
    file.use_all()
    whole = fitted(file, _Json)
    devices = whole.config.devices
    programs = _PROGRAM.findall(" ".join(whole.args[:1]))
    named = [COLLECTIVES[name] for name in programs if name in COLLECTIVES]
    names = [device_name(device.device_info) for device in devices]
    # Without MPI the file lists the first device alone.
    ranks = max(len(devices), whole.config.nthreads * whole.config.ngpus)
    run = _Run(
        collective=named[0] if named else _collective(file),
        device=Counter(names).most_common(1)[0][0] if names else None,
        ranks=ranks,
        nodes=max(1, len({device.hostname for device in devices})),
        library=str(whole.nccl_version) if whole.nccl_version else None,
    )
    records: list[Record] = []
    for row in whole.results:
        more: Case = {} if row.type == "float" else {"dtype": row.type}
        if row.redop not in ("none", "sum"):
            more = {**more, "reduction": row.redop}
        for side, where in ((row.out_of_place, {}), (row.in_place, {"in_place": True})):
            if side is not None:
                records += _records(file, None, run, row.size, {**more, **where}, side)
    notes = []
    if whole.out_of_bounds is None:
        notes.append("it has no count of values out of bounds: the run was cut off")
    elif whole.out_of_bounds.count:
        records.append(_failed(file, None, run, str(whole.out_of_bounds.count)))
    return Reading(records=records, notes=notes)


def _read(file: FilePart, _: ImportHints) -> Reading:
    return _read_json(file) if file.is_json else _read_text(file)


IMPORTER = Importer(
    name="nccl-tests",
    title="collectives by message size (text, JSON)",
    order=10,
    marks=marks_of("nccl-tests"),
    read=_read,
    definition="bus bandwidth per GPU and direction, bytes × 2(n−1)/n or (n−1)/n over mean time "
    "of a call; algorithm bandwidth: bytes over that time; GB/s of 10⁹",
    judged_by="any wrong value is a fault; on one node the links' data sheet is the ceiling shown",
    source="github.com/NVIDIA/nccl-tests src/util.cu",
    tested_on=("nccl-all-reduce-8xa100.txt", "nccl-all-reduce-wrong.txt", "nccl-all-reduce.json"),
)
