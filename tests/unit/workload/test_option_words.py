"""Words that people type for an option's value, and the numbers of a step's samples."""

from __future__ import annotations

import json
from typing import Any

import pytest

from trainrig.errors import UsageError
from trainrig.prediction.scenario import question
from trainrig.units import parse_length
from trainrig.workload.adapters import METHODS
from trainrig.workload.layout import groups
from trainrig.workload.layout.batch_split import samples_of, split_batch
from trainrig.workload.option_words import option_words, usual_word

ASKED = {"model": "llama-1B", "on": "RTX 4090", "framework": "huggingface"}
WORDS = {
    "optimizer": groups.OPTIMIZERS,
    "quantize": groups.QUANTIZE,
    "offload": groups.OFFLOAD,
    "precision": groups.PRECISIONS,
    "kernels": groups.KERNELS,
    "recompute": groups.RECOMPUTE,
    "method": METHODS,
    "lora_on": groups.LORA_ON,
    "parallel": groups.PARALLEL,
    "cp_comm": groups.CP_COMM,
}


def test_every_alias_means_a_word_of_its_option_and_hides_none() -> None:
    for option, words in option_words().items():
        assert set(words.values()) <= set(WORDS[option]), option
        for word in WORDS[option]:
            assert usual_word(option, word) == word
            assert usual_word(option, word.upper()) == word or word.lower() not in words.values()


@pytest.mark.parametrize(
    ("option", "typed", "ours"),
    [
        ("optimizer", "paged_adamw_8bit", "adamw-8bit-paged"),
        ("optimizer", "adamw_apex_fused", "adamw-fused"),
        ("optimizer", "adamw_hf", "adamw"),
        ("optimizer", "AdamW_Torch_Fused", "adamw-fused"),
        ("quantize", "4bit", "nf4"),
        ("quantize", "8-bit", "int8"),
        ("offload", "cpu", "host"),
        ("offload", "NVMe", "disk"),
        ("precision", "bfloat16", "bf16"),
        ("kernels", "flash_attention_2", "flash"),
        ("recompute", "true", "full"),
        ("method", "QLoRA", "qlora"),
        ("lora_on", "all-linear", "linear"),
        ("optimizer", "lion", "lion"),
        ("seq_len", 4096, 4096),
    ],
)
def test_what_other_programs_call_it_is_taken(option: str, typed: Any, ours: Any) -> None:
    assert usual_word(option, typed) == ours


def test_a_question_in_others_words_is_the_question_in_ours(trainrig: Any) -> None:
    theirs = {"optimizer": "paged_adamw_8bit", "quantize": "4bit", "recompute": "true"}
    ours = {"optimizer": "adamw-8bit-paged", "quantize": "nf4", "recompute": "full"}
    assert question(ASKED | theirs) == question(ASKED | ours)
    words = ["--model", "llama-1B", "--on", "RTX 4090", "--offload", "cpu", "--seq-len", "8k"]
    code, out, _ = trainrig("predict", *words, "--json")
    layout = json.loads(out)["layout"]
    assert code in (0, 1) and layout["offload"] == "host" and layout["seq_len"] == 8192


@pytest.mark.parametrize(
    ("text", "tokens"),
    [("8k", 8192), ("128K", 131072), ("4096", 4096), ("1M", 1 << 20), ("1.5k", 1536)],
)
def test_a_context_is_read_as_models_write_it(text: str, tokens: int) -> None:
    assert parse_length(text, "seq-len") == tokens


@pytest.mark.parametrize("text", ["", "k", "0", "-1", "8g", "1.3", "8 k k", "1e4"])
def test_what_is_no_length_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="seq-len = "):
        parse_length(text, "seq-len")


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ((64, None, None, 8), (1, 8)),
        ((64, 4, None, 8), (4, 2)),
        ((64, None, 2, 8), (4, 2)),
        ((64, 4, 2, 8), (4, 2)),
        ((7, None, None, 1), (1, 7)),
    ],
)
def test_two_of_three_numbers_are_the_third(asked: Any, found: tuple[int, int]) -> None:
    assert split_batch(*asked) == found
    micro, accum = found
    assert micro * accum * asked[3] == asked[0]


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ((63, 2, None, 8), ("--global-batch 63", "--micro-batch 2", "8 data-parallel ranks")),
        ((64, 4, 4, 8), ("--global-batch 64", "--micro-batch 4", "--grad-accum 4")),
        ((64, None, 3, 1), ("--global-batch 64", "--grad-accum 3")),
        ((0, None, None, 1), ("--global-batch 0",)),
    ],
)
def test_a_contradiction_names_all_of_them(asked: Any, named: tuple[str, ...]) -> None:
    with pytest.raises(UsageError) as caught:
        split_batch(*asked)
    assert all(one in caught.value.message for one in named) and caught.value.hint


def test_a_batch_may_be_said_in_tokens() -> None:
    assert samples_of("4M", 4096) == 1024 and samples_of(512, 4096) == 512
    with pytest.raises(UsageError, match="less than a sample"):
        samples_of("1k", 8192)
