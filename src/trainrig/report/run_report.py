"""Runs of qualify, bench and train as a Document: verdict, waterfalls, findings, curves, points.

Several runs begin with their heads side by side and one table of the cases that they share.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from trainrig.analysis.bottlenecks import CLOSE, TINY
from trainrig.analysis.device_ranking import PeerGroup, peer_groups, run_groups
from trainrig.analysis.first_screen import Action, KeyNumber, Taken
from trainrig.analysis.match import Device, Row, name_devices
from trainrig.analysis.run_summary import RunSummary, device_names, summarise
from trainrig.analysis.run_view import RunView, at_path, attempts, is_published, rows
from trainrig.analysis.training_results import BENCHMARK, readable
from trainrig.analysis.waterfall import Level, Waterfall, devices, dtype_order, largest_gap
from trainrig.benchmarks.spec import case_text, kind_text
from trainrig.record import Kind, Record, Severity, Status, dtype_of
from trainrig.report import document as doc
from trainrig.report.charts.curves import curves
from trainrig.report.charts.heatmap import heat_section
from trainrig.report.charts.over_time import over_time
from trainrig.report.charts.roofline import roofline
from trainrig.report.compare_report import training_comparison_blocks
from trainrig.report.imported_report import files_text, imported_blocks
from trainrig.report.provenance import trace
from trainrig.report.render.html import to_html
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

MAX_ROWS = 1000
"""Points in the page's tables; a page stays under 2 MB and opens at once on a phone."""
FEW_GPUS = 2
"""Up to so many GPUs each get their waterfalls; of more, the one with the largest gap does."""
_MAX_STATES = 12
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
_SEVERITY: dict[Severity, tuple[str, doc.Tone]] = {
    "error": ("Error", "bad"),
    "warning": ("Warning", "warn"),
    "info": ("Note", "dim"),
}


def run_document(views: Sequence[RunView]) -> doc.Document:
    """One run, or several side by side."""
    summaries = [summarise(view) for view in views]
    blocks: list[doc.Block] = [
        doc.Group(
            "beside",
            tuple(_head(view, found) for view, found in zip(views, summaries, strict=True)),
        )
    ]
    if len(views) > 1:
        blocks += _runs_together(views)
    for number, (view, found) in enumerate(zip(views, summaries, strict=True), start=1):
        body = tuple(_body(view, found))
        if len(views) > 1:
            body = (doc.Section(f"{number}. {view.name}", body),)
        blocks += body
    gpus = [{row.index for row in rows(view) if row.index is not None} for view in views]
    unverified = (UNVERIFIED,) if max(map(len, gpus), default=0) > 1 else ()
    return doc.Document(
        title=", ".join(map(device_names, views)),
        names=tuple(view.name for view in views),
        banner=PUBLISHED if any(map(is_published, views)) else "",
        blocks=(
            *blocks,
            *(doc.Group("text", (doc.Paragraph(line, "dim"),)) for line in unverified),
        ),
        foot=(*unverified, _FOOT),
    )


def render_html(views: Sequence[RunView]) -> str:
    """One run, or several, as one offline HTML file."""
    return to_html(run_document(views))


def _runs_together(views: Sequence[RunView]) -> Iterator[doc.Block]:
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
        yield from training_comparison_blocks(*views)


# ---- the head


def _head(view: RunView, found: RunSummary) -> doc.Block:
    """The verdict, one sentence, four numbers, what to do next, and what the machine is."""
    missing = [what for what in found.missing if what.lower() not in found.reason.lower()]
    blocks: list[doc.Block] = [
        doc.Badge(device_names(view), found.verdict, found.reason, _TONES.get(found.verdict, "")),
        *(doc.Paragraph(when, "dim") for when in [_taken_text(found.taken)] if when),
        doc.Paragraph(found.headline, "strong"),
    ]
    if found.key_numbers:
        blocks.append(doc.Tiles(tuple(map(_tile, found.key_numbers))))
    if found.actions:
        blocks.append(doc.Findings(tuple(map(_action, found.actions)), "What to do next"))
    if missing:
        blocks.append(doc.Paragraph(f"{capital('; '.join(missing))}.", "warn", "Missing"))
    if facts := tuple(_machine_facts(view)):
        blocks.append(doc.Facts(facts))
    return doc.Group("card", tuple(blocks))


