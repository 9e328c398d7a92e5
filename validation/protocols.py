"""How far off predicted steps are when what they are fitted to is of another kind.

    python -m validation.protocols            the three protocols, priors and a flat MFU beside them
    python -m validation.protocols --cells    and each cell of the first
    python -m validation.protocols --write    what was compared, for the intervals (compared.toml)

family       the constants are fitted without one family of software, which is then scored
generation   without one class of chips
origin       on what was printed until the end of a year; what came later is scored, once a year

The constants are fitted to the rows of `training.csv`, as those that are shipped; the rows of
`training-2.csv` are scored beside them, and in lines of their own those of `training-3.csv`, too,
each of whose sources is a family.  A cell is a source on one chip; cells weigh alike, but no source
more than `MOST` of all.  A row that is refused counts as `validation.out_of_family` says.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from trainrig.catalog.published import training
from trainrig.errors import TrainrigError
from trainrig.prediction.rates.from_chip import class_of
from trainrig.prediction.step.calibration import BELIEVED, Constants, fitted
from trainrig.prediction.step.profile import Profile, profile
from validation.fit_step import SIDES, composed, fit, is_stated, ratios, stack, with_sides
from validation.normalise.case import case_of
from validation.normalise.cells import Cells, Row
from validation.normalise.row_errors import left_out_by, measured_time
from validation.normalise.training_programs import COMPARED, compared, program_of
from validation.out_of_family import (
    THIRD,
    Outcome,
    cell_of,
    flat_by_print,
    flat_error,
    is_asked,
    read,
)

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
    table: int
    """1 to 3; constants are fitted to rows of the first."""
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


Pair = tuple[Known, Outcome]


def family_of(row: Row) -> str:
    """The family of software that a row's program belongs to."""
    words = f"{row.get('group', '')} {row.get('framework', '')}".lower()
    return next((name for name, known in _FAMILIES if re.match(known, words)), row["group"])


@cache
def known() -> tuple[tuple[Known, ...], list[Any], Any]:
    """Every row of the tables that can be scored; those with an answer, and their profile."""
    rows = [(row, 1) for row in training.read()] + [(row, 2) for row in read()]
    rows += [(row, 3) for row in read(THIRD)]
    found: list[Known] = []
    kept: list[Any] = []
    profiles = []
    for row, table in rows:
        is_fitted = table == 1
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
        row_known = Known(
            row=row,
            cell=cell_of(row),
            family=row["group"] if table == 3 else family_of(row),
            generation=generation,
            year=year_of(row),
            flat=flat,
            place=place,
            table=table,
            is_fitted=is_fitted and is_stated(row),
        )
        found.append(row_known)
    return tuple(found), kept, stack(profiles)


def year_of(row: Row) -> int:
    """The year in which a row was printed."""
    return _YEARS.get(row["group"]) or int((row.get("date") or "2026")[:4])


def has_time(row: Row) -> bool:
    """Return whether a row prints how long a step took."""
    return bool((row.get("step_time_s") or "").strip() or row.get("tokens_per_s_per_gpu"))


def outcomes(constants: Constants, rows: Iterable[Known]) -> list[Outcome]:
    """Errors of rows by some constants."""
    _, kept, profile = known()
    errors = composed(kept, profile, constants)
    return [
        Outcome(
            cell=row.cell,
            error=None if row.place is None else errors[row.place].error,
            inside=row.place is not None and errors[row.place].inside,
            flat=row.flat,
            is_asked=is_asked(row.row),
        )
        for row in rows
    ]


def fitted_without(left: Callable[[Known], bool]) -> Constants:
    """Constants fitted to the rows of the first table that are not left out, and their sides."""
    rows, kept, profile = known()
    places = tuple(o.place for o in rows if o.place is not None and o.is_fitted and not left(o))
    constants = _fitted_to(places)
    rest = [o for o in rows if o.place is not None and o.table < 3 and not left(o)]
    return sides_of(rest, constants, ratios(kept, profile, constants))


