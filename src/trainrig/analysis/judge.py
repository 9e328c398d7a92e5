"""From records and findings to a verdict: PASS, MEASURED, FAIL or INCOMPLETE.

FAIL: a wrong answer, a device that fails or that torch cannot use, a point that shows its device
not able to reach its band, a device behind its siblings, a value that physics does not allow.
INCOMPLETE: a required step has no right answer, or its number decides nothing.  MEASURED: there was
no target for what a verdict needs.  Otherwise PASS.

Noise only slows, so a noisy point that reaches its band is as good as a quiet one; what it takes to
be found below it says `benchmarks.spec.ability`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from trainrig.analysis import judge_classes, judge_links
from trainrig.analysis.best import claim_word
from trainrig.analysis.evidence import bench_command, finite_number
from trainrig.analysis.judge_noise import NOT_RUN, advice, noisy
from trainrig.analysis.judge_sentinel import CHANGED, changes_of
from trainrig.analysis.rows import (
    SIBLING_MARGIN,
    Row,
    is_cold_stream,
    is_host_link,
    is_own_rate,
    join,
    reason_not_judged,
    siblings_of,
)
from trainrig.analysis.watched import clock_is_off
from trainrig.analysis.watched_rules import watch_rules
from trainrig.benchmarks.spec import WORKERS, Ability, Role, ability, case_text, find, role_of
from trainrig.benchmarks.training import MAX_OTHER
from trainrig.machine.fact import FAULTY_REASONS
from trainrig.process.child import device_fault
from trainrig.process.events import OTHER
from trainrig.record import (
    PARENT_CLOCK,
    TOLD_SHARE,
    WORKER_CLOCK,
    Finding,
    Outcome,
    Record,
    Status,
    Verdict,
    by_severity,
    case_label,
)
from trainrig.scatter import LEAST_FREEDOM, shared_scatter
from trainrig.stats import (
    CONFIDENCE,
    adjust_for_many,
    compare,
    grouped,
    median,
)
from trainrig.units import counted, device_text, format_quantity, format_share, range_text

IMPLAUSIBLE = 1.5
"""No chip runs half as fast again as its data sheet: the definition or the clock is wrong."""
_STEP_NOT_DONE = "step-not-done"
NOT_DONE = (
    _STEP_NOT_DONE,
    "not-watched",
    "sensor-stopped",
    "sensor-stuck",
    "sensor-implausible",
    "counter-went-back",
    "machine-suspended",
    "machine-changed",
    "clock-wrong",
)
"""Findings that make a run INCOMPLETE, and no fault of a device."""

SLOW_HOST_LINK = "host-link-behind-siblings"
_WITHHOLDING = (judge_classes.SLOW_LAYERS, SLOW_HOST_LINK)
"""Warnings with which a run is MEASURED and not PASS."""
_OF_SPEED = ("below-band", "below-claim", "odd-device", "slow-link")
"""Faults that somebody else on the machine looks like."""


def judge(
    records: Sequence[Record],
    machine_findings: Iterable[Finding] = (),
    interrupted: str | None = None,
    again: str = "trainrig qualify --resume RUN",
    longer: str = "trainrig qualify --resume RUN --budget 8m",
    machine: Mapping[str, Any] | None = None,
    sentinel: Sequence[Mapping[str, Any]] = (),
) -> Verdict:
    """Return the verdict on a run's records and on what the doctor found.

    ``interrupted`` says why the run ended early, if it did; ``again`` is
    the command that goes on with it, ``longer`` the one that has more time for it; ``machine`` is
    machine.json, for what its links should carry; ``sentinel`` the series of that name.
    """
    rows = join(records)
    steps = _required_steps(rows)
    findings = [
        *machine_findings,
        *_wrong_answers(records),
        *_failures(records),
        *judge_links.findings_of(records, machine),
        *_device_failures(records),
        *_wrong_clocks(records),
        *changes_of(sentinel),
        *_throttled(records, rows),
        *_outliers(rows, records),
        *_outside_band(rows),
        *_above_claim(rows),
        *unattributed_step_time(rows),
        *_cached_disk_writes(rows),
        *judge_classes.slow_layers(rows),
        *_slow_host_links(rows, records),
        *judge_classes.far_below_claim(rows),
        *noisy(records, again, longer),
        *(
            Finding(
                id=_STEP_NOT_DONE,
                severity="error",
                evidence=f"{name}: {reason}",
                fix=f"go on with it: {again}" if interrupted else advice(reason, again, longer),
            )
            for name, reason in steps
            if reason is not None
        ),
    ]
    ordered = by_severity(findings)
    outcome, reason = _outcome(ordered, steps, rows, interrupted)
    return Verdict(outcome=outcome, reason=reason, findings=ordered)


def confirm(verdict: Verdict, records: Sequence[Record], lost: str | None) -> Verdict:
    """Return the stored verdict; PASS or MEASURED only where what it rested on is still there.

    ``lost`` says what was seen of the damage, if anything was.
    """
    if verdict.outcome not in (Outcome.PASS, Outcome.MEASURED):
        return verdict
    gone = [name for name, reason in _required_steps(join(records)) if reason == NOT_RUN]
    if lost is None and gone:
        lost = f"no point of {', '.join(gone)} is left in its records"
    if lost is None and not any(record.is_point for record in records):
        lost = "no measured point is left in its records"
    if lost is None:
        return verdict
    reason = f"{lost}: the stored verdict ({verdict.outcome}: {verdict.reason}) cannot be confirmed"
    return dataclasses.replace(verdict, outcome=Outcome.INCOMPLETE, reason=reason)


def first_fault(findings: Iterable[Finding]) -> str | None:
    """Return the first error as text, with the number of further ones, or None."""
    faults = [finding for finding in findings if finding.severity == "error"]
    more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
    return f"{faults[0].evidence}{more}" if faults else None


def _outcome(
    findings: Sequence[Finding],
    steps: Sequence[tuple[str, str | None]],
    rows: Sequence[Row],
    interrupted: str | None,
) -> tuple[Outcome, str]:
    # What is slow on a machine that changed meanwhile may be sound.
    doubtful = _OF_SPEED if any(finding.id == CHANGED for finding in findings) else ()
    faults = (finding for finding in findings if finding.id not in (*NOT_DONE, *doubtful))
    if (fault := first_fault(faults)) is not None:
        return Outcome.FAIL, fault
    findings = [finding for finding in findings if finding.id not in doubtful]
    doubt = first_fault(finding for finding in findings if finding.id != _STEP_NOT_DONE)
    if doubt or interrupted or not steps:
        never = "nothing was planned: the run was cut off before that"
        return Outcome.INCOMPLETE, doubt or interrupted or never
    missing = [f"{name} ({reason})" for name, reason in steps if reason is not None]
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        return Outcome.INCOMPLETE, f"required and not decided: {', '.join(missing[:3])}{more}"
    able = [row for row in rows if _ability(row) is Ability.ABLE]
    required = _required_rows(rows).values()
    reached = sum(any(_ability(row) is Ability.ABLE for row in step_rows) for step_rows in required)
    summary = (
        f"all required steps ran, {reached} of {len(required)} had a target and reached it; "
        f"{counted(len(able), 'point')} within the expected band"
    )
    if not able or (required and not reached):
        others = f"{counted(len(able), 'other point')} within the expected band"
        of_what = f"them; {others}" if able else "any point"
        return Outcome.MEASURED, f"all required steps ran; no target known for {of_what}"
    needed = _unjudged(rows)
    lacking = [*needed, *judge_classes.without_target(rows)]
    summary += f"; not judged: {', '.join(lacking)}" if lacking else ""
    if needed or any(finding.id in _WITHHOLDING for finding in findings):
        return Outcome.MEASURED, summary
    return Outcome.PASS, summary


def _unjudged(rows: Sequence[Row]) -> list[str]:
    """Return what a PASS of a GPU needs and was not judged, where all of it was to be measured."""
    gpus = [row for row in rows if row.index is not None and row.count == 1]
    below = [row for row in gpus if _seems_below(row)]
    if below:
        more = f" and {len(below) - 1} more" if len(below) > 1 else ""
        assert below[0].measured is not None
        return [f"{_name(below[0].measured)}, which seems below its band{more}"]
    if len({row.benchmark for row in gpus}) < 2:  # a person asked for one benchmark
        return []
    missing_parts = []
    for (device, index), device_rows in grouped(gpus, lambda row: (row.device, row.index)).items():
        able = [row for row in device_rows if _ability(row) is Ability.ABLE]
        products = [row for row in able if row.role is Role.PRODUCT and "sustained" in row.case]
        streams = list(filter(is_cold_stream, able))
        judged = {"sustained matmul": bool(products), "memory bandwidth": bool(streams)}
        lacking = [name for name, is_judged in judged.items() if not is_judged]
        if lacking:
            missing_parts.append(f"{' and '.join(lacking)} of {device} #{index}")
    return missing_parts


def _seems_below(row: Row) -> bool:
    """Return whether a quiet point is below its band, by too few workers to decide."""
    point = row.measured
    is_known = point is not None and point.is_usable
    is_below = point is not None and point.is_below(row.band)
    return is_known and is_below and _ability(row) is Ability.UNDECIDED


def _ability(row: Row) -> Ability | None:
    """Return what the row's point proves; None without a target or a value."""
    if row.band is None or row.measured is None or row.measured.value is None:
        return None
    return ability(row.measured, row.band)


