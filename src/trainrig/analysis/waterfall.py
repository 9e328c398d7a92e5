"""From the claim down to what is reached: the picture that a report is for.

A waterfall belongs to one quantity of one device.  Its first level is the claim,
each further one a harder thing to reach, and its ceiling is the nearest level before
it that bounds it: a layer or a training step bounds only a step of its own shape.
Below the ceiling lies a gap: how much, in which share, why, and what to try.
Values are base SI units; a share is the gap over the ceiling.

What makes a level is each benchmark's own to say (`benchmarks.LevelRule`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from trainrig.analysis.bottlenecks import CLOSE, find_cause
from trainrig.analysis.evidence import Drop, Gap
from trainrig.analysis.rows import Device, Row, claim_for, name_devices, note_of, rows, rules_of
from trainrig.analysis.time_loss import is_own_layer
from trainrig.benchmarks.spec import Quantity, Role, benchmarks, case_text, role_of
from trainrig.record import Case, Kind, Record, RunView, Status, dtype_of

CLAIM, OWN_LAYER = "Claim", "Layer of this step"
"""Levels that no benchmark has: what is claimed of a chip, and the layer that a step is made of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """One number of a waterfall."""

    name: str
    value: float | None
    unit: str
    kind: Kind
    provenance: str
    """Where the number comes from, in a few words."""
    record: str | None
    """The record's id."""
    note: str | None = None
    """Why there is no value, or why the value is not judged."""
    expected: tuple[float, float] | None = None
    """The band that was predicted before the measurement."""
    expected_source: str | None = None
    is_below: bool = False
    """Clearly below the band, by the judge's rule."""
    ceiling: str = ""
    """The level that it is held against."""
    gap: Gap | None = None
    is_step: bool = False
    """It is a whole training step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waterfall:
    """One quantity of one device, from claim to the hardest thing that was tried."""

    device: str
    device_index: int | None
    label: str
    """The device as the report calls it: numbered only where there are several GPUs."""
    quantity: str
    """``fp16 compute``, ``memory bandwidth``, ``host to GPU``."""
    unit: str
    levels: tuple[Level, ...]
    dtype: str = ""
    """Of the arithmetic; empty where nothing is computed."""

    @property
    def relevance(self) -> int:
        """What training rests on comes first: 0 its precision's step, 3 what it does not use."""
        if self.dtype in _TRAINED:
            return 0 if any(level.is_step and level.value for level in self.levels) else 1
        return 2 if not self.dtype or self.dtype in _BESIDE else 3

    @property
    def title(self) -> str:
        """``fp16 compute of RTX 4090 #1``."""
        return f"{self.quantity} of {self.label}"


def build_waterfalls(view: RunView) -> tuple[Waterfall, ...]:
    """The waterfalls of every device: compute by dtype, memory, and the link to the host."""
    found: list[Waterfall] = []
    everything = rows(view)
    for (device, index), label in name_devices(devices(everything)).items():
        own = tuple(row for row in everything if (row.device, row.index) == (device, index))
        for quantity, dtype, candidates in _quantities(view, own):
            levels = _build(view, own, candidates)
            if levels:
                waterfall = Waterfall(
                    device=device or "unknown device",
                    device_index=index,
                    label=label,
                    quantity=quantity,
                    unit=levels[0].unit,
                    levels=levels,
                    dtype=dtype,
                )
                found.append(waterfall)
    return tuple(found)


def devices(everything: Iterable[Row]) -> tuple[Device, ...]:
    """Each device that has a point: GPUs by their number, then the host."""
    seen = {(row.device, row.index) for row in everything if row.measured is not None}
    return tuple(sorted(seen, key=lambda d: (d[1] is None, d[1] or 0, d[0] or "")))


_Levels = dict[tuple[int, str], list[Row]]
"""Rows by their level's place and name."""


def _quantities(
    view: RunView, own: Sequence[Row]
) -> Iterable[tuple[str, str, list[tuple[str, list[Row]]]]]:
    """Each quantity that a device's rows say something of, its dtype, its levels with rows."""
    groups: dict[tuple[Quantity, str], _Levels] = {}
    for row in own:
        for rule in rules_of(row):
            dtype = str(dtype_of(row.case) or "") if rule.quantity.by_dtype else ""
            levels = groups.setdefault((rule.quantity, dtype), {})
            levels.setdefault((rule.order, rule.name), []).append(row)
    for quantity, dtype in sorted(groups, key=lambda key: (key[0].order, dtype_order(key[1]))):
        levels = groups[quantity, dtype]
        if dtype in _TRAINED:
            (other,) = set(_TRAINED) - {dtype}
            levels = _lent(view, levels, groups.get((quantity, other), {}))
        name = f"{dtype} {quantity.name}" if dtype else quantity.name
        yield name, dtype, [(place[1], levels[place]) for place in sorted(levels)]


def _lent(view: RunView, levels: _Levels, others: _Levels) -> _Levels:
    """With the other 16-bit type's products where a step has none of its own.

    Only where both have one claim: the matrix units are the same.
    """
    if any(row.role is not Role.STEP for members in levels.values() for row in members):
        return levels
    lent = {
        place: rows for place, rows in others.items() if all(r.role is not Role.STEP for r in rows)
    }
    first = [next(iter(found.values()))[0] for found in (levels, lent) if found]
    claims = [claim_for(view.records, row) for row in first]
    values = {claim.value for claim in claims if claim is not None}
    return levels | lent if len(claims) == 2 and None not in claims and len(values) == 1 else levels


_TRAINED, _BESIDE = ("bf16", "fp16"), ("tf32", "fp32", "fp8")
_DTYPES = ("bf16", "fp16", "tf32", "fp32", "fp8", "int8", "fp64")


