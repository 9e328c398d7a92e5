"""From the claim down to what is reached: the picture that a report is for.

A waterfall belongs to one quantity of one device.  Its first level is the claim,
each further one a harder thing to reach, and its ceiling is the nearest level before
it that bounds it: a layer or a training step bounds only a step of its own shape.
Below the ceiling lies a gap: how much, in which share, why, and what to try.
Values are base SI units; a share is the gap over the ceiling.  A level that exceeds a
measured one that bounds it shows that this was not measured well enough: nothing is held
against it then, but against the next one up (`exceeded_points` names what to measure again).

What makes a level is each benchmark's own to say (`benchmarks.LevelRule`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from trainrig.analysis.best import (
    best_row,
    bound_of,
    is_reference,
    is_trained_in,
    is_valid,
    valid_value,
    value_text,
)
from trainrig.analysis.bottlenecks import CLOSE, find_cause
from trainrig.analysis.evidence import Drop, Gap
from trainrig.analysis.rows import (
    Device,
    Row,
    claim_for,
    name_devices,
    reason_not_judged,
    rows,
    rules_of,
)
from trainrig.analysis.time_loss import is_own_layer
from trainrig.benchmarks.spec import Quantity, Role, benchmarks, case_text, role_of
from trainrig.record import Case, Kind, Record, RunView, dtype_of

CLAIM, REFERENCE, OWN_LAYER = "Claim", "Reference", "Layer of this step"
"""Levels that no benchmark has: what is claimed of a chip, what is computed of a processor from the
clock that it reports, and the layer that a step is made of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """One number of a waterfall."""

    name: str
    value: float | None
    unit: str
    kind: Kind
    provenance: str
    """Source of the number, in a few words."""
    record: str | None
    """The record's id."""
    note: str | None = None
    """Reason that there is no value, or that the value is not judged."""
    bound: str = ""
    """``≥`` where noise may have slowed it (`best.bound_of`); empty for a clean value."""
    expected: tuple[float, float] | None = None
    """The band that was predicted before the measurement."""
    expected_source: str | None = None
    is_below: bool = False
    """Clearly below the band, by the judge's rule."""
    ceiling: str = ""
    """The level that it is held against."""
    ceiling_bound: str = ""
    """The ceiling's ``bound``."""
    doubted: str = ""
    """The level that bounds it and that it, or another level, exceeds: it is no ceiling."""
    doubted_value: str = ""
    """Value with unit of the level that is doubted."""
    gap: Gap | None = None
    is_step: bool = False
    """True where the level is a whole training step."""
    is_product: bool = False
    """True where the level is a matmul."""


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
    """Data type of the arithmetic; empty where nothing is computed."""

    @property
    def is_gpu(self) -> bool:
        """True where the device is a GPU, not the host."""
        return self.device_index is not None

    @property
    def step_value(self) -> float:
        """Return the fastest training step, in `unit`; 0 without one."""
        return max((level.value or 0.0 for level in self.levels if level.is_step), default=0.0)

    @property
    def best(self) -> Level:
        """Return the level that reached most."""
        return max(self.levels[1:] or self.levels, key=lambda level: level.value or 0.0)

    @property
    def relevance(self) -> int:
        """Rank by what training rests on: 0 a step's data type, 3 one that it does not use."""
        if self.step_value:
            return 0
        if self.dtype:
            return 1 if is_trained_in(self.dtype, is_gpu=self.is_gpu) else 3
        return 2

    @property
    def title(self) -> str:
        """Return a text such as ``fp16 compute of RTX 4090 #1``."""
        return f"{self.quantity} of {self.label}"


def build_waterfalls(view: RunView) -> tuple[Waterfall, ...]:
    """Return the waterfalls of every device: compute by dtype, memory, and the link to the host."""
    waterfalls: list[Waterfall] = []
    everything = rows(view)
    for (device, index), label in name_devices(devices(everything)).items():
        device_rows = tuple(row for row in everything if (row.device, row.index) == (device, index))
        for quantity, dtype, candidates in _quantities(view, device_rows):
            levels = _build(view, device_rows, candidates)
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
                waterfalls.append(waterfall)
    lead = headline_waterfall(waterfalls)
    return tuple(sorted(waterfalls, key=lambda waterfall: waterfall is not lead))


