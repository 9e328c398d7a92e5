"""The roofline: arithmetic intensity against rate, under the roofs of memory and arithmetic.

Intensity is FLOPs per counted byte (`workload`).  The slope is memory bandwidth,
the flat parts are arithmetic by dtype; both as claimed (dashed) and as measured
(solid).  A point far below both roofs is bound by something else: launches,
latency, or a shape that the library handles badly.

Source: Williams, Waterman, Patterson, "Roofline", CACM 52(4), 2009.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from trainrig.analysis.best import best_record, best_row, bound_of, with_bound_sign
from trainrig.analysis.evidence import claimed_memory, intensity_of, measured_memory
from trainrig.analysis.rows import Row, is_published, name_devices
from trainrig.analysis.waterfall import devices
from trainrig.benchmarks.spec import Role
from trainrig.record import RunView
from trainrig.report.charts.curves import (
    COLOURS,
    MAX_POINTS,
    by_dtype,
    claim_of,
    mark,
    one_device,
    value_of,
)
from trainrig.report.charts.svg import Axis, Chart, Note, Point, Series, quantity_axis
from trainrig.report.document import Figure
from trainrig.stats import grouped
from trainrig.units import amount_of, format_quantity

_MIN_POINTS = 3
Placed = tuple[Row, float]

_CAPTION = (
    "Slope: memory bandwidth, {slopes}. Flat: arithmetic. Dashed: claimed; solid: {seen}. "
    "Coloured marks: matmul by dtype and size. Grey squares: vector operations. Hollow: noisy (at "
    "least so fast), or hot in cache. What fits in a cache may lie above the memory roof."
)


def roofline(view: RunView, everything: Sequence[Row]) -> Figure | None:
    """Return the first device's roofline; None where too few points or no bandwidth are known."""
    usable = [
        row
        for row in everything
        if value_of(row.measured) and row.role in (Role.PRODUCT, Role.STREAM, Role.TRANSFER)
    ]
    chosen = one_device(usable)
    placed = list(_placed(chosen))
    known = {"claimed": claimed_memory(view, chosen), "measured": measured_memory(chosen)}
    slopes = {name: slope for name, slope in known.items() if slope}
    if len(placed) < _MIN_POINTS or not slopes:
        return None
    span = (min(x for _, x in placed) / 1.5, max(x for _, x in placed) * 1.5)
    # Integer operations have an axis of their own, which this chart has not.
    products = [
        pair for pair in placed if pair[0].role is Role.PRODUCT and pair[0].unit == "FLOP/s"
    ]
    matmuls = by_dtype(row for row, _ in products)
    vectors = _best_streams(placed)
    lines = [_marks(vectors, "cv", 1)] if vectors else []
    flats = [claim_of(view, members) or 0.0 for members in matmuls.values()]
    roof = max([0.0, *flats, *(value_of(row.measured) for row, _ in products)])
    for number, dtype in enumerate(matmuls):
        dtype_products = [pair for pair in products if str(pair[0].case.get("dtype")) == dtype]
        lines += _flats(view, dtype, dtype_products, slopes, span, number)
        lines.append(_marks(dtype_products, f"c{number % COLOURS}", number))

    def ridge(slope: float) -> float:
        """Return the arithmetic intensity at which the highest roof begins."""
        return min(max(roof / slope, span[0] * 2.0), span[1]) if roof else span[1]

    for name, slope in slopes.items():
        ends = tuple(Point(x=x, y=slope * x) for x in (span[0], ridge(slope)))
        dashed = name == "claimed"
        lines.append(Series(label="", points=ends, colour="cc", dashed=dashed, marker=-1))
    slope_words = ", ".join(
        f"{format_quantity(slope, 'B/s')} {name}" for name, slope in slopes.items()
    )
    steepest = max(slopes.values())
    # The bandwidths stand beside the slope where there is room: high up, on its left.
    x = span[0] * (ridge(steepest) / span[0]) ** 0.78
    chart = Chart(
        title=f"Roofline of {name_devices(devices(usable))[chosen[0].device, chosen[0].index]}",
        x=Axis(title="Arithmetic intensity, FLOP per byte", log=True),
        y=quantity_axis(max(p.y for line in lines for p in line.points), "FLOP/s", log=True),
        series=tuple(lines),
        notes=(Note(x=x, y=x * steepest, text=slope_words, colour="cc"),),
    )
    origin = "published" if is_published(view) else "measured"
    return Figure(
        chart=chart, caption=_CAPTION.format(seen=origin, slopes=slope_words), is_wide=True
    )


def _placed(rows: Iterable[Row]) -> Iterator[Placed]:
    """Yield the rows that have a place on the axis of FLOP per byte."""
    for row in rows:
        is_drawn = row.role is not Role.STREAM or row.metric == "byte_rate"
        if row.measured is not None and is_drawn and (x := intensity_of(row.measured)) is not None:
            yield row, x


def _best_streams(placed: Iterable[Placed]) -> list[Placed]:
    """Return the best cold and the best hot point of each operation."""
    streams = (pair for pair in placed if pair[0].role is Role.STREAM)
    kinds = grouped(streams, lambda p: tuple(p[0].case.get(f) for f in ("op", "dtype", "cache")))
    best = [best_row(row for row, _ in pairs) for pairs in kinds.values()]
    return [pair for pairs in kinds.values() for pair in pairs if pair[0] in best]


def _flats(
    view: RunView,
    dtype: str,
    dtype_points: Sequence[Placed],
    slopes: dict[str, float],
    span: tuple[float, float],
    number: int,
) -> list[Series]:
    """Return a dtype's arithmetic roofs; one label says both numbers."""
    unit = dtype_points[0][0].unit
    claim = claim_of(view, [row for row, _ in dtype_points])
    record = best_record(row.measured for row, _ in dtype_points)
    best = record.value or 0.0 if record is not None else 0.0
    amount = amount_of(best, claim, unit) if claim else format_quantity(best, unit)
    amount = with_bound_sign(amount, bound_of(record)) if record is not None else amount
    flats = []
    for name, flat in (("claimed", claim), ("measured", best)):
        if flat:
            slope = slopes.get(name) or next(iter(slopes.values()))
            start = min(max(flat / slope, span[0]), span[1] / 1.5)
            line = Series(
                label=f"{dtype} {amount}" if name == "measured" else "",
                short=dtype if name == "measured" else "",
                points=(Point(x=start, y=flat), Point(x=span[1], y=flat)),
                colour=f"c{number % COLOURS}",
                dashed=name == "claimed",
                marker=-1,
            )
            flats.append(line)
    return flats


def _marks(dtype_points: Sequence[Placed], colour: str, marker: int) -> Series:
    points = []
    for row, x in dtype_points[: MAX_POINTS * 2]:
        value = value_of(row.measured)
        rate = value if row.metric == "flop_rate" else value * x
        points.append(mark(row, x, rate, "FLOP/s"))
    return Series(label="", points=tuple(points), colour=colour, marker=marker, line=False)