def _usable_points(rows: Iterable[Row]) -> Iterator[tuple[Row, Record, float]]:
    """Yield the rows whose point may be judged, with the point and its value."""
    for row in rows:
        point = row.measured
        if point is not None and point.is_usable and point.value is not None:
            yield row, point, point.value


def _wrong_answers(records: Iterable[Record]) -> Iterator[Finding]:
    for record in records:
        if record.is_point and record.is_wrong_answer:
            command = bench_command(record) or "trainrig qualify"
            yield Finding(
                id="wrong-answer",
                severity="error",
                evidence=f"{_name(record)}: {record.reason}",
                fix=f"repeat it: {command}; if it stays, take the device out of service",
                records=(record.id,),
            )


def _failures(records: Iterable[Record]) -> Iterator[Finding]:
    """Find failed cases, one finding a reason: a worker that does not start fails all alike."""
    failed = [
        record
        for record in records
        if record.is_point and _has_failed(record) and not _is_fault(record)
        if not judge_links.is_lost_rank(record)
    ]

    def where(record: Record) -> object:
        return record.benchmark, record.device, record.device_index, record.reason

    for group in grouped(failed, where).values():
        yield Finding(
            id="case-failed",
            severity="warning",
            evidence=f"{_first_of(group)}: {group[0].reason}",
            fix="read the worker's log in the run's logs/ folder",
            records=tuple(record.id for record in group),
        )


