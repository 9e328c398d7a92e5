"""What DeepSpeed's driver is made of: layers of a pipeline, its configuration."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from trainrig.train.config_file import experiment_of
from trainrig.train.launch_files import deepspeed_config
from trainrig.workload import find
from trainrig.workload.hf_config import class_names, config_of

if find_spec("deepspeed") is None or find_spec("transformers") is None:
    pytest.skip("needs deepspeed", allow_module_level=True)
SIZES = "num_layers=2,hidden=32,num_heads=4,vocab=96,max_positions=32"
MODELS = (
    f"gpt2:{SIZES}",
    f"llama:{SIZES},num_kv_heads=2",
    f"llama:{SIZES},num_kv_heads=2,tied=true",
)


@pytest.fixture(autouse=True)
def on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """DeepSpeed looks for its accelerator when it is imported."""
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")


def layers_of(folder: Path, attention: str, given: dict[str, Any]) -> list[Any]:
    from trainrig.train.drivers import deepspeed_pipeline

    return deepspeed_pipeline.layers_of(folder, {"attention": attention}, given)


def whole_model(model: str, attention: str, folder: Path) -> tuple[Any, dict[str, Any]]:
    """transformers' model with its weights in the folder, and what a driver is given of it."""
    shape = find(model)
    config_class, model_class = class_names(shape)
    given = {"config_class": config_class, "model_class": model_class, "config": config_of(shape)}
    import transformers

    hugging_face: Any = transformers
    config = getattr(hugging_face, config_class)(**given["config"])
    config._attn_implementation = {"plain": "eager"}.get(attention, attention)
    torch.manual_seed(0)
    made = getattr(hugging_face, model_class)(config).eval()
    torch.save(made.state_dict(), folder / "weights.pt")
    return made, given


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("attention", ["sdpa", "plain"])
def test_layers_one_after_another_are_the_whole_model(
    model: str, attention: str, tmp_path: Path
) -> None:
    """Also in bf16, where the whole model's frequencies are rounded and the layers' are not."""
    whole, given = whole_model(model, attention, tmp_path)
    ids = torch.arange(24).view(2, 12) * 7 % 96
    x: Any = ids
    tied: dict[str, Any] = {}
    for spec in layers_of(tmp_path, attention, given):
        key = getattr(spec, "key", None)
        layer = tied.setdefault(key, spec.build()) if key else spec.build()
        forward = getattr(spec, "forward_fn", None)
        x = forward(layer, x) if forward else layer(x)
    assert torch.allclose(x, whole(ids).logits, atol=1e-5)
    assert not torch.allclose(x[:, 1:], whole(ids.flip(1)).logits[:, 1:], atol=1e-2)


def test_a_rank_reads_its_own_layers_alone(tmp_path: Path) -> None:
    _, given = whole_model(MODELS[0], "sdpa", tmp_path)
    specs = layers_of(tmp_path, "auto", given)
    block = specs[2].build()
    state = torch.load(tmp_path / "weights.pt", weights_only=True)
    assert torch.equal(block.inner.ln_1.weight, state["transformer.h.0.ln_1.weight"])
    gone = {name: weight for name, weight in state.items() if ".h.1.mlp" not in name}
    torch.save(gone, tmp_path / "weights.pt")
    specs = layers_of(tmp_path, "auto", given)
    specs[2].build()
    with pytest.raises(ValueError, match=r"weights\.pt has no transformer\.h\.1\.mlp"):
        specs[3].build()


def test_a_pipeline_in_bf16_sums_in_fp32() -> None:
    """By stage 1, which shards nothing over one rank; in fp32 there is nothing to choose."""
    keys = {"model": "gpt2", "framework": "deepspeed", "device": "cpu", "nproc": 2, "pp": 2}
    for precision, stage in (("bf16", 1), ("fp32", 0)):
        found = deepspeed_config(experiment_of({**keys, "precision": precision, "grad_accum": 4}))
        assert found["zero_optimization"]["stage"] == stage
        assert found["pipeline"]["stages"] == 2 and found["train_batch_size"] == 4 * 8
