"""The one rule for "best": the largest lower bound wins, and its label comes from its case.

A measured value is what its device does at least: noise only slows.  So a noisy value is valid, as
the best of several and as the ceiling of what lies below it, and is shown with ``≥``.  Of what is
the better the less there is of it (seconds, watts, joules) the smallest upper bound wins, shown
with ``≤``.  Where a cache may make a worker too fast (`Benchmark.two_sided`: disks) a noisy value
is no bound: such a point counts with the slow end of its interval, and is shown with ``~``.

Headline, key numbers, waterfalls, roofline, heat maps, burn, links, imports and comparisons all
ask here.  docs/definitions.md says the same in one paragraph.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import suppress

from trainrig.analysis.rows import Row
from trainrig.benchmarks.spec import find
from trainrig.catalog import find_chip
from trainrig.errors import UsageError
from trainrig.record import Record, Status, less_is_better
from trainrig.units import format_quantity

AT_LEAST, AT_MOST, ABOUT = "≥", "≤", "~"
"""Bounds that a noisy value puts on the true one; a clean value's bound is empty."""
_OPPOSITE = {AT_LEAST: AT_MOST, AT_MOST: AT_LEAST, ABOUT: ABOUT, "": ""}
_BOUND_WORDS = {AT_LEAST: "at least ", AT_MOST: "at most ", ABOUT: "about ", "": ""}


# ---- which value is valid, and what it says


def is_valid(record: Record | None) -> bool:
    """Return whether a record has a value that counts: right, finite, above zero, noisy or not."""
    if record is None or record.status is not Status.OK or record.value is None:
        return False
    return math.isfinite(record.value) and record.value > 0.0


def valid_value(record: Record | None) -> float:
    """Return the value of a valid record; 0 for any other."""
    return float(record.value or 0.0) if record is not None and is_valid(record) else 0.0


def bound_of(record: Record) -> str:
    """Return how a record's value bounds the true one: `AT_LEAST`, `AT_MOST`, `ABOUT`, or empty."""
    if record.disturbed is None:
        return ""
    if _is_two_sided(record):
        return ABOUT
    return AT_MOST if less_is_better(record.unit) else AT_LEAST


def _is_two_sided(record: Record) -> bool:
    spec = find(record.benchmark)
    return spec is not None and spec.two_sided


def sure_value(record: Record) -> float:
    """Return the bound that a valid record ranks by: its value, or the slow end."""
    value = valid_value(record)
    if bound_of(record) != ABOUT or record.interval is None:
        return value
    low, high = record.interval
    return high if less_is_better(record.unit) else max(0.0, low)


def is_headline(record: Record | None) -> bool:
    """Return whether a record has the first metric of its case: one training has a dozen more."""
    spec = find(record.benchmark) if record is not None else None
    if record is None or spec is None:
        return record is not None
    with suppress(KeyError, ValueError, TypeError, UsageError):  # the case may be a stranger's
        return record.metric == spec.metrics(record.case)[0].name
    return record.metric.endswith("_rate")


# ---- the best of several


def best_value(values: Iterable[float], unit: str) -> float | None:
    """Return the best of some values of one unit; None where there is none."""
    return (min if less_is_better(unit) else max)(values, default=None)


def best_record(records: Iterable[Record | None]) -> Record | None:
    """Return the best valid record of one unit; of equal ones a clean one, then the first."""
    return max(
        (record for record in records if record is not None and is_valid(record)),
        key=_rank,
        default=None,
    )


def _rank(record: Record) -> tuple[float, bool]:
    sign = -1.0 if less_is_better(record.unit) else 1.0
    return sign * sure_value(record), record.disturbed is None


def best_row(rows: Iterable[Row]) -> Row | None:
    """Return the row with the best point; where none is valid the first; else None."""
    tried = [row for row in rows if row.measured is not None]
    valid = [row for row in tried if is_valid(row.measured)]
    return max(valid, key=lambda row: _rank(_point(row)), default=next(iter(tried), None))


def _point(row: Row) -> Record:
    assert row.measured is not None
    return row.measured


# ---- in words


def with_bound_sign(text: str, bound: str) -> str:
    """Return the text of a number with the sign of its bound: ``≥ 128 GFLOPS``."""
    return f"{bound} {text}".lstrip()


def with_bound_words(text: str, bound: str) -> str:
    """Return the text of a number with its bound within a sentence: ``at least 128 GFLOPS``."""
    return _BOUND_WORDS[bound] + text


def value_text(record: Record) -> str:
    """Return a record's value with its bound: ``161 TFLOPS``, ``≥ 128 GFLOPS``, ``≤ 10.2 µs``."""
    return with_bound_sign(format_quantity(record.value or 0.0, record.unit), bound_of(record))


def share_bound(value: str, ceiling: str) -> str:
    """Return the bound of a share, from those of a value and of its ceiling.

    What is at least so much is at least this share; of a ceiling that is at least so much it is at
    most this share.
    """
    both = {value, _OPPOSITE[ceiling]} - {""}
    return both.pop() if len(both) == 1 else ABOUT if both else ""


# ---- what a share is of


REFERENCE, CLAIM = "reference", "claim"


def is_reference(record: Record) -> bool:
    """Return whether the bound of a record is computed from a clock that the machine reports.

    A processor under load runs at another clock than it reports, so its computed peak is a
    reference to compare with, not a ceiling.  A chip of the catalog has a data sheet.
    """
    is_arithmetic = record.unit in ("FLOP/s", "OP/s")
    return is_arithmetic and record.device_index is None and find_chip(record.device or "") is None


def claim_word(record: Record) -> str:
    """Return the word for the claim of a record's device: ``claim``, or ``reference``."""
    return REFERENCE if is_reference(record) else CLAIM


# ---- the data type of a headline


_TRAINS_IN = {
    True: ("bf16", "fp16", "tf32", "fp32", "fp8"),
    False: ("fp32", "bf16"),
}
"""By whether it is a GPU: what training computes in there.  Processors train in fp32, or in bf16
where they have it; fp16 is emulated on nearly all of them, and no trainer uses it there."""


def is_trained_in(dtype: str, *, is_gpu: bool) -> bool:
    """Return whether training uses a data type on a GPU, or on a processor."""
    return dtype in _TRAINS_IN[is_gpu]
