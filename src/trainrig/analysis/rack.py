"""Runs of several nodes beside each other: node by metric, and who is an outlier.

A metric is one case on one model of device; of a node's devices the slowest stands for the node,
since a job waits for it.  An outlier is judged by the median over nodes and the median absolute
deviation (MAD), which a few sick nodes do not move: a value is one where it is more than LIMIT
scaled MADs below the median and also more than `SIBLING_MARGIN` of it; 1.4826 MAD is a standard
deviation of normal values (Iglewicz and Hoaglin 1993, who take 3.5).  Equal nodes have a MAD near
0: it counts as LEAST_SPREAD of the median at least.  Below MIN_NODES values no outlier is called,
and noisy values are shown and not judged.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from trainrig.analysis.best import is_headline
from trainrig.analysis.rows import SIBLING_MARGIN, Row, at_path, rows
from trainrig.analysis.run_summary import device_names, verdict_of
from trainrig.benchmarks.spec import case_text, kind_text
from trainrig.record import Record, RunView, less_is_better
from trainrig.stats import grouped, median

MIN_NODES = 4
LIMIT = 3.5
"""Scaled MADs."""
LEAST_SPREAD = 0.01
_NORMAL = 1.4826
"""Standard deviations of a normal distribution in a MAD."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One machine's run."""

    name: str
    """The host's name, numbered where two runs have one; the run's where it is not known."""
    run: str
    devices: str
    verdict: str
    reason: str
    taken: str
    """Start of the run, UTC; empty where the run does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeValue:
    """Best value of one node in a metric, with its slowest device."""

    node: str
    record: Record | None
    """None: the node has no such case."""
    deviation: float | None = None
    """Relative distance from the median of the judged nodes, above 0 where it is better."""
    is_outlier: bool = False
    """True where the node is behind the others."""

    @property
    def value(self) -> float | None:
        """Value in the metric's unit."""
        return self.record.value if self.record is not None else None

    @property
    def is_judged(self) -> bool:
        """True where the node has a value that is not noisy."""
        return self.record is not None and self.record.is_usable


@dataclass(frozen=True, slots=True, kw_only=True)
class RackMetric:
    """One case on all nodes."""

    what: str
    """Description of the metric."""
    family: str
    """The kind of case; of each the one with the most nodes is shown."""
    benchmark: str
    metric: str
    unit: str
    device: str
    median: float | None
    """Over judged nodes; None where no node can be judged."""
    spread: float | None
    """A robust standard deviation over them, as a share of the median."""
    is_judged: bool
    """True where there are nodes enough to call an outlier."""
    values: tuple[NodeValue, ...]
    """One a node, in the nodes' order."""

    @property
    def outliers(self) -> tuple[NodeValue, ...]:
        """Return the nodes that are behind."""
        return tuple(value for value in self.values if value.is_outlier)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rack:
    """Several nodes' runs as one thing."""

    nodes: tuple[Node, ...]
    metrics: tuple[RackMetric, ...]
    """Metrics with outliers first, then in the order of the runs."""

    @property
    def outliers(self) -> tuple[tuple[RackMetric, NodeValue], ...]:
        """Return every value that is behind, the farthest first."""
        outliers = [(metric, value) for metric in self.metrics for value in metric.outliers]
        return tuple(sorted(outliers, key=lambda pair: pair[1].deviation or 0.0))

    def behind(self) -> dict[str, list[tuple[RackMetric, NodeValue]]]:
        """Return the outliers of each node, the farthest first."""
        return grouped(self.outliers, lambda pair: pair[1].node)

    @property
    def noun(self) -> str:
        """Return ``node``; ``run`` where all are of one host."""
        hosts = {node.name.partition(" #")[0] for node in self.nodes}
        return "node" if len(hosts) > 1 else "run"

    @property
    def can_judge(self) -> bool:
        """True where a metric has nodes enough."""
        return any(metric.is_judged for metric in self.metrics)


