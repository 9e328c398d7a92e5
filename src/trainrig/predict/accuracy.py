"""How far predictions are off: published steps against what is predicted for them.

Answers the error of step times by group of sources and by chip (median and 90th percentile of the
absolute error, worst, bias, share of rows inside the 80 % interval), and the same for memory.  An
error is predicted / measured - 1.  Each group counts the same in a mean, however many rows it has.

What is left out: rows of grade C, rows that are no step (memory only), rows without a shape or a
chip of the catalog, Transformer-XL, context parallel, 4-bit weights, and cards that are printed as
limited below their data sheet (`cases` refuses all of these); and BERT's second phase in NVIDIA's
examples, whose loader fills batches from bins of 64 tokens (its README), so that the printed 512 is
a maximum.  These last were noticed by their errors; they are predicted with a presumed mean length,
which was chosen by them.

Rows that came into the table after the constants were settled take no part in any of this: they are
what nobody had looked at, and stand in a line of their own (`unseen`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainrig.errors import TrainrigError
from trainrig.predict.cases_words import is_binned
from trainrig.predict.table import Case, Row, case_of, memory_of, time_of

if TYPE_CHECKING:
    from trainrig.predict.step.calibration import Constants
    from trainrig.predict.step.profile import Profile

GRADES = ("A", "B", "")
"""Those that count; a table without grades counts whole."""
SETTLED = "2026-11-20T16:00"
"""When the constants were last changed, in `predict/step.toml` or elsewhere: rows that were
added to the table later (its column ``unseen_since``) are unseen.  Whoever refits sets it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
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
class Line:
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


def outcomes(rows: Iterable[Row]) -> tuple[list[Outcome], dict[str, int]]:
    """Step times of all rows that count; how many do not, by reason."""
    return _sorted_out(rows, left_out_by)


def unseen(rows: Iterable[Row]) -> tuple[list[Outcome], dict[str, int]]:
    """The same of the rows that were added after the constants were settled, of these alone."""
    return _sorted_out(filter(is_unseen, rows), _weak)


def _sorted_out(
    rows: Iterable[Row], left_out: Callable[[Row], str]
) -> tuple[list[Outcome], dict[str, int]]:
    found: list[Outcome] = []
    refused: dict[str, int] = {}
    for number, row in enumerate(rows):
        one = left_out(row) or _outcome(number, row)
        if isinstance(one, Outcome):
            found.append(one)
        else:
            refused[one] = refused.get(one, 0) + 1
    return found, refused