def _device_failures(records: Iterable[Record]) -> Iterator[Finding]:
    """Find GPUs that failed in any worker, whatever other workers made of the case."""
    failed = [record for record in records if _has_failed(record) and _is_fault(record)]
    for device_records in grouped(
        failed, lambda record: (record.device, record.device_index)
    ).values():
        cases = list({record.key[:3]: record for record in device_records}.values())
        yield Finding(
            id="device-failed",
            severity="error",
            evidence=f"{_first_of(cases)}: {cases[0].reason}",
            fix="look for Xid and ECC errors: dmesg | grep -i xid; nvidia-smi -q -i "
            f"{cases[0].device_index}; then for its power, seat and driver",
            records=tuple(record.id for record in device_records),
        )


def _wrong_clocks(records: Iterable[Record]) -> Iterator[Finding]:
    """Find workers whose clock is not the parent's, or whose samples do not fill their time."""
    off: list[tuple[Record, str]] = []
    for record in records:
        worker_seconds, passed, share = (
            finite_number(record.conditions.get(name))
            for name in (WORKER_CLOCK, PARENT_CLOCK, TOLD_SHARE)
        )
        if record.attempt is None:
            continue
        if worker_seconds and passed and (why := clock_is_off(worker_seconds, passed)):
            off.append((record, why))
        elif share and record.disturbed is None and abs(share - 1.0) > watch_rules().samples_apart:
            off.append((record, f"its samples tell {format_share(share)} of the time they took"))
    for device_records in grouped(
        off, lambda pair: (pair[0].device, pair[0].device_index)
    ).values():
        record, why = device_records[0]
        yield Finding(
            id="clock-wrong",
            severity="error",
            evidence=f"{_first_of([record for record, _ in device_records])}: {why}",
            fix="look at the machine's clock source: cat /sys/devices/system/clocksource/"
            "clocksource0/current_clocksource; dmesg | grep -i clocksource; then repeat it",
            records=tuple(record.id for record, _ in device_records),
        )


