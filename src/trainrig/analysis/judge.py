"""From records and findings to a verdict: PASS, FAIL or INCOMPLETE.

FAIL: a wrong answer, a device that torch cannot use, a point clearly below its
band or its siblings, a value that physics does not allow.  INCOMPLETE: a
required step has no undisturbed point.  Otherwise PASS; "no target known" is
said and is no fault.  A disturbed point is never judged.

"Clearly" means that the whole interval of the point lies outside the band.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainrig.analysis.match import SIBLING_MARGIN, Row, join
from trainrig.benchmarks.spec import Role, find
from trainrig.benchmarks.training import MAX_OTHER
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
from trainrig.units import counted, format_quantity, format_share

IMPLAUSIBLE = 1.5
"""No chip runs half as fast again as its data sheet: the definition or the clock is wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """A required step and whether it was satisfied."""

    name: str
    done: bool
    reason: str


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
        *_disturbed(records, again),
    ]
    missing = [step for step in steps if not step.done]
    findings += [_not_done(step, again) for step in missing]
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
    """The stored verdict; no PASS where records that it rested on are no longer there.

    ``lost`` says what was seen of the damage, if anything was.
    """
    if verdict.outcome is not Outcome.PASS:
        return verdict
    gone = [each.name for each in _required_steps(join(records)) if each.reason == _NOT_RUN]
    if lost is None and gone:
        lost = f"no point of {', '.join(gone)} is left in its records"
    if lost is None and not any(record.is_point for record in records):
        lost = "no measured point is left in its records"
    if lost is None:
        return verdict
    reason = f"{lost}: the stored verdict ({verdict.outcome}: {verdict.reason}) cannot be confirmed"
    return dataclasses.replace(verdict, outcome=Outcome.INCOMPLETE, reason=reason)


# What a value a little above its claim most often means; the clocks, where they could be read,
# stand in the record's conditions.
_ABOVE = {
    True: "no error in itself: claims assume the data sheet's clock, and chips boost above it; "
    "the clock under load is in the point's conditions",
    False: "compare what is counted (docs/definitions.md) with what the claim counts",
}

_ORDER: dict[Severity, int] = {"error": 0, "warning": 1, "info": 2}
_NOT_DONE = "step-not-done"
_NOT_RUN = "not run"


def _outcome(
    findings: Sequence[Finding],
    steps: Sequence[Requirement],
    rows: Sequence[Row],
    interrupted: str | None,
) -> tuple[Outcome, str]:
    faults = [f for f in findings if f.severity == "error" and f.id != _NOT_DONE]
    if faults:
        more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
        return Outcome.FAIL, f"{faults[0].evidence}{more}"
    if interrupted:
        return Outcome.INCOMPLETE, interrupted
    if not steps:
        return Outcome.INCOMPLETE, "nothing was planned: the run was cut off before that"
    missing = [step for step in steps if not step.done]
    if missing:
        names = ", ".join(step.name for step in missing[:4])
        more = f" and {len(missing) - 4} more" if len(missing) > 4 else ""
        return Outcome.INCOMPLETE, f"required steps without a usable point: {names}{more}"
    judged = [row for row in rows if _target(row) is not None and _usable(row.measured)]
    points = [row for row in rows if _usable(row.measured)]
    if not judged:
        return (
            Outcome.PASS,
            f"all required steps ran, {counted(len(points), 'point')}; no target known for any",
        )
    without = len(points) - len(judged)
    more = f"; no target known for {without}" if without else ""
    within = f"{counted(len(judged), 'point')} within the expected band"
    return Outcome.PASS, f"all required steps ran, {within}{more}"


def _usable(record: Record | None) -> bool:
    return record is not None and record.is_usable


def _target(row: Row) -> tuple[float, float] | None:
    return row.predicted.band if row.predicted is not None else None


def _wrong_answers(records: Iterable[Record]) -> Iterable[Finding]:
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


def _failures(records: Iterable[Record]) -> Iterable[Finding]:
    """One finding a reason: a worker that does not start fails all of its cases alike."""
    groups: dict[tuple[object, ...], list[Record]] = {}
    for record in records:
        broke = record.status in (Status.FAILED, Status.TIMEOUT) and not record.is_wrong_answer
        if record.is_point and broke:
            where = (record.benchmark, record.device, record.device_index)
            groups.setdefault((*where, record.reason), []).append(record)
    for failed in groups.values():
        more = f" (and {len(failed) - 1} more cases)" if len(failed) > 1 else ""
        yield Finding(
            id="case-failed",
            severity="warning",
            evidence=f"{_name(failed[0])}{more}: {failed[0].reason}",
            fix="read the worker's log in the run's logs/ folder",
            records=tuple(record.id for record in failed),
        )


def _outside_band(rows: Iterable[Row]) -> Iterable[Finding]:
    for row in rows:
        band, point = _target(row), row.measured
        if band is None or point is None or not _usable(point) or point.interval is None:
            continue
        assert row.predicted is not None and point.value is not None
        if point.is_below(band):
            share = point.value / band[0]
            yield Finding(
                id="below-band",
                severity="error",
                evidence=f"{_name(point)}: {format_quantity(point.value, point.unit)}, "
                f"{format_share(share)} of the least that is expected "
                f"({_range(band, point.unit)}: {row.predicted.source})",
                fix="look at clocks, power limit and temperature under load: trainrig inspect, "
                "nvidia-smi -q -d PERFORMANCE",
                records=(point.id, row.predicted.id),
            )


