"""One look at a machine in words: rows of devices and processes, lines of what runs.

The screen places them, the plain mode prints them one below the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from trainrig.units import counted, format_memory, format_quantity, format_share, format_time

if TYPE_CHECKING:
    from trainrig.watch.live import LiveBurn, LiveDevice, LiveTraining, LiveView

DEVICES = ("device", "use", "temp", "power", "clock", "held down by")
PROCESSES = ("pid", "cpus", "memory", "run", "command")


def device_rows(view: LiveView) -> list[tuple[str, ...]]:
    """Return a row for each device, by `DEVICES`; a dash where its sensor reads nothing."""
    return [_device_row(device) for device in view.devices]


def _device_row(device: LiveDevice) -> tuple[str, ...]:
    reading_of = device.readings.get
    name = device.name if device.index is None else f"{device.name} #{device.index}"
    if device.index is not None and not device.readings:
        return (name, "-", "-", "-", "-", "no answer")
    use = reading_of("cpu_share") if device.index is None else reading_of("utilization")
    heat = reading_of("cpu_temperature_c") if device.index is None else reading_of("temperature_c")
    power = reading_of("cpu_power_w") if device.index is None else reading_of("power_w")
    clock = reading_of("cpu_clock_hz") if device.index is None else reading_of("sm_clock_hz")
    return (
        name,
        format_share(use) if isinstance(use, float) else "-",
        f"{heat:.0f} °C" if isinstance(heat, int | float) else "-",
        f"{power:.0f} W" if isinstance(power, int | float) else "-",
        format_quantity(float(clock), "Hz") if isinstance(clock, int | float) else "-",
        str(reading_of("throttle_reasons") or ""),
    )


def process_rows(view: LiveView, most: int = 10) -> list[tuple[str, ...]]:
    """Return a row for each process, by `PROCESSES`; those of runs first."""
    return [
        (
            str(process.pid),
            f"{process.cpus:.2f}",
            format_memory(process.memory_bytes),
            "-".join(process.run.split("-")[-2:]),
            process.command,
        )
        for process in view.processes[:most]
    ]


def training_line(training: LiveTraining) -> str:
    """Return a training's line: ``gpt2: step 120, loss 4.512, 12,300 tokens/s``."""
    words = [f"{training.experiment}: step {training.step:,}"]
    words += [f"loss {training.loss:.3f}"] if training.loss is not None else []
    words += [f"{training.tokens_per_s:,.0f} tokens/s"] if training.tokens_per_s is not None else []
    words += [f"silent for {format_time(training.age_s)}"] if training.age_s > _SILENT_S else []
    return ", ".join(words)


_SILENT_S = 60.0


def burn_line(burn: LiveBurn) -> str:
    """Return a burn's line: ``RTX 4090 #0: matmul bf16 161 TFLOPS, 0 errors``."""
    rate = "" if burn.rate is None else f" {format_quantity(burn.rate, burn.unit)}"
    return f"{burn.device}: {burn.part}{rate}, {counted(burn.errors, 'error')}"


def work_lines(view: LiveView) -> list[str]:
    """Return lines about runs, their trainings and burns, and jobs that write no run."""
    lines = []
    for run in view.runs:
        lines.append(f"{run.run} ({run.verb}, process {run.pid})")
        lines += [
            f"  {training_line(training)}" for training in view.trainings if training.run == run.run
        ]
        lines += [f"  {burn_line(burn)}" for burn in view.burns if burn.run == run.run]
    lines += [f"job {id_}: {command}" for id_, command in view.jobs.items()]
    return lines or ["no run is being written on this machine"]


def memory_line(view: LiveView) -> str:
    """Return the line ``memory 3.1 of 25.3 GB in use``."""
    if view.memory_total_bytes is None or view.memory_available_bytes is None:
        return "memory unknown"
    used = view.memory_total_bytes - view.memory_available_bytes
    return f"memory {format_memory(used)} of {format_memory(view.memory_total_bytes)} in use"


def plain_lines(view: LiveView) -> list[str]:
    """Return one look as text, for a pipe or a terminal without a screen."""
    return [
        *_aligned([DEVICES, *device_rows(view)]),
        memory_line(view),
        "",
        *work_lines(view),
        "",
        *_aligned([PROCESSES, *process_rows(view)]),
    ]


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
