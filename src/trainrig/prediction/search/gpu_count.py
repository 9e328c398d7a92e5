"""How many GPUs train so many tokens in so many days: the search turned round.

Counts are tried in order: 1, 2, 4, … of one server or tray, 1, 2, 4, … trays of a node, then nodes
in steps of a half (1, 2, 3, 4, 6, 8, 12, …), each with the best layout that fits.  Between the
last count that is too slow and the first that is fast enough, those in between are tried as well,
and of all that are in time the one with the fewest GPU-days is taken: an awkward number of GPUs
leaves layers that no number of stages divides.  Counts that could not do it at the peak of their
chips are passed over.  Where the global batch is what limits, one that would do is proposed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from trainrig.errors import UsageError
from trainrig.prediction.cluster import Cluster
from trainrig.prediction.search import SIMULATED, search
from trainrig.prediction.search.space import Space
from trainrig.units import DAY, counted
from trainrig.workload.flops import model_flops

MOST_GPUS = 1 << 16
_BETWEEN = 12
"""Counts that are tried between too slow and fast enough."""


_EQUAL = 0.03
"""Share by which GPU-days may differ and count as equal: then the fewest GPUs are taken."""
_STALE = 6
"""Counts in turn, each half as many again, that are no quicker: then larger ones are not tried."""
_DOUBLINGS = 5
"""Of the global batch that are tried for a proposal."""
_MORE_IN_TIME = 4
"""Counts in time, besides the first power of two, whose GPU-days are compared."""
_BESIDE = 4
"""Counts that are tried for a neighbour: not every one divides the batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """A number of GPUs that is fast enough, at the fewest GPU-days."""

    cluster: Cluster
    days: float
    """That the best layout takes."""
    tried: int = 1
    """Counts of GPUs that were searched."""
    neighbours: tuple[Budget, ...] = ()
    """The next fewer and the next more GPUs that make the batch, and the fewest in time; fewest
    first."""

    @property
    def gpu_days(self) -> float:
        """Days times GPUs."""
        return self.days * self.cluster.gpus


def gpus_needed(space: Space, cluster: Cluster, tokens: float, days: float) -> Budget:
    """Return the GPUs that train ``tokens`` within ``days`` at the fewest GPU-days.

    Args:
        space: Layouts of the model, with its global batch.
        cluster: The machines, of which so many are taken.
        tokens: Of the whole training.
        days: That it may take.

    Raises:
        UsageError: No count up to MOST_GPUS does; a global batch that would do is proposed.
    """
    found = _gpus_needed(space, cluster, tokens, days)
    if found.days <= days:
        return found
    reached = f"; {found.cluster.gpus} take {found.days:.3g} days" if found.days < math.inf else ""
    raise UsageError(
        f"no number of GPUs up to {MOST_GPUS} trains {tokens:.3g} tokens in {days:g} days "
        f"with a global batch of {space.global_batch}{reached}",
        _proposal(space, cluster, tokens, days, found.days),
    )


def _proposal(space: Space, cluster: Cluster, tokens: float, days: float, reached: float) -> str:
    """A global batch with which it can be done, as a hint."""
    if reached < math.inf:
        first = math.ceil(math.log2(max(2.0, reached / days)))
        for power in range(first, first + _DOUBLINGS):
            batch = space.global_batch << power
            found = _gpus_needed(space.replace(global_batch=batch), cluster, tokens, days)
            if found.days <= days:
                gpus = counted(found.cluster.gpus, "GPU")
                return f"--global-batch {batch}: {found.days:.3g} days on {gpus}; or more days"
    return "more days, a larger --global-batch, or a faster chip"


def _gpus_needed(space: Space, cluster: Cluster, tokens: float, days: float) -> Budget:
    """As `gpus_needed`; where no count is in time, the quickest, of endless days where none is."""
    quickest, slow, tried = _first_in_time(space, cluster, tokens, days)
    if quickest is None:
        return Budget(cluster=cluster, days=math.inf, tried=tried)
    if quickest.days > days:
        return replace(quickest, tried=tried)
    in_time = [quickest]
    for count in _between(slow, quickest.cluster.gpus, cluster):
        tried += 1
        there = _at(space, cluster, count, tokens)
        if there is not None and there.days <= days:
            in_time.append(there)
        if len(in_time) > _MORE_IN_TIME:
            break
    least = min(one.gpu_days for one in in_time)
    cheap = [one for one in in_time if one.gpu_days <= (1.0 + _EQUAL) * least]
    best = min(cheap, key=lambda one: one.cluster.gpus)
    fewest = min(in_time, key=lambda one: one.cluster.gpus)
    beside = {one.cluster.gpus: one for one in _neighbours(space, cluster, best, tokens)}
    if fewest is not best:
        beside[fewest.cluster.gpus] = fewest
    neighbours = tuple(beside[gpus] for gpus in sorted(beside))
    return replace(best, tried=tried, neighbours=neighbours)


def _first_in_time(
    space: Space, cluster: Cluster, tokens: float, days: float
) -> tuple[Budget | None, int, int]:
    """The first count of `_counts` in time, else the quickest; the last too slow; how many tried.

    None where no count makes the batch or fits.
    """
    slow, tried, stale = 0, 0, 0
    quickest: Budget | None = None
    for count in _counts(cluster.tray, cluster.gpus_per_node):
        if _least_days(space, cluster, count, tokens) > days:
            slow = count
            continue
        tried += 1
        there = _at(space, cluster, count, tokens)
        stale += quickest is not None
        if there is not None and (quickest is None or there.days < quickest.days):
            quickest, stale = there, 0
        if stale == _STALE:  # the batch is shared out: more GPUs wait
            break
        if there is not None and there.days <= days:
            break
        slow = count if there is not None else slow
    return quickest, slow, tried


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
        best = search(space.on(there), there.rates(), top=1, simulate=SIMULATED).best[0]
    except UsageError:  # no layout makes the global batch
        return None
    steps = tokens / (space.global_batch * space.base.batch.seq_len)
    return Budget(cluster=there, days=steps * best.ranked_by / DAY) if best.fits else None
