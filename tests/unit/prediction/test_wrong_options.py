"""What is wrong whatever else is said is told first, with a hint that helps."""

from __future__ import annotations

from typing import Any

import pytest

from trainrig.errors import UsageError
from trainrig.prediction.scenario import question, space
from trainrig.workload.model_lookup import find

WHOLE = {"model": "gpt3-13B", "on": "RTX", "gpus": 1}


@pytest.mark.parametrize(
    ("wrong", "says", "hint"),
    [
        ({"gpus": -1}, "gpus = -1", "a whole number from 1"),
        ({"batch_size": 0}, "batch-size = 0", "a whole number from 1"),
        ({"precision": "int4"}, "unknown precision 'int4'", "mxfp8"),
        ({"optimizer": "adamm"}, "unknown optimizer 'adamm'", "adamw"),
        ({"model": "gpt2:num_layers=0"}, "needs num_layers", "as gpt2:num_layers=12,hidden=768"),
        ({"model": "gpt2:num_layers=-3"}, "needs num_layers", "as gpt2:num_layers=12,hidden=768"),
        ({}, "RTX is one of", "give the whole name"),
    ],
)
def test_a_slip_is_told_before_the_chip(wrong: dict[str, Any], says: str, hint: str) -> None:
    for ask in (question, space):
        with pytest.raises(UsageError, match=says) as caught:
            ask(WHOLE | {"global_batch": 8} | wrong)
        assert hint in str(caught.value.hint)


def test_a_schedule_that_a_framework_lacks_is_told_before_its_groups_of_layers() -> None:
    asked = {"model": "gpt3-13B", "on": "B200 SXM", "gpus": 8, "pp": 8, "schedule": "zbv"}
    with pytest.raises(UsageError, match="megatron has no schedule zbv") as caught:
        question(asked | {"framework": "megatron"})
    assert "--framework native or torchtitan" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("deepseek-ai/DeepSeek-V3.1", "deepseek-v3"),
        ("Llama-4-Scout-17B-16E", "llama4-scout"),
        ("meta-llama/Llama-4-Maverick-17B-128E-Instruct", "llama4-maverick"),
        ("tinyllama", "tinyllama-1.1B"),
    ],
)
def test_official_names_are_known(text: str, name: str) -> None:
    assert find(text).name == name


@pytest.mark.parametrize("text", ["llama-7B:num_layers=-3", "my-gpt2-of-old", "deepseek-v3.7"])
def test_no_other_model_stands_for_an_unknown_one(text: str) -> None:
    with pytest.raises(UsageError):
        find(text)