def _first_of(failed: Sequence[Record]) -> str:
    more = f" (and {counted(len(failed) - 1, 'more case')})" if len(failed) > 1 else ""
    return f"{_name(failed[0])}{more}"


def _has_failed(record: Record) -> bool:
    return record.status in (Status.FAILED, Status.TIMEOUT) and not record.is_wrong_answer


def _is_fault(record: Record) -> bool:
    """Return whether a GPU is to blame: CUDA or its driver failed, or torch cannot use it."""
    reason = record.reason or ""
    unusable = " did not start: " in reason and "did not start: not within" not in reason
    return record.device_index is not None and (device_fault(reason) or unusable)


def _throttled(records: Iterable[Record], rows: Iterable[Row]) -> Iterator[Finding]:
    """Find GPUs that slowed themselves down: an error where a point is below its band as well."""
    below = {
        (row.key[:3], row.index)
        for row in rows
        if row.measured is not None and row.measured.is_below(row.band)
    }
    slowed = [record for record in records if _throttle_reasons(record)]
    for device_records in grouped(
        slowed, lambda record: (record.device, record.device_index)
    ).values():
        cases = {(record.key[:3], record.device_index): record for record in device_records}
        slow = [record for place, record in cases.items() if place in below]
        worst = (slow or device_records)[0]
        reasons = ", ".join(sorted(set().union(*map(_throttle_reasons, device_records))))
        so = f", {_name(worst)} is below its expected band" if slow else ""
        temperature = worst.conditions.get("temperature_c")
        warm = f" at {temperature:.0f} °C" if isinstance(temperature, float) else ""
        yield Finding(
            id="throttled",
            severity="error" if slow else "warning",
            evidence=f"{worst.device} #{worst.device_index} slowed itself down ({reasons}) in "
            f"{counted(len(cases), 'case')}{warm}{so}",
            fix="its power supply and cables"
            if reasons == "hw_power_brake"
            else "its fans, airflow and the room's temperature; then its power supply: "
            f"nvidia-smi -q -i {worst.device_index} -d TEMPERATURE,PERFORMANCE,POWER",
            records=tuple(record.id for record in device_records),
        )


def _throttle_reasons(record: Record) -> set[str]:
    """Return why a GPU slowed itself down while this was measured: heat, its power supply."""
    reasons = record.conditions.get("throttle_reasons")
    return set(reasons.split(",")) & FAULTY_REASONS if isinstance(reasons, str) else set()


def _outside_band(rows: Iterable[Row]) -> Iterator[Finding]:
    for row, point, value in _usable_points(rows):
        band, predicted = row.band, row.predicted
        if band is None or predicted is None or _ability(row) is not Ability.NOT_ABLE:
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
            f"{format_share(share)} of the {claim_word(point)} ({limit.source})",
            fix=fix,
            records=(point.id,),
        )


def unattributed_step_time(rows: Sequence[Row]) -> Iterator[Finding]:
    """Find training steps of which time belongs to none of the parts, or to two."""
    for row, point, value in _usable_points(rows):
        if row.role is not Role.STEP or row.metric != "time":
            continue
        part = (f"time.{OTHER}", row.case, row.index)
        other = next((r.value for r in rows if (r.metric, r.case, r.index) == part), 0.0)
        if abs(other) > MAX_OTHER * value:
            where = "none of its parts" if other > 0.0 else "two of its parts at once"
            device = device_text(point.device, point.device_index)
            yield Finding(
                id="time-in-no-part",
                severity="warning",
                evidence=f"{case_text(point.benchmark, point.case)} on {device}: "
                f"{format_share(abs(other) / value)} of a step "
                f"({format_quantity(abs(other), 's')}) belongs to {where}",
                fix="profile one step: torch.profiler shows what runs between the parts",
                records=(point.id,),
            )


