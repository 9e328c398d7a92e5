"""One run, arranged for the page: what the template prints, computed and worded.

The template decides where things stand; every number and sentence is made here
or below, so that a test can read them without parsing HTML.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trainrig.analysis.bottlenecks import CLOSE
from trainrig.analysis.device_ranking import PeerGroup, peer_groups
from trainrig.analysis.match import Row
from trainrig.analysis.patterns import Pattern, find_patterns
from trainrig.analysis.run_view import RunView, attempts, is_published, rows
from trainrig.analysis.waterfall import Level, Waterfall, build_waterfalls, devices, dtype_order
from trainrig.benchmarks.labels import Device, case_text, family_text, name_devices
from trainrig.record import Finding, Kind, Record, Severity, Status
from trainrig.report import words
from trainrig.report.charts.curves import Figure, curves
from trainrig.report.charts.heatmap import HeatMap, heat_maps
from trainrig.report.charts.roofline import roofline
from trainrig.report.document import Block
from trainrig.report.provenance import Facts, trace
from trainrig.report.training_report import training_blocks
from trainrig.units import format_quantity, format_share, range_text, signed, signed_share

MAX_ROWS = 1000
"""Points in the page's table; a page stays under 2 MB and opens at once on a phone."""
FEW_GPUS = 2
"""Up to so many GPUs each get their waterfalls; of more, the one with the largest gap does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelBar:
    """A level as a bar: lengths in percent of the waterfall's widest number."""

    level: Level
    kind: str
    value: str
    length: float
    lost: float
    band: tuple[float, float] | None
    band_text: str
    gap: str
    share: str
    direction: str
    """``down``, ``up``, ``level`` or empty: which way the gap goes."""
    shares: tuple[tuple[str, str], ...]
    """What the gap is made of: size and cause."""
    facts: Facts


@dataclass(frozen=True, slots=True, kw_only=True)
class WaterfallCard:
    """A waterfall with its bars."""

    waterfall: Waterfall
    bars: tuple[LevelBar, ...]
    worst: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRow:
    """One case on one device."""

    label: str
    device: str
    value: str
    spread: str
    share: str
    expected: str
    state: str
    muted: bool
    facts: Facts


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The points of one benchmark."""

    name: str
    summary: str
    rows: tuple[TableRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Everything the template prints of one run."""

    view: RunView
    title: str
    word: str
    tone: str
    """``pass``, ``fail``, ``incomplete`` or ``none``: the verdict's colour."""
    reason: str
    headline: tuple[str, str]
    """A heading, and a sentence under it: the largest gap."""
    next: str
    published: bool
    machine: tuple[tuple[str, str], ...]
    cards: tuple[WaterfallCard, ...]
    has_bands: bool
    unrun: tuple[str, ...]
    """What was planned and has no value, with the reason."""
    more_waterfalls: int
    """Of the other GPUs, left out."""
    peers: tuple[PeerGroup, ...]
    findings: tuple[Finding, ...]
    patterns: tuple[Pattern, ...]
    """Explanations by themselves."""
    experiments: tuple[Block, ...]
    """Trainings beside each other, where the run has some."""
    heat: tuple[HeatMap, ...]
    figures: tuple[Figure, ...]
    tables: tuple[Table, ...]
    left_out: int
    gaps: tuple[str, ...]


def build_page(view: RunView) -> Page:
    """Arrange one run."""
    waterfalls = build_waterfalls(view)
    worst = words.largest_gap(waterfalls)
    everything = rows(view)
    tables, left_out = _tables(view, everything)
    said = find_patterns(view)
    cards = _cards(view, [each for each in waterfalls if _has_value(each)], worst)
    return Page(
        view=view,
        title=words.device_names(view),
        word=words.verdict_word(view),
        tone=_TONES.get(words.verdict_word(view), "none"),
        reason=words.verdict_reason(view),
        headline=words.headline(view, waterfalls),
        next=worst.level.gap.next if worst and worst.level.gap else "",
        published=is_published(view),
        machine=words.machine_facts(view),
        cards=cards,
        has_bands=any(bar.band for card in cards for bar in card.bars),
        unrun=tuple(_unrun(each) for each in waterfalls if not _has_value(each)),
        more_waterfalls=sum(map(_has_value, waterfalls)) - len(cards),
        peers=peer_groups(view, everything),
        findings=view.verdict.findings if view.verdict else (),
        patterns=said,
        experiments=training_blocks(view),
        heat=heat_maps(view, everything, said),
        figures=(
            *([roof] if (roof := roofline(view, everything)) else []),
            *curves(view, everything),
        ),
        tables=tables,
        left_out=left_out,
        gaps=words.gaps_in(view),
    )


_TONES = {"PASS": "pass", "FAIL": "fail", "INCOMPLETE": "incomplete"}


def _cards(
    view: RunView, waterfalls: Sequence[Waterfall], worst: words.LargestGap | None
) -> tuple[WaterfallCard, ...]:
    """The largest gap's waterfall first, then its device's others, then the other devices'."""
    samples = attempts(view)
    lead = worst.waterfall if worst else None
    place = {id(each): n for n, each in enumerate(waterfalls)}

    def order(each: Waterfall) -> tuple[bool, bool, int]:
        same = lead is None or (each.device, each.index) == (lead.device, lead.index)
        return each is not lead, not same, place[id(each)]

    return tuple(
        WaterfallCard(waterfall=each, bars=_bars(each, samples), worst=each is lead)
        for each in sorted(_shown(waterfalls, lead), key=order)
    )


def _has_value(each: Waterfall) -> bool:
    return any(level.value is not None for level in each.levels[1:])


