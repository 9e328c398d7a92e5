"""Runs of qualify, bench and train as a Document: verdict, waterfalls, findings, curves, points.

Several runs begin with their heads side by side and one table of the cases that they share.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence

from trainrig.analysis.answer import Word
from trainrig.analysis.best import AT_LEAST, share_bound, with_bound_sign
from trainrig.analysis.bottlenecks import CLOSE, TINY
from trainrig.analysis.device_ranking import PeerGroup, peer_groups, run_groups
from trainrig.analysis.first_screen import Action, KeyNumber, RunMetadata, command_apart
from trainrig.analysis.imported_facts import cards_text
from trainrig.analysis.rack import MIN_NODES, rack_of
from trainrig.analysis.rows import at_path, attempts, is_published, rows
from trainrig.analysis.run_summary import RunSummary, device_names, summarise
from trainrig.analysis.training_results import readable_results
from trainrig.analysis.waterfall import (
    CLAIM,
    REFERENCE,
    Level,
    Waterfall,
    headline_waterfall,
    largest_gap,
)
from trainrig.lazy import Later
from trainrig.record import Kind, Outcome, Record, RunView, Severity
from trainrig.report import document as doc
from trainrig.report.burn_report import burn_blocks
from trainrig.report.charts.curves import curves
from trainrig.report.charts.heatmap import heat_section
from trainrig.report.charts.over_time import over_time
from trainrig.report.charts.roofline import roofline
from trainrig.report.imported_report import files_text, imported_blocks
from trainrig.report.link_report import link_blocks
from trainrig.report.point_table import point_blocks
from trainrig.report.provenance import trace
from trainrig.report.published_report import normal_section, range_of
from trainrig.report.training_report import training_blocks
from trainrig.units import (
    capital,
    counted,
    format_count,
    format_memory,
    format_quantity,
    format_share,
    format_time,
    range_text,
    signed,
    signed_share,
)

FEW_GPUS = 2
"""Up to so many GPUs each get their waterfalls; of more, the one with the largest gap does."""
_MAX_WATERFALLS = 16
PUBLISHED = "Published figures, not measured by trainrig. Each number names its source."
UNVERIFIED = "NCCL, P2P and NVLink are unverified on hardware: trainrig has not measured them."
_FOOT = (
    "TFLOPS are 10¹² operations a second, a multiply-add counted as two; GB/s are 10⁹ bytes a "
    "second. Claims are dense peaks at the stated accumulation. Intervals are of the median over "
    "fresh workers."
)
_TONES: dict[str, doc.Tone] = {
    "PASS": "good",
    "MEASURED": "dim",
    "FAIL": "bad",
    "INCOMPLETE": "warn",
}
_ANSWER_TONES: dict[Word, doc.Tone] = {
    Word.NORMAL: "good",
    Word.SLOW: "bad",
    Word.FAULTY: "bad",
    Word.CANNOT_TELL: "warn",
}
_SEVERITY: dict[Severity, tuple[str, doc.Tone]] = {
    "error": ("Error", "bad"),
    "warning": ("Warning", "warn"),
    "info": ("Note", "dim"),
}


def run_document(views: Sequence[RunView]) -> doc.Document:
    """Return one run, or several side by side."""
    gpus = [{row.index for row in rows(view) if row.index is not None} for view in views]
    unverified = (UNVERIFIED,) if max(map(len, gpus), default=0) > 1 else ()
    return doc.Document(
        title=", ".join(map(device_names, views)),
        names=tuple(view.name for view in views) if len(views) < MIN_NODES else (),
        banner=PUBLISHED if any(map(is_published, views)) else "",
        blocks=Later(_blocks(views, unverified)),
        foot=(*unverified, _FOOT),
    )


def _blocks(views: Sequence[RunView], unverified: Sequence[str]) -> Iterator[doc.Block]:
    """Yield the runs' heads, then their bodies; a rack's nodes behind a line each."""
    pairs = [(view, summarise(view)) for view in views]
    if len(views) >= MIN_NODES:
        from trainrig.report.rack_report import rack_blocks

        rack = rack_of(views)
        yield from rack_blocks(rack, [summary for _, summary in pairs])
        for node, pair in zip(rack.nodes, pairs, strict=True):
            yield _node_section(node.name, *pair)
    else:
        yield doc.Group("beside", tuple(_head_block(*pair) for pair in pairs))
        yield from _runs_side_by_side(views) if len(views) > 1 else ()
        for number, (view, run_summary) in enumerate(pairs, start=1):
            if len(views) > 1:
                yield doc.Section(f"{number}. {view.name}", tuple(_body(view, run_summary)))
            else:
                yield from _body(view, run_summary)
    yield from (doc.Group("text", (doc.Paragraph(line, "dim"),)) for line in unverified)


def render_html(views: Sequence[RunView]) -> str:
    """Return one run, or several, as one offline HTML file."""
    from trainrig.report.render.html import to_html

    return to_html(run_document(views))


def _node_section(node: str, view: RunView, summary: RunSummary) -> doc.Section:
    """Return a node's own report behind a line: head, waterfalls and findings."""
    body = (*_waterfalls(view, summary.waterfalls), *_findings(view, summary))
    return doc.Section(node, (_head_block(view, summary), *body), summary.verdict, fold="closed")


