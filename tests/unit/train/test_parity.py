"""The rule of what is comparable: tolerances, the five steps, the reference; what it must see."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch

import gloo_ranks
from trainrig.train.config import Experiment
from trainrig.train.drivers import common
from trainrig.train.native.loop import Engine
from trainrig.train.parity import (
    STEPS,
    Probe,
    disagreement,
    gaps,
    is_reference,
    probe_of,
    reference_of,
    shortened,
)
from trainrig.workload import find
from trainrig.workload.hf_config import config_of
from trainrig.workload.model_lookup import with_layers

REFERENCE = Probe(losses=(9.0, 8.5, 8.0, 7.5, 7.0), grad_norms=(2.0, 1.9, 1.8, 1.7, 1.6))


def changed(which: str, step: int, factor: float) -> Probe:
    numbers = list(getattr(REFERENCE, which))
    numbers[step] *= factor
    return dataclasses.replace(REFERENCE, **{which: tuple(numbers)})


# ---- tolerances


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("which", ["losses", "grad_norms"])
@pytest.mark.parametrize("sign", [1, -1])
def test_the_first_step_agrees_within_a_thousandth_in_every_precision(
    dtype: str, which: str, sign: int
) -> None:
    assert disagreement(changed(which, 0, 1 + sign * 0.9e-3), REFERENCE, dtype) is None
    assert disagreement(changed(which, 0, 1 + sign * 1.1e-3), REFERENCE, dtype) is not None


@pytest.mark.parametrize("step", range(1, STEPS))
@pytest.mark.parametrize(("dtype", "within"), [("fp32", 1e-4), ("bf16", 2e-2), ("fp16", 2e-2)])
def test_each_later_loss_agrees_within_its_precisions_tolerance(
    step: int, dtype: str, within: float
) -> None:
    assert disagreement(changed("losses", step, 1 - 0.9 * within), REFERENCE, dtype) is None
    said = disagreement(changed("losses", step, 1 - 1.1 * within), REFERENCE, dtype)
    assert said is not None and said.startswith(f"loss of step {step}: ")


def test_the_tolerance_is_relative_to_the_reference() -> None:
    """A loss of 0.01 may not be off by 1e-4 of 1, nor may a norm of 1000 by its thousandth of 1."""
    small = Probe(losses=(0.01,) * STEPS, grad_norms=(1000.0,) * STEPS)
    near = dataclasses.replace(small, grad_norms=(1000.5,) * STEPS)
    assert disagreement(near, small, "fp32") is None
    off = dataclasses.replace(small, losses=(0.01, *(0.01005,) * 4))
    assert disagreement(off, small, "fp32") is not None


def test_weights_under_autocast_are_rounded_elsewhere_once_and_no_more() -> None:
    """One rounding of bf16 where one side alone has fp32 weights; the loss is held to 1e-3."""
    for norm, fine in ((1.0019, True), (0.9981, True), (1.002, False)):
        own = dataclasses.replace(changed("grad_norms", 0, norm), autocast=True)
        assert (disagreement(own, REFERENCE, "bf16") is None) is fine
        both = dataclasses.replace(REFERENCE, autocast=True)
        assert "gradient norm" in str(disagreement(own, both, "bf16"))
        assert "autocast" in str(own.rounding)
        narrowed = dataclasses.replace(own, narrowing=1.002)
        assert all(words in str(narrowed.rounding) for words in ("1/N", "autocast", "2.0e-3"))
    off = dataclasses.replace(changed("losses", 0, 1.0015), autocast=True)
    assert "loss of step 0" in str(disagreement(off, REFERENCE, "bf16"))


def test_an_overflow_of_fp16_in_both_is_equal() -> None:
    """The loss's scale begins too high: the first steps have no norm and move no weight."""
    norms = (None, *REFERENCE.grad_norms[1:])
    both = dataclasses.replace(REFERENCE, grad_norms=norms)
    assert disagreement(both, both, "fp16") is None
    off = dataclasses.replace(both, grad_norms=(None, 1.01 * norms[1], *norms[2:]))
    assert "gradient norm of step 1" in str(disagreement(off, both, "fp16"))
    assert "gradient norm of step 0" in str(disagreement(both, REFERENCE, "fp16"))
    assert disagreement(both, both, "bf16") is not None
    never = dataclasses.replace(REFERENCE, grad_norms=(None,) * STEPS)
    assert "every step overflowed" in str(disagreement(never, never, "fp16"))


