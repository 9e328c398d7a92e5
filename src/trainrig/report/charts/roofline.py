"""The roofline: arithmetic intensity against rate, under the roofs of memory and arithmetic.

Intensity is FLOPs per counted byte (`workload`).  The slope is memory bandwidth,
the flat parts are arithmetic by dtype; both as claimed (dashed) and as measured
(solid).  A point far below both roofs is bound by something else: launches,
latency, or a shape that the library handles badly.

Source: Williams, Waterman, Patterson, "Roofline", CACM 52(4), 2009.
"""

from __future__ import annotations

from collections.abc import Sequence

from trainrig.analysis.evidence import intensity_of
from trainrig.analysis.match import Row, is_cold_stream, name_devices
from trainrig.analysis.run_view import RunView, is_published
from trainrig.analysis.waterfall import devices
from trainrig.benchmarks.spec import Role, case_text
from trainrig.record import Kind
from trainrig.report.charts.curves import (
    COLOURS,
    MAX_POINTS,
    by_dtype,
    claim_of,
    one_device,
    value_of,
)
from trainrig.report.charts.svg import Axis, Chart, Note, Point, Series
from trainrig.report.document import Figure
from trainrig.units import amount_of, format_quantity, si_scale

_MIN_POINTS = 3
Placed = tuple[Row, float]

_CAPTION = (
    "Slope: memory bandwidth, {slopes}. Flat: arithmetic. Dashed: claimed; solid: {seen}. "
    "Coloured marks: matmul by dtype and size. Grey squares: vector operations. Hollow: disturbed, "
    "or hot in cache (these may lie above the memory roof)."
)


def roofline(view: RunView, everything: Sequence[Row]) -> Figure | None:
    """The first device's roofline; None where too few points or no bandwidth are known."""
    usable = [
        row
        for row in everything
        if value_of(row.measured) is not None
        and row.role in (Role.PRODUCT, Role.STREAM, Role.TRANSFER)
    ]
    chosen = one_device(usable)
    placed = [(row, x) for row in chosen if (x := _intensity(row)) is not None]
    slopes = _slopes(view, chosen)
    if len(placed) < _MIN_POINTS or not slopes:
        return None
    span = (min(x for _, x in placed) / 1.5, max(x for _, x in placed) * 1.5)
    # Integer operations have an axis of their own, which this chart has not.
    products = [
        pair for pair in placed if pair[0].role is Role.PRODUCT and pair[0].unit == "FLOP/s"
    ]
    matmuls = by_dtype(row for row, _ in products)
    vectors = _best_points([pair for pair in placed if pair[0].role is Role.STREAM])
    lines = [_marks(vectors, "cv", 1)] if vectors else []
    flats = [claim_of(view, members) or 0.0 for members in matmuls.values()]
    roof = max([0.0, *flats, *(value_of(row.measured) or 0.0 for row, _ in products)])
    for number, dtype in enumerate(matmuls):
        own = [pair for pair in products if str(pair[0].case.get("dtype")) == dtype]
        lines += _flats(view, dtype, own, slopes, span, number)
        lines.append(_marks(own, f"c{number % COLOURS}", number))
    lines += _slants(slopes, roof, span)
    top = max(p.y for s in lines for p in s.points)
    divisor, spelled = si_scale(top, "FLOP/s")
    where = name_devices(devices(usable))[chosen[0].device, chosen[0].index]
    chart = Chart(
        title=f"Roofline of {where}",
        x=Axis(title="Arithmetic intensity, FLOP per byte (log scale)", log=True),
        y=Axis(title=f"{spelled} (log scale)", log=True, scale=divisor),
        series=tuple(lines),
        notes=_slope_notes(slopes, roof, span),
    )
    seen = "published" if is_published(view) else "measured"
    caption = _CAPTION.format(seen=seen, slopes=_slope_text(slopes))
    return Figure(chart=chart, caption=caption, is_wide=True)


def _slope_text(slopes: dict[str, float]) -> str:
    return ", ".join(f"{format_quantity(slope, 'B/s')} {name}" for name, slope in slopes.items())


def _intensity(row: Row) -> float | None:
    if row.measured is None or (row.role is Role.STREAM and row.metric != "byte_rate"):
        return None
    return intensity_of(row.measured)


