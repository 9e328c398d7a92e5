"""The verdict on what other tools measured: by each tool's own words, and by rules of its numbers.

FAIL: the tool found a wrong answer, a failure or an allocation error, a load computed nothing, a
point lies below what every sound device reaches, or the doctor finds a fault in the GPUs that a
file describes.  INCOMPLETE: a health test was skipped or cut off, or nothing in the files has a
value.  PASS: a target was reached or a health test passed, and nothing fell short, of a target or
far behind what others published of the same operation; a health test under load counts where the
file shows that the device computed.  Otherwise MEASURED: nothing was judged.

An imported number is one print, without the workers that ours have: one below its band says so
and is not measured again here, so that the next step is always to measure it.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainrig.analysis.evidence import bench_command
from trainrig.analysis.imported_facts import (
    HEALTH,
    STATE,
    best_beside_published,
    is_pair,
    is_unnamed,
    place_text,
    power_limit_text,
    published_repeats,
    read_groups,
    record_tool,
    repeat_text,
)
from trainrig.analysis.rows import SIBLING_MARGIN, Row, join
from trainrig.benchmarks.spec import Role, case_text, find, role_of
from trainrig.record import (
    Case,
    Finding,
    Outcome,
    Record,
    RunView,
    Scalar,
    Severity,
    Status,
    Verdict,
    by_severity,
)
from trainrig.stats import grouped, median
from trainrig.units import counted, device_text, format_quantity, format_share, range_text

VERB = "import"
"""Verb in the run.toml of a run that was imported."""
BURN, TRACE = "burn", "trace"
_BEHIND = ("slower-than-published", "training-slower-than-published")
"""Findings with which nothing has passed."""
_NOTHING = "nothing was computed"
"""End of the reason in a load's record whose rate is 0."""
_SAME = 1.15
"""Peer access that is had makes a transfer faster than this, over PCIe as over NVLink."""
_LARGE_PART = 1.0 / 3.0
"""Share of a trace's span from which idle time or exposed communication is a finding."""
_UNEXPECTED = 1.5
"""A published training of the same model that is so much faster is no spread of boards."""
_MEMORY_MARGIN = 0.005
"""Peaks of memory of one training agree so closely: they are printed with three digits."""


def is_imported(config: Mapping[str, Any]) -> bool:
    """Return whether a run holds what other tools measured."""
    return config.get("verb") == VERB


def judge_imported(
    view: RunView,
    baselines: Sequence[Record],
    machine_findings: Iterable[Finding] = (),
    notes: Sequence[str] = (),
) -> Verdict:
    """Return the verdict on an imported run; ``notes`` are what its files lack, in words."""
    points = [record for record in view.records if record.is_point]
    rows = join(view.records)
    read = [number for group in read_groups(view) for number in group.numbers]
    findings = [
        *machine_findings,
        *_failures(points),
        *_not_done(points),
        *_computed_nothing(points),
        *_below(rows),
        *_no_peer_access(points),
        *_slower_cards(points),
        *_slowed(points),
        *_slower_than_published(points, baselines),
        *_slower_than_others(view),
        *_repeats_of_published(view),
        *_states(points),
        *_idle_or_exposed_time(points),
        *_missing_cases(points),
        *(
            _finding("import-note", "info", note, "import the whole output, or add what it lacks")
            for note in notes
        ),
    ]
    ordered = by_severity(findings)
    outcome, reason = _outcome(ordered, points, rows)
    if (
        num := sum(number.place is not None for number in read)
        if outcome is Outcome.MEASURED
        else 0
    ):
        reason += f"; {counted(num, 'value')} beside published figures"
    return Verdict(outcome=outcome, reason=reason, findings=ordered)


def _finding(
    id: str, severity: Severity, evidence: str, fix: str, records: Iterable[Record] = ()
) -> Finding:
    return Finding(
        id=id,
        severity=severity,
        evidence=evidence,
        fix=fix,
        records=tuple(record.id for record in records),
    )