@cache
def _fitted_to(places: tuple[int, ...]) -> Constants:
    """Constants fitted to some of the profiled rows; what is believed where there are none."""
    _, kept, profile = known()
    if not places:
        return BELIEVED
    part = {name: values[..., places] for name, values in profile.flat().items()}
    return fit([kept[place] for place in places], Profile.of(**part))


def score(outcomes: Sequence[Outcome]) -> Score:
    """Weighted means over the cells of some outcomes."""
    groups: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        if outcome.scored is not None:
            groups.setdefault(outcome.cell, []).append(outcome)
    table = []
    for name, members in sorted(groups.items()):
        signed = np.array([outcome.scored for outcome in members], dtype=float)
        inside = [outcome.inside for outcome in members if outcome.error is not None]
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


def sides_of(answered: Sequence[Known], constants: Constants, ratios: Any) -> Constants:
    """The constants with the interval's sides that hold `TARGET` of answered rows (`ratios`).

    Cells weigh as in `score`.  What is believed is the least: what is published in tables is more
    regular than what the next one prints, and of few families there is no quantile.
    """
    if not answered:
        return constants
    cells = [row.cell for row in answered]
    names = list(dict.fromkeys(cells))
    weight_by_cell = dict(zip(names, weights([name.split()[0] for name in names]), strict=True))
    share = np.array([weight_by_cell[cell] / cells.count(cell) for cell in cells])
    sided = with_sides(constants, ratios[[row.place for row in answered]], share)
    least = {name: max(getattr(sided, name), getattr(BELIEVED, name)) for name in SIDES}
    return dataclasses.replace(sided, **least)


def conformal(constants: Constants) -> Constants:
    """With the interval's sides of rows of families that a fit has not seen, of two tables.

    Those of the third are other programs, or on other chips: `table` has what is wider for them.
    """
    rows, kept, profiles = known()
    row_ratios = np.full(len(kept), np.nan)
    for name in dict.fromkeys(row.family for row in rows if row.table == 1):
        left = fitted_without(lambda row, name=name: row.family == name)  # type: ignore[misc]
        places = [row.place for row in rows if row.family == name and row.place is not None]
        row_ratios[places] = ratios(kept, profiles, left)[places]
    others = np.isnan(row_ratios)  # of families that no fit has seen
    row_ratios[others] = ratios(kept, profiles, constants)[others]
    known_runs = [row for row in rows if row.place is not None and row.table < 3]
    return sides_of(known_runs, constants, row_ratios)


def compared_runs() -> str:
    """The text of `compared.toml`: programs and chips of the first two tables' rows."""
    chips: dict[str, set[str]] = {}
    for row in (*training.read(), *read()):
        if has_time(row) and not left_out_by(row):
            try:
                chip = case_of(row).chip.name
            except TrainrigError:
                continue
            program = program_of(Cells(row).word("framework")).name
            chips.setdefault(program, set()).add(chip)
    head = "# Written by python -m validation.protocols --write; `training_programs` reads it."
    lines = [head, "schema = 1", ""]
    for name, of in sorted(chips.items()):
        listed = "".join(f"  {json.dumps(chip)},\n" for chip in sorted(of))
        lines += ["[[compared]]", f"program = {json.dumps(name)}", f"chips = [\n{listed}]", ""]
    return "\n".join(lines)


def by_parts(part: Callable[[Known], str]) -> list[Pair]:
    """Each part by constants that were fitted without it."""
    rows, _, _ = known()
    pairs: list[Pair] = []
    for name in dict.fromkeys(map(part, rows)):
        members = [row for row in rows if part(row) == name]
        left = fitted_without(lambda row, name=name: part(row) == name)  # type: ignore[misc]
        pairs += zip(members, outcomes(left, members), strict=True)
    return pairs


