"""Which matmul shape of a grid is the fastest, found without measuring them all.

The grid's axes are stated before, and the answer means: no shape of this grid is
known to be faster.  Pure: it is handed a function that measures one shape, and
knows neither workers nor torch.

Seeds are cubes up the diagonal and a spread of cheap shapes.  Then one unknown
neighbour of the best shape is measured, again and again: neighbours lie four, two
and one step away along each axis, and along the exchange of rows for columns,
which keeps the size and changes how tiles fill the chip.  Falling back to the
next best shape, where the best one's neighbours are all known, is what carries
the search over a rough surface (tiles and waves quantise it) without restarts.

A measurement is short, so the best of many is partly lucky.  The finalists are
therefore measured again, interleaved, and ranked by these later measurements
alone; half of them leave after each stage.

The time is bounded by the caller's seconds and by a share of what measuring the
whole grid would take (more for a grid of under 400 shapes), projected as
a + b·FLOPs a shape from what was measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product

from trainrig.stats import median

Shape = tuple[int, int, int]
"""(m, k, n)."""

# Shares of the time: seeds, and the finalists' second measurement.
_SEEDING = 0.15
_FINALS = 0.25
# One measurement may take this share of the time.
_GREEDY = 0.1
_NUM_FINALISTS = 8
# A stage of the finals measures each finalist this often.
_ROUNDS = 3
_STEPS = (4, 2, 1)
# So many average shapes may always be measured: a tenth of a small grid would find nothing.
_FEW = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """The shapes among which the fastest is sought: every combination of three axes."""

    m: tuple[int, ...]
    k: tuple[int, ...]
    n: tuple[int, ...]
    fits: Callable[[Shape], bool] = lambda _: True
    """False for shapes that do not belong to the grid: too large for the memory."""

    @property
    def axes(self) -> tuple[tuple[int, ...], ...]:
        """The three axes."""
        return self.m, self.k, self.n

    def shapes(self) -> Iterator[Shape]:
        """Every shape of the grid."""
        return filter(self.fits, product(self.m, self.k, self.n))


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One measurement of one shape."""

    rate: float | None
    """FLOP/s; None where the shape does not run."""
    seconds: float
    """What the measurement took, everything included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FastestShape:
    """The fastest shape, and what it cost to find it."""

    shape: Shape
    rate: float
    """Median of its measurements in the finals."""
    num_shapes: int
    """Shapes of the grid."""
    num_measured: int
    """Different shapes that were measured."""
    seconds: float
    """Time spent measuring."""
    sweep_seconds: float
    """Projected time of measuring every shape of the grid once."""


Measure = Callable[[Shape], Seen]


def find_peak(
    grid: Grid, measure: Measure, *, seconds: float, sweep_share: float = 0.08
) -> FastestShape | None:
    """The fastest shape of ``grid`` within ``seconds`` and ``sweep_share`` of a sweep's time.

    None when no shape could be measured.
    """
    search = _Search(grid, measure, seconds, sweep_share)
    search.seed()
    search.climb()
    return search.finish()


@dataclass(slots=True)
class _Costs:
    """Least squares for seconds = a + b·FLOPs over what was measured; neither below zero."""

    pairs: list[tuple[float, float]] = field(default_factory=list)

    def learn(self, flops: float, seconds: float) -> None:
        self.pairs.append((flops, seconds))

    def line(self) -> tuple[float, float]:
        """(a, b): a shape's fixed seconds and its seconds a FLOP."""
        count = len(self.pairs)
        mean_x = sum(x for x, _ in self.pairs) / count
        mean_y = sum(y for _, y in self.pairs) / count
        spread = sum((x - mean_x) ** 2 for x, _ in self.pairs)
        if spread == 0.0:  # only one size so far: nothing is known of the others' cost
            return mean_y, 0.0
        slope = sum((x - mean_x) * (y - mean_y) for x, y in self.pairs) / spread
        slope = min(max(slope, 0.0), mean_y / mean_x)
        return mean_y - slope * mean_x, slope


