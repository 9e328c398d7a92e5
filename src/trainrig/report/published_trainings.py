"""Published figures of a run's experiments: their table, and figures that want an explanation.

A published figure stands beside an experiment that trains the same model on the same samples at
once; a card whose matrix units are faster by its data sheet and whose figure is lower is named,
since one of the two figures, or what ran on that card, wants an explanation.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import permutations

from trainrig.analysis.training_baselines import PublishedFigure
from trainrig.catalog.chip import peak
from trainrig.catalog.lookup import find_chip
from trainrig.report import document as doc
from trainrig.report.document import column, table, words
from trainrig.units import format_memory, format_quantity

_FASTER = 1.1
"""A data sheet that claims less is no reason to expect more."""


def published_table(figures: Sequence[PublishedFigure]) -> Iterator[doc.Table]:
    """Yield a row for an experiment and a case, a column for each device."""
    if not figures:
        return
    cells: dict[tuple[str, str], dict[str, list[str]]] = {}
    sources: dict[tuple[str, str], dict[str, None]] = {}
    for figure in figures:
        row_cells = cells.setdefault((figure.experiment, _case_text(figure)), {})
        row_cells.setdefault(figure.device, []).append(_figure_text(figure))
        origin = sources.setdefault((figure.device, figure.source), {})
        origin[str(figure.software)] = None
        if figure.interconnect:
            origin[f"cards over {figure.interconnect}"] = None

    def of_device(device: str) -> doc.Shown[tuple[str, str]]:
        return column(device, lambda row: " or ".join(cells[row].get(device, ["-"])))

    yield table(
        cells,
        words("experiment", lambda row: row[0]),
        words("published case", lambda row: row[1]),
        *map(of_device, dict.fromkeys(figure.device for figure in figures)),
        title="Published by others, at full scale: tokens/s of a device, and its memory",
        notes=[
            f"{device}: {source}; {'; '.join(origin)}"
            for (device, source), origin in sources.items()
        ],
    )


def _case_text(figure: PublishedFigure) -> str:
    """``HF Transformers, bert-large, bf16, 11 × 4 of 512``: samples × micro-batches of tokens."""
    software = re.split(r"[,(]| \d", str(figure.software))[0].strip()
    if figure.model is None:
        return f"{software}, {figure.precision}"
    times = f" × {figure.grad_accum}" if figure.grad_accum > 1 else ""
    size = f"{figure.batch_size}{times} of {figure.seq_len}"
    recomputed = ", recomputed" if figure.recompute != "none" else ""
    return f"{software}, {figure.model}, {figure.precision}, {size}{recomputed}"


def _figure_text(figure: PublishedFigure) -> str:
    """``8008 (tf32), 20.3 GiB``: the printed precision where it is another than the model's."""
    printed = figure.printed_precision or figure.precision
    text = f"{figure.tokens_per_s_per_device:.0f}"
    text += f" ({printed})" if printed != figure.precision else ""
    return text if figure.memory_bytes is None else f"{text}, {format_memory(figure.memory_bytes)}"


def published_outliers(figures: Sequence[PublishedFigure]) -> Iterator[str]:
    """Figures of a faster card that lie below a slower one's of the same experiment; each once."""
    devices = set()
    for figure, other in permutations(figures, 2):
        if figure.experiment != other.experiment or figure.precision != other.precision:
            continue
        rate, below = figure.tokens_per_s_per_device, other.tokens_per_s_per_device
        pair = (figure.device, rate, other.device, below)
        if rate >= below or pair in devices or not _claim(figure) > _FASTER * _claim(other) > 0.0:
            continue
        devices.add(pair)
        links = figure.interconnect, other.interconnect
        why = "other software, less bandwidth, another link or a misprint"
        if None not in links and links[0] != links[1]:
            why = f"its cards communicate over {links[0]}; the other's over {links[1]}"
        yield (
            f"{figure.experiment}: the {figure.device} is published at "
            f"{format_quantity(rate, 'token/s')}, below the slower {other.device}'s "
            f"{format_quantity(below, 'token/s')}: its data sheet claims "
            f"{_claim(figure) / _claim(other):.1f} times as much; {why}; no target"
        )


def _claim(figure: PublishedFigure) -> float:
    chip = find_chip(figure.device)
    claimed_peak = peak(chip, figure.precision) if chip else None
    return claimed_peak.rate if claimed_peak is not None else 0.0
