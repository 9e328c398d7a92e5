"""From records and findings to a verdict: PASS, FAIL or INCOMPLETE.

FAIL: a wrong answer, a device that torch cannot use, a point clearly below its
band or its siblings, a value that physics does not allow.  INCOMPLETE: a
required step has no clean point.  Otherwise PASS; "no target known" is
said and is no fault.  A noisy point is never judged.

"Clearly" means that the whole interval of the point lies outside the band.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from trainrig.analysis.match import SIBLING_MARGIN, Row, join, note_of
from trainrig.benchmarks.spec import Role, find
from trainrig.benchmarks.training import MAX_OTHER
from trainrig.process.events import OTHER
from trainrig.record import (
    Finding,
    Outcome,
    Record,
    Severity,
    Status,
    Verdict,
    case_label,
)
from trainrig.stats import median
from trainrig.units import counted, format_quantity, format_share, range_text

IMPLAUSIBLE = 1.5
"""No chip runs half as fast again as its data sheet: the definition or the clock is wrong."""
_ORDER: dict[Severity, int] = {"error": 0, "warning": 1, "info": 2}
_NOT_DONE = "step-not-done"
_NOT_RUN = "not run"


def judge(
    records: Sequence[Record],
    machine_findings: Iterable[Finding] = (),
    interrupted: str | None = None,
    again: str = "trainrig qualify --resume RUN",
) -> Verdict:
    """The verdict on a run's records and on what the doctor found.

    ``interrupted`` says why the run ended early, if it did; ``again`` is
    the command that goes on with it.
    """
    rows = join(records)
    steps = _required_steps(rows)
    findings = [
        *machine_findings,
        *_wrong_answers(records),
        *_failures(records),
        *_outliers(rows),
        *_outside_band(rows),
        *_above_claim(rows),
        *_in_no_part(rows),
        *_held_by_cache(rows),
        *_noisy(records, again),
        *(
            Finding(
                id=_NOT_DONE,
                severity="error",
                evidence=f"{name}: {reason}",
                fix=f"on a quiet machine, or with a larger --budget: {again}",
            )
            for name, reason in steps
            if reason is not None
        ),
    ]
    findings.sort(key=lambda finding: _ORDER[finding.severity])
    outcome, reason = _outcome(findings, steps, rows, interrupted)
    return Verdict(outcome=outcome, reason=reason, findings=tuple(findings))


def resume_command(config: Mapping[str, Any], run: str) -> str:
    """The command that goes on with a run of that run.toml; a bench is started again."""
    verb, benchmark = config.get("verb"), find(str(config.get("benchmark")))
    if verb in ("qualify", "train"):
        return f"trainrig {verb} --resume {run}"
    return benchmark.command if benchmark else f"trainrig {verb}"


def confirm(verdict: Verdict, records: Sequence[Record], lost: str | None) -> Verdict:
    """The stored verdict; PASS or MEASURED only where what it rested on is still there.

    ``lost`` says what was seen of the damage, if anything was.
    """
    if verdict.outcome not in (Outcome.PASS, Outcome.MEASURED):
        return verdict
    gone = [name for name, reason in _required_steps(join(records)) if reason == _NOT_RUN]
    if lost is None and gone:
        lost = f"no point of {', '.join(gone)} is left in its records"
    if lost is None and not any(record.is_point for record in records):
        lost = "no measured point is left in its records"
    if lost is None:
        return verdict
    reason = f"{lost}: the stored verdict ({verdict.outcome}: {verdict.reason}) cannot be confirmed"
    return dataclasses.replace(verdict, outcome=Outcome.INCOMPLETE, reason=reason)


def first_fault(findings: Iterable[Finding]) -> str | None:
    """What the first error is, and how many more there are; None without one."""
    faults = [finding for finding in findings if finding.severity == "error"]
    more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
    return f"{faults[0].evidence}{more}" if faults else None


def _outcome(
    findings: Sequence[Finding],
    steps: Sequence[tuple[str, str | None]],
    rows: Sequence[Row],
    interrupted: str | None,
) -> tuple[Outcome, str]:
    if (fault := first_fault(found for found in findings if found.id != _NOT_DONE)) is not None:
        return Outcome.FAIL, fault
    if interrupted:
        return Outcome.INCOMPLETE, interrupted
    if not steps:
        return Outcome.INCOMPLETE, "nothing was planned: the run was cut off before that"
    missing = [name for name, reason in steps if reason is not None]
    if missing:
        more = f" and {len(missing) - 4} more" if len(missing) > 4 else ""
        names = ", ".join(missing[:4])
        return Outcome.INCOMPLETE, f"required steps without a usable point: {names}{more}"
    points = [row for row, _, _ in _usable_points(rows)]
    num_judged = sum(row.band is not None for row in points)
    without = len(points) - num_judged
    if not num_judged:
        return Outcome.MEASURED, "all required steps ran; no target known for any point"
    more = f"; no target known for {without}" if without else ""
    what = f"{counted(num_judged, 'point')} within the expected band{more}"
    return Outcome.PASS, f"all required steps ran, {what}"


def _usable_points(rows: Iterable[Row]) -> Iterator[tuple[Row, Record, float]]:
    """The rows whose point may be judged, with the point and its value."""
    for row in rows:
        point = row.measured
        if point is not None and point.is_usable and point.value is not None:
            yield row, point, point.value


def _wrong_answers(records: Iterable[Record]) -> Iterator[Finding]:
    for record in records:
        if record.is_point and record.is_wrong_answer:
            spec = find(record.benchmark)
            command = spec.command if spec else "trainrig qualify"
            yield Finding(
                id="wrong-answer",
                severity="error",
                evidence=f"{_name(record)}: {record.reason}",
                fix=f"repeat it: {command}; if it stays, take the device out of service",
                records=(record.id,),
            )


def _failures(records: Iterable[Record]) -> Iterator[Finding]:
    """One finding a reason: a worker that does not start fails all of its cases alike."""
    groups: dict[tuple[object, ...], list[Record]] = {}
    for record in records:
        broke = record.status in (Status.FAILED, Status.TIMEOUT) and not record.is_wrong_answer
        if record.is_point and broke:
            where = (record.benchmark, record.device, record.device_index, record.reason)
            groups.setdefault(where, []).append(record)
    for failed in groups.values():
        more = f" (and {len(failed) - 1} more cases)" if len(failed) > 1 else ""
        yield Finding(
            id="case-failed",
            severity="warning",
            evidence=f"{_name(failed[0])}{more}: {failed[0].reason}",
            fix="read the worker's log in the run's logs/ folder",
            records=tuple(record.id for record in failed),
        )


def _outside_band(rows: Iterable[Row]) -> Iterator[Finding]:
    for row, point, value in _usable_points(rows):
        band, predicted = row.band, row.predicted
        if band is None or predicted is None or point.interval is None or not point.is_below(band):
            continue
        yield Finding(
            id="below-band",
            severity="error",
            evidence=f"{_name(point)}: {format_quantity(value, point.unit)}, "
            f"{format_share(value / band[0])} of the least that is expected "
            f"({range_text(*band, point.unit)}: {predicted.source})",
            fix="look at clocks, power limit and temperature under load: trainrig inspect, "
            "nvidia-smi -q -d PERFORMANCE",
            records=(point.id, predicted.id),
        )


def _above_claim(rows: Iterable[Row]) -> Iterator[Finding]:
    for _, point, value in _usable_points(rows):
        limit, spec = point.limit, find(point.benchmark)
        if limit is None or point.interval is None or point.interval[0] <= limit.value:
            continue
        share = value / limit.value
        fix = "compare what is counted (docs/definitions.md) with what the claim counts"
        if spec is not None and spec.follows_clock:
            fix = (
                "no error in itself: claims assume the data sheet's clock, and chips boost above "
                "it; the clock under load is in the point's conditions"
            )
        # A processor's claim rests on a clock that the machine may well exceed.
        impossible = share > IMPLAUSIBLE and point.device_index is not None
        if impossible:
            fix = (
                "the clock or the definition is wrong: compare with another tool before trusting "
                "any number of this run"
            )
        yield Finding(
            id="implausible" if impossible else "above-claim",
            severity="error" if impossible else "info",
            evidence=f"{_name(point)}: {format_quantity(value, point.unit)} is "
            f"{format_share(share)} of the claim ({limit.source})",
            fix=fix,
            records=(point.id,),
        )


def _in_no_part(rows: Sequence[Row]) -> Iterator[Finding]:
    """A training step's time that belongs to none of its parts: nobody looks for it there."""
    for row, point, value in _usable_points(rows):
        if row.role is not Role.STEP or row.metric != "time":
            continue
        part = (f"time.{OTHER}", row.case, row.index)
        other = next((r.value for r in rows if (r.metric, r.case, r.index) == part), 0.0)
        if other > MAX_OTHER * value:
            yield Finding(
                id="time-in-no-part",
                severity="warning",
                evidence=f"{_name(point)}: {format_share(other / value)} of a step "
                f"({format_quantity(other, 's')}) belong to none of its parts",
                fix="profile one step: torch.profiler shows what runs between the parts",
                records=(point.id,),
            )


