"""What makes another framework's trainer fast is asked for, refused or skipped with a reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainrig.errors import NeedsGpuError, UnavailableError, UsageError
from trainrig.selftest.train_faults import RANK_FACTS
from trainrig.train import engines
from trainrig.train.config import KEYS, Experiment, case_of, check
from trainrig.train.config_file import read_file
from trainrig.train.engines import Site, check_site, engine_of
from trainrig.train.layout_check import differences, observed_layout, requested_layout
from trainrig.train.parity import is_reference
from trainrig.workload.model import GPU_ONLY, UNFUSED

FILE = Path(__file__).resolve().parents[3] / "experiments" / "one-gpu.toml"
OWN = Experiment.of(framework="huggingface", model="llama-1B", liger=True, device="cuda")


def test_the_best_of_trainer_has_all_that_makes_it_fast() -> None:
    best = [own for own in read_file(FILE, {}) if own.name.endswith("Trainer at its best")]
    assert len(best) == 5
    assert all(
        own.compile and own.placement.loader_workers and own.precision == "bf16" for own in best
    )
    assert [own.model for own in best if own.kernels.liger] == [
        "llama-1B"
    ]  # it has kernels for no other


def test_options_of_a_trainer_are_of_its_case_alone() -> None:
    assert case_of(OWN, "0" * 8)["liger"] is True
    assert "liger" not in case_of(OWN.replace(liger=False), "0" * 8)


def test_what_has_no_effect_is_refused() -> None:
    with pytest.raises(UsageError, match="no kernels for gpt2"):
        engine_of("huggingface").check(OWN.replace(model="gpt2"))
    for keys in ({"liger": True}, {"loader_workers": 4}):
        with pytest.raises(UsageError, match="another framework's trainer"):
            engine_of("native").check(Experiment.of(**keys))


def test_what_is_not_installed_is_skipped_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(gpus=1, cores=8)
    liger, lacking = "liger_kernel", "liger_kernel is not installed"
    monkeypatch.setattr(
        engines,
        "missing_requirement",
        lambda _, needs: lacking if liger in needs else None,
    )
    with pytest.raises(UnavailableError, match="liger needs liger_kernel"):
        check_site(OWN, site)
    with pytest.raises(NeedsGpuError, match="a matter of GPUs"):
        check_site(OWN.replace(device="cpu"), site)


def test_liger_that_is_asked_for_and_in_no_module_is_another_layout() -> None:
    """It was believed where the option was set."""
    asked = requested_layout(OWN.replace(loader_workers=4))
    assert (asked.kernels.liger, asked.host.loader_workers) == (True, 4)
    facts = RANK_FACTS | {"liger": [], "loader_workers": 0}
    found = differences(asked, observed_layout(facts))
    assert any(words.startswith("liger: asked True, found False") for words in found)
    assert any(words.startswith("loader_workers: asked 4, found 0") for words in found)
    there = RANK_FACTS | {"liger": ["LigerRMSNorm"], "loader_workers": 4}
    found = differences(asked, observed_layout(there))
    assert not [words for words in found if words.startswith(("liger", "loader"))]
    assert observed_layout(there).kernels.replaced == "LigerRMSNorm"


def test_the_bars_stand_in_the_file_with_what_each_kernel_is_worth() -> None:
    rows = {own.name: own for own in read_file(FILE, {})}
    for model in ("GPT-2-medium", "GPT-1.3B"):
        assert rows[f"{model}, Trainer as it comes"].expected.bar == 2.0
        assert rows[f"{model}, Trainer at its best"].expected.bar == 1.15
    assert rows["GPT-1.3B, Megatron-Core"].expected.bar == 1.15
    assert rows["GPT-2-medium, ours, compiled"].expected.bar == 0.55
    assert rows["GPT-1.3B, ours, compiled"].expected.bar == 0.65
    apart = [own for name, own in rows.items() if name.startswith("GPT-2-medium, ours, no ")]
    words = {own.kernels.unfused for own in apart} - {""}
    assert words == set(UNFUSED)
    assert {own.kernels.attention for own in apart} == {"auto", "plain"}
    for own in apart:
        engine_of("native").check(own)
        base = rows["GPT-2-medium, ours" + (", compiled" if own.compile else "")]
        others = {key for key in KEYS if own.get(key) != base.get(key)}
        assert others <= {"name", "bar", "unfused", "attention", "optimizer"}
        assert not is_reference(own, own) or not own.kernels.unfused


@pytest.mark.parametrize("word", GPU_ONLY)
def test_what_only_a_gpu_has_is_skipped_on_a_cpu(word: str) -> None:
    own = Experiment.of(unfused=word, device="cpu", compile=word == "chunk")
    check(own)
    with pytest.raises(NeedsGpuError, match=f"unfused = {word} is a matter of GPUs"):
        check_site(own, Site(gpus=0, cores=2))


def test_a_chunk_that_nothing_compiles_is_refused() -> None:
    with pytest.raises(UsageError, match="chunk"):
        check(Experiment.of(unfused="chunk"))


@pytest.mark.parametrize(
    ("text", "words", "hint"),
    [
        ('[[experment]]\nmodel = "gpt2"', "no 'experment'", "did you mean experiment?"),
        ("[[experiment]]\ntinny = {}", "no 'tinny'", "did you mean tiny?"),
        ("# nothing yet\n", "holds no experiment", 'as model = "gpt2"'),
    ],
)
def test_a_table_that_was_misspelt_is_named(
    tmp_path: Path, text: str, words: str, hint: str
) -> None:
    (tmp_path / "own.toml").write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match=words) as refused:
        read_file(tmp_path / "own.toml", {})
    assert (refused.value.hint or "").startswith(hint)
