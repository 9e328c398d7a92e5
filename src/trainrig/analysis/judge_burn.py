"""The verdict on a burn: PASS only where all that was planned was done and all of it was right.

FAIL: a wrong result, digests of equal devices (or of the golden file) that differ, a device that
failed or vanished, a device far behind its siblings or below what its chip should do, and whatever
broke a limit of watched.toml: heat, clocks, links, memory errors, slowdowns.
INCOMPLETE: a part that was not run, that ended early or did too little, less than nine tenths of
the memory compared, a process that was killed, a machine that was suspended, a worker whose clock
is off, a sensor that was not read, stopped, sticks or says what cannot be, a counter that went
back: what nobody watched was not passed.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from trainrig.analysis.burn_facts import (
    DIGESTS,
    WORK,
    BurnDevice,
    BurnPoint,
    burn_devices,
    part_name,
)
from trainrig.analysis.burn_watch import (
    kernel_log,
    low_rates,
    unjudged_text,
    unmoving_sensors,
    unwatched_work,
    vanished_devices,
    watch_of_device,
    wrong_clocks,
)
from trainrig.analysis.evidence import finite_number
from trainrig.analysis.judge import NOT_DONE, first_fault
from trainrig.analysis.rows import SIBLING_MARGIN
from trainrig.analysis.watched import judge_watched
from trainrig.analysis.watched_rules import watch_rules
from trainrig.benchmarks.burn import LEAST_MEMORY, MEMORY, WRITING_SHARE
from trainrig.process.child import device_fault
from trainrig.record import Finding, Outcome, Record, RunView, Status, Verdict, by_severity
from trainrig.stats import grouped, median
from trainrig.units import (
    DAY,
    counted,
    device_text,
    duration_text,
    format_memory,
    format_quantity,
    format_share,
    signed_share,
)

BEHIND = 0.03
"""A device so far below the others' median is named; from SIBLING_MARGIN on it is a fault."""
LEAST_BUSY = 0.45
"""Least share of a part's planned seconds that must have been work."""


def judge_burn(view: RunView, interrupted: str | None = None) -> Verdict:
    """Return the verdict on a burn's records and series; ``interrupted``: why it is not whole."""
    devices = burn_devices(view)
    watches = [watch_of_device(device, view) for device in devices if device.index is not None]
    findings = by_severity(
        [
            *(finding for device in devices for finding in _part_findings(device, view.config)),
            *_unrecorded_errors(devices, view.series.get(WORK, ())),
            *_digests(view.series.get(DIGESTS, ())),
            *(finding for device in devices for finding in unmoving_sensors(device, view)),
            *vanished_devices(devices, view.machine),
            *unwatched_work(view),
            *(finding for watch in watches for finding in judge_watched(watch)),
            *(finding for device in devices for finding in low_rates(device, view)),
            *(finding for device in devices for finding in wrong_clocks(device)),
            *_siblings(devices),
        ]
    )
    outcome, reason = _outcome(devices, findings, interrupted)
    if outcome is Outcome.PASS and (lacking := unjudged_text(devices, watches)):
        reason = f"{reason}; not judged: {lacking}"
    return Verdict(outcome=outcome, reason=reason, findings=findings)


def _outcome(
    devices: Sequence[BurnDevice], findings: Sequence[Finding], interrupted: str | None
) -> tuple[Outcome, str]:
    fault = first_fault(finding for finding in findings if finding.id not in NOT_DONE)
    if fault is not None:
        return Outcome.FAIL, fault
    if interrupted:
        return Outcome.INCOMPLETE, interrupted
    if (undone := first_fault(findings)) is not None:
        return Outcome.INCOMPLETE, undone
    points = [point for device in devices for point in device.points]
    if not points:
        return Outcome.INCOMPLETE, "nothing was planned: the run was cut off before that"
    checked = sum(int(point.number("checked")) for point in points)
    where = counted(len(devices), "device")
    reason = f"{checked:,} results on {where} compared, none of them wrong"
    return Outcome.PASS, f"{reason}; {_memory_text(points)}"


def _memory_text(points: Sequence[BurnPoint]) -> str:
    """Return how much of the free memory a burn that passed has compared, in words."""
    of_memory = [point for point in points if point.record.case.get("mode") == MEMORY]
    if not of_memory:
        return "memory was not tested (--mode memory does)"
    tested_bytes = sum(point.number("memory_bytes") for point in of_memory)
    if any(point.number("requested_bytes") for point in of_memory):
        return f"of memory the {format_memory(tested_bytes)} that --memory names"
    wanted = sum(point.number("memory_wanted_bytes") for point in of_memory)
    return f"{format_memory(tested_bytes)} of {format_memory(wanted)} of free memory"