def _outliers(rows: Iterable[Row]) -> Iterator[Finding]:
    """Devices of one model that fall behind their siblings on the same case."""
    groups: dict[tuple[object, ...], dict[int, tuple[float, Record]]] = {}
    for row, point, value in _usable_points(rows):
        if row.index is not None:
            groups.setdefault(row.key, {})[row.index] = value, point
    behind: dict[int, list[tuple[float, Record]]] = {}
    for siblings in groups.values():
        for index, (value, point) in siblings.items():
            others = [other for at, (other, _) in siblings.items() if at != index]
            if not others or point.interval is None:
                continue
            usual = median(others)
            if point.interval[1] < usual * (1.0 - SIBLING_MARGIN):
                behind.setdefault(index, []).append((value / usual, point))
    for index, found in sorted(behind.items()):
        share, worst = min(found, key=lambda pair: pair[0])
        yield Finding(
            id="odd-device",
            severity="error",
            evidence=f"{worst.device} #{index} is behind its siblings in {len(found)} cases; at "
            f"worst {case_label(worst.case)} at {format_share(share)} of theirs",
            fix=f"compare its clocks, power limit, slot and cooling: nvidia-smi -q -i {index}",
            records=tuple(point.id for _, point in found),
        )


def _held_by_cache(rows: Iterable[Row]) -> Iterator[Finding]:
    """A disk that writes faster than it reads, clearly: what it took is not yet stored."""
    disks: dict[tuple[object, ...], dict[object, Record]] = {}
    for row, point, _ in _usable_points(rows):
        if row.role is Role.DISK and row.metric == "byte_rate":
            same = (row.device, row.case["bytes"], row.case.get("tool"))
            disks.setdefault(same, {})[row.case.get("op")] = point
    for points in disks.values():
        read, write, flushed = (points.get(op) for op in ("read", "write", "flushed-write"))
        if not (read and write and read.interval and write.interval):
            continue
        if write.interval[0] <= read.interval[1]:
            continue
        rates = [format_quantity(p.value or 0.0, p.unit) for p in (write, read, flushed) if p]
        last = f"; {rates[2]} where each 16 MiB are flushed" if flushed else ""
        yield Finding(
            id="write-held-by-cache",
            severity="info",
            evidence=f"{write.device}: {rates[0]} written against {rates[1]} read{last}",
            fix="a cache of the disk, its controller or a hypervisor takes the writes: count with "
            "the flushed rate for checkpoints",
            records=tuple(point.id for point in (read, write, flushed) if point),
        )


