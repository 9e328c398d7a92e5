"""How far off predicted steps are when what they are fitted to is of another kind.

    python -m validation.protocols            the three protocols, priors and a flat MFU beside them
    python -m validation.protocols --cells    and each cell of the first

family       the constants are fitted without one family of software, which is then scored
generation   without one class of chips
origin       on what was printed until the end of a year; what came later is scored, once a year

The constants are fitted to the rows of `training.csv`, as those that are shipped; the rows of
`training-2.csv` are scored beside them.  A cell is a source on one chip; cells weigh alike, but no
source more than `MOST` of all.  A row that is refused counts with the error of a flat 40 % MFU.
"""

from __future__ import annotations

import argparse
import dataclasses
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from trainrig.catalog.published import training
from trainrig.errors import TrainrigError
from trainrig.predict.rates.from_chip import class_of
from trainrig.predict.step import compose
from trainrig.predict.step.calibration import BELIEVED, Constants, fitted
from trainrig.predict.step.profile import profile
from trainrig.predict.table import case_of
from trainrig.predict.table_errors import left_out_by, measured_time
from trainrig.predict.table_words import Row
from validation.fit_step import TARGET, composed, fit, is_stated, stack
from validation.out_of_family import Outcome, cell_of, flat_by_print, flat_error, read

MOST = 0.05
"""Weight of one source, at most, of all."""
_FAMILIES = (
    # The first whose words a group or a framework begins with; groups that are none: by themselves.
    ("megatron until 2022", r"megatron2021|korthikanti|bigscience|vtrain|tf-bench.* megatron"),
    ("megatron-core", r"mcore|simumax|dgxc.* nvidia nemo"),
    ("nvidia containers", r"dle|lambda"),
    ("jax", r"jax|dgxc"),
    ("torch fsdp", r"mosaic|torchtitan"),
    ("torchtune, litgpt", r"torchtune|litgpt|milabench.* torchtune"),
    ("hugging face", r"tf-bench|stas|milabench|gist"),
)
_YEARS = {
    # Of the sources' files as collected; papers' and posts' own dates (sources.toml has the days).
    "megatron2021": 2021,
    "megatron2021-t2": 2021,
    "korthikanti": 2022,
    "bigscience-176b": 2022,
    "tf-bench": 2022,
    "dle-bert": 2022,
    "dle-bart": 2023,
    "llama-paper": 2023,
    "tf-bench-4090": 2023,
    "vtrain-multi": 2024,
    "vtrain-single": 2024,
    "mosaic": 2024,
    "lambda": 2024,
    "litgpt": 2024,
    "llm.c": 2024,
    "internevo": 2024,
    "modded-nanogpt": 2024,
    "mcore-h100-weak": 2024,
    "gist-llama7b": 2024,
    "jax-toolbox": 2024,
    "torchtitan": 2024,
    "dgxc": 2025,
}
"""Year in which a group was printed; later ones and those without a date: 2026."""


@dataclass(frozen=True, slots=True)
class Known:
    """A row that is scored, with what the protocols leave out of it."""

    row: Row
    cell: str
    family: str
    generation: str
    year: int
    flat: float | None
    place: int | None
    """Among the profiled rows; None: refused."""
    is_fitted: bool


@dataclass(frozen=True, slots=True)
class Score:
    """One protocol: means over cells by weight, as shares."""

    median: float
    p90: float
    inside: float
    answered: float
    cells: tuple[tuple[str, int, float, float, float, float], ...]
    """Name, rows, median, p90, bias, inside."""


def family_of(row: Row) -> str:
    """The family of software that a row's program belongs to."""
    words = f"{row.get('group', '')} {row.get('framework', '')}".lower()
    return next((name for name, known in _FAMILIES if re.match(known, words)), row["group"])


