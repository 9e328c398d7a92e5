"""Refitting the step's constants, and what they are worth on sources that they have not seen.

`fit` minimises the mean over groups of the mean absolute logarithm of predicted over measured, each
group counting the same, errors beyond one half counting a tenth (rows that are printed wrong, or
whose layout is not what is printed), and a weak pull towards what was believed beforehand.  The
search goes through the constants one by one in ever smaller steps: no luck is involved.
`left_out` repeats it without each group.  The rates that steps are made of are not refitted: they
come from products, streams and collectives alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import numpy as np

from trainrig.catalog.published import training
from trainrig.errors import TrainrigError
from trainrig.prediction.step import compose
from trainrig.prediction.step.calibration import BELIEVED, PATH, Constants, fitted
from trainrig.prediction.step.profile import Profile, profile
from validation.normalise.case import Case, case_of
from validation.normalise.cells import Cells, Row
from validation.normalise.row_errors import RowError, left_out_by, measured_time

BOUNDS = {
    "attention": (0.6, 3.5),
    "newest": (1.0, 2.0),  # no kernel is faster inside a step than by itself
    "streams": (0.7, 1.2),
    "launch": (0.8, 6.0),
}
"""What is fitted, and what is physically sensible; a fit that ends at a bound says that something
is missing.  The other constants are stated: fitted ones were no better, or worse, on rows of other
software and later chips, which nothing is fitted to (`validation.out_of_family`; docs/log.md)."""

SIDES = ("faster", "slower")
"""The half widths of the interval, from rows of families that a fit has not seen."""
PULL = 0.02
"""Loss for a factor of e away from what was believed."""
TARGET = 0.8
"""Share of rows that the interval is to hold."""


def stated() -> list[Row]:
    """The published rows that state their chip, at its own power.

    Others came to be answered when the constants were settled, and have a line of their own
    (`accuracy.printed`).
    """
    return [row for row in training.read() if is_stated(row)]


def is_stated(row: Row) -> bool:
    """Return whether a row names its chip, and no limit of its power."""
    cells = Cells(row)
    return bool(cells["chip"]) and "limit" not in cells.word("hardware")


def profiled(rows: Iterable[Row]) -> tuple[list[tuple[int, Row, Case, float]], Profile]:
    """Every row that counts with its measured time, and the profile of all of them."""
    kept, profiles = [], []
    for number, row in enumerate(rows):
        if left_out_by(row):
            continue
        try:
            case = case_of(row)
            measured = measured_time(row, case)
            profiles.append(profile(case.shape, case.layout, case.rates, case.head))
        except TrainrigError:
            continue
        kept.append((number, row, case, measured))
    return kept, stack(profiles)


def stack(profiles: list[Profile]) -> Profile:
    """One profile over the layouts of all."""
    values = [one.flat() for one in profiles]
    return Profile.of(**{name: np.stack([one[name] for one in values], -1) for name in values[0]})


def write(constants: Constants) -> None:
    """Make these the fitted ones."""
    header = (
        "# Written by validation/accuracy.py --fit; prediction/step/calibration.py says what each"
        " means."
    )
    values = {name: getattr(constants, name) for name in (*BOUNDS, *SIDES)}
    lines = [header, "schema = 1", "", "[step]", *(f"{n} = {v:.4g}" for n, v in values.items())]
    PATH.write_text("\n".join(lines) + "\n", encoding="utf-8")
    fitted.cache_clear()


def composed(
    kept: list[tuple[int, Row, Case, float]], profile: Profile, constants: Constants
) -> list[RowError]:
    """Outcomes of profiled rows with other constants than the fitted ones."""
    step = compose(profile, constants)
    low, high = step.interval_with(*np.array([case.spreads for _, _, case, _ in kept]).T)
    total: Any = step.total
    return [
        RowError(
            number=number,
            row=row,
            case=case,
            measured=measured,
            low=float(low[at]),
            predicted=float(total[at]),
            high=float(high[at]),
        )
        for at, (number, row, case, measured) in enumerate(kept)
    ]


def fit(kept: list[Any], profile: Profile, left_out_group: str | None = None) -> Constants:
    """Constants fitted to all groups but one; their interval's sides from the same groups."""
    groups = np.array([row.get("group", "") for _, row, _, _ in kept])
    measured = np.array([time for _, _, _, time in kept])
    weights = _weights(groups, left_out_group)
    names = list(BOUNDS)

    def loss(vector: list[float]) -> float:
        constants = dataclasses.replace(BELIEVED, **dict(zip(names, vector, strict=True)))
        error = np.log(compose(profile, constants).total / measured)
        size = np.sqrt(error**2 + 0.015**2)
        size = np.minimum(size, 0.5 + 0.1 * size)
        pull = sum(
            PULL * np.log(value / getattr(BELIEVED, name)) ** 2
            for name, value in zip(names, vector, strict=True)
        )
        return float((weights * size).sum() + pull)

    vector = _descend(loss, [getattr(BELIEVED, name) for name in names], names)
    best = dataclasses.replace(BELIEVED, **dict(zip(names, vector, strict=True)))
    return with_sides(best, ratios(kept, profile, best), weights)


