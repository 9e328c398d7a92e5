"""Which layout is best: every legal one is predicted, and ranked by time with memory as a wall.

Answers the fastest layouts that fit, the front on which nothing is both faster and smaller, and,
against the next best, which parts of the step the difference is made of.  A layout fits if the
predicted bytes (framework and context included) are within one GPU's memory.  All layouts are
predicted as arrays: nothing is sampled or pruned by a rule of thumb, so that the optimum is that
of brute force.  The closed form ranks them; a plan simulates the fastest, event by event, and
ranks those by that.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from trainrig.prediction.rates import Rates
from trainrig.prediction.search.space import Space, layouts
from trainrig.prediction.step import PARTS, StepTime, predict_step
from trainrig.prediction.step.simulate import simulated
from trainrig.prediction.verdict import VERDICTS, verdict_of_layout
from trainrig.process.pool import ordered_map
from trainrig.workload.layout import Layout
from trainrig.workload.memory import host_bytes, memory

if TYPE_CHECKING:
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
    simulated: float | None = None
    """s of a step, simulated event by event (`step.simulate`); None: it was not."""

    @property
    def ranked_by(self) -> float:
        """s of a step: the simulation's where there is one, else the closed form's."""
        return self.time if self.simulated is None else self.simulated

    @property
    def is_pipeline(self) -> bool:
        """Return whether its simulation is another number than the closed form."""
        return bool(self.layout.mesh.pp > 1) and self.layout.pipeline.schedule != "dualpipe"

    @property
    def parts_of_step(self) -> dict[str, float]:
        """Parts in s that sum to what it is ranked by; the bubble takes what simulating changes."""
        unsure = dict.fromkeys(("overlapped", "faster", "slower"), 0.0)
        step = StepTime(**self.parts, **unsure).lasting(self.ranked_by)
        return {name: float(getattr(step, name)) for name in PARTS}

    def gap(self, other: Candidate) -> dict[str, float]:
        """By how much ``other`` is slower, part by part: sums to what they are ranked by.

        Parts are the closed form's; what simulations of pipelines differ by is ``simulated``.
        """
        parts = {name: other.parts[name] - self.parts[name] for name in PARTS}
        closed = other.time - self.time
        return parts | {"simulated": other.ranked_by - self.ranked_by - closed}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """Result of a search."""

    considered: int
    """Legal layouts."""
    fitting: int
    seconds: float
    """Seconds of predicting and ranking by the closed form."""
    simulation_seconds: float
    """Seconds of simulating the fastest of them; 0 where none was."""
    best: tuple[Candidate, ...]
    """The fastest that fit, best first; where none fits the smallest, as ``fits`` says."""
    front: tuple[Candidate, ...]
    """Nothing that fits is both faster and smaller than one of these; fastest first."""


TIE = 0.01
"""Predictions that differ by less are not told apart."""
_FAMILY = ("tp", "pp", "cp", "ep", "recompute", "offload")


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutFamily:
    """Layouts that split a model in one way: batch, interleaving, schedule, shards differ."""

    best: Candidate
    ties: int
    """Others of it that take longer by less than `TIE`."""


def families(ranked: Sequence[Candidate], top: int) -> tuple[LayoutFamily, ...]:
    """Return the first ``top`` families among candidates that come fastest first."""
    members_by_key: dict[tuple[object, ...], list[Candidate]] = {}
    for candidate in ranked:
        layout = candidate.layout
        # ZeRO 1 shards the optimizer alone: another place for its states, the same split.
        key = (
            layout.framework,
            layout.scheme,
            *map(layout.get, _FAMILY),
            max(1, int(layout.sharding.zero)),
        )
        members_by_key.setdefault(key, []).append(candidate)
    return tuple(
        LayoutFamily(
            best=members[0],
            ties=sum(
                candidate.ranked_by < (1.0 + TIE) * members[0].ranked_by
                for candidate in members[1:]
            ),
        )
        for members in list(members_by_key.values())[:top]
    )


SIMULATED = 1024
"""Layouts that a plan simulates: the fastest by the closed form, which prunes the rest."""


def search(space: Space, rates: Rates, *, top: int = 10, simulate: int = 0) -> Ranking:
    """Predict every legal layout of ``space`` and rank them.

    ``simulate``: so many of the fastest are ranked by what their simulation takes.
    Raises UsageError where no layout makes the global batch.
    """
    started = time.perf_counter()
    groups = layouts(space)
    priced = _priced(space, groups, rates)
    num_fitting = [int(fits.sum()) for _, fits, _ in priced]
    # All that fit, group after group: where each stands, what it needs and takes.
    group_of = np.repeat(np.arange(len(groups)), num_fitting)
    index_in_group = np.concatenate([np.flatnonzero(fits) for _, fits, _ in priced])
    needs = np.concatenate([needed[fits] for needed, fits, _ in priced])
    parts = np.concatenate([parts for _, _, parts in priced], axis=1)
    times = parts.sum(axis=0)

    def candidate(place: int, simulated: float | None = None) -> Candidate:
        return Candidate(
            simulated=simulated,
            layout=groups[group_of[place]].at(int(index_in_group[place])),
            time=float(times[place]),
            memory=float(needs[place]),
            parts=dict(zip(PARTS, parts[:, place].tolist(), strict=True)),
        )

    if len(times):
        order = np.lexsort((needs, times))
        front_at = order[_undominated(needs[order])]
        searched = time.perf_counter()
        fastest, seconds = order[: max(simulate, top)], {}
        if simulate:
            # What the front has beyond the fastest is simulated too: one number for one layout.
            pool = np.concatenate([fastest, np.setdiff1d(front_at, fastest)])
            simulated_at = _simulated(space, groups, group_of[pool], index_in_group[pool], rates)
            simulated_seconds = np.array([simulated_at[n] for n in range(len(pool))])
            seconds = dict(zip(pool.tolist(), simulated_seconds.tolist(), strict=True))
            pool = pool[np.lexsort((needs[pool], simulated_seconds))]
            front_at, fastest = pool[_undominated(needs[pool])], pool
        front = tuple(candidate(at, seconds.get(int(at))) for at in front_at)
        ranked = (candidate(at, seconds.get(int(at))) for at in fastest[:top])
        best = surest_first(tuple(ranked), space, rates)
    else:
        smallest = min(range(len(groups)), key=lambda number: priced[number][0].min())
        layout = groups[smallest].at(int(np.argmin(priced[smallest][0])))
        best, front, searched = (price(space, layout, rates),), (), time.perf_counter()
    return Ranking(
        considered=sum(map(len, groups)),
        fitting=len(times),
        seconds=searched - started,
        simulation_seconds=time.perf_counter() - searched if simulate else 0.0,
        best=best,
        front=front,
    )


def surest_first(ranked: Sequence[Candidate], space: Space, rates: Rates) -> tuple[Candidate, ...]:
    """Return candidates with those that surely fit before borderline ones that are as fast.

    Args:
        ranked: Candidates, fastest first; times that differ by less than `TIE` are the same.
        space: The layouts that they are of.
        rates: The machines' rates, with the memory that a GPU offers.
    """
    ordered: list[Candidate] = []
    waiting = list(ranked)
    while waiting:
        limit = (1.0 + TIE) * waiting[0].ranked_by
        tied = [candidate for candidate in waiting if candidate.ranked_by < limit]
        ordered += sorted(tied, key=lambda candidate: _place(candidate, space, rates))
        waiting = waiting[len(tied) :]
    return tuple(ordered)


def _place(candidate: Candidate, space: Space, rates: Rates) -> int:
    verdict = verdict_of_layout(
        space.shape, candidate.layout, rates.memory_bytes, space.host_memory
    )
    return VERDICTS.index(verdict)


def _undominated(needs: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return which layouts, fastest first, need less memory than every faster one."""
    lowest = np.minimum.accumulate(needs)
    return np.concatenate([[True], lowest[1:] < lowest[:-1]])


