"""Faults that newcomers ran into: contradictions, hints that do not run, names that are guessed."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from trainrig.errors import UsageError
from trainrig.prediction.launch_lines import hub_name, launch_line, programs
from trainrig.prediction.scenario import question
from trainrig.prediction.search import TIE, Candidate, surest_first
from trainrig.prediction.search.space import Space
from trainrig.workload.layout import Layout
from trainrig.workload.model_lookup import find
from trainrig.workload.presets import NAMED, hub_names, published


def test_a_counted_machine_is_not_multiplied_in_silence() -> None:
    """--on "8x H100" --tp 8 --pp 4 was answered for 32 GPUs."""
    asked = {"model": "llama-8B", "on": "8x H100", "tp": 8, "pp": 4}
    with pytest.raises(UsageError, match=r'--on "8x H100" has 8 GPUs, and --tp 8 --pp 4 need 32'):
        question(asked)
    assert question({**asked, "gpus": 32}).layout.mesh.gpus == 32
    assert question({**asked, "on": "H100"}).layout.mesh.gpus == 32, "no count was written"
    assert question({**asked, "on": "32x H100"}).layout.mesh.gpus == 32


def test_a_split_that_may_fit_is_searched_by_the_line_that_is_printed(trainrig: Any) -> None:
    code, out, _ = trainrig("fits", "--model", "llama-7B", "--on", "RTX 4090", "--gpus", "8")
    assert code == 1
    line = re.search(r"other splits: +(trainrig plan .*(?:\n {5,}.*)*)", out)
    assert line is not None
    words = shlex.split(line[1])
    assert words[:2] == ["trainrig", "plan"]
    code, out, _ = trainrig(*words[1:], "--json")
    assert code == 0 and json.loads(out)["layouts_fitting"] > 0


def test_no_plan_is_proposed_for_one_card_or_what_fits(trainrig: Any) -> None:
    for how in (("--gpus", "1"), ("--gpus", "8", "--method", "qlora")):
        _, out, _ = trainrig("fits", "--model", "llama-8B", "--on", "RTX 4090", *how)
        assert "trainrig plan" not in out


@pytest.mark.parametrize("name", [name for name in programs() if name not in ("mlx", "torchtune")])
def test_a_card_without_bf16_is_told_so(name: str) -> None:
    here, there = (
        question({"model": "qwen2.5-1.5B", "on": on, "method": "full"}) for on in ("T4", "L4")
    )
    old, new = (launch_line(name, asked.shape, asked.layout) for asked in (here, there))
    assert old is not None and new is not None
    if name in ("litgpt", "torchtitan"):
        assert name == "torchtitan" or "16-true" in old
        return
    assert re.search("fp16|float16", old) and not re.search("fp16|float16", new)


def test_the_model_is_named_in_the_line_to_paste() -> None:
    typed = "unsloth/Meta-Llama-3.1-8B-bnb-4bit"
    assert hub_name(find(typed), typed) == typed
    assert hub_name(find("qwen3-8B"), "qwen3-8B") == "Qwen/Qwen3-8B"
    assert hub_name(find("gpt3-175B"), "gpt3-175B") == "MODEL", "nobody published it"
    assert hub_names().keys() <= {*NAMED, *published()}
    asked = question({"model": "qwen3-8B", "on": "L4", "method": "qlora"})
    line = launch_line("huggingface", asked.shape, asked.layout, asked.model)
    assert line is not None and "--model_name_or_path Qwen/Qwen3-8B" in line


@pytest.mark.parametrize("name", programs())
def test_several_nodes_are_in_the_line_or_there_is_none(name: str) -> None:
    layout = Layout.of(gpus=16, gpus_per_node=8, seq_len=512)
    line = launch_line(name, find("qwen3-8B"), layout)
    assert line is None or re.search(r"nnodes[ =]2|num[-_](machines|nodes)[ =]2|NNODES=2", line)


def test_a_beginning_of_a_name_is_said_at_once(trainrig: Any) -> None:
    for verb in (("fits",), ("predict",)):
        _, out, _ = trainrig(*verb, "--model", "gpt2x", "--on", "RTX 409")
        first = " ".join(out.split("\n\n")[0].split())
        assert "Note: gpt2x is read as gpt2-xl" in first
        assert "RTX 409 is presumed to be RTX 4090" in first
    _, out, _ = trainrig("fits", "--model", "GPT2-XL", "--on", "RTX 4090")
    assert "Note:" not in out


def test_a_layout_of_json_can_be_asked_again(trainrig: Any, tmp_path: Path) -> None:
    """Its parallel: own was refused, and so were dp and what no adapter has."""
    asked = ["--model", "llama-8B", "--on", "H100", "--gpus", "16", "--global-batch", "64"]
    _, out, _ = trainrig("plan", *asked, "--json")
    rows = [
        {"model": "llama-8B", "on": "H100", **candidate["layout"]}
        for candidate in json.loads(out)["best"]
    ]
    table = tmp_path / "layouts.jsonl"
    table.write_text("".join(json.dumps(row) + "\n" for row in rows))
    code, out, _ = trainrig("predict", "--cases", str(table), "--json")
    assert code == 0
    for row, line in zip(rows, out.splitlines(), strict=True):
        again = json.loads(line)["layout"]
        assert again == {key: row[key] for key in again}


def test_what_surely_fits_comes_before_what_is_borderline_and_as_fast() -> None:
    asked = question(
        {"model": "llama-8B", "on": "RTX 4090", "method": "qlora", "recompute": "full"}
    )
    rates = asked.cluster.rates()
    space = Space(shape=asked.shape, base=asked.layout, global_batch=1)
    times = {4096: 1.0, 1024: 1.0 + TIE / 2, 512: 1.0 + 2 * TIE}
    ranked = [
        Candidate(layout=asked.layout.replace(seq_len=seq), time=time, memory=0.0, parts={})
        for seq, time in ({6144: times[4096]} | times).items()
        if seq != 4096
    ]
    ordered = surest_first(ranked, space, rates)
    assert [candidate.layout.batch.seq_len for candidate in ordered] == [1024, 6144, 512]


def test_machines_with_other_defaults_have_their_own_lines(trainrig: Any) -> None:
    """One header of defaults stood above machines that had others."""
    _, out, _ = trainrig("predict", "--model", "gpt2-xl", "--on", "H100", "--on", "T4")
    lines = " ".join(out.split("\n\n")[0].split())
    assert "H100:" in lines and "T4:" in lines and "fp16" in lines and "bf16" in lines
    _, out, _ = trainrig("predict", "--model", "gpt2-xl", "--on", "H100", "--on", "A100")
    assert "H100:" not in out.split("\n\n")[0]


def test_a_search_for_the_number_of_gpus_is_not_silent(trainrig: Any) -> None:
    how = ["--model", "llama-8B", "--on", "H100", "--global-batch", "64", "--tokens", "1e9"]
    _, out, err = trainrig("plan", *how, "--days", "10")
    assert "searching for the number of GPUs" in err and "searching" not in out


def test_a_bare_size_names_the_shape_that_is_presumed(trainrig: Any) -> None:
    for verb in ("predict", "fits"):
        out = trainrig(verb, "--model", "3B", "--on", "RTX 4090")[1]
        text = " ".join(out.split())
        assert "3B is presumed to be a Llama of 24 layers, hidden 3072, 24 heads, vocab" in text


@pytest.mark.parametrize("verb", ["predict", "fits", "plan"])
def test_a_sequence_beyond_the_model_s_own_is_said(trainrig: Any, verb: str) -> None:
    words = [verb, "--model", "llama-7B", "--on", "H100 SXM5 80GB", "--method", "lora"]
    words += ["--gpus", "1", "--global-batch", "1"] if verb == "plan" else []
    note = "a sequence of 8192 is longer than the 4096 that llama-7B was made for"
    assert note in " ".join(trainrig(*words, "--seq-len", "8192")[1].split())
    assert "was made for" not in " ".join(trainrig(*words, "--seq-len", "4096")[1].split())


def test_more_gpus_that_do_not_divide_the_batch_are_called_slower(trainrig: Any) -> None:
    words = ("--model", "gpt2", "--on", "RTX 4090", "--global-batch", "96")
    words += ("--tokens", "100B", "--days", "1.5")
    planned = trainrig("plan", *words)[1]
    assert "slower: 96 samples do not divide over them" in planned
    cost = " ".join(trainrig("cost", *words, "--rent-per-gpu-hour", "1")[1].split())
    assert "40 GPUs are slower than 32: 96 samples do not divide over them" in cost