def _outcome(
    findings: Sequence[Finding], points: Sequence[Record], rows: Sequence[Row]
) -> tuple[Outcome, str]:
    errors = [finding for finding in findings if finding.severity == "error"]
    if errors:
        more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        return Outcome.FAIL, f"{errors[0].evidence}{more}"
    undone = [p for p in points if p.benchmark == HEALTH and p.status is not Status.OK]
    if undone:
        return (
            Outcome.INCOMPLETE,
            f"{counted(len(undone), 'health test')} not done: {name_of(undone[0])}",
        )
    known = [point for point in points if point.value is not None]
    if points and not known:
        return Outcome.INCOMPLETE, f"nothing has a value: {points[0].reason or 'no reason given'}"
    behind = next((finding for finding in findings if finding.id in _BEHIND), None)
    if behind is not None:
        return Outcome.MEASURED, behind.evidence
    return _passed_or_measured(known, points, rows)


def _passed_or_measured(
    known: Sequence[Record], points: Sequence[Record], rows: Sequence[Row]
) -> tuple[Outcome, str]:
    """Return PASS where something was judged; what was not is counted."""
    reached = [row for row in rows if row.band and row.value >= row.band[0]]
    passed = [point for point in known if point.benchmark == HEALTH]
    proven = [point for point in passed if _shows_work(point, points)]
    if reached or proven:
        parts = [counted(len(reached), "point") + " reached what is expected"] if reached else []
        parts += [counted(len(proven), "health test") + " passed"] if proven else []
        num_unjudged = len(known) - len(passed) - len(reached)
        parts += (
            [counted(num_unjudged, "value") + " not judged: no target known"]
            if num_unjudged > 0
            else []
        )
        return Outcome.PASS, "; ".join(parts)
    if passed:
        tests = counted(len(passed), "health test")
        return Outcome.MEASURED, f"{tests} passed, and no rate shows that anything was computed"
    if not points:
        return Outcome.MEASURED, "cards and paths were read, and no number to judge"
    return Outcome.MEASURED, f"{counted(len(known), 'value')} read; no target known for any"


def _shows_work(test: Record, points: Iterable[Record]) -> bool:
    """Return whether a health test did something: the load that it goes with has a rate above 0."""
    loads = [
        load
        for load in points
        if load.benchmark == BURN
        and load.device_index == test.device_index
        and load.conditions.get("file") == test.conditions.get("file")
    ]
    return not loads or any(load.value for load in loads)


# ---- one rule each


def name_of(record: Record) -> str:
    """Return the name of a point: ``collective all_reduce …, nccl-tests 2.13 on H100 #0``."""
    where = device_text(record.device, record.device_index)
    device = "" if record.device_index is None and is_unnamed(record.device) else f" on {where}"
    case = case_text(record.benchmark, record.case)
    return f"{record.benchmark} {case} ({record_tool(record)}){device}"


def _failures(points: Iterable[Record]) -> Iterator[Finding]:
    failed = [
        record
        for record in points
        if record.status in (Status.FAILED, Status.OOM, Status.TIMEOUT) and not _is_idle(record)
    ]
    groups = grouped(failed, lambda r: (r.conditions.get("tool"), r.reason, r.device_index))
    for group in groups.values():
        first = group[0]
        more = f" (and {counted(len(group) - 1, 'more case')})" if len(group) > 1 else ""
        wrong = first.is_wrong_answer
        yield _finding(
            "wrong-answer" if wrong else "tool-failure",
            "error",
            f"{name_of(first)}{more}: {first.reason}",
            "repeat it; if it stays, take the GPU out of service: nvidia-smi -q -d ECC,ROW_REMAPPER"
            if wrong
            else "read the tool's own output, repeat it, then: trainrig qualify",
            group,
        )


def _not_done(points: Iterable[Record]) -> Iterator[Finding]:
    undone = [
        test
        for test in points
        if test.benchmark == HEALTH and test.status in (Status.SKIPPED, Status.MISSING)
    ]
    for group in grouped(undone, lambda r: (r.conditions.get("tool"), r.reason)).values():
        names = ", ".join(dict.fromkeys(str(test.case.get("test")) for test in group))
        tool = group[0].conditions.get("tool")
        yield _finding(
            "health-test-not-done",
            "warning",
            f"{tool}: {names} was not tested: {group[0].reason}; that is no pass",
            "run it again to its end, as root where it asks for that",
            group,
        )


def _is_idle(point: Record) -> bool:
    """Return whether a load has a rate of 0: importers give it no value, and a reason."""
    has_no_rate = point.status is Status.FAILED and (point.reason or "").endswith(_NOTHING)
    return point.benchmark == BURN and (point.value == 0.0 or has_no_rate)