def _simulated(
    space: Space,
    groups: tuple[Layout, ...],
    group_of: NDArray[np.int64],
    index: NDArray[np.int64],
    rates: Rates,
) -> dict[int, float]:
    """Simulated seconds of some layouts, by their place among these."""
    seconds_at: dict[int, float] = {}
    for group in np.unique(group_of):
        places = np.flatnonzero(group_of == group)
        mask = np.zeros(len(groups[group]), dtype=bool)
        mask[index[places]] = True
        seconds, _ = simulated(space.shape, groups[group].part(mask), rates)
        rank = np.argsort(np.argsort(index[places]))  # a part is in the group's own order
        seconds_at |= dict(zip(places.tolist(), seconds[rank].tolist(), strict=True))
    return seconds_at


def price(space: Space, layout: Layout, rates: Rates) -> Candidate:
    """Return one layout by itself."""
    step = predict_step(space.shape, layout, rates)
    needed = float(memory(space.shape, layout).total)
    fits = needed <= rates.memory_bytes and bool(_fits_host(space, layout))
    return Candidate(
        layout=layout,
        time=float(step.total),
        memory=needed,
        parts={name: float(getattr(step, name)) for name in PARTS},
        fits=fits,
    )


def _fits_host(space: Space, layout: Layout) -> Any:
    """Return whether a node's memory holds what is offloaded."""
    if space.host_memory is None:
        return True
    return host_bytes(space.shape, layout) <= space.host_memory


_Priced = tuple["NDArray[np.float64]", "NDArray[np.bool_]", "NDArray[np.float64]"]
"""Bytes of all, which of them fit, and seconds of those that do: a row for each of PARTS."""


def _priced(space: Space, groups: tuple[Layout, ...], rates: Rates) -> list[_Priced]:
    """Return each group's, in pieces.

    By as many processes as there are processors, of _FEWEST layouts on.

    Fewer are priced here: to start processes takes about as long as to price so many.
    """
    pieces = [
        (number, slice(at, at + _PIECE))
        for number, group in enumerate(groups)
        for at in range(0, len(group), _PIECE)
    ]

    def ask(some: list[tuple[int, slice]]) -> list[_Priced]:
        return [_price(space, groups[number].part(where), rates) for number, where in some]

    pieces_of: list[list[_Priced]] = [[] for _ in groups]
    is_one = sum(map(len, groups)) < _FEWEST
    answers = ask(pieces) if is_one else ordered_map(ask, pieces, at_least=0, together=1)
    for (number, _), priced in zip(pieces, answers, strict=True):
        pieces_of[number].append(priced)
    return [
        (np.concatenate(needed), np.concatenate(fits), np.concatenate(parts, axis=1))
        for needed, fits, parts in (zip(*columns, strict=True) for columns in pieces_of)
    ]


_PIECE, _FEWEST = 1 << 16, 1 << 18
"""Layouts that a process prices before it is asked again; layouts of a search that has several."""


def _price(space: Space, group: Layout, rates: Rates) -> _Priced:
    """Return one piece's."""
    needed = np.broadcast_to(memory(space.shape, group).total * 1.0, (len(group),))
    fits = (needed <= rates.memory_bytes) & _fits_host(space, group)
    if not fits.any():
        return needed, fits, np.empty((len(PARTS), 0))
    step = predict_step(space.shape, group.part(fits), rates)
    return needed, fits, np.stack([getattr(step, name) for name in PARTS])