def dtype_order(dtype: str) -> tuple[int, str]:
    """Sort key: what training uses most comes first."""
    return (_DTYPES.index(dtype) if dtype in _DTYPES else len(_DTYPES), dtype)


_Ceiling = tuple[Level, Record | None]
"""A level that has a value, and its record."""


def _build(
    view: RunView, own: tuple[Row, ...], candidates: Sequence[tuple[str, list[Row]]]
) -> tuple[Level, ...]:
    picked: list[tuple[str, Row]] = []
    for name, members in candidates:
        best = best_row(members)
        if best is None or best in [row for _, row in picked]:
            continue
        if best.role is Role.STEP:
            layer = best_row(row for row in own if _bounds(row, best) and row.role is Role.BLOCK)
            if layer is not None and layer not in [row for _, row in picked]:
                picked.append((OWN_LAYER, layer))
        picked.append((name, best))
    if not picked:
        return ()
    ceilings = [_claim_level(view, picked[0][1])]
    levels = [ceilings[0][0]]
    for name, row in picked:
        above = (each for each in reversed(ceilings) if each[1] is None or _bounds(each[1], row))
        levels.append(_measured_level(view, own, next(above, None), name, row))
        if levels[-1].value and not levels[-1].note:  # what was noisy is no ceiling
            ceilings.append((levels[-1], row.measured))
    return tuple(levels)


def _bounds(above: Row | Record, row: Row) -> bool:
    """Whether what was measured above is a ceiling of a row: of its own shape, or of no shape."""
    match role_of(above.benchmark):
        case Role.BLOCK:
            return above.metric == row.metric and is_own_layer(above.case, row.case)
        case Role.STEP:
            return _step_shape(above.case) == _step_shape(row.case)
        case _:
            return True


def _step_shape(case: Case) -> tuple[object, ...]:
    """What a step does on each device."""
    return dtype_of(case), *(case.get(name) for name in ("model", "batch_size", "seq_len"))


def best_row(candidates: Iterable[Row]) -> Row | None:
    """The fastest row, a clean one if there is any; one without a value if none has any."""

    def rank(row: Row) -> tuple[bool, bool, float]:
        record = row.measured
        assert record is not None
        has_value = record.status is Status.OK and record.value is not None
        return has_value, record.disturbed is None, record.value or 0.0

    return max((row for row in candidates if row.measured is not None), key=rank, default=None)


def _claim_level(view: RunView, row: Row) -> _Ceiling:
    claim = claim_for(view.records, row)
    limit = row.measured.limit if row.measured else None
    if limit is None and row.predicted is not None:
        limit = row.predicted.limit
    value, source = (limit.value, limit.source) if limit is not None else (None, "")
    if claim is not None:
        value, source = claim.value, claim.source or "claimed"
    level = Level(
        name=CLAIM,
        value=value,
        unit=row.unit,
        kind=Kind.CLAIMED,
        provenance=source,
        record=claim.id if claim is not None else None,
        note=None if value is not None else "no claim known",
    )
    return level, claim


def _measured_level(
    view: RunView, own: tuple[Row, ...], ceiling: _Ceiling | None, name: str, row: Row
) -> Level:
    record = row.measured
    assert record is not None
    value = record.value if record.status is Status.OK else None
    gap = None
    if ceiling is not None and ceiling[0].value and value is not None:
        drop = Drop(
            view=view,
            record=record,
            value=value,
            ceiling=ceiling[0].value,
            ceiling_record=ceiling[1],
            rows=own,
        )
        gap = find_cause(drop)
    words = case_text(record.benchmark, record.case)
    published = f"; published by {record.source}" if record.kind is Kind.BASELINE else ""
    return Level(
        name=name,
        value=value,
        unit=record.unit,
        kind=record.kind,
        provenance=words + published,
        record=record.id,
        note=note_of(record),
        expected=row.band,
        expected_source=row.predicted.source if row.predicted else None,
        is_below=record.is_below(row.band),
        ceiling=ceiling[0].name if ceiling else "",
        gap=gap,
        is_step=row.role is Role.STEP,
    )


def ceiling_text(name: str) -> str:
    """A level as a sentence has it that speaks of what lies below: ``what its matmuls reach``."""
    levels = {rule.name: rule.as_ceiling for spec in benchmarks() for rule in spec.levels}
    levels |= {CLAIM: "its claim", OWN_LAYER: "what one of its layers reaches"}
    return levels.get(name) or name.lower()


@dataclass(frozen=True, slots=True, kw_only=True)
class LargestGap:
    """The level that lost most, and its waterfall."""

    waterfall: Waterfall
    level: Level
    gap: Gap

    @property
    def ceiling(self) -> float:
        """The value of the level above."""
        return (self.level.value or 0.0) - self.gap.amount


def largest_gap(waterfalls: Iterable[Waterfall]) -> LargestGap | None:
    """The level that fell furthest: below its predicted band first, then below its ceiling.

    What training rests on comes before what it does not use, such as fp64.  Noisy levels are not
    judged, differences within the intervals or below an uncertain claim are none, and pageable
    copies are slower by nature.
    """
    found = [
        LargestGap(waterfall=each, level=level, gap=level.gap)
        for each in waterfalls
        for level in each.levels
        if level.gap is not None and level.note is None and level.name != "Pageable memory"
    ]
    fallen = [
        each
        for each in found
        if each.level.is_below or (each.gap.is_certain and each.gap.share < -CLOSE)
    ]

    def order(one: LargestGap) -> tuple[bool, bool, int, float]:
        relevance = one.waterfall.relevance
        return relevance > 2, not one.level.is_below, relevance, one.gap.share

    return min(fallen, key=order, default=None)
