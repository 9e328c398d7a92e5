"""Chips as Documents: the list, one chip, several side by side.

A figure that is computed or presumed, or whose sources contradict each other, carries a
question mark wherever it is shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from trainrig.catalog.chip import CHIP_KEYS, Chip, Peak, Source, peak
from trainrig.catalog.fields import (
    FIELDS,
    Field,
    known_fields,
    peak_label,
    peak_text,
    shown,
    sorted_peaks,
)
from trainrig.catalog.servers import Server
from trainrig.report.document import (
    Block,
    Cell,
    Column,
    Document,
    Paragraph,
    Section,
    Shown,
    Table,
    Tone,
    column,
    table,
)
from trainrig.units import format_count
from trainrig.workload.model import ModelShape, parameters

# From this ratio on, two chips are clearly unlike in a figure.
CLEARLY = 1.1
DOUBT = "?"
LIST_UNITS = (
    "GiB of memory, its bandwidth in GB/s, TDP in W; matmul peaks in TFLOPS, dense, with fp32 "
    f"accumulation (bf16: fp16's where a chip has no bf16). {DOUBT} is not verified, blank unknown."
)


def list_document(chips: Sequence[Chip]) -> Document:
    """Return one table per vendor: the figures that people ask for first, in LIST_UNITS."""
    vendors = dict.fromkeys(chip.vendor for chip in chips)
    tables = tuple(_vendor_table(name, [c for c in chips if c.vendor == name]) for name in vendors)
    return Document(title="chips", blocks=(*tables, Section("Units", (Paragraph(LIST_UNITS),))))


def _vendor_table(vendor: str, chips: Sequence[Chip]) -> Table:
    def number(cell: str, unit: str = "") -> str:
        """Return the cell without the heading's unit, another one stays; so does doubt."""
        plain, _, spelled = cell.removesuffix(DOUBT).partition(" ")
        if unit and spelled not in (unit, ""):
            return cell
        return plain + (DOUBT if cell.endswith(DOUBT) else "")

    def field(name: str, head: str) -> Shown[Chip]:
        return column(head, lambda chip: number(_cell(chip, _field(name)), head))

    def matmul(dtype: str) -> Shown[Chip]:
        # Chips of before bf16 show fp16's: the rates are equal where both exist.
        stand_in = {"bf16": "fp16"}.get(dtype, dtype)
        return column(
            dtype, lambda chip: number(_peak_cell(chip, peak(chip, dtype) or peak(chip, stand_in)))
        )

    return table(
        sorted(chips, key=lambda chip: (chip.product.year or 9999, chip.name)),
        column("chip", lambda chip: chip.name, kind="code"),
        field("year", "year"),
        field("memory", "GiB"),
        field("bandwidth", "GB/s"),
        field("tdp", "W"),
        *map(matmul, ("fp32", "bf16", "fp8")),
        title=vendor,
    )


def chip_document(chip: Chip) -> Document:
    """Everything that is known of one chip, each value with the key of its source."""
    rows = [
        (field.label, shown(field, value), _origin(chip, field.name))
        for field, value in known_fields(chip)
    ]
    rows += [(peak_label(p), peak_text(p), _origin(chip, p.field)) for p in sorted_peaks(chip)]
    computed = {
        "data rate × bus width / 8": chip.memory.computed_bandwidth,
        "PCIe, each way": chip.pcie.bandwidth,
    }
    rows += [
        (label, shown(_field("bandwidth"), rate), "computed")
        for label, rate in computed.items()
        if rate is not None
    ]
    columns = (Column("", "words"), Column("", "words"), Column("source", "words"))
    full = chip.name if chip.name.startswith(chip.vendor) else f"{chip.vendor} {chip.name}"
    figures = Table(columns, tuple(rows), title=full)
    return Document(title=chip.name, blocks=(figures, *_sources([chip])))


def compare_document(chips: Sequence[Chip]) -> Document:
    """Chips side by side; figures carry their ratio to the first chip's, clear ones in colour.

    What training asks about first: TFLOPS, memory, bandwidth, watts, TFLOPS for each watt.
    """
    labels = {p.field: peak_label(p) for chip in chips for p in sorted_peaks(chip)}
    first_peaks = [key for key in _FIRST_PEAKS if key in labels]
    rows = [_peak_row(chips, key, labels[key]) for key in first_peaks]
    rows += [_field_row(chips, _field(name)) for name in _FIRST_FIELDS]
    rows.append(_per_watt_row(chips))
    rows += [
        _peak_row(chips, key, label) for key, label in labels.items() if key not in first_peaks
    ]
    rows += [
        _field_row(chips, field)
        for field in FIELDS
        if field.name not in ("pci_ids", "aliases", *_FIRST_FIELDS)
    ]
    rows_table = Table(
        (Column("", "words"), *(Column(chip.name, "words") for chip in chips)),
        tuple((label, *_compared(cells, figures)) for label, cells, figures in rows if any(cells)),
    )
    return Document(title="chips side by side", blocks=(rows_table, *_sources(chips)))


_Row = tuple[str, list[str], list[float | None]]
_FIRST_PEAKS = tuple(f"tensor.{dtype}.fp32" for dtype in ("bf16", "fp16", "fp8"))
_FIRST_FIELDS = ("memory", "bandwidth", "tdp")