def behind_siblings(
    rows: Iterable[Row],
    records: Iterable[Record],
    margin: float = SIBLING_MARGIN,
    fits: Callable[[Row], bool] = is_own_rate,
) -> dict[int | None, list[tuple[float, Row]]]:
    """Return the devices that fall behind others of their model, by their number.

    Each with the cases in which it does, and its share of the others' median rate there.

    Args:
        rows: of the run.
        records: of the run; its attempts say how far workers scatter.
        margin: share of the others' rate that a device may lack.
        fits: which rows are compared.
    """
    attempts = {record.id: record for record in records if record.attempt is not None}
    pairs: list[tuple[Row, list[float], list[float], float]] = []
    for siblings in siblings_of((row for row in rows if row.is_usable), fits).values():
        shares = {index: _shares_of(row, attempts) for index, row in siblings.items()}
        for index, row in siblings.items():
            usual = median([other.value for at, other in siblings.items() if at != index])
            ratio = row.value / usual
            sibling_values = [
                share
                for at, device_shares in shares.items()
                if at != index
                for share in device_shares
            ]
            own_values = [ratio * share for share in shares[index]]
            if min(map(len, shares.values())) == 1:  # a sustained run has one worker
                sibling_values, own_values = [1.0], [ratio]
            if sibling_values and own_values:  # without attempts nothing is known of scatter
                pairs.append((row, sibling_values, own_values, ratio))
    scatter = shared_scatter([pair[1:3] for pair in pairs])
    least = 1 if scatter.freedom >= LEAST_FREEDOM else 2
    pairs = [pair for pair in pairs if min(len(pair[1]), len(pair[2])) >= least]
    chances = [
        compare(sibling_values, own_values, scatter).p_value
        for _, sibling_values, own_values, _ in pairs
    ]
    behind: dict[int | None, list[tuple[float, Row]]] = {}
    for (row, _, _, share), chance in zip(pairs, adjust_for_many(chances), strict=True):
        threshold = row.value / share * (1.0 - margin)
        is_far = row.measured is not None and row.measured.is_below((threshold, threshold))
        if is_far and chance <= 1.0 - CONFIDENCE:
            behind.setdefault(row.index, []).append((share, row))
    return behind


def _slow_host_links(rows: Sequence[Row], records: Iterable[Record]) -> Iterator[Finding]:
    """Find GPUs whose copies from or to the host are behind those of their siblings.

    No error: workers are not bound to the processors next to their GPU, and the far ones are
    slower on some machines.
    """
    margin = judge_links.link_rules().behind_siblings
    for number, slow_rows in behind_siblings(rows, records, margin, is_host_link).items():
        share, worst = min(slow_rows, key=lambda pair: pair[0])
        yield Finding(
            id=SLOW_HOST_LINK,
            severity="warning",
            evidence=f"{case_text(worst.benchmark, worst.case)} on {worst.device} #{number}: "
            f"{format_share(share)} of its siblings' rate",
            fix="measure it from the processors next to it: trainrig inspect (NUMA nodes), "
            "numactl --cpunodebind; compare its slot, lanes and generation: lspci -vv",
            records=tuple(row.measured.id for _, row in slow_rows if row.measured),
        )


def _outliers(rows: Sequence[Row], records: Iterable[Record]) -> Iterator[Finding]:
    """Find devices that are behind their siblings in two cases, or in one of two rounds of workers.

    Workers of one round may share what slowed them.
    """
    for number, slow_rows in behind_siblings(rows, records).items():
        points = [row.measured for _, row in slow_rows if row.measured is not None]
        if len({point.key[:3] for point in points}) < 2 and (points[0].rounds or 1) < 2:
            continue
        share, worst = min(slow_rows, key=lambda pair: pair[0])
        yield Finding(
            id="odd-device",
            severity="error",
            evidence=f"{worst.device} #{number} is behind its siblings in "
            f"{counted(len(slow_rows), 'case')}; at worst {case_label(worst.case)} at "
            f"{format_share(share)} of theirs",
            fix=f"compare its clocks, power limit, slot and cooling: nvidia-smi -q -i {number}",
            records=tuple(point.id for point in points),
        )