def _computed_nothing(points: Iterable[Record]) -> Iterator[Finding]:
    """Find loads without a rate, whatever their tool says of them."""
    for point in points:
        if _is_idle(point):
            yield _finding(
                "nothing-computed",
                "error",
                f"{name_of(point)}: 0 FLOP/s: nothing was computed, so that nothing was tested",
                "repeat it, and watch the GPU meanwhile: nvidia-smi -q -d UTILIZATION,CLOCK",
                [point],
            )


def _below(rows: Iterable[Row]) -> Iterator[Finding]:
    judged = [row for row in rows if row.band and row.measured and row.value > 0.0]
    for sizes in grouped(judged, _kind_of).values():
        # Noise only slows: what reached its band at one size is able.
        row = max(
            sizes,
            key=lambda row_of_size: (
                row_of_size.value / row_of_size.band[0] if row_of_size.band else 0.0
            ),
        )
        point, band, predicted = row.measured, row.band, row.predicted
        if point is None or point.value is None or band is None or predicted is None:
            continue
        if point.value >= band[0]:
            continue
        is_link = row.role is Role.TRANSFER
        slot = "its slot's lanes and generation, and the BIOS: " if is_link else ""
        yield _finding(
            "below-band",
            "error",
            f"{name_of(point)}: {format_quantity(point.value, point.unit)}, "
            f"{format_share(point.value / band[0])} of the least that is expected "
            f"({range_text(*band, point.unit)}: {predicted.source})",
            f"{slot}nvidia-smi -q -d {'PCIE' if is_link else 'PERFORMANCE'}; measure it here: "
            f"trainrig bench {point.benchmark}",
            (point, predicted),
        )


def _kind_of(row: Row) -> tuple[object, ...]:
    """Return cases on a device that differ in their sizes alone."""
    spec = find(row.benchmark)
    sizes = spec.sizes if spec else frozenset[str]()
    case = tuple(sorted((key, str(v)) for key, v in row.case.items() if key not in sizes))
    return row.benchmark, row.metric, row.device, row.index, case


def _pairs(points: Iterable[Record]) -> list[Record]:
    return [point for point in points if is_pair(point) and point.value is not None]


def without_peer_access(points: Iterable[Record]) -> str | None:
    """Return why pairs of GPUs have no direct access to each other; None where they do."""
    pairs = _pairs(points)
    stated = [pair for pair in pairs if "can_access" in pair.conditions]
    if stated and not any(pair.conditions["can_access"] for pair in stated):
        return "no P2P: no GPU can access another's memory (connectivity matrix)"
    one_way = [pair for pair in pairs if pair.metric == "byte_rate" and pair.case.get("ways") == 1]
    by_pair = grouped(one_way, lambda r: (r.case.get("from"), r.case.get("to")))
    ratios = []
    for pair_points in by_pair.values():
        rates = {bool(pair.case.get("peer_access")): pair.value or 0.0 for pair in pair_points}
        if len(rates) == 2 and rates[False] > 0.0:
            ratios.append(rates[True] / rates[False])
    if ratios and max(ratios) < _SAME:
        return "no P2P: transfers are as fast with peer access asked for as without"
    return None


def _no_peer_access(points: Sequence[Record]) -> Iterator[Finding]:
    why = without_peer_access(points)
    if why is None:
        return
    pairs = [pair for pair in _pairs(points) if pair.metric == "byte_rate"]
    rates = [pair.value or 0.0 for pair in pairs if pair.case.get("ways") == 1]
    times = [pair.value or 0.0 for pair in _pairs(points) if pair.metric == "time"]
    rates_text = f"; one way {_spread(rates, 'B/s')}" if rates else ""
    rates_text += f", latency {_spread(times, 's')}" if times else ""
    yield _finding(
        "no-p2p",
        "warning",
        f"{why}{rates_text}: what GPUs exchange goes through the host's memory",
        "consumer cards of these generations have none; for data-parallel training keep "
        "NCCL_P2P_DISABLE=1 and gradients few, for tensor parallel choose cards with NVLink",
        pairs,
    )


def _spread(values: Sequence[float], unit: str) -> str:
    low, high = min(values), max(values)
    return format_quantity(low, unit) if low == high else range_text(low, high, unit)


