"""Charts of a run: matmul, vector and copy by size; the roofline has a file of its own.

Own measurements are drawn in colour; what others published on other machines
lies behind them in grey.  One device is shown where a chart would drown in
eight: the first.  The number of charts, lines and points is bounded, so that a
run of ten thousand points still makes one page.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from trainrig.analysis.rows import Device, Row, claim_for, is_burst, name_devices
from trainrig.analysis.waterfall import devices, dtype_order
from trainrig.benchmarks.matmul import square_size
from trainrig.benchmarks.spec import Role, case_text
from trainrig.record import Record, RunView, Scalar, Status
from trainrig.report.charts.svg import Axis, Chart, Point, Series, quantity_axis, thinned
from trainrig.report.document import Figure
from trainrig.stats import AGREEMENT, grouped, median
from trainrig.units import binary, format_quantity

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
_KNOWN = ("RTX 4090", "RTX 3090 Ti", "A100", "V100", "H100", "RTX 5090", "MI300X", "B200")
"""Machines that many readers know, in the order in which they are worth a line."""
_LONG_NAME, _LONGEST = re.compile(r" \(.*\)$"), 20
"""Part of a long name that a label leaves out; the marks have it whole."""
_NEAR = 4.0
"""A machine this many times faster would flatten the curves: it is left out."""


def curves(view: RunView, everything: Sequence[Row]) -> tuple[Figure, ...]:
    """Return the curves over size that this run's points can fill."""
    usable = [row for row in everything if value_of(row.measured)]
    names = name_devices(devices(usable))
    figures = itertools.chain(
        _matmul_figures(view, usable, names),
        _vector_figures(view, usable, names),
        _copy_figures(usable, names),
        _collective_figures(usable),
    )
    return tuple(itertools.islice(figures, MAX_CHARTS))


def value_of(record: Record | None) -> float:
    """Return a value that can be drawn, which is above zero; else 0."""
    is_drawn = record is not None and record.status is Status.OK
    return max(0.0, record.value or 0.0) if record is not None and is_drawn else 0.0


def one_device(chosen: Sequence[Row]) -> list[Row]:
    """Return the rows of the first device that has any, alone."""
    first = next(iter(devices(chosen)), None)
    return [row for row in chosen if (row.device, row.index) == first and row.count == 1]


def claim_of(view: RunView, chosen: Sequence[Row]) -> float | None:
    """Return the claim that bounds these rows, in their unit."""
    for row in chosen:
        if (claim := claim_for(view.records, row)) is not None:
            return claim.value
        if row.measured is not None and row.measured.limit is not None:
            return row.measured.limit.value
    return None


def by_dtype(chosen: Iterable[Row]) -> dict[str, list[Row]]:
    """Return rows by their dtype, in the order in which people look for them."""
    groups = grouped(chosen, lambda row: str(row.case.get("dtype")))
    return {dtype: groups[dtype] for dtype in sorted(groups, key=dtype_order)}


def mark(row: Row, x: float, y: float, unit: str) -> Point:
    """Return a row's point: hollow where it was noisy, or hot in cache."""
    noisy = row.measured.disturbed if row.measured is not None else None
    hot = row.role is Role.STREAM and row.case.get("cache") == "hot"
    title = f"{case_text(row.benchmark, row.case)}: {format_quantity(y, unit)}"
    title += f" (noisy: {noisy})" if noisy else ""
    return Point(x=x, y=y, title=title, hollow=hot or noisy is not None)


def _matmul_figures(
    view: RunView, usable: Sequence[Row], names: Mapping[Device, str]
) -> Iterator[Figure]:
    burst = [row for row in usable if is_burst(row) and square_size(row.case)]
    if not burst:
        return
    groups = by_dtype(one_device(burst))
    cases = _by_case(itertools.chain(*groups.values()), ("dtype",), "m")
    x = "n of an n × n × n matmul"
    if len(cases) > 1 and _has_curve(cases):
        where = names[burst[0].device, devices(burst)[0][1]]
        yield _curve(f"Matmul over size, {where}", x, cases)
    for dtype, chosen in by_dtype(burst).items():
        lines, others = _by_device(chosen, names), _others(view, chosen, {"dtype": dtype}, "m")
        if others or (_has_curve(lines) and (len(lines) > 1 or len(cases) == 1)):
            title = f"{dtype} matmul over size"
            yield _curve(title, x, lines, others, claim_of(view, chosen), chosen[0].unit)


