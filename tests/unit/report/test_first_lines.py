"""The first lines of an answer are the answer: the program and its defaults come behind it."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from trainrig.cli.main import cli

COST = "cost --model gpt2 --on 4090 --tokens 2e9 --buy 2000 --rent-per-gpu-hour 0.5"


def shown(line: str) -> str:
    result = CliRunner().invoke(cli, line.split(), env={"COLUMNS": "200"})
    assert result.exit_code in (0, 1), result.output
    return result.output


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        (COST, "2.00B tokens: "),
        ("plan --model gpt2 --on 4090 --gpus 2 --global-batch 16", "gpt2 on 2 × RTX 4090: "),
        ("predict --model gpt2 --on 4090", "gpt2 on RTX 4090"),
    ],
)
def test_the_answer_stands_before_the_program(line: str, answer: str) -> None:
    text = shown(line)
    assert text.startswith(answer)
    assert "(presumed: " in text


def test_a_training_of_hours_says_at_which_use_renting_is_cheaper() -> None:
    text = shown(COST)
    assert "Cheapest at 0.035 % use: rent by the hour" in text
    assert "Cheaper than to buy: rent by the hour below 17 % use" in text
    busy = shown(f"{COST} --utilisation 1")
    assert "its share of 3 years at 100 % use" in busy.splitlines()[0]


def test_a_refused_build_says_why_in_its_first_lines() -> None:
    parts = ["--gpu", "2x RTX 4090", "--psu", "1000", "--cpu", "7950X", "--board", "B650E"]
    result = CliRunner().invoke(cli, ["build", "check", *parts], env={"COLUMNS": "200"})
    assert "REFUSED  Too few watts" in "\n".join(result.output.splitlines()[:3])