def headline_waterfall(waterfalls: Iterable[Waterfall]) -> Waterfall | None:
    """Return the waterfall that the headline of a run is of.

    Of several devices and data types the one with the fastest training step; without a step the
    one with the fastest matmul, on a GPU if there is one, in a data type that training uses there.
    """
    compute = [waterfall for waterfall in waterfalls if waterfall.dtype and waterfall.best.value]
    gpus = [waterfall for waterfall in compute if waterfall.is_gpu]

    def speed(waterfall: Waterfall) -> tuple[bool, float, bool, float, float]:
        products = [level.value or 0.0 for level in waterfall.levels if level.is_product]
        is_flops = (
            waterfall.unit == "FLOP/s"
        )  # operations on integers are not to be compared with them
        is_used = waterfall.relevance < 3
        return (
            is_used,
            waterfall.step_value,
            is_flops,
            max(products, default=0.0),
            waterfall.best.value or 0.0,
        )

    return max(gpus or compute, key=speed, default=None)


def devices(everything: Iterable[Row]) -> tuple[Device, ...]:
    """Return each device that has a point: GPUs by their number, then the host."""
    measured_devices = {(row.device, row.index) for row in everything if row.measured is not None}
    return tuple(sorted(measured_devices, key=lambda d: (d[1] is None, d[1] or 0, d[0] or "")))


_Levels = dict[tuple[int, str], list[Row]]
"""Rows by their level's place and name."""


def _quantities(
    view: RunView, device_rows: Sequence[Row]
) -> Iterable[tuple[str, str, list[tuple[str, list[Row]]]]]:
    """Yield each quantity that a device has rows of, its dtype, and its levels with rows."""
    groups: dict[tuple[Quantity, str], _Levels] = {}
    for row in device_rows:
        for rule in rules_of(row):
            dtype = str(dtype_of(row.case) or "") if rule.quantity.by_dtype else ""
            levels = groups.setdefault((rule.quantity, dtype), {})
            levels.setdefault((rule.order, rule.name), []).append(row)
    for quantity, dtype in sorted(groups, key=lambda key: (key[0].order, dtype_order(key[1]))):
        levels = groups[quantity, dtype]
        if dtype in _HALF:
            (other,) = set(_HALF) - {dtype}
            levels = _with_other_16_bit_products(view, levels, groups.get((quantity, other), {}))
        name = f"{dtype} {quantity.name}" if dtype else quantity.name
        yield name, dtype, [(place[1], levels[place]) for place in sorted(levels)]


def _with_other_16_bit_products(view: RunView, levels: _Levels, others: _Levels) -> _Levels:
    """Return the rows with the other 16-bit type's products where a step has none of its own type.

    Only where both have one claim: the matrix units are the same.
    """
    if any(row.role is not Role.STEP for members in levels.values() for row in members):
        return levels
    lent = {
        place: rows for place, rows in others.items() if all(r.role is not Role.STEP for r in rows)
    }
    first = [next(iter(level_rows.values()))[0] for level_rows in (levels, lent) if level_rows]
    claims = [claim_for(view.records, row) for row in first]
    values = {claim.value for claim in claims if claim is not None}
    return levels | lent if len(claims) == 2 and None not in claims and len(values) == 1 else levels


_HALF = ("bf16", "fp16")
_DTYPES = ("bf16", "fp16", "tf32", "fp32", "fp8", "int8", "fp64")


def dtype_order(dtype: str) -> tuple[int, str]:
    """Sort key: what training uses most comes first."""
    return (_DTYPES.index(dtype) if dtype in _DTYPES else len(_DTYPES), dtype)


_Picked = tuple[str, Row]
"""A level's name, and the row that stands for it."""
_Ceiling = tuple[Level, Record | None]
"""A level that has a value, and its record."""


def _build(
    view: RunView, device_rows: tuple[Row, ...], candidates: Sequence[tuple[str, list[Row]]]
) -> tuple[Level, ...]:
    picked = _level_rows(device_rows, candidates)
    if not picked:
        return ()
    exceeded_ids = {_id_of(above) for above, row in _pairs(picked) if row.value > above.value}
    claim = _claim_level(view, picked[0][1])
    known: list[_Ceiling] = [claim]
    levels = [claim[0]]
    for name, row in picked:
        above = [
            known_level
            for known_level in reversed(known)
            if known_level[1] is None or _bounds(known_level[1], row)
        ]
        sound = (known_level for known_level in above if known_level[0].record not in exceeded_ids)
        ceiling, nearest = next(sound, None), next(iter(above), None)
        level = _measured_level(view, device_rows, ceiling, name, row)
        if nearest is not None and nearest[1] is not None and nearest is not ceiling:
            level = replace(level, doubted=nearest[0].name, doubted_value=value_text(nearest[1]))
        levels.append(level)
        if is_valid(row.measured):
            known.append((level, row.measured))
    return tuple(levels)


