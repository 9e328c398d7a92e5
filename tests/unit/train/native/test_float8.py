"""fp8: torchao's layers in the place of the blocks' matrices, found as such; emulated here."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

import gloo_ranks
import rank_program
from trainrig.errors import NeedsGpuError, TrainrigError, UnavailableError, UsageError
from trainrig.train import engines
from trainrig.train.config import Experiment, check, to_dict
from trainrig.train.engines import Site, check_site, engine_of
from trainrig.train.layout_check import (
    differences,
    exchange_differences,
    expected_exchanges,
    observed_layout,
    requested_layout,
)
from trainrig.train.native import loop, precision
from trainrig.train.parity import Probe, disagreement
from trainrig.workload.model import FP8_RECIPES

BASE = Experiment.of(
    model="gpt2", batch_size=8, seq_len=16, steps=2, precision="fp8", warmup=0, device="cpu"
)
EMULATED = ["precision: asked fp8, found fp8 (emulated) (Model)"]
HOPPER = Site(gpus=1, cores=8, numbers=(0,), present=(0,), capabilities={0: (9, 0)})
AMPERE = Site(gpus=1, cores=8, numbers=(0,), present=(0,), capabilities={0: (8, 6)})

torchao = pytest.mark.skipif(find_spec("torchao") is None, reason="needs torchao")
pytestmark = pytest.mark.filterwarnings("ignore")  # torchao's own, of libraries for GPUs


def alone(**keys: Any) -> dict[str, Any]:
    torch.set_num_threads(1)
    return gloo_ranks.probe(BASE.replace(**keys))


def apart(found: dict[str, Any], **keys: Any) -> list[str]:
    own = BASE.replace(**keys)
    asked = requested_layout(own)
    return differences(asked, observed_layout(found["facts"]))


def probe_in(found: dict[str, Any]) -> Probe:
    return Probe(losses=tuple(found["losses"]), grad_norms=tuple(found["grad_norms"]))


@torchao
@pytest.mark.parametrize("recipe", FP8_RECIPES)
def test_a_recipe_is_found_as_asked_and_a_processor_says_that_it_emulates(recipe: str) -> None:
    found = alone(fp8_recipe=recipe)
    assert apart(found, fp8_recipe=recipe) == EMULATED
    assert found["facts"]["float8"]["layers"] == 8  # four matrices in each of two blocks
    other = next(name for name in FP8_RECIPES if name != recipe)
    words = f"fp8_recipe: asked {other}, found {recipe} (Model)"
    assert words in apart(found, fp8_recipe=other)


@torchao
def test_embeddings_head_and_norms_are_none_of_torchaos_layers() -> None:
    own = BASE.replace(model="bert")
    engine, _ = gloo_ranks.engine_for(own)
    with engine:
        kinds = {type(part).__name__ for name, part in engine.model.named_children()}
        assert "Float8Linear" not in kinds and "Linear" in kinds  # BERT's last dense layer
        block = engine.model.blocks[0]
        layers = [type(p).__name__ for p in block.modules() if isinstance(p, torch.nn.Linear)]
        assert set(layers) == {"Float8Linear"}
        assert {weight.dtype for weight in engine.model.parameters()} == {torch.bfloat16}
        assert {m.dtype for m in engine.weights.master.values()} == {torch.float32}


@torchao
def test_products_are_really_rounded_to_eight_bits() -> None:
    narrow, wide = alone(), alone(precision="bf16")
    gap = abs(narrow["losses"][0] / wide["losses"][0] - 1)
    assert 1e-6 < gap < 2e-2
    assert narrow["facts"]["float8_products"] == 24 and not wide["facts"]["float8_products"]
    assert wide["facts"]["float8"] is None


@torchao
def test_matrices_that_stayed_in_bf16_are_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    convert = precision.to_float8
    monkeypatch.setattr(loop, "to_float8", lambda *_: None)
    assert "precision: asked fp8, found bf16 (Model)" in apart(alone())

    def all_but_one(model: Any, recipe: str, device: str) -> None:
        first = model.blocks[0].ffn.down
        convert(model, recipe, device)
        model.blocks[0].ffn.down = first

    monkeypatch.setattr(loop, "to_float8", all_but_one)
    assert apart(alone()) == [
        "precision: asked fp8, found fp8 in 7 of 8 matrices (emulated) (Model)"
    ]


@torchao
@pytest.mark.parametrize("recompute", ["full", "selective"])
def test_recomputation_is_found_beside_it(recompute: str) -> None:
    assert apart(alone(recompute=recompute), recompute=recompute) == EMULATED


@torchao
def test_rows_scales_do_not_depend_on_how_a_step_is_cut() -> None:
    whole = probe_in(alone())
    parts = probe_in(alone(batch_size=2, grad_accum=4))
    assert disagreement(parts, whole, "fp8") is None


@torchao
def test_ranks_compute_what_one_process_does(tmp_path: Path) -> None:
    two: dict[str, Any] = {"nproc": 2, "batch_size": 4}
    layouts: dict[str, dict[str, Any]] = {
        "ddp": two,
        "zero-3": two | {"zero": 3},
        "zero-3, selective": two | {"zero": 3, "recompute": "selective"},
        "pp": {"nproc": 2, "pp": 2, "batch_size": 4, "grad_accum": 2},
        "cp": {"nproc": 2, "cp": 2},
    }
    asked = {
        name: {"experiment": to_dict(BASE.replace(**keys)), "weights": str(tmp_path / "w.pt")}
        for name, keys in layouts.items()
    }
    got = rank_program.run(gloo_ranks.__file__, asked, tmp_path)[0]
    reference = probe_in(alone())
    for name, found in got.items():
        own, facts = BASE.replace(**layouts[name]), found["facts"]
        assert disagreement(probe_in(found), reference, "fp8") is None, name
        (words,) = apart(found, **layouts[name])
        assert words.startswith("precision: asked fp8, found fp8 (emulated)"), name
        expected = expected_exchanges(own, facts, gloo_ranks.SHAPES["gpt2"])
        assert expected
        assert (
            exchange_differences(expected, observed_layout(facts).communication.exchanges) == []
        ), name


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"tp": 2, "nproc": 2}, "fp8 beside tensor parallelism"),
        ({"pp": 2, "nproc": 2, "grad_accum": 2, "schedule": "zb"}, "two backward passes"),
        ({"framework": "huggingface"}, "fp8 of huggingface is not trained here"),
        ({"framework": "deepspeed", "zero": 1, "nproc": 2}, "fp8 of deepspeed"),
        ({"framework": "megatron"}, "fp8 of megatron"),
        ({"batch_size": 3, "seq_len": 8}, "tokens of a micro-batch: 24"),
        ({"model": "gpt2:num_layers=2,hidden=72,num_heads=2"}, "widths of .*: 72"),
        ({"precision": "bf16", "fp8_recipe": "rowwise"}, "precision is bf16"),
    ],
)
def test_what_has_no_eight_bits_is_refused(keys: dict[str, Any], words: str) -> None:
    own = BASE.replace(**({"model": "gpt2-small-cpu"} | keys))
    with pytest.raises(UsageError, match=words):
        check(own)
        engine_of(own.framework).check(own)


def test_a_recipe_is_one_of_torchaos() -> None:
    with pytest.raises(UsageError, match="fp8_recipe"):
        check(BASE.replace(model="gpt2-small-cpu", fp8_recipe="delayed"))


@pytest.mark.parametrize(
    ("site", "device", "kind", "words"),
    [
        (Site(gpus=0, cores=2), "cpu", NeedsGpuError, "needs a GPU with products of fp8"),
        (AMPERE, "cuda", NeedsGpuError, "8.9 .*, and GPU 0 has 8.6"),
        (HOPPER, "cuda", UnavailableError, "missing: fp8 needs torchao"),
    ],
)
def test_where_a_card_or_torchao_lacks_it_it_is_skipped_with_a_line(
    site: Site,
    device: str,
    kind: type[TrainrigError],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engines, "missing_requirement", lambda *_: "torchao is not installed")
    own = BASE.replace(model="gpt2-small-cpu", device=device, devices="0" if site.gpus else "")
    with pytest.raises(kind, match=words):
        check_site(own, site)
    if site is HOPPER:
        monkeypatch.setattr(engines, "missing_requirement", lambda *_: None)
        check_site(own, site)
