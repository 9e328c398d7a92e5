"""Chips as tables for the terminal: the list, one chip, several side by side.

A figure that was recalled, or whose sources contradict each other, carries a
question mark wherever it is shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from trainrig.catalog.chip import Chip, Peak, Source, peak
from trainrig.catalog.fields import (
    FIELDS,
    Field,
    known_fields,
    peak_label,
    peak_text,
    shown,
    sorted_peaks,
)

if TYPE_CHECKING:
    from rich.table import Table

# From this ratio on, two chips are clearly unlike in a figure.
CLEARLY = 1.1
DOUBT = "?"
_LISTED = ("fp32", "bf16", "fp8")
LIST_UNITS = (
    "GiB of memory, its bandwidth in GB/s, TDP in W; matmul peaks in TFLOPS, dense, with fp32 "
    f"accumulation (bf16: fp16's where a chip has no bf16). {DOUBT} is not verified, blank unknown."
)


def list_tables(chips: Sequence[Chip]) -> Iterator[Table]:
    """One table per vendor: the figures that people ask for first, in LIST_UNITS."""
    vendors = dict.fromkeys(chip.vendor for chip in chips)
    return (_vendor_table(name, [c for c in chips if c.vendor == name]) for name in vendors)


def _vendor_table(vendor: str, chips: Sequence[Chip]) -> Table:
    from rich.table import Table

    table = Table(box=None, title=vendor, title_justify="left", title_style="bold", pad_edge=False)
    table.add_column("chip", no_wrap=True)
    for heading in ("year", "GiB", "GB/s", "W", *_LISTED):
        table.add_column(heading, justify="right", no_wrap=True)
    for chip in sorted(chips, key=lambda chip: (chip.year or 9999, chip.name)):
        cells = [_number(_cell(chip, _field(n))) for n in ("year", "memory", "bandwidth", "tdp")]
        rates = [_number(_peak_cell(chip, _matmul_peak(chip, dtype))) for dtype in _LISTED]
        table.add_row(chip.name, *cells, *rates)
    return table


def _number(cell: str) -> str:
    """The cell without its unit, which stands in the heading; doubt stays."""
    return cell.partition(" ")[0] + (DOUBT if " " in cell and cell.endswith(DOUBT) else "")


def _matmul_peak(chip: Chip, dtype: str) -> Peak | None:
    """fp16 stands in for bf16 on chips of before bf16: the rates are equal where both exist."""
    found = peak(chip, dtype)
    return peak(chip, "fp16") if found is None and dtype == "bf16" else found


def chip_table(chip: Chip) -> Table:
    """Everything that is known of one chip, each value with the key of its source."""
    from rich.table import Table

    table = Table(box=None, title=f"{chip.vendor} {chip.name}", title_justify="left")
    table.title_style = "bold"
    table.add_column("", style="dim", no_wrap=True)
    table.add_column("", overflow="fold")
    table.add_column("source", style="dim", no_wrap=True)
    for field, value in known_fields(chip):
        table.add_row(field.label, shown(field, value), _origin(chip, field.name))
    for found in sorted_peaks(chip):
        table.add_row(peak_label(found), peak_text(found), _origin(chip, found.field))
    if chip.computed_bandwidth is not None:
        computed = shown(_field("bandwidth"), chip.computed_bandwidth)
        table.add_row("data rate × bus width / 8", computed, "computed")
    return table


def note_lines(chips: Sequence[Chip]) -> Iterator[str]:
    """What should be known beside the figures."""
    return (f"{chip.name}: {chip.notes}" for chip in chips if chip.notes)


def source_lines(chips: Sequence[Chip]) -> Iterator[str]:
    """The documents behind the figures, and what the question mark means."""
    origins = [origin for chip in chips for origin in chip.provenance.values()]
    sources: dict[str, Source] = {origin.source.key: origin.source for origin in origins}
    for key, source in sources.items():
        where = f" {source.url}" if source.url else ""
        yield f"{key}: {source.title} ({source.date}){where}"
    if any(not origin.verified for origin in origins):
        yield f"{DOUBT}: recalled, or sources contradict each other; not verified"


def compare_table(chips: Sequence[Chip]) -> Table:
    """Chips side by side; figures carry their ratio to the first chip's, clear ones in colour."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("", style="dim")
    for chip in chips:
        table.add_column(chip.name, justify="right", overflow="fold")
    for field in FIELDS:
        if field.name not in ("pci_ids", "aliases"):
            _add_row(table, field.label, [_cell(c, field) for c in chips], _figures(chips, field))
    for key, label in _peak_labels(chips).items():
        found = [next((p for p in chip.peaks if p.field == key), None) for chip in chips]
        cells = [_peak_cell(chip, p) for chip, p in zip(chips, found, strict=True)]
        _add_row(table, label, cells, [p.rate if p else None for p in found])
    return table


def _add_row(
    table: Table, label: str, cells: Sequence[str], figures: Sequence[float | None]
) -> None:
    if not any(cells):
        return
    first = figures[0]
    shown_cells = [
        cell + (_ratio(figure / first) if place and first and figure else "")
        for place, (cell, figure) in enumerate(zip(cells, figures, strict=True))
    ]
    table.add_row(label, *(cell or "[dim]unknown[/dim]" for cell in shown_cells))


def _ratio(ratio: float) -> str:
    text = f" ×{ratio:.2f}"
    if ratio >= CLEARLY:
        return f"[green]{text}[/green]"
    return f"[red]{text}[/red]" if ratio <= 1 / CLEARLY else text


def _figures(chips: Sequence[Chip], field: Field) -> list[float | None]:
    values = [getattr(chip, field.name) if field.unit else None for chip in chips]
    return [float(value) if isinstance(value, int | float) else None for value in values]


def _peak_labels(chips: Sequence[Chip]) -> dict[str, str]:
    """Every peak that one of the chips has, by its key."""
    return {p.field: peak_label(p) for chip in chips for p in sorted_peaks(chip)}


def _field(name: str) -> Field:
    return next(field for field in FIELDS if field.name == name)


def _cell(chip: Chip, field: Field) -> str:
    value = getattr(chip, field.name)
    return "" if value in (None, ()) else shown(field, value) + _doubt(chip, field.name)


def _peak_cell(chip: Chip, found: Peak | None) -> str:
    if found is None:
        return ""
    return peak_text(found) + _doubt(chip, found.field)


def _doubt(chip: Chip, name: str) -> str:
    return "" if chip.provenance[name].verified else DOUBT


def _origin(chip: Chip, name: str) -> str:
    return chip.provenance[name].source.key + _doubt(chip, name)