@cache
def known() -> tuple[tuple[Known, ...], list[Any], Any]:
    """Every row of both tables that can be scored; those with an answer, and their profile."""
    rows = [(row, True) for row in training.read()] + [(row, False) for row in read()]
    found: list[Known] = []
    kept: list[Any] = []
    profiles = []
    for row, is_fitted in rows:
        if (left_out_by(row) and is_fitted) or not has_time(row):
            continue
        place, generation, flat = None, "refused", flat_by_print(row)
        try:
            case = case_of(row)
            measured = measured_time(row, case)
            profiles.append(profile(case.shape, case.layout, case.rates, case.head))
            place, generation = len(kept), class_of(case.chip)
            flat = flat_error(case, measured)
            kept.append((place, row, case, measured))
        except TrainrigError:
            pass
        one = Known(
            *(row, cell_of(row), family_of(row), generation, _YEARS.get(row["group"], 2026)),
            *(flat, place, is_fitted and is_stated(row)),
        )
        found.append(one)
    return tuple(found), kept, stack(profiles)


def has_time(row: Row) -> bool:
    """Whether a row prints how long a step took."""
    return bool((row.get("step_time_s") or "").strip() or row.get("tokens_per_s_per_gpu"))


def outcomes(constants: Constants, of: Iterable[Known]) -> list[Outcome]:
    """Errors of rows by some constants."""
    _, kept, found = known()
    errors = composed(kept, found, constants)
    return [
        Outcome(
            cell=one.cell,
            error=None if one.place is None else errors[one.place].error,
            inside=one.place is not None and errors[one.place].inside,
            flat=one.flat,
        )
        for one in of
    ]


def fitted_without(left: Callable[[Known], bool]) -> Constants:
    """Constants fitted to the rows of the first table that are not left out, and their width."""
    rows, kept, found = known()
    chosen = [o.place for o in rows if o.place is not None and o.is_fitted and not left(o)]
    if not chosen:
        return BELIEVED
    part = {name: getattr(found, name)[..., chosen] for name in found.__slots__}
    constants = fit([kept[place] for place in chosen], type(found)(**part))
    rest = [one for one in rows if one.place is not None and not left(one)]
    return dataclasses.replace(constants, width=width_of(rest, ratios(constants)))


def score(found: Sequence[Outcome]) -> Score:
    """Weighted means over the cells of some outcomes."""
    groups: dict[str, list[Outcome]] = {}
    for one in found:
        if one.scored is not None:
            groups.setdefault(one.cell, []).append(one)
    table = []
    for name, members in sorted(groups.items()):
        signed = np.array([one.scored for one in members], dtype=float)
        inside = [one.inside for one in members if one.error is not None]
        answered = len(inside) / len(members)
        low = float(np.mean(inside)) if inside else np.nan
        sizes = (float(np.median(abs(signed))), float(np.quantile(abs(signed), 0.9)))
        table.append((name, len(members), *sizes, float(np.median(signed)), low, answered))
    weight = weights([name.split()[0] for name in groups_of(table)])
    columns = np.array([line[2:] for line in table], dtype=float)
    mean = {at: float(np.sum(weight * columns[:, at])) for at in (0, 1, 4)}
    is_some = ~np.isnan(columns[:, 3])
    held = np.sum((weight * columns[:, 3])[is_some]) / max(np.sum(weight[is_some]), 1e-9)
    cells = tuple(line[:6] for line in table)
    return Score(mean[0], mean[1], float(held), mean[4], cells)


def groups_of(table: Sequence[tuple[Any, ...]]) -> list[str]:
    """Names of the cells."""
    return [str(line[0]) for line in table]


def weights(sources: Sequence[str]) -> Any:
    """Of cells, by their sources: alike, but none of the sources has more than `MOST`."""
    count = Counter(sources)
    most = max(MOST, 1.0 / len(count))
    share = {name: num / len(sources) for name, num in count.items()}
    for _ in range(len(share)):
        over = {name for name, one in share.items() if one > most + 1e-12}
        if not over:
            break
        rest = sum(one for name, one in share.items() if name not in over and one < most)
        spare = sum(share[name] - most for name in over)
        share = {
            name: most if name in over or one >= most else one * (1.0 + spare / rest)
            for name, one in share.items()
        }
    return np.array([share[name] / count[name] for name in sources])


