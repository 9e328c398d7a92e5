"""Which charts a run gets: matmul, vector and copy by size; the roofline has a file of its own.

Own measurements are drawn in colour; what others published on other machines
lies behind them in grey.  One device is shown where a chart would drown in
eight: the first.  The number of charts, lines and points is bounded, so that a
run of ten thousand points still makes one page.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from trainrig.analysis.match import Device, Row, claim_for, is_burst, name_devices
from trainrig.analysis.run_view import RunView
from trainrig.analysis.waterfall import devices, dtype_order
from trainrig.benchmarks.matmul import square_size
from trainrig.benchmarks.spec import Role, case_text
from trainrig.record import Record, Scalar, Status
from trainrig.report.charts.svg import Axis, Chart, Point, Series
from trainrig.report.document import Figure
from trainrig.stats import AGREEMENT, median
from trainrig.units import binary, format_quantity, si_scale

MAX_OWN = 8
"""Lines of this run in one chart."""
MAX_OTHERS = 5
"""Published machines behind them."""
MAX_CHARTS = 8
MAX_POINTS = 64
"""In one line; a denser curve is thinned evenly."""
COLOURS = 7
_LOG_SPAN = 20.0
"""Lines that differ by more than this factor need a logarithmic axis."""


def curves(view: RunView, everything: Sequence[Row]) -> tuple[Figure, ...]:
    """The curves over size that this run's points can fill."""
    usable = [row for row in everything if value_of(row.measured) is not None]
    names = name_devices(devices(usable))
    found = [
        *_matmul_figures(view, usable, names),
        *_vector_figures(view, usable, names),
        *_copy_figures(usable, names),
    ]
    return tuple(found[:MAX_CHARTS])


def value_of(record: Record | None) -> float | None:
    """A value that can be drawn: present and above zero."""
    if record is None or record.status is not Status.OK or not record.value or record.value <= 0.0:
        return None
    return record.value


def one_device(chosen: Sequence[Row]) -> list[Row]:
    """The rows of the first device that has any, alone."""
    first = next(iter(devices(chosen)), None)
    return [row for row in chosen if (row.device, row.index) == first and row.count == 1]


def claim_of(view: RunView, chosen: Sequence[Row]) -> float | None:
    """The claim that bounds these rows, in their unit."""
    for row in chosen:
        claim = claim_for(view.records, row)
        if claim is not None:
            return claim.value
        if row.measured is not None and row.measured.limit is not None:
            return row.measured.limit.value
    return None


def by_dtype(chosen: Iterable[Row]) -> dict[str, list[Row]]:
    """Rows by their dtype, in the order in which people look for them."""
    groups: dict[str, list[Row]] = {}
    for row in chosen:
        groups.setdefault(str(row.case.get("dtype")), []).append(row)
    return {dtype: groups[dtype] for dtype in sorted(groups, key=dtype_order)}


def _matmul_figures(
    view: RunView, usable: Sequence[Row], names: Mapping[Device, str]
) -> Iterable[Figure]:
    burst = [row for row in usable if is_burst(row) and square_size(row.case)]
    if not burst:
        return
    first = by_dtype(one_device(burst))
    own = [
        Series(
            label=dtype,
            points=_points(members, "m"),
            colour=f"c{number % COLOURS}",
            marker=number,
        )
        for number, (dtype, members) in enumerate(list(first.items())[:MAX_OWN])
    ]
    where = names[burst[0].device, devices(burst)[0][1]]
    if len(own) > 1:
        yield _curve(f"Matmul over size, {where}", _SIZE, burst[0].unit, own, (), None, _plain)
    for dtype, chosen in by_dtype(burst).items():
        lines = _by_device(chosen, names)
        others = _others(view, chosen, {"dtype": dtype}, "m")
        if others or len(lines) > 1 or len(own) == 1:
            claim = claim_of(view, chosen)
            title = f"{dtype} matmul over size"
            yield _curve(title, _SIZE, chosen[0].unit, lines, others, claim, _plain)