def _slower_cards(points: Iterable[Record]) -> Iterator[Finding]:
    """Find equal cards that were loaded together and are not equally fast."""
    burnt = [r for r in points if r.benchmark == BURN and r.value and r.metric == "flop_rate"]
    for equal_cards in grouped(burnt, lambda r: r.key).values():
        others = median([record.value or 0.0 for record in equal_cards])
        slow = [
            record
            for record in equal_cards
            if (record.value or 0.0) < (1.0 - SIBLING_MARGIN) * others
        ]
        if len(equal_cards) > 1 and slow:
            first = slow[0]
            yield _finding(
                "outlier",
                "warning",
                f"{name_of(first)}: {format_quantity(first.value or 0.0, first.unit)}, the median "
                f"of {len(equal_cards)} is {format_quantity(others, first.unit)}",
                "its cooling, power limit and clocks: nvidia-smi -q -d TEMPERATURE,POWER,CLOCK",
                slow,
            )


def _slowed(points: Iterable[Record]) -> Iterator[Finding]:
    slowed = [record for record in points if record.conditions.get("throttle_reasons")]
    if slowed:
        reasons = ", ".join(
            sorted({str(record.conditions["throttle_reasons"]) for record in slowed})
        )
        yield _finding(
            "throttled",
            "warning",
            f"{name_of(slowed[0])}: slowed down ({reasons})",
            "its fans, air flow and power cables: nvidia-smi -q -d TEMPERATURE,PERFORMANCE",
            slowed,
        )


# ---- trainings


@dataclass(frozen=True, slots=True)
class _Published:
    """A published training that is of the same model."""

    record: Record
    samples_per_s: float
    by_memory: bool
    """Met by its peak of memory, since the log states no device or precision."""


_PROFILE = (
    "profile a few steps for idle time between kernels; the processor's clock and load, "
    "the data loader"
)


def _slower_than_published(
    points: Sequence[Record], baselines: Sequence[Record]
) -> Iterator[Finding]:
    speeds = [r for r in points if role_of(r.benchmark) is Role.STEP and r.metric == "sample_rate"]
    for speed in speeds:
        training_points = [record for record in points if record.case == speed.case]
        memory = next(
            (record.value for record in training_points if record.metric == "peak_memory"), None
        )
        rate = next(
            (record for record in training_points if record.metric == "flop_rate" and record.value),
            None,
        )
        match = _nearest(speed, memory, baselines)
        if match is None or speed.value is None or speed.value <= 0.0 or not speed.device_count:
            continue
        ratio = match.samples_per_s / (speed.value / speed.device_count)
        if ratio < _UNEXPECTED:
            continue
        card = ", ".join(
            str(part) for part in (match.record.device, match.record.case.get("precision")) if part
        )
        memory_text = (
            f" and the same memory ({format_quantity(memory, 'B')})"
            if match.by_memory and memory
            else ""
        )
        reached = f", {format_quantity(rate.value or 0.0, 'FLOP/s')} by model FLOPs" if rate else ""
        printed = rate.conditions.get("printed_flop_rate") if rate else None
        if isinstance(printed, float):
            reached += f" ({format_quantity(printed, 'FLOP/s')} in the log)"
        yield _finding(
            "training-slower-than-published",
            "warning",
            f"{name_of(speed)}: {speed.value:.1f} samples/s{reached}; a published training of this "
            f"model{memory_text} ({card}) reaches {match.samples_per_s:.1f}, {ratio:.1f} times as "
            "fast: a launch-bound or misconfigured host, not the GPU's limit",
            _PROFILE + (f", then: {again}" if (again := bench_command(speed)) else ""),
            [speed],
        )


def _nearest(speed: Record, memory: float | None, baselines: Sequence[Record]) -> _Published | None:
    """Return the slowest published training that it must compare with: that is the kindest."""
    matches = []
    for record in baselines:
        case = record.case
        if record.metric != "token_rate_per_device" or not record.value:
            continue
        if any(case.get(k) != speed.case.get(k) for k in ("model", "seq_len")):
            continue
        stated_keys = [k for k in ("precision", "batch_size") if k in speed.case]
        if any(case.get(k) != speed.case[k] for k in stated_keys):
            continue
        used = record.conditions.get("memory")
        same_memory = (
            memory is not None
            and memory > 0.0  # a log may say 0
            and isinstance(used, int | float)
            and abs(used / memory - 1.0) < _MEMORY_MARGIN
        )
        same_device = speed.device == record.device and "precision" in speed.case
        may_be = is_unnamed(speed.device) or speed.device == record.device
        if same_device or (may_be and same_memory):
            rate = record.value / float(_size(case, "seq_len"))
            matches.append(_Published(record, rate, by_memory=not same_device))
    return min(matches, key=lambda match: match.samples_per_s, default=None)


