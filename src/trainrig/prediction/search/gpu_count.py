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
from collections.abc import Callable, Iterator
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
"""Doublings of the global batch that are tried for a proposal."""
_MORE_IN_TIME = 4
"""Counts in time, besides the first power of two, whose GPU-days are compared."""
_BESIDE = 4
"""Counts that are tried for a neighbour: not every one divides the batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """A number of GPUs that is fast enough, at the fewest GPU-days."""

    cluster: Cluster
    days: float
    """Days that the best layout takes."""
    tried: int = 1
    """Counts of GPUs that were searched."""
    neighbours: tuple[Budget, ...] = ()
    """The next fewer and the next more GPUs that make the batch, and the fewest in time; fewest
    first."""

    @property
    def gpu_days(self) -> float:
        """Days times GPUs."""
        return self.days * self.cluster.gpus

    def is_slowed_by(self, batch: int, more: Budget) -> bool:
        """Return whether more GPUs take longer since they do not divide the global batch."""
        gpus = more.cluster.gpus
        return gpus > self.cluster.gpus and more.days > self.days and batch % gpus > 0


Watch = Callable[[int], None]
"""Called with a number of GPUs."""


@dataclass(frozen=True, slots=True)
class _Counts:
    """Searches of one training on different numbers of GPUs."""

    space: Space
    cluster: Cluster
    tokens: float
    watch: Watch | None = None

    def least_days(self, gpus: int) -> float:
        """Days at the claimed peak: a lower bound.

        So of causal attention what is seen counts, and forward alone where most weights are frozen:
        nothing but adapters needs gradients of weights, nor of inputs what lies before the first.
        """
        layout = self.space.base
        peak = self.cluster.rates().peaks.get(layout.precision.compute)
        if peak is None:
            return 0.0
        seq_len, written = layout.batch.seq_len, layout.batch.target_seq_len
        flops = model_flops(self.space.shape, 1, seq_len, target_seq_len=written, half=True)
        least = flops / 3.0 if layout.lora.rank else flops
        return self.tokens / seq_len * least / (peak * gpus) / DAY

    def budget_of(self, gpus: int) -> Budget | None:
        """Return the best layout on so many GPUs; None where none makes the batch or fits."""
        if self.watch is not None:
            self.watch(gpus)
        there = self.cluster.on(gpus)
        try:
            best = search(self.space.on(there), there.rates(), top=1, simulate=SIMULATED).best[0]
        except UsageError:  # no layout makes the global batch
            return None
        steps = self.tokens / (self.space.global_batch * self.space.base.batch.seq_len)
        return Budget(cluster=there, days=steps * best.ranked_by / DAY) if best.fits else None


def gpus_needed(
    space: Space, cluster: Cluster, tokens: float, days: float, watch: Watch | None = None
) -> Budget:
    """Return the GPUs that train ``tokens`` within ``days`` at the fewest GPU-days.

    Args:
        space: Layouts of the model, with its global batch.
        cluster: The machines, of which so many are taken.
        tokens: Of the whole training.
        days: That it may take.
        watch: Called with each number of GPUs before its layouts are searched.

    Raises:
        UsageError: No count up to MOST_GPUS does; a global batch that would do is proposed.
    """
    budget = _gpus_needed(_Counts(space, cluster, tokens, watch), days)
    if budget.days <= days:
        return budget
    reached = (
        f"; {budget.cluster.gpus} take {budget.days:.3g} days" if budget.days < math.inf else ""
    )
    raise UsageError(
        f"no number of GPUs up to {MOST_GPUS} trains {tokens:.3g} tokens in {days:g} days "
        f"with a global batch of {space.global_batch}{reached}",
        _proposal(_Counts(space, cluster, tokens, watch), days, budget.days),
    )


def _proposal(counts: _Counts, days: float, reached: float) -> str:
    """Return a global batch with which it can be done, as a hint."""
    if reached < math.inf:
        first = math.ceil(math.log2(max(2.0, reached / days)))
        for power in range(first, first + _DOUBLINGS):
            batch = counts.space.global_batch << power
            larger = replace(counts, space=counts.space.replace(global_batch=batch))
            budget = _gpus_needed(larger, days)
            if budget.days <= days:
                gpus = counted(budget.cluster.gpus, "GPU")
                return f"--global-batch {batch}: {budget.days:.3g} days on {gpus}; or more days"
    return "more days, a larger --global-batch, or a faster chip"


def _gpus_needed(counts: _Counts, days: float) -> Budget:
    """Return the budget of `gpus_needed`; where no count is in time, the quickest."""
    quickest, slow, tried = _first_in_time(counts, days)
    if quickest is None:
        return Budget(cluster=counts.cluster, days=math.inf, tried=tried)
    if quickest.days > days:
        return replace(quickest, tried=tried)
    in_time = [quickest]
    for gpus in _between(slow, quickest.cluster.gpus, counts.cluster):
        tried += 1
        budget = counts.budget_of(gpus)
        if budget is not None and budget.days <= days:
            in_time.append(budget)
        if len(in_time) > _MORE_IN_TIME:
            break
    least = min(budget.gpu_days for budget in in_time)
    cheap = [budget for budget in in_time if budget.gpu_days <= (1.0 + _EQUAL) * least]
    best = min(cheap, key=lambda budget: budget.cluster.gpus)
    fewest = min(in_time, key=lambda budget: budget.cluster.gpus)
    neighbours = {budget.cluster.gpus: budget for budget in _neighbours(counts, best)}
    if fewest is not best:
        neighbours[fewest.cluster.gpus] = fewest
    ordered = tuple(neighbours[gpus] for gpus in sorted(neighbours))
    return replace(best, tried=tried, neighbours=ordered)


def _first_in_time(counts: _Counts, days: float) -> tuple[Budget | None, int, int]:
    """Return the first count in time, else the quickest; the last too slow; how many were tried.

    None where no count makes the batch or fits.
    """
    slow, tried, stale = 0, 0, 0
    quickest: Budget | None = None
    for gpus in _tried_counts(counts.cluster.tray, counts.cluster.gpus_per_node):
        if counts.least_days(gpus) > days:
            slow = gpus
            continue
        tried += 1
        budget = counts.budget_of(gpus)
        stale += quickest is not None
        if budget is not None and (quickest is None or budget.days < quickest.days):
            quickest, stale = budget, 0
        if stale == _STALE:  # the batch is shared out: more GPUs wait
            break
        if budget is not None and budget.days <= days:
            break
        slow = gpus if budget is not None else slow
    return quickest, slow, tried


def _neighbours(counts: _Counts, best: Budget) -> tuple[Budget, ...]:
    """Return the budgets of the next fewer and the next more GPUs, in trays and nodes."""
    gpus, cluster = best.cluster.gpus, counts.cluster
    fewer = [gpus - n * _step(gpus - 1, cluster) for n in range(1, _BESIDE + 1)]
    more = [gpus + n * _step(gpus, cluster) for n in range(1, _BESIDE + 1)]
    neighbours: list[Budget] = []
    for numbers in (fewer, more):
        budgets = (counts.budget_of(number) for number in numbers if number > 0)
        neighbours += itertools.islice((budget for budget in budgets if budget is not None), 1)
    return tuple(neighbours)


def _tried_counts(tray: int, per_node: int) -> Iterator[int]:
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