def _outcome(number: int, row: Row) -> Outcome | str:
    try:
        case = case_of(row)
        measured = measured_time(row, case)
        low, predicted, high = time_of(case)
    except TrainrigError as error:
        return str(error)
    return Outcome(
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
    return _weak(row)


def is_unseen(row: Row) -> bool:
    """Whether a row was added after the constants were settled."""
    return row.get("unseen_since", "") > SETTLED


def _weak(row: Row) -> str:
    if row.get("grade", "") not in GRADES:
        return "grade C"
    if is_binned(row):
        return "batches are filled from bins: the sequence length is a maximum"
    return ""


def memory_outcomes(rows: Iterable[Row], *, later: bool = False) -> list[Outcome]:
    """Bytes a GPU of all rows that state them; ``group`` is the kind of figure.

    ``later``: of the unseen rows alone.
    """
    found = []
    for number, row in enumerate(rows):
        kind = row.get("memory_kind", "")
        if (
            is_unseen(row) is not later
            or _weak(row)
            or kind not in ("allocated", "reserved", "device")
        ):
            continue
        try:
            case = case_of(row)
            low, predicted, high = memory_of(case, row)
            measured = positive(row, "memory_bytes_per_gpu")
        except TrainrigError:
            continue
        label = label_of(row, case)
        found.append(
            Outcome(
                row=number,
                group=kind,
                chip=case.chip.name,
                label=f"{row.get('group', '')}: {label}",
                measured=measured,
                low=low,
                predicted=predicted,
                high=high,
            )
        )
    return found


def measured_time(row: Row, case: Case) -> float:
    """Seconds of a step as printed, or from tokens a second.  DataError where neither is."""
    if (row.get("step_time_s") or "").strip():
        return positive(row, "step_time_s")
    tokens = case.layout.global_batch * case.layout.seq / case.layout.gpus
    return float(tokens / positive(row, "tokens_per_s_per_gpu"))


def positive(row: Row, name: str) -> float:
    """A number above 0 of a cell.  DataError where it is none."""
    from trainrig.errors import DataError

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
    how = f"tp {one.tp} pp {one.pp} zero {one.zero}, {one.micro_batch} × {one.grad_accum}"
    name = (row.get("model") or case.shape.name)[:32]
    return (
        f"{name} on {one.gpus} {case.chip.name}, {how} of {one.seq}, "
        f"{one.precision}, {one.kernels}, recompute {one.recompute}"
    )


def lines(found: Iterable[Outcome], name: Callable[[Outcome], str]) -> list[Line]:
    """Errors by name, in the order of their first rows."""
    groups: dict[str, list[Outcome]] = {}
    for one in found:
        groups.setdefault(name(one), []).append(one)
    return [line(key, members) for key, members in groups.items()]


def line(name: str, members: list[Outcome]) -> Line:
    """Errors of some outcomes, at least one."""
    from statistics import median

    errors = sorted(abs(one.error) for one in members)
    return Line(
        name=name,
        num=len(members),
        median=median(errors),
        p90=quantile(errors, 0.9),
        worst=errors[-1],
        bias=median(one.error for one in members),
        coverage=sum(one.inside for one in members) / len(members),
    )


def quantile(ordered: list[float], share: float) -> float:
    """Of an ordered list, between its neighbours in proportion."""
    at = share * (len(ordered) - 1)
    below = int(at)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (at - below) * (ordered[above] - ordered[below])


def mean_of_medians(groups: list[Line]) -> float:
    """Each group counts the same."""
    return sum(one.median for one in groups) / len(groups)


def spearman(found: list[Outcome]) -> float:
    """Rank correlation of measured and predicted times; ties share their mean rank."""
    a, b = (_ranks([getattr(o, name) for o in found]) for name in ("measured", "predicted"))
    mean = (len(found) - 1) / 2.0
    cross = sum((x - mean) * (y - mean) for x, y in zip(a, b, strict=True))
    squares = [sum((x - mean) ** 2 for x in ranks) for ranks in (a, b)]
    return float(cross / (squares[0] * squares[1]) ** 0.5)


def _ranks(values: list[float]) -> list[float]:
    order = sorted(values)
    last = {value: at for at, value in enumerate(order)}
    first = {value: len(order) - 1 - at for at, value in enumerate(reversed(order))}
    return [(first[value] + last[value]) / 2.0 for value in values]


def table_words(found: list[Outcome], refused: dict[str, int]) -> str:
    """The error table by group and by chip, and the mean of the groups' medians."""
    if not found:
        reasons = "; ".join(f"{n} × {why}" for why, n in refused.items())
        return f"No row with a measured step could be predicted: {reasons or 'the table is empty'}."
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


def plain_table(first: str, table: list[Line]) -> str:
    """Columns in monospace."""
    wide = max(len(first), *(len(one.name) for one in table))
    head = f"{first:{wide}}     n  median     p90   worst    bias  in 80 %"
    rows = [
        f"{one.name:{wide}} {one.num:5d} {one.median:7.1%} {one.p90:7.1%} {one.worst:7.1%}"
        f" {one.bias:+7.1%} {one.coverage:8.0%}"
        for one in table
    ]
    return "\n".join([head, *rows])


def profiled(rows: Iterable[Row]) -> tuple[list[tuple[int, Row, Case, float]], Profile]:
    """Every row that counts with its measured time, and the profile of all of them."""
    from trainrig.predict.step.profile import profile, stack

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


def composed(
    kept: list[tuple[int, Row, Case, float]], found: Profile, constants: Constants
) -> list[Outcome]:
    """Outcomes of profiled rows with other constants than the fitted ones."""
    import numpy as np

    from trainrig.predict.step import compose

    step = compose(found, constants)
    spread = np.exp(np.hypot(step.spread, [case.spread for _, _, case, _ in kept]))
    total: Any = step.total
    return [
        Outcome(
            row=number,
            group=row.get("group", ""),
            chip=case.chip.name,
            label=label_of(row, case),
            measured=measured,
            low=float(total[at] / spread[at]),
            predicted=float(total[at]),
            high=float(total[at] * spread[at]),
        )
        for at, (number, row, case, measured) in enumerate(kept)
    ]
