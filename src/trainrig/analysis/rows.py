"""A run's rows: claimed, predicted, measured and published side by side, met by `Record.key`.

The key has no device index: eight equal cards share one key and one prediction,
and each has a row of its own.  Pure, and used by the judge as well as by the
report, so that both see the same pairs.  The caller (runner or the command line)
reads the run; neither this room nor `report` opens one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from trainrig.benchmarks.spec import (
    COMPUTE,
    MEMORY,
    Benchmark,
    LevelRule,
    Quantity,
    Role,
    benchmarks,
    find,
    role_of,
)
from trainrig.catalog.published import published_devices
from trainrig.prediction import expected
from trainrig.record import Case, Kind, Record, RunView, Status
from trainrig.units import device_text

Key = tuple[object, ...]
Device = tuple[str | None, int | None]
"""Model and number of a device."""

SIBLING_MARGIN = 0.07
"""Cards of one model in one machine lie closer together than boards in general."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One case on one device."""

    key: Key
    case: Case
    benchmark: str
    metric: str
    unit: str
    device: str | None
    index: int | None
    """Number of the device in the machine; None for the host, and where nothing was measured."""
    count: int
    """Number of devices that worked at the same time."""
    measured: Record | None
    predicted: Record | None
    baselines: tuple[Record, ...]

    @property
    def role(self) -> Role | None:
        """Role of the benchmark in a training step."""
        return role_of(self.benchmark)

    @property
    def value(self) -> float:
        """Return the measured value; 0 without one."""
        return (self.measured.value or 0.0) if self.measured is not None else 0.0

    @property
    def band(self) -> tuple[float, float] | None:
        """Interval that the point is judged by; None where nothing is predicted of it."""
        return self.predicted.band if self.predicted is not None else None

    @property
    def note(self) -> str | None:
        """Reason that there is no value, or that it is not judged; None where it is."""
        return reason_not_judged(self.measured) if self.measured is not None else "not run"

    @property
    def is_usable(self) -> bool:
        """True where the point has a value above zero that may be judged."""
        return self.measured is not None and self.measured.is_usable and self.value > 0.0


def join(
    records: Iterable[Record], baselines: Iterable[Record] = (), observed: Kind = Kind.MEASURED
) -> tuple[Row, ...]:
    """Return one row for each key and device index, in the order in which records name them.

    Of several points with one key and index the last counts: a repeated
    measurement replaces the one before it.  ``observed`` is BASELINE for a bundle
    of published figures.
    """
    measured_records: dict[Key, dict[int | None, Record]] = {}
    predicted: dict[Key, dict[int | None, Record]] = {}
    published: dict[Key, list[Record]] = {}
    first: dict[Key, Record] = {}
    for record in records:
        if record.attempt is not None:
            continue
        if record.kind is observed:
            side = measured_records
        elif record.kind is Kind.PREDICTED:
            side = predicted
        else:
            if record.kind is Kind.BASELINE:
                published.setdefault(record.key, []).append(record)
            continue
        side.setdefault(record.key, {})[record.device_index] = record
        first.setdefault(record.key, record)
    for record in baselines:
        published.setdefault(record.key, []).append(record)
    joined_rows = []
    for key, record in first.items():
        planned = predicted.get(key, {})
        for index in measured_records.get(key) or planned:
            row = Row(
                key=key,
                case=record.case,
                benchmark=record.benchmark,
                metric=record.metric,
                unit=record.unit,
                device=record.device,
                index=index,
                count=record.num_devices,
                measured=measured_records.get(key, {}).get(index),
                predicted=planned.get(index) or planned.get(None),
                baselines=tuple(published.get(key, ())),
            )
            joined_rows.append(row)
    return tuple(joined_rows)


_LATEST: list[tuple[RunView, tuple[Row, ...]]] = []
"""Rows of the latest runs: every part of a report asks for the same rows, also after the run was
given its verdict."""
_MOST_RUNS = 8


def rows(view: RunView) -> tuple[Row, ...]:
    """Return every case of the run: what was seen, what was predicted, what others published.

    Of a run that was put together from published figures these are what was seen.
    """
    for known, joined in _LATEST:
        parts = ((known.records, view.records), (known.baselines, view.baselines))
        if all(part is other for part, other in (*parts, (known.config, view.config))):
            return joined
    has_points = any(record.is_point for record in view.records)
    observed = Kind.BASELINE if is_published(view) and not has_points else Kind.MEASURED
    # Published figures are met by their device: of a processor's run none is read.
    is_met = any(record.device in published_devices() for record in view.records)
    joined_rows = join(view.records, view.baselines if is_met else (), observed)
    _LATEST.append((view, joined_rows))
    del _LATEST[:-_MOST_RUNS]
    return joined_rows


def is_published(view: RunView) -> bool:
    """Return whether the run was put together from published figures."""
    return str(view.config.get("origin", "")).startswith("published")


def attempts(view: RunView) -> dict[str, Record]:
    """Return the measured attempts by id: the samples that points are derived from."""
    return {record.id: record for record in view.records if record.attempt is not None}


