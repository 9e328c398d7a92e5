"""Training programs as data: every entry is whole, found by its names, and on an engine."""

from __future__ import annotations

import pytest

from trainrig.errors import UsageError
from trainrig.workload.layout import Layout
from trainrig.workload.layout.groups import (
    EXPERTS,
    LORA_ON,
    LOSS,
    MOMENTS_IN,
    OVERLAP,
    QUANTIZE,
    RECOMPUTE,
    SCHEDULES,
    STATES,
)
from trainrig.workload.programs import (
    FRAMEWORKS,
    documented,
    find_program,
    known_programs,
)
from trainrig.workload.programs.program import PROGRAM_KEYS, Program
from trainrig.workload.programs.usual import RULES, LayoutKind, usual_program
from trainrig.workload.programs.years import years

WORDS = {
    "recompute": RECOMPUTE,
    "loss": LOSS,
    "shared_loss": LOSS,
    "states": STATES,
    "moments": MOMENTS_IN,
    "latent_moments": MOMENTS_IN,
    "schedule": SCHEDULES,
    "overlap": OVERLAP,
    "adapts": LORA_ON,
    "quantized_experts": EXPERTS,
    "tunes": QUANTIZE,
}
PROGRAMS = list(known_programs().values())
ASKED_FOR = {
    *("huggingface", "trl", "unsloth", "axolotl", "llama-factory", "ms-swift", "torchtune"),
    *("torchtitan", "litgpt", "nanogpt", "nanochat", "deepspeed", "megatron-lm"),
    *("megatron-bridge", "nemo", "nanotron", "maxtext", "mlx", "primus", "trainrig"),
}


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda one: one.key)
def test_a_program_is_on_an_engine_and_its_values_are_a_layout_s(program: Program) -> None:
    assert program.engine in FRAMEWORKS
    assert program.defaults.stages_by in ("", *FRAMEWORKS)
    Layout.of(**program.defaults.usual)  # raises for a key or a word that no layout has
    Layout.of(**program.defaults.adapters)
    for key, known in WORDS.items():
        assert PROGRAM_KEYS.get(program, key) in ("", *known), key


def test_what_people_use_is_documented_with_a_source() -> None:
    assert set(documented()) >= ASKED_FOR
    assert all(len(find_program(key).source) > 20 for key in documented())


def test_names_and_aliases_are_of_one_program_each() -> None:
    names = [name for one in PROGRAMS for name in (one.key, *one.aliases)]
    joined = ["".join(filter(str.isalnum, name)) for name in names]
    assert len(set(joined)) == len(joined)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("llamafactory", "llama-factory"),
        ("LLaMA-Factory", "llama-factory"),
        ("hf", "huggingface"),
        ("native", "trainrig"),
        ("megatron", "megatron-lm"),
        ("Megatron_LM", "megatron-lm"),
        ("swift", "ms-swift"),
        ("mlx-lm", "mlx"),
        ("MaxText", "maxtext"),
    ],
)
def test_a_program_is_found_however_its_name_is_written(name: str, key: str) -> None:
    assert find_program(name).key == key


def test_the_engines_names_are_programs_too() -> None:
    assert {find_program(name).engine for name in FRAMEWORKS} == set(FRAMEWORKS)


def test_an_unknown_program_is_refused_with_near_names() -> None:
    with pytest.raises(UsageError, match="unknown framework 'unslot'") as refused:
        find_program("unslot")
    assert "unsloth" in str(refused.value.hint)


@pytest.mark.parametrize(
    ("spread", "key"),
    [
        (LayoutKind(), "huggingface"),
        (LayoutKind(adapted=True), "huggingface"),
        (LayoutKind(adapted=True, nodes=True), "huggingface"),
        (LayoutKind(sharded=True), "huggingface"),
        (LayoutKind(sharded=True, nodes=True), "torchtitan"),
        (LayoutKind(split=True), "megatron-lm"),
        (LayoutKind(split=True, sharded=True), "torchtitan"),
        (LayoutKind(nodes=True), "megatron-lm"),
        (LayoutKind(nodes=True, wrapped=True), "huggingface"),
        (LayoutKind(schedule="zbv", split=True), "torchtitan"),
        (LayoutKind(schedule="dualpipe", split=True), "hai-llm"),
    ],
)
def test_a_layout_s_usual_program(spread: LayoutKind, key: str) -> None:
    assert usual_program(spread).program == key


def test_every_rule_names_a_program_and_a_reason() -> None:
    assert all(rule.program in known_programs() and rule.reason for rule in RULES)


def test_years_of_software_are_layouts_words_with_sources() -> None:
    for year in years().values():
        Layout.of(**year.usual)
        Layout.of(**year.own)
        assert year.source