def _runs_side_by_side(views: Sequence[RunView]) -> Iterator[doc.Block]:
    groups = run_groups(views)
    if groups:
        heads = [f"{n}. {device_names(view)}" for n, view in enumerate(views, start=1)]
        yield doc.Section(
            "Run beside run",
            (_peer_table(groups, heads),),
            "Each run's best device; the deviation is from the fastest. Whether a difference is "
            "real is what trainrig compare says.",
        )
    if len(views) == 2:
        from trainrig.report.compare_report import training_comparison_blocks

        yield from training_comparison_blocks(*views)


# ---- the head


def _head_block(view: RunView, summary: RunSummary) -> doc.Block:
    """Return the verdict, one sentence, four numbers, what to do next, and what the machine is."""
    missing = [
        missing_part
        for missing_part in summary.missing
        if missing_part.lower() not in summary.reason.lower()
    ]
    blocks: list[doc.Block] = [
        _badge(view, summary),
        *(doc.Paragraph(when, "dim") for when in [_taken_text(summary.taken)] if when),
        doc.Paragraph(summary.headline, "strong"),
    ]
    if summary.key_numbers:
        blocks.append(doc.Tiles(tuple(map(_tile, summary.key_numbers))))
    if summary.actions:
        blocks.append(doc.Findings(tuple(map(_action, summary.actions)), "What to do next"))
    if missing:
        blocks.append(doc.Paragraph(f"{capital('; '.join(missing))}.", "warn", "Missing"))
    if facts := tuple(_machine_facts(view)):
        blocks.append(doc.Facts(facts))
    return doc.Group("card", tuple(blocks))


def _badge(view: RunView, summary: RunSummary) -> doc.Badge:
    """Return the answer, then the verdict.

    Figures that others published have none, whatever is stored.
    """
    answer = doc.AnswerLine(
        word=str(summary.answer.word),
        comparison=summary.answer.comparison,
        reason=summary.answer.reason,
        tone=_ANSWER_TONES[summary.answer.word],
    )
    word, tone = summary.verdict, _TONES.get(summary.verdict, "")
    if is_published(view):
        word, tone = "published figures", "dim"
    return doc.Badge(device_names(view), word, summary.reason, tone, answer)