_SIZE = "n of an n × n × n matmul"


def _plain(value: float) -> str:
    return f"{value:g}"


def _vector_figures(
    view: RunView, usable: Sequence[Row], names: Mapping[Device, str]
) -> Iterable[Figure]:
    vector = [row for row in usable if row.role is Role.STREAM and row.metric == "byte_rate"]
    for dtype, chosen in by_dtype(one_device(vector)).items():
        own = _by_case(chosen, ("op", "cache"), "num_elements")
        others = _others(view, chosen, {"dtype": dtype, "op": "scale"}, "num_elements")
        title = f"{dtype} vector over size, {names[chosen[0].device, chosen[0].index]}"
        claim = claim_of(view, [row for row in chosen if row.case.get("cache") == "cold"] or chosen)
        yield _curve(title, "Elements", "B/s", own, others, claim, lambda n: binary(n).strip())


def _copy_figures(usable: Sequence[Row], names: Mapping[Device, str]) -> Iterable[Figure]:
    copies = one_device([row for row in usable if row.role is Role.TRANSFER])
    own = _by_case(copies, ("direction", "memory"), "bytes")
    if own and max(len(s.points) for s in own) > 1:
        title = f"Copies over size, {names[copies[0].device, copies[0].index]}"
        yield _curve(title, "Bytes", "B/s", own, (), None, lambda n: f"{binary(n)}B")


def _by_device(chosen: Sequence[Row], names: Mapping[Device, str]) -> list[Series]:
    """One line a device.  More than two are drawn alike, but for those that fall behind."""
    groups: dict[Device, list[Row]] = {}
    for row in chosen:
        groups.setdefault((row.device, row.index), []).append(row)
    groups = {where: groups[where] for where in devices(chosen) if where in groups}
    few = len(groups) <= 2
    best = {where: max(value_of(r.measured) or 0.0 for r in rows) for where, rows in groups.items()}
    usual = median(list(best.values()))
    found = []
    for number, (where, members) in enumerate(list(groups.items())[:MAX_OWN]):
        behind = not few and best[where] < usual * (1.0 - AGREEMENT)
        named = few or behind or number == 0
        found.append(
            Series(
                label=names[where] if named else "",
                points=_points(members, "m"),
                colour=f"c{number}" if few else "c1" if behind else "c0",
                marker=number if few else 1 if behind else 0,
            )
        )
    return found


def _by_case(chosen: Sequence[Row], names: Sequence[str], field: str) -> list[Series]:
    """One line for each value of the named fields; the first field picks the colour."""
    groups: dict[tuple[Scalar, ...], list[Row]] = {}
    for row in chosen:
        groups.setdefault(tuple(row.case.get(name) for name in names), []).append(row)
    first = list(dict.fromkeys(group[0] for group in groups))
    return [
        Series(
            label=" ".join(str(part) for part in group if part is not None),
            points=_points(members, field),
            colour=f"c{first.index(group[0]) % COLOURS}",
            marker=first.index(group[0]),
        )
        for group, members in list(groups.items())[:MAX_OWN]
    ]


