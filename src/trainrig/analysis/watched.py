"""The rules of watched.toml: what is watched while devices burn, and what each reading may be.

`WatchedDevice` is the readings of one GPU of a burn, by the parent's monotonic clock;
`judge_watched` holds them against every rule of the file and says what it could not judge.  A wall
clock orders nothing: rows of before there was a monotonic one are ordered as they were written.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from trainrig.analysis.evidence import finite_number
from trainrig.analysis.watched_rules import WatchedQuantity, WatchLimit, watch_rules
from trainrig.catalog.chip import Chip
from trainrig.catalog.lookup import find_chip
from trainrig.record import Finding
from trainrig.stats import median
from trainrig.units import format_quantity, format_share

Row = Mapping[str, Any]
Facts = Mapping[str, float]
"""Facts of the machine and of the chip, by name, that limits are multiples of."""


# ---- readings in the order of a clock that never steps


def moments(rows: Iterable[Row]) -> list[float | None]:
    """Return the monotonic moment of each row (s); None where it has none.

    A row without ``m`` is of an earlier version: there a step back of the wall clock, from one row
    of a device to its next, is taken out.
    """
    times: list[float | None] = []
    latest: dict[object, float] = {}
    stepped: dict[object, float] = {}
    for row in rows:
        at, wall, device = (
            finite_number(row.get("m")),
            finite_number(row.get("t")),
            row.get("device"),
        )
        if at is None and wall is not None:
            at = wall + stepped.get(device, 0.0)
            if at < latest.get(device, at):
                stepped[device] = stepped.get(device, 0.0) + latest[device] - at
                at = latest[device]
        if at is not None:
            latest[device] = at
        times.append(at)
    return times


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkSpan:
    """A stretch in which a device did one thing: ``matmul bf16``."""

    name: str
    first: float
    last: float

    @property
    def mode(self) -> str:
        """Return a text such as ``matmul``."""
        return self.name.partition(" ")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedDevice:
    """One GPU of a burn: what it did when, and what its sensors said meanwhile."""

    label: str
    key: str
    """Prefix of the device's columns: ``gpu1``."""
    index: int | None
    parts: tuple[WorkSpan, ...]
    rows: tuple[tuple[float, Row], ...]
    """Telemetry from its first slice of work to its last, each with its moment."""
    facts: Facts

    def readings(self, quantity: str, parts: Sequence[str] = ()) -> list[tuple[float, float, str]]:
        """Return moment, value and throttle reasons of a number while it worked and had settled."""
        settles = watch_rules().settles_s
        spans = [p for p in self.parts if not parts or p.mode in parts]
        matching = []
        for at, row in self.rows:
            value = finite_number(row.get(f"{self.key}_{quantity}"))
            if value is not None and any(p.first + settles <= at <= p.last for p in spans):
                matching.append((at, value, str(row.get(f"{self.key}_throttle_reasons") or "")))
        return matching

    def has(self, row: Row, quantity: str) -> bool:
        """Return whether a row has a reading of the sensor."""
        value = row.get(f"{self.key}_{quantity}")
        return isinstance(value, str) or finite_number(value) is not None


def parts_of_work(
    work: Sequence[Row], label: str, between: tuple[float, float] | None
) -> tuple[WorkSpan, ...]:
    """Return when a device worked on what, from its slices; rows without a device are everybody's.

    ``between``: the whole of it, where no slice was told.
    """
    spans: dict[str, list[float]] = {}
    for at, row in zip(moments(work), work, strict=True):
        if at is not None and row.get("device", label) == label:
            spans.setdefault(str(row.get("part") or ""), []).append(at)
    if not spans and between is not None:
        return (WorkSpan(name="", first=between[0], last=between[1]),)
    return tuple(
        WorkSpan(name=n, first=min(moments_of_part), last=max(moments_of_part))
        for n, moments_of_part in spans.items()
    )


def watch_of(
    label: str, key: str, index: int | None, work: Sequence[Row], rows: Sequence[Row], facts: Facts
) -> WatchedDevice:
    """Return what was watched of a device while it worked."""
    timed = [(at, row) for at, row in zip(moments(rows), rows, strict=True) if at is not None]
    whole = (timed[0][0], timed[-1][0]) if timed else None
    parts = parts_of_work(work, label, whole)
    first = min((part.first for part in parts), default=0.0)
    last = max((part.last for part in parts), default=0.0)
    work_rows = tuple((at, row) for at, row in timed if first <= at <= last)
    return WatchedDevice(
        label=label, key=key, index=index, parts=parts, rows=work_rows, facts=facts
    )