def _taken_text(taken: Taken) -> str:
    """``2026-11-22 23:30 UTC, 55.0 s, trainrig 0.1.0``: what the run says of itself."""
    day, _, clock = (taken.started or "").partition("T")
    parts = (
        f"{day} {clock[:5]} UTC" if day else "",
        "" if taken.duration_s is None else format_time(taken.duration_s),
        f"trainrig {taken.version}" if taken.version else "",
    )
    return ", ".join(filter(None, parts))


def _tile(number: KeyNumber) -> doc.Tile:
    notes, value = [number.what] if number.what else [], format_quantity(number.value, number.unit)
    if number.unit == "token/s":
        value = f"{format_count(number.value)} tokens/s"
    if (others := number.others) is not None:
        seen = range_text(others.low, others.high, number.unit)
        notes.append(f"others: {seen}, n = {others.num}")
    return doc.Tile(number.name, f"{'≥ ' if number.is_least else ''}{value}", tuple(notes))


def _action(action: Action) -> doc.Item:
    gain = f"up to {signed_share(action.gain)}" if action.gain is not None else "to do"
    what, label = capital(action.what), capital(gain)
    return doc.Item(text=what, fix=action.next, label=label, tone="strong", command=action.command)


def _machine_facts(view: RunView) -> Iterator[tuple[str, str]]:
    """What the machine is; what could not be read is left out."""
    machine, sources = view.machine, view.config.get("sources")
    if is_published(view) and isinstance(sources, Mapping):
        yield from ((str(what), str(source)) for what, source in sources.items())
        return
    if imported := files_text(view):
        yield "Imported", imported
    if machine is None:
        return

    def of(room: str, *names: str) -> list[str]:
        values = [at_path(machine, room, name) for name in names]
        return [str(value) for value in values if value]

    if isinstance(gpus := machine.get("gpus"), list | tuple):
        names = Counter(str(at_path(gpu, "name") or "unknown GPU") for gpu in gpus)
        yield "GPUs", ", ".join(f"{n} × {name}" for name, n in names.items()) or "none"
    counts = [f"{cores} cores" for cores in of("cpu", "cores")]
    counts += [f"{at_path(machine, 'cpu', 'threads')} threads"] if counts else []
    memory = at_path(machine, "memory", "total_bytes")
    built = [f"CUDA {version}" for version in of("software", "torch_cuda")]
    built = built or [f"ROCm {version}" for version in of("software", "torch_hip")]
    kinds = [kind for kind in of("host", "container", "virtualization") if kind != "none"]
    for what, parts in (
        ("CPU", of("cpu", "model") + counts),
        ("Memory", [format_memory(memory)] if isinstance(memory, int) else []),
        ("System", of("host", "os", "kernel")),
        ("Container", kinds),
        ("Driver", of("software", "nvidia_driver")),
        ("torch", of("software", "torch") + built),
    ):
        if parts:
            yield what, ", ".join(parts)


# ---- the body


def _body(view: RunView, found: RunSummary) -> Iterator[doc.Block]:
    everything = rows(view)
    yield from _waterfalls(view, found.waterfalls)
    yield from _findings(view, found)
    if found.patterns:
        items = tuple(doc.Item(text=p.text, fix=p.next, label=p.label) for p in found.patterns)
        yield doc.Section(
            "Explanations",
            (doc.Findings(items),),
            "Patterns that are taken for faults, or overlooked; from the records alone.",
        )
    yield from imported_blocks(view)
    yield from training_blocks(view)
    yield from heat_section(view, everything, found.patterns)
    yield from _devices(peer_groups(view, everything))
    figures = [*([roof] if (roof := roofline(view, everything)) else ()), *curves(view, everything)]
    if figures:
        note = "Every mark shows its number when you point at it."
        yield doc.Section("Curves", (doc.Group("beside", tuple(figures)),), note)
    if series := over_time(view.series, (one.name for one in readable(view))):
        note = "What the run wrote down step by step, and second by second."
        yield doc.Section("Over time", (doc.Group("beside", series),), note)
    yield from _points(view, everything)


