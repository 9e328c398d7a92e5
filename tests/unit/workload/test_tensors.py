"""The tensors of the formulas are those of the real models, by name and size."""

from __future__ import annotations

import math

import pytest

from trainrig import models
from trainrig.workload import find, parameters
from trainrig.workload.tensors import Weight, model_tensors

MODELS = ("gpt2", "gpt-neo-1.3B", "bert-base", "t5-base", "llama-1B", "llama-7B", "mixtral-8x7B")


@pytest.mark.parametrize("name", MODELS)
def test_they_are_those_of_the_models(name: str) -> None:
    shape = find(name)
    built = models.build(shape, device="meta")
    found = {weight.name: tuple(weight.dims) for weight in model_tensors(shape)}
    there = {name: tuple(p.shape) for name, p in built.named_parameters()}
    assert found == there
    # Modules are made in the order in which forward reads them; a bare parameter is named first.
    assert [name for name in found if name != "head_bias"] == [
        name for name in there if name != "head_bias"
    ]
    assert sum(math.prod(dims) for dims in found.values()) == parameters(shape).total


def test_a_share_is_rounded_up_tensor_by_tensor() -> None:
    weight = Weight(name="tokens.weight", dims=(101, 32), cut=0)
    assert weight.share(2) == 51 * 32
    assert weight.padded(2) == 102 * 32
    assert weight.on(2) == (51, 32)
    assert weight.share(2, tp=2) == 26 * 32
    assert Weight(name="ffn.down.weight", dims=(32, 128), cut=1).on(4) == (32, 32)
