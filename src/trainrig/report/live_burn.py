"""A burn while it runs, one line a device: what it does, rate, errors, heat, power, time left."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from trainrig.units import format_quantity

if TYPE_CHECKING:
    from rich.table import Table


class Burning(Protocol):
    """What is shown of a device."""

    doing: str
    unit: str
    rate: float | None
    errors: int
    temperature_c: float | None
    power_w: float | None
    left_s: float

    @property
    def label(self) -> str:
        """``RTX 4090 #0``."""
        ...


def burn_table(states: Sequence[Burning]) -> Table:
    """The table of this moment."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for heading in ("device", "does", "rate", "errors", "temperature", "power", "left"):
        is_word = heading in ("device", "does")
        table.add_column(heading, justify="left" if is_word else "right", no_wrap=True)
    for state in states:
        table.add_row(*burn_line(state), style="bold red" if state.errors else "")
    return table


def burn_line(state: Burning) -> tuple[str, ...]:
    """The cells of one device; what no sensor tells is a dash."""
    rate = "-" if state.rate is None else format_quantity(state.rate, state.unit)
    heat = "-" if state.temperature_c is None else f"{state.temperature_c:.0f} °C"
    power = "-" if state.power_w is None else f"{state.power_w:.0f} W"
    minutes, seconds = divmod(round(state.left_s), 60)
    left = f"{minutes}:{seconds:02d}"
    return state.label, state.doing, rate, f"{state.errors:,}", heat, power, left
