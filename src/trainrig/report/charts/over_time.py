"""Charts of a run's series: each training step by step, and the machine second by second.

A training's rows have ``step`` with loss, grad_norm, time and tokens; telemetry's have ``t`` (s
since 1970) with shares of the processors, and temperature, power and clock of each GPU.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from trainrig.analysis.evidence import finite_number
from trainrig.report.charts.svg import Axis, Chart, Point, Series, quantity_axis, thinned
from trainrig.report.document import Figure
from trainrig.units import format_quantity

TELEMETRY = "telemetry"
_MAX_LINES = 7
_LONGEST = 12
"""Letters of a label beside its line."""
_MAX_POINTS = 400
"""In one line; a longer series is thinned evenly, first and last row kept."""
_PREFIXED = ("tokens/s", "Hz", "FLOP/s", "B/s", "bogo-op/s")
"""Units that take a prefix."""
Row = Mapping[str, Any]
Line = list[tuple[float, float]]


def over_time(series: Mapping[str, Sequence[Row]], names: Iterable[str] = ()) -> tuple[Figure, ...]:
    """Return charts that a run's series fill; ``names`` of the experiments label their lines."""
    known = {_plain(name): name for name in names}
    steps = {
        known.get(_plain(name), _plain(name)): _once(rows)
        for name, rows in series.items()
        if rows and {"step", "loss"} <= rows[0].keys()
    }
    return (*_step_figures(steps), *_telemetry_figures(series.get(TELEMETRY, ())))


def _once(rows: Sequence[Row]) -> list[Row]:
    """Return each step once, as the last round, or what was resumed, trained it."""
    last = {step: row for row in rows if (step := finite_number(row.get("step"))) is not None}
    return [last[step] for step in sorted(last)]


def _plain(name: str) -> str:
    """Return the part that an experiment's name and its file share: ``zero 3``."""
    text = re.sub(r"^\d+-", "", name.removeprefix("steps-")).lower()
    return re.sub(r"[^a-z0-9]+", " ", text).strip()


def _step_figures(steps: Mapping[str, Sequence[Row]]) -> Iterator[Figure]:
    def tokens_per_s(row: Row) -> float | None:
        tokens, time = finite_number(row.get("tokens")), finite_number(row.get("time"))
        return tokens / time if tokens and time else finite_number(row.get("tokens_per_s"))

    values: dict[tuple[str, str], Callable[[Row], float | None]] = {
        ("Loss", "loss of a step"): _value("loss"),
        ("Gradient norm", "gradient norm of a step"): _value("grad_norm"),
        ("Training speed", "tokens/s"): tokens_per_s,
    }
    for (title, unit), value in values.items():
        lines = {name: _line(rows, "step", value) for name, rows in steps.items()}
        yield from line_figure(title, unit, lines, "step")


def _telemetry_figures(rows: Sequence[Row]) -> Iterator[Figure]:
    start = telemetry_start(rows)
    gpus = sorted({int(m[1]) for row in rows for key in row if (m := re.match(r"gpu(\d+)_", key))})
    for title, unit, key, scale in (
        ("Processors in use", "%", "cpu_share", 100.0),
        ("Processors taken by the hypervisor", "%", "steal_share", 100.0),
        ("Load of the machine", "load, mean of 1 min", "load_1m", 1.0),
        ("Processor temperature", "°C", "cpu_temperature_c", 1.0),
        ("Processor power", "W", "cpu_power_w", 1.0),
        ("Processor clock", "Hz", "cpu_clock_hz", 1.0),
        ("GPU temperature", "°C", "temperature_c", 1.0),
        ("GPU power", "W", "power_w", 1.0),
        ("GPU clock", "Hz", "sm_clock_hz", 1.0),
        ("GPU in use", "%", "utilization", 100.0),
    ):
        keys = {f"GPU {n}": f"gpu{n}_{key}" for n in gpus} if title.startswith("GPU") else {"": key}
        lines = {
            name: [
                (at - start, value * scale) for at, value in _line(rows, "t", _value(device_keys))
            ]
            for name, device_keys in keys.items()
        }
        if key != "steal_share" or any(value for line in lines.values() for _, value in line):
            yield from line_figure(title, unit, lines, "s since the first reading")


def telemetry_start(rows: Iterable[Row]) -> float:
    """Return the first moment of some rows, s since 1970."""
    return min((at for row in rows if (at := finite_number(row.get("t"))) is not None), default=0.0)


def _line(rows: Iterable[Row], at: str, value: Callable[[Row], float | None]) -> Line:
    """Return the rows that have both numbers."""
    pairs = ((finite_number(row.get(at)), value(row)) for row in rows)
    return [(x, y) for x, y in pairs if x is not None and y is not None]


def line_figure(title: str, unit: str, lines: Mapping[str, Line], x_title: str) -> Iterator[Figure]:
    """Yield a chart of one line or several; nothing where none has two points."""
    drawn = [(name, line) for name, line in lines.items() if len(line) > 1]
    drawn_lines = drawn[:_MAX_LINES]
    if not drawn_lines:
        return
    axis = Axis(title=unit, from_zero=unit == "%")
    if unit in _PREFIXED:
        axis = quantity_axis(max(abs(y) for _, line in drawn_lines for _, y in line), unit)

    def points(line: Line) -> tuple[Point, ...]:
        spelled = unit if unit in _PREFIXED else ""
        points_of_line = [
            Point(x=x, y=y, title=f"{x:g}: {format_quantity(y, spelled)}") for x, y in line
        ]
        return thinned(points_of_line, _MAX_POINTS)

    # A label that a phone has no room for is a number, which the caption explains.
    is_long = max(len(name) for name, _ in drawn_lines) > _LONGEST
    own = tuple(
        Series(
            label="" if len(drawn_lines) == 1 else str(place + 1) if is_long else name,
            points=points(line),
            colour=f"c{place}",
            marker=place if len(line) <= 40 else -1,
        )
        for place, (name, line) in enumerate(drawn_lines)
    )
    num_hidden = len(drawn) - len(drawn_lines)
    key = [f"{place}: {name}" for place, (name, _) in enumerate(drawn_lines, 1)]
    parts = ["; ".join(key) + "." if is_long and len(drawn_lines) > 1 else ""]
    parts.append(f"{num_hidden} more left out." if num_hidden else "")
    caption = " ".join(filter(None, parts))
    starts = min(x for _, line in drawn_lines for x, _ in line)
    ends = max(x for _, line in drawn_lines for x, _ in line)
    # What began late fills its chart, too.
    x = Axis(title=x_title, from_zero=starts < 0.2 * ends)
    chart = Chart(title=title, x=x, y=axis, series=own)
    yield Figure(chart=chart, caption=caption)


def _value(key: str) -> Callable[[Row], float | None]:
    return lambda row: finite_number(row.get(key))