def _above_claim(rows: Iterable[Row]) -> Iterable[Finding]:
    for row in rows:
        point = row.measured
        if point is None or not _usable(point) or point.limit is None or point.interval is None:
            continue
        assert point.value is not None
        spec = find(point.benchmark)
        share = point.value / point.limit.value
        if point.interval[0] <= point.limit.value:
            continue
        # A processor's claim rests on a clock that the machine may well exceed.
        impossible = share > IMPLAUSIBLE and point.device_index is not None
        yield Finding(
            id="implausible" if impossible else "above-claim",
            severity="error" if impossible else "info",
            evidence=f"{_name(point)}: {format_quantity(point.value, point.unit)} is "
            f"{format_share(share)} of the claim ({point.limit.source})",
            fix="the clock or the definition is wrong: compare with another tool before trusting "
            "any number of this run"
            if impossible
            else _ABOVE[spec is not None and spec.follows_clock],
            records=(point.id,),
        )


def _in_no_part(rows: Iterable[Row]) -> Iterable[Finding]:
    """A training step's time that belongs to none of its parts: nobody looks for it there."""
    for row in rows:
        point = row.measured
        if row.role is not Role.STEP or row.metric != "time" or not _usable(point):
            continue
        assert point is not None and point.value
        other = point.conditions.get("time.other")
        if not isinstance(other, float) or other <= MAX_OTHER * point.value:
            continue
        yield Finding(
            id="time-in-no-part",
            severity="warning",
            evidence=f"{_name(point)}: {format_share(other / point.value)} of a step "
            f"({format_quantity(other, 's')}) belong to none of its parts",
            fix="profile one step: torch.profiler shows what runs between the parts",
            records=(point.id,),
        )


def _outliers(rows: Sequence[Row]) -> Iterable[Finding]:
    """Devices of one model that fall behind their siblings on the same case."""
    groups: dict[tuple[object, ...], list[Record]] = {}
    for row in rows:
        point = row.measured
        if point is not None and _usable(point) and point.device_index is not None:
            groups.setdefault(point.key, []).append(point)
    behind: dict[int, list[tuple[float, Record]]] = {}
    for siblings in groups.values():
        for point in siblings:
            others = [s.value for s in siblings if s is not point and s.value is not None]
            if not others or point.value is None or point.interval is None:
                continue
            usual = median(others)
            if point.interval[1] < usual * (1.0 - SIBLING_MARGIN):
                assert point.device_index is not None
                behind.setdefault(point.device_index, []).append((point.value / usual, point))
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


def _disturbed(records: Iterable[Record], again: str) -> Iterable[Finding]:
    latest = {(r.key, r.device_index): r for r in records if r.is_point}
    disturbed = [r for r in latest.values() if r.status is Status.OK and r.disturbed is not None]
    if disturbed:
        reasons = [r.disturbed or "" for r in disturbed]
        usual = max(set(reasons), key=reasons.count)
        yield Finding(
            id="disturbed",
            severity="warning",
            evidence=f"{len(disturbed)} of {len(latest)} points were disturbed and are not judged; "
            f"mostly: {usual}",
            fix=f"stop what else runs on the machine, then: {again}",
            records=tuple(r.id for r in disturbed),
        )


def _not_done(step: Requirement, again: str) -> Finding:
    return Finding(
        id=_NOT_DONE,
        severity="error",
        evidence=f"{step.name}: {step.reason}",
        fix=f"on a quiet machine, or with a larger --budget: {again}",
    )


def _required_steps(rows: Sequence[Row]) -> tuple[Requirement, ...]:
    """The steps that the plan could not do without, and whether each has a usable point.

    The plan is in the predictions, which are written before anything is measured:
    their conditions name the step, and whether the case is one of those that tell.
    A step is done when one telling case is usable and none of them broke: a GPU
    that dies under load is not saved by its smallest product.
    """
    groups: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        if row.predicted is not None and "step" in row.predicted.conditions:
            step = row.predicted.conditions["step"]
            groups.setdefault((step, row.device, row.index, row.count), []).append(row)
    return tuple(
        _step(group)
        for group in groups.values()
        if any(
            row.predicted is not None and row.predicted.conditions.get("required") for row in group
        )
    )


def _step(group: Sequence[Row]) -> Requirement:
    first = group[0]
    assert first.predicted is not None
    name = f"{first.predicted.conditions['step']} on {first.device}"
    label = name if first.index is None else f"{name} #{first.index}"
    required = [
        row.measured
        for row in group
        if row.measured is not None
        and row.predicted is not None
        and row.predicted.conditions.get("required")
    ]
    broken = [r for r in required if r.status in (Status.FAILED, Status.TIMEOUT)]
    if broken:
        return Requirement(name=label, done=False, reason=_why(broken))
    if any(_usable(record) for record in required):
        return Requirement(name=label, done=True, reason="")
    return Requirement(name=label, done=False, reason=_why(required))


def _why(records: Sequence[Record]) -> str:
    if not records:
        return _NOT_RUN
    first = records[0]  # the plan's most telling case comes first
    if first.disturbed is not None:
        return f"disturbed: {first.disturbed}"
    return f"{first.status.value}: {first.reason}"


def _name(record: Record) -> str:
    device = (
        record.device if record.device_index is None else f"{record.device} #{record.device_index}"
    )
    return f"{record.benchmark} {case_label(record.case)} on {device}"


def _range(band: tuple[float, float], unit: str) -> str:
    return f"{format_quantity(band[0], unit)} to {format_quantity(band[1], unit)}"