def _cached_disk_writes(rows: Iterable[Row]) -> Iterator[Finding]:
    """Find disks that write clearly faster than they read: what they took is not yet stored."""
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


def _shares_of(row: Row, attempts: Mapping[str, Record]) -> list[float]:
    """Return each worker's rate as a share of the rate that rests on these workers."""
    ids = row.measured.derived.ids if row.measured and row.measured.derived else ()
    times = [
        time
        for attempt_id in ids
        if attempt_id in attempts and (time := attempts[attempt_id].value)
    ]
    return [median(times) / time for time in times]


def _required_steps(rows: Iterable[Row]) -> list[tuple[str, str | None]]:
    """Return the steps that the plan needs, each with why it is not decided, or None.

    The plan is in the predictions, which are written before anything is measured:
    their conditions name the step, and whether the case is one of those that tell.
    A step is decided when one telling case is and none of them broke: a GPU
    that dies under load is not saved by its smallest product.  What several GPUs do at once
    is no device's step.
    """
    return [(name, _why_not_decided(step_rows)) for name, step_rows in _required_rows(rows).items()]


def _required_rows(rows: Iterable[Row]) -> dict[str, list[Row]]:
    steps: dict[str, list[Row]] = {}
    for row in rows:
        planned = row.predicted.conditions if row.predicted is not None else {}
        is_one = row.count == 1 or row.role is Role.COLLECTIVE
        if "step" in planned and planned.get("required") and is_one:
            where = device_text(row.device, row.index)
            steps.setdefault(f"{planned['step']} on {where}", []).append(row)
    return steps


def _why_not_decided(rows: Sequence[Row]) -> str | None:
    points = [row.measured for row in rows if row.measured is not None]
    if broken := [point for point in points if point.status in (Status.FAILED, Status.TIMEOUT)]:
        return reason_not_judged(broken[0])
    judged = {row.key: proof for row in rows if (proof := _ability(row)) is not None}
    if not judged and any(map(_is_answered, rows)):
        return None
    if set(judged.values()) - {Ability.UNDECIDED}:
        return None
    undecided = next((row for row in rows if row.key in judged), None)
    if undecided is not None:
        return _undecided_reason(undecided)
    return (
        reason_not_judged(points[0]) if points else NOT_RUN
    )  # the plan's most telling case comes first


def _is_answered(row: Row) -> bool:
    """Return whether as many workers as needed gave right answers, however fast.

    A training answers right where it learns.
    """
    point = row.measured
    if point is None or point.status is not Status.OK or point.value is None:
        return False
    spec = find(row.benchmark)
    enough = spec.workers(row.case) if spec else WORKERS
    has_enough = len(point.derived.ids) >= enough if point.derived else False
    is_whole = point.is_usable or point.reached is not None or has_enough
    return is_whole or row.role is Role.STEP


def _undecided_reason(row: Row) -> str:
    """Return why a row is undecided: ``at least 141 of 144 TFLOPS: 2 workers disagree by 12 %``."""
    point, band = row.measured, row.band
    assert point is not None and point.value is not None and band is not None
    reached = point.value if point.reached is None else point.reached
    why = point.disturbed
    if why is None and not point.is_below(band):
        why = "its interval reaches the band"
    if why is None:
        why = "below it in one round" if point.rounds == 1 else "too few workers or samples"
    least, wanted = (format_quantity(value, point.unit) for value in (reached, band[0]))
    return f"at least {least} of {wanted}: {why}"


def _name(record: Record) -> str:
    is_exchange = role_of(record.benchmark) is Role.COLLECTIVE
    exchange = case_text(record.benchmark, record.case) if is_exchange else ""
    where = device_text(record.device, record.device_index)
    return f"{exchange or f'{record.benchmark} {case_label(record.case)}'} on {where}"