def _noisy(records: Iterable[Record], again: str) -> Iterator[Finding]:
    latest = {(r.key, r.device_index): r for r in records if r.is_point}
    noisy = [r for r in latest.values() if r.status is Status.OK and r.disturbed is not None]
    if noisy:
        reasons = [r.disturbed or "" for r in noisy]
        usual = max(set(reasons), key=reasons.count)
        yield Finding(
            id="noisy",
            severity="warning",
            evidence=f"{len(noisy)} of {len(latest)} points were noisy and are not judged; "
            f"mostly: {usual}",
            fix=f"stop what else runs on the machine, then: {again}",
            records=tuple(r.id for r in noisy),
        )


def _required_steps(rows: Iterable[Row]) -> list[tuple[str, str | None]]:
    """The steps that the plan could not do without; why each has no usable point, or None.

    The plan is in the predictions, which are written before anything is measured:
    their conditions name the step, and whether the case is one of those that tell.
    A step is done when one telling case is usable and none of them broke: a GPU
    that dies under load is not saved by its smallest product.
    """
    steps: dict[tuple[str, int], list[Record]] = {}
    for row in rows:
        planned = row.predicted.conditions if row.predicted is not None else {}
        if "step" in planned and planned.get("required"):
            number = "" if row.index is None else f" #{row.index}"
            name = f"{planned['step']} on {row.device}{number}"
            points = steps.setdefault((name, row.count), [])
            if row.measured is not None:
                points.append(row.measured)
    return [(name, _why_not_done(points)) for (name, _), points in steps.items()]


def _why_not_done(points: Sequence[Record]) -> str | None:
    broken = [point for point in points if point.status in (Status.FAILED, Status.TIMEOUT)]
    if not broken and any(point.is_usable for point in points):
        return None
    if not points:
        return _NOT_RUN
    return note_of((broken or points)[0])  # the plan's most telling case comes first


def _name(record: Record) -> str:
    number = "" if record.device_index is None else f" #{record.device_index}"
    return f"{record.benchmark} {case_label(record.case)} on {record.device}{number}"
