"""Charts of a run's series: trainings by step, the machine by second."""

from __future__ import annotations

import dataclasses
from typing import Any

import report_views as made
from trainrig.report.charts.over_time import over_time
from trainrig.report.run_report import render_html


def steps(count: int = 4, **more: Any) -> tuple[dict[str, Any], ...]:
    return tuple(
        {"step": n, "loss": 9.0 - n, "grad_norm": 1.0 + n, "time": 0.5, "tokens": 1024} | more
        for n in range(count)
    )


TELEMETRY = tuple(
    {
        "t": 1795334006.0 + n,
        "cpu_share": 0.5,
        "steal_share": 0.0,
        "gpu0_temperature_c": 60.0 + n,
        "gpu0_power_w": 400.0,
        "gpu0_sm_clock_hz": 2.52e9,
        "gpu1_temperature_c": 58.0,
    }
    for n in range(3)
)


def test_each_training_is_a_line_of_loss_norm_and_speed() -> None:
    figures = over_time({"steps-01-ddp": steps(), "02-zero-3": steps()}, ["ZeRO-3"])
    assert [figure.chart.title for figure in figures] == ["Loss", "Gradient norm", "Training speed"]
    labels = [line.label for line in figures[0].chart.series]
    assert labels == ["ddp", "ZeRO-3"]
    assert [point.y for point in figures[0].chart.series[0].points] == [9.0, 8.0, 7.0, 6.0]
    assert {point.y for point in figures[2].chart.series[0].points} == {2048.0}


def test_long_names_are_numbers_that_the_caption_explains() -> None:
    names = ["GPT-2 medium, Trainer at its best", "GPT-2 medium, ours"]
    series = {f"steps-{n:02d}-{name}": steps() for n, name in enumerate(names, 1)}
    figure = over_time(series, names)[0]
    assert [line.label for line in figure.chart.series] == ["1", "2"]
    assert figure.caption == f"1: {names[0]}; 2: {names[1]}."


def test_rounds_of_a_training_are_one_line_that_does_not_run_back() -> None:
    """The file holds the rounds one after the other; so it does what was resumed."""
    resumed = ({"step": 2, "loss": 1.5}, {"step": 3, "loss": 1.0})
    loss = over_time({"steps-a": (*steps(), *steps(), *resumed)})[0].chart
    assert [point.x for point in loss.series[0].points] == [0.0, 1.0, 2.0, 3.0]
    assert [point.y for point in loss.series[0].points] == [9.0, 8.0, 1.5, 1.0]


def test_telemetry_is_drawn_by_gpu_and_second() -> None:
    figures = {figure.chart.title: figure.chart for figure in over_time({"telemetry": TELEMETRY})}
    assert list(figures) == ["Processors in use", "GPU temperature", "GPU power", "GPU clock"]
    heat = figures["GPU temperature"]
    assert [(line.label, len(line.points)) for line in heat.series] == [("GPU 0", 3), ("GPU 1", 3)]
    assert [point.x for point in heat.series[0].points] == [0.0, 1.0, 2.0]
    assert heat.y.title == "°C"


def test_a_strangers_rows_draw_nothing() -> None:
    series = {
        "steps-a": ({"step": 0, "loss": float("nan")}, {"step": "x", "loss": 1.0}),
        "telemetry": ({"t": None, "cpu_share": True}, {"cpu_share": 1.0}),
        "layout": ({"ranks": 2},),
    }
    assert over_time(series) == ()


def test_a_long_series_is_thinned_and_keeps_its_ends() -> None:
    (loss, *_) = over_time({"steps-a": steps(5000)})
    points = loss.chart.series[0].points
    assert len(points) <= 402
    assert (points[0].x, points[-1].x) == (0.0, 4999.0)


def test_a_run_shows_them() -> None:
    view = dataclasses.replace(
        made.gpu_view(), series={"telemetry": TELEMETRY, "steps-train": steps()}
    )
    page = render_html([view])
    for title in ("Loss", "Training speed", "GPU temperature"):
        assert f"<h3>{title}</h3>" in page
