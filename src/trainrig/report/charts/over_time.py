"""Charts of a run's series: each training step by step, and the machine second by second.

A training's rows have ``step`` with loss, grad_norm, time and tokens; telemetry's have ``t`` (s
since 1970) with shares of the processors, and temperature, power and clock of each GPU.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from trainrig.report.charts.svg import Axis, Chart, Point, Series
from trainrig.report.document import Figure
from trainrig.units import format_quantity, si_scale

TELEMETRY = "telemetry"
_STEPS = "steps-"
_MAX_LINES = 7
_MAX_POINTS = 400
"""In one line; a longer series is thinned evenly, first and last row kept."""
Rows = Sequence[Mapping[str, Any]]


def over_time(series: Mapping[str, Rows], names: Iterable[str] = ()) -> tuple[Figure, ...]:
    """The charts that a run's series fill; ``names`` of the experiments label their lines."""
    known = {_plain(name): name for name in names}
    steps = {
        known.get(_plain(name), _plain(name)): rows
        for name, rows in series.items()
        if _is_training(rows)
    }
    return (*_step_figures(steps), *_telemetry_figures(series.get(TELEMETRY, ())))


def _is_training(rows: Rows) -> bool:
    return bool(rows) and {"step", "loss"} <= rows[0].keys()


def _plain(name: str) -> str:
    """What an experiment's name and its file's share: ``zero 3`` of ``steps-02-zero-3``."""
    words = re.sub(r"^\d+-", "", name.removeprefix(_STEPS)).lower()
    return re.sub(r"[^a-z0-9]+", " ", words).strip()


def _step_figures(steps: Mapping[str, Rows]) -> Iterator[Figure]:
    def tokens_per_s(row: Mapping[str, Any]) -> float | None:
        tokens, time = _number(row.get("tokens")), _number(row.get("time"))
        return tokens / time if tokens and time else _number(row.get("tokens_per_s"))

    for title, unit, value in (
        ("Loss", "", lambda row: _number(row.get("loss"))),
        ("Gradient norm", "", lambda row: _number(row.get("grad_norm"))),
        ("Training speed", "tokens/s", tokens_per_s),
    ):
        lines = {
            name: [
                (at, found)
                for row in rows
                if (at := _number(row.get("step"))) is not None
                and (found := value(row)) is not None
            ]
            for name, rows in steps.items()
        }
        yield from _figure(title, unit or f"{title.lower()} of a step", lines)


def _telemetry_figures(rows: Rows) -> Iterator[Figure]:
    start = next((at for row in rows if (at := _number(row.get("t"))) is not None), 0.0)
    gpus = sorted({int(m[1]) for row in rows for key in row if (m := re.match(r"gpu(\d+)_", key))})
    for title, unit, key, scale in (
        ("Processors in use", "%", "cpu_share", 100.0),
        ("Processors taken by the hypervisor", "%", "steal_share", 100.0),
        ("GPU temperature", "°C", "temperature_c", 1.0),
        ("GPU power", "W", "power_w", 1.0),
        ("GPU clock", "Hz", "sm_clock_hz", 1.0),
    ):
        keys = {f"GPU {n}": f"gpu{n}_{key}" for n in gpus} if title.startswith("GPU") else {"": key}
        lines = {
            name: [
                (at - start, value * scale)
                for row in rows
                if (at := _number(row.get("t"))) is not None
                and (value := _number(row.get(key))) is not None
            ]
            for name, key in keys.items()
        }
        if key != "steal_share" or any(value for line in lines.values() for _, value in line):
            yield from _figure(title, unit, lines, "s since the first reading")


def _figure(
    title: str,
    unit: str,
    lines: Mapping[str, Sequence[tuple[float, float]]],
    x_title: str = "step",
) -> Iterator[Figure]:
    """Nothing where no line has two points."""
    drawn = {name: line for name, line in lines.items() if len(line) > 1}
    if not drawn:
        return
    names = list(drawn)[:_MAX_LINES]
    highest = max(abs(value) for name in names for _, value in drawn[name])
    has_prefix = unit in ("tokens/s", "Hz")
    divisor, spelled = si_scale(highest, unit) if has_prefix else (1.0, unit)
    left = len(drawn) - len(names)
    yield Figure(
        chart=Chart(
            title=title,
            x=Axis(title=x_title),
            y=Axis(title=spelled, scale=divisor, from_zero=has_prefix or unit == "%"),
            series=tuple(
                Series(
                    label=name if len(names) > 1 else "",
                    points=tuple(_points(drawn[name], unit if has_prefix else "")),
                    colour=f"c{place % _MAX_LINES}",
                    marker=place if len(drawn[name]) <= 40 else -1,
                )
                for place, name in enumerate(names)
            ),
        ),
        caption=f"{left} more left out." if left else "",
    )


def _points(line: Sequence[tuple[float, float]], unit: str) -> Iterator[Point]:
    stride = max(1, math.ceil(len(line) / _MAX_POINTS))
    for n, (x, y) in enumerate(line):
        if n % stride == 0 or n == len(line) - 1:
            yield Point(x=x, y=y, title=f"{x:g}: {format_quantity(y, unit)}")


def _number(value: object) -> float | None:
    """A finite number; a file may hold anything."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)
