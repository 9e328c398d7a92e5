"""Rows of transformers and DeepSpeed train any causal model of transformers by its config.json."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from trainrig.errors import UsageError
from trainrig.process.supervisor import launch
from trainrig.record import Status
from trainrig.train import driver_files
from trainrig.train.config import Experiment
from trainrig.train.config_file import experiment_of
from trainrig.train.engines import ENGINES, Job
from trainrig.train.layout_check import differences, observed_layout, requested_layout
from trainrig.train.parity import disagreement, reference_of
from trainrig.workload import find, parameters

SIZES = {
    "vocab_size": 512,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
HEADS = {"head_dim": 8}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
CONFIGS: dict[str, dict[str, Any]] = {
    "qwen3": HEADS,
    "gemma3_text": HEADS | {"sliding_window": 8, "query_pre_attn_scalar": 8},
    "qwen3_moe": HEADS | EXPERTS | {"decoder_sparse_step": 1, "mlp_only_layers": []},
    "olmo2": {},
    "phi3": {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
    "phi": {"partial_rotary_factor": 0.5},
}


def written(folder: Path, kind: str) -> str:
    """The folder of a tiny config.json of a model type."""
    folder.mkdir(exist_ok=True)
    keys = {"model_type": kind, **SIZES, **CONFIGS[kind]}
    (folder / "config.json").write_text(json.dumps(keys))
    return str(folder)


def row(model: str, framework: str = "huggingface", **changes: Any) -> Experiment:
    keys = {"model": model, "framework": framework, "batch_size": 2, "seq_len": 16, "steps": 6}
    return experiment_of(keys | {"precision": "fp32", "device": "cpu"} | changes)


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_tiny_model_of_each_kind_is_built_and_has_gradients(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given only a config.json, the driver's files make a model with the predicted size."""
    pytest.importorskip("transformers", reason="needs transformers")
    import torch

    from trainrig.train.drivers.huggingface_model import model_for

    model = written(tmp_path / kind, kind)
    experiment = {"model": model, "framework": "huggingface", "seq_len": 16, "batch_size": 2}
    request = {"experiment": experiment | {"device": "cpu", "precision": "fp32"}}
    (tmp_path / "experiment.json").write_text(json.dumps(request))
    monkeypatch.setattr(sys, "argv", ["driver_files", "transformers", str(tmp_path)])
    monkeypatch.setattr(driver_files, "die_with_parent", lambda: None)
    driver_files.main()
    assert not (tmp_path / "weights.pt").exists()

    theirs = json.loads((tmp_path / "theirs.json").read_text())
    options = {"seed": 1, "dropout": 0.0, "attention": "auto", "device": "cpu"}
    trained = model_for(tmp_path, options, theirs)
    again = model_for(tmp_path, options, theirs)
    pairs = zip(trained.parameters(), again.parameters(), strict=True)
    assert all(torch.equal(first, second) for first, second in pairs)
    count = sum(weight.numel() for weight in trained.parameters())
    assert count == pytest.approx(parameters(find(model)).total, rel=0.01)
    tokens = torch.arange(32).view(2, 16)
    trained(input_ids=tokens, labels=tokens).loss.backward()
    assert trained.get_input_embeddings().weight.grad.abs().sum() > 0


@pytest.mark.parametrize("framework", ["native", "megatron"])
@pytest.mark.parametrize("kind", CONFIGS)
def test_others_refuse_by_name_before_anything_runs(
    kind: str, framework: str, tmp_path: Path
) -> None:
    model = written(tmp_path / kind, kind)
    with pytest.raises(UsageError) as refused:
        row(model, framework)
    assert model in refused.value.message
    for driven in ("huggingface", "deepspeed"):
        row(model, driven)


def test_first_weights_of_a_file_are_refused(tmp_path: Path) -> None:
    model = written(tmp_path / "qwen3", "qwen3")
    with pytest.raises(UsageError, match="own random weights"):
        row(model, init="somewhere")


@pytest.mark.smoke
@pytest.mark.parametrize("kind", CONFIGS)
def test_two_ranks_train_what_one_process_of_the_library_does(
    kind: str, tmp_path: Path, prepared_text: Path
) -> None:
    pytest.importorskip("accelerate", reason="needs accelerate")
    model = written(tmp_path / kind, kind)
    own = row(model, data=str(prepared_text), nproc=2, grad_accum=2)
    probes = []
    for number, experiment in enumerate((own, reference_of(own).replace(steps=1))):
        engine, folder = ENGINES[experiment.framework], tmp_path / str(number)
        ended = launch(engine.command(experiment, folder, Job()), folder)
        assert ended.status is Status.OK, ended.reason
        result = engine.collect(folder)
        assert result.probe is not None and result.facts is not None
        probes.append(result.probe)
        if number == 0:
            assert differences(requested_layout(own), observed_layout(result.facts)) == []
    assert disagreement(*probes, "fp32") is None