def facts_of(name: str, gpu: Mapping[str, Any]) -> dict[str, float]:
    """Return what limits rest on: the GPU's own thresholds, and its chip's clocks."""
    link = gpu.get("link")
    link = link if isinstance(link, Mapping) else {}
    chip = find_chip(name)
    known = {
        "slowdown_temperature_c": gpu.get("slowdown_temperature_c"),
        "power_limit_w": gpu.get("power_limit_w"),
        "pcie_generation": link.get("max_generation"),
        "pcie_width": link.get("max_width"),
        "base_clock": chip.compute.base_clock if chip else None,
        "boost_clock": chip.compute.boost_clock if chip else None,
    }
    return {name: value for name, raw in known.items() if (value := finite_number(raw))}


# ---- the rules


def judge_watched(watch: WatchedDevice) -> Iterator[Finding]:
    """Judge a device's readings against every rule; what was not watched comes first."""
    unread = list(_missing_sensors(watch))
    yield from unread
    for quantity in watch_rules().quantity:
        yield from _plausible_readings(watch, quantity)
    graver: set[tuple[str, str]] = set()
    for limit in sorted(watch_rules().limit, key=lambda limit: limit.severity != "error"):
        named = (limit.finding, limit.quantity)
        words = None if named in graver else _RULES[limit.rule](watch, limit)
        if words is not None:
            graver.add(named)
            fix = limit.fix.format(index=watch.index)
            yield Finding(
                id=limit.finding,
                severity=limit.severity,
                evidence=f"{watch.label}: {words}",
                fix=fix,
            )


def not_judged(watch: WatchedDevice) -> tuple[str, ...]:
    """Return the labels of what was never read, or has a limit that nothing is known of."""
    lacking = []
    for quantity in watch_rules().quantity:
        has_any = any(watch.has(row, quantity.name) for _, row in watch.rows)
        limits = [limit for limit in watch_rules().limit if limit.quantity == quantity.name]
        unknown = limits and all(
            limit.of and limit.otherwise is None and limit.of not in watch.facts for limit in limits
        )
        if not quantity.required and (not has_any or unknown):
            lacking.append(quantity.label)
    return tuple(lacking)


def _missing_sensors(watch: WatchedDevice) -> Iterator[Finding]:
    rules = watch_rules()
    if not watch.rows:
        return
    for quantity in rules.quantity:
        num = sum(watch.has(row, quantity.name) for _, row in watch.rows)
        if quantity.required and num < rules.least_read * len(watch.rows):
            yield Finding(
                id="not-watched",
                severity="error",
                evidence=f"{watch.label}: its {quantity.label} was read in {num} of "
                f"{len(watch.rows)} s of work",
                fix=f"see what the driver answers: nvidia-smi -q -i {watch.index}; then repeat it",
            )


_DOUBTED_S = 3.0
"""A sensor that says what cannot be for so long is not believed."""


def _plausible_readings(watch: WatchedDevice, quantity: WatchedQuantity) -> Iterator[Finding]:
    most = quantity.most
    if most is not None and quantity.most_of is not None:
        most = most * watch.facts[quantity.most_of] if quantity.most_of in watch.facts else None
    sensor_readings = watch.readings(quantity.name)
    least = quantity.least
    low = _last_of_wrong_stretch(
        sensor_readings, _DOUBTED_S, lambda v, _: least is not None and v < least
    )
    high = _last_of_wrong_stretch(
        sensor_readings, _DOUBTED_S, lambda v, _: most is not None and v > most
    )
    for wrong, bound in ((low, quantity.least), (high, most)):
        if wrong is not None and bound is not None:
            values = _text(wrong, quantity.unit), _text(bound, quantity.unit)
            word = "less" if wrong < bound else "more"
            yield Finding(
                id="sensor-implausible",
                severity="error",
                evidence=f"{watch.label}: its {quantity.label} read {values[0]} under load, "
                f"{word} than can be ({values[1]})",
                fix=f"see what the driver answers: nvidia-smi -q -i {watch.index}; then repeat it",
            )
    if quantity.counter:
        steps = _values(watch, quantity.name)
        back = [(old, new) for old, new in itertools.pairwise(steps) if new < old]
        if back:
            yield Finding(
                id="counter-went-back",
                severity="error",
                evidence=f"{watch.label}: its count of {quantity.label} went from {back[0][0]:g} "
                f"back to {back[0][1]:g}: what happened meanwhile is not known",
                fix="see why it was reset (the driver was reloaded, the card reset): dmesg | grep "
                "-i nvrm; then repeat it",
            )