def _field_row(chips: Sequence[Chip], field: Field) -> _Row:
    values = [CHIP_KEYS.get(chip, field.name) if field.unit else None for chip in chips]
    figures = [float(v) if isinstance(v, int | float) else None for v in values]
    return field.label, [_cell(chip, field) for chip in chips], figures


def _peak_row(chips: Sequence[Chip], key: str, label: str) -> _Row:
    peaks = [next((p for p in chip.peaks if p.field == key), None) for chip in chips]
    cells = [_peak_cell(chip, p) for chip, p in zip(chips, peaks, strict=True)]
    return label, cells, [p.rate if p else None for p in peaks]


def _per_watt_row(chips: Sequence[Chip]) -> _Row:
    """Return the row of 16-bit FLOP/s with fp32 accumulation per watt, at the stated power."""
    cells, figures = [], []
    for chip in chips:
        half = peak(chip, "bf16") or peak(chip, "fp16")
        per_watt = half.rate / chip.board.tdp if half and chip.board.tdp else None
        doubt = (
            (_doubt_mark(chip, half.field) or _doubt_mark(chip, "tdp")) if half and per_watt else ""
        )
        cells.append(f"{per_watt / 1e12:.3g} TFLOPS/W{doubt}" if per_watt else "")
        figures.append(per_watt)
    return "16 bit for each watt", cells, figures


def servers_document(servers: Sequence[Server]) -> Document:
    """Show each server's links between chips, and into the network."""

    def gbits(server: Server) -> str | None:
        return None if server.fabric is None else f"{server.fabric * 8e-9:,.0f}"

    def switched(server: Server) -> str | None:
        total = server.switch_bandwidth
        return None if total is None else f"{total * 1e-12:.3g}"

    server_table = table(
        servers,
        column("server", lambda server: server.name, kind="code"),
        column("chips", lambda server: f"{server.gpus} × {server.chip.name}", kind="words"),
        column("Gb/s", gbits),
        column("NVSwitch, TB/s", switched),
        column("joined by", lambda server: server.joined_by, kind="words"),
        column("ports", lambda server: server.ports, kind="words", optional=1),
        column("CPU", lambda server: server.cpu, kind="words", optional=2),
    )
    notes = [
        f"{server.name}: {server.source}, {server.date}"
        for server in servers
        if server.source is not None
    ]
    words = (
        "Gb/s: of the node into the network, one way. NVSwitch: links of all chips, both ways. "
        "Blank: its document does not say."
    )
    below = tuple(Paragraph(text, "dim") for text in (words, *notes))
    return Document(title="servers", blocks=(server_table, *below))


def _compared(cells: Sequence[str], figures: Sequence[float | None]) -> Iterator[Cell]:
    first = figures[0]
    for place, (cell, figure) in enumerate(zip(cells, figures, strict=True)):
        if not cell:
            yield Cell("unknown", "dim")
        elif place == 0 or not first or not figure or DOUBT in cell or DOUBT in cells[0]:
            yield Cell(cell)  # what is not verified neither wins nor loses
        else:
            ratio = figure / first
            tone: Tone = "good" if ratio >= CLEARLY else "bad" if ratio <= 1 / CLEARLY else ""
            yield Cell(cell, tone, f"×{ratio:.2f}")


def _sources(chips: Sequence[Chip]) -> Iterator[Block]:
    """Yield remarks on the figures, and the documents behind them."""
    origins = [origin for chip in chips for origin in chip.provenance.values()]
    sources: dict[str, Source] = {origin.source.key: origin.source for origin in origins}
    lines = [f"{chip.name}: {chip.notes}" for chip in chips if chip.notes]
    for key, source in sources.items():
        where = f" {source.url}" if source.url else ""
        lines.append(f"{key}: {source.title} ({source.date}){where}")
    if any(not origin.verified for origin in origins):
        lines.append(f"{DOUBT}: not verified: computed, presumed, or sources contradict each other")
    yield Section("Sources", tuple(Paragraph(line) for line in lines))


def models_document(shapes: Iterable[ModelShape]) -> Document:
    """Return the models that are known by name, in numbers."""
    listed = table(
        shapes,
        column("model", lambda shape: shape.name, kind="code"),
        column("family", lambda shape: shape.family, kind="code"),
        column("parameters", lambda shape: parameters(shape).total, format_count),
        column("layers", lambda shape: shape.num_layers + shape.num_decoder_layers),
        column("hidden", lambda shape: shape.hidden),
        column("heads", lambda shape: shape.attention.num_heads),
        column("vocabulary", lambda shape: shape.vocab),
    )
    return Document(title="models", blocks=(listed,))


def _field(name: str) -> Field:
    return next(field for field in FIELDS if field.name == name)


def _cell(chip: Chip, field: Field) -> str:
    value = CHIP_KEYS.get(chip, field.name)
    return "" if value in (None, ()) else shown(field, value) + _doubt_mark(chip, field.name)


def _peak_cell(chip: Chip, peak: Peak | None) -> str:
    if peak is None:
        return ""
    return peak_text(peak) + _doubt_mark(chip, peak.field)


def _doubt_mark(chip: Chip, name: str) -> str:
    return "" if chip.provenance[name].verified else DOUBT


def _origin(chip: Chip, name: str) -> str:
    return chip.provenance[name].source.key + _doubt_mark(chip, name)
