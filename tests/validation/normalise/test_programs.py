"""Training programs: one data file of what they are called and what they do by default."""

from __future__ import annotations

from dataclasses import replace

import pytest
from validation.normalise.answers import time_of
from validation.normalise.case import case_of
from validation.normalise.training_programs import (
    benchmarks,
    program_of,
    programs,
    torch_version,
)

from trainrig.workload.layout.groups import (
    CP_COMM,
    KERNELS,
    LORA_ON,
    LOSS,
    MOMENTS_IN,
    RECOMPUTE,
    SCHEDULES,
    STATES,
)
from trainrig.workload.programs import known_programs
from trainrig.workload.programs.program import PROGRAM_KEYS

WORDS = {
    "kernels": KERNELS,
    "cp_comm": CP_COMM,
    "schedule": SCHEDULES,
    "states": STATES,
    "moments": MOMENTS_IN,
    "latent_moments": MOMENTS_IN,
    "loss": LOSS,
    "recompute": RECOMPUTE,
    "adapts": LORA_ON,
}


def test_each_program_is_found_by_words_of_layouts_and_stands_once() -> None:
    known = programs()
    names = [one.program.name for one in known]
    assert len(set(names)) == len(names)
    assert {name for one in known for name in one.instead_of} <= set(names)
    for one in known:
        pattern = one.pattern.pattern
        assert pattern == pattern.lower() or "\\" in pattern  # cells are lowered
        stated = {trait: PROGRAM_KEYS.get(one.program, trait) for trait in WORDS}
        assert all(value in ("", *WORDS[trait]) for trait, value in stated.items()), names
    named = {one.program.key for one in known}
    assert known_programs().keys() - {"trainrig"} <= named  # nobody else prints steps of ours


@pytest.mark.parametrize(
    ("words", "traits"),
    [
        ("megatron-bridge (nemo 26.04)", {"trains_as": "megatron", "grad_reduce": "bf16"}),
        ("nemo automodel (fsdp2)", {"trains_as": "fsdp", "grad_reduce": "", "overlap": ""}),
        ("megatron-deepspeed", {"trains_as": "megatron", "transformer_engine": False}),
        ("nemo framework launcher", {"fp8_weights": False, "shards_optimizer": True}),
        ("megatron-lm, mcore", {"overlap": "auto", "transformer_engine": True}),
        ("primus megatron-lm", {"overlap": "auto"}),
        ("megatron-lm", {"overlap": "data", "transformer_engine": None}),
        (
            "torchtitan + torchao",
            {"trains_as": "fsdp", "states": "autocast", "torch_pipelines": True},
        ),
        ("llama factory", {"trains_as": "trainer", "checkpoints_tuning": True}),
        ("deep speed 0.14", {"trains_as": "deepspeed"}),
        ("pytorch, torch-compile", {"kernels": "compiled"}),
        ("pytorch, w/o torch.compile, no liger", {"kernels": ""}),
        ("hf trainer (compile off, liger kernel: off)", {"kernels": ""}),
        ("transformers AutoModelForCausalLM".lower(), {"trains_as": "trainer"}),
        ("accelerate launcher", {"packs_tuning": None}),
        ("maxtext/jax", {"xla": True, "shards_weights": True}),
        ("pytorch (ngc 24.03), liger", {"name": program_of("pytorch").name, "tf32": True}),
        ("nemotron recipe", {"trains_as": ""}),
        ("pytorch fsdp2 + te 2.9", {"trains_as": "fsdp", "transformer_engine": True}),
        ("megatron-lm, te 2.11", {"overlap": "data", "transformer_engine": True}),
        ("gpt-neox", {"trains_as": "megatron", "shards_optimizer": True}),
        ("hf + alpaca-lora", {"trains_as": "trainer", "checkpoints_tuning": True}),
        ("openrlhf", {"trains_as": "deepspeed", "shards_gradients": True}),
        ("bmtrain", {"shards_weights": True, "recompute": "full"}),
        ("pytorch/xla spmd", {"xla": True, "shards_weights": True}),
        ("mindspore transformers", {"trains_as": "megatron", "transformers_models": None}),
        ("tinygrad (no beam)", {"scores": True}),
        ("something of our own", {"name": "", "trains_as": "", "other_runtime": None}),
    ],
)
def test_of_each_trait_the_most_particular_program_that_is_named_counts(
    words: str, traits: dict[str, object]
) -> None:
    found = program_of(words)
    assert {trait: PROGRAM_KEYS.get(found, trait) for trait in traits} == traits


def test_a_container_s_month_is_no_version_of_torch() -> None:
    assert torch_version("deepspeed, pytorch 2.10.0+cu128") == (2, 10)
    assert torch_version("nvidia deeplearningexamples pytorch 21.11") == (0, 0)