def rack_of(views: Sequence[RunView]) -> Rack:
    """Return several runs, node by metric."""
    nodes = tuple(_nodes(views))
    rows_by_key: dict[tuple[object, ...], dict[int, Row]] = {}
    for number, view in enumerate(views):
        for row in rows(view):
            if row.measured is not None:
                mine = rows_by_key.setdefault(row.key, {})
                if number not in mine or _is_behind(row, mine[number]):
                    mine[number] = row
    least = min(2, len(nodes))  # a single run's values are written as they are
    metrics = [_metric(members, nodes) for members in rows_by_key.values() if len(members) >= least]
    return Rack(nodes=nodes, metrics=tuple(sorted(metrics, key=lambda metric: not metric.outliers)))


def _nodes(views: Sequence[RunView]) -> Iterator[Node]:
    name_counts: dict[str, int] = {}
    for view in views:
        name = str(at_path(view.machine, "host", "hostname") or view.name)
        name_counts[name] = name_counts.get(name, 0) + 1
        verdict, reason = verdict_of(view)
        yield Node(
            name=name if name_counts[name] == 1 else f"{name} #{name_counts[name]}",
            run=view.name,
            devices=device_names(view),
            verdict=verdict,
            reason=reason,
            taken=next((r.started for r in view.records if r.started), "") or "",
        )


def _is_behind(row: Row, other: Row) -> bool:
    """Return whether a device is slower than another of its node; without a value it is last."""
    if not (row.value and other.value):
        return not row.value
    return row.value > other.value if less_is_better(row.unit) else row.value < other.value


def _metric(members: dict[int, Row], nodes: Sequence[Node]) -> RackMetric:
    first = next(iter(members.values()))
    records = [members[n].measured if n in members else None for n in range(len(nodes))]
    judged = [record.value or 0.0 for record in records if record is not None and record.is_usable]
    middle = median(judged) if judged else None
    enough = len(judged) >= MIN_NODES
    spread = _NORMAL * median([abs(value - middle) for value in judged]) if middle else 0.0
    limit = LIMIT * max(spread, LEAST_SPREAD * abs(middle or 0.0))
    sign = -1.0 if less_is_better(first.unit) else 1.0

    def value_of(node: Node, record: Record | None) -> NodeValue:
        if record is None or not record.value or not middle:
            return NodeValue(node=node.name, record=record)
        deviation = sign * (record.value / middle - 1.0)
        far = -deviation * middle > limit and deviation < -SIBLING_MARGIN
        is_outlier = far and enough and record.is_usable
        return NodeValue(node=node.name, record=record, deviation=deviation, is_outlier=is_outlier)

    return RackMetric(
        what=case_text(first.benchmark, first.case),
        family=kind_text(first.benchmark, first.case),
        benchmark=first.benchmark,
        metric=first.metric,
        unit=first.unit,
        device=first.device or "unknown device",
        median=middle,
        spread=spread / abs(middle) if middle and len(judged) > 1 else None,
        is_judged=enough,
        values=tuple(value_of(*pair) for pair in zip(nodes, records, strict=True)),
    )


def shown_metrics(metrics: Iterable[RackMetric], most: int) -> tuple[RackMetric, ...]:
    """Return one metric of each family: with outliers, or the one that most nodes have.

    Of equal ones the first metric of its case, then the fastest: small cases say more of launches
    than of a node.
    """
    best: dict[tuple[str, str], RackMetric] = {}

    def rank(metric: RackMetric) -> tuple[bool, int, bool, float]:
        num = sum(value.is_judged for value in metric.values)
        is_first = any(is_headline(value.record) for value in metric.values)
        fast = -(metric.median or 0.0) if less_is_better(metric.unit) else metric.median or 0.0
        return bool(metric.outliers), num, is_first, fast

    for metric in metrics:
        family = (metric.family, metric.device)
        if family not in best or rank(metric) > rank(best[family]):
            best[family] = metric
    return tuple(sorted(best.values(), key=lambda metric: not metric.outliers)[:most])