def _waterfalls(view: RunView, waterfalls: Sequence[Waterfall]) -> Iterator[doc.Block]:
    """The waterfall of what training computes in, at full width; the others stand behind a line."""
    if not waterfalls:
        return
    usable = [each for each in waterfalls if _has_value(each)]
    largest = largest_gap(waterfalls)
    first = largest.waterfall.device_index if largest else None
    of_few = usable
    gpus = sorted({each.device_index for each in usable if each.device_index is not None})
    if len(gpus) > FEW_GPUS:
        chosen = first if first is not None else gpus[0]
        of_few = [each for each in usable if each.device_index in (None, chosen)]
    shown = sorted(of_few, key=lambda each: (each.relevance, each.device_index != first))
    lead, others = shown[:1], shown[1:]
    by_id, samples = {record.id: record for record in view.records}, attempts(view)

    def bars(each: Waterfall, *, is_wide: bool = False) -> doc.WaterfallBars:
        drawn = tuple(_bars(each, by_id, samples))
        return doc.WaterfallBars(
            title=each.quantity, subtitle=each.label, bars=drawn, is_wide=is_wide
        )

    blocks: list[doc.Block] = [bars(each, is_wide=True) for each in lead]
    cards = [each for each in others if sum(bool(level.value) for level in each.levels) > 1]
    if others:
        inside: list[doc.Block] = [_reached_table([each for each in others if each not in cards])]
        inside = [
            doc.Group("beside", tuple(map(bars, cards[:_MAX_WATERFALLS]))),
            *(inside if len(cards) < len(others) else []),
        ]
        what = ", ".join(dict.fromkeys(each.quantity for each in others))
        title = counted(len(others), "more waterfall")
        blocks.append(doc.Section(title, tuple(inside), what, "closed"))
        blocks.append(doc.Group("text", (_reached_table(others),)))
    items = []
    for each in waterfalls:
        if not _has_value(each):
            notes = dict.fromkeys(level.note for level in each.levels[1:] if level.note)
            text = f"{each.title}: {'; '.join(notes) or 'not run'}"
            items.append(doc.Item(text=capital(text), tone="warn"))
    if items:
        blocks.append(doc.Section("Without a value", (doc.Findings(tuple(items)),)))
    if left := len(usable) - len(of_few) + max(0, len(cards) - _MAX_WATERFALLS):
        more = f"{counted(left, 'more waterfall')} left out; those devices stand below."
        blocks.append(doc.Paragraph(more, "dim"))
    yield doc.Section(
        "From claim to measurement",
        tuple(blocks),
        "Each bar is a level; its ceiling is the level above it, unless another is named. Hatched "
        "is what was lost, with its cause and the next thing to try.",
    )


def _reached_table(waterfalls: Sequence[Waterfall]) -> doc.Table:
    """A line a waterfall: what was reached at the best, of which claim."""

    def best(each: Waterfall) -> Level:
        return max(each.levels[1:], key=lambda level: level.value or 0.0)

    def share(each: Waterfall) -> str:
        claim = each.levels[0].value
        return format_share((best(each).value or 0.0) / claim) if claim else ""

    return doc.table(
        waterfalls,
        doc.words("quantity", lambda each: each.quantity),
        doc.words("device", lambda each: each.label),
        doc.column("reached", lambda each: _level_value(best(each))),
        doc.column("of claim", share),
        doc.words("", lambda each: doc.Cell(best(each).note or best(each).name, "dim")),
    )


def _has_value(each: Waterfall) -> bool:
    return any(level.value is not None for level in each.levels[1:])


def _bars(
    each: Waterfall, by_id: Mapping[str, Record], samples: Mapping[str, Record]
) -> Iterator[doc.Bar]:
    widest = max((level.value or 0.0 for level in each.levels), default=0.0)
    bands = [level.expected[1] for level in each.levels if level.expected]
    widest = max([widest, *(min(high, 1.25 * widest) for high in bands)]) or 1.0
    above = ""
    for level in each.levels:
        record = by_id.get(level.record or "")
        kind = "published" if level.kind is Kind.BASELINE else str(level.kind)
        bar = doc.Bar(
            name=level.name,
            value=_level_value(level),
            has_value=level.value is not None,
            length=(level.value or 0.0) / widest,
            kind="muted" if level.note else kind,
            note=level.note or "",
            source=level.provenance,
            details=trace(record, samples) if record is not None else (),
        )
        yield _with_gap(_with_band(bar, level, widest), level, above, widest)
        above = level.name if level.value else above


