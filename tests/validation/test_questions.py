"""Public questions are asked by their columns alone, and answered no worse than they were."""

from __future__ import annotations

import csv

import pytest
from validation.questions import QUESTIONS, Answer, ask, options_of

with QUESTIONS.open(encoding="utf-8", newline="") as lines:
    ROWS = {row["id"]: row for row in csv.DictReader(lines)}


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("S01", {"framework": "unsloth", "lora_rank": 16, "quantize": "nf4", "grad_accum": 4}),
        ("S02", {"lora_rank": 16, "quantize": "none"}),
        ("U03", {"lora_rank": 32, "quantize": "nf4", "seq_len": 5789}),
        ("T02", {"tp": 8, "zero": 3, "recompute": "full", "lora_rank": 0}),
        ("T06", {"recompute": "none", "kernels": "compiled"}),
        ("L08", {"zero": 3, "offload": "host", "framework": "llamafactory"}),
        ("D06", {"lora_rank": 8, "quantize": "int8"}),
    ],
)
def test_a_row_says_what_its_words_say(row: str, said: dict[str, object]) -> None:
    options = options_of(ROWS[row])
    assert {name: options.get(name) for name in said} == said


def test_no_program_is_named_where_the_row_names_none() -> None:
    assert "framework" not in options_of(ROWS["V01"])


def test_the_answers_are_no_worse_than_they_were() -> None:
    """Before programs had their defaults: no false yes, 20 false noes, 8 refused, memory 108 %."""
    answers = [ask(row) for row in ROWS.values()]
    judged = [one for one in answers if one.row["reported_runs"]]
    assert sum(one.verdict == "refused" for one in answers) <= 2
    assert count(judged, "fits", "no") <= 3
    assert count(judged, "does not fit", "yes") <= 4


def count(answers: list[Answer], verdict: str, ran: str) -> int:
    return sum(one.verdict == verdict and one.row["reported_runs"] == ran for one in answers)
