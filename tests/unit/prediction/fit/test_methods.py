"""Does it fit: all weights, LoRA, QLoRA, each as its program runs it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from trainrig.errors import UsageError
from trainrig.prediction.fit.methods import (
    MOST_SAMPLES,
    fits,
    largest_micro_batch,
    longest_sequence,
    method_of,
)
from trainrig.prediction.launch_lines import launch_line, programs
from trainrig.prediction.scenario import question
from trainrig.prediction.verdict import DOES_NOT_FIT, FITS, VERDICTS
from trainrig.workload.memory import memory

HOW = {"framework": "huggingface", "recompute": "full", "seq_len": 1024}
ASKED = {"model": "llama-8B", "on": "RTX 4090"} | HOW


def test_three_ways_are_answered_whichever_is_asked_about() -> None:
    for more, asked in (
        ({}, "full"),
        ({"method": "full"}, "full"),
        ({"method": "lora"}, "lora"),
        ({"lora_rank": 8}, "lora"),
        ({"method": "qlora"}, "qlora"),
        ({"quantize": "nf4"}, "qlora"),
        ({"lora_rank": 8, "quantize": "int8"}, "qlora"),
    ):
        found = fits(ASKED | more)
        assert found.method == asked == method_of(found.asked_fit.question)
        assert [one.method for one in found.methods] == ["full", "lora", "qlora"]
        (same,) = [one for one in found.methods if one.method == asked]
        assert same.question == found.asked_fit.question and same.verdict == found.verdict
        full, lora, qlora = (one.question.layout.lora for one in found.methods)
        assert full.rank == 0 and lora.quantize == "none" and qlora.quantize != "none"
        assert lora.rank == qlora.rank == more.get("lora_rank", 16)


def test_seven_billion_on_24_gb_is_no_in_full_and_not_by_adapters() -> None:
    """The first answer was: does not fit, 588 %; QLoRA never had a row."""
    found = fits(ASKED)
    full, lora, qlora = found.methods
    assert full.verdict == DOES_NOT_FIT and qlora.verdict == FITS
    assert full.tokens_per_s is None, "a step that cannot run has no rate"
    assert lora.memory.total > qlora.memory.total and (qlora.tokens_per_s or 0) > 100
    assert found.verdict == DOES_NOT_FIT


@pytest.mark.parametrize("model", ["llama-8B", "gpt2-xl", "qwen3-0.6B"])
def test_the_largest_sizes_are_the_last_that_fit(model: str) -> None:
    asked = question(ASKED | {"model": model, "method": "qlora"})
    shape, layout, offered = asked.shape, asked.layout, asked.cluster.rates().memory_bytes

    def word(**size: int) -> tuple[bool, bool]:
        low, high = memory(shape, layout.replace(**size)).needed_interval
        return bool(high <= offered), bool(low <= offered)

    batch = largest_micro_batch(asked)
    assert 0 < batch.fits <= batch.borderline <= MOST_SAMPLES
    assert word(batch_size=batch.fits)[0] and not word(batch_size=batch.fits + 1)[0]
    assert word(batch_size=batch.borderline)[1] and not word(batch_size=batch.borderline + 1)[1]
    tokens = longest_sequence(asked)
    assert 0 < tokens.fits <= tokens.borderline <= shape.position.max_positions
    assert word(seq_len=tokens.fits)[0] and word(seq_len=tokens.borderline)[1]
    if tokens.fits + 128 <= shape.position.max_positions:
        assert not word(seq_len=tokens.fits + 128)[0]


def test_what_a_program_cannot_is_refused_with_its_reason() -> None:
    found = fits(ASKED | {"framework": "megatron", "recompute": "none"})
    assert {one.method for one in found.methods} | found.refused.keys() == {"full", "lora", "qlora"}


def test_a_method_that_other_options_contradict_is_refused() -> None:
    for more, both in (
        ({"method": "full", "lora_rank": 8}, ("--method full", "--lora-rank 8")),
        ({"method": "full", "quantize": "nf4"}, ("--method full", "--quantize nf4")),
        ({"method": "lora", "quantize": "nf4"}, ("--method lora", "--quantize nf4")),
        ({"method": "qlora", "lora_rank": 0}, ("--method qlora", "--lora-rank 0")),
    ):
        with pytest.raises(UsageError) as caught:
            question(ASKED | more)
        assert all(one in caught.value.message for one in both)
    with pytest.raises(UsageError, match="unknown method 'qlra'"):
        question(ASKED | {"method": "qlra"})


def test_the_command_prints_three_rows_and_exits_by_the_one_asked(
    trainrig: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    how = [f"--{name.replace('_', '-')}={value}" for name, value in ASKED.items()]
    code, out, _ = trainrig("fits", *how)
    assert code == 1
    first = out.split("\n\n")[0].replace("\n", " ")
    assert "QLoRA fits" in first and "full training does not fit" in first
    rows = [line for line in out.splitlines() if line.split("  ")[0] in ("full", "LoRA", "QLoRA")]
    assert len(rows) >= 3 and max(map(len, out.splitlines())) <= 80
    assert "tokens/s" in out and "trl sft" in out
    code, out, _ = trainrig("fits", *how, "--method", "qlora", "--json")
    told = json.loads(out)
    assert code == 0 and told["verdict"] == FITS and told["method"] == "qlora"
    assert [one["verdict"] in VERDICTS for one in told["methods"]] == [True] * 3
    assert told["methods"][2]["launch"].endswith("--load_in_4bit")


def test_host_memory_of_a_way_out_is_said_at_once(trainrig: Any) -> None:
    """An offload's 113.5 GiB of host memory only showed on the second run."""
    words = ["fits", "--model", "llama-8B", "--on", "RTX 4090", "--framework", "huggingface"]
    _, out, _ = trainrig(*words, "--recompute", "full", "--seq-len", "2048")
    assert "of host memory" in " ".join(out.split())


@pytest.mark.parametrize("name", [name for name in programs() if name != "native"])
def test_a_program_is_told_the_layout_in_its_own_keys(name: str) -> None:
    more = {"batch_size": 3, "grad_accum": 5, "seq_len": 1536}
    asked = question(ASKED | more)
    line = launch_line(name, asked.shape, asked.layout)
    assert line and "{" not in line and "3" in line
    adapted = question(ASKED | more | {"method": "qlora", "lora_rank": 24})
    if (line := launch_line(name, adapted.shape, adapted.layout)) is not None:
        assert "24" in line or name == "mlx"  # whose rank stands in its file


def test_a_line_is_not_made_up() -> None:
    asked = question(ASKED | {"method": "lora"})
    assert launch_line("no-such-program", asked.shape, asked.layout) is None
    assert launch_line("megatron", asked.shape, asked.layout) is None, "its LoRA is not known"
