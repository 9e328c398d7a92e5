"""Which layout is best: every legal one is predicted, and ranked by time with memory as a wall.

Answers the fastest layouts that fit, the front on which nothing is both faster and smaller, and,
against the next best, which parts of the step the difference is made of.  A layout fits if the
predicted bytes (framework and context included) are within one GPU's memory.  All layouts are
predicted as arrays: nothing is sampled or pruned by a rule of thumb, so that the optimum is that
of brute force.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainrig.predict.rates import Rates
from trainrig.predict.search.space import Space, layouts
from trainrig.predict.step import PARTS, predict_step
from trainrig.workload.layout import Layout
from trainrig.workload.memory import memory

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One layout with what it costs."""

    layout: Layout
    time: float
    """s of a step."""
    memory: float
    """B on the fullest GPU."""
    parts: Mapping[str, float]
    """s; they sum to the time."""
    fits: bool = True

    def gap(self, other: Candidate) -> dict[str, float]:
        """By how much ``other`` is slower, part by part: sums to the difference of the times."""
        return {name: other.parts[name] - self.parts[name] for name in PARTS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """What a search came to."""

    considered: int
    """Legal layouts."""
    fitting: int
    seconds: float
    best: tuple[Candidate, ...]
    """The fastest that fit, best first; where none fits the smallest, as ``fits`` says."""
    front: tuple[Candidate, ...]
    """Nothing that fits is both faster and smaller than one of these; fastest first."""


@dataclass(frozen=True, slots=True)
class _Priced:
    """A group of layouts that share their words, with what each costs."""

    group: Layout
    memory: NDArray[np.float64]
    fits: NDArray[np.bool_]
    """Which of the group were timed."""
    time: NDArray[np.float64]
    """Step time of those that were timed, s."""
    parts: Mapping[str, NDArray[np.float64]]

    def candidate(self, place: int) -> Candidate:
        """The one at a place among those that were timed."""
        import numpy as np

        index = int(np.flatnonzero(self.fits)[place])
        return Candidate(
            layout=self.group.at(index),
            time=float(self.time[place]),
            memory=float(self.memory[index]),
            parts={name: float(part[place]) for name, part in self.parts.items()},
        )


def search(space: Space, rates: Rates, *, top: int = 10) -> Ranking:
    """Predict every legal layout of ``space`` and rank them.

    Raises UsageError where no layout makes the global batch.
    """
    started = time.perf_counter()
    groups = layouts(space)
    priced = [_price(space, group, rates) for group in groups]
    considered = sum(len(group) for group in groups)
    if not any(len(one.time) for one in priced):
        best: tuple[Candidate, ...] = (_smallest(space, priced, rates),)
        front: tuple[Candidate, ...] = ()
    else:
        best, front = _ranked(priced, top)
    return Ranking(
        considered=considered,
        fitting=sum(len(one.time) for one in priced),
        seconds=time.perf_counter() - started,
        best=best,
        front=front,
    )


def price(space: Space, layout: Layout, rates: Rates) -> Candidate:
    """One layout by itself."""
    step = predict_step(space.shape, layout, rates)
    needed = float(memory(space.shape, layout).total)
    return Candidate(
        layout=layout,
        time=float(step.total),
        memory=needed,
        parts={name: float(getattr(step, name)) for name in PARTS},
        fits=needed <= rates.memory_bytes,
    )


def _price(space: Space, group: Layout, rates: Rates) -> _Priced:
    """Memory of all, and the time of those that fit."""
    import numpy as np

    num = len(group)
    needed = np.broadcast_to(np.asarray(memory(space.shape, group).total, dtype=float), (num,))
    fits = needed <= rates.memory_bytes
    if not fits.any():
        return _Priced(group, needed, fits, np.empty(0), {})
    step = predict_step(space.shape, group.part(fits), rates)
    parts = {
        name: np.broadcast_to(np.asarray(getattr(step, name), dtype=float), (int(fits.sum()),))
        for name in PARTS
    }
    return _Priced(group, needed, fits, sum(parts.values(), np.zeros(1)), parts)


def _ranked(
    priced: Sequence[_Priced], top: int
) -> tuple[tuple[Candidate, ...], tuple[Candidate, ...]]:
    """The best, and the front."""
    import numpy as np

    took = np.concatenate([one.time for one in priced])
    needs = np.concatenate([one.memory[one.fits] for one in priced])
    order = np.lexsort((needs, took))
    lowest = np.minimum.accumulate(needs[order])
    first = np.concatenate([[True], lowest[1:] < lowest[:-1]])
    bounds = np.cumsum([0, *(len(one.time) for one in priced)])

    def take(places: Iterable[int]) -> tuple[Candidate, ...]:
        return tuple(_at(priced, bounds, int(place)) for place in places)

    return take(order[:top]), take(order[first])


def _at(priced: Sequence[_Priced], bounds: NDArray[np.int64], place: int) -> Candidate:
    import numpy as np

    number = int(np.searchsorted(bounds, place, side="right")) - 1
    return priced[number].candidate(place - int(bounds[number]))


def _smallest(space: Space, priced: Sequence[_Priced], rates: Rates) -> Candidate:
    """The layout that needs least, where none fits."""
    import numpy as np

    one = min((p for p in priced), key=lambda p: float(p.memory.min()))
    return price(space, one.group.at(int(np.argmin(one.memory))), rates)
