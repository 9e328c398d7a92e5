"""Charts as static SVG: axes with units, lines, points, and labels beside what they name.

Why not a plotting library.  Measured on two cores: altair with vl-convert takes
1.0 s of a report's 3 s to start and 50 ms a chart, weighs 100 MB on the user's
disk, lays text out in fonts of its own (so labels overlap in the reader's), and
knows neither CSS variables nor labels that avoid each other.  This file draws
one kind of chart, in a millisecond, in the page's own font and colours.

Colours are CSS classes (``c0`` … ``c6``, ``cq`` for quiet), which the page's
theme fills in.  Text widths are estimated on the wide side, so that what fits
here fits in any sans-serif font.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from html import escape

from trainrig.language import translate
from trainrig.language.width import is_wide
from trainrig.units import si_scale

_CHAR = 7.2
"""Width of an average character at 12 pixels: wider than Helvetica's and DejaVu's are close."""
_WIDE_CHAR = 12.4
"""Width of a Chinese one: an em, and a little."""
_LINE = 15.0
_MARKERS = 4
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_NARROW = 400.0
"""Below this width labels are short."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One mark: data coordinates and what a reader sees when pointing at it."""

    x: float
    y: float
    title: str = ""
    hollow: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Points that belong together, with a label at the right edge (none if it is empty)."""

    label: str
    points: tuple[Point, ...]
    colour: str
    short: str = ""
    """The label where the chart is narrow; `label` if it is empty."""
    marker: int = 0
    """0 circle, 1 square, 2 diamond, 3 triangle (colour alone tells too little); -1 none."""
    line: bool = True
    dashed: bool = False
    faint: bool = False
    """Drawn behind, thin; its label goes first when there are too many."""


def thinned(points: Sequence[Point], most: int) -> tuple[Point, ...]:
    """Return every so manieth point, so that about ``most`` are left, and the last."""
    stride = max(1, math.ceil(len(points) / most))
    return (*points[:-1:stride], *points[-1:])


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One axis; values are divided by ``scale`` before they are printed."""

    title: str
    log: bool = False
    scale: float = 1.0
    ticks: tuple[float, ...] = ()
    """Positions of the ticks; chosen from the range if empty."""
    word: Callable[[float], str] | None = None
    """Function that writes a tick's label."""
    from_zero: bool = True
    """A linear axis begins at zero, or near its lowest value."""

    def tick(self, value: float) -> str:
        """Return a tick's label: ``10⁻⁵``, ``0.05``, ``2.5``, ``1,000``."""
        if self.word is not None:
            return self.word(value)
        value /= self.scale
        if 0.0 < abs(value) < 1e-4:
            number, _, power = f"{value:.0e}".partition("e")
            return f"{'' if number == '1' else number + '·'}10{str(int(power)).translate(_RAISED)}"
        return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"

    def can_show(self, value: float) -> bool:
        """Return whether the axis has a place for the value."""
        return math.isfinite(value) and (value > 0.0 or not self.log)

    def named(self) -> str:
        """Return the label beside the axis."""
        return translate("{title} (log scale)").format(title=self.title) if self.log else self.title


