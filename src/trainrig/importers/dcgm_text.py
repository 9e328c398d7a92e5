"""dcgmi diag's table, as it prints without ``-j``; judged as the JSON is (`dcgm`).

A row is a test; its result names the GPUs, or the rows below it do.  A warning or error row is of
the test above it.

Source: github.com/NVIDIA/DCGM dcgmi/Diag.cpp; versions 2.x to 4.x (read 2026-11-28).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from trainrig.importers.dcgm import record_of, state_of
from trainrig.importers.file import FilePart
from trainrig.importers.importer import Importer, ImportHints, Reading
from trainrig.importers.spelling import marks_of
from trainrig.record import Case, Record

_ROW = re.compile(r"^\|\s?(?P<name>.*?)\s*\|\s*(?P<text>.*?)\s*\|$")
_CATEGORY = re.compile(r"^[|+]-{3,}\s+(?P<name>\w[\w ]*?)\s+-+\+-*[|+]$")
_FRAME = re.compile(r"^[|+][-=+|]+$|^Successfully ran diagnostic")
_RESULT = re.compile(
    r"^(?P<status>Pass|Fail|Warn|Skip(?:ped)?|Not Run)"
    r"(?: - (?:All|GPUs?:? ?(?P<gpus>[\d, ]+)|.*))?$"
)
_OF_GPU = re.compile(r"^GPU ?(?P<gpu>\d{1,4}): (?P<status>Pass|Fail|Warn|Skip(?:ped)?|Not Run)$")
_REMARK = re.compile(r"^(?:Warning|Error)s?\b")


@dataclass(slots=True)
class _Test:
    line: int
    case: Case
    status: str
    by_gpu: dict[int, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)


def _read(file: FilePart, hints: ImportHints) -> Reading:
    tests: list[_Test] = []
    facts: dict[str, str] = {}
    category, in_warning = "", False
    for number, line in file.lines:
        if file.is_cut(number):
            continue
        if match := _CATEGORY.match(line):
            category = match["name"]
        elif match := _ROW.match(line):
            name, text = match["name"].strip(), match["text"]
            in_warning = _add(tests, facts, (number, category, name, text), is_more=in_warning)
        elif not _FRAME.match(line):
            continue
        file.use(number)
    if not tests:
        raise file.refuse(file.last, "no result of a test in it", "was it cut off?")
    records = [record for test in tests for record in _records(file, hints, test)]
    return Reading(
        version=facts.get("DCGM Version"),
        driver=facts.get("Driver Version Detected"),
        records=records,
    )


def _add(
    tests: list[_Test], facts: dict[str, str], row: tuple[int, str, str, str], *, is_more: bool
) -> bool:
    """Add a row to the test that it is of; return whether it is a warning."""
    number, category, name, text = row
    of_gpu, result = _OF_GPU.match(text), _RESULT.match(text)
    if tests and _REMARK.match(name):
        tests[-1].warnings.append(text)
        return True
    if tests and not name and of_gpu:
        tests[-1].by_gpu[int(of_gpu["gpu"])] = of_gpu["status"]
    elif tests and not name and is_more:
        tests[-1].warnings[-1] += f" {text}"
        return True
    elif result:
        if name:
            case: Case = {"test": name, "category": category}
            tests.append(_Test(number, case, result["status"]))
        gpus = re.findall(r"\d{1,4}", result["gpus"] or "")
        if tests:
            tests[-1].by_gpu.update(dict.fromkeys(map(int, gpus), result["status"]))
    else:
        facts.setdefault(name, text)
    return False


def _records(file: FilePart, hints: ImportHints, test: _Test) -> list[Record]:
    states: list[tuple[int | None, str]] = [*test.by_gpu.items()] or [(None, test.status)]
    records = []
    for index, status in states:
        warnings = [text for text in test.warnings if index is None or _is_of(text, index)]
        records.append(
            record_of(file, hints, test.case, index, state_of(status, tuple(warnings), None))
        )
    return records


def _is_of(warning: str, index: int) -> bool:
    """Return whether a warning names this GPU, or none."""
    named = re.findall(r"\bGPU ?(\d{1,4})\b", warning)
    return not named or str(index) in named


IMPORTER = Importer(
    name="dcgm-text",
    title="results of dcgmi diag (its table)",
    order=41,
    marks=marks_of("dcgm-text"),
    read=_read,
    definition="a result a test and GPU: passed, or failed with DCGM's words, or skipped",
    judged_by="a failure, an allocation error and a warning are faults; a skipped test is not done",
    source="github.com/NVIDIA/DCGM dcgmi diag",
    tested_on=("dcgm-diag-table.txt",),
)
