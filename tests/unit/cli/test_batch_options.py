"""One vocabulary: global batch, micro-batch and accumulation mean the same in four verbs."""

from __future__ import annotations

import json
import re
from typing import Any

import click
import pytest
from click.testing import CliRunner

from trainrig.cli.main import cli

EIGHT = ["--model", "gpt2", "--on", "A100 SXM4 80GB", "--gpus", "8"]
SPELLINGS = ["--micro-batch", "--batch-size", "--micro-batch-size"]


def answer(trainrig: Any, *words: str) -> dict[str, Any]:
    code, out, err = trainrig(*words, "--json")
    assert code in (0, 1), err
    return json.loads(out)


@pytest.mark.parametrize("verb", ["predict", "fits"])
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_global_batch_is_shared_out_over_ranks(trainrig: Any, verb: str, spelling: str) -> None:
    layout = answer(trainrig, verb, *EIGHT, "--global-batch", "64", spelling, "2")["layout"]
    assert (layout["batch_size"], layout["grad_accum"], layout["global_batch"]) == (2, 4, 64)


def test_a_plan_keeps_to_the_micro_batch_that_is_asked_for(trainrig: Any) -> None:
    words = ["plan", *EIGHT, "--global-batch", "64", "--top", "5"]
    for more, key, value in (
        (["--batch-size", "4"], "batch_size", 4),
        (["--grad-accum", "2"], "grad_accum", 2),
        (["--gradient-accumulation-steps=2"], "grad_accum", 2),
    ):
        best = answer(trainrig, *words, *more)["best"]
        assert best and all(one["layout"][key] == value for one in best)
    code, _, err = trainrig(*words, "--micro-batch", "3")
    assert code == 2 and "--micro-batch" in err
    code, _, err = trainrig("plan", *EIGHT)
    assert code == 2 and "missing --global-batch" in err and "e.g. --global-batch 512" in err


def test_training_takes_the_same_three(trainrig: Any) -> None:
    words = ["train", "--model", "gpt2-small-cpu", "--device", "cpu", "--dry-run"]
    for more, micro, accum in (
        (["--global-batch", "16", "--micro-batch", "2"], 2, 8),
        (["--global-batch", "16", "--nproc", "2", "--batch-size", "4"], 4, 2),
        (["--global-batch-size", "32"], 8, 4),
        (["--global-batch", "12", "--grad-accum", "3"], 4, 3),
    ):
        (one,) = answer(trainrig, *words, *more)["experiments"]
        assert (one["batch_size"], one["grad_accum"]) == (micro, accum), more
    code, _, err = trainrig(*words, "--global-batch", "16", "--micro-batch", "auto")
    assert code == 2 and "--global-batch 16 contradicts --micro-batch auto" in err
    code, _, err = trainrig(*words, "--global-batch", "15", "--micro-batch", "2")
    assert code == 2 and "--global-batch 15 is not a multiple of --micro-batch 2" in err


@pytest.mark.parametrize("verb", ["predict", "fits", "plan", "train", "cost"])
def test_help_lists_what_most_people_need_and_help_all_the_rest(verb: str) -> None:
    """`predict --help` had 51 options."""
    command = cli.get_command(click.Context(cli), verb)
    assert command is not None
    short, whole = (CliRunner().invoke(cli, [verb, how]).output for how in ("--help", "--help-all"))
    names = [
        parameter.opts[0]
        for parameter in command.params
        if isinstance(parameter, click.Option) and not parameter.hidden
    ]

    def listed(text: str) -> set[str]:
        starts = set(re.findall(r"^  (--[a-z0-9-]+)", text, re.MULTILINE))
        return starts & set(names)

    assert 10 <= len(listed(short)) <= 20 and "--help-all" in short
    assert listed(whole) == set(names)
    assert {"--model", "--global-batch"} <= listed(short)


def test_help_all_is_taken_where_all_is_short(trainrig: Any) -> None:
    code, out, _ = trainrig("inspect", "--help-all")
    assert code == 0 and "--json" in out and "--help-all" not in out
