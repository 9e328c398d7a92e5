"""How far off predictions are on a table that says what was measured: errors by group and by chip.

An error is predicted / measured - 1.  Each group counts the same in a mean, however many rows it
has.  Left out: rows of grade C, rows whose batches are filled from bins (the printed length is a
maximum), and rows that came into the table after the constants were settled (`calibration`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from statistics import median

from trainrig.errors import DataError, TrainrigError
from trainrig.predict.step.calibration import LAST_CHANGED
from trainrig.predict.table import Case, case_of, time_of
from trainrig.predict.table_words import Row, cell

GRADES = ("A", "B", "")
"""Rows that count; a table without grades counts whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowError:
    """One row: what was measured and what is predicted."""

    row: int
    """From 0."""
    group: str
    chip: str
    label: str
    """The run in words."""
    measured: float
    low: float
    predicted: float
    high: float

    @property
    def error(self) -> float:
        """Predicted over measured, less one."""
        return self.predicted / self.measured - 1.0

    @property
    def inside(self) -> bool:
        """Whether what was measured lies in the interval."""
        return self.low <= self.measured <= self.high


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorLine:
    """The errors of some outcomes."""

    name: str
    num: int
    median: float
    """Of the absolute error, as are the next two."""
    p90: float
    worst: float
    bias: float
    """Median of the error itself."""
    coverage: float
    """Share inside the 80 % interval."""


def outcomes(
    rows: Iterable[Row], left_out: Callable[[Row], str] | None = None
) -> tuple[list[RowError], dict[str, int]]:
    """Step times of the rows that count; how many do not, by reason.

    ``left_out``: why a row does not count, empty where it does; `left_out_by` where none is given.
    """
    found: list[RowError] = []
    refused: dict[str, int] = {}
    for number, row in enumerate(rows):
        one = (left_out or left_out_by)(row) or _outcome(number, row)
        if isinstance(one, RowError):
            found.append(one)
        else:
            refused[one] = refused.get(one, 0) + 1
    return found, refused


def _outcome(number: int, row: Row) -> RowError | str:
    try:
        case = case_of(row)
        measured = measured_time(row, case)
        low, predicted, high = time_of(case)
    except TrainrigError as error:
        return str(error)
    return RowError(
        row=number,
        group=row.get("group", ""),
        chip=case.chip.name,
        label=label_of(row, case),
        measured=measured,
        low=low,
        predicted=predicted,
        high=high,
    )


def left_out_by(row: Row) -> str:
    """Why a row does not count although it could be predicted; empty where it counts."""
    if is_unseen(row):
        return "added after the constants were settled"
    return weak(row)


def is_unseen(row: Row) -> bool:
    """Whether a row was added after the constants were settled."""
    return row.get("unseen_since", "") > LAST_CHANGED


def weak(row: Row) -> str:
    """Why a row says little however old it is; empty where it counts."""
    if row.get("grade", "") not in GRADES:
        return "grade C"
    if cell(row, "mean_seq"):
        return "batches are filled from bins: the sequence length is a maximum"
    return ""


def measured_time(row: Row, case: Case) -> float:
    """Seconds of a step as printed, or from tokens a second.  DataError where neither is."""
    if (row.get("step_time_s") or "").strip():
        return positive(row, "step_time_s")
    tokens = case.layout.global_batch * case.layout.seq_len / case.layout.gpus
    return float(tokens / positive(row, "tokens_per_s_per_gpu"))


def positive(row: Row, name: str) -> float:
    """A number above 0 of a cell.  DataError where it is none."""
    text = (row.get(name) or "").strip()
    try:
        value = float(text) if text else 0.0
    except ValueError:
        value = 0.0
    if not 0.0 < value < 1e18:
        raise DataError(f"{name}: nothing measured")
    return value


def label_of(row: Row, case: Case) -> str:
    """``MPT-7b on 8 A100 SXM4 80GB, tp 1 pp 1 zero 3, 2 × 16 of 2048, flash``."""
    one = case.layout
    how = f"tp {one.tp} pp {one.pp} zero {one.zero}, {one.batch_size} × {one.grad_accum}"
    name = (row.get("model") or case.shape.name)[:32]
    return (
        f"{name} on {one.gpus} {case.chip.name}, {how} of {one.seq_len}, "
        f"{one.precision}, {one.kernels}, recompute {one.recompute}"
    )


def lines(found: Iterable[RowError], name: Callable[[RowError], str]) -> list[ErrorLine]:
    """Errors by name, in the order of their first rows."""
    groups: dict[str, list[RowError]] = {}
    for one in found:
        groups.setdefault(name(one), []).append(one)
    return [line(key, members) for key, members in groups.items()]


def line(name: str, members: list[RowError]) -> ErrorLine:
    """Errors of some outcomes, at least one."""
    import numpy as np

    errors = sorted(abs(one.error) for one in members)
    return ErrorLine(
        name=name,
        num=len(members),
        median=median(errors),
        p90=float(np.quantile(errors, 0.9)),
        worst=errors[-1],
        bias=median(one.error for one in members),
        coverage=sum(one.inside for one in members) / len(members),
    )


def mean_of_medians(groups: list[ErrorLine]) -> float:
    """Each group counts the same."""
    return sum(one.median for one in groups) / len(groups)


def error_table(found: list[RowError], refused: dict[str, int]) -> str:
    """Errors by group and by chip of one outcome or more, and the mean of the groups' medians."""
    by_group = lines(found, lambda one: one.group or "(no group)")
    parts = [plain_table("group", by_group), plain_table("chip", lines(found, lambda o: o.chip))]
    everything = line("all", found)
    parts.append(
        f"mean of the groups' medians {mean_of_medians(by_group):.1%}; all {everything.num} rows:"
        f" median {everything.median:.1%}, 90th percentile {everything.p90:.1%}"
    )
    if refused:
        counted = sorted(refused.items(), key=lambda item: -item[1])
        parts.append("not counted: " + "; ".join(f"{n} × {why}" for why, n in counted[:12]))
    return "\n\n".join(parts)


def plain_table(first: str, table: list[ErrorLine]) -> str:
    """Columns in monospace."""
    wide = max(len(first), *(len(one.name) for one in table))
    head = f"{first:{wide}}     n  median     p90   worst    bias  in 80 %"
    rows = [
        f"{one.name:{wide}} {one.num:5d} {one.median:7.1%} {one.p90:7.1%} {one.worst:7.1%}"
        f" {one.bias:+7.1%} {one.coverage:8.0%}"
        for one in table
    ]
    return "\n".join([head, *rows])