def _unrun(each: Waterfall) -> str:
    notes = dict.fromkeys(level.note for level in each.levels[1:] if level.note)
    return f"{each.title}: {'; '.join(notes) or 'not run'}"


def _shown(waterfalls: Sequence[Waterfall], lead: Waterfall | None) -> list[Waterfall]:
    gpus = sorted({each.index for each in waterfalls if each.index is not None})
    if len(gpus) <= FEW_GPUS:
        return list(waterfalls)
    chosen = lead.index if lead is not None and lead.index is not None else gpus[0]
    return [each for each in waterfalls if each.index in (None, chosen)]


def _bars(each: Waterfall, samples: Mapping[str, Record]) -> tuple[LevelBar, ...]:
    widest = max((level.value or 0.0 for level in each.levels), default=0.0)
    bands = [level.expected[1] for level in each.levels if level.expected]
    widest = max([widest, *(min(high, 1.25 * widest) for high in bands)])
    bars, ceiling = [], 0.0
    for level in each.levels:
        bars.append(_bar(level, ceiling, widest or 1.0, samples))
        ceiling = level.value or ceiling
    return tuple(bars)


def _bar(level: Level, ceiling: float, widest: float, samples: Mapping[str, Record]) -> LevelBar:
    value, gap = level.value or 0.0, level.gap
    direction = ""
    if gap is not None:
        direction = "level" if abs(gap.share) < CLOSE else "down" if gap.share < 0 else "up"
    band = level.expected
    return LevelBar(
        level=level,
        kind=words.kind_word(level.kind),
        value=format_quantity(level.value, level.unit) if level.value is not None else "none",
        length=100.0 * value / widest,
        lost=max(0.0, 100.0 * (ceiling - value) / widest) if gap is not None else 0.0,
        band=(100.0 * band[0] / widest, min(100.0, 100.0 * band[1] / widest)) if band else None,
        band_text=_band_text(level),
        gap=signed(gap.amount, gap.unit) if gap else "",
        share=signed_share(gap.share) if gap else "",
        direction=direction,
        shares=words.share_lines(gap),
        facts=trace(level.record, samples) if level.record is not None else (),
    )


def _band_text(level: Level) -> str:
    if level.expected is None:
        return ""
    place = "Below" if words.is_below_band(level) else "Within"
    if level.value is not None and level.value > level.expected[1]:
        place = "Above"
    return f"{place} the expected {range_text(*level.expected, level.unit)}"


def _tables(view: RunView, everything: Sequence[Row]) -> tuple[tuple[Table, ...], int]:
    samples = attempts(view)
    seen = [row for row in everything if row.measured is not None]
    # What went wrong is never what a full table leaves out.
    names = name_devices(devices(seen))
    kept = sorted(range(len(seen)), key=lambda n: (_is_plain(seen[n]), n))[:MAX_ROWS]
    tables = []
    for name in dict.fromkeys(row.benchmark for row in seen):
        own = [row for row in seen if row.benchmark == name]
        chosen = sorted((seen[n] for n in kept if seen[n].benchmark == name), key=_table_order)
        tables.append(
            Table(
                name=name,
                summary=words.count_states(row.measured for row in own if row.measured),
                rows=tuple(_table_row(row, samples, names) for row in chosen),
            )
        )
    return tuple(tables), len(seen) - len(kept)


def _table_order(row: Row) -> tuple[object, ...]:
    """Kinds of case together, by size, then device beside device."""
    sizes = [
        row.case.get(name) for name in ("seq", "batch", "num_elements", "bytes", "m", "k", "n")
    ]
    numbers = [size if isinstance(size, int) else 0 for size in sizes]
    family = family_text(row.benchmark, row.case)
    where = -1 if row.index is None else row.index
    return dtype_order(str(row.case.get("dtype"))), family, numbers, where, row.count


def _is_plain(row: Row) -> bool:
    record = row.measured
    return record is not None and record.is_usable


def _table_row(row: Row, samples: Mapping[str, Record], names: Mapping[Device, str]) -> TableRow:
    record = row.measured
    assert record is not None
    value = record.value
    metric = {"flop_rate": "", "byte_rate": ""}.get(row.metric, row.metric.replace("_", " "))
    device = names[row.device, row.index]
    if record.kind is Kind.BASELINE:
        device += ", published"
    return TableRow(
        label=" ".join(part for part in (case_text(row.benchmark, row.case), metric) if part),
        device=device if row.count == 1 else f"{device}, {row.count} at once",
        value=format_quantity(value, row.unit) if value is not None else "no value",
        spread=_spread(record),
        share=format_share(value / record.limit.value)
        if value is not None and record.limit is not None and record.limit.value
        else "",
        expected=_expected(row),
        state=_state(record),
        muted=not _is_plain(row),
        facts=trace(record, samples, row.predicted),
    )


def _spread(record: Record) -> str:
    if record.interval is None or not record.value:
        return ""
    half = (record.interval[1] - record.interval[0]) / 2.0 / abs(record.value)
    return f"± {format_share(half)}"


def _expected(row: Row) -> str:
    if row.predicted is None or row.predicted.interval is None:
        return ""
    return range_text(*row.predicted.interval, row.unit)


def _state(record: Record) -> str:
    if record.status is not Status.OK:
        return f"{record.status}: {record.reason or 'no reason given'}"
    if record.disturbed is not None:
        return f"disturbed: {record.disturbed}"
    return ""


def count_findings(findings: Sequence[Finding]) -> str:
    """``1 error, 2 warnings``."""
    number = Counter(finding.severity for finding in findings)
    spelled: dict[Severity, str] = {"error": "error", "warning": "warning", "info": "note"}
    return ", ".join(
        f"{number[level]} {word}{'s' * (number[level] != 1)}"
        for level, word in spelled.items()
        if number[level]
    )