# ---- what is trained to find out


def test_the_five_steps_hide_no_scale() -> None:
    own = Experiment.of(optimizer="adamw", warmup=3, clip=1.0, weight_decay=0.1, lr=1e-4, steps=200)
    probe = probe_of(own)
    assert (probe.steps, probe.optimizer, probe.update.clip, probe.update.weight_decay) == (
        5,
        "sgd",
        0.0,
        0.0,
    )
    assert probe.learning_rate(0) == 0.05  # no warm-up: the first step moves the weights
    assert probe.replace(**{f: own.get(f) for f in _OF_A_PROBE}) == own


_OF_A_PROBE = ("steps", "optimizer", "clip", "weight_decay", "lr", "warmup")

OTHER: dict[str, Any] = {
    "model": "bert-base",
    "data": "elsewhere",
    "seq_len": 128,
    "precision": "fp32",
    "seed": 1,
    "device": "cuda",
    "batch_size": 1,
    "compile": True,
    "recompute": "full",
    "nproc": 2,
    "framework": "huggingface",
}


@pytest.mark.parametrize("name", OTHER)
def test_a_reference_trains_the_same_in_one_plain_process(name: str) -> None:
    own = Experiment.of(nproc=4, zero=3, batch_size=2, grad_accum=3, device="cpu", precision="bf16")
    reference = reference_of(own)
    assert is_reference(reference, own)
    assert not is_reference(reference.replace(**{name: OTHER[name]}), own)


def test_a_model_that_fits_no_device_is_compared_with_two_layers_a_stage() -> None:
    own = Experiment.of(model="llama-7B", nproc=8, zero=3, seq_len=512, batch_size=1)
    short = shortened(own)
    shape, whole = find(short.model), find("llama-7B")
    assert dataclasses.replace(shape, name=whole.name, num_layers=whole.num_layers) == whole
    assert shape.num_layers == 2 and short.replace(model=own.model, steps=own.steps) == own
    assert is_reference(reference_of(short), short)
    pipelined = shortened(own.replace(zero=0, pp=4, interleave=2))
    assert find(pipelined.model).num_layers == 16


def test_fewer_layers_may_be_asked_of_any_model(tmp_path: Path) -> None:
    assert find("gpt-neo-1.3B:num_layers=4").attention.windows == (0, 256, 0, 256)
    t5 = find("t5-base:num_layers=2")
    assert (t5.num_layers, t5.num_decoder_layers) == (2, 2)
    numbers = find(with_layers("t5:num_layers=6,hidden=64", 2))
    assert (numbers.num_layers, numbers.num_decoder_layers, numbers.hidden) == (2, 2, 64)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "llama"} | config_of(find("llama-7B"))))
    assert find(with_layers(str(path), 3)).num_layers == 3


def test_the_narrowing_of_a_mean_is_taken_out_of_the_first_norm_alone() -> None:
    """Twice as much of it is not, nor a loss that is apart."""
    factor = float(torch.tensor(1 / 36).bfloat16()) * 36
    assert factor == pytest.approx(1.0020, abs=1e-4)
    wide = dataclasses.replace(changed("grad_norms", 0, factor), narrowing=factor)
    assert disagreement(wide, REFERENCE, "bf16") is None and "1.0020" in str(wide.rounding)
    assert gaps(wide, REFERENCE) == (0.0, pytest.approx(0.0, abs=1e-9))
    untold = dataclasses.replace(wide, narrowing=1.0)
    assert disagreement(untold, REFERENCE, "bf16") is not None and untold.rounding is None
    twice = dataclasses.replace(changed("grad_norms", 0, factor**2), narrowing=factor)
    assert disagreement(twice, REFERENCE, "bf16") is not None
    apart = dataclasses.replace(changed("losses", 0, factor), narrowing=factor)
    assert disagreement(apart, REFERENCE, "bf16") is not None