# ---- what was done


def _part_findings(device: BurnDevice, config: Mapping[str, Any]) -> Iterator[Finding]:
    for point in device.points:
        name = f"{point.name} on {device.label}"
        record = point.measured
        if record is None:
            yield _not_done_finding(f"{name}: not run", config)
        elif record.is_wrong_answer:
            yield Finding(
                id="wrong-answer",
                severity="error",
                evidence=f"{name}: {record.reason}",
                fix="take the overclocking back and repeat it: trainrig burn; if it stays, take "
                "the device out of service" + kernel_log(device),
                records=(record.id,),
            )
        elif record.status is not Status.OK:
            yield _failed(name, record, device, config)
        elif (why := _reason_too_little(point)) is not None:
            fix = f"give it more time: {_longer_command(point, config)}"
            yield _not_done_finding(f"{name}: {why}", config, record, fix=fix)


def _unrecorded_errors(
    devices: Sequence[BurnDevice], rows: Sequence[Mapping[str, Any]]
) -> Iterator[Finding]:
    """Find wrong results of parts whose record was never written: the run was killed."""
    written = {(d.label, p.name) for d in devices for p in d.points if p.measured is not None}
    wrong = [row for row in rows if row.get("errors")]
    for (label, part), part_rows in grouped(
        wrong, lambda row: (row["device"], row["part"])
    ).items():
        if (label, part) not in written:
            words = next(
                (text for row in part_rows for text in row.get("told", ())), "not described"
            )
            yield Finding(
                id="wrong-answer",
                severity="error",
                evidence=f"{part} on {label}: {sum(row['errors'] for row in part_rows)} wrong "
                f"results before the run was cut off: {words}",
                fix="repeat it: trainrig burn; if it stays, take the device out of service",
            )


def _failed(name: str, record: Record, device: BurnDevice, config: Mapping[str, Any]) -> Finding:
    reason = record.reason or "no reason given"
    if device_fault(reason):
        return Finding(
            id="device-failed",
            severity="error",
            evidence=f"{name}: {reason}",
            fix="look at its power, seat and driver" + kernel_log(device),
            records=(record.id,),
        )
    return _not_done_finding(f"{name}: {record.status}, {reason}", config, record)


def _not_done_finding(
    evidence: str, config: Mapping[str, Any], *records: Record, fix: str = ""
) -> Finding:
    is_cut_off = not records or "interrupted" in evidence
    advice = "let it run to its end" if is_cut_off else "put right what it names and repeat it"
    again = burn_command(config, finite_number(config.get("seconds")) or _USUAL_SECONDS)
    return Finding(
        id="step-not-done",
        severity="error",
        evidence=evidence,
        fix=fix or f"{advice}: {again}",
        records=tuple(record.id for record in records),
    )


def _reason_too_little(point: BurnPoint) -> str | None:
    """Return why a part that came to its end shows nothing; None where it does."""
    planned, busy = point.number("planned_s"), point.number("busy_s")
    if point.record.case.get("mode") == _STRESS:
        return None if point.number("checked") else "too little work: nothing was compared"
    checked = int(point.number("checked"))
    rule = watch_rules().compared["host" if point.record.device_index is None else "gpu"]
    if checked < (least := rule.of(busy)):
        of_least = f", at least {least} have to be" if checked >= 2 else ""
        return f"too little work: {counted(checked, 'result')} compared{of_least}"
    if busy < LEAST_BUSY * planned:
        return f"too little work: {busy:.0f} of {planned:.0f} s"
    tested_bytes, wanted = point.number("memory_bytes"), point.number("memory_wanted_bytes")
    if point.measured is not None and point.measured.conditions.get("passes") == 0:
        return f"its {format_memory(wanted)} of memory were not compared once"
    if tested_bytes < LEAST_MEMORY * wanted:
        return (
            f"{format_memory(tested_bytes)} of {format_memory(wanted)} were compared, at least "
            f"{format_share(LEAST_MEMORY)} have to be"
        )
    return None