def _taken_text(run_metadata: RunMetadata) -> str:
    """Return ``2026-11-22 23:30 UTC, 55.0 s, trainrig 0.1.0``: what the run says of itself."""
    day, _, clock = (run_metadata.started or "").partition("T")
    parts = (
        f"{day} {clock[:5]} UTC" if day else "",
        "" if run_metadata.duration_s is None else format_time(run_metadata.duration_s),
        f"trainrig {run_metadata.version}" if run_metadata.version else "",
    )
    return ", ".join(filter(None, parts))


def _tile(number: KeyNumber) -> doc.Tile:
    notes, value = [number.what] if number.what else [], format_quantity(number.value, number.unit)
    if number.text:
        value = number.text
    elif number.unit == "token/s":
        value = f"{format_count(number.value)} tokens/s"
    elif number.unit == "" and number.value >= 1000.0:
        value = format_count(number.value)
    elif number.unit == "B":
        value = format_memory(number.value)
    if (others := number.others) is not None:
        others_range = range_of(others.low, others.high, number.unit)
        notes.append(f"others: {others_range}, n = {others.num}")
    value = with_bound_sign(value, AT_LEAST if number.is_least else "")
    return doc.Tile(number.name, value, tuple(notes))


def _action(action: Action) -> doc.Item:
    gain = f"up to {signed_share(action.gain)}" if action.gain is not None else "to do"
    text, label = capital(action.what), capital(gain)
    return doc.Item(text=text, fix=action.next, label=label, tone="strong", command=action.command)


def _machine_facts(view: RunView) -> Iterator[tuple[str, str]]:
    """Yield facts of the machine; what could not be read is left out."""
    machine, sources = view.machine, view.config.get("sources")
    if is_published(view) and isinstance(sources, Mapping):
        yield from ((str(part_name), str(source)) for part_name, source in sources.items())
        return
    if imported := files_text(view):
        yield "Imported", imported
    if machine is None:
        return

    def of(room: str, *names: str) -> list[str]:
        values = [at_path(machine, room, name) for name in names]
        return [str(value) for value in values if value]

    if isinstance(machine.get("gpus"), list | tuple):
        yield "GPUs", cards_text(view) or "none"
    counts = [f"{cores} cores" for cores in of("cpu", "cores")]
    counts += [f"{at_path(machine, 'cpu', 'threads')} threads"] if counts else []
    memory = at_path(machine, "memory", "total_bytes")
    built = [f"CUDA {version}" for version in of("software", "torch_cuda")]
    built = built or [f"ROCm {version}" for version in of("software", "torch_hip")]
    kinds = [kind for kind in of("host", "container", "virtualization") if kind != "none"]
    for part_name, parts in (
        ("CPU", of("cpu", "model") + counts),
        ("Memory", [format_memory(memory)] if isinstance(memory, int) else []),
        ("System", of("host", "os", "kernel")),
        ("Container", kinds),
        ("Driver", of("software", "nvidia_driver")),
        ("torch", of("software", "torch") + built),
    ):
        if parts:
            yield part_name, ", ".join(parts)


# ---- the body


def _body(view: RunView, summary: RunSummary) -> Iterator[doc.Block]:
    everything = rows(view)
    trained = [*training_blocks(view), *_over_time(view)]
    is_training = bool(readable_results(view)) and all(row.unit != "B/s" for row in everything)
    yield from imported_blocks(view)
    yield from trained if is_training else ()
    yield from _waterfalls(view, summary.waterfalls)
    yield from _findings(view, summary)
    if summary.patterns:
        patterns: dict[tuple[str, str], list[doc.Item]] = {}
        for pattern in summary.patterns:
            item = doc.Item(text=pattern.text, fix=pattern.next, label=pattern.label)
            patterns.setdefault((pattern.id, item.fix), []).append(item)
        yield doc.Section(
            "Explanations",
            _first_of_each(patterns.values()),
            "Patterns that are taken for faults, or overlooked; from the records alone.",
        )
    yield from burn_blocks(view)
    yield from link_blocks(view)
    yield from () if is_training else trained
    yield from heat_section(view, everything, summary.patterns)
    yield from _devices(peer_groups(view, everything))
    figures = [*([roof] if (roof := roofline(view, everything)) else ()), *curves(view, everything)]
    if figures:
        note = "Every mark shows its number when you point at it."
        yield doc.Section("Curves", (doc.Group("beside", tuple(figures)),), note)
    yield from normal_section(view, everything)
    yield from point_blocks(view, everything)