def rolling() -> list[Pair]:
    """Each year's rows by constants fitted to the years before."""
    rows, _, _ = known()
    years = sorted({row.year for row in rows})
    pairs: list[Pair] = []
    for year in years[1:]:
        constants = fitted_without(lambda row, year=year: row.year >= year)  # type: ignore[misc]
        members = [row for row in rows if row.year == year]
        pairs += zip(members, outcomes(constants, members), strict=True)
    return pairs


def flat(rows: Iterable[Known]) -> list[Outcome]:
    """Errors of rows by a flat MFU."""
    return [
        Outcome(cell=row.cell, error=None, flat=row.flat, is_asked=is_asked(row.row))
        for row in rows
    ]


def over_time() -> dict[int, tuple[Score, Score, Score]]:
    """By year of three tables' rows: fitted to the years before, by priors, by a flat MFU."""
    scores_by_year: dict[int, tuple[Score, Score, Score]] = {}
    pairs = rolling()
    for year in sorted({row.year for row, _ in pairs}):
        members = [row for row, _ in pairs if row.year == year]
        fitted_before = [outcome for row, outcome in pairs if row.year == year]
        if any(row.scored is not None for row in fitted_before):
            priors = outcomes(BELIEVED, members)
            scores_by_year[year] = (score(fitted_before), score(priors), score(flat(members)))
    return scores_by_year


def folds() -> dict[str, Score]:
    """Each family of software of two tables by constants that were fitted without it."""
    pairs = [pair for pair in by_parts(lambda row: row.family) if pair[0].table < 3]
    outcomes_by_family: dict[str, list[Outcome]] = {}
    for row, outcome in pairs:
        outcomes_by_family.setdefault(row.family, []).append(outcome)
    ordered = sorted(outcomes_by_family.items(), key=lambda item: -len(item[1]))
    return {name: score(outcomes) for name, outcomes in ordered}


@cache
def protocols() -> dict[str, tuple[Score, Score]]:
    """Every protocol by name, and what stands beside them: of two tables, and of all three."""
    rows, _, _ = known()
    pairs_by_protocol = {
        "one family of software left out": by_parts(lambda row: row.family),
        "one generation of chips left out": by_parts(lambda row: row.generation),
        "fitted until a year, the next scored": rolling(),
        "unfitted priors": list(zip(rows, outcomes(BELIEVED, rows), strict=True)),
        "shipped constants": list(zip(rows, outcomes(fitted(), rows), strict=True)),
        "flat 40 % MFU": list(zip(rows, flat(rows), strict=True)),
    }
    return {
        name: (
            score([outcome for row, outcome in pairs if row.table < 3]),
            score([outcome for _, outcome in pairs]),
        )
        for name, pairs in pairs_by_protocol.items()
    }


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cells", action="store_true")
    parser.add_argument("--write", action="store_true", help="write compared.toml first")
    options = parser.parse_args(argv)
    if options.write:
        COMPARED.write_text(compared_runs(), encoding="utf-8")
        compared.cache_clear()
    scores_by_protocol = protocols()
    for at, of in enumerate(("training.csv and training-2.csv", "and training-3.csv, too")):
        print(f"{of:38} cells  median     p90  in 80 %  answered")
        for name, scores in scores_by_protocol.items():
            one = scores[at]
            print(
                f"{name:38} {len(one.cells):5d} {one.median:7.1%} {one.p90:7.1%} {one.inside:8.0%}"
                f" {one.answered:9.0%}"
            )
    if options.cells:
        print(f"\n{'':44}     n  median     p90    bias  in 80 %")
        for name, num, middle, p90, bias, inside in next(iter(scores_by_protocol.values()))[
            1
        ].cells:
            print(f"{name:44} {num:5d} {middle:7.1%} {p90:7.1%} {bias:+7.1%} {inside:8.0%}")


if __name__ == "__main__":
    main()
