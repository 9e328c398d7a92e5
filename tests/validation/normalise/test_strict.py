"""A published row becomes a strict row that the product answers nearly alike."""

from __future__ import annotations

import random
from statistics import fmean, median

import pytest
from validation.normalise.answers import time_of
from validation.normalise.case import case_of
from validation.normalise.cells import Row
from validation.normalise.columns import READ
from validation.normalise.row_errors import BY_FLOPS, TIMED
from validation.normalise.strict import model_text, normalise

from trainrig.catalog.published import training
from trainrig.cli.predict_options import case_columns
from trainrig.errors import TrainrigError
from trainrig.prediction.cases.answers import answer, errors_of
from trainrig.prediction.cases.columns import read_cells
from trainrig.prediction.cases.complete import check_row, complete
from trainrig.workload import named
from trainrig.workload.model_lookup import find
from validation import out_of_family

COLUMNS = case_columns()


def sample(count: int) -> list[Row]:
    rows = [*training.read(), *out_of_family.read(), *out_of_family.read(out_of_family.FIFTH)]
    return random.Random(40).sample(rows, count)


ROWS = sample(120)


def test_normalised_rows_are_answered_as_the_published_ones_are_read() -> None:
    ratios = []
    for row in ROWS:
        try:
            case = case_of(row)
        except TrainrigError:
            with pytest.raises(TrainrigError):
                normalise(row)
            continue
        strict = read_cells(normalise(row).row, COLUMNS)
        check_row(strict)
        ratios.append(answer(complete(strict)).time / time_of(case)[1])
    assert len(ratios) > 100
    assert median(ratios) == pytest.approx(1.0, abs=1e-6)
    assert fmean(abs(ratio - 1.0) for ratio in ratios) < 0.03
    assert sum(abs(ratio - 1.0) < 0.05 for ratio in ratios) > 0.85 * len(ratios)


def test_other_columns_and_their_order_change_nothing() -> None:
    chance = random.Random(41)
    for row in ROWS[:40]:
        try:
            expected = normalise(row)
        except TrainrigError:
            continue
        read = [name for name in row if name in (*READ, *TIMED, *BY_FLOPS)]
        chance.shuffle(read)
        assert normalise({"remarks": "flash", **{name: row[name] for name in read}}) == expected
        assert normalise(row) == expected  # and neither does having been asked before


def test_what_was_measured_comes_along() -> None:
    row = next(row for row in training.read() if row["step_time_s"] and not row["mean_seq"])
    strict = read_cells(normalise(row).row, COLUMNS)
    assert strict.measured["measured_step_s"] == float(row["step_time_s"])
    assert errors_of(answer(complete(strict)), strict.measured).time is not None


@pytest.mark.parametrize(
    ("name", "changes", "text"),
    [
        ("llama-7B", {}, "llama-7B"),
        ("gpt2-medium", {"vocab": 50304}, "gpt2:num_layers=24"),
        ("gemma-2-9B", {"num_layers": 4, "windows": (64, 0, 0, 0)}, "windows=64/0/0/0"),
    ],
)
def test_the_text_of_a_model_means_it(name: str, changes: dict[str, object], text: str) -> None:
    shape = named(name).replace(**changes)
    told = model_text(shape)
    assert text in told
    assert find(told).replace(name=name, rope_scaling=shape.position.rope_scaling) == shape