def _over_time(view: RunView) -> Iterator[doc.Block]:
    if series := over_time(view.series, (record.name for record in readable_results(view))):
        note = "What the run wrote down step by step, and second by second."
        yield doc.Section("Over time", (doc.Group("beside", series),), note)


def _waterfalls(view: RunView, waterfalls: Sequence[Waterfall]) -> Iterator[doc.Block]:
    """Return the waterfall of what training computes in, at full width.

    The others stand behind a line.
    """
    if not waterfalls:
        return
    usable = [waterfall for waterfall in waterfalls if _has_value(waterfall)]
    largest, headlined = largest_gap(waterfalls), headline_waterfall(usable)
    first = largest.waterfall.device_index if largest else None
    of_few = usable
    gpus = sorted(
        {waterfall.device_index for waterfall in usable if waterfall.device_index is not None}
    )
    if len(gpus) > FEW_GPUS:
        chosen = {None, first if first is not None else gpus[0]}
        chosen |= {headlined.device_index} if headlined is not None else set()
        of_few = [waterfall for waterfall in usable if waterfall.device_index in chosen]
    shown_waterfalls = sorted(
        of_few,
        key=lambda waterfall: (
            waterfall is not headlined,
            waterfall.relevance,
            waterfall.device_index != first,
        ),
    )
    lead, others = shown_waterfalls[:1], shown_waterfalls[1:]
    by_id, samples = {record.id: record for record in view.records}, attempts(view)

    def bars(waterfall: Waterfall, *, is_wide: bool = False) -> doc.WaterfallBars:
        drawn = tuple(_bars(waterfall, by_id, samples))
        return doc.WaterfallBars(
            title=waterfall.quantity, subtitle=waterfall.label, bars=drawn, is_wide=is_wide
        )

    blocks: list[doc.Block] = [bars(waterfall, is_wide=True) for waterfall in lead]
    cards = [
        waterfall
        for waterfall in others
        if sum(bool(level.value) for level in waterfall.levels) > 1
    ]
    if others:
        inside: list[doc.Block] = [
            _reached_table([waterfall for waterfall in others if waterfall not in cards])
        ]
        inside = [
            doc.Group("beside", tuple(map(bars, cards[:_MAX_WATERFALLS]))),
            *(inside if len(cards) < len(others) else []),
        ]
        quantities = ", ".join(dict.fromkeys(waterfall.quantity for waterfall in others))
        title = counted(len(others), "more waterfall")
        blocks.append(doc.Section(title, tuple(inside), quantities, "closed"))
        blocks.append(doc.Group("text", (_reached_table(others),)))
    items = []
    for waterfall in waterfalls:
        if not _has_value(waterfall):
            notes = dict.fromkeys(level.note for level in waterfall.levels[1:] if level.note)
            text = f"{waterfall.title}: {'; '.join(notes) or 'not run'}"
            items.append(doc.Item(text=capital(text), tone="warn"))
    if items:
        blocks.append(doc.Section("Without a value", (doc.Findings(tuple(items)),)))
    if num_hidden := len(usable) - len(of_few) + max(0, len(cards) - _MAX_WATERFALLS):
        more = f"{counted(num_hidden, 'more waterfall')} left out; those devices stand below."
        blocks.append(doc.Paragraph(more, "dim"))
    yield doc.Section(
        "From claim to measurement",
        tuple(blocks),
        "Each bar is a level; its ceiling is the level above it, unless another is named. Hatched "
        "is what was lost, with its cause and the next thing to try.",
    )


