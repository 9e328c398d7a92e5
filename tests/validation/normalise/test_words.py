"""Words of a table's cells: months of programs, kernels, networks, windows; and remarks, unread."""

from __future__ import annotations

import pytest
from validation.normalise.answers import time_of
from validation.normalise.case import case_of
from validation.normalise.cells import Cells
from validation.normalise.dates import named_month, released

RUN = {"chip": "H100", "num_gpus": "8", "seq": "2048", "micro_batch": "1", "model": "pythia-6.9b"}
BERT = {"chip": "A100", "num_gpus": "8", "seq": "128", "micro_batch": "64", "model": "bert-large"}


@pytest.mark.parametrize(
    ("words", "month"),
    [
        ("owner/benchmarks@v25.04.02 llama3.1/readme.md", "2025-04"),
        ("owner/trainer benchmarks/llama3_h100_202412.md", "2024-12"),
        ("nemo framework launcher (23.08)", "2023-08"),
        ("container pytorch:23.10-py3", "2023-10"),
        ("megatron-lm of 2024-05-17", "2024-05"),
        ("mlperf training v5.1", "2025-11"),
        ("torch 2.2.1, flash", "2024-01"),
        ("torch 2.2.1, run of 2024-09", "2024-09"),
        ("step of 2048 tokens, 19.4 gb, 24.05 tokens/s", ""),
        ("owner/repo@8c8dd48f readme.md", ""),
    ],
)
def test_a_month_is_read_from_what_programs_are_called(words: str, month: str) -> None:
    assert named_month(words) == month


def test_a_row_is_no_older_than_its_model_unless_it_says_so() -> None:
    assert released("model", "meta-llama/llama-3.1-8b") == "2024-07"
    assert released("model", "llama-30b") == "2023-02"
    assert released("model", "our own 1b") == ""
    cells = {"framework": "Megatron-LM"}
    assert Cells(cells | {"model": "Qwen3-8B"}).is_since("2025-01")
    assert not Cells(cells | {"model": "Llama-2-7B"}).is_since("2025-01")
    assert not Cells(cells | {"model": "Qwen3-8B", "date": "2023-05"}).is_since("2025-01")
    assert Cells(cells | {"framework": "NeMo 23.05"}).is_before("2024-01")
    assert not Cells(cells).is_before("2024-01"), "nobody says when"


def test_remarks_and_sources_are_not_read() -> None:
    remarks = {"notes": "CPU offload; Adafactor; 12.1 s a step, 61.5 GB peak", "kernels": "FA3"}
    remarks |= {"interconnect": "8x 100 Gb/s InfiniBand", "source": "et al. 2021 (v23.05)"}
    assert case_of(RUN | remarks) == case_of(RUN)


def test_a_network_is_read_from_the_words_for_the_hardware() -> None:
    many = RUN | {"num_gpus": "64", "gpus_per_node": "8"}
    stated = case_of(many | {"fabric_gbps_per_node": "800"})
    words = case_of(many | {"hardware": "H100, NVLink4; 8x 100 Gb/s InfiniBand"})
    assert words.rates.links.between == stated.rates.links.between
    assert words.rates.links.between != case_of(many).rates.links.between


def test_no_link_of_a_card_is_none_between_those_that_are_presumed() -> None:
    row = {"chip": "A100", "model": "llama-7b", "seq": "2048", "gpus_per_node": "8"}
    alone = case_of(row | {"link": "none"})
    assert alone.layout.mesh.gpus == 8
    assert alone.rates.links == case_of(row).rates.links
    assert alone.rates.links != case_of(row | {"num_gpus": "8", "link": "none"}).rates.links


def test_a_model_said_to_be_dense_has_no_experts_whatever_its_line_has() -> None:
    sizes = {"layers": "32", "hidden": "4608", "params_b": "7.5", "model": "Large MoE"}
    assert case_of(RUN | sizes).shape.moe.num_experts
    for said in ("Large, dense", "Llama4 Large Dense (no MoE)", "Large, without experts"):
        assert not case_of(RUN | sizes | {"model": said}).shape.moe.num_experts, said
    for said in (
        *("moe, first 2 dense layers", "dense-MoE hybrid", "1.3B, 64 experts"),
        *("DeepSeek-style MoE (first 3 dense)", "MoE: 3 dense, 58 MoE"),
    ):
        mixed = {"model": said, "layers": "24", "hidden": "2048", "params_b": "13"}
        assert case_of(RUN | mixed).shape.moe.num_experts, said
    assert case_of(RUN | sizes | {"model": "dense", "num_experts": "8"}).shape.moe.num_experts == 8


def test_tokens_that_see_their_own_text_alone_take_less_attention() -> None:
    long = RUN | {"seq": "32768", "framework": "torchtitan", "kind": "pretrain"}
    whole = time_of(case_of(long))[1]
    for said in (
        "packed, attention is block-diagonal",
        "intra-document mask",
        "FlashAttention varlen with cu_seqlens",
        "neat packing",
        "document boundaries respected",
    ):
        apart = case_of(long | {"kernel_stack": said})
        assert set(apart.shape.attention.windows) == {512}, said
        assert time_of(apart)[1] < 0.9 * whole, said
    assert set(
        case_of(long | {"kernel_stack": "block-diagonal", "kind": "sft"}).shape.attention.windows
    ) == {256}
    both = {"model": "bert-large", "seq": "512", "kernel_stack": "cu_seqlens"}
    assert not case_of(RUN | both).shape.attention.windows, "each token sees its whole text"
    for said in ("no document mask", "documents are shuffled", "packed to 32768"):
        assert not case_of(long | {"kernel_stack": said}).shape.attention.windows, said


def test_a_window_without_a_width_is_one_and_widens_the_answer() -> None:
    long = RUN | {"seq": "65536", "model": "gpt2-medium", "kernel_stack": "flash, sliding window"}
    found = case_of(long)
    assert set(found.shape.attention.windows) == {1024}
    assert "model" in found.presumed
    assert set(case_of(long | {"kernel_stack": "window size 256"}).shape.attention.windows) == {256}
    assert not case_of(long | {"kernel_stack": "flash, no sliding window"}).shape.attention.windows