def _longer_command(point: BurnPoint, config: Mapping[str, Any]) -> str:
    """Return the command whose time is enough, for memory by the rate that was seen."""
    planned, busy = point.number("planned_s") or 1.0, point.number("busy_s")
    seconds = finite_number(config.get("seconds")) or planned
    needed = 2.0 * seconds
    if (wanted := point.number("memory_wanted_bytes")) and busy:
        # Beginning is most of a very short part: there the rate of all of it says more.
        written = point.number("memory_bytes") / (WRITING_SHARE * busy)
        rate = max(written, point.rate or 0.0)
        if rate:
            needed = max(needed, _SPARE * wanted / (WRITING_SHARE * rate) * seconds / planned)
    return burn_command(config, min(_MOST_SECONDS, needed))


_USUAL_SECONDS = 1200.0
"""Seconds that `burn` takes without ``--budget``."""
_SPARE = 1.5
"""Factor on the shortest duration: the machine may be busier the next time."""
_MOST_SECONDS = 7 * DAY


def burn_command(config: Mapping[str, Any], seconds: float) -> str:
    """Return the command that repeats a burn with another duration."""
    step = next(step for below, step in _ROUNDED if seconds < below)
    words = ["trainrig burn", "--budget", duration_text(math.ceil(seconds / step) * step)]
    for name, usual in (("mode", "all"), ("memory", ""), ("golden", "")):
        if (value := str(config.get(name, usual))) != usual:
            words += [f"--{name}", shlex.quote(value)]
    if devices := config.get("devices"):
        words += ["--devices", ",".join(map(str, devices))]
    words += [f"--dtype {dtype}" for dtype in config.get("dtypes", ())]
    return " ".join(words)


_ROUNDED = ((120.0, 10.0), (7200.0, 60.0), (math.inf, 3600.0))
"""Durations below so many seconds are rounded up to so many."""
_STRESS = "stress-ng"


# ---- digests of training steps


def _digests(rows: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    """Find devices of one kind that did not compute the same, and what the golden file says."""
    for equal_devices in grouped(rows, lambda row: repr(sorted(row["key"].items()))).values():
        golden = [row for row in equal_devices if row.get("golden")]
        mine = [row for row in equal_devices if not row.get("golden")]
        usual = golden[0] if golden else _most_common(mine)
        for row in mine:
            if row["steps"] == usual["steps"]:
                continue
            reference = "the golden digests" if golden else "its siblings"
            if not golden and len(mine) == 2:
                reference = f"#{usual['index']} (which of the two is wrong is not known)"
            device = device_text(row["device"], row["index"])
            yield Finding(
                id="digests-differ",
                severity="error",
                evidence=f"{device}: training steps in {row['key'].get('dtype')} differ from "
                f"{reference}; the first is {_first_difference(row, usual)}",
                fix="repeat it: trainrig burn --mode step; if it stays, take the device out of "
                "service",
            )


def _most_common(rows: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the row whose steps most devices have."""
    return max(rows, key=lambda row: sum(other["steps"] == row["steps"] for other in rows))


def _first_difference(row: Mapping[str, Any], usual: Mapping[str, Any]) -> str:
    """Return the first difference of two digests: ``step 2, gradient attention.q.weight``."""
    for step, (digests, wanted) in enumerate(zip(row["steps"], usual["steps"], strict=False)):
        for tensor, (digest, other) in enumerate(zip(digests, wanted, strict=False)):
            if digest != other:
                return f"step {step + 1}, {row['names'][tensor]}"
    return "the number of tensors"


# ---- siblings


def _siblings(devices: Sequence[BurnDevice]) -> Iterator[Finding]:
    """Find devices of one model that are slower than the others at the same work."""
    points = [
        (device, point.measured)
        for device in devices
        for point in device.points
        if device.index is not None and point.measured is not None and point.measured.value
    ]
    for equal_parts in grouped(points, lambda pair: pair[1].key).values():
        for device, record in equal_parts:
            usual = _median_of(other for owner, other in equal_parts if owner is not device)
            assert record.value is not None
            if usual is None or record.value >= usual * (1.0 - BEHIND):
                continue
            share = record.value / usual - 1.0
            yield Finding(
                id="behind-siblings",
                severity="error" if share < -SIBLING_MARGIN else "warning",
                evidence=f"{device.label}: {part_name(record.case)} at "
                f"{format_quantity(record.value, record.unit)}, {signed_share(share)} of the "
                f"others' median ({format_quantity(usual, record.unit)}); more than "
                f"{format_share(BEHIND)} is named",
                fix=f"compare its clocks, power limit and cooling: nvidia-smi -q -i {device.index}",
                records=(record.id,),
            )


def _median_of(records: Iterable[Record]) -> float | None:
    values = [record.value for record in records if record.value]
    return median(values) if values else None
