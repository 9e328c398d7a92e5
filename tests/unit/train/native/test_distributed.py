"""Every layout on two real ranks: it computes what one process does, and is what it says it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch

import gloo_ranks
import rank_program
from trainrig import models
from trainrig.train.config import Experiment, to_dict
from trainrig.train.layout_check import (
    differences,
    exchange_differences,
    expected_exchanges,
    observed_layout,
    requested_layout,
)
from trainrig.train.parity import Probe, disagreement, is_reference

BASE = Experiment.of(
    model="gpt2", batch_size=4, seq_len=16, steps=2, precision="fp32", warmup=0, nproc=2
)
Weights = Mapping[str, torch.Tensor]
LAYOUTS: dict[str, dict[str, Any]] = {
    "ddp": {},
    "ddp-accum": {"batch_size": 2, "grad_accum": 2},
    "ddp-bf16-accum": {"batch_size": 2, "grad_accum": 2, "precision": "bf16"},
    "ddp-recomputed": {"recompute": "full"},
    "ddp-buckets": {"model": "wide"},
    "ddp-buckets-bf16": {"model": "wide", "precision": "bf16"},
    "zero-1": {"zero": 1},
    "zero-1-bf16-accum": {"zero": 1, "batch_size": 2, "grad_accum": 2, "precision": "bf16"},
    "zero-2": {"zero": 2},
    "zero-2-accum": {"zero": 2, "batch_size": 2, "grad_accum": 2},
    "zero-3": {"zero": 3},
    "zero-3-bf16": {"zero": 3, "precision": "bf16", "recompute": "selective"},
    "zero-3-accum": {"zero": 3, "batch_size": 2, "grad_accum": 2, "recompute": "full"},
    "zero-3-offload": {"zero": 3, "offload": "host"},
    "bert": {"model": "bert"},
    "bert-accum": {"model": "bert", "batch_size": 2, "grad_accum": 2},
    "bert-zero-3": {"model": "bert", "zero": 3},
    "plain": {"optimizer": "adamw", "zero": 1},
}


def experiment(name: str) -> Experiment:
    return BASE.replace(**LAYOUTS[name])


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Any]:
    """What the ranks wrote, one launch for all layouts."""
    folder = tmp_path_factory.mktemp("ranks")
    asked = {
        name: {"experiment": to_dict(experiment(name)), "weights": str(folder / f"{name}.pt")}
        for name in LAYOUTS
    }
    got = rank_program.run(gloo_ranks.__file__, asked, folder)[0]
    for name, case in asked.items():
        got[name]["weights"] = torch.load(case["weights"])
    return got


@pytest.fixture(scope="module")
def references() -> list[tuple[Experiment, Probe, Weights]]:
    """One process on the same samples, for each model and precision; its clipped weights."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    alone = []
    wide = {"model": "wide"}
    narrow = {"precision": "bf16"}
    for change in ({}, narrow, {"model": "bert"}, wide, wide | narrow):
        own = BASE.replace(batch_size=8, nproc=1, **change)
        got = gloo_ranks.probe(own)
        alone.append((own, probe_in(got), gloo_ranks.clipped(own)))
    torch.set_num_threads(before)
    return alone


def probe_in(got: Mapping[str, Any]) -> Probe:
    return Probe(losses=tuple(got["losses"]), grad_norms=tuple(got["grad_norms"]))


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout_computes_what_one_process_does(
    name: str, found: Mapping[str, Any], references: list[tuple[Experiment, Probe, Weights]]
) -> None:
    own = experiment(name)
    (reference,) = (probe for alone, probe, _ in references if is_reference(alone, own))
    assert disagreement(probe_in(found[name]), reference, own.precision) is None


