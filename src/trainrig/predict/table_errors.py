"""How far off predictions are on a table that says what was measured: errors by group and by chip.

An error is predicted / measured - 1.  Each group counts the same in a mean, however many rows it
has.  Left out: rows of grade C, rows whose batches are filled from bins (the printed length is a
maximum), and rows that came into the table after the constants were settled (`calibration`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from trainrig.errors import DataError, TrainrigError
from trainrig.predict.step.calibration import LAST_CHANGED
from trainrig.predict.table import Case, case_of, time_of
from trainrig.predict.table_words import Cells, Row
from trainrig.stats import ErrorSummary, grouped, summarise_errors


@dataclass(frozen=True, slots=True)
class RowError:
    """One row: what was measured and what is predicted."""

    number: int
    """From 0."""
    row: Row
    case: Case
    measured: float
    low: float
    predicted: float
    high: float

    @property
    def group(self) -> str:
        """Whose figure it is."""
        return self.row.get("group", "")

    @property
    def error(self) -> float:
        """Predicted over measured, less one."""
        return self.predicted / self.measured - 1.0

    @property
    def inside(self) -> bool:
        """Whether the measured time lies in the 80 % interval."""
        return self.low <= self.measured <= self.high


def left_out_by(row: Row) -> str:
    """Why a row does not count although it could be predicted; empty where it counts."""
    return "added after the constants were settled" if is_unseen(row) else weak(row)


def is_unseen(row: Row) -> bool:
    """Whether a row was added after the constants were settled."""
    return row.get("unseen_since", "") > LAST_CHANGED


def weak(row: Row) -> str:
    """Why a row says little however old it is; empty where it counts."""
    if row.get("grade", "") not in ("A", "B", ""):  # a table without grades counts whole
        return "grade C"
    if Cells(row)["mean_seq"]:
        return "batches are filled from bins: the sequence length is a maximum"
    return ""


def row_errors(
    rows: Iterable[Row], left_out: Callable[[Row], str] = left_out_by
) -> tuple[list[RowError], Counter[str]]:
    """Step times of the rows that count; how many do not, by reason."""
    found: list[RowError] = []
    refused: Counter[str] = Counter()
    for number, row in enumerate(rows):
        if reason := left_out(row):
            refused[reason] += 1
            continue
        try:
            case = case_of(row)
            found.append(RowError(number, row, case, measured_time(row, case), *time_of(case)))
        except TrainrigError as error:
            refused[str(error)] += 1
    return found, refused


def measured_time(row: Row, case: Case) -> float:
    """Seconds of a step as printed, or from samples or tokens a second.  DataError without any.

    A step of a batch that nobody prints says nothing: there a rate counts, where one is printed.
    """
    is_open = "global_batch" in case.unstated and not Cells(row)["global_batch"]
    is_rate = is_open and (row.get("tokens_per_s_per_gpu") or "").strip()
    if (row.get("step_time_s") or "").strip() and not is_rate:
        return positive(row, "step_time_s")
    if (row.get("samples_per_s") or "").strip():
        return float(case.layout.global_batch / positive(row, "samples_per_s"))
    tokens = case.layout.global_batch * case.timed.seq_len / case.layout.gpus
    return float(tokens / positive(row, "tokens_per_s_per_gpu"))


def positive(row: Row, name: str) -> float:
    """A number above 0 of a cell.  DataError where it is none."""
    try:
        value = float(row.get(name) or 0.0)
    except ValueError:
        value = 0.0
    if not 0.0 < value < 1e18:
        raise DataError(f"{name}: nothing measured")
    return value


def lines(found: Iterable[RowError], name: Callable[[RowError], str]) -> list[ErrorSummary]:
    """Errors by name, in the order of their first rows."""
    return [line(key, members) for key, members in grouped(found, name).items()]


def line(name: str, members: Sequence[RowError]) -> ErrorSummary:
    """Errors of some rows, at least one."""
    return summarise_errors(name, [one.error for one in members], [one.inside for one in members])


def mean_of_medians(groups: Sequence[ErrorSummary]) -> float:
    """Each group counts the same."""
    return sum(one.median_error for one in groups) / len(groups)


def error_table(found: list[RowError], refused: Counter[str]) -> str:
    """Errors by group and by chip of one row or more, and the mean of the groups' medians."""
    by_group = lines(found, lambda one: one.group or "(no group)")
    by_chip = lines(found, lambda one: one.case.chip.name)
    everything = line("all", found)
    parts = [
        plain_table("group", by_group),
        plain_table("chip", by_chip),
        f"mean of the groups' medians {mean_of_medians(by_group):.1%}; all {everything.count} rows:"
        f" median {everything.median_error:.1%}, 90th percentile {everything.p90_error:.1%}",
    ]
    if refused:
        counted = refused.most_common(12)
        parts.append("not counted: " + "; ".join(f"{n} × {why}" for why, n in counted))
    return "\n\n".join(parts)


def plain_table(first: str, table: Sequence[ErrorSummary]) -> str:
    """Columns in monospace."""
    wide = max(len(first), *(len(one.name) for one in table))
    head = f"{first:{wide}}     n  median     p90   worst    bias  in 80 %"
    rows = [
        f"{one.name:{wide}} {one.count:5d} {one.median_error:7.1%} {one.p90_error:7.1%}"
        f" {abs(one.worst_error):7.1%} {one.bias:+7.1%} {one.coverage or 0.0:8.0%}"
        for one in table
    ]
    return "\n".join([head, *rows])