def _vector_figures(
    view: RunView, usable: Sequence[Row], names: Mapping[Device, str]
) -> Iterator[Figure]:
    vector = [row for row in usable if row.role is Role.STREAM and row.metric == "byte_rate"]
    for dtype, chosen in by_dtype(one_device(vector)).items():
        cases = _by_case(chosen, ("op", "cache"), "num_elements")
        others = _others(view, chosen, {"dtype": dtype, "op": "scale"}, "num_elements")
        if not others and not _has_curve(cases):
            continue
        title = f"{dtype} vector over size, {names[chosen[0].device, chosen[0].index]}"
        claim = claim_of(view, [row for row in chosen if row.case.get("cache") == "cold"] or chosen)
        yield _curve(title, "Elements", cases, others, claim, "B/s", lambda n: binary(n).strip())


def _copy_figures(usable: Sequence[Row], names: Mapping[Device, str]) -> Iterator[Figure]:
    copies = one_device([row for row in usable if row.role is Role.TRANSFER])
    cases = _by_case(copies, ("direction", "memory"), "bytes")
    if _has_curve(cases):
        title = f"Copies over size, {names[copies[0].device, copies[0].index]}"
        yield _curve(title, "Bytes", cases, unit="B/s", word=lambda n: f"{binary(n)}B")


def _collective_figures(usable: Sequence[Row]) -> Iterator[Figure]:
    """Bus bandwidth over size, a line an operation: a chart for each number of ranks and path."""
    rows = [row for row in usable if row.role is Role.COLLECTIVE and row.metric == "bus_rate"]
    kinds = ("ranks", "nodes", "backend", "peer_access", "dtype", "in_place")
    groups = grouped(rows, lambda row: tuple(row.case.get(name) for name in kinds))
    for kind, members in groups.items():
        lines = [line for line in _by_case(members, ("collective",), "bytes") if line.points]
        if max(len(line.points) for line in lines) < 2:
            continue
        ranks, nodes, backend, peer_access, dtype, in_place = kind
        words = [f"{ranks} ranks" if ranks != 1 else "1 rank"]
        words += [f"{nodes} nodes"] if isinstance(nodes, int) and nodes > 1 else []
        words += [str(word) for word in (backend, dtype) if word]
        words += ["peer access off"] if peer_access is False else []
        words += ["in place"] if in_place else []
        title = f"Bus bandwidth over size, {', '.join(words)}"
        word: Callable[[float], str] = lambda n: f"{binary(n)}B"  # noqa: E731
        yield _curve(title, "Bytes", lines, unit="B/s", word=word, by_point=True)


def _has_curve(lines: Iterable[Series]) -> bool:
    """Return whether any line has two points: one size is a number, not a curve."""
    return any(len(line.points) > 1 for line in lines)


def _by_device(chosen: Sequence[Row], names: Mapping[Device, str]) -> list[Series]:
    """Return one line a device.  More than two are drawn alike, but for those that fall behind."""
    of_device = grouped(chosen, lambda row: (row.device, row.index))
    groups = {where: of_device[where] for where in devices(chosen)}
    best = {where: max(value_of(row.measured) for row in rows) for where, rows in groups.items()}
    usual, few = median(list(best.values())), len(groups) <= 2
    device_series = []
    for number, (where, members) in enumerate(list(groups.items())[:MAX_OWN]):
        behind = not few and best[where] < usual * (1.0 - AGREEMENT)
        place = number if few else int(behind)
        label = names[where] if few or behind or number == 0 else ""
        points = _points(members, "m")
        device_series.append(Series(label=label, points=points, colour=f"c{place}", marker=place))
    return device_series


def _by_case(chosen: Iterable[Row], names: Sequence[str], field: str) -> list[Series]:
    """Return one line for each value of the named fields; the first field picks the colour."""
    groups = grouped(chosen, lambda row: tuple(row.case.get(name) for name in names))
    first = list(dict.fromkeys(group[0] for group in groups))
    return [
        Series(
            label=" ".join(str(part) for part in group if part is not None),
            points=_points(members, field),
            colour=f"c{first.index(group[0]) % COLOURS}",
            marker=first.index(group[0]),
        )
        for group, members in itertools.islice(groups.items(), MAX_OWN)
    ]