def _reached_table(waterfalls: Sequence[Waterfall]) -> doc.Table:
    """Return a line a waterfall: what was reached at the best, of which claim."""

    references = {
        waterfall.levels[0].name == REFERENCE
        for waterfall in waterfalls
        if waterfall.levels[0].value
    }
    reference_words = "of reference" if references == {True} else "of claim"

    def share(waterfall: Waterfall) -> str:
        claim = waterfall.levels[0]
        if not claim.value:
            return ""
        share = format_share((waterfall.best.value or 0.0) / claim.value)
        share_text = with_bound_sign(share, waterfall.best.bound)
        is_named = len(references) < 2 or claim.name == CLAIM
        return share_text if is_named else f"{share_text} (reference)"

    def what(waterfall: Waterfall) -> doc.Cell:
        best = waterfall.best
        return doc.Cell("; ".join(filter(None, (best.name, _doubt_text(best)))), "dim")

    return doc.table(
        waterfalls,
        doc.words("quantity", lambda waterfall: waterfall.quantity),
        doc.words("device", lambda waterfall: waterfall.label),
        doc.column("reached", lambda waterfall: _level_value(waterfall.best)),
        doc.column(reference_words, share),
        doc.words("", what),
    )


def _has_value(waterfall: Waterfall) -> bool:
    return any(level.value is not None for level in waterfall.levels[1:])


def _bars(
    waterfall: Waterfall, by_id: Mapping[str, Record], samples: Mapping[str, Record]
) -> Iterator[doc.Bar]:
    widest = max((level.value or 0.0 for level in waterfall.levels), default=0.0)
    bands = [level.expected[1] for level in waterfall.levels if level.expected]
    widest = max([widest, *(min(high, 1.25 * widest) for high in bands)]) or 1.0
    above = ""
    for level in waterfall.levels:
        record = by_id.get(level.record or "")
        kind = "published" if level.kind is Kind.BASELINE else str(level.kind)
        bar = doc.Bar(
            name=level.name,
            value=_level_value(level),
            has_value=level.value is not None,
            length=(level.value or 0.0) / widest,
            kind="muted" if level.note else kind,
            note=level.note or "",
            doubt=_doubt_text(level),
            source=level.provenance,
            details=trace(record, samples) if record is not None else (),
        )
        yield _with_gap(_with_band(bar, level, widest), level, above, widest)
        above = level.name if level.value else above


def _doubt_text(level: Level) -> str:
    """Say which level is no ceiling though it bounds this one; empty for most."""
    if not level.doubted:
        return ""
    return f"{level.doubted.lower()} ({level.doubted_value}) was not measured well enough"


def _level_value(level: Level) -> str:
    """Return the number with its bound: a noisy one is the least that the device does."""
    if level.value is None:
        return "none"
    return with_bound_sign(format_quantity(level.value, level.unit), level.bound)


def _with_band(bar: doc.Bar, level: Level, widest: float) -> doc.Bar:
    """Return the bar with what was expected of it."""
    if level.expected is None:
        return bar
    low, high = level.expected
    place = "Below" if level.is_below else "Within"
    if level.value is not None and level.value > high:
        place = "Above"
    source = f" ({level.expected_source})" if level.expected_source else ""
    return dataclasses.replace(
        bar,
        band=(low / widest, min(1.0, high / widest)),
        expected=f"{place} the expected {range_text(low, high, level.unit)}{source}",
        is_below=level.is_below,
    )


