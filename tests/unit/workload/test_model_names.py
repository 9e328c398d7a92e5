"""Models' names as people write them; a hint only where it is close."""

from __future__ import annotations

import pytest

from trainrig.errors import UsageError
from trainrig.prediction.scenario import question
from trainrig.workload.model_lookup import find, note_of


@pytest.mark.parametrize(
    ("typed", "known"),
    [
        ("qwen2.5-7", "qwen2.5-7B"),
        ("qwen2.5-72", "qwen2.5-72B"),
        ("llama-8", "llama-8B"),
        ("mixtral-8x7", "mixtral-8x7B"),
        ("gpt2-med", "gpt2-medium"),
        ("unsloth/Meta-Llama-3.1-8B-bnb-4bit", "llama-8B"),
        ("unsloth/Qwen3-8B-unsloth-bnb-4bit", "qwen3-8B"),
        ("TheBloke/Llama-2-7B-GPTQ", "llama-7B"),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-32B", "qwen2.5-32B"),
        ("DeepSeek-R1-Distill-Llama-8B", "llama-8B"),
        ("Qwen/Qwen2.5-VL-7B-Instruct", "qwen2.5-7B"),
        ("DeepSeek-V3.2", "deepseek-v3"),
    ],
)
def test_beginnings_and_words_around_a_name_are_read(typed: str, known: str) -> None:
    assert find(typed) == find(known)


@pytest.mark.parametrize(
    "typed", ["whisper", "whisper-large-v3", "FLUX", "FLUX.1-dev", "mamba-2.8b", "R1-Distill"]
)
def test_a_stranger_gets_no_absurd_hint(typed: str) -> None:
    """Whisper was said to be near pegasus, FLUX near bart."""
    with pytest.raises(UsageError) as caught:
        find(typed)
    assert caught.value.message == f"unknown model {typed!r}"
    assert caught.value.hint is not None and caught.value.hint.startswith("pass a config.json")


@pytest.mark.parametrize(
    ("typed", "near"), [("lama-7b", "llama-7B"), ("gpt2-medum", "gpt2-medium"), ("gemma", "gemma")]
)
def test_a_slip_of_the_keyboard_gets_its_hint(typed: str, near: str) -> None:
    with pytest.raises(UsageError) as caught:
        find(typed)
    assert caught.value.hint is not None and f"did you mean {near}" in caught.value.hint


def test_what_a_name_has_besides_is_said() -> None:
    """llava-7B was answered as llama-7B without a word about its tower."""
    for typed in ("llava-7B", "Qwen2.5-VL-7B"):
        note = note_of(typed, find(typed))
        assert note is not None and "language model" in note and typed in note
        asked = question({"model": typed, "on": "A100"})
        assert note in asked.notes and any("A100 is presumed" in one for one in asked.notes)
    assert "sparse attention" in str(note_of("DeepSeek-V3.2", find("DeepSeek-V3.2")))
    assert note_of("llama-7B", find("llama-7B")) is None
    assert question({"model": "llama-7B", "on": "A100 SXM4 80GB"}).notes == ()
