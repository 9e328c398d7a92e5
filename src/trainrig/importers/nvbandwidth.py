"""nvbandwidth: copies between host and GPUs, by copy engine (CE) or kernel (SM), text or JSON.

Each cell of a matrix is the median of its samples: bytes over time, GB/s of 10⁹; latency tests are
in ns.  ``host_to_device_memcpy`` and its mirror go one way for one GPU at a time; bidirectional
tests print one of two directions while the other is loaded; ``all_to_host`` and its like load all
GPUs at once.  Every test whose name is not one of these is one point a cell under its own name.
A waived test did not run: it is no pass.  The exit code is 0 whatever failed, so a status of
``Error`` is a fault.

Source: NVIDIA/nvbandwidth json_output.cpp, output.cpp and README.md (read 2026-11-22).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import field
from typing import Annotated

from pydantic import Field

from trainrig.importers.extract import (
    EXTERNAL,
    GIGA,
    device_name,
    fitted,
    point,
    to_number,
    word,
)
from trainrig.importers.file import FilePart
from trainrig.importers.importer import Importer, ImportHints, Reading
from trainrig.importers.spelling import marks_of
from trainrig.record import Case, Record, Status, read_by

_USUAL_BYTES = 1 << 29
"""Size of a buffer in bytes where ``--bufferSize`` is not given (README.md)."""
_COPIES = {"host_to_device_memcpy": "h2d", "device_to_host_memcpy": "d2h"}
_COMMAND = re.compile(r"(?:^|[\s/])nvbandwidth(?:\s+-|$)")
_BUFFER = re.compile(r"(?:^|\s)(?:-b|--bufferSize)[ =](\d{1,7})\b")
_DEVICE = re.compile(r"(?:Device )?(\d{1,4}): (.+?) \([0-9A-Fa-f]+:")
_RUNNING = re.compile(r"Running (?:benchmark )?([a-z0-9_]+)\.$")
_ABOUT = re.compile(
    r"^nvbandwidth Version|^Built from Git|^(?:CUDA (?:Runtime|Driver)|Driver) Version|^NOTE: |"
    r"(?:^|[\s/])nvbandwidth\b"
)
"""Lines that state what the run is, and the note at its end."""
_COLUMNS = re.compile(r"^\s*\d+(?:\s+\d+)*\s*$")
_SUM = re.compile(r"SUM ([a-z0-9_]+) (\S+)$")
_STATES = {"Passed": Status.OK, "Waived": Status.SKIPPED}


@read_by(EXTERNAL)
class _Test:
    name: Annotated[str, Field(min_length=1, max_length=200)]
    status: str
    bandwidth_description: str = ""
    bandwidth_matrix: tuple[tuple[float | str, ...] | None, ...] = ()
    error: str | None = None
    line: int | None = None


@read_by(EXTERNAL)
class _Whole:
    version: Annotated[str | None, Field(alias="version")] = None
    git_version: str | None = None
    driver: Annotated[str | None, Field(alias="Driver Version")] = None
    devices: Annotated[tuple[str, ...], Field(alias="GPU Device list")] = ()
    older_devices: Annotated[tuple[str, ...], Field(alias="GPU Devices")] = ()
    args: Annotated[str | tuple[str, ...] | None, Field(alias="Command line")] = None
    testcases: tuple[_Test, ...] = ()
    error: str | None = None


@read_by(EXTERNAL)
class _Root:
    nvbandwidth: _Whole = field()


def _read(file: FilePart, hints: ImportHints) -> Reading:
    return _read_json(file, hints) if file.is_json else _read_text(file, hints)


def _read_json(file: FilePart, hints: ImportHints) -> Reading:
    file.use_all()
    whole = fitted(file, _Root).nvbandwidth
    listed = whole.devices or whole.older_devices
    size = _stated_bytes(whole.args)
    names = {int(m[1]): device_name(m[2]) for testcase in listed if (m := _DEVICE.match(testcase))}
    records = [r for test in whole.testcases for r in _records(file, test, names, hints, size)]
    if whole.error:
        records.append(_failed(file, None, "nvbandwidth", whole.error, names, hints))
    version = whole.git_version or whole.version
    return Reading(
        version=word(version).removeprefix("v") if version else None,
        records=records,
        driver=word(whole.driver) if whole.driver else None,
        notes=_presumed(size),
    )


def _records(
    file: FilePart,
    test: _Test,
    names: dict[int, str | None],
    hints: ImportHints,
    stated_bytes: int | None,
) -> Iterator[Record]:
    status = _STATES.get(test.status, Status.FAILED)
    if status is not Status.OK:
        reason = test.error or f"nvbandwidth says {test.status}"
        if status is Status.SKIPPED:
            reason = "waived: it does not apply here (no peer access, or one GPU alone)"
        yield _failed(file, test.line, test.name, reason, names, hints, status)
        return
    is_latency = "latency" in test.name or "(ns)" in test.bandwidth_description
    base = re.sub(r"_(ce|sm)$", "", test.name)
    if not test.bandwidth_matrix:
        raise file.refuse(test.line, f"{test.name} passed and has no matrix")
    for row, cells in enumerate(test.bandwidth_matrix):
        for column, cell in enumerate(cells or ()):
            if cell == "N/A":
                continue
            value = to_number(file, test.line, str(cell), f"number of {test.name}")
            if value < 0.0:
                raise file.refuse(test.line, f"a number below zero in {test.name}")
            case = _case(test.name, base, (row, column), stated_bytes or _USUAL_BYTES, is_latency)
            index = column if base in _COPIES or len(test.bandwidth_matrix) == 1 else row
            yield point(
                file,
                test.line,
                "copy" if base in _COPIES else "link",
                case,
                ("time", "s") if is_latency else ("byte_rate", "B/s"),
                value * (1e-9 if is_latency else GIGA),
                device=names.get(index) or device_name(hints.device),
                index=index,
                count=_count(base, len(names)),
                conditions={"presumed": None if stated_bytes else "bytes"},
            )


def _count(base: str, num_devices: int) -> int:
    if "all" in base.split("_"):
        return max(1, num_devices)
    return 2 if base.startswith("device_to_device") else 1


def _case(name: str, base: str, place: tuple[int, int], num_bytes: int, is_latency: bool) -> Case:
    if base in _COPIES:
        return {
            "direction": _COPIES[base],
            "bytes": num_bytes,
            "memory": "pinned",
            "engine": name.rpartition("_")[2],
            "tool": "nvbandwidth",
        }
    row, column = place
    is_usual = is_latency or num_bytes == _USUAL_BYTES
    other: Case = {} if is_usual else {"bytes": num_bytes}
    return {"test": name, "row": row, "column": column, **other, "tool": "nvbandwidth"}


def _stated_bytes(words: str | Sequence[str] | None) -> int | None:
    """Return the size of the buffer that a command line names; --bufferSize and -b are in MiB."""
    text = words if isinstance(words, str) else " ".join(words or ())
    match = _BUFFER.search(text)
    return int(match[1]) << 20 if match else None


def _presumed(stated_bytes: int | None) -> list[str]:
    if stated_bytes:
        return []
    return ["it does not state the size of its buffers: the default of 512 MiB is presumed"]


def _failed(
    file: FilePart,
    line: int | None,
    name: str,
    reason: str,
    names: dict[int, str | None],
    hints: ImportHints,
    status: Status = Status.FAILED,
) -> Record:
    return point(
        file,
        line,
        "link",
        {"test": name, "tool": "nvbandwidth"},
        ("byte_rate", "B/s"),
        None,
        device=names.get(0) or device_name(hints.device),
        index=0,
        status=status,
        reason=reason,
    )


def _read_text(file: FilePart, hints: ImportHints) -> Reading:
    names: dict[int, str | None] = {}
    command = next((line for _, line in file.lines if _COMMAND.search(line)), None)
    size = _stated_bytes(command) or (_USUAL_BYTES if command else None)
    version = re.search(r"nvbandwidth Version:\s*v?(\S+)", file.head)
    driver = re.search(r"^Driver Version:\s*(\S+)", file.head, re.MULTILINE)
    tests: list[_Test] = []
    waived = 0
    lines = iter(file.lines)
    for number, line in lines:
        if _ABOUT.search(line):
            file.use(number)
        if match := _DEVICE.match(line.strip()):
            file.use(number)
            names[int(match[1])] = device_name(match[2])
        elif line.strip() == "Waived:":
            file.use(number)
            waived += 1
            tests.append(_Test(name=f"waived test {waived}", status="Waived", line=number))
        elif match := _RUNNING.search(line):
            file.use(number)
            test = _text_test(file, number, match[1], lines)
            tests.append(test)
        elif re.search(r"^(ERROR|Error|\[CUDA_ERROR)|Invalid value when checking", line):
            file.use(number)
            tests.append(_Test(name="nvbandwidth", status="Error", error=line, line=number))
    records = [record for test in tests for record in _records(file, test, names, hints, size)]
    return Reading(
        version=word(version[1]) if version else None,
        records=records,
        driver=word(driver[1]) if driver else None,
        notes=_presumed(size),
    )


def _text_test(file: FilePart, first: int, name: str, lines: Iterator[tuple[int, str]]) -> _Test:
    """Return the matrix below ``Running NAME.``, up to its sum."""
    description, columns = "", 0
    rows: list[list[str]] = []
    for number, line in lines:
        file.use(number)
        if match := _SUM.match(line.strip()):
            if match[1] != name:
                raise file.refuse(number, f"the sum of {match[1]} under {name}")
            matrix = tuple(tuple(row) for row in rows)
            return _Test(
                name=name,
                status="Passed",
                bandwidth_description=description,
                bandwidth_matrix=matrix,
                line=first,
            )
        if re.search(r"Waived|WAIVED", line):
            return _Test(name=name, status="Waived", line=number)
        if re.search(r"^(ERROR|Error)|CUDA_ERROR|Invalid value when checking", line):
            return _Test(name=name, status="Error", error=line, line=number)
        if "(GB/s)" in line or "(ns)" in line:
            description = line
        elif description and not columns and _COLUMNS.match(line):
            columns = len(line.split())
        elif columns:
            cells = line.split()
            if len(cells) != columns + 1 or cells[0] != str(len(rows)):
                raise file.refuse(number, f"not row {len(rows)} of the matrix of {name}")
            rows.append(cells[1:])
    raise file.refuse(file.last, f"the matrix of {name}, line {first}, ends before its sum")


IMPORTER = Importer(
    name="nvbandwidth",
    title="copies between host and GPUs (JSON, text)",
    order=15,
    marks=marks_of("nvbandwidth"),
    read=_read,
    definition="median of bytes over time, one direction, GB/s of 10⁹; all_to_host and its like: "
    "all GPUs at once; latencies in ns",
    judged_by="one-way copies: a least share of what the card's PCIe link claims; an error is a "
    "fault, a waived test no pass",
    source="github.com/NVIDIA/nvbandwidth json_output.cpp, output.cpp",
    tested_on=("nvbandwidth-4x5090.json", "nvbandwidth-gh200.txt"),
)
