"""How far off predicted steps are on tables that no constant was fitted to, beside a flat MFU.

    python -m validation.out_of_family             print it
    python -m validation.out_of_family --table F   of another table with the published one's columns
    ... --half choose|unseen                       of the sources that are dealt to that half
    ... --strict                                   by the product, asked with normalised rows

Three sets, and what may be decided by each:

    fit      catalog/published/training.csv: constants of the step's model, and nothing else
    choose   validation/published/training-2.csv: what the model is made of, its defaults, what a
             blank cell stands for.  A rule is kept where a document or a law of physics gives it
             and this set does not get worse; no number is fitted to it
    test     tables that are not here, looked at once by somebody else

A cell is a source's family on one chip; each weighs alike, however many rows it has.  A row that
is refused counts with the error of a flat MFU, which answers everything, and as wrong by all where
not even that knows its chip or its work; rows that print FLOPs alone, whose count nobody says, and
those whose source says that it does not name the chip, are left out.  An error is predicted /
measured - 1, of its absolute value where nothing else is said.  A third table's sources are dealt
by the first digit of the SHA-256 of their names: even to *choose*, odd to *unseen* (docs/log.md).
"""

from __future__ import annotations

import argparse
import csv
import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median

import numpy as np

from trainrig.catalog import find_chip
from trainrig.catalog.chip import peak
from trainrig.cli.predict_options import case_columns
from trainrig.errors import TrainrigError
from trainrig.prediction.cases.answers import answer, errors_of
from trainrig.prediction.cases.columns import read_cells
from trainrig.prediction.cases.complete import complete
from trainrig.workload import model_flops
from validation.normalise.answers import memory_of, time_of
from validation.normalise.case import Case, case_of
from validation.normalise.cells import Cells, Row
from validation.normalise.machines import chip_of
from validation.normalise.row_errors import TIMED, measured_time, positive
from validation.normalise.strict import normalise

TABLE = Path(__file__).parent / "published" / "training-2.csv"
THIRD, FOURTH, FIFTH, SIXTH, EIGHTH = (
    TABLE.with_name(f"training-{n}.csv") for n in (3, 4, 5, 6, 8)
)
"""Of the seventh no more was kept than what it came to (docs/log.md)."""
FLAT = 0.4
"""The share of the claimed dense peak that whoever knows nothing else reckons with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One row's errors: of the prediction, or why there is none, and of a flat MFU."""

    cell: str
    error: float | None
    inside: bool = False
    """True if the measured time lies in the stated interval of 80 %."""
    flat: float | None
    is_asked: bool = True
    """True if a refusal counts: `is_asked` of the row."""
    refused: str = ""
    memory: float | None = None
    """The error of a GPU's memory, where it is printed and predicted."""
    is_memory_inside: bool = False

    @property
    def scored(self) -> float | None:
        """The error that counts; None where nothing is measured that an answer could be held to."""
        if self.error is not None:
            return self.error
        return -1.0 if self.flat is None and self.is_asked else self.flat


@dataclass(frozen=True, slots=True, kw_only=True)
class CellLine:
    """The rows of one cell; shares from 0 to 1."""

    name: str
    num: int
    answered: float
    median: float
    p90: float
    bias: float
    inside: float
    """Of the rows that were answered."""
    flat: float | None
    """Median error of a flat MFU; None where no peak is claimed."""
    memory: float | None
    """Median error of a GPU's memory; None where no row prints it."""
    memory_inside: float | None


def outcome(row: Row) -> Outcome:
    """The errors of one row."""
    printed = flat_by_print(row)
    scored = Outcome(
        cell=cell_of(row),
        error=None,
        flat=flat_by_parameters(row) if printed is None else printed,
        is_asked=is_asked(row),
    )
    try:
        case = case_of(row)
    except TrainrigError as error:
        return replace(scored, refused=str(error))
    try:
        held, (low, memory, high) = positive(row, "memory_bytes_per_gpu"), memory_of(case)
        scored = replace(scored, memory=memory / held - 1.0, is_memory_inside=low <= held <= high)
    except TrainrigError:
        pass
    try:
        measured = measured_time(row, case)
        low, predicted, high = time_of(case)
    except TrainrigError as error:
        return replace(scored, refused=str(error))
    return replace(
        scored,
        error=predicted / measured - 1.0,
        inside=low <= measured <= high,
        flat=flat_error(case, measured),
    )


def strict_outcome(row: Row, tolerant: Outcome) -> Outcome:
    """The errors of one row where the product is asked with its normalised form.

    ``found``: those of the row as it is read, which has more words than options.
    """
    if tolerant.error is None:
        return tolerant
    try:
        strict = read_cells(normalise(row).row, case_columns())
        predicted = answer(complete(strict))
    except TrainrigError as error:
        return replace(tolerant, error=None, refused=str(error))
    errors = errors_of(predicted, strict.measured)
    return replace(tolerant, error=errors.time, inside=bool(errors.is_inside))


def is_asked(row: Row) -> bool:
    """Return whether a row prints how fast a step was, and its source names the chip."""
    return "not named" not in row["hardware"] and any(row.get(name) for name in TIMED)