class _Search:
    def __init__(self, grid: Grid, measure: Measure, seconds: float, sweep_share: float) -> None:
        self._grid = grid
        self._measure = measure
        self._seconds = seconds
        self._sweep_share = sweep_share
        self._places = [{size: i for i, size in enumerate(axis)} for axis in grid.axes]
        self._shapes = sorted(grid.shapes(), key=flops)
        self._inside = frozenset(self._shapes)
        self._sum_flops = float(sum(map(flops, self._shapes)))
        self._rates: dict[Shape, float] = {}
        self._open: set[Shape] = set()
        """Known shapes that may have unknown neighbours."""
        self._failed: set[Shape] = set()
        self._dear: set[Shape] = set()
        """Too expensive to look at."""
        self._costs = _Costs()
        self._spent = 0.0

    def seed(self) -> None:
        """Cubes from the smallest up, then cheap shapes spread over the grid."""
        for shape in (*self._cubes(), *self._spread()):
            if self._spent > _SEEDING * self._allowance():
                return
            self._look(shape)

    def climb(self) -> None:
        """Look at a neighbour of the best shape that has unknown ones, until the time is out."""
        while self._spent < (1.0 - _FINALS) * self._allowance():
            best = max(self._open, key=self._rates.__getitem__, default=None)
            if best is None:
                return
            unknown = [s for s in self._neighbours(best) if self._is_unknown(s)]
            if unknown:
                self._look(unknown[0])
            if len(unknown) < 2:
                self._open.discard(best)

    def finish(self) -> FastestShape | None:
        """Measure the best ones again, in turn, and name the winner."""
        if not self._rates:
            return None
        field_ = self._finalists()
        again: dict[Shape, list[float]] = {shape: [] for shape in field_}
        while True:
            for _ in range(_ROUNDS):
                for shape in field_:
                    again[shape] += [rate for rate in [self._run(shape)] if rate is not None]
            ranked = sorted(field_, key=lambda shape: _middle(again[shape]), reverse=True)
            if len(field_) <= 2 or self._spent > self._allowance():
                return self._found(ranked[0], _middle(again[ranked[0]]))
            field_ = ranked[: len(field_) // 2]

    def _finalists(self) -> list[Shape]:
        """The best ones, as many as the time left can measure in one stage; two at the least."""
        left = self._allowance() - self._spent
        chosen: list[Shape] = []
        for shape in sorted(self._rates, key=self._rates.__getitem__, reverse=True):
            left -= _ROUNDS * self._projected(shape)
            if len(chosen) == _NUM_FINALISTS or (len(chosen) >= 2 and left < 0.0):
                break
            chosen.append(shape)
        return chosen

    def _neighbours(self, shape: Shape) -> list[Shape]:
        """Far steps first: they cross the grid, and what they miss the near ones find."""
        m, k, n = (places[size] for places, size in zip(self._places, shape, strict=True))
        found = []
        for step in _STEPS:
            for sign in (step, -step):
                near = [(m + sign, k, n), (m, k + sign, n), (m, k, n + sign)]
                near.append((m + sign, k, n - sign))
                found += [s for s in map(self._at, near) if s is not None]
        return found

    def _at(self, places: tuple[int, int, int]) -> Shape | None:
        axes = self._grid.axes
        if any(not 0 <= place < len(axis) for place, axis in zip(places, axes, strict=True)):
            return None
        m, k, n = (axis[place] for place, axis in zip(places, axes, strict=True))
        return (m, k, n) if (m, k, n) in self._inside else None

    def _cubes(self) -> list[Shape]:
        """Up the diagonal in doubling steps."""
        length = min(len(axis) for axis in self._grid.axes)
        places = {0} | {2**power - 1 for power in range(1, 12) if 2**power - 1 < length}
        found = [self._at((place, place, place)) for place in sorted(places)]
        return [shape for shape in found if shape is not None]

    def _spread(self) -> list[Shape]:
        """Shapes at even intervals of size, the smaller half of the grid, in a scattered order."""
        cheap = self._shapes[: max(1, len(self._shapes) // 2)]
        # Steps of the golden section visit an interval evenly, however many are taken.
        return [cheap[int(len(cheap) * (0.618034 * i % 1.0))] for i in range(len(cheap))]

    def _look(self, shape: Shape) -> None:
        """Measure a shape that is not known yet and not out of all proportion."""
        if not self._is_unknown(shape):
            return
        if self._projected(shape) > _GREEDY * self._allowance():
            self._dear.add(shape)
            return
        rate = self._run(shape)
        if rate is None:
            self._failed.add(shape)
        else:
            self._rates[shape] = rate
            self._open.add(shape)

    def _is_unknown(self, shape: Shape) -> bool:
        return not (shape in self._rates or shape in self._failed or shape in self._dear)

    def _run(self, shape: Shape) -> float | None:
        seen = self._measure(shape)
        self._spent += seen.seconds
        if seen.rate is not None:
            self._costs.learn(flops(shape), seen.seconds)
        return seen.rate

    def _projected(self, shape: Shape) -> float:
        if not self._costs.pairs:
            return 0.0
        fixed, slope = self._costs.line()
        return fixed + slope * flops(shape)

    def _sweep_seconds(self) -> float:
        if not self._costs.pairs:
            return float("inf")
        fixed, slope = self._costs.line()
        return fixed * len(self._shapes) + slope * self._sum_flops

    def _allowance(self) -> float:
        share = max(self._sweep_share, _FEW / len(self._shapes))
        return min(self._seconds, share * self._sweep_seconds())

    def _found(self, shape: Shape, rate: float) -> FastestShape:
        return FastestShape(
            shape=shape,
            rate=rate,
            num_shapes=len(self._shapes),
            num_measured=len(self._rates) + len(self._failed),
            seconds=self._spent,
            sweep_seconds=self._sweep_seconds(),
        )


def flops(shape: Shape) -> int:
    """2·m·k·n."""
    m, k, n = shape
    return 2 * m * k * n


def _middle(rates: Sequence[float]) -> float:
    return median(rates) if rates else 0.0
