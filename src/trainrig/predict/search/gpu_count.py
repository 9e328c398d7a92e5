"""How many GPUs train so many tokens in so many days: the search turned round.

Counts are tried in order: halves of one node, then nodes in steps of a half (1, 2, 3, 4, 6, 8, 12,
…), each with the best layout that fits.  Between the last count that is too slow and the first
that is fast enough, the nodes in between are tried as well.  Counts that could not do it at the
peak of their chips are passed over.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from trainrig.errors import UsageError
from trainrig.predict.prediction import DAY
from trainrig.predict.scenario import Cluster
from trainrig.predict.search import Ranking, search
from trainrig.predict.search.space import Space
from trainrig.workload.flops import model_flops

MOST_GPUS = 1 << 16
_BETWEEN = 12
"""Counts that are tried between too slow and fast enough."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The fewest GPUs that are fast enough."""

    cluster: Cluster
    found: Ranking
    days: float
    """That the best layout takes."""
    tried: int
    """Counts of GPUs that were searched."""


def gpus_needed(space: Space, cluster: Cluster, tokens: float, days: float) -> Budget:
    """The fewest GPUs on which the best layout trains ``tokens`` in ``days``.

    Raises UsageError where no count up to MOST_GPUS does.
    """
    slow, tried = 0, 0
    best: Budget | None = None
    quickest: Budget | None = None
    for count in _counts(cluster.gpus_per_node):
        if _least_days(space, cluster, count, tokens) > days:
            slow = count
            continue
        tried += 1
        there = _at(space, cluster, count, tokens)
        if there is not None and there.days <= days:
            best = there
            break
        if there is not None:
            slow = count
            quickest = there if quickest is None or there.days < quickest.days else quickest
    if best is None:
        raise _never(space, tokens, days, quickest)
    for count in _between(slow, best.cluster):
        tried += 1
        there = _at(space, cluster, count, tokens)
        if there is not None and there.days <= days:
            best = there
            break
    return Budget(cluster=best.cluster, found=best.found, days=best.days, tried=tried)


def _never(space: Space, tokens: float, days: float, quickest: Budget | None) -> UsageError:
    """That no number of GPUs is fast enough, and how fast it gets."""
    reached = ""
    if quickest is not None:
        reached = f"; {quickest.cluster.gpus} take {quickest.days:.3g} days"
    return UsageError(
        f"no number of GPUs up to {MOST_GPUS} trains {tokens:.3g} tokens in {days:g} days "
        f"with a global batch of {space.global_batch}{reached}",
        "more days, a larger --global-batch, or a faster chip",
    )


def _counts(per_node: int) -> Iterator[int]:
    """1, 2, 4, … within a node; whole nodes beyond."""
    count = 1
    while count < per_node:
        yield count
        count *= 2
    nodes = 1
    while nodes * per_node <= MOST_GPUS:
        yield nodes * per_node
        if nodes > 1 and 3 * nodes // 2 * per_node <= MOST_GPUS:
            yield 3 * nodes // 2 * per_node
        nodes *= 2


def _between(slow: int, best: Cluster) -> list[int]:
    """Whole nodes between a count that is too slow and one that is not, fewest first."""
    step = best.gpus_per_node if slow >= best.gpus_per_node else 1
    every = list(range(slow + step, best.gpus, step))
    return every[:: max(1, -(-len(every) // _BETWEEN))]


def _least_days(space: Space, cluster: Cluster, gpus: int, tokens: float) -> float:
    """Days at the claimed peak: a lower bound."""
    peak = cluster.rates().peak(space.base.precision)
    if peak is None:
        return 0.0
    flops = model_flops(
        space.shape, 1, space.base.seq_len, target_seq_len=space.base.target_seq_len
    )
    return tokens / space.base.seq_len * flops / (peak * gpus) / DAY


def _at(space: Space, cluster: Cluster, gpus: int, tokens: float) -> Budget | None:
    """The best layout on so many GPUs, None where none makes the batch or fits."""
    there = cluster.replace(gpus=gpus, gpus_per_node=min(gpus, cluster.gpus_per_node))
    base = space.base.replace(gpus=gpus, gpus_per_node=there.gpus_per_node)
    try:
        found = search(space.replace(base=base), there.rates(), top=2)
    except UsageError:  # no layout makes the global batch
        return None
    if not found.best[0].fits:
        return None
    steps = tokens / (space.global_batch * space.base.seq_len)
    return Budget(cluster=there, found=found, days=steps * found.best[0].time / DAY, tried=1)
