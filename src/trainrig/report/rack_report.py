"""Several nodes' runs as one page: who is an outlier, every node in a line, node by metric.

The reports of the nodes lie folded below.  Which nodes are outliers is `analysis.rack`'s to say.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence

from trainrig.analysis.best import AT_LEAST, bound_of, with_bound_sign
from trainrig.analysis.first_screen import KeyNumber
from trainrig.analysis.rack import (
    LIMIT,
    MIN_NODES,
    Node,
    NodeValue,
    Rack,
    RackMetric,
    shown_metrics,
)
from trainrig.analysis.run_summary import RunSummary
from trainrig.report import document as doc
from trainrig.report.document import column, table
from trainrig.stats import median
from trainrig.units import (
    counted,
    format_count,
    format_quantity,
    format_share,
    si_scale,
    signed_share,
)

MOST_METRICS = 12
MOST_NAMED = 8
RULE = (
    f"Behind: more than {LIMIT:g} robust standard deviations (1.4826 MAD) and 7 % below the median "
    f"of {MIN_NODES} or more that are not noisy (these are marked {AT_LEAST}). Of each node its "
    "slowest device; spread: one robust standard deviation."
)


def rack_blocks(rack: Rack, summaries: Sequence[RunSummary]) -> Iterator[doc.Block]:
    """Yield the head, the nodes, and node by metric."""
    yield doc.Group("card", tuple(_first_blocks(rack, summaries)))
    yield doc.Section("Nodes", (_nodes_table(rack, summaries),))
    metrics = shown_metrics(rack.metrics, MOST_METRICS)
    if metrics:
        num_hidden = len(rack.metrics) - len(metrics)
        notes = [f"{counted(num_hidden, 'more metric')}: --csv has all"] if num_hidden else []
        metrics_table = _metrics_table(rack, metrics, notes)
        yield doc.Section("Node by metric", (metrics_table,), RULE)
    else:
        yield doc.Paragraph("The runs have no case in common.", "warn")


def _first_blocks(rack: Rack, summaries: Sequence[RunSummary]) -> Iterator[doc.Block]:
    num, behind = len(rack.nodes), rack.behind()
    devices = list(dict.fromkeys(node.devices for node in rack.nodes))
    title = (
        f"{counted(num, rack.noun)}: {'; '.join(devices[:3])}{' ...' if len(devices) > 3 else ''}"
    )
    failed = sum(node.verdict == "FAIL" for node in rack.nodes)
    tail = f"; {failed} of {num} runs failed by themselves" if failed else ""
    if behind:
        names = ", ".join(list(behind)[:MOST_NAMED])
        reason = f"{counted(len(behind), rack.noun)} behind the others: {names}{tail}"
        yield doc.Badge(title, f"{len(behind)} BEHIND", reason, "bad")
        farthest, metrics_behind = min(
            behind.items(), key=lambda pair: pair[1][0][1].deviation or 0.0
        )
        far = format_share(-(metrics_behind[0][1].deviation or 0.0))
        text = f"{farthest} is {far} below the median of {num}."
        yield doc.Paragraph(text, "strong")
        yield from _tiles(rack, summaries)
        items = tuple(
            _node_item(name, metrics_behind)
            for name, metrics_behind in list(behind.items())[:MOST_NAMED]
        )
        yield doc.Findings(items, "Who is behind")
    elif rack.can_judge:
        metrics = counted(_judged(rack), "metric")
        reason = f"no {rack.noun} is behind the others in any of {metrics}{tail}"
        yield doc.Badge(title, "EVEN", reason, "warn" if failed else "good")
        yield doc.Paragraph(f"All {num} {rack.noun}s agree.", "strong")
        yield from _tiles(rack, summaries)
    else:
        reason = f"outliers need {MIN_NODES} {rack.noun}s with one and the same case{tail}"
        yield doc.Badge(title, "CANNOT TELL", reason, "warn")
        yield from _tiles(rack, summaries)


def _tiles(rack: Rack, summaries: Sequence[RunSummary]) -> Iterator[doc.Block]:
    """Yield the middle node's key numbers, and between which ends the nodes lie."""
    numbers: dict[str, list[KeyNumber]] = {}
    for summary in summaries:
        for number in summary.key_numbers:
            numbers.setdefault(number.name, []).append(number)
    tiles = []
    for name, node_numbers in list(numbers.items())[:4]:
        values = [number.value for number in node_numbers]
        is_least = any(number.is_least for number in node_numbers)
        middle = dataclasses.replace(node_numbers[0], value=median(values), is_least=is_least)
        ends = [
            _key_text(dataclasses.replace(middle, value=end, is_least=False))
            for end in (min(values), max(values))
        ]
        notes = [f"median of {counted(len(node_numbers), rack.noun)}"]
        if ends[0] != ends[1]:
            notes.append(f"{ends[0]} to {ends[1]}")
        tiles.append(doc.Tile(name, _key_text(middle), tuple(notes)))
    if tiles:
        yield doc.Tiles(tuple(tiles))


