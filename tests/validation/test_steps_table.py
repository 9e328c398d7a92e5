"""The published steps as options of `predict` are those of the table that sources printed."""

from __future__ import annotations

from trainrig.catalog.published import training
from trainrig.prediction.published_runs import SAME
from trainrig.workload.layout import PLACES
from validation import steps_table


def test_the_file_is_what_the_printed_table_says() -> None:
    assert training.STEPS.read_text(encoding="utf-8") == steps_table.text(), (
        "python -m validation.steps_table --write"
    )


def test_each_column_that_must_agree_is_a_key_of_a_layout() -> None:
    assert set(SAME) <= PLACES.keys()
