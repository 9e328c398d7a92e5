"""What makes another framework's trainer fast is asked for, refused or skipped with a reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainrig.errors import NeedsGpuError, UnavailableError, UsageError
from trainrig.train import engines
from trainrig.train.config import Experiment, case_of
from trainrig.train.config_file import read_file
from trainrig.train.engines import Site, check_site, engine_of

FILE = Path(__file__).resolve().parents[3] / "experiments" / "one-gpu.toml"
OWN = Experiment.of(framework="huggingface", model="llama-1B", liger=True, device="cuda")


def test_the_best_of_trainer_has_all_that_makes_it_fast() -> None:
    best = [own for own in read_file(FILE, {}) if own.name.endswith("Trainer at its best")]
    assert len(best) == 5
    assert all(own.compile and own.loader_workers and own.precision == "bf16" for own in best)
    assert [own.model for own in best if own.liger] == ["llama-1B"]  # it has kernels for no other


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