def _level_rows(
    device_rows: tuple[Row, ...], candidates: Sequence[tuple[str, list[Row]]]
) -> list[_Picked]:
    """Return the row of each level: the best that fits it, a step's own layer first."""
    picked: list[_Picked] = []
    for name, members in candidates:
        best = best_row(members)
        if best is None or best in [row for _, row in picked]:
            continue
        if best.role is Role.STEP:
            layer = best_row(
                row for row in device_rows if _bounds(row, best) and row.role is Role.BLOCK
            )
            if layer is not None and layer not in [row for _, row in picked]:
                picked.append((OWN_LAYER, layer))
        picked.append((name, best))
    return picked


def _pairs(picked: Sequence[_Picked]) -> Iterable[tuple[Row, Row]]:
    """Yield each row with its measured ceiling: the nearest valid row before it that bounds it."""
    rows_of_levels = [row for _, row in picked if is_valid(row.measured)]
    for place, row in enumerate(rows_of_levels):
        above = (
            candidate for candidate in reversed(rows_of_levels[:place]) if _bounds(candidate, row)
        )
        if (ceiling := next(above, None)) is not None:
            yield ceiling, row


def _id_of(row: Row) -> str | None:
    return row.measured.id if row.measured is not None else None


def exceeded_points(records: Iterable[Record]) -> tuple[Record, ...]:
    """Return the points to measure again because something that they bound exceeds them.

    A layer or a training step that is faster than the matmul that bounds it shows that the matmul
    was not measured well enough.  Of such a level come the best point and the noisy ones: each may
    be what the device really does.

    Args:
        records: what a run has measured so far; attempts and predictions among them do not matter.

    Returns:
        The points of the exceeded levels, each once.
    """
    factor_by_id: dict[str, tuple[float, Record]] = {}
    view = RunView(name="", records=tuple(records))
    everything = rows(view)
    for where in devices(everything):
        device_rows = tuple(row for row in everything if (row.device, row.index) == where)
        for _, _, candidates in _quantities(view, device_rows):
            for members, ratio in _exceeded_levels(device_rows, candidates):
                for row in members:
                    point = row.measured
                    if point is not None and ratio > factor_by_id.get(point.id, (0.0, point))[0]:
                        factor_by_id[point.id] = ratio, point
    return tuple(point for _, point in sorted(factor_by_id.values(), key=lambda pair: -pair[0]))


def _exceeded_levels(
    device_rows: tuple[Row, ...], candidates: Sequence[tuple[str, list[Row]]]
) -> Iterable[tuple[list[Row], float]]:
    """Yield the doubtful rows of each exceeded level, and the factor."""
    picked = _level_rows(device_rows, candidates)
    level_of = {id(row): members for name, row in picked for n, members in candidates if n == name}
    pairs = list(_pairs(picked))
    matmuls = [row for _, row in picked if row.role is Role.PRODUCT and is_valid(row.measured)]
    pairs += [(matmuls[0], row) for row in device_rows if matmuls and _is_layer_of(row, matmuls[0])]
    for above, row in pairs:
        if row.value > above.value:
            noisy = [
                level_row
                for level_row in level_of.get(id(above), ())
                if level_row.note and level_row.value
            ]
            yield [above, *noisy], row.value / above.value


def _is_layer_of(row: Row, matmul: Row) -> bool:
    """Return whether a row is any layer, whatever its pass, bounded by a matmul's data type."""
    same = (row.metric, row.unit, dtype_of(row.case)) == (
        matmul.metric,
        matmul.unit,
        dtype_of(matmul.case),
    )
    return same and row.role is Role.BLOCK and is_valid(row.measured)


def _bounds(above: Row | Record, row: Row) -> bool:
    """Return whether the measurement above is a ceiling of a row: of its shape, or of none."""
    match role_of(above.benchmark):
        case Role.BLOCK:
            return above.metric == row.metric and is_own_layer(above.case, row.case)
        case Role.STEP:
            return _step_shape(above.case) == _step_shape(row.case)
        case _:
            return True