def test_kernels_are_those_of_the_time() -> None:
    row = {"chip": "A100 SXM4 80GB", "model": "GPT-3 5B", "num_gpus": "8", "micro_batch": "4"}
    assert (
        case_of(row | {"framework": "lit-gpt", "date": "2023-06"}).layout.kernels.stack == "flash"
    )
    for framework, date, kernels in (
        ("NeMo Framework Launcher (23.08)", "2023-09", "fused"),
        ("NeMo Framework Launcher", "2024-06", "flash+fused"),
        ("PyTorch Lightning, ddp", "2022", "eager"),
        ("PyTorch Lightning, ddp", "2024-06", "flash"),
        ("TensorFlow 2, XLA", "2020-10", "fused"),
    ):
        found = case_of(row | {"framework": framework, "date": date})
        assert found.layout.kernels.stack == kernels, framework


def test_kernels_go_by_the_row_then_the_program_since_a_date_then_the_chip() -> None:
    row = {"chip": "A100 SXM4 80GB", "model": "llama-2-7b", "num_gpus": "8", "micro_batch": "1"}
    for cells, kernels in (
        ("framework=minGPT; kernel_stack=liger, flash", "flash+fused"),
        ("framework=minGPT; kernel_stack=fused Adam, fused norms", "fused"),
        ("framework=minGPT; date=2025-01", "eager"),
        ("framework=Lingua; date=2022-06", "compiled"),
        ("framework=NeMo, no Transformer Engine; date=2025-01", "fused"),
        ("framework=HF Trainer; kernel_stack=eager; date=2024-02", "eager"),
        ("framework=HF Trainer; kernel_stack=eager; date=2024-08", "flash"),
        ("framework=HF Trainer; kernel_stack=fused; date=2024-08", "flash+fused"),
        ("framework=MaxText; kernel_stack=flash", "flash+fused"),
        ("framework=HF Trainer; chip=V100 SXM2 32GB; date=2023-06", "eager"),
    ):
        stated = dict(cell.split("=", 1) for cell in cells.split("; "))
        assert case_of(row | stated).layout.kernels.stack == kernels, cells


def test_a_benchmark_s_traits_go_before_those_of_what_runs() -> None:
    of_models, of_bert = benchmarks()
    nemo = of_models.laid_over(program_of("some container"))
    assert (nemo.name, nemo.numbers.fp8, nemo.batches.packs_tuning) == ("NeMo", True, False)
    bridge = of_models.laid_over(program_of("megatron-bridge"))
    assert (bridge.name, bridge.batches.packs_tuning) == ("Megatron-Bridge", False)
    assert of_bert.laid_over(program_of("mingpt")).code.scores


def test_a_tpu_has_fused_attention_since_pallas_and_its_fourth_generation() -> None:
    row = {"model": "GPT-3 5B", "num_gpus": "8", "micro_batch": "4", "framework": "MaxText"}
    for chip, date, kernels in (
        ("TPU v4", "2023-12", "flash+fused"),
        ("TPU v4", "2022-05", "fused"),
        ("TPU v3", "2023-12", "fused"),
    ):
        found = case_of(row | {"chip": chip, "date": date}).layout.kernels.stack
        assert found == kernels, (chip, date)


def test_of_stated_sizes_a_name_tells_the_length() -> None:
    row = {
        "chip": "A100 SXM4 80GB",
        "num_gpus": "1",
        "layers": "12",
        "hidden": "768",
        "heads": "12",
    }
    lengths = [
        case_of(row | {"model": name}).layout.batch.seq_len
        for name in ("GPT-2 124M", "BERT base", "something of our own")
    ]
    assert lengths == [1024, 512, 2048]


def test_adapters_on_few_matrices_cost_less() -> None:
    row = {"chip": "B200", "model": "llama3-70b", "num_gpus": "8", "kind": "lora", "pp": "4"}
    cases = [case_of(row | {"framework": name}) for name in ("NeMo 25.09", "Megatron-Core")]
    assert [case.layout.adapted for case in cases] == ["qkv", "shared"]
    few, every = (
        time_of(replace(cases[0], layout=cases[0].layout.replace(lora_on=on)))[1]
        for on in ("qkv", "all")
    )
    assert few < 0.95 * every


def test_packed_examples_do_not_see_each_other() -> None:
    row = {"chip": "B200", "model": "llama3-8b", "num_gpus": "8", "seq": "16384", "kind": "sft"}
    packed, whole = (case_of(row | {"framework": name}) for name in ("NeMo 25.09", "Megatron-Core"))
    assert set(packed.shape.attention.windows) == {256} and not whole.shape.attention.windows
    assert not case_of(
        row | {"framework": "NeMo 25.09", "kind": "pretrain"}
    ).shape.attention.windows


def test_kernels_by_hand_stay_beside_the_name_of_an_attention() -> None:
    row = {"chip": "A100 SXM4 80GB", "model": "GPT-2 124M", "num_gpus": "1", "micro_batch": "8"}
    by_hand = [
        case_of(row | {"framework": "llm.c (CUDA)", "kernel_stack": words}).layout
        for words in ("", "cuDNN flash attention", "standard attention")
    ]
    assert [(one.kernels.stack, one.kernels.is_flash) for one in by_hand] == [
        ("compiled", True),
        ("compiled", True),
        ("compiled", False),
    ]
    torchs = case_of(row | {"framework": "PyTorch 2.5", "kernel_stack": "flash attention"})
    assert torchs.layout.kernels.stack == "flash"
