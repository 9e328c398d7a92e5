"""How many GPUs train so many tokens in so many days: the search turned round.

Counts are tried in order: 1, 2, 4, … of one server or tray, 1, 2, 4, … trays of a node, then nodes
in steps of a half (1, 2, 3, 4, 6, 8, 12, …), each with the best layout that fits.  Between the
last count that is too slow and the first that is fast enough, those in between are tried as well.
Counts that could not do it at the peak of their chips are passed over.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

from trainrig.errors import UsageError
from trainrig.prediction.cluster import Cluster
from trainrig.prediction.search import search
from trainrig.prediction.search.space import Space
from trainrig.units import DAY
from trainrig.workload.flops import model_flops

MOST_GPUS = 1 << 16
_BETWEEN = 12
"""Counts that are tried between too slow and fast enough."""


_BESIDE = 4
"""Counts that are tried for a neighbour: not every one divides the batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The fewest GPUs that are fast enough."""

    cluster: Cluster
    days: float
    """That the best layout takes."""
    tried: int = 1
    """Counts of GPUs that were searched."""
    neighbours: tuple[Budget, ...] = ()
    """The next fewer and the next more GPUs that make the batch, fewest first."""


def gpus_needed(space: Space, cluster: Cluster, tokens: float, days: float) -> Budget:
    """The fewest GPUs on which the best layout trains ``tokens`` in ``days``.

    Raises UsageError where no count up to MOST_GPUS does.
    """
    slow, tried = 0, 0
    quickest: Budget | None = None
    for count in _counts(cluster.tray, cluster.gpus_per_node):
        if _least_days(space, cluster, count, tokens) > days:
            slow = count
            continue
        tried += 1
        there = _at(space, cluster, count, tokens)
        if there is not None and (quickest is None or there.days < quickest.days):
            quickest = there
        if there is not None and there.days <= days:
            break
        slow = count if there is not None else slow
    if quickest is None or quickest.days > days:
        reached = ""
        if quickest is not None:
            reached = f"; {quickest.cluster.gpus} take {quickest.days:.3g} days"
        raise UsageError(
            f"no number of GPUs up to {MOST_GPUS} trains {tokens:.3g} tokens in {days:g} days "
            f"with a global batch of {space.global_batch}{reached}",
            "more days, a larger --global-batch, or a faster chip",
        )
    best = quickest
    for count in _between(slow, best.cluster.gpus, cluster):
        tried += 1
        there = _at(space, cluster, count, tokens)
        if there is not None and there.days <= days:
            best = there
            break
    return replace(best, tried=tried, neighbours=_neighbours(space, cluster, best, tokens))


def _neighbours(space: Space, cluster: Cluster, best: Budget, tokens: float) -> tuple[Budget, ...]:
    """What the nearest other counts take: any within a tray, whole trays, whole nodes beyond."""
    gpus = best.cluster.gpus
    fewer = [gpus - n * _step(gpus - 1, cluster) for n in range(1, _BESIDE + 1)]
    more = [gpus + n * _step(gpus, cluster) for n in range(1, _BESIDE + 1)]
    found: list[Budget] = []
    for counts in (fewer, more):
        there = (_at(space, cluster, count, tokens) for count in counts if count > 0)
        found += itertools.islice((one for one in there if one is not None), 1)
    return tuple(found)


def _counts(tray: int, per_node: int) -> Iterator[int]:
    """1, 2, 4, … within a tray, then of trays within a node; whole nodes beyond."""
    count = 1
    while count < per_node:
        yield count
        count = 2 * count if 2 * count < tray or count >= tray else tray
    nodes = 1
    while nodes * per_node <= MOST_GPUS:
        yield nodes * per_node
        if nodes > 1 and 3 * nodes // 2 * per_node <= MOST_GPUS:
            yield 3 * nodes // 2 * per_node
        nodes *= 2


def _between(slow: int, enough: int, cluster: Cluster) -> list[int]:
    """Whole nodes or trays between counts that are too slow and fast enough, fewest first."""
    step = _step(slow, cluster)
    every = list(range(slow + step, enough, step))
    return every[:: max(1, -(-len(every) // _BETWEEN))]


def _step(gpus: int, cluster: Cluster) -> int:
    """GPUs that are added to so many: one within a tray, a tray within a node, or a node."""
    if gpus >= cluster.gpus_per_node:
        return cluster.gpus_per_node
    return cluster.tray if gpus >= cluster.tray else 1


def _least_days(space: Space, cluster: Cluster, gpus: int, tokens: float) -> float:
    """Days at the claimed peak: a lower bound.

    So of causal attention what is seen counts, and forward alone where most weights are frozen:
    nothing but adapters needs gradients of weights, nor of inputs what lies before the first.
    """
    peak = cluster.rates().peaks.get(space.base.precision.compute)
    if peak is None:
        return 0.0
    flops = model_flops(
        space.shape,
        1,
        space.base.batch.seq_len,
        target_seq_len=space.base.batch.target_seq_len,
        half=True,
    )
    least = flops / 3.0 if space.base.lora.rank else flops
    return tokens / space.base.batch.seq_len * least / (peak * gpus) / DAY


def _at(space: Space, cluster: Cluster, gpus: int, tokens: float) -> Budget | None:
    """The best layout on so many GPUs, None where none makes the batch or fits."""
    there = cluster.on(gpus)
    try:
        best = search(space.on(there), there.rates(), top=1).best[0]
    except UsageError:  # no layout makes the global batch
        return None
    steps = tokens / (space.global_batch * space.base.batch.seq_len)
    return Budget(cluster=there, days=steps * best.time / DAY) if best.fits else None
