"""Every point of a run with what was expected of it, and where its number comes from."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from trainrig.analysis.best import bound_of, claim_word, with_bound_sign
from trainrig.analysis.rows import Device, Row, attempts, name_devices
from trainrig.analysis.training_results import BENCHMARK, readable_results
from trainrig.analysis.waterfall import devices, dtype_order
from trainrig.benchmarks.spec import Role, case_text, kind_text
from trainrig.record import Kind, Record, RunView, Status, dtype_of
from trainrig.report import document as doc
from trainrig.report.provenance import trace
from trainrig.units import (
    counted,
    format_count,
    format_memory,
    format_quantity,
    format_share,
    range_text,
)

MAX_ROWS = 1000
"""Points in the page's tables; a page stays under 2 MB and opens at once on a phone."""
MISS = 2.0
"""A prediction that is off by this factor is marked."""
_MAX_STATES = 12
_OF_MATMUL = "mfu_of_matmul"
"""The metric that is a share of a measured ceiling."""


def point_blocks(view: RunView, everything: Sequence[Row]) -> Iterator[doc.Block]:
    """Yield every point with its provenance on a page; in text their number and what is wrong."""
    measured_rows = [row for row in everything if row.measured is not None]
    moved = {_place(row) for row in measured_rows if row.metric == "byte_rate"}
    # What a stream does is bytes; its FLOPs are in the records.
    measured_rows = [
        row
        for row in measured_rows
        if (row.role, row.metric) != (Role.STREAM, "flop_rate") or _place(row) not in moved
    ]
    if not measured_rows and readable_results(view):  # its trainings stand in tables of their own
        return
    if not measured_rows:
        note = "There are none: the run holds no measured point."
        yield doc.Group("page", (doc.Section("All points", (), note),))
        return
    samples, names = attempts(view), name_devices(devices(measured_rows))
    # What went wrong is never what a full table leaves out.
    shown_ids = {id(row) for row in sorted(measured_rows, key=lambda row: not row.note)[:MAX_ROWS]}
    folds, lines = [], []
    muted: dict[str, None] = {}
    explained = {BENCHMARK} if readable_results(view) else set()  # each training's own line says it
    for name in dict.fromkeys(row.benchmark for row in measured_rows):
        benchmark_rows = [row for row in measured_rows if row.benchmark == name]
        chosen = sorted((row for row in benchmark_rows if id(row) in shown_ids), key=_table_order)
        summary = _states([row.measured for row in benchmark_rows if row.measured])
        table = _point_table(chosen, samples, names)
        folds.append(
            doc.Section(name, (table,), summary, "open" if len(chosen) <= 24 else "closed")
        )
        lines.append(doc.Paragraph(f"{name}: {summary}"))
        for row in (row for row in chosen if row.note and name not in explained):
            # Of one case several metrics may be derived: what went wrong went wrong once.
            case = case_text(row.benchmark, row.case)
            muted[f"  {case}, {names[row.device, row.index]}: {row.note}"] = None
    num_hidden = len(measured_rows) - len(shown_ids)
    note = "Open a line for its provenance: samples, formula, workers, clocks, conditions, source."
    note += (
        f" {counted(num_hidden, 'more point')} in the run's records.jsonl." if num_hidden else ""
    )
    yield doc.Group("page", (doc.Section("All points", tuple(folds), note),))
    lines += [doc.Paragraph(f"  {text}", "warn") for text in _misses(measured_rows)]
    lines += [doc.Paragraph(text, "dim") for text in itertools.islice(muted, _MAX_STATES)]
    if len(muted) > _MAX_STATES:
        lines.append(doc.Paragraph(f"  and {len(muted) - _MAX_STATES} more", "dim"))
    yield doc.Group("text", (doc.Section("Points", tuple(lines)),))


