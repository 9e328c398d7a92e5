"""What a machine lacks for another project's engine is said before anything starts, with a hint."""

from __future__ import annotations

from typing import Any

import pytest

from trainrig.errors import NeedsCompilerError, NeedsGpuError, UnavailableError
from trainrig.process.python_env import Interpreter
from trainrig.train import engines
from trainrig.train.config import Experiment
from trainrig.train.config_file import experiment_of
from trainrig.train.engines import ENGINES, Site, check_site

SITE = Site(gpus=0, cores=2)


def experiment(framework: str, **changes: Any) -> Experiment:
    keys = {"model": "gpt2:num_layers=2,hidden=32,num_heads=2,vocab=512,max_positions=32"}
    keys |= {"framework": framework, "precision": "fp32", "device": "cpu", "nproc": 2}
    return experiment_of(keys | {"seq_len": 16} | changes)


@pytest.mark.parametrize(
    ("framework", "packages", "words"),
    [
        ("deepspeed", {}, "deepspeed is not installed"),
        ("deepspeed", {"deepspeed": "0.14.2"}, "deepspeed is 0.14.2, older than 0.17"),
        ("megatron", {}, "megatron.core is not installed"),
        ("megatron", {"megatron.core": "0.12"}, "older than"),
    ],
)
def test_an_engine_that_is_missing_or_old(
    monkeypatch: pytest.MonkeyPatch, framework: str, packages: dict[str, str], words: str
) -> None:
    own = (framework, "megatron.core")
    others = {name: "99" for name in ENGINES[framework].needs if name not in own}
    found = Interpreter(path="python", version=(3, 11, 7), packages=others | packages)
    monkeypatch.setattr("trainrig.process.python_env.inspect_python", lambda *_: found)
    with pytest.raises(UnavailableError, match=words) as said:
        check_site(experiment(framework), SITE)
    assert said.value.hint is not None and "make engines" in said.value.hint


def test_a_compiler_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines.Framework, "missing", lambda *_: None)
    monkeypatch.setenv("CXX", "/nowhere/g++")
    with pytest.raises(NeedsCompilerError, match="is not on PATH") as said:
        check_site(experiment("deepspeed", zero=1), SITE)
    assert said.value.hint is not None and "g++" in said.value.hint
    check_site(experiment("megatron", tp=2), SITE)  # it compiles nothing


def test_what_needs_cuda_is_skipped_on_a_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines.Framework, "missing", lambda *_: None)
    with pytest.raises(NeedsGpuError, match="unverified: needs CUDA"):
        check_site(experiment("megatron", tp=2, recompute="full"), SITE)
    check_site(experiment("megatron", tp=2), SITE)