def at_path(value: object, *path: str) -> Any:
    """Return the value at ``path`` of a machine's description; None if absent or Missing."""
    for name in path:
        if not isinstance(value, Mapping):
            return None
        value = value.get(name)
    return None if isinstance(value, Mapping) and "missing" in value else value


def reason_not_judged(record: Record) -> str | None:
    """Return why a record has no value, or why its value is not judged; None where it is."""
    if record.status is not Status.OK:
        return f"{record.status}: {record.reason or 'no reason given'}"
    if record.disturbed:
        return f"noisy: {record.disturbed}"
    return None if record.value is not None else "no value"


def claim_for(records: Iterable[Record], row: Row) -> Record | None:
    """Return the claim that is the ceiling of ``row`` on its device.

    Data that is hot in cache has no ceiling of its own; what stands in here is the memory's.
    """
    place = (Kind.CLAIMED, row.device, row.unit)
    claims = [
        claim for claim in _claims(records) if (claim.kind, claim.device, claim.unit) == place
    ]
    is_stream = row.metric == "byte_rate" and row.role is Role.STREAM
    case = {**row.case, "cache": "cold"} if is_stream else row.case
    return expected.claim_for(claims, row.benchmark, case)


_CLAIMS: list[tuple[Iterable[Record], tuple[Record, ...]]] = []
"""Claims of the records that were looked through last: each row asks for its claim."""


def _claims(records: Iterable[Record]) -> tuple[Record, ...]:
    for known, claims in _CLAIMS:
        if known is records:
            return claims
    claims = tuple(record for record in records if record.kind is Kind.CLAIMED)
    if isinstance(records, tuple):  # what cannot change
        _CLAIMS.append((records, claims))
        del _CLAIMS[:-_MOST_RUNS]
    return claims


def name_devices(devices: Iterable[Device]) -> dict[Device, str]:
    """Return a name for each device: numbered only where the machine has several GPUs."""
    known = list(devices)
    several = sum(index is not None for _, index in known) > 1
    return {
        (device, index): device_text(device or "unknown device", index if several else None)
        for device, index in known
    }


def siblings_of(
    rows: Iterable[Row], fits: Callable[[Row], bool] | None = None
) -> dict[Key, dict[int, Row]]:
    """Return rows of the same case on several devices, by device number.

    ``fits`` says which rows; without it those whose rate the device alone decides.
    """
    rows_by_key: dict[Key, dict[int, Row]] = {}
    for row in rows:
        if row.index is not None and (fits or is_own_rate)(row):
            rows_by_key.setdefault(row.key, {})[row.index] = row
    return {key: members for key, members in rows_by_key.items() if len(members) > 1}


def is_own_rate(row: Row) -> bool:
    """Return whether more is better and the device alone decides it: no launches, no links.

    Workers are not bound to the processors that a GPU is next to, which its link depends on.
    """
    spec = find(row.benchmark)
    if spec is None or not row.unit.endswith("/s") or row.count > 1:
        return False
    is_link = spec.role is Role.TRANSFER and not is_cold_stream(row)
    return spec.is_large(row.case) and not is_link and spec.role not in (Role.STEP, Role.DISK)


def is_host_link(row: Row) -> bool:
    """Return whether a row is a large copy between one device and the host, from pinned memory."""
    spec = find(row.benchmark)
    is_transfer = spec is not None and spec.role is Role.TRANSFER and spec.is_large(row.case)
    is_pinned = row.case.get("memory") == "pinned" and row.case.get("direction") in ("h2d", "d2h")
    return is_transfer and is_pinned and row.count == 1


def is_burst(row: Row) -> bool:
    """Return whether a row is an ordinary matmul of one device: not sustained, not all at once."""
    return _is_first_of(COMPUTE, row)


def is_cold_stream(row: Row) -> bool:
    """Return whether a row's data has to come from the device's own memory."""
    return _is_first_of(MEMORY, row)


def _is_first_of(quantity: Quantity, row: Row) -> bool:
    """Return whether a row may stand for the first level of a waterfall."""
    if row.metric != quantity.metric:
        return False
    first = _first_order(quantity, benchmarks())
    return any(rule.quantity == quantity and rule.order == first for rule in rules_of(row))


_FIRST_ORDERS: dict[tuple[int, Quantity], int] = {}


def _first_order(quantity: Quantity, specs: tuple[Benchmark, ...]) -> int:
    """Return the order of the first level of a quantity's waterfall."""
    place = (id(specs), quantity)  # the tuple is one and the same until a benchmark is registered
    if place not in _FIRST_ORDERS:
        orders = [rule.order for spec in specs for rule in spec.levels if rule.quantity == quantity]
        _FIRST_ORDERS[place] = min(orders)
    return _FIRST_ORDERS[place]


def rules_of(row: Row) -> tuple[LevelRule, ...]:
    """Return the levels of waterfalls that a row may stand for."""
    spec = find(row.benchmark)
    return tuple(
        rule
        for rule in (spec.levels if spec else ())
        if rule.quantity.metric == row.metric and rule.fits(row.case, row.count)
    )