def _size(case: Case, name: str) -> int:
    value: Scalar = case.get(name)
    return value if isinstance(value, int) and value > 0 else 1


def _idle_or_exposed_time(points: Iterable[Record]) -> Iterator[Finding]:
    advice = {
        "idle_share": (
            "trace-idle",
            "the GPU had nothing to do",
            "what the processor did in the gaps: data loader, synchronising calls, many small "
            "kernels (torch.compile, CUDA graphs)",
        ),
        "exposed_communication_share": (
            "trace-exposed-communication",
            "the GPU only waited for other ranks",
            "larger buckets or micro-batches, overlap of the gradients' exchange, a faster link",
        ),
    }
    for point in points:
        if point.benchmark == TRACE and point.metric in advice and point.value is not None:
            id, description, fix = advice[point.metric]
            if point.value > _LARGE_PART:
                share = format_share(point.value)
                yield _finding(
                    id, "warning", f"{name_of(point)}: in {share} {description}", fix, [point]
                )


def _slower_than_others(view: RunView) -> Iterator[Finding]:
    """Find rates far below the published ones of the same operation on the same card."""
    for compared in best_beside_published(view):
        record, place = compared.number.record, compared.place
        is_step = role_of(record.benchmark) is Role.STEP  # `_slower_than_published` is of these
        if not is_step and compared.number.value * _UNEXPECTED < place.low:
            yield _finding(
                "slower-than-published",
                "warning",
                f"{name_of(record)}: {compared.number.text}, "
                f"{format_share(compared.number.value / place.low)} of the least that is published "
                f"for {place.card}: {place_text(place)} ({place.operation})",
                "its clocks, power limit and temperature under load: nvidia-smi -q -d "
                "PERFORMANCE,POWER; then: trainrig qualify",
                [record],
            )


def _repeats_of_published(view: RunView) -> Iterator[Finding]:
    """Find published figures that may be of the imported run itself."""
    for repeat in published_repeats(best_beside_published(view)):
        if repeat.is_repeat:
            yield _finding(
                "same-as-published",
                "info",
                repeat_text(repeat),
                "compare it with a run of your own: trainrig qualify",
                [repeat.number.record],
            )


def _states(points: Sequence[Record]) -> Iterator[Finding]:
    """Point to the doctor for files that describe a machine's GPUs and hold no rate."""
    states = [point for point in points if point.benchmark == STATE and point.value is not None]
    files = dict.fromkeys(str(state.conditions.get("file")) for state in states)
    for file in files:
        of_file = [state for state in states if state.conditions.get("file") == file]
        limits = dict.fromkeys(filter(None, map(power_limit_text, of_file)))
        stated = "".join(f"; {text}" for text in limits)
        yield _finding(
            "machine-state",
            "info",
            f"{file}: readings of GPUs, no result of a test{stated}",
            f"judge them: trainrig doctor {shlex.quote('-' if file == 'stdin' else file)}",
            of_file,
        )


def _missing_cases(points: Iterable[Record]) -> Iterator[Finding]:
    """Yield one finding for each reason of a case not stated by files or not run by a tool."""
    for status, id in (
        (Status.MISSING, "not-in-the-file"),
        (Status.SKIPPED, "not-run-by-the-tool"),
    ):
        left_out = [p for p in points if p.status is status and p.benchmark != HEALTH]
        for group in grouped(left_out, lambda r: (r.conditions.get("tool"), r.reason)).values():
            metrics = ", ".join(dict.fromkeys(record.metric for record in group))
            tool = group[0].conditions.get("tool")
            count = counted(len(group), "case")
            yield _finding(
                id,
                "info",
                f"{tool}: {metrics} missing in {count}: {group[0].reason}",
                "state it, where you know it: --on, --model, --precision, --seq-len"
                if status is Status.MISSING
                else "none, where it does not apply to this machine",
                group,
            )
