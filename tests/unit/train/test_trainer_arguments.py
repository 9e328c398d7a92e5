"""Trainer's arguments by their own names; adapters; what is refused, skipped and counted."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from trainrig.errors import NeedsGpuError, UnavailableError, UsageError
from trainrig.selftest.train_faults import RANK_FACTS
from trainrig.train import refusals, trainer_arguments
from trainrig.train.config_file import experiment_of
from trainrig.train.layout_check import differences, observed_layout, requested_layout
from trainrig.train.parity import STEPS, Probe, disagreement, gaps, reference_of
from trainrig.train.trainer_arguments import lacking, parsed

OWN = {"framework": "huggingface", "model": "gpt2", "device": "cpu", "seq_len": 64}


@pytest.fixture
def older(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An interpreter whose transformers still have names that are gone since."""
    folder = tmp_path / "transformers"
    folder.mkdir()
    (folder / "training_args.py").write_text(
        'class OptimizerNames:\n    ADAMW_HF = "adamw_hf"\n    ADAMW_TORCH = "adamw_torch"\n'
        "class TrainingArguments:\n    group_by_length: bool = False\n"
    )
    python = SimpleNamespace(folders=(str(tmp_path),))
    monkeypatch.setattr(trainer_arguments, "is_external", lambda path: path == "older")
    monkeypatch.setattr(trainer_arguments, "inspect_python", lambda _: python)
    return "older"


def test_values_are_read_as_what_they_are() -> None:
    assert parsed("a=true, b=3,c=0.5 ,d=word,") == {"a": True, "b": 3, "c": 0.5, "d": "word"}
    assert parsed("") == {}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("skip_memory_metrics", "skip_memory_metrics"),
        ("a=1,a=2", "twice"),
        ("A-b=1", "A-b"),
        ("learning_rate=1", "key of its own"),
        ("output_dir=x", "needs"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_a_line(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        experiment_of(OWN | {"trainer": text})


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("optim=adamw_hf", "adamw_torch"),
        ("optim=adamw_apex_fused", "adamw_torch_fused"),
        ("group_by_length=true", "train_sampling_strategy"),
        ("skip_memory_metric=true", "did you mean skip_memory_metrics"),
    ],
)
def test_names_that_are_gone_are_refused_with_those_of_now(text: str, hint: str) -> None:
    """By the transformers that are installed here."""
    pytest.importorskip("transformers", reason="needs transformers")
    error = lacking(text, sys.executable, "cpu")
    assert error is not None and hint in str(error.hint)
    assert lacking("skip_memory_metrics=false,optim=adamw_torch", sys.executable, "cpu") is None


def test_names_are_accepted_where_they_still_exist(older: str) -> None:
    assert lacking("optim=adamw_hf,group_by_length=true", older, "cpu") is None
    assert lacking("optim=adamw_torch_fused", older, "cpu") is not None


def test_an_8_bit_optimizer_by_its_name_needs_cuda_and_is_counted() -> None:
    pytest.importorskip("transformers", reason="needs transformers")
    own = experiment_of(OWN | {"trainer": "optim=paged_adamw_8bit"})
    error = refusals.lacking_for_trainer(own)
    assert isinstance(error, NeedsGpuError) and "unverified: needs CUDA" in error.message
    on_gpu = lacking("optim=paged_adamw_8bit", sys.executable, "cuda")
    assert on_gpu is None or "needs bitsandbytes" in on_gpu.message
    assert requested_layout(own).optimizer.name is None  # it is named in Trainer's words


def test_qlora_needs_cuda_and_says_that_it_is_not_comparable() -> None:
    keys = OWN | {"model": "llama-1B", "lora_rank": 16, "quantize": "nf4"}
    with pytest.raises(UsageError, match="losses are its own"):
        experiment_of(keys)
    own = experiment_of(keys | {"comparable": False, "why": "4-bit weights"})
    with pytest.raises(NeedsGpuError, match="unverified: needs CUDA"):
        raise refusals.lacking_for_trainer(own) or AssertionError
    with pytest.raises(UsageError, match="nothing else is"):
        experiment_of(keys | {"lora_rank": 0})
    with pytest.raises(UsageError, match="quantize"):
        experiment_of(keys | {"quantize": "int3"})


def test_what_is_to_be_installed_is_called_as_on_pypi(monkeypatch: pytest.MonkeyPatch) -> None:
    """What stable_adamw imports is optimi; another project, or nobody, has that name there."""
    monkeypatch.setattr(trainer_arguments, "missing_requirement", lambda *_: "none")
    monkeypatch.setattr(trainer_arguments, "_source", lambda _: "")
    error = trainer_arguments.lacking("optim=stable_adamw", sys.executable, "cpu")
    assert error is not None and error.hint == "pip install torch-optimi"


@pytest.mark.parametrize("framework", ["native", "deepspeed", "megatron"])
def test_adapters_and_adafactor_are_trainers_alone(framework: str) -> None:
    for keys in ({"lora_rank": 8}, {"optimizer": "adafactor"}, {"trainer": "optim=sgd"}):
        with pytest.raises(UsageError):
            experiment_of(OWN | {"framework": framework, "precision": "fp32"} | keys)


def test_without_peft_there_are_no_adapters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusals, "missing_requirement", lambda _, needs: f"no {set(needs)}")
    error = refusals.lacking_for_trainer(experiment_of(OWN | {"lora_rank": 16}))
    assert isinstance(error, UnavailableError) and error.hint == "pip install peft"


def test_of_adapters_the_first_loss_is_compared_and_it_must_be_there() -> None:
    own = experiment_of(OWN | {"lora_rank": 16})
    assert reference_of(own).lora_rank == 0
    right = Probe(losses=(9.0,) * STEPS, grad_norms=(2.0,) * STEPS)
    adapters = Probe(losses=(9.0, 5.0), grad_norms=(0.1, 0.1), only_first=True)
    assert disagreement(adapters, right, "fp32") is None and gaps(adapters, right) == (0.0, None)
    assert "first loss alone" in str(adapters.rounding)
    wrong = dataclasses.replace(adapters, losses=(9.1, 5.0))
    assert "loss of step 0" in str(disagreement(wrong, right, "fp32"))


def test_adapters_that_were_asked_for_and_are_not_there_are_seen() -> None:
    asked = requested_layout(experiment_of(OWN | {"lora_rank": 16}))
    found = differences(asked, observed_layout(RANK_FACTS | {"lora_rank": 8}))
    assert any(words.startswith("lora_rank: asked 16, found 8") for words in found)
    none = differences(asked, observed_layout(RANK_FACTS | {"lora_rank": 0}))
    assert any(words.startswith("lora_rank: asked 16, found 0") for words in none)
