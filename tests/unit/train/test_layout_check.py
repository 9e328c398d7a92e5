"""Two ranks that are lied to: what was asked for and is not done must be found, with both values.

The other rank is torch's fake process group, which says nothing and answers at once: numbers are
nonsense here, and what lies where is as it would be.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

import gloo_ranks
from trainrig.train.config import Experiment
from trainrig.train.layout_check import differences, observed_layout, requested_layout
from trainrig.train.native import data_parallel
from trainrig.train.native.collectives import Collectives
from trainrig.train.native.layout_observed import first_step
from trainrig.train.native.loop import Engine
from trainrig.train.native.parallelize import parallelize
from trainrig.train.native.precision import Weights
from trainrig.train.native.step_timer import stopwatch_for
from trainrig.train.native.world import World

OWN = Experiment.of(
    model="gpt2", batch_size=2, seq_len=16, warmup=0, nproc=2, device="cpu", precision="bf16"
)


@pytest.fixture(autouse=True)
def two_ranks() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    yield
    dist.destroy_process_group()
    torch.set_num_threads(before)


def found(asked: dict[str, Any], built: dict[str, Any] | None = None, **how: Any) -> Any:
    """The differences between an experiment and the first step of one that was ``built``."""
    own = OWN.replace(**asked)
    made = own if built is None else own.replace(**built)
    facts = facts_of(own, made, **how)
    return [
        words.rpartition(" (")[0]
        for words in differences(requested_layout(own), observed_layout(facts))
    ]


def facts_of(own: Experiment, made: Experiment, **how: Any) -> dict[str, Any]:
    """What the first step of ``made`` says of itself, where ``own`` was asked for."""
    shape, watch = gloo_ranks.SHAPES["gpt2"], stopwatch_for("cpu")
    wire = Collectives()
    world = World(made.layout, "cpu")
    spread = partial(parallelize, experiment=made, shape=shape, world=world, wire=wire)
    batches = gloo_ranks.batches_for(own, shape, 0)
    with Engine(
        made, shape, batches=batches, watch=watch, **(how or {"parallel": spread})
    ) as engine:
        engine.experiment = own  # whoever repeats the request believes the lie
        return dict(first_step(engine, world.axes))


HONEST: list[dict[str, Any]] = [
    {},
    {"precision": "fp32", "grad_accum": 2},
    {"zero": 1},
    {"zero": 2},
    {"zero": 3, "recompute": "full"},
    {"zero": 3, "offload": "host"},
]


@pytest.mark.parametrize("asked", HONEST)
def test_what_is_done_is_found(asked: dict[str, Any]) -> None:
    assert found(asked) == []


@pytest.mark.parametrize(
    ("asked", "built", "said"),
    [
        ({"zero": 3}, {"zero": 2}, ["zero: asked 3, found 2"]),
        ({"zero": 2}, {"zero": 3}, ["zero: asked 2, found 3"]),
        ({"nproc": 4}, {"nproc": 2}, ["ranks: asked 4, found 2"]),
        (
            {"zero": 3},
            {"zero": 0},
            ["zero: asked 3, found 0", "shard_ranks: asked 2, found 1"],
        ),
        (
            {"zero": 2, "grad_accum": 2, "batch_size": 2},
            {"zero": 1},
            ["zero: asked 2, found 1"],
        ),
        ({"recompute": "full"}, {"recompute": "none"}, ["recompute: asked full, found none"]),
        (
            {"recompute": "selective"},
            {"recompute": "full"},
            ["recompute: asked selective, found full"],
        ),
        (
            {"recompute": "none"},
            {"recompute": "selective"},
            ["recompute: asked none, found selective"],
        ),
        ({"precision": "fp32"}, {"precision": "bf16"}, ["precision: asked fp32, found bf16"]),
        ({"zero": 3}, {"precision": "fp32"}, ["precision: asked bf16, found fp32"]),
        (
            {"zero": 1},
            {"optimizer": "adamw"},
            ["fused_optimizer: asked True, found False"],
        ),
    ],
)
def test_what_is_not_done_is_found(
    asked: dict[str, Any], built: dict[str, Any], said: list[str]
) -> None:
    assert found(asked, built) == said


def test_ranks_that_never_hear_of_each_other_are_one() -> None:
    """The process group has two: that alone makes no data parallelism."""
    assert found({}, spread=Weights) == ["ranks: asked 2, found 1"]


def test_gradients_that_are_never_summed_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every micro-batch is taken for one that is not the last."""

    def loss(self: Any, inputs: Any, labels: Any, *, last: bool) -> Any:
        self.wrapped.require_backward_grad_sync = False
        return self.wrapped(inputs, labels)

    monkeypatch.setattr(data_parallel.Replicated, "loss", loss)
    assert found({"precision": "fp32"}) == ["ranks: asked 2, found 1"]


def test_sums_in_a_narrow_type_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients end in fp32 all the same: only what went out shows it."""
    true = data_parallel.policies

    def narrow(*args: Any, **how: Any) -> dict[str, Any]:
        found = true(*args, **how)
        kind = type(found["mp_policy"])
        policy = kind(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
        return {**found, "mp_policy": policy}

    monkeypatch.setattr(data_parallel, "policies", narrow)
    assert found({"zero": 3}) == ["gradient_precision: asked fp32, found bf16"]


@pytest.mark.parametrize(
    ("built", "seen"), [("none", "none"), ("selective", "selective"), ("full", "none")]
)
def test_compiled_blocks_are_told_apart_by_what_they_are_wrapped_in(built: str, seen: str) -> None:
    """Compiled, both run every product once; what was to be full and repeats none is not."""
    made = OWN.replace(recompute=built)
    facts = facts_of(made, made)
    assert facts["wrapped_policy"] == built
    compiled = {"compiled": True, "products_again": 0.0, "block_forwards": facts["micro_batches"]}
    assert observed_layout({**facts, **compiled}).recompute == seen
    again = {**facts, **compiled, "products_again": 1.0}
    assert observed_layout(again).recompute == "full"
