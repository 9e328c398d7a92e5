"""Two ranks that are lied to: what was asked for and is not done must be found, with both values.

The other rank is torch's fake process group, which says nothing and answers at once: numbers are
nonsense here, and what lies where is as it would be.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

import gloo_ranks
from trainrig import models
from trainrig.train.config import Experiment
from trainrig.train.layout_check import differences, observed_layout, requested_layout
from trainrig.train.native import data_parallel
from trainrig.train.native.collectives import Collectives
from trainrig.train.native.layout_observed import first_step
from trainrig.train.native.loop import Engine
from trainrig.train.native.precision import Weights
from trainrig.train.native.rank_main import spread_of
from trainrig.train.native.step_timer import stopwatch_for

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


def found(asked: dict[str, Any], built: dict[str, Any] | None = None, spread: Any = None) -> Any:
    """The differences between an experiment and the first step of one that was ``built``."""
    own = OWN.replace(**asked)
    made = own if built is None else own.replace(**built)
    shape, watch = gloo_ranks.SHAPES["gpt2"], stopwatch_for("cpu")
    wire = Collectives(watch)
    spread = spread or partial(spread_of, experiment=made, shape=shape, wire=wire)
    batches = gloo_ranks.batches_for(own, shape, 0)
    with Engine(made, shape, batches=batches, watch=watch, spread=spread) as engine:
        engine.experiment = own  # whoever repeats the request believes the lie
        facts = first_step(engine, wire)
    return [
        words.rpartition(" (")[0]
        for words in differences(requested_layout(own), observed_layout(facts))
    ]


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
        ({"zero": 2}, {"zero": 1}, ["zero: asked 2, found 1"]),
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
    true = data_parallel._policies

    def narrow(*args: Any, **how: Any) -> dict[str, Any]:
        found = true(*args, **how)
        kind = type(found["mp_policy"])
        policy = kind(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
        return {**found, "mp_policy": policy}

    monkeypatch.setattr(data_parallel, "_policies", narrow)
    assert found({"zero": 3}) == ["gradient_precision: asked fp32, found bf16"]


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_shares_of_states_are_equal_where_weights_cannot_be_shared_evenly(
    dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By seven: gathering writes shares of one size, behind which nothing may be lost."""
    monkeypatch.setattr(Collectives, "size", 7)
    model = models.build(gloo_ranks.SHAPES["gpt2"])
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    assert sum(weight.numel() for weight in before.values() if weight.ndim >= 2) % 7
    states = data_parallel.SplitStates(model, dtype, Collectives(stopwatch_for("cpu")))
    for part, (whole, sums) in states._flat.items():
        assert whole.numel() == sums.numel() == 7 * states.master[part].numel()
    for name, weight in states.model.items():
        assert torch.equal(weight, before[name].to(weight.dtype)), name


@pytest.mark.parametrize("zero", [2, 3])
def test_on_a_gpu_the_waits_for_shards_are_marked(zero: int) -> None:
    """FSDP's own streams carry them: only where the computing one waits can be seen."""
    own, shape, watch = OWN.replace(zero=zero), gloo_ranks.SHAPES["gpt2"], stopwatch_for("cpu")
    wire = Collectives(watch, on_host=False)
    spread = partial(spread_of, experiment=own, shape=shape, wire=wire)
    batches = gloo_ranks.batches_for(own, shape, 0)
    with Engine(own, shape, batches=batches, watch=watch, spread=spread) as engine:
        engine.step()
        marks = engine._pending[0].marked.inner
    where = Counter(outer for name, outer, *_ in marks if name == "communication")
    units = 3  # two blocks, and what is around them
    assert where["forward"] == units
    assert where["backward"] >= units
    assert where["optimizer"] == 2  # the norm and the loss


def test_blocks_that_are_not_sharded_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what is around them is: most of the weights are whole, and stay so."""
    monkeypatch.setattr(data_parallel, "_blocks", lambda _: [])
    assert "zero: asked 3, found 2" in found({"zero": 3})
