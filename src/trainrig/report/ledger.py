"""The ledger as tables for the terminal: how far off predictions were, what corrections do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from trainrig.analysis.prediction_error import Correction, Ledger, Summary, summarise
from trainrig.units import format_share, one_line

if TYPE_CHECKING:
    from rich.table import Table


def headline(ledger: Ledger) -> str:
    """How many predictions, and how far off."""
    host = one_line(ledger.host) or "a machine without a name"
    others = f"; {ledger.others} runs of other machines left out" if ledger.others else ""
    if not ledger.entries:
        return f"{host}: nothing was foretold and measured yet in {ledger.num_runs} runs{others}"
    whole = summarise("all", ledger.entries)
    return (
        f"{host}: {whole.count} predictions in {len(ledger.runs)} runs, median error "
        f"{format_share(whole.median)}, worst {_signed(whole.worst)}{others}"
    )


def summary_table(heading: str, summaries: Sequence[Summary]) -> Table:
    """Errors of the time: above zero it took less than was foretold."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column(heading, overflow="fold")
    for name in ("n", "median", "worst", "bias", "inside"):
        table.add_column(name, justify="right", no_wrap=True)
    for one in summaries:
        inside = "" if one.coverage is None else format_share(one.coverage)
        table.add_row(
            one_line(one.name),
            str(one.count),
            format_share(one.median),
            _signed(one.worst),
            _signed(one.bias),
            inside,
        )
    return table


def correction_table(corrections: Sequence[Correction]) -> Table:
    """Each factor, and the error of the newest runs without and with it."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("part", overflow="fold")
    for name in ("factor", "before", "after", ""):
        table.add_column(name, justify="right", no_wrap=True)
    for one in corrections:
        table.add_row(
            one_line(one.part),
            f"×{one.factor:.3f}",
            format_share(one.before),
            format_share(one.after),
            "kept" if one.helps else "left out",
        )
    return table


def _signed(share: float) -> str:
    return ("+" if share >= 0 else "−") + format_share(abs(share))