@pytest.mark.parametrize("name", LAYOUTS)
def test_clipping_and_decay_move_weights_as_in_one_process(
    name: str, found: Mapping[str, Any], references: list[tuple[Experiment, Probe, Weights]]
) -> None:
    """Clipping must know the norm of the mean, decay must spare biases and norms."""
    own = experiment(name)
    (expected,) = (weights for alone, _, weights in references if is_reference(alone, own))
    first = models.build(gloo_ranks.SHAPES[own.model], seed=own.seed).state_dict()
    assert found[name]["weights"].keys() == expected.keys()
    for weight, got in found[name]["weights"].items():
        moved = (expected[weight] - first[weight]).norm()
        # A rounding of bf16 is 2^-9 of a weight at most; here one more, of the reference.
        rounding = 2.0**-8 * expected[weight].norm() if own.precision == "bf16" else 0.0
        near = (5e-2 if own.precision == "bf16" else 1e-3) * moved
        assert (got - expected[weight]).norm() <= near + rounding + 1e-6, weight


@pytest.mark.parametrize("name", LAYOUTS)
def test_all_ranks_have_the_same_weights(name: str, found: Mapping[str, Any]) -> None:
    assert len(set(found[name]["digests"])) == 1


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout_is_found_as_asked(name: str, found: Mapping[str, Any]) -> None:
    own = experiment(name)
    asked = requested_layout(own)
    assert differences(asked, observed_layout(found[name]["facts"])) == []


@pytest.mark.parametrize("name", LAYOUTS)
def test_what_a_step_exchanges_is_what_the_formula_says(
    name: str, found: Mapping[str, Any]
) -> None:
    own, facts = experiment(name), found[name]["facts"]
    expected = expected_exchanges(own, facts, gloo_ranks.SHAPES[own.model])
    assert expected
    assert exchange_differences(expected, observed_layout(facts).communication.exchanges) == []


def test_another_layout_is_a_difference(found: Mapping[str, Any]) -> None:
    """What was asked for is never repeated as found: each facts fits its own request alone."""
    different = ("ddp", "zero-1-bf16-accum", "zero-2-accum", "zero-3")
    for name in different:
        others = [n for n in different if n != name]
        for other in others:
            words = differences(
                requested_layout(experiment(name)), observed_layout(found[other]["facts"])
            )
            assert any(word.startswith("zero: asked") for word in words), (name, other)
    recomputed = requested_layout(experiment("ddp-recomputed"))
    assert differences(recomputed, observed_layout(found["ddp"]["facts"])) == [
        "recompute: asked full, found none (DistributedDataParallel)"
    ]


def test_shares_are_what_the_words_promise(found: Mapping[str, Any]) -> None:
    facts = {name: observed_layout(found[name]["facts"]).sharding for name in LAYOUTS}
    assert facts["ddp"].held_states == facts["ddp"].held_gradients == 1.0
    assert facts["zero-1"].held_states == pytest.approx(0.5, abs=0.01)
    assert facts["zero-2"].held_gradients == pytest.approx(0.5, abs=0.01)
    assert facts["zero-2"].held_weights_in_backward == 1.0
    assert facts["zero-3"].held_weights == pytest.approx(0.5, abs=0.01)
    assert facts["zero-3"].held_weights_in_backward < 0.9


def test_gradients_are_said_only_when_they_must(found: Mapping[str, Any]) -> None:
    """Accumulating, whole gradients go out once a step; shares with each micro-batch."""
    facts = {name: observed_layout(found[name]["facts"]).communication for name in LAYOUTS}
    said = {name: one.gradient_collectives for name, one in facts.items()}
    assert said["ddp-accum"] == said["ddp"]
    assert said["zero-1-bf16-accum"] == said["zero-1"]
    assert said["zero-2-accum"] == 2 * said["zero-2"]
    assert said["zero-3-accum"] == 2 * said["zero-3"]


def test_ddp_says_a_large_model_in_buckets(found: Mapping[str, Any]) -> None:
    """From its first step on, so that a training that is resumed sums as the first one did."""
    facts = {name: observed_layout(found[name]["facts"]).communication for name in LAYOUTS}
    assert facts["ddp"].gradient_collectives == 1
    assert facts["ddp-buckets"].gradient_collectives == 2


def test_a_step_is_the_sum_of_its_parts(found: Mapping[str, Any]) -> None:
    parts = ("data_wait", "forward", "backward", "optimizer", "other")
    for name in LAYOUTS:
        row = found[name]["parts"]
        assert sum(row[part] for part in parts) == pytest.approx(row["time"])
