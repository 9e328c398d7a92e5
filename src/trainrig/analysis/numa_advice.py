"""Which binding to NUMA nodes to use, from what each of them gave: torchrun's and numactl's words.

Bound is called better, or worse, only where the whole 95 % interval of one is clear of the other's:
what the two workers of a point differ by is in neither.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from trainrig.analysis.best import valid_value, value_text
from trainrig.benchmarks.numa import ALL, ANY, OWN, node_in, node_text
from trainrig.benchmarks.spec import Role, role_of
from trainrig.record import Record
from trainrig.stats import grouped
from trainrig.units import format_quantity, format_share

Rates = Mapping[tuple[str, str, str], Record]
"""Direction, processors and memory → their point."""


def numa_points(records: Iterable[Record]) -> list[Record]:
    """Return the points of rates by node."""
    return [
        record for record in records if record.is_point and role_of(record.benchmark) is Role.NUMA
    ]


def advice(records: Iterable[Record]) -> Iterator[str]:
    """Yield a sentence or two for the host, and one for each GPU."""
    devices = grouped(numa_points(records), lambda record: record.device_index)
    for index, points in sorted(
        devices.items(), key=lambda pair: -1 if pair[0] is None else pair[0]
    ):
        rates = {
            (str(p.case.get("direction")), str(p.case.get("cpus")), str(p.case.get("memory"))): p
            for p in points
        }
        nodes = sorted({n for _, cpus, _ in rates if (n := node_in(cpus)) is not None})
        if len(nodes) == 1 and index is None:
            yield (
                f"One NUMA node (node {nodes[0]}): all memory is equally far from all processors. "
                "Neither numactl nor torchrun --numa-binding has anything to choose here; "
                "trainrig train --bind still gives ranks without GPUs cores of their own."
            )
        elif len(nodes) > 1:
            yield from (
                _host_advice(rates, nodes) if index is None else _gpu_advice(rates, nodes, index)
            )


def _host_advice(rates: Rates, nodes: Sequence[int]) -> Iterator[str]:
    names = [node_text(node) for node in nodes]
    ratios = [
        (far / near, first, second)
        for first in names
        for second in names
        if first != second
        and (near := _value(rates.get(("copy", first, first))))
        and (far := _value(rates.get(("copy", first, second))))
    ]
    if ratios:
        share, first, second = min(ratios)
        if share < 1.0:
            yield (
                f"Memory of {second} gives the processors of {first} {format_share(share)} of what "
                "their own node's gives."
            )
        else:
            yield f"Memory of {second} gives the processors of {first} no less than their own."
    bound, unbound = rates.get(("copy", ALL, OWN)), rates.get(("copy", ANY, ANY))
    if (order := _order_of(bound, unbound)) is None:
        return
    both = f"{_text(bound)} bound, {_text(unbound)} unbound"
    commands = "; ".join(
        f"numactl --cpunodebind={node} --membind={node} COMMAND" for node in nodes[:2]
    )
    if order > 0:
        more = ", and so on" if len(nodes) > 2 else ""
        yield (
            f"Bind one process, or a group of ranks, to each node: {both}. {commands}{more}. "
            "Of ranks without GPUs `trainrig train --bind` does it; torchrun --numa-binding=node "
            "binds ranks with GPUs."
        )
    elif order < 0:
        yield f"Leave it unbound: {both}. numactl --interleave=all is for one process on all nodes."
    else:
        yield f"Binding all nodes at once cannot be told from no binding: {both}."


def _gpu_advice(rates: Rates, nodes: Sequence[int], index: int) -> Iterator[str]:
    """Yield the sentence about the node from which both directions of a GPU are fastest."""
    pairs = {
        node: [rates.get((way, node_text(node), node_text(node))) for way in ("h2d", "d2h")]
        for node in nodes
    }
    whole = {node: both for node, both in pairs.items() if all(_value(rate) for rate in both)}
    if len(whole) < 2:
        return
    best = max(whole, key=lambda node: sum(_value(rate) for rate in whole[node]))
    others = [both for node, both in whole.items() if node != best]
    clear = [
        both
        for both in others
        if any(_order_of(a, b) == 1 for a, b in zip(whole[best], both, strict=True))
        and not any(_order_of(a, b) == -1 for a, b in zip(whole[best], both, strict=True))
    ]
    there = ", ".join(map(_text, whole[best]))
    if len(clear) == len(others):
        yield (
            f"GPU {index}: node {best} ({there} to it and from it). torchrun --numa-binding=node "
            f"chooses the node that the firmware names; by hand numactl --cpunodebind={best} "
            f"--membind={best} COMMAND."
        )
    else:
        yield f"GPU {index}: its link cannot tell the nodes apart ({there} from node {best})."


def _value(record: Record | None) -> float:
    """Return a record's value; 0 without one."""
    return valid_value(record)


def _text(record: Record | None) -> str:
    return value_text(record) if record is not None else format_quantity(0.0, "B/s")


def _order_of(first: Record | None, second: Record | None) -> int | None:
    """Return 1 where the first is faster, -1 where the second is, 0 where it cannot be told."""
    if first is None or second is None or not first.interval or not second.interval:
        return None
    if first.interval[0] > second.interval[1]:
        return 1
    return -1 if first.interval[1] < second.interval[0] else 0
