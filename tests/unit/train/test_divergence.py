"""A training that diverges ends, and one that only looks like it goes on."""

from __future__ import annotations

import math
from itertools import chain, repeat

import numpy as np
import pytest

from trainrig.data.batches import Batch
from trainrig.train.config import Experiment
from trainrig.train.divergence import PATIENCE, Diverged, LossWatch
from trainrig.train.native.loop import Engine
from trainrig.workload import custom

SHAPE = custom("gpt2", num_layers=2, hidden=32, num_heads=2, vocab=64, max_positions=16)
OWN = Experiment.of(
    model="gpt2", batch_size=8, seq_len=16, steps=120, precision="fp32", warmup=20, lr=3e-3
)


def counting(step: int) -> Batch:
    """Tokens that count up: learned within a few steps."""
    starts = np.random.default_rng(step).integers(0, 64, (8, 1))
    tokens = (starts + np.arange(17)) % 64
    return Batch(inputs=tokens[:, :-1].copy(), labels=tokens[:, 1:].copy())


def trained(**changes: float) -> list[float]:
    """The losses of a training."""
    losses: list[float] = []
    own = OWN.replace(**changes)
    with Engine(own, SHAPE, batches=counting) as engine:
        engine.run(lambda row: losses.append(row["loss"]), lambda step: step >= own.steps)
    return losses


def test_a_learning_rate_that_is_too_high_ends_it_and_a_usual_one_does_not() -> None:
    assert trained()[-1] < 2.0
    with pytest.raises(Diverged, match=r"times \S+, the median of those before: training stopped"):
        trained(lr=30.0, clip=0.0)


def watch(losses: list[float], *, multiple: float = 2.0, warmup: int = 5) -> int | None:
    """The step since which they diverge."""
    own = LossWatch(multiple, warmup)
    try:
        for step, loss in enumerate(losses):
            own.see(step, loss, 1.0)
    except Diverged as error:
        return error.since
    return None


@pytest.mark.parametrize(
    ("losses", "since"),
    [
        ([3.0] * 50 + [6.1] * PATIENCE, 50),
        ([3.0] * 50 + [5.9] * 500, None),
        ([3.0] * 50 + [9.0] * (PATIENCE - 1) + [3.0] * 50, None),  # a spike
        (list(chain(*repeat([3.0] * 20 + [9.0] * (PATIENCE - 1), 20))), None),  # many of them
        ([9.0 * 0.97**step for step in range(300)], None),
        ([3.0] * 20 + [math.nan], 20),
    ],
)
def test_what_stays_high_is_divergence(losses: list[float], since: int | None) -> None:
    assert watch(losses) == since


def test_before_the_warm_up_is_over_nothing_is_judged() -> None:
    rising = [3.0] * 20 + [9.0] * 10 + [3.0] * 20
    assert watch(rising, warmup=30) is None and watch(rising, warmup=20) == 20
    assert watch(rising, multiple=0.0) is None


@pytest.mark.parametrize(
    ("saved", "words"),
    [
        (None, "there is no checkpoint of it"),
        (19, "the last checkpoint, of step 19, is from before"),
        (20, "the last checkpoint, of step 20, may hold it already"),
    ],
)
def test_the_reason_names_the_checkpoint(saved: int | None, words: str) -> None:
    """What was saved as step 20 holds the weights whose loss was first seen to be high there."""
    found = Diverged("the loss is 9", "a lower --lr", since=20).naming(saved)
    assert found.message == f"the loss is 9; {words}" and found.exit_code == 1