def _values(watch: WatchedDevice, quantity: str) -> list[float]:
    """Return every reading of a counter while the device worked, settled or not."""
    counter_values = (finite_number(row.get(f"{watch.key}_{quantity}")) for _, row in watch.rows)
    return [value for value in counter_values if value is not None]


def _text(value: float, unit: str) -> str:
    if unit in ("Hz", "W", "J"):
        return format_quantity(value, unit)
    return f"{value:g} {unit}".rstrip()


def _last_of_wrong_stretch(
    sensor_readings: Sequence[tuple[float, float, str]],
    seconds: float,
    is_wrong: Callable[[float, str], bool],
) -> float | None:
    """Return the last value of a stretch of so many seconds, all of whose readings are wrong.

    ``is_wrong`` is told a value and its throttle reasons.  Of a pause without readings nothing is
    known: it ends the stretch.
    """
    first, latest = None, -math.inf
    for at, value, reasons in sensor_readings:
        is_apart, latest = at - latest > watch_rules().longest_pause_s, at
        if not is_wrong(value, reasons):
            first = None
            continue
        first = at if first is None or is_apart else first
        if at - first >= seconds - 1.0:  # a reading stands for its second
            return value
    return None


_HIGHEST = "highest_seen"


def _bound(watch: WatchedDevice, limit: WatchLimit) -> float | None:
    if limit.of is None:
        return limit.value
    if limit.of == _HIGHEST:
        highest = max((value for _, value, _ in watch.readings(limit.quantity)), default=None)
        return None if highest is None else limit.value * highest
    if limit.of in watch.facts:
        return limit.value * watch.facts[limit.of]
    return limit.otherwise


def _label(limit: WatchLimit) -> tuple[str, str]:
    quantity = next(q for q in watch_rules().quantity if q.name == limit.quantity)
    return quantity.label, quantity.unit


def _limit_broken(watch: WatchedDevice, limit: WatchLimit) -> str | None:
    """Return a sentence about a reading beyond its bound for too long, or None."""
    bound = _bound(watch, limit)
    if bound is None:
        return None
    is_most = limit.rule == "at-most"

    def is_wrong(value: float, reasons: str) -> bool:
        is_excused = bool(set(limit.unless) & set(reasons.split(",")))
        return not is_excused and (value >= bound if is_most else value < bound)

    wrong = _last_of_wrong_stretch(
        watch.readings(limit.quantity, limit.parts), limit.seconds, is_wrong
    )
    if wrong is None:
        return None
    label, unit = _label(limit)
    meaning = "is where it slows itself down" if is_most else "is the least under load"
    return f"its {label} was {_text(wrong, unit)} while it worked; {_text(bound, unit)} {meaning}"


def _fell(watch: WatchedDevice, limit: WatchLimit) -> str | None:
    for part in watch.parts:
        if part.mode not in limit.parts:
            continue
        settles = watch_rules().settles_s
        device_rows = [
            (at, value)
            for at, value, _ in watch.readings(limit.quantity)
            if part.first + settles <= at <= part.last
        ]
        if (drop := relative_drop(device_rows, limit.value, limit.seconds)) is not None:
            label, unit = _label(limit)
            high, low, at = drop
            return (
                f"its {label} fell from {_text(high, unit)} to {_text(low, unit)} "
                f"{at - part.first:.0f} s into {part.name}"
            )
    return None


