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
from trainrig.analysis.patterns import Answer, answers
from trainrig.analysis.run_view import RunView, attempts, is_published, rows
from trainrig.analysis.waterfall import Ladder, Rung, devices, dtype_order, ladder
from trainrig.benchmarks.labels import Device, case_text, family_text, name_devices
from trainrig.record import Finding, Kind, Record, Severity, Status
from trainrig.report import words
from trainrig.report.charts.curves import Figure, curves
from trainrig.report.charts.heatmap import HeatMap, heat_maps
from trainrig.report.charts.roofline import roofline
from trainrig.report.experiments.side import Side, side_by_side
from trainrig.report.provenance import Facts, trace
from trainrig.units import format_quantity, format_share, range_text, signed, signed_share

MAX_ROWS = 1000
"""Points in the page's table; a page stays under 2 MB and opens at once on a phone."""
FEW_GPUS = 2
"""Up to so many GPUs each get their ladders; of more, the one with the worst rung does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RungBar:
    """A rung as a bar: lengths in percent of the ladder's widest number."""

    rung: Rung
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
class LadderCard:
    """A ladder with its bars."""

    ladder: Ladder
    bars: tuple[RungBar, ...]
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
    """A heading, and a sentence under it: the worst rung."""
    next: str
    published: bool
    machine: tuple[tuple[str, str], ...]
    cards: tuple[LadderCard, ...]
    has_bands: bool
    unrun: tuple[str, ...]
    """What was planned and has no value, with the reason."""
    more_ladders: int
    """Of the other GPUs, left out."""
    peers: tuple[PeerGroup, ...]
    findings: tuple[Finding, ...]
    answers: tuple[Answer, ...]
    """What the numbers say by themselves."""
    experiments: Side | None
    """Trainings beside each other, where the run has some."""
    heat: tuple[HeatMap, ...]
    figures: tuple[Figure, ...]
    tables: tuple[Table, ...]
    left_out: int
    gaps: tuple[str, ...]


def build_page(view: RunView) -> Page:
    """Arrange one run."""
    ladders = ladder(view)
    worst = words.worst_rung(ladders)
    everything = rows(view)
    tables, left_out = _tables(view, everything)
    said = answers(view)
    cards = _cards(view, [each for each in ladders if _has_value(each)], worst)
    return Page(
        view=view,
        title=words.device_names(view),
        word=words.verdict_word(view),
        tone=_TONES.get(words.verdict_word(view), "none"),
        reason=words.verdict_reason(view),
        headline=words.headline(view, ladders),
        next=worst.rung.gap.next if worst and worst.rung.gap else "",
        published=is_published(view),
        machine=words.machine_facts(view),
        cards=cards,
        has_bands=any(bar.band for card in cards for bar in card.bars),
        unrun=tuple(_unrun(each) for each in ladders if not _has_value(each)),
        more_ladders=sum(map(_has_value, ladders)) - len(cards),
        peers=peer_groups(view, everything),
        findings=view.verdict.findings if view.verdict else (),
        answers=said,
        experiments=side_by_side(view.series),
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
    view: RunView, ladders: Sequence[Ladder], worst: words.Worst | None
) -> tuple[LadderCard, ...]:
    """The worst rung's ladder first, then its device's others, then the other devices'."""
    samples = attempts(view)
    lead = worst.ladder if worst else None
    place = {id(each): n for n, each in enumerate(ladders)}

    def order(each: Ladder) -> tuple[bool, bool, int]:
        same = lead is None or (each.device, each.index) == (lead.device, lead.index)
        return each is not lead, not same, place[id(each)]

    return tuple(
        LadderCard(ladder=each, bars=_bars(each, samples), worst=each is lead)
        for each in sorted(_shown(ladders, lead), key=order)
    )


def _has_value(each: Ladder) -> bool:
    return any(rung.value is not None for rung in each.rungs[1:])


def _unrun(each: Ladder) -> str:
    notes = dict.fromkeys(rung.note for rung in each.rungs[1:] if rung.note)
    return f"{each.title}: {'; '.join(notes) or 'not run'}"


def _shown(ladders: Sequence[Ladder], lead: Ladder | None) -> list[Ladder]:
    gpus = sorted({each.index for each in ladders if each.index is not None})
    if len(gpus) <= FEW_GPUS:
        return list(ladders)
    chosen = lead.index if lead is not None and lead.index is not None else gpus[0]
    return [each for each in ladders if each.index in (None, chosen)]


def _bars(each: Ladder, samples: Mapping[str, Record]) -> tuple[RungBar, ...]:
    widest = max((rung.value or 0.0 for rung in each.rungs), default=0.0)
    bands = [rung.expected[1] for rung in each.rungs if rung.expected]
    widest = max([widest, *(min(high, 1.25 * widest) for high in bands)])
    bars, ceiling = [], 0.0
    for rung in each.rungs:
        bars.append(_bar(rung, ceiling, widest or 1.0, samples))
        ceiling = rung.value or ceiling
    return tuple(bars)


def _bar(rung: Rung, ceiling: float, widest: float, samples: Mapping[str, Record]) -> RungBar:
    value, gap = rung.value or 0.0, rung.gap
    direction = ""
    if gap is not None:
        direction = "level" if abs(gap.share) < CLOSE else "down" if gap.share < 0 else "up"
    band = rung.expected
    return RungBar(
        rung=rung,
        kind=words.kind_word(rung.kind),
        value=format_quantity(rung.value, rung.unit) if rung.value is not None else "none",
        length=100.0 * value / widest,
        lost=max(0.0, 100.0 * (ceiling - value) / widest) if gap is not None else 0.0,
        band=(100.0 * band[0] / widest, min(100.0, 100.0 * band[1] / widest)) if band else None,
        band_text=_band_text(rung),
        gap=signed(gap.amount, gap.unit) if gap else "",
        share=signed_share(gap.share) if gap else "",
        direction=direction,
        shares=words.share_lines(gap),
        facts=trace(rung.record, samples) if rung.record is not None else (),
    )


def _band_text(rung: Rung) -> str:
    if rung.expected is None:
        return ""
    place = "Below" if words.is_below_band(rung) else "Within"
    if rung.value is not None and rung.value > rung.expected[1]:
        place = "Above"
    return f"{place} the expected {range_text(*rung.expected, rung.unit)}"


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
