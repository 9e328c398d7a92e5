"""Trainer's breakdown by a clock of our own: its parts are those of our engine."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("transformers", reason="needs transformers")
pytest.importorskip("accelerate", reason="needs accelerate")
from trainrig.train.drivers import huggingface_timer as driver
from trainrig.train.native.step_timer import Stopwatch


class Clock:
    """Stands still but for what the test lets pass."""

    now = 0.0

    def __call__(self) -> float:
        return self.now

    def passes(self, seconds: float) -> None:
        self.now += seconds


class Silent:
    """Nobody is told anything."""

    def __call__(self, *_: Any, **__: Any) -> None:
        pass

    set_position = __call__


@pytest.fixture
def clock() -> Clock:
    return Clock()


def trainer(clock: Clock) -> Any:
    """A Trainer of one step of two micro-batches that was never given a model."""
    found: Any = driver.Timed.__new__(driver.Timed)
    found.watch = Stopwatch(clock, lambda start, end: end - start)
    found.steps, found._fetches = [], False
    found.losses, found.norms, found.rates = [torch.tensor(9.0)], [2.0], [0.1]
    found.options = {"batch_size": 4, "grad_accum": 2, "seq_len": 8}
    found._gather_as_it_is = lambda _: clock.passes(5.0)
    found.emit = found.events = Silent()
    return found


def step(clock: Clock, found: Any) -> dict[str, float]:
    """A delay of its own size in each part, and a slow link in two of them."""
    found.steps.append(found.watch.begin())
    found._fetches = True
    clock.passes(1.0)
    found._gather("the number of targets")
    found._fetches = False
    found._part("data_wait", found.steps[-1].start)
    for last in (False, True):
        start = found.watch.mark()
        clock.passes(2.0)
        found._part("forward", start)
        start = found.watch.mark()
        clock.passes(3.0)
        launched = found.watch.mark()
        clock.passes(0.5 * last)  # the last bucket is on its way, and nothing is left to compute
        found._part("backward", start)
        if last:
            found._out_of("backward", launched)
    found._update_from = found.watch.mark()
    clock.passes(4.0)
    found.step_ended()
    clock.passes(0.25)
    found.watch.end()
    (row,) = found.rows()
    return row


def test_each_delay_is_found_in_its_own_part(clock: Clock) -> None:
    """Trainer asks the other ranks while it fetches samples: that is no waiting for data."""
    row = step(clock, trainer(clock))
    expected = {
        "data_wait": 1.0,
        "forward": 4.0,
        "backward": 6.0,
        "optimizer": 4.0,
        "communication": 5.5,
        "other": 0.25,
        "time": 20.75,
    }
    assert {name: row[name] for name in expected} == expected
    assert row["overlapped"] is None  # nobody looked


def test_what_is_gathered_elsewhere_stays_where_it_is(clock: Clock) -> None:
    found = trainer(clock)
    found.steps.append(found.watch.begin())
    found._gather("at the end")
    assert found.steps[0].inner == []


def test_a_loss_is_the_mean_over_the_ranks(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trainer multiplies each rank's share by the number of ranks."""
    monkeypatch.setattr(driver.dist, "is_initialized", lambda: True)
    monkeypatch.setattr(driver.dist, "all_reduce", lambda losses: losses.add_(7.0))
    monkeypatch.setattr(driver.common, "SIZE", 2)
    row = step(clock, trainer(clock))
    assert row["loss"] == (9.0 + 7.0) / 2
    assert row["tokens"] == 2 * 4 * 2 * 8
