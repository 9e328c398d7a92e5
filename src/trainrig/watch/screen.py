"""`trainrig top` in a terminal: tables and charts of textual, filled by one look after another.

A look is taken in a thread, so that a driver that hangs leaves the keys alive.  Imports textual,
an extra: only who opens the screen loads this file.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from textual.app import App
from textual.binding import Binding
from textual.containers import Horizontal, VerticalScroll
from textual.widgets import DataTable, Footer, Header, Sparkline, Static

from trainrig.watch.lines import (
    DEVICES,
    PROCESSES,
    device_rows,
    memory_line,
    process_rows,
    work_lines,
)
from trainrig.watch.live import LiveView

_CHART = 60
"""Steps of a training in its chart."""


class Looks(Protocol):
    """The folders and the machine that a look reads."""

    def look(self) -> LiveView:
        """Return the state of the machine now."""
        ...


_CSS = """
DataTable, #work { border: round $primary; height: auto; scrollbar-size: 0 0; }
#devices { max-height: 40%; }
#work { max-height: 50%; padding: 0 1; }
#lines { height: auto; text-wrap: nowrap; text-overflow: ellipsis; }
#charts, #captions { height: auto; display: none; }
#rate, #loss { height: 2; width: 1fr; margin: 0 1; }
#rate-caption, #loss-caption { width: 1fr; margin: 0 1; color: $text-muted; }
#processes { height: 1fr; min-height: 4; }
"""


class Top(App[None]):
    """Devices, what runs, processes."""

    TITLE = "trainrig top"
    CSS = _CSS
    BINDINGS = [  # noqa: RUF012 - textual's own
        ("q", "quit", "quit"),
        ("p", "pause", "pause"),
        Binding("ctrl+c", "quit", show=False, priority=True),  # textual's own copies text
    ]
    ENABLE_COMMAND_PALETTE = False

    def __init__(self, watch: Looks, period_s: float = 1.0) -> None:
        super().__init__()
        self._watch, self._period_s, self._paused = watch, period_s, False

    def compose(self) -> Any:
        yield Header(show_clock=True, icon="")
        yield DataTable(id="devices", show_cursor=False, zebra_stripes=True)
        with VerticalScroll(id="work"):
            yield Static(id="lines", markup=False)
            with Horizontal(id="charts"):
                yield Sparkline([], id="rate")
                yield Sparkline([], id="loss", summary_function=min)
            with Horizontal(id="captions"):
                yield Static("", id="rate-caption", markup=False)
                yield Static("", id="loss-caption", markup=False)
        yield DataTable(id="processes", show_cursor=False)
        yield Footer()

    def on_mount(self) -> None:
        self.query_one("#devices", DataTable).add_columns(*DEVICES)
        self.query_one("#processes", DataTable).add_columns(*PROCESSES)
        self.query_one("#devices").border_title = "devices"
        self.query_one("#work").border_title = "what runs"
        self.query_one("#processes").border_title = "processes"
        self.look()
        self.set_interval(self._period_s, self.look)

    def action_pause(self) -> None:
        self._paused = not self._paused
        self.sub_title = "paused" if self._paused else ""

    def look(self) -> None:
        # A look that takes longer than the period is waited for: a thread cannot be cancelled, and
        # two would ask the same devices.
        if not self._paused and all(worker.is_finished for worker in self.workers):
            self.run_worker(self.take, thread=True)

    def take(self) -> None:
        view = self._watch.look()
        self.call_from_thread(self.show, view)

    def show(self, view: LiveView) -> None:
        self._fill("#devices", device_rows(view))
        self._fill("#processes", process_rows(view))
        self.query_one("#devices").border_subtitle = memory_line(view)
        self.query_one("#lines", Static).update("\n".join(work_lines(view)))
        first = next((training for training in view.trainings if training.rates), None)
        for name in ("charts", "captions"):
            self.query_one(f"#{name}").display = first is not None
        if first is not None:
            rates, losses = first.rates[-_CHART:], first.losses[-_CHART:]
            self.query_one("#rate", Sparkline).data = rates
            self.query_one("#loss", Sparkline).data = losses
            self._caption("rate", "tokens/s", rates, ",.0f")
            self._caption("loss", "loss", losses, ".3f")

    def _caption(self, name: str, description: str, values: Sequence[float], form: str) -> None:
        caption = (
            f"{description} {min(values):{form}} to {max(values):{form}}" if values else description
        )
        self.query_one(f"#{name}-caption", Static).update(caption)

    def _fill(self, name: str, rows: Sequence[Sequence[str]]) -> None:
        table = self.query_one(name, DataTable)
        table.clear()
        for row in rows:
            table.add_row(*row)