def _with_gap(bar: doc.Bar, level: Level, above: str, widest: float) -> doc.Bar:
    """Return the bar with what is lost from its ceiling, named where it is not the level ``above``.

    Of a number that is a bound, what is lost is one, too: ``≥ −62 %``.
    """
    if (gap := level.gap) is None:
        return bar
    bound = share_bound(level.bound, level.ceiling_bound)
    is_plain = level.ceiling == above and above != REFERENCE
    ceiling_words = "" if is_plain else f" of {level.ceiling.lower()}"
    return dataclasses.replace(
        bar,
        lost=max(0.0, -gap.amount / widest),
        gap=with_bound_sign(signed(gap.amount, gap.unit), bound),
        share=with_bound_sign(signed_share(gap.share), bound) + ceiling_words,
        direction="level" if abs(gap.share) < CLOSE else "down" if gap.share < 0 else "up",
        cause=gap.cause,
        parts=tuple(
            (signed(-share.amount, gap.unit), share.name)
            for share in gap.shares
            if abs(share.part) >= TINY
        ),
        fix=gap.next,
    )


def _first_of_each(groups: Collection[Sequence[doc.Item]]) -> tuple[doc.Block, ...]:
    """Return the first item of each group; the others stand behind a line."""
    first = doc.Findings(tuple(group[0] for group in groups))
    more = tuple(item for group in groups for item in group[1:])
    title = f"{len(more)} more of the same"
    if not more:
        return (first,)
    line = doc.Group("text", (doc.Paragraph(f"  {title}", "dim"),))
    return first, doc.Section(title, (doc.Findings(more),), fold="closed"), line


def _findings(view: RunView, summary: RunSummary) -> Iterator[doc.Block]:
    if summary.findings:
        similar: dict[tuple[str, str], list[doc.Item]] = {}
        for finding in summary.findings:
            label, tone = _SEVERITY[finding.severity]
            how, command = command_apart(finding.fix)
            item = doc.Item(text=finding.evidence, fix=how, label=label, tone=tone, command=command)
            similar.setdefault((finding.id, finding.fix), []).append(item)
        number = Counter(item.label.lower() for group in similar.values() for item in group)
        labels = [label.lower() for label, _ in _SEVERITY.values()]
        counts = ", ".join(counted(number[label], label) for label in labels if number[label])
        yield doc.Section("Findings", _first_of_each(similar.values()), counts)
    elif view.verdict is not None and view.verdict.outcome is not Outcome.FAIL:
        yield doc.Group("page", (doc.Section("Findings", (), "None."),))


# ---- device beside device


def _devices(groups: Sequence[PeerGroup]) -> Iterator[doc.Block]:
    if not groups:
        return
    outliers = [
        doc.Paragraph(
            f"  {peer.label} is an outlier: {group.name}: "
            f"{format_quantity(peer.value, group.unit)} ({signed_share(peer.deviation)})",
            "bad",
        )
        for group in groups
        for peer in group.peers
        if peer.is_outlier
    ]
    labels = [peer.label for peer in groups[0].peers]
    comparable = [group for group in groups if [peer.label for peer in group.peers] == labels]
    yield doc.Section(
        "GPU to GPU",
        (
            doc.Group("text", tuple(outliers) or (doc.Paragraph("  No device is an outlier."),)),
            doc.Group("page", (doc.Group("card", (_peer_table(comparable, labels),)),)),
        ),
        "Equal cards should give equal numbers. The deviation is from the other cards' median.",
    )


def _peer_table(groups: Sequence[PeerGroup], heads: Sequence[str]) -> doc.Table:
    """Return a row a case, a column a device."""

    def device(head: str) -> doc.Shown[PeerGroup]:
        number = head.partition(". ")[0]

        def cell(group: PeerGroup) -> doc.Cell:
            peer = next((p for p in group.peers if p.label.partition(". ")[0] == number), None)
            if peer is None:
                return doc.Cell("")
            deviation = signed_share(peer.deviation) if abs(peer.deviation) >= 0.005 else ""
            return doc.Cell(
                with_bound_sign(format_quantity(peer.value, group.unit), peer.bound),
                "bad" if peer.is_outlier else "",
                f"outlier {deviation}" if peer.is_outlier else deviation,
            )

        return doc.column(head, cell)

    return doc.table(groups, doc.words("case", lambda group: group.name), *map(device, heads))