def _node_item(name: str, deviating: Sequence[tuple[RackMetric, NodeValue]]) -> doc.Item:
    metric, node_value = deviating[0]
    far = f"{metric_text(metric)}: {format_quantity(node_value.value or 0.0, metric.unit)}, "
    far += f"{signed_share(node_value.deviation or 0.0)} from the median"
    device = node_value.record.device_index if node_value.record is not None else None
    where = f", GPU {device}" if device is not None else ""
    text = f"behind in {counted(len(deviating), 'metric')}; farthest {far}{where}"
    command = "trainrig burn" + (f" --devices {device}" if device is not None else "")
    fix = "On that node: heavy work with every sensor watched, then its slot, power and cooling"
    return doc.Item(label=name, text=text, tone="bad", fix=fix, command=command)


_CUBE = re.compile(r"\b(\d+) × \1 × \1\b")


def metric_text(metric: RackMetric) -> str:
    """Return ``bf16 8192³``: short, for the heads of columns."""
    return _CUBE.sub(lambda shape: f"{shape[1]}³", metric.what)


def _judged(rack: Rack) -> int:
    return sum(metric.is_judged for metric in rack.metrics)


def _nodes_table(rack: Rack, summaries: Sequence[RunSummary]) -> doc.Table:
    behind = {name: len(metrics) for name, metrics in rack.behind().items()}
    names = list(
        dict.fromkeys(number.name for summary in summaries for number in summary.key_numbers)
    )
    pairs = list(zip(rack.nodes, summaries, strict=True))

    def key_number(name: str) -> doc.Shown[tuple[Node, RunSummary]]:
        def found(pair: tuple[Node, RunSummary]) -> KeyNumber | None:
            return next((number for number in pair[1].key_numbers if number.name == name), None)

        return column(name.lower(), found, _key_text)

    return table(
        pairs,
        column(rack.noun, lambda pair: pair[0].name, kind="words"),
        column(
            "", lambda pair: doc.Cell(pair[0].verdict, _TONES.get(pair[0].verdict, "")), kind="code"
        ),
        column(
            "behind in", lambda pair: behind.get(pair[0].name), lambda n: doc.Cell(str(n), "bad")
        ),
        *map(key_number, names[:4]),
    )


_TONES: dict[str, doc.Tone] = {"PASS": "good", "FAIL": "bad", "INCOMPLETE": "warn"}


def _key_text(number: KeyNumber) -> str:
    if number.unit == "token/s":
        text = f"{format_count(number.value)} tokens/s"
    else:
        text = format_quantity(number.value, number.unit)
    return with_bound_sign(text, AT_LEAST if number.is_least else "")


def _metrics_table(rack: Rack, metrics: Sequence[RackMetric], notes: Sequence[str]) -> doc.Table:
    """A line a node, a column a metric in one unit, and below them the median and the spread."""

    def cell(metric: RackMetric, node_value: NodeValue) -> doc.Cell:
        if node_value.record is None:
            return doc.Cell("-", "dim")
        if not node_value.value:
            return doc.Cell(str(node_value.record.status), "warn")
        text = with_bound_sign(_number(metric, node_value.value), bound_of(node_value.record))
        small = (
            signed_share(node_value.deviation)
            if node_value.is_outlier and node_value.deviation
            else ""
        )
        return doc.Cell(text, "bad" if node_value.is_outlier else "", small)

    heads = [doc.Column(f"{metric_text(metric)}, {_scale(metric)[1]}") for metric in metrics]
    lines: list[tuple[str | doc.Cell, ...]] = [
        (node.name, *(cell(metric, metric.values[n]) for metric in metrics))
        for n, node in enumerate(rack.nodes)
    ]
    middle = [doc.Cell(_number(metric, metric.median), "strong") for metric in metrics]
    spread = [
        doc.Cell("" if metric.spread is None else format_share(metric.spread)) for metric in metrics
    ]
    return doc.Table(
        (doc.Column(rack.noun, "code"), *heads),
        (*lines, (doc.Cell("median", "strong"), *middle), ("spread", *spread)),
        notes=tuple(notes),
    )


def _number(metric: RackMetric, value: float | None) -> str:
    return "-" if value is None else format_quantity(value / _scale(metric)[0], "")


def _scale(metric: RackMetric) -> tuple[float, str]:
    values = [value.value or 0.0 for value in metric.values]
    return si_scale(metric.median or max(values), metric.unit)
