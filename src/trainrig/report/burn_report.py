"""A burn's own part of a run's page, and its table while it runs: work, errors, sensors.

Beside each rate stand the claim that bounds it and what others published of the same work on the
same card; a burn is not judged by either.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from trainrig.analysis.best import bound_of, claim_word, with_bound_sign
from trainrig.analysis.burn_facts import (
    TELEMETRY,
    WORK,
    BurnDevice,
    BurnPoint,
    burn_devices,
    is_burn,
    part_name,
)
from trainrig.analysis.evidence import finite_number
from trainrig.record import Record, RunView, Status
from trainrig.report import document as doc
from trainrig.report.charts.over_time import line_figure, telemetry_start
from trainrig.units import format_memory, format_quantity, format_share, format_time, range_text

if TYPE_CHECKING:
    from rich.table import Table

_MOST_SOURCES = 2
Shown = tuple[BurnDevice, BurnPoint]


def burn_blocks(view: RunView) -> tuple[doc.Block, ...]:
    """Return the table of devices and modes, the sensors, and rates over time.

    Nothing for other runs.
    """
    devices = burn_devices(view)
    if not devices or not is_burn(view):
        return ()
    device_points = [(device, point) for device in devices for point in device.points]
    blocks: list[doc.Block] = [_work_table(device_points, view.baselines), *_sensors(devices)]
    notes = tuple(_sources(device_points, view.baselines))
    note = "Every result was compared on the device; a rate holds the time that this takes."
    figures = tuple(_rates(view))
    if figures:
        blocks.append(doc.Group("beside", figures))
    blocks += [doc.Paragraph(text, "dim") for text in notes]
    return (doc.Section("Burn", tuple(blocks), note),)


def _work_table(device_points: Sequence[Shown], baselines: Sequence[Record]) -> doc.Table:
    return doc.table(
        device_points,
        doc.words("device", lambda device_point: device_point[0].label),
        doc.words("part", lambda device_point: device_point[1].name),
        doc.words("results", _state),
        doc.column("rate", lambda device_point: _rate(device_point[1]) or None),
        doc.column("errors", lambda device_point: int(device_point[1].number("errors")), _errors),
        doc.column("compared", lambda device_point: f"{device_point[1].number('checked'):,.0f}"),
        doc.column("memory", lambda device_point: _memory(device_point[1])),
        doc.column("time", lambda device_point: format_time(device_point[1].number("busy_s"))),
        doc.words("expected", lambda device_point: _expected(device_point[1], baselines)),
    )


def _memory(point: BurnPoint) -> str:
    """Return ``22.1 GiB of 22.8 GiB``, of the part that tests memory."""
    held_bytes, wanted = point.number("memory_bytes"), point.number("memory_wanted_bytes")
    return f"{format_memory(held_bytes)} of {format_memory(wanted)}" if wanted else ""


def _rate(point: BurnPoint) -> str:
    if point.rate is None:
        return ""
    return with_bound_sign(format_quantity(point.rate, point.record.unit), bound_of(point.record))


def _errors(num: int) -> doc.Cell:
    return doc.Cell(f"{num:,}", "bad" if num else "")


def _state(device_point: Shown) -> doc.Cell:
    record = device_point[1].measured
    if record is None:
        return doc.Cell("not run", "warn")
    if record.status is Status.OK:
        return doc.Cell("right", "good")
    return (
        doc.Cell("wrong", "bad") if record.is_wrong_answer else doc.Cell(str(record.status), "warn")
    )


def _expected(point: BurnPoint, baselines: Sequence[Record]) -> str:
    """Return ``146 TFLOPS published; 89 % of the claim``."""
    words = []
    values = [record.value for record in _published(point, baselines) if record.value]
    if values:
        words.append(f"{range_text(min(values), max(values), point.record.unit)} published")
    limit = point.record.limit
    if limit is not None and point.rate is not None:
        words.append(f"{format_share(point.rate / limit.value)} of the {claim_word(point.record)}")
    return "; ".join(words)


def _published(point: BurnPoint, baselines: Sequence[Record]) -> list[Record]:
    """Return what others printed of the same work on the same card."""
    point_record = point.record
    return [
        record
        for record in baselines
        if record.benchmark == point_record.benchmark
        and record.device == point_record.device
        and part_name(record.case) == point.name
    ]


def _sources(device_points: Sequence[Shown], baselines: Sequence[Record]) -> Iterator[str]:
    sources = dict.fromkeys(
        f"{record.device}, {part_name(record.case)}: {record.source}"
        for _, point in device_points
        for record in _published(point, baselines)
    )
    yield from (f"Published: {text}." for text in list(sources)[:_MOST_SOURCES])


def _sensors(devices: Sequence[BurnDevice]) -> Iterator[doc.Block]:
    """Yield a table of what sensors said; of devices without any a sentence."""
    known = [d for d in devices if d.temperature_c or d.power_w or d.clock_hz or d.energy_j]
    if known:
        yield _sensor_table(devices)
    else:
        text = "; ".join(f"{d.label}: no temperature, {d.no_temperature}" for d in devices)
        yield doc.Paragraph(f"{text}.", "dim")


def _sensor_table(devices: Sequence[BurnDevice]) -> doc.Table:
    def heat(device: BurnDevice) -> str | None:
        temperature = device.temperature_c
        return f"{temperature.low:.0f} to {temperature.high:.0f} °C" if temperature else None

    def power(device: BurnDevice) -> str | None:
        power_w = device.power_w
        return f"{power_w.mean:.0f} W, at most {power_w.high:.0f} W" if power_w else None

    def clock(device: BurnDevice) -> str | None:
        clock_hz = device.clock_hz
        return range_text(clock_hz.low, clock_hz.high, "Hz") if clock_hz else None

    def energy(device: BurnDevice) -> str | None:
        return None if device.energy_j is None else format_quantity(device.energy_j, "J")

    missing = [f"{d.label}: no temperature, {d.no_temperature}." for d in devices if not heat(d)]
    return doc.table(
        devices,
        doc.words("device", lambda device: device.label),
        doc.column("temperature", heat),
        doc.column("power", power),
        doc.column("clock", clock),
        doc.column("energy", energy),
        doc.words("slowed by", lambda device: ", ".join(device.throttle_reasons) or None),
        notes=missing,
    )


def _rates(view: RunView) -> Iterator[doc.Figure]:
    """Yield a chart a part: the rate of each device over time."""
    rows = view.series.get(WORK, ())
    start = telemetry_start((*view.series.get(TELEMETRY, ())[:1], *rows[:1]))
    parts = dict.fromkeys((str(row.get("part")), str(row.get("unit"))) for row in rows)
    for part, unit in parts:
        lines: dict[str, list[tuple[float, float]]] = {}
        for row in rows:
            at, rate = finite_number(row.get("t")), finite_number(row.get("rate"))
            if row.get("part") == part and at is not None and rate is not None:
                lines.setdefault(str(row.get("device")), []).append((at - start, rate))
        yield from line_figure(f"Rate: {part}", unit, lines, "s since the first reading")


# ---- while it runs


class Burning(Protocol):
    """Values of one device while it burns."""

    doing: str
    unit: str
    rate: float | None
    errors: int
    temperature_c: float | None
    power_w: float | None
    left_s: float

    @property
    def label(self) -> str:
        """Return a text such as ``RTX 4090 #0``."""
        ...


def burn_table(states: Sequence[Burning]) -> Table:
    """Return the table of this moment."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for heading in ("device", "does", "rate", "errors", "temperature", "power", "left"):
        is_word = heading in ("device", "does")
        table.add_column(heading, justify="left" if is_word else "right", no_wrap=True)
    for state in states:
        table.add_row(*burn_line(state), style="bold red" if state.errors else "")
    return table


def burn_line(state: Burning) -> tuple[str, ...]:
    """Return the cells of one device; what no sensor tells is a dash."""
    rate = "-" if state.rate is None else format_quantity(state.rate, state.unit)
    heat = "-" if state.temperature_c is None else f"{state.temperature_c:.0f} °C"
    power = "-" if state.power_w is None else f"{state.power_w:.0f} W"
    minutes, seconds = divmod(round(state.left_s), 60)
    time_left = f"{minutes}:{seconds:02d}"
    return state.label, state.doing, rate, f"{state.errors:,}", heat, power, time_left
