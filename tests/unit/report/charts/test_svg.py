"""Charts: what is drawn where, labels that avoid each other, and data that cannot be drawn."""

from __future__ import annotations

import dataclasses
import math
import re
from itertools import pairwise

import pytest

import report_views as made
from trainrig.analysis.rows import rows
from trainrig.report.charts.curves import MAX_CHARTS, MAX_OTHERS, MAX_OWN, curves
from trainrig.report.charts.roofline import roofline
from trainrig.report.charts.svg import Axis, Chart, Point, Series, draw

X = Axis(title="n of an n × n × n matmul", log=True)
Y = Axis(title="TFLOPS")


def series(*points: tuple[float, float], label: str = "line", **more: object) -> Series:
    drawn = tuple(Point(x=x, y=y) for x, y in points)
    return Series(label=label, points=drawn, colour="c0", **more)  # type: ignore[arg-type]


def chart(*lines: Series, x: Axis = X, y: Axis = Y) -> Chart:
    return Chart(title="a chart", x=x, y=y, series=lines)


def labels(svg: str) -> list[tuple[float, str]]:
    """(y, text) of the labels at the right edge."""
    pattern = r'<text x="[\d.]+" y="([\d.]+)" class="label[^"]*">([^<]*)'
    return [(float(y), text) for y, text in re.findall(pattern, svg)]


def test_labels_of_lines_that_end_together_are_moved_apart() -> None:
    lines = [series((1, 5), (100, 5 + n / 1000), label=f"GPU {n}") for n in range(6)]
    places = sorted(y for y, _ in labels(draw(chart(*lines), 520, 320)))
    assert len(places) == 6
    assert all(b - a >= 14.9 for a, b in pairwise(places))
    assert places[0] >= 26
    assert places[-1] <= 320 - 44 + 15


def test_quiet_labels_give_way() -> None:
    faint = [series((1, n), (10, n), label=f"other {n}", faint=True) for n in range(1, 40)]
    own = series((1, 3), (10, 4), label="mine")
    found = [text for _, text in labels(draw(chart(*faint, own), 520, 200))]
    assert "mine" in found
    assert len(found) < 40


def test_a_long_label_is_shortened_and_kept_whole_in_its_title() -> None:
    name = "A very long name of a processor " * 5
    svg = draw(chart(series((1, 1), (2, 2), label=name)), 324, 290)
    assert "…" in svg
    assert f"<title>{name}</title>" in svg


def test_text_is_escaped() -> None:
    svg = draw(chart(series((1, 1), (2, 2), label="<b>&"), y=Axis(title='"<i>')), 520, 320)
    assert "<b>" not in svg
    assert "<i>" not in svg


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0, 0.0])
def test_what_a_log_axis_cannot_show_is_left_out(bad: float) -> None:
    log = Axis(title="B/s", log=True)
    svg = draw(chart(series((1, 1.0), (2, bad), (4, 2.0)), y=log), 520, 320)
    assert svg.count('<path class="mark"') == 2
    assert "nan" not in svg
    assert "inf" not in svg


def test_nothing_to_draw_is_nothing() -> None:
    assert draw(chart(), 520, 320) == ""
    assert draw(chart(series((1, math.nan))), 520, 320) == ""


@pytest.mark.parametrize("value", [1e-12, 1.0, 5e17])
def test_a_single_point_has_axes(value: float) -> None:
    for axis in (Y, Axis(title="FLOPS", log=True)):
        svg = draw(chart(series((128, value)), y=axis), 520, 320)
        assert svg.count('class="axis"') == 2


def test_tick_labels_do_not_meet() -> None:
    svg = draw(chart(series(*[(2.0**n, n) for n in range(4, 34)])), 324, 290)
    ticks = re.findall(r'x="([\d.]+)" y="[\d.]+" class="tick" text-anchor="middle">([^<]*)', svg)
    places = [(float(x), len(text) * 7.0) for x, text in ticks]
    assert len(places) >= 2
    for (left, width), (right, other) in pairwise(places):
        assert right - left > (width + other) / 2


def test_number_of_charts_and_lines_is_bounded() -> None:
    view = made.gpu_view(16)
    figures = curves(view, rows(view))
    assert len(figures) <= MAX_CHARTS
    assert all(len(f.chart.series) <= MAX_OWN + MAX_OTHERS + 1 for f in figures)


def test_published_curves_lie_behind() -> None:
    view = made.gpu_view()
    figure = next(f for f in curves(view, rows(view)) if f.chart.title == "fp16 matmul over size")
    faint = {s.label for s in figure.chart.series if s.faint}
    assert faint == {"RTX 4090, published", "RTX 3090 Ti", "A100 SXM4 80GB", "V100 32GB"}
    svg = draw(figure.chart, 520, 320)
    assert svg.index("cq quiet") < svg.index('<g class="c0">')


def test_a_far_faster_machine_does_not_flatten_the_curve() -> None:
    view = made.gpu_view()
    fast = view.baselines[-1].replace(device="B200 SXM", value=1700e12)
    view = dataclasses.replace(view, baselines=(*view.baselines, fast))
    drawn = {s.label for f in curves(view, rows(view)) for s in f.chart.series}
    assert "V100 32GB" in drawn
    assert "B200 SXM" not in drawn


def test_the_roofline_has_the_claimed_and_the_measured_roof() -> None:
    view = made.gpu_view()
    figure = roofline(view, rows(view))
    assert figure is not None
    assert "1.01 TB/s claimed, 925 GB/s measured" in figure.caption
    slope = next(s for s in figure.chart.series if s.colour == "cc" and s.dashed)
    assert slope.points[0].y / slope.points[0].x == pytest.approx(1008e9)
    fp16 = next(s for s in figure.chart.series if s.label == "fp16 160 of 165 TFLOPS")
    assert fp16.points[0].x == pytest.approx(fp16.points[0].y / 925e9)


def test_no_roofline_without_a_bandwidth() -> None:
    view = made.gpu_view()
    kept = [r for r in view.records if r.metric != "byte_rate"]
    view = dataclasses.replace(view, records=tuple(kept))
    assert roofline(view, rows(view)) is None


def test_one_of_each_make_before_a_second() -> None:
    view = made.gpu_view()
    twins = [view.baselines[-1].replace(device=f"V100 SXM2 {n}GB") for n in (16, 32, 64, 96)]
    view = dataclasses.replace(view, baselines=(*twins, *view.baselines))
    drawn = [s.label for f in curves(view, rows(view)) for s in f.chart.series if s.faint]
    assert sum("V100" in label for label in drawn) == 2
    assert "A100 SXM4 80GB" in drawn


def test_ticks_of_a_log_axis_are_even() -> None:
    log = Axis(title="GB/s", log=True)
    svg = draw(chart(series((1, 15.0), (2, 4000.0)), y=log), 520, 320)
    ticks = re.findall(r'class="tick" text-anchor="end">([^<]*)', svg)
    assert ticks == ["20", "50", "100", "200", "500", "1,000", "2,000"]
    wide = draw(chart(series((1, 0.01), (2, 4000.0)), y=log), 520, 320)
    assert re.findall(r'class="tick" text-anchor="end">([^<]*)', wide) == [
        "0.01",
        "0.1",
        "1",
        "10",
        "100",
        "1,000",
    ]