def _slopes(view: RunView, chosen: Sequence[Row]) -> dict[str, float]:
    """Memory bandwidth in B/s, claimed and measured."""
    found: dict[str, float] = {}
    for record in view.records:
        if (
            record.kind is Kind.CLAIMED
            and record.benchmark == "memory"
            and chosen
            and record.device == chosen[0].device
            and record.value
        ):
            found["claimed"] = record.value
    streams = [_roof(row) for row in chosen if is_cold_stream(row)]
    if any(streams):
        found["measured"] = max(streams)
    return found


def _roof(row: Row) -> float:
    """What a row says of a roof: nothing if it was disturbed."""
    usable = row.measured is not None and row.measured.is_usable
    return (value_of(row.measured) or 0.0) if usable else 0.0


def _slants(slopes: dict[str, float], roof: float, span: tuple[float, float]) -> list[Series]:
    """The memory roofs, from the left edge to where the highest arithmetic roof begins."""
    found = []
    for name, slope in slopes.items():
        end = min(max(roof / slope, span[0] * 2.0), span[1]) if roof else span[1]
        points = (Point(x=span[0], y=slope * span[0]), Point(x=end, y=slope * end))
        dashed = name == "claimed"
        found.append(Series(label="", points=points, colour="cc", dashed=dashed, marker=-1))
    return found


def _slope_notes(
    slopes: dict[str, float], roof: float, span: tuple[float, float]
) -> tuple[Note, ...]:
    """The bandwidths, written beside the slope where there is room: high up, on its left."""
    ridge = min(max(roof / max(slopes.values()), span[0] * 2.0), span[1]) if roof else span[1]
    x = span[0] * (ridge / span[0]) ** 0.78
    return (Note(x=x, y=x * max(slopes.values()), text=_slope_text(slopes), colour="cc"),)


def _flats(
    view: RunView,
    dtype: str,
    own: Sequence[Placed],
    slopes: dict[str, float],
    span: tuple[float, float],
    number: int,
) -> list[Series]:
    """A dtype's arithmetic roofs; one label says both numbers."""
    unit = own[0][0].unit
    claim = claim_of(view, [row for row, _ in own])
    best = max(_roof(row) for row, _ in own)
    words = amount_of(best, claim, unit) if claim else format_quantity(best, unit)
    found = []
    for name, flat in (("claimed", claim), ("measured", best)):
        if not flat:
            continue
        slope = slopes.get(name) or next(iter(slopes.values()))
        ridge = min(max(flat / slope, span[0]), span[1] / 1.5)
        found.append(
            Series(
                label=f"{dtype} {words}" if name == "measured" else "",
                short=dtype if name == "measured" else "",
                points=(Point(x=ridge, y=flat), Point(x=span[1], y=flat)),
                colour=f"c{number % COLOURS}",
                dashed=name == "claimed",
                marker=-1,
            )
        )
    return found


def _marks(own: Sequence[Placed], colour: str, marker: int) -> Series:
    points = []
    for row, intensity in own[: MAX_POINTS * 2]:
        value = value_of(row.measured) or 0.0
        rate = value if row.metric == "flop_rate" else value * intensity
        hot = row.role is Role.STREAM and row.case.get("cache") == "hot"
        disturbed = row.measured is not None and row.measured.disturbed is not None
        title = f"{case_text(row.benchmark, row.case)}: {format_quantity(rate, 'FLOP/s')}"
        points.append(Point(x=intensity, y=rate, title=title, hollow=hot or disturbed))
    return Series(label="", points=tuple(points), colour=colour, marker=marker, line=False)


def _best_points(vectors: Sequence[Placed]) -> list[Placed]:
    """Of each operation the best cold and the best hot point: small ones only show launches."""
    best: dict[tuple[object, ...], Placed] = {}
    for pair in vectors:
        row = pair[0]
        name = (row.case.get("op"), row.case.get("dtype"), row.case.get("cache"))
        if name not in best or (value_of(row.measured) or 0.0) > (
            value_of(best[name][0].measured) or 0.0
        ):
            best[name] = pair
    return list(best.values())