def _step_shape(case: Case) -> tuple[object, ...]:
    """Return what makes two steps the same work: their sizes on each device, and the program."""
    names = ("model", "batch_size", "seq_len", "optimizer", "recompute", "attention", "compile")
    values = (case.get(name) for name in (*names, "framework"))
    return dtype_of(case), case.get("grad_accum") or 1, *values


def _claim_level(view: RunView, row: Row) -> _Ceiling:
    claim = claim_for(view.records, row)
    limit = row.measured.limit if row.measured else None
    if limit is None and row.predicted is not None:
        limit = row.predicted.limit
    value, source = (limit.value, limit.source) if limit is not None else (None, "")
    if claim is not None:
        value, source = claim.value, claim.source or "claimed"
    bounded = row.measured or row.predicted
    is_computed = value is not None and bounded is not None and is_reference(bounded)
    level = Level(
        name=REFERENCE if is_computed else CLAIM,
        value=value,
        unit=row.unit,
        kind=Kind.CLAIMED,
        provenance=source,
        record=claim.id if claim is not None else None,
        note=None if value is not None else "no claim known",
    )
    return level, claim


def _measured_level(
    view: RunView, device_rows: tuple[Row, ...], ceiling: _Ceiling | None, name: str, row: Row
) -> Level:
    record = row.measured
    assert record is not None
    value = valid_value(record) or None
    gap = None
    if ceiling is not None and ceiling[0].value and value is not None:
        drop = Drop(
            view=view,
            record=record,
            value=value,
            ceiling=ceiling[0].value,
            ceiling_record=ceiling[1],
            rows=device_rows,
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
        note=reason_not_judged(record) or (None if value is not None else "not above zero"),
        bound=bound_of(record) if value is not None else "",
        expected=row.band,
        expected_source=row.predicted.source if row.predicted else None,
        is_below=record.is_below(row.band),
        ceiling=ceiling[0].name if ceiling else "",
        ceiling_bound=ceiling[0].bound if ceiling else "",
        gap=gap,
        is_step=row.role is Role.STEP,
        is_product=row.role is Role.PRODUCT,
    )


def ceiling_text(name: str) -> str:
    """Return a level's name in a sentence on what lies below: ``what its matmuls reach``."""
    levels = {rule.name: rule.as_ceiling for spec in benchmarks() for rule in spec.levels}
    levels |= {CLAIM: "its claim", REFERENCE: "the reference that its reported clock gives"}
    levels |= {OWN_LAYER: "what one of its layers reaches"}
    return levels.get(name) or name.lower()


@dataclass(frozen=True, slots=True, kw_only=True)
class LargestGap:
    """The level that lost most, and its waterfall."""

    waterfall: Waterfall
    level: Level
    gap: Gap

    @property
    def ceiling(self) -> float:
        """Return the value of the level above."""
        return (self.level.value or 0.0) - self.gap.amount


def largest_gap(waterfalls: Iterable[Waterfall]) -> LargestGap | None:
    """Return the level that fell furthest: below its predicted band first, then below its ceiling.

    What training rests on comes before what it does not use, such as fp64.  Noisy levels are not
    judged, differences within the intervals or below an uncertain claim are none, and pageable
    copies are slower by nature.
    """
    known = tuple(waterfalls)
    lead = headline_waterfall(known)
    gaps = [
        LargestGap(waterfall=waterfall, level=level, gap=level.gap)
        for waterfall in known
        for level in waterfall.levels
        if level.gap is not None and level.note is None and level.name != "Pageable memory"
    ]
    fallen = [
        gap for gap in gaps if gap.level.is_below or (gap.gap.is_certain and gap.gap.share < -CLOSE)
    ]

    def subject(waterfall: Waterfall | None) -> tuple[str | None, str | None]:
        return (waterfall.device, waterfall.quantity) if waterfall is not None else (None, None)

    def order(gap: LargestGap) -> tuple[bool, bool, bool, int, float]:
        relevance, is_other = gap.waterfall.relevance, subject(gap.waterfall) != subject(lead)
        return relevance > 2, not gap.level.is_below, is_other, relevance, gap.gap.share

    return min(fallen, key=order, default=None)