def quantity_axis(highest: float, unit: str, *, log: bool = False) -> Axis:
    """Return an axis in the prefixed unit that the highest value reads best in."""
    divisor, spelled = si_scale(highest, unit)
    return Axis(title=spelled, log=log, scale=divisor)


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """A label at a place in data coordinates, right-aligned to it."""

    x: float
    y: float
    text: str
    colour: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Content of a chart, which is drawn in several sizes."""

    title: str
    x: Axis
    y: Axis
    series: tuple[Series, ...]
    notes: tuple[Note, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scale:
    """From data to pixels."""

    low: float
    high: float
    start: float
    end: float
    log: bool

    def __call__(self, value: float) -> float:
        low, high = self.low, self.high
        if self.log:
            low, high, value = math.log10(low), math.log10(high), math.log10(max(value, 1e-300))
        share = (value - low) / (high - low)
        return self.start + share * (self.end - self.start)


def draw(chart: Chart, width: float, height: float) -> str:
    """Return chart as an ``<svg>`` of ``width`` × ``height`` units, or nothing without points."""
    series = []
    for line_series in chart.series:
        points = tuple(
            p for p in line_series.points if chart.x.can_show(p.x) and chart.y.can_show(p.y)
        )
        label = (width < _NARROW and line_series.short) or line_series.label
        series += [replace(line_series, label=label, points=points)] if points else []
    if not series:
        return ""
    left, top, bottom = 52.0, 26.0, 44.0
    longest = max(_width(line_series.label) for line_series in series)
    right = min(longest + 22.0, 0.42 * width) if longest else 14.0
    xs = _scale(chart.x, [p.x for s in series for p in s.points], left, width - right)
    ys = _scale(chart.y, [p.y for s in series for p in s.points], height - bottom, top)
    body = [
        *_y_axis(chart.y, ys, left, width - right),
        *_x_axis(chart.x, xs, height, bottom, width),
        *(mark for s in sorted(series, key=lambda s: not s.faint) for mark in _marks(s, xs, ys)),
        *_notes(chart.notes, xs, ys),
        *_labels(series, xs, ys, width, right),
    ]
    return (
        f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{escape(chart.title)}">'
        + "".join(body)
        + "</svg>"
    )


def _scale(axis: Axis, values: Sequence[float], start: float, end: float) -> _Scale:
    low, high = min(values), max(values)
    if axis.log:
        low, high = (low / 1.15, high * 1.15) if low < high else (low / 3.0, high * 3.0)
    elif axis.from_zero:
        low, high = min(0.0, low), high * 1.06 or 1.0
    else:
        margin = 0.06 * (high - low) or 0.06 * abs(high) or 1.0
        low, high = low - margin, high + margin
    return _Scale(low=low, high=high, start=start, end=end, log=axis.log)


def _ticks(axis: Axis, scale: _Scale, most: int) -> list[float]:
    """At most so many round numbers; on a logarithmic axis powers of ten, or 1-2-5 steps."""
    low, high = scale.low / axis.scale, scale.high / axis.scale
    if axis.ticks:
        visible_ticks = [tick for tick in axis.ticks if scale.low <= tick <= scale.high]
    elif axis.log:
        exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        steps = [m * 10.0**n for n in exponents for m in (1.0, 2.0, 5.0)]
        powers = [10.0**n for n in exponents if low <= 10.0**n <= high]
        finer = [step for step in steps if low <= step <= high]
        is_fine = len(powers) < 3 and (len(finer) <= most or not powers)
        visible_ticks = [tick * axis.scale for tick in (finer if is_fine else powers)]
    else:
        rough = (high - low) / max(1, most)
        power = 10.0 ** math.floor(math.log10(rough))
        rounds = (m * power for m in (1.0, 2.0, 2.5, 5.0, 10.0))
        step = next(step for step in rounds if step >= rough * 0.999) * axis.scale
        visible_ticks = [
            step * n for n in range(math.ceil(scale.low / step), int(scale.high / step) + 1)
        ]
    stride = math.ceil(len(visible_ticks) / max(1, most))
    return visible_ticks[::-1][:: max(1, stride)][::-1]


def _y_axis(axis: Axis, scale: _Scale, left: float, right: float) -> list[str]:
    parts = [_text(4.0, 12.0, axis.named(), "axis")]
    for tick in _ticks(axis, scale, 9 if axis.log else 6):
        y = scale(tick)
        parts.append(f'<path class="grid" d="M{left:g} {y:.1f}H{right:.1f}"/>')
        parts.append(_text(left - 7.0, y + 4.0, axis.tick(tick), "tick", anchor="end"))
    return parts


def _x_axis(axis: Axis, scale: _Scale, height: float, bottom: float, width: float) -> list[str]:
    base, title = height - bottom, axis.named()
    texts = map(axis.tick, _ticks(axis, scale, 99))
    widest = max(map(_width, texts), default=_CHAR) + 12.0
    parts = [f'<path class="base" d="M{scale.start:g} {base:g}H{scale.end:.1f}"/>']
    for tick in _ticks(axis, scale, max(2, int((scale.end - scale.start) / widest))):
        x = scale(tick)
        parts.append(f'<path class="base" d="M{x:.1f} {base:g}v4"/>')
        parts.append(_text(x, base + 17.0, axis.tick(tick), "tick", anchor="middle"))
    middle = min((scale.start + scale.end) / 2.0, width - _width(title) / 2.0 - 2.0)
    parts.append(_text(middle, height - 6.0, title, "axis", anchor="middle"))
    return parts


def _marks(series: Series, xs: _Scale, ys: _Scale) -> list[str]:
    places = [(xs(p.x), ys(p.y)) for p in series.points]
    parts = [f'<g class="{series.colour}{" quiet" if series.faint else ""}">']
    if series.line and len(places) > 1:
        path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
        parts.append(f'<path class="line{" dash" if series.dashed else ""}" d="{path}"/>')
    if not series.dashed and series.marker >= 0:
        size = 2.2 if series.faint else 4.0
        for point, (x, y) in zip(series.points, places, strict=True):
            hollow = " hollow" if point.hollow else ""
            title = f"<title>{escape(point.title)}</title>" if point.title else ""
            parts.append(f'<path class="mark{hollow}" d="{_shape(series.marker, x, y, size)}">')
            parts.append(f"{title}</path>")
    return [*parts, "</g>"]


def _shape(marker: int, x: float, y: float, r: float) -> str:
    if marker % _MARKERS == 1:
        return f"M{x - r:.1f} {y - r:.1f}h{2 * r:g}v{2 * r:g}h{-2 * r:g}z"
    if marker % _MARKERS == 2:
        r *= 1.25
        return f"M{x:.1f} {y - r:.1f}l{r:g} {r:g}l{-r:g} {r:g}l{-r:g} {-r:g}z"
    if marker % _MARKERS == 3:
        r *= 1.2
        return f"M{x:.1f} {y - r:.1f}l{r:g} {1.8 * r:g}h{-2 * r:g}z"
    return f"M{x - r:.1f} {y:.1f}a{r:g} {r:g} 0 1 0 {2 * r:g} 0a{r:g} {r:g} 0 1 0 {-2 * r:g} 0z"


def _notes(notes: Sequence[Note], xs: _Scale, ys: _Scale) -> list[str]:
    """Notes that fit between the axis and their place."""
    parts = []
    for note in notes:
        x, y = xs(note.x) - 14.0, ys(note.y)
        if x - _width(note.text) > xs.start and ys.end < y < ys.start:
            parts.append(_text(x, y + 4.0, note.text, f"label {note.colour}", anchor="end"))
    return parts


def _labels(
    series: Sequence[Series], xs: _Scale, ys: _Scale, width: float, margin: float
) -> list[str]:
    """Return each series' name right of its last point, moved apart so that none covers another."""
    named = sorted((s for s in series if s.label), key=lambda s: s.faint)
    placed = []
    for each in named[: int((ys.start - ys.end) / _LINE) + 1]:
        last = max(each.points, key=lambda point: point.x)
        placed.append((ys(last.y), xs(last.x), each))
    placed.sort(key=lambda place: place[0])
    parts = []
    for (start, x, each), y in zip(
        placed, _spread_labels([y for y, _, _ in placed], ys), strict=True
    ):
        edge, faint = width - margin + 14.0, " quiet" if each.faint else ""
        parts.append(
            f'<path class="lead {each.colour}{faint}" d="M{x + 6.0:.1f} {start:.1f}'
            f'L{max(edge - 4.0, x + 6.0):.1f} {y:.1f}"/>'
        )
        text = _clipped(each.label, max(3.0 * _CHAR, margin - 18.0))
        css = f"label {each.colour}{faint}"
        parts.append(_text(edge, y + 4.0, text, css, title=each.label))
    return parts


def _width(text: str) -> float:
    """Pixels that the text takes."""
    return sum(_WIDE_CHAR if is_wide(letter) else _CHAR for letter in text)


def _clipped(text: str, room: float) -> str:
    """Return the text, or what of it fits with dots behind it."""
    if _width(text) <= room:
        return text
    while text and _width(text) + _CHAR > room:
        text = text[:-1]
    return text.rstrip() + "…"


def _spread_labels(wanted: Sequence[float], ys: _Scale) -> list[float]:
    """Ascending positions at least a line apart, near the wanted ones, within the chart."""
    placed: list[float] = []
    for y in wanted:
        placed.append(max(y, placed[-1] + _LINE if placed else ys.end))
    ceiling = ys.start
    for n in range(len(placed) - 1, -1, -1):
        placed[n] = min(placed[n], ceiling)
        ceiling = placed[n] - _LINE
    return placed


def _text(
    x: float, y: float, text: str, css: str, *, anchor: str = "start", title: str = ""
) -> str:
    at = "" if anchor == "start" else f' text-anchor="{anchor}"'
    more = f"<title>{escape(title)}</title>" if title and title != text else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{css}"{at}>{escape(text)}{more}</text>'