def _place(row: Row) -> tuple[object, ...]:
    """Case and device, whatever was measured of them."""
    return row.benchmark, row.device, row.index, row.count, tuple(row.case.items())


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
    words = {claim_word(record) for _, record in pairs if record.limit is not None}
    ceiling_words = next(iter(words)) if len(words) == 1 else ""
    is_one = len({(row.device, row.index, row.count, record.kind) for row, record in pairs}) == 1

    def device(pair: tuple[Row, Record]) -> str:
        row, record = pair
        text = names[row.device, row.index]
        text += ", published" if record.kind is Kind.BASELINE else ""
        return text if row.count == 1 else f"{text}, {row.count} at once"

    def value(pair: tuple[Row, Record]) -> str:
        row, record = pair
        if record.value is None:
            return "no value"
        return with_bound_sign(_value_text(record.value, row), bound_of(record))

    def expected(pair: tuple[Row, Record]) -> str:
        interval = pair[0].predicted.interval if pair[0].predicted else None
        if interval and pair[0].unit == "B":
            return " to ".join(map(format_memory, interval))
        return range_text(*interval, pair[0].unit) if interval else ""

    def of_expected(pair: tuple[Row, Record]) -> str | doc.Cell:
        ratio = _share_of_expected(pair[0])
        if ratio is None:
            return ""
        return doc.Cell(f"{ratio:.2f} ×", "bad" if is_miss(ratio) else "")

    def line(pair: tuple[Row, Record], cells: tuple[str | doc.Cell, ...]) -> doc.Line:
        row, record = pair
        ratio = _share_of_expected(row)
        missed = "" if ratio is None or not is_miss(ratio) else _missed_text(ratio)
        return doc.Line(
            cells,
            tone="dim" if row.note else "",
            note="; ".join(filter(None, (row.note, missed))),
            details=trace(record, samples, row.predicted),
        )

    return doc.table(
        pairs,
        doc.words("case", lambda pair: _label(pair[0])),
        doc.words("device", lambda pair: "" if is_one else device(pair)),
        doc.column("value", value),
        doc.column("expected", expected),
        doc.column("of expected", of_expected),
        doc.column("interval", _spread),
        doc.column(f"of {ceiling_words}" if ceiling_words else "of claim", _share_of_claim),
        line=line,
    )


def _spread(pair: tuple[Row, Record]) -> str:
    record = pair[1]
    if record.interval is None or not record.value:
        return ""
    low, high = record.interval
    share = (high - low) / 2.0 / abs(record.value)
    # What may be off by more than all of it is off one way more than the other: its ends say so.
    return f"± {format_share(share)}" if share <= 1.0 else range_text(low, high, record.unit)


def _share_of_claim(pair: tuple[Row, Record]) -> str:
    value, limit = pair[1].value, pair[1].limit
    if value is None or limit is None or not limit.value:
        return ""
    return format_share(value / limit.value)


def _share_of_expected(row: Row) -> float | None:
    """Measured over predicted; None where one of them is not known."""
    measured, forecast = row.measured, row.predicted
    if measured is None or forecast is None or not forecast.value or measured.value is None:
        return None
    return measured.value / forecast.value


def is_miss(ratio: float) -> bool:
    """Return whether a prediction was off by `MISS` or more, either way."""
    return not 1.0 / MISS < ratio < MISS


def _missed_text(ratio: float) -> str:
    return f"{ratio:.2g} times what was predicted"


def _misses(everything: Sequence[Row]) -> Iterator[str]:
    """Yield a sentence for each prediction that was far off."""
    for row in everything:
        ratio = _share_of_expected(row)
        if ratio is not None and is_miss(ratio) and row.measured and row.measured.value:
            text = _value_text(row.measured.value, row)
            yield f"{_label(row)}: {text}, {_missed_text(ratio)}"


def _value_text(value: float, row: Row) -> str:
    if row.metric in ("mfu", "hfu"):
        return format_share(value)
    if row.metric == _OF_MATMUL:
        return format_share(value) if value <= 1.0 else "above its matmul: not judged"
    if row.unit in ("token/s", "sample/s"):
        return f"{format_count(value)} {row.unit.replace('/', 's/')}"
    return format_memory(value) if row.unit == "B" else format_quantity(value, row.unit)


def _label(row: Row) -> str:
    """Return the case, and what of it was measured where the unit alone does not say it."""
    metric = "" if row.metric in ("flop_rate", "byte_rate") else metric_text(row.metric)
    return ", ".join(part for part in (case_text(row.benchmark, row.case), metric) if part)


def metric_text(metric: str) -> str:
    """Return ``optimizer time`` for ``time.optimizer``, ``MFU`` for ``mfu``."""
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
