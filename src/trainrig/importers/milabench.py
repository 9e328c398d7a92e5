"""milabench: the JSON lines that one of its benchmarks wrote (``*.data``).

The rate is the median of the events ``rate`` behind the first ones, items a second as the benchmark
counts them, of the device that it ran on.  A return code other than 0 or an event ``error`` is a
failure, with the last line of the traceback.

Source: mila-iqia/milabench milabench/log.py and report.py (read 2026-11-22).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from trainrig.importers.extract import device_name, point, word
from trainrig.importers.file import FilePart
from trainrig.importers.importer import Importer, ImportHints, Reading
from trainrig.importers.spelling import marks_of
from trainrig.record import Case, Record, Status
from trainrig.stats import median

_FIRST = 1
"""Rates that are left out where there are more: the first one holds compilation."""


class _Run:
    """Settings and rates in the events of a run."""

    def __init__(self) -> None:
        self.name = ""
        self.units = "items/s"
        self.rates: list[float] = []
        self.losses: list[float] = []
        self.memory = 0.0
        self.device: str | None = None
        self.code: int | None = None
        self.problem: str | None = None
        self.version: str | None = None


def _read(file: FilePart, hints: ImportHints) -> Reading:
    run, num_events = _Run(), 0
    for number, line in file.lines:
        if not line.startswith('{"event"'):
            continue
        file.use(number)
        num_events += 1
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            raise file.refuse(number, "not JSON") from None
        if not isinstance(event, dict) or not isinstance(event.get("event"), str):
            raise file.refuse(number, "not an event of milabench")
        _take(file, number, event, run)
    if not num_events:
        raise file.refuse(file.last, "no event of milabench in it")
    return Reading(version=run.version, records=_records(file, run, hints), notes=_notes(run))


def _take(file: FilePart, number: int, event: Mapping[str, Any], run: _Run) -> None:
    data, kind = event.get("data"), event["event"]
    if kind == "line" and isinstance(data, str):
        text = data.strip()
        if "Error" in text.partition(":")[0] and not text.startswith("File"):
            run.problem = word(text)
        return
    if not isinstance(data, dict):
        return
    if kind == "config":
        run.name = word(data.get("name") or data.get("group") or "benchmark")
    elif kind == "meta":
        run.device = _device(data)
        about = data.get("milabench")
        tag = about.get("tag") if isinstance(about, dict) else None
        run.version = word(tag) if isinstance(tag, str) else None
    elif kind == "error":
        run.problem = word(data.get("message") or data.get("type") or "error")
    elif kind == "end":
        code = data.get("return_code")
        run.code = code if isinstance(code, int) else None
    elif kind == "data":
        _numbers(file, number, data, run)


def _device(data: Mapping[str, Any]) -> str | None:
    gpus = data.get("accelerators")
    gpus = gpus.get("gpus") if isinstance(gpus, dict) else None
    first = next(iter(gpus.values()), None) if isinstance(gpus, dict) else None
    product = first.get("product") if isinstance(first, dict) else None
    return device_name(product) if isinstance(product, str) else None


def _numbers(file: FilePart, number: int, data: Mapping[str, Any], run: _Run) -> None:
    if "rate" in data and data.get("task", "train") in ("train", "main"):
        rate = data["rate"]
        if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0.0 <= rate < 1e18:
            raise file.refuse(number, f"not a rate: {word(rate)[:40]}")
        run.rates.append(float(rate))
        if isinstance(data.get("units"), str):
            run.units = word(data["units"])[:40]
    gpus = data.get("gpudata")
    for gpu in gpus.values() if isinstance(gpus, dict) else ():
        memory = gpu.get("memory") if isinstance(gpu, dict) else None
        used = memory[0] if isinstance(memory, list) and memory else None
        if isinstance(used, int | float) and 0.0 <= used < 1e9:
            run.memory = max(run.memory, float(used) * 2.0**20)


def _records(file: FilePart, run: _Run, hints: ImportHints) -> list[Record]:
    case: Case = {"bench": run.name or "benchmark", "tool": IMPORTER.name}
    counted = run.rates[min(_FIRST, max(0, len(run.rates) - 1)) :]
    status, reason = Status.OK, None
    if run.code or run.problem:
        status = Status.FAILED
        code = "" if run.code is None else f" (return code {run.code})"
        reason = f"{run.problem or 'it failed'}{code}"
    elif not counted:
        status, reason = Status.MISSING, "no event of a rate: nothing was measured"
    device = run.device or device_name(hints.device)
    unit = run.units if run.units.endswith("/s") else "item/s"
    records = [
        point(
            file,
            None,
            "milabench",
            case,
            ("item_rate", unit),
            median(counted) if counted and status is Status.OK else None,
            device=device,
            samples=tuple(counted) if status is Status.OK and len(counted) > 1 else None,
            status=status,
            reason=reason,
        )
    ]
    if run.memory:
        records.append(
            point(file, None, "milabench", case, ("peak_memory", "B"), run.memory, device=device)
        )
    return records


def _notes(run: _Run) -> list[str]:
    return [] if run.code is not None else ["it has no event 'end': the run was cut off"]


IMPORTER = Importer(
    name="milabench",
    title="events of one benchmark (JSON lines)",
    order=120,
    marks=marks_of("milabench"),
    read=_read,
    definition="median of the rates it logged behind the first, items a second as it counts them",
    judged_by="a return code other than 0 or an error is a failure; no rate: nothing was measured",
    source="github.com/mila-iqia/milabench",
    tested_on=("milabench-rate.jsonl", "milabench-error.jsonl"),
)