def _level_value(level: Level) -> str:
    """As progress has it: a noisy number is the least that the device does."""
    if level.value is None:
        return "none"
    is_least = (level.note or "").startswith("noisy")
    return f"{'at least ' if is_least else ''}{format_quantity(level.value, level.unit)}"


def _with_band(bar: doc.Bar, level: Level, widest: float) -> doc.Bar:
    """The bar with what was expected of it."""
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
    """The bar with what is lost from its ceiling, named where it is not the level ``above``."""
    if (gap := level.gap) is None:
        return bar
    of = "" if level.ceiling == above else f" of {level.ceiling.lower()}"
    return dataclasses.replace(
        bar,
        lost=max(0.0, -gap.amount / widest),
        gap=signed(gap.amount, gap.unit),
        share=signed_share(gap.share) + of,
        direction="level" if abs(gap.share) < CLOSE else "down" if gap.share < 0 else "up",
        cause=gap.cause,
        parts=tuple(
            (signed(-share.amount, gap.unit), share.name)
            for share in gap.shares
            if abs(share.part) >= TINY
        ),
        fix=gap.next,
    )


def _findings(view: RunView, found: RunSummary) -> Iterator[doc.Block]:
    if found.findings:
        items = []
        for finding in found.findings:
            label, tone = _SEVERITY[finding.severity]
            item = doc.Item(text=finding.evidence, fix=finding.fix, label=label, tone=tone)
            items.append(item)
        number = Counter(item.label.lower() for item in items)
        labels = [label.lower() for label, _ in _SEVERITY.values()]
        counts = ", ".join(counted(number[label], label) for label in labels if number[label])
        yield doc.Section("Findings", (doc.Findings(tuple(items)),), counts)
    elif view.verdict is not None:
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
            doc.Group("text", tuple(outliers) or (doc.Paragraph("  None is an outlier."),)),
            doc.Group("page", (doc.Group("card", (_peer_table(comparable, labels),)),)),
        ),
        "Equal cards should give equal numbers. The deviation is from the other cards' median.",
    )


def _peer_table(groups: Sequence[PeerGroup], heads: Sequence[str]) -> doc.Table:
    """A row a case, a column a device."""

    def device(head: str) -> doc.Shown[PeerGroup]:
        number = head.partition(". ")[0]

        def cell(group: PeerGroup) -> doc.Cell:
            peer = next((p for p in group.peers if p.label.partition(". ")[0] == number), None)
            if peer is None:
                return doc.Cell("")
            deviation = signed_share(peer.deviation) if abs(peer.deviation) >= 0.005 else ""
            return doc.Cell(
                format_quantity(peer.value, group.unit),
                "bad" if peer.is_outlier else "",
                f"outlier {deviation}" if peer.is_outlier else deviation,
            )

        return doc.column(head, cell)

    return doc.table(groups, doc.words("case", lambda group: group.name), *map(device, heads))


# ---- all points


def _points(view: RunView, everything: Sequence[Row]) -> Iterator[doc.Block]:
    """Every point with its provenance on a page; in text their number and what is wrong."""
    seen = [row for row in everything if row.measured is not None]
    if not seen:
        note = "There are none: the run holds no measured point."
        yield doc.Group("page", (doc.Section("All points", (), note),))
        return
    samples, names = attempts(view), name_devices(devices(seen))
    # What went wrong is never what a full table leaves out.
    shown = {id(row) for row in sorted(seen, key=lambda row: not row.note)[:MAX_ROWS]}
    folds, lines = [], []
    muted: dict[str, None] = {}
    explained = {BENCHMARK} if readable(view) else set()  # each training's own line says it
    for name in dict.fromkeys(row.benchmark for row in seen):
        own = [row for row in seen if row.benchmark == name]
        chosen = sorted((row for row in own if id(row) in shown), key=_table_order)
        summary = _states([row.measured for row in own if row.measured])
        table = _point_table(chosen, samples, names)
        folds.append(
            doc.Section(name, (table,), summary, "open" if len(chosen) <= 24 else "closed")
        )
        lines.append(doc.Paragraph(f"{name}: {summary}"))
        for row in (row for row in chosen if row.note and name not in explained):
            muted[f"  {_label(row)}, {names[row.device, row.index]}: {row.note}"] = None
    left = len(seen) - len(shown)
    note = "Open a line for its provenance: samples, formula, workers, clocks, conditions, source."
    note += f" {counted(left, 'more point')} in the run's records.jsonl." if left else ""
    yield doc.Group("page", (doc.Section("All points", tuple(folds), note),))
    lines += [doc.Paragraph(text, "dim") for text in itertools.islice(muted, _MAX_STATES)]
    if len(muted) > _MAX_STATES:
        lines.append(doc.Paragraph(f"  and {len(muted) - _MAX_STATES} more", "dim"))
    yield doc.Group("text", (doc.Section("Points", tuple(lines)),))