def ratios(constants: Constants) -> Any:
    """Of each profiled row, its error against what the parts of its step are unsure by.

    Of the error, what blank cells and an unknown class of chips are allowed is taken off first.
    """
    _, kept, found = known()
    own = np.array([case.spread for _, _, case, _ in kept])
    measured = np.array([time for _, _, _, time in kept])
    step = compose(found, dataclasses.replace(constants, width=1.0))
    wide = np.sqrt(np.maximum(step.spread**2 - found.unsure**2, 1e-12))
    rest = np.log(step.total / measured) ** 2 - own**2 - found.unsure**2
    return np.sqrt(np.maximum(rest, 0.0)) / wide


def width_of(answered: Sequence[Known], ratio: Any) -> float:
    """`Constants.width` that holds `TARGET` of answered rows, cells weighing as in `score`.

    Families are what is drawn, not rows: of fewer than four there is no quantile of 80 % for the
    next one (conformal: the (n + 1)·0.8-th of n), and what was believed is the least.
    """
    cells = [one.cell for one in answered]
    names = list(dict.fromkeys(cells))
    each = dict(zip(names, weights([name.split()[0] for name in names]), strict=True))
    share = np.array([each[cell] / cells.count(cell) for cell in cells])
    of_rows = ratio[np.array([one.place for one in answered], dtype=int)]
    ordered = np.argsort(of_rows)
    at = min(int(np.searchsorted(np.cumsum(share[ordered]), TARGET)), len(ordered) - 1)
    width = float(of_rows[ordered][at])
    families = len({one.family for one in answered})
    return width if families >= TARGET / (1.0 - TARGET) else max(width, BELIEVED.width)


def conformal_width() -> float:
    """`Constants.width` that holds `TARGET` of the rows of families that a fit has not seen."""
    rows, kept, _ = known()
    found = np.full(len(kept), np.nan)
    for name in dict.fromkeys(one.family for one in rows):
        left = fitted_without(lambda one, name=name: one.family == name)  # type: ignore[misc]
        places = [one.place for one in rows if one.family == name and one.place is not None]
        found[places] = ratios(left)[places]
    return width_of([one for one in rows if one.place is not None], found)


def by_parts(part: Callable[[Known], str]) -> Score:
    """Each part scored by constants that were fitted without it."""
    rows, _, _ = known()
    found: list[Outcome] = []
    for name in dict.fromkeys(map(part, rows)):
        members = [one for one in rows if part(one) == name]
        left = fitted_without(lambda one, name=name: part(one) == name)  # type: ignore[misc]
        found += outcomes(left, members)
    return score(found)


def rolling() -> Score:
    """Each year's rows by constants fitted to the years before: one outcome a row."""
    rows, _, _ = known()
    years = sorted({one.year for one in rows})
    found: list[Outcome] = []
    for year in years[1:]:
        constants = fitted_without(lambda one, year=year: one.year >= year)  # type: ignore[misc]
        found += outcomes(constants, [one for one in rows if one.year == year])
    return score(found)


def flat_score() -> Score:
    """A flat 40 % MFU on the same rows."""
    rows, _, _ = known()
    return score(
        [Outcome(cell=one.cell, error=None, flat=one.flat) for one in rows if one.flat is not None]
    )


def protocols() -> dict[str, Score]:
    """Every protocol by name, and what stands beside them."""
    rows, _, _ = known()
    return {
        "one family of software left out": by_parts(lambda one: one.family),
        "one generation of chips left out": by_parts(lambda one: one.generation),
        "fitted until a year, the next scored": rolling(),
        "unfitted priors": score(outcomes(BELIEVED, rows)),
        "shipped constants": score(outcomes(fitted(), rows)),
        "flat 40 % MFU": flat_score(),
    }


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cells", action="store_true")
    options = parser.parse_args(argv)
    found = protocols()
    print(f"{'':38} cells  median     p90  in 80 %  answered")
    for name, one in found.items():
        print(
            f"{name:38} {len(one.cells):5d} {one.median:7.1%} {one.p90:7.1%} {one.inside:8.0%}"
            f" {one.answered:9.0%}"
        )
    if options.cells:
        print(f"\n{'':44}     n  median     p90    bias  in 80 %")
        for name, num, middle, p90, bias, inside in next(iter(found.values())).cells:
            print(f"{name:44} {num:5d} {middle:7.1%} {p90:7.1%} {bias:+7.1%} {inside:8.0%}")


if __name__ == "__main__":
    main()
