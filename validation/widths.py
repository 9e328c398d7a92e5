"""What the tables' residuals say of the widths and thresholds that stand for what rows leave out.

    python -m validation.widths

Two things of `validation.normalise` are numbers without a document behind them, and this is what
five tables of published runs say of each:

`cells.UNSURE`     what a blank cell adds to the half width of the interval of a step's time
`feasible.FULL`    shares of a GPU's memory above which a run is presumed to recompute, or to shard
`feasible.NOT_HELD`

A residual is log(measured / predicted).  Of a row, (residual / 1.28)² is expected to be the square
of the half width that it has where all is stated, over 1.28, and of each blank cell's: the widths
that fit best, none below zero, cells (a source on one chip) weighing alike, residuals cut at `CUT`.
A column that is blank with others always cannot be told from them: its width is of all of them, and
of one that few cells leave blank there is none to tell.

Of memory: how many of the runs that state what they shard and recompute need more than each
threshold by our count.  All of them ran, so that each one above is a run that a blank cell in the
same place would have read wrongly.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainrig.catalog.published import training
from trainrig.errors import TrainrigError
from trainrig.prediction.step import predict_step
from trainrig.workload.memory import memory
from validation.normalise.case import Case, case_of
from validation.normalise.cells import UNSURE, Row
from validation.normalise.feasible import FULL, NOT_HELD
from validation.normalise.row_errors import measured_time
from validation.out_of_family import FIFTH, FOURTH, SIXTH, TABLE, THIRD, cell_of, read

CUT = math.log(3.0)
"""Residuals beyond a factor of three are another run than the row says, not a wider one."""
EIGHTY = 1.2816
"""Deviations of a normal distribution that 80 % lie within."""
FEWEST = 5
"""Cells with the column blank, and as many with it stated, below which nothing is said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Residual:
    """One row that was answered and says what was measured."""

    cell: str
    log: float
    """log(measured / predicted)."""
    own: float
    """Half width, on its side, where nothing is blank: the step's, and an uncompared program's."""
    presumed: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Width:
    """One column of `UNSURE`."""

    column: str
    num_rows: int
    """Where it is presumed."""
    num_cells: int
    with_it: float
    """80 % quantile of the absolute residual where it is presumed, cells weighing alike."""
    without: float
    found: float | None
    """The width that fits best; None: too few cells."""


def residual_of(row: Row, case: Case) -> Residual | None:
    """A row's residual; None where it does not say how long a step took."""
    try:
        step = predict_step(case.shape, case.timed, case.rates, head=case.head)
        off = math.log(measured_time(row, case) / step.total)
    except TrainrigError:
        return None
    faster, slower = step.faster, step.slower
    more = [math.sqrt(max(0.0, side**2 - case.spread**2)) for side in case.spreads]
    own = math.hypot(slower, more[1]) if off > 0.0 else math.hypot(faster, more[0])
    return Residual(cell=cell_of(row), log=off, own=own, presumed=frozenset(case.presumed))


def widths(residuals: Sequence[Residual]) -> list[Width]:
    """Each column of `UNSURE`, those first that most rows leave blank."""
    share = alike([residual.cell for residual in residuals])
    off = np.minimum([abs(residual.log) for residual in residuals], CUT)
    columns = [name for name in UNSURE if any(name in residual.presumed for residual in residuals)]
    blank = np.array([[name in residual.presumed for name in columns] for residual in residuals])
    own = np.array([residual.own for residual in residuals])
    squares = not_negative(blank * 1.0, (EIGHTY * off) ** 2 - own**2, share)
    fitted_widths = []
    for at, name in enumerate(columns):
        is_blank = blank[:, at]
        cells = [
            len(
                {
                    residual.cell
                    for residual, there in zip(residuals, is_blank, strict=True)
                    if there == side
                }
            )
            for side in (True, False)
        ]
        fitted_widths.append(
            Width(
                column=name,
                num_rows=int(is_blank.sum()),
                num_cells=cells[0],
                with_it=quantile(off[is_blank], share[is_blank]),
                without=quantile(off[~is_blank], share[~is_blank]),
                found=float(squares[at] ** 0.5) if min(cells) >= FEWEST else None,
            )
        )
    return sorted(fitted_widths, key=lambda residual: -residual.num_rows)