def cell_of(row: Row) -> str:
    """A row's source and chip, as it is read; what its hardware says where that is none."""
    try:
        return f"{row['group']} {chip_of(Cells(row)).name}"
    except TrainrigError:
        return f"{row['group']} {row['hardware']}"


def flat_error(case: Case, measured: float) -> float | None:
    """A flat MFU's error; None where no peak is claimed."""
    x = case.layout
    claim = peak(case.chip, x.precision.compute)
    if claim is None:
        return None
    flops = model_flops(case.shape, int(x.global_batch), case.timed.batch.seq_len)
    return flops / (FLAT * claim.rate * int(x.mesh.gpus)) / measured - 1.0


def flat_by_print(row: Row) -> float | None:
    """A flat MFU's error where only the printed utilisation says how fast the step was."""
    printed = row.get("mfu") or ""
    return float(printed) / FLAT - 1.0 if printed else None


def flat_by_parameters(row: Row) -> float | None:
    """A flat MFU's error of a row without a layout: six FLOPs a parameter and token."""
    chip = find_chip(row["chip"]) or find_chip(row["hardware"])
    claim = peak(chip, "bf16") if chip else None
    try:
        flops = 6e9 * positive(row, "params_b") * positive(row, "tokens_per_s_per_gpu")
    except TrainrigError:
        return None
    return flops / (FLAT * claim.rate) - 1.0 if claim else None


def cell_lines(outcomes: Iterable[Outcome]) -> list[CellLine]:
    """One line a cell, by name; rows whose measured time isn't known are left out."""
    groups: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        if outcome.scored is not None:
            groups.setdefault(outcome.cell, []).append(outcome)
    lines = []
    for name, members in sorted(groups.items()):
        signed = [outcome.scored for outcome in members if outcome.scored is not None]
        errors = [abs(outcome) for outcome in signed]
        answered = [outcome for outcome in members if outcome.error is not None]
        memory = [outcome for outcome in members if outcome.memory is not None]
        flat = [abs(outcome.flat) for outcome in members if outcome.flat is not None]
        lines.append(
            CellLine(
                name=name,
                num=len(members),
                answered=len(answered) / len(members),
                median=median(errors),
                p90=float(np.quantile(errors, 0.9)),
                bias=median(signed),
                inside=fmean(outcome.inside for outcome in answered) if answered else 0.0,
                flat=median(flat) if flat else None,
                memory=median(abs(outcome.memory or 0.0) for outcome in memory) if memory else None,
                memory_inside=fmean(outcome.is_memory_inside for outcome in memory)
                if memory
                else None,
            )
        )
    return lines


def summary(cells: Sequence[CellLine]) -> CellLine:
    """The mean over cells; its ``inside`` over those with an answer."""
    inside = [cell.inside for cell in cells if cell.answered]
    memory = [cell.memory for cell in cells if cell.memory is not None]
    memory_inside = [cell.memory_inside for cell in cells if cell.memory_inside is not None]
    return CellLine(
        name="mean of cells",
        num=sum(cell.num for cell in cells),
        answered=fmean(cell.answered for cell in cells),
        median=fmean(cell.median for cell in cells),
        p90=fmean(cell.p90 for cell in cells),
        bias=fmean(cell.bias for cell in cells),
        inside=fmean(inside) if inside else 0.0,
        flat=fmean(cell.flat for cell in cells if cell.flat is not None),
        memory=fmean(memory) if memory else None,
        memory_inside=fmean(memory_inside) if memory_inside else None,
    )


def read(path: Path = TABLE) -> list[Row]:
    """The rows of a table."""
    with path.open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


def half_of(group: str) -> str:
    """Return which half of a third table a source is dealt to: choose, or unseen."""
    digit = int(hashlib.sha256(group.encode()).hexdigest()[0], 16)
    return "unseen" if digit % 2 else "choose"


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--table", type=Path, default=TABLE)
    parser.add_argument("--strict", action="store_true", help="by the product, with strict rows")
    parser.add_argument("--half", choices=("choose", "unseen"))
    options = parser.parse_args(argv)
    rows = [row for row in read(options.table) if options.half in (None, half_of(row["group"]))]
    outcomes = [outcome(row) for row in rows]
    if options.strict:
        outcomes = [strict_outcome(*pair) for pair in zip(rows, outcomes, strict=True)]
    cells = cell_lines(outcomes)
    table = [*cells, summary(cells)]
    wide = max(len(one.name) for one in table)
    print(
        f"{'':{wide}}     n  answered  median     p90    bias  in 80 %  flat MFU  memory  in 80 %"
    )
    for one in table:
        print(
            f"{one.name:{wide}} {one.num:5d} {one.answered:9.0%} {one.median:7.1%} {one.p90:7.1%}"
            f" {one.bias:+7.1%} {one.inside:8.0%} {_share(one.flat, 1):>9}"
            f" {_share(one.memory, 1):>7} {_share(one.memory_inside, 0):>8}"
        )
    refused = Counter(one.refused for one in outcomes if one.refused)
    print(f"\nrefused, {sum(refused.values())} of {len(rows)}:")
    for why, num in refused.most_common(12):
        print(f"  {num} x {why}")


def _share(value: float | None, digits: int) -> str:
    """A share in percent; nothing where there is none."""
    return "" if value is None else f"{value:.{digits}%}"


if __name__ == "__main__":
    main()
