"""How far off predictions are on a table that says what was measured: errors by group and by chip.

An error is predicted / measured - 1.  Each group counts the same in a mean, however many rows it
has.  Left out: rows of grade C, rows whose batches are filled from bins (the printed length is a
maximum), and rows that came into the table after the constants were settled (`calibration`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from trainrig.catalog.chip import peak
from trainrig.errors import DataError, TrainrigError
from trainrig.prediction.step.calibration import LAST_CHANGED
from trainrig.stats import ErrorSummary, grouped, summarise_errors
from trainrig.workload import model_flops
from validation.normalise.answers import time_of
from validation.normalise.case import Case, case_of
from validation.normalise.cells import Cells, Row


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
        """Return whether the measured time lies in the 80 % interval."""
        return self.low <= self.measured <= self.high


def left_out_by(row: Row) -> str:
    """Return why a row does not count although it could be predicted; empty where it counts."""
    return "added after the constants were settled" if is_unseen(row) else weak(row)


def is_unseen(row: Row) -> bool:
    """Return whether a row was added after the constants were settled."""
    return row.get("unseen_since", "") > LAST_CHANGED


def weak(row: Row) -> str:
    """Return why a row says little however old it is; empty where it counts."""
    if row.get("grade", "") not in ("A", "B", ""):  # a table without grades counts whole
        return "grade C"
    if Cells(row)["mean_seq"]:
        return "batches are filled from bins: the sequence length is a maximum"
    return ""


def row_errors(
    rows: Iterable[Row], left_out: Callable[[Row], str] = left_out_by
) -> tuple[list[RowError], Counter[str]]:
    """Step times of the rows that count; how many do not, by reason."""
    errors: list[RowError] = []
    refused: Counter[str] = Counter()
    for number, row in enumerate(rows):
        if reason := left_out(row):
            refused[reason] += 1
            continue
        try:
            case = case_of(row)
            errors.append(RowError(number, row, case, measured_time(row, case), *time_of(case)))
        except TrainrigError as error:
            refused[str(error)] += 1
    return errors, refused


def says_time(row: Row) -> bool:
    """Say whether a row prints how long a step took, in any way; of no other is there an error."""
    return any((row.get(name) or "").strip() for name in (*TIMED, *BY_FLOPS))


def measured_time(row: Row, case: Case) -> float:
    """Seconds of a step as printed, or from samples, tokens or FLOPs a second; DataError without.

    A step of a batch that nobody prints says nothing: there a rate counts, where one is printed.
    """
    printed = [name for name in (*TIMED, *BY_FLOPS) if (row.get(name) or "").strip()]
    is_open = {"global_batch", "grad_accum"} & {*case.presumed} and not Cells(row)["global_batch"]
    if is_open and {*TIMED[1:]} & {*printed} and "step_time_s" in printed:
        printed.remove("step_time_s")
    first = printed[0] if printed else "tokens_per_s_per_gpu"
    if first == "step_time_s":
        return positive(row, first)
    if first == "samples_per_s":
        return float(case.layout.global_batch / positive(row, first))
    if first in BY_FLOPS:
        return _time_by_flops(row, case)
    tokens = case.layout.global_batch * case.timed.batch.seq_len / case.layout.mesh.gpus
    return float(tokens / positive(row, first))


TIMED = ("step_time_s", "samples_per_s", "tokens_per_s_per_gpu")
"""Columns that say how long a step took; the first that is printed counts."""
BY_FLOPS = ("tflops_per_gpu", "mfu")
"""And those that say it by the FLOPs of a step."""
_CONVENTIONS = 0.1
"""Share of a step's FLOPs, from which on it is not known which of them were counted."""


def _time_by_flops(row: Row, case: Case) -> float:
    """Seconds of a step from TFLOP/s a GPU or its share of the claimed peak.

    Model FLOPs are meant, without what is computed again (PaLM's MFU, arXiv 2204.02311, appendix
    B).  DataError where they need not be: beside recomputation under a program that may count it,
    unless the MFU is printed, too; where the scores that some leave out, masked or outside of
    windows, are more than a tenth of all; of adapters; an MFU alone of fp8, whose peak may be
    bf16's.
    """
    x, seq = case.layout, int(case.timed.batch.seq_len)
    flops = model_flops(case.shape, int(x.global_batch), seq)
    seen = model_flops(case.shape, int(x.global_batch), seq, half=True)
    whole = case.shape if case.shape.state.width else case.shape.replace(windows=())
    masked = 1.0 - seen / model_flops(whole, int(x.global_batch), seq)
    is_again = x.memory.recompute == "full" and Cells(row).program.saving.counts_recomputation
    if (is_again and not row.get("mfu")) or masked > _CONVENTIONS or x.lora.rank:
        raise DataError("FLOPs are printed, and which were counted is not")
    if (row.get("tflops_per_gpu") or "").strip():
        rate = 1e12 * positive(row, "tflops_per_gpu")
    else:
        claim, share = peak(case.chip, x.precision.compute), positive(row, "mfu")
        if claim is None or x.precision.compute == "fp8":
            raise DataError("mfu: of which peak is not known")
        rate = claim.rate * (share / 100.0 if share > 1.0 else share)
    return float(flops / (rate * int(x.mesh.gpus)))


def positive(row: Row, name: str) -> float:
    """A number above 0 of a cell.  DataError where it is none."""
    try:
        value = float(row.get(name) or 0.0)
    except ValueError:
        value = 0.0
    if not 0.0 < value < 1e18:
        raise DataError(f"{name}: nothing measured")
    return value


def lines(errors: Iterable[RowError], name: Callable[[RowError], str]) -> list[ErrorSummary]:
    """Errors by name, in the order of their first rows."""
    return [line(key, members) for key, members in grouped(errors, name).items()]


def line(name: str, members: Sequence[RowError]) -> ErrorSummary:
    """Errors of some rows, at least one."""
    return summarise_errors(
        name,
        [row_error.error for row_error in members],
        [row_error.inside for row_error in members],
    )


def mean_of_medians(groups: Sequence[ErrorSummary]) -> float:
    """Each group counts the same."""
    return sum(group.median_error for group in groups) / len(groups)