def relative_drop(
    rates: Sequence[tuple[float, float]], share: float, seconds: float
) -> tuple[float, float, float] | None:
    """Return the upper quartile, the low value and since when, where values stay below a share.

    ``rates``: moments and values of the same work.  None where no stretch of ``seconds`` has a
    median below ``share`` of the upper quartile.
    """
    if not rates or rates[-1][0] - rates[0][0] < 2.0 * seconds:
        return None
    values = sorted(value for _, value in rates)
    high = values[(3 * len(values)) // 4]
    # The upper quartile is low itself where the fall came early: the first stretch counts, too.
    early = [value for at, value in rates if at <= rates[0][0] + seconds]
    high = max(high, median(early))
    start = 0
    for end in range(len(rates)):
        while rates[end][0] - rates[start][0] > seconds:
            start += 1
        stretch = rates[start : end + 1]
        if stretch[-1][0] - stretch[0][0] >= seconds - 1.0:
            low = median([value for _, value in stretch])
            if low < share * high:
                return high, low, stretch[0][0]
    return None


def _rose(watch: WatchedDevice, limit: WatchLimit) -> str | None:
    values = _values(watch, limit.quantity)
    rise = sum(max(0.0, new - old) for old, new in itertools.pairwise(values))
    span = watch.rows[-1][0] - watch.rows[0][0] if watch.rows else 0.0
    if rise < limit.count or rise * 3600.0 <= limit.value * max(span, 1.0):
        return None
    label, _ = _label(limit)
    return f"{rise:,.0f} {label} in {span:.0f} s of work"


def _counter_above_zero(watch: WatchedDevice, limit: WatchLimit) -> str | None:
    values = _values(watch, limit.quantity)
    worst = max(values, default=0.0)
    label, _ = _label(limit)
    return f"{worst:,.0f} {label} are counted" if worst > limit.value else None


def _slowed(watch: WatchedDevice, limit: WatchLimit) -> str | None:
    spoken = [str(row.get(f"{watch.key}_{limit.quantity}") or "") for _, row in watch.rows]
    slowed = [text for text in spoken if set(limit.words) & set(text.split(","))]
    if not slowed or len(slowed) <= limit.value * len(spoken):
        return None
    words = sorted(set(limit.words) & {w for text in slowed for w in text.split(",")})
    heat = [value for _, value, _ in watch.readings("temperature_c")]
    warm = f" at up to {max(heat):.0f} °C" if heat else ""
    share = format_share(len(slowed) / len(spoken))
    return f"it slowed itself down ({', '.join(words)}) in {share} of the time{warm}"


_RULES: Mapping[str, Callable[[WatchedDevice, WatchLimit], str | None]] = {
    "at-most": _limit_broken,
    "at-least": _limit_broken,
    "falls": _fell,
    "rise": _rose,
    "any": _counter_above_zero,
    "share": _slowed,
}


# ---- clocks

_LATE_S = 0.3
"""Seconds by which a process may be late to see an event on a busy machine."""


def clock_is_off(worker_seconds: float, parent_seconds: float) -> str | None:
    """Say how a worker's clock differs from the parent's; None where they agree.

    ``worker_seconds`` and ``parent_seconds``: the same stretch by either clock.
    """
    if worker_seconds <= 0.0 or parent_seconds <= 0.0:
        return None
    difference = abs(worker_seconds - parent_seconds) - _LATE_S
    if difference <= watch_rules().clocks_apart * parent_seconds:
        return None
    return f"its clock told {worker_seconds:.2f} s where {parent_seconds:.2f} s passed"


# ---- rates


@cache
def least_rate(name: str, dtype: str, power: float | None) -> tuple[float, str] | None:
    """Return the least rate of large products that is expected of a card (FLOP/s), and its source.

    None where nothing is known of the card or of the type.
    """
    from trainrig.benchmarks.matmul import BENCHMARK, matmul_case
    from trainrig.catalog.published import published_records
    from trainrig.prediction.expected import ceiling, expect, gpu_claims
    from trainrig.record import Kind, Record

    chip: Chip | None = find_chip(name)
    if chip is None:
        return None
    case = {**matmul_case(dtype, 8192), "sustained": True}
    metric = BENCHMARK.metrics(case)[0]
    point = Record(
        kind=Kind.PREDICTED,
        benchmark=BENCHMARK.name,
        version=BENCHMARK.version,
        case=case,
        metric=metric.name,
        unit=metric.unit,
        device=chip.name,
    )
    limit = ceiling(gpu_claims(chip, None), BENCHMARK.name, case)
    expected = expect(point, limit, (), published_records(), chip, power)
    if expected.interval is None:
        return None
    return expected.interval[0], expected.source or ""
