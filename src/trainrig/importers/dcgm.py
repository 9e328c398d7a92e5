"""DCGM's diagnostics: ``dcgmi diag -r LEVEL -j``, of DCGM 2 to 4.

A result a test and GPU: a pass is a pass alone.  A test that was skipped did not look; one that
could not allocate its memory, or that answered with an error, is no pass either: it failed,
whatever the summary says.  What a test measured stands in its condition ``info`` as DCGM words it.

Source: NVIDIA/DCGM dcgmi diag's JSON, as printed by versions 2.x ("DCGM GPU Diagnostic", gpu_ids)
and 4.x ("DCGM Diagnostic", entity_id); read 2026-11-22.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import field
from typing import Annotated

from pydantic import Field

from trainrig.importers.extract import EXTERNAL, device_name, fitted, point, word
from trainrig.importers.file import FilePart
from trainrig.importers.importer import Importer, ImportHints, Reading
from trainrig.importers.spelling import marks_of
from trainrig.record import Case, Record, Status, read_by

_STATES = {
    "pass": Status.OK,
    "skip": Status.SKIPPED,
    "skipped": Status.SKIPPED,
    "not run": Status.SKIPPED,
    "notrun": Status.SKIPPED,
}
_NO_MEMORY = re.compile(r"(?:un)?able to allocate|allocat\w* (?:error|fail)|out of memory", re.I)
_FAILED_TO = re.compile(r"couldn.t allocate|could not allocate|failed to allocate|unable to", re.I)


@read_by(EXTERNAL)
class _Warning:
    warning: str = ""
    error_id: int | None = None
    error_severity: int | None = None


_Texts = str | tuple[str | _Warning, ...] | None


@read_by(EXTERNAL)
class _Result:
    status: str
    gpu_ids: str | int | None = None
    gpu_id: str | int | None = None
    entity_group: str | None = None
    entity_id: Annotated[int, Field(ge=0)] | None = None
    info: _Texts = None
    warnings: _Texts = None


@read_by(EXTERNAL)
class _Summary:
    status: str | None = None
    info: _Texts = None
    warnings: _Texts = None


@read_by(EXTERNAL)
class _Test:
    name: Annotated[str, Field(min_length=1, max_length=200)]
    results: tuple[_Result, ...] = ()
    test_summary: _Summary | None = None


@read_by(EXTERNAL)
class _Category:
    category: str
    tests: tuple[_Test, ...] = ()


@read_by(EXTERNAL)
class _Diagnostic:
    test_categories: tuple[_Category, ...]
    runtime_error: str | None = None


@read_by(EXTERNAL)
class _Metadata:
    version: str | None = None
    driver: Annotated[str | None, Field(alias="Driver Version Detected")] = None


@read_by(EXTERNAL)
class _Whole:
    older: Annotated[_Diagnostic | None, Field(alias="DCGM GPU Diagnostic")] = None
    newer: Annotated[_Diagnostic | None, Field(alias="DCGM Diagnostic")] = None
    metadata: _Metadata = field(default_factory=_Metadata)
    runtime_error: str | None = None
    version: Annotated[str | None, Field(alias="DCGM Version")] = None


def _read(file: FilePart, hints: ImportHints) -> Reading:
    file.use_all()
    whole = fitted(file, _Whole)
    diagnostic = whole.newer or whole.older
    error = whole.runtime_error or (diagnostic.runtime_error if diagnostic else None)
    records: list[Record] = []
    if error:
        case: Case = {"test": "dcgmi diag"}
        state = (Status.FAILED, f"DCGM: {error}", "")
        records.append(record_of(file, hints, case, None, state))
    elif diagnostic is None:
        raise file.refuse(1, "no 'DCGM Diagnostic' in it")
    for category in diagnostic.test_categories if diagnostic else ():
        for test in category.tests:
            case = {"test": test.name, "category": category.category}
            records += _test_records(file, hints, case, test)
    return Reading(
        version=_first(whole.metadata.version, whole.version),
        records=records,
        driver=_first(whole.metadata.driver),
    )


def _first(*texts: str | None) -> str | None:
    return next((word(text) for text in texts if text), None)


def _test_records(file: FilePart, hints: ImportHints, case: Case, test: _Test) -> Iterator[Record]:
    summary = test.test_summary or _Summary()
    seen: set[Status] = set()
    for result in test.results:
        state = state_of(result.status, result.warnings, result.info)
        seen.add(state[0])
        for index in _gpus(result) or (None,):
            yield record_of(file, hints, case, index, state)
    if summary.status is None and test.results:
        return
    whole = state_of(summary.status or "not run", summary.warnings, summary.info)
    # What the summary alone knows: nothing was looked at, or it failed beside the GPUs.
    if not test.results or (whole[0] is Status.FAILED and Status.FAILED not in seen):
        yield record_of(file, hints, case, None, whole)


def _gpus(result: _Result) -> list[int]:
    if result.entity_id is not None and (result.entity_group or "GPU") == "GPU":
        return [result.entity_id]
    listed = str(
        next((number for number in (result.gpu_ids, result.gpu_id) if number is not None), "")
    )
    return [int(number) for number in re.findall(r"\b\d{1,4}\b", listed)]


def _texts(texts: _Texts) -> list[str]:
    if texts is None:
        return []
    listed = (texts,) if isinstance(texts, str) else texts
    return [word(text.warning if isinstance(text, _Warning) else text) for text in listed]


def state_of(status: str, warnings: _Texts, info: _Texts) -> tuple[Status, str, str]:
    """Return a test's status, its reason, and the measurement that DCGM words."""
    warned, stated = _texts(warnings), _texts(info)
    shown = "; ".join(stated)
    no_memory = next((t for t in (*warned, *stated) if _is_allocation(t)), None)
    state = _STATES.get(status.strip().lower(), Status.FAILED)
    if no_memory is not None:
        return Status.FAILED, f"it could not allocate its memory: {no_memory}", shown
    reason = "; ".join(warned) or (shown if state is not Status.OK else "")
    if state is Status.OK and warned:
        return Status.FAILED, f"passed with a warning: {reason}", shown
    if state is not Status.OK:
        reason = f"DCGM says {word(status)}{f': {reason}' if reason else ''}"
    return state, reason, shown


def _is_allocation(text: str) -> bool:
    return bool(_NO_MEMORY.search(text) or ("alloc" in text.lower() and _FAILED_TO.search(text)))


def record_of(
    file: FilePart,
    hints: ImportHints,
    case: Case,
    index: int | None,
    state: tuple[Status, str, str],
) -> Record:
    status, reason, info = state
    return point(
        file,
        None,
        "diagnostic",
        case,
        ("passed", "1"),
        1.0 if status is Status.OK else None,
        device=device_name(hints.device) or (None if index is None else "GPU"),
        index=index,
        status=status,
        reason=reason or None,
        conditions={"info": info or None},
    )


IMPORTER = Importer(
    name="dcgm",
    title="results of dcgmi diag (JSON)",
    order=40,
    marks=marks_of("dcgm"),
    read=_read,
    definition="a result a test and GPU: passed, or failed with DCGM's words, or skipped",
    judged_by="a failure, an allocation error and a warning are faults; a skipped test is not done",
    source="github.com/NVIDIA/DCGM dcgmi diag -j",
    tested_on=("dcgm-diag-skip.json", "dcgm-diag-pass.json", "dcgm-diag-allocation.json"),
)