def _points(chosen: Iterable[Row], field: str) -> tuple[Point, ...]:
    found = []
    for row in chosen:
        value, place = value_of(row.measured), row.case.get(field)
        if value is None or not isinstance(place, int) or row.measured is None:
            continue
        disturbed = row.measured.disturbed
        title = f"{case_text(row.benchmark, row.case)}: {format_quantity(value, row.unit)}"
        if disturbed:
            title += f" (disturbed: {disturbed})"
        hot = row.role is Role.STREAM and row.case.get("cache") == "hot"
        hollow = disturbed is not None or hot
        found.append(Point(x=float(place), y=value, title=title, hollow=hollow))
    found.sort(key=lambda p: p.x)
    stride = max(1, -(-len(found) // MAX_POINTS))
    return tuple(found[::stride])


def _others(
    view: RunView, chosen: Sequence[Row], case: Mapping[str, Scalar], field: str
) -> list[Series]:
    """Published curves of the same benchmark, those with most points first."""
    first = chosen[0]
    own = {record.id for record in view.records}
    found: dict[str, dict[float, Record]] = {}
    for record in view.baselines:
        place = record.case.get(field)
        if (
            isinstance(place, int)
            and record.id not in own
            and _is_comparable(record, first, case)
            and (field != "m" or square_size(record.case))
        ):
            best = found.setdefault(record.device or "unknown", {})
            if place not in best or (record.value or 0.0) > (best[place].value or 0.0):
                best[float(place)] = record
    top = max([claim_of(view, chosen) or 0.0, *(value_of(row.measured) or 0.0 for row in chosen)])
    near = {
        device: best
        for device, best in found.items()
        if max(record.value or 0.0 for record in best.values()) <= top * _NEAR
    }
    ranked = sorted(near.items(), key=lambda item: (_fame(item[0]), -len(item[1]), item[0]))
    # One of each make before a second one: three V100s say what one says.
    makes = [_fame(device) for device, _ in ranked]
    places = sorted(range(len(ranked)), key=lambda n: (makes[:n].count(makes[n]), n))
    return [_published_line(*ranked[n], first) for n in places[:MAX_OTHERS]]


# Machines that many readers know, in the order in which they are worth a line.
_KNOWN = ("RTX 4090", "RTX 3090 Ti", "A100", "V100", "H100", "RTX 5090", "MI300X", "B200")
_NEAR = 4.0
"""A machine this many times faster would flatten the curves: it is left out."""


def _fame(device: str) -> int:
    return next((n for n, name in enumerate(_KNOWN) if device.startswith(name)), len(_KNOWN))


def _is_comparable(record: Record, first: Row, case: Mapping[str, Scalar]) -> bool:
    return (
        record.benchmark == first.benchmark
        and record.metric == first.metric
        and record.unit == first.unit
        and record.device_count == 1
        and value_of(record) is not None
        and all(record.case.get(name) == value for name, value in case.items())
    )


def _published_line(device: str, best: Mapping[float, Record], first: Row) -> Series:
    points = []
    for x, record in sorted(best.items())[:MAX_POINTS]:
        value = format_quantity(record.value or 0.0, record.unit)
        what = case_text(record.benchmark, record.case)
        title = f"{device}, {what}: {value} (published: {record.source})"
        points.append(Point(x=x, y=record.value or 0.0, title=title))
    own = device == first.device
    label, short = (f"{device}, published", "published") if own else (device, "")
    return Series(label=label, short=short, points=tuple(points), colour="cq", faint=True)


def _curve(
    title: str,
    x_title: str,
    unit: str,
    own: Sequence[Series],
    others: Sequence[Series],
    claim: float | None,
    word: Callable[[float], str],
) -> Figure:
    lines = [*others, *own]
    tops = [max(p.y for p in s.points) for s in lines if s.points]
    highest = max([*tops, claim or 0.0])
    log = highest / min(tops) > _LOG_SPAN
    xs = [p.x for s in lines for p in s.points]
    if claim is not None:
        ends = (Point(x=min(xs), y=claim), Point(x=max(xs), y=claim))
        lines.append(Series(label="claim", points=ends, colour="cc", dashed=True))
    divisor, spelled = si_scale(highest, unit)
    powers = range(math.ceil(math.log2(min(xs))), math.floor(math.log2(max(xs))) + 1)
    ticks = tuple(2.0**power for power in powers)
    chart = Chart(
        title=title,
        x=Axis(title=f"{x_title} (log scale)", log=True, ticks=ticks, word=word),
        y=Axis(title=f"{spelled}{' (log scale)' if log else ''}", log=log, scale=divisor),
        series=tuple(lines),
    )
    caption = (
        "Hollow: hot in cache, or noisy. " if any(p.hollow for s in own for p in s.points) else ""
    )
    caption += "Grey: published by others, with other software and clocks." if others else ""
    return Figure(chart=chart, caption=caption.strip())