def test_a_norm_that_is_not_compared_has_no_gap() -> None:
    """Adapters' gradients are of other weights: null with the reason, not a perfect 0."""
    lora = dataclasses.replace(changed("grad_norms", 0, 0.1), only_first=True)
    assert gaps(lora, REFERENCE) == (0.0, None)
    assert disagreement(lora, REFERENCE, "bf16") is None
    assert "first loss alone is compared" in str(lora.rounding)
    assert gaps(changed("grad_norms", 0, 0.5), REFERENCE) == (0.0, pytest.approx(0.5))


@pytest.mark.parametrize("factor", [0.0, 0.5, 0.995, 1.005, 2.0, float("nan")])
def test_a_fault_that_a_driver_states_as_narrowing_is_still_seen(factor: float) -> None:
    """Twice the gradients (or none of them) are no rounding, though the driver says so."""
    wrong = dataclasses.replace(changed("grad_norms", 0, factor), narrowing=factor)
    assert disagreement(wrong, REFERENCE, "bf16") is not None and wrong.rounding is None
    gaps(wrong, REFERENCE)


def test_the_narrowing_of_fp16_is_that_of_a_scaled_loss() -> None:
    """1 / 49152 itself is below fp16's normal numbers; nobody begins backward with it."""
    torch.manual_seed(0)
    logits, labels = torch.randn(64, 50), torch.arange(64) % 50
    few, many = (common.narrowing(logits, labels, 1 / n, "fp16") for n in (3, 3 * 2**14))
    assert few == many and 0 < abs(few - 1) < 2**-10


def test_narrowing_is_what_backward_loses_of_a_mean() -> None:
    """The norm of a head's gradient, of a mean and of a sum that is divided last."""
    torch.manual_seed(0)
    for targets in (22, 36, 99, 64):
        hidden, head = torch.randn(targets + 5, 32), torch.randn(50, 32) / 50
        labels = torch.arange(targets + 5) % 50
        labels[:5] = -100
        norms, logits = [], torch.empty(0)
        for reduction in ("mean", "sum"):
            weight = head.clone().requires_grad_()
            logits = (hidden @ weight.T).bfloat16()
            torch.nn.functional.cross_entropy(
                logits.float(), labels, reduction=reduction
            ).backward()
            assert weight.grad is not None
            norms.append(float(weight.grad.norm()))
        found = common.narrowing(logits, labels, 1 / targets, "bf16")
        assert found == pytest.approx(norms[0] * targets / norms[1], abs=4e-4)
        assert (found == 1.0) == (targets == 64)
        assert common.narrowing(logits, labels, 1 / targets, "fp32") == 1.0


# ---- what it must see

TINY = Experiment.of(
    model="gpt2", batch_size=2, grad_accum=2, seq_len=16, steps=2, precision="fp32", warmup=0
)


def probe(scale: float = 1.0, dtype: str = "fp32") -> Probe:
    """The five steps of a tiny model whose gradients are ``scale`` times what they should be."""
    own = probe_of(TINY.replace(precision=dtype))
    shape, rows = gloo_ranks.SHAPES["gpt2"], []

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    batches = gloo_ranks.batches_for(own, shape, 0)
    with Engine(own, shape, batches=batches) as engine:
        backward = engine.weights.backward
        engine.weights.backward = lambda loss, **how: backward(loss * scale, **how)
        engine.run(rows.append, lambda step: step >= STEPS)
    torch.set_num_threads(before)
    return Probe(
        losses=tuple(row["loss"] for row in rows),
        grad_norms=tuple(row["grad_norm"] for row in rows),
    )


@pytest.mark.parametrize("scale", [2.0, 0.5, 1.01])
def test_a_gradient_of_another_scale_is_seen_twice(scale: float) -> None:
    """By its norm, and where that is said as it should be, by where it leads."""
    right, wrong = probe(), probe(scale)
    assert disagreement(right, right, "fp32") is None
    said = disagreement(wrong, right, "fp32")
    assert said is not None and said.startswith("gradient norm of step 0")
    hidden = dataclasses.replace(wrong, grad_norms=right.grad_norms)
    said = disagreement(hidden, right, "fp32")
    assert (said is not None and said.startswith("loss of step")) == (scale != 1.01)


def test_two_trainings_of_one_seed_are_the_same_to_the_last_bit() -> None:
    assert probe() == probe()
    assert probe(dtype="bf16") == probe(dtype="bf16") != probe()