def _weights(groups: Any, left_out_group: str | None) -> Any:
    """Each group counts the same, the one that is left out nothing."""
    weights = np.array([1.0 / (groups == group).sum() for group in groups])
    weights[groups == left_out_group] = 0.0
    return weights / weights.sum()


def _descend(loss: Any, start: list[float], names: list[str]) -> list[float]:
    """Each constant in turn by a factor, while that helps; then by a smaller one."""
    vector, best = list(start), loss(start)
    for step in (1.3, 1.12, 1.05, 1.02, 1.008):
        for _ in range(12):
            before = best
            for at, name in enumerate(names):
                for factor in (step, 1.0 / step):
                    low, high = BOUNDS[name]
                    tried = [*vector]
                    tried[at] = min(max(vector[at] * factor, low), high)
                    value = loss(tried)
                    if value < best:
                        vector, best = tried, value
                        break
            if before - best < 1e-6:
                break
    return vector


def ratios(kept: list[Any], profile: Profile, constants: Constants) -> Any:
    """Of each row, its error against what the parts of its step are unsure by; below 0: faster.

    Of the error, what blank cells and an unknown class of chips are allowed is taken off first.
    """
    step = compose(profile, dataclasses.replace(constants, faster=1.0, slower=1.0))
    error = np.log(np.array([time for _, _, _, time in kept]) / step.total)
    faster, slower = np.array([case.spreads for _, _, case, _ in kept]).T
    allowed = np.where(error < 0, faster, slower) ** 2 + profile.unsure**2
    parts = np.sqrt(np.maximum(step.slower**2 - profile.unsure**2, 1e-12))
    return np.sign(error) * np.sqrt(np.maximum(error**2 - allowed, 0.0)) / parts


def with_sides(constants: Constants, found: Any, weights: Any) -> Constants:
    """The constants with the sides outside of which is one row in ten each (`TARGET` inside)."""
    order = np.argsort(found)
    reached = np.cumsum(weights[order])
    tail = (1.0 - TARGET) / 2.0 * reached[-1]
    first, last = np.searchsorted(reached, (tail, reached[-1] - tail))
    low, high = found[order][[first, min(last, len(order) - 1)]]
    return dataclasses.replace(
        constants, faster=max(-float(low), 0.0), slower=max(float(high), 0.0)
    )


def left_out(kept: list[Any], profile: Profile) -> list[RowError]:
    """Outcomes of every group by constants that were fitted without it."""
    groups = dict.fromkeys(row.get("group", "") for _, row, _, _ in kept)
    outcomes = []
    for group in groups:
        constants = fit(kept, profile, left_out_group=group)
        outcomes += [
            outcome for outcome in composed(kept, profile, constants) if outcome.group == group
        ]
    return sorted(outcomes, key=lambda outcome: outcome.number)
