"""Dropout by place: how much is dropped, that masks differ, what they cost in memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from trainrig import models
from trainrig.models.dropout import dropped
from trainrig.train.config import Experiment, check
from trainrig.train.engines import ENGINES
from trainrig.workload import custom
from trainrig.workload.blocks import NONE, saved_tensors
from trainrig.workload.layout import Layout
from trainrig.workload.numerics import numerics_of

SEQ = 32
SIZES: dict[str, Any] = {
    "num_layers": 2,
    "hidden": 64,
    "num_heads": 4,
    "vocab": 128,
    "max_positions": SEQ,
}
SAMPLES = torch.arange(2)


def mask(**changes: Any) -> torch.Tensor:
    usual = {"shape": torch.Size((4, 64, 96)), "samples": torch.arange(4) + 2**33, "part": 0}
    return dropped(**({**usual, "place": 3, "seed": 1, "p": 0.1} | changes))


@pytest.mark.parametrize("p", [0.1, 0.5])
def test_as_much_is_dropped_as_was_asked_in_every_row_and_column(p: float) -> None:
    shares = mask(p=p).float()
    assert shares.mean() == pytest.approx(p, abs=4 * (p / shares.numel()) ** 0.5)
    for dims in ((1, 2), (0, 2), (0, 1)):
        spread = (p * (1 - p) / (shares.numel() / shares.mean(dims).numel())) ** 0.5
        assert (shares.mean(dims) - p).abs().max() < 4.5 * spread


@pytest.mark.parametrize(
    "other", [{"samples": torch.arange(4) + 4 + 2**33}, {"place": 4}, {"seed": 2}, {"part": 1}]
)
def test_masks_have_nothing_to_do_with_each_other(other: dict[str, Any]) -> None:
    """Of other samples, places, seeds and parts: both drop what chance has both drop."""
    both = (mask() & mask(**other)).float().mean()
    assert both == pytest.approx(0.01, abs=0.003)
    rows = mask().flatten(0, 1).float() - 0.1
    alike = (rows @ rows.T / rows.square().sum(1).mean()).fill_diagonal_(0.0)
    assert alike.abs().max() < 0.6  # of 32,640 pairs of rows of 96


def test_a_part_of_the_tokens_has_its_part_of_the_mask() -> None:
    half = mask(shape=torch.Size((4, 32, 96)), part=1)
    assert torch.equal(half, mask()[:, 32:])
    assert torch.equal(mask(shape=torch.Size((4, 64, 8, 12))).flatten(2), mask())


@pytest.mark.parametrize("family", ["gpt2", "gpt-neo", "bert", "llama"])
def test_without_samples_nothing_is_dropped(family: str) -> None:
    shape = custom(family, **SIZES)
    model, plain = models.build(shape), models.build(shape)
    models.dropout.apply(model, 0.3, 0)
    tokens = torch.randint(0, 128, (2, SEQ))
    expected = plain.loss(tokens, tokens)
    assert torch.equal(model.loss(tokens, tokens), expected)
    first, again, other = (
        model.loss(tokens, tokens, samples=own) for own in (SAMPLES, SAMPLES, SAMPLES + 2)
    )
    assert torch.equal(first, again)
    assert first != expected and first != other


def saved_bytes(module: torch.nn.Module, *given: torch.Tensor, **how: torch.Tensor) -> int:
    """Of the tensors that backward needs, weights and arguments left out, each once."""
    own = {p.untyped_storage().data_ptr() for p in module.parameters()}
    own |= {tensor.untyped_storage().data_ptr() for tensor in (*given, *how.values())}
    found: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            found[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = module(*given, **how)
    size = sum(found.values())
    del result
    return size


@pytest.mark.parametrize("family", ["gpt2", "bert"])
def test_the_masks_take_the_bytes_of_the_formula(family: str) -> None:
    """A block's, in fp32: two of hidden states, and of the scores the mask and the dropped ones."""
    shape = custom(family, **SIZES)
    model = models.build(shape, attention="plain")
    models.dropout.apply(model, 0.1, 0)
    x = torch.randn(2, SEQ, shape.hidden, requires_grad=True)
    more = saved_bytes(model.blocks[0], x, samples=SAMPLES) - saved_bytes(model.blocks[0], x)

    def formula(drops: str) -> float:
        layout = Layout.of(precision="fp32", kernels="eager", seq_len=SEQ, has_dropout=drops)
        saved = saved_tensors(shape, numerics_of(shape, layout), SEQ)
        return sum(item.num_bytes for item in saved if NONE in item.policies)

    assert more == 2 * (formula("yes") - formula("no"))


def test_a_prediction_of_a_training_with_dropout_has_its_masks() -> None:
    own, usual = Experiment.of(dropout=0.1, model="gpt2"), Experiment.of(model="gpt2")
    assert (own.layout.kernels.dropout, own.layout.kernels.stack) == ("yes", "eager")
    assert own.replace(dropout=0.0).layout == usual.layout
    assert own.replace(dropout=0.0, compile=True).layout.kernels.stack == "compiled"


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"model": "t5-base"}, "dropout of t5 comes in a later version"),
        ({"compile": True}, "dropout beside compile comes in a later version"),
        ({"attention": "sdpa"}, "attention = sdpa never has"),
        ({"framework": "huggingface", "model": "gpt2"}, "Trainer's masks come from a generator"),
    ],
)
def test_what_does_not_go_with_dropout_is_refused(keys: dict[str, Any], words: str) -> None:
    own = Experiment.of(dropout=0.1, **keys)
    with pytest.raises(Exception, match=words):
        check(own)
        ENGINES[own.framework].check(own)