def held(residuals: Sequence[Residual], widths: Mapping[str, float]) -> float:
    """Share of the rows that lie in their interval by such widths, cells weighing alike."""
    share = alike([residual.cell for residual in residuals])
    wide = [
        math.hypot(residual.own, *(widths.get(n, 0.0) for n in residual.presumed))
        for residual in residuals
    ]
    inside = np.array([abs(residual.log) for residual in residuals]) <= wide
    return float((share * inside).sum() / share.sum())


def alike(cells: Sequence[str]) -> Any:
    """Weights of rows: each cell's add up to 1."""
    count = Counter(cells)
    return np.array([1.0 / count[cell] for cell in cells])


def not_negative(terms: Any, wanted: Any, weights: Any) -> Any:
    """The numbers ≥ 0, one a column of ``terms``, whose sums come nearest ``wanted``.

    Least weighted squares, a column at a time until nothing moves: few columns, and convex.
    """
    solution = np.zeros(terms.shape[1])
    scale = (weights[:, None] * terms**2).sum(axis=0)
    left = np.array(wanted, dtype=float)
    for _ in range(10_000):
        before = solution.copy()
        for at in range(len(solution)):
            more = (weights * terms[:, at] * left).sum() / max(scale[at], 1e-12)
            new = max(0.0, solution[at] + more)
            left -= (new - solution[at]) * terms[:, at]
            solution[at] = new
        if abs(solution - before).max() < 1e-9:
            break
    return solution


def quantile(values: Any, weights: Any, share: float = 0.8) -> float:
    """Of weighted values; NaN where there are none."""
    if not len(values):
        return math.nan
    order = np.argsort(values)
    reached = np.cumsum(weights[order]) / weights.sum()
    return float(values[order][np.searchsorted(reached, share - 1e-12)])


def needed(case: Case) -> float | None:
    """Share of a GPU's memory that a run needs by our count, where it states how it is kept."""
    if {"recompute", "zero_stage", "micro_batch", "kernel_stack", "layers"} & set(case.presumed):
        return None
    bytes_needed = memory(case.shape, case.layout, head=case.head).total
    return float(bytes_needed / case.rates.memory_bytes)


def cases() -> Iterable[tuple[Row, Case]]:
    """The rows of all tables that mean a case."""
    for rows in (training.read(), *map(read, (TABLE, THIRD, FOURTH, FIFTH, SIXTH))):
        for row in rows:
            try:
                yield row, case_of(row)
            except TrainrigError:
                continue


def main() -> None:
    """Print both tables."""
    known = list(cases())
    residuals = [
        residual for row, case in known if (residual := residual_of(row, case)) is not None
    ]
    print(f"{'':20}  rows  cells  80 % of it blank  stated   fits  in use")
    for width in widths(residuals):
        fits = "" if width.found is None else f"{width.found:.2f}"
        print(
            f"{width.column:20} {width.num_rows:5d} {width.num_cells:6d} {width.with_it:17.2f}"
            f" {width.without:7.2f} {fits:>6} {UNSURE[width.column]:7.2f}"
        )
    fitting = {width.column: width.found or 0.0 for width in widths(residuals)}
    print("\nheld in the interval of 80 %, mean of cells:")
    for words, each in (("as in use", UNSURE), ("as fits", fitting), ("none wider", {})):
        print(f"  {words:10} {held(residuals, each):6.1%}")
    shares = [(cell_of(row), share) for row, case in known if (share := needed(case)) is not None]
    weights = alike([cell for cell, _ in shares])
    above = np.array([share for _, share in shares])
    print(f"\nruns that state all of their memory: {len(shares)} in {len(set(dict(shares)))} cells")
    for name, limit in (("NOT_HELD", NOT_HELD), ("FULL", FULL), ("", 1.0)):
        share = (weights * (above > limit)).sum() / weights.sum()
        print(f"need more than {limit:.2f} of a GPU by our count {name:9} {share:6.1%}")


if __name__ == "__main__":
    main()