def _points(chosen: Iterable[Row], field: str) -> tuple[Point, ...]:
    points = [
        mark(row, float(place), value_of(row.measured), row.unit)
        for row in chosen
        if isinstance(place := row.case.get(field), int)
    ]
    return thinned(sorted(points, key=lambda point: point.x), MAX_POINTS)


def _others(
    view: RunView, chosen: Sequence[Row], case: Mapping[str, Scalar], field: str
) -> list[Series]:
    """Published curves of the same benchmark, those with most points first.

    What is published is of accelerators: none stands behind a processor's own.
    """
    if chosen[0].index is None:
        return []
    first, own = chosen[0], {record.id for record in view.records}
    by_source: dict[str, dict[int, Record]] = {}
    for record in view.baselines:
        place = record.case.get(field)
        if (
            isinstance(place, int)
            and record.id not in own
            and record.benchmark == first.benchmark
            and record.metric == first.metric
            and record.unit == first.unit
            and record.device_count == 1
            and value_of(record)
            and all(record.case.get(name) == value for name, value in case.items())
            and (field != "m" or square_size(record.case))
        ):
            best = by_source.setdefault(record.device or "unknown", {})
            best[place] = max(best.get(place, record), record, key=value_of)
    top = max([claim_of(view, chosen) or 0.0, *(value_of(row.measured) for row in chosen)])
    near = []
    for device, best in by_source.items():
        fame = next((n for n, name in enumerate(_KNOWN) if device.startswith(name)), len(_KNOWN))
        if max(map(value_of, best.values())) <= top * _NEAR:
            near.append((fame, -len(best), device))
    # One of each make before a second one: three V100s say what one says.
    ranked = [
        list(own)
        for _, own in itertools.groupby(sorted(near), key=lambda ranked_record: ranked_record[0])
    ]
    turns = itertools.chain(*itertools.zip_longest(*ranked))
    names = [ranked_record[2] for ranked_record in turns if ranked_record is not None]
    return [_published_line(name, by_source[name], first) for name in names[:MAX_OTHERS]]


def _published_line(device: str, best: Mapping[int, Record], first: Row) -> Series:
    points = []
    for x, record in sorted(best.items())[:MAX_POINTS]:
        value = format_quantity(value_of(record), record.unit)
        case_words = case_text(record.benchmark, record.case)
        title = f"{device}, {case_words}: {value} (published: {record.source})"
        points.append(Point(x=x, y=value_of(record), title=title))
    label, short = _LONG_NAME.sub("", device) if len(device) > _LONGEST else device, ""
    if device == first.device:
        label, short = f"{device}, published", "published"
    return Series(label=label, short=short, points=tuple(points), colour="cq", faint=True)


def _curve(
    title: str,
    x_title: str,
    measured_series: Sequence[Series],
    others: Sequence[Series] = (),
    claim: float | None = None,
    unit: str = "FLOP/s",
    word: Callable[[float], str] = "{:g}".format,
    *,
    by_point: bool = False,
) -> Figure:
    """Return ``by_point``: points that differ much need a logarithmic axis, not lines alone."""
    lines = [*others, *measured_series]
    tops = [max(point.y for point in line.points) for line in lines if line.points]
    highest = max([*tops, claim or 0.0])
    y_values = [point.y for line in lines for point in line.points]
    lowest = min(y_values if by_point else tops)
    xs = [point.x for line in lines for point in line.points]
    if claim is not None:
        ends = (Point(x=min(xs), y=claim), Point(x=max(xs), y=claim))
        lines.append(Series(label="claim", points=ends, colour="cc", dashed=True))
    powers = range(math.ceil(math.log2(min(xs))), math.floor(math.log2(max(xs))) + 1)
    chart = Chart(
        title=title,
        x=Axis(title=x_title, log=True, ticks=tuple(2.0**power for power in powers), word=word),
        y=quantity_axis(highest, unit, log=highest / lowest > _LOG_SPAN),
        series=tuple(lines),
    )
    is_hollow = any(point.hollow for line in measured_series for point in line.points)
    caption = [
        "Hollow: hot in cache, or noisy." if is_hollow else "",
        "Grey: published by others, with other software and clocks." if others else "",
    ]
    return Figure(chart=chart, caption=" ".join(filter(None, caption)))