def _table_order(row: Row) -> tuple[object, ...]:
    """Kinds of case together, by size, then device beside device."""
    sizes = [
        row.case.get(name)
        for name in ("seq_len", "batch_size", "num_elements", "bytes", "m", "k", "n")
    ]
    numbers = [size if isinstance(size, int) else 0 for size in sizes]
    family = kind_text(row.benchmark, row.case)
    where = -1 if row.index is None else row.index
    return dtype_order(str(dtype_of(row.case))), family, numbers, where, row.count


def _point_table(
    chosen: Sequence[Row], samples: Mapping[str, Record], names: Mapping[Device, str]
) -> doc.Table:
    pairs = [(row, row.measured) for row in chosen if row.measured is not None]

    def device(pair: tuple[Row, Record]) -> str:
        row, record = pair
        text = names[row.device, row.index]
        text += ", published" if record.kind is Kind.BASELINE else ""
        return text if row.count == 1 else f"{text}, {row.count} at once"

    def value(pair: tuple[Row, Record]) -> str:
        row, record = pair
        return "no value" if record.value is None else format_quantity(record.value, row.unit)

    def spread(pair: tuple[Row, Record]) -> str:
        record = pair[1]
        if record.interval is None or not record.value:
            return ""
        low, high = record.interval
        return f"± {format_share((high - low) / 2.0 / abs(record.value))}"

    def of_claim(pair: tuple[Row, Record]) -> str:
        value, limit = pair[1].value, pair[1].limit
        if value is None or limit is None or not limit.value:
            return ""
        return format_share(value / limit.value)

    def expected(pair: tuple[Row, Record]) -> str:
        interval = pair[0].predicted.interval if pair[0].predicted else None
        return range_text(*interval, pair[0].unit) if interval else ""

    return doc.table(
        pairs,
        doc.words("case", lambda pair: _label(pair[0])),
        doc.words("device", device),
        doc.column("value", value),
        doc.column("interval", spread),
        doc.column("of claim", of_claim),
        doc.column("expected", expected),
        line=lambda pair, cells: doc.Line(
            cells,
            tone="dim" if pair[0].note else "",
            note=pair[0].note or "",
            details=trace(pair[1], samples, pair[0].predicted),
        ),
    )


def _label(row: Row) -> str:
    """The case, and what of it was measured where the unit alone does not say it."""
    metric = "" if row.metric in ("flop_rate", "byte_rate") else metric_text(row.metric)
    return ", ".join(part for part in (case_text(row.benchmark, row.case), metric) if part)


def metric_text(metric: str) -> str:
    """``optimizer time`` for ``time.optimizer``, ``MFU`` for ``mfu``."""
    whole, _, part = metric.partition(".")
    text = f"{part} {whole}" if part else whole
    return text.upper() if text in ("mfu", "hfu") else text.replace("_", " ")


def _states(records: Sequence[Record]) -> str:
    """``41 points, 3 noisy, 2 skipped``: a case on a device, whatever was derived of its times."""
    cases = {(r.key[:3], r.key[4:], r.device_index): r for r in reversed(records)}
    points = list(cases.values())
    states = Counter(str(p.status) for p in points if p.status is not Status.OK)
    noisy = sum(p.disturbed is not None for p in points if p.status is Status.OK)
    parts = [counted(len(points), "point"), *([f"{noisy} noisy"] if noisy else [])]
    return ", ".join(parts + [f"{n} {state}" for state, n in sorted(states.items())])
