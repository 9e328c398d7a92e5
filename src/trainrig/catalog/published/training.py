"""Published training steps: rows for the predictor to be checked against, not records.

Each row is a whole training step as its source printed it: model, devices, layout, seconds of a
step or tokens a second, memory.  ``grade`` A: every field that the layout needs is known; B: up to
two are missing or presumed; C: weaker.  ``group`` names the source's family: its rows share what is
not printed (software, clocks), so that a fair test leaves out whole groups.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from trainrig.catalog.published.rows import Row, read_rows

PATH = Path(__file__).parent / "training.csv"


def read() -> Iterator[Row]:
    """The rows, in the table's order.  Raises DataError."""
    for _, row in read_rows(PATH):
        yield row
