"""The loader: in order, bounded, resumable; errors arrive, and its thread ends."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from trainrig.data.batches import CausalBatches, Shard
from trainrig.data.loader import Loader

BATCHES = CausalBatches(tokens=np.arange(500), seq_len=8, shard=Shard(batch=4, seed=3))


def take(start: int, stop: int) -> list[list[list[int]]]:
    with Loader(BATCHES, start=start, stop=stop) as loader:
        return [batch.inputs.tolist() for batch in loader]


def test_it_yields_every_step_in_order_and_ends() -> None:
    with Loader(lambda step: step, start=3, stop=9, depth=2) as loader:
        assert list(loader) == [3, 4, 5, 6, 7, 8]
        assert list(loader) == []
        assert loader.step == 9


def test_resumed_is_as_uninterrupted() -> None:
    with Loader(BATCHES) as loader:
        before = [next(loader).inputs.tolist() for _ in range(7)]
        state = loader.step
    assert state == 7
    assert before + take(state, 25) == take(0, 25)
    assert take(0, 7) != take(7, 14)


def test_it_makes_no_more_than_its_depth_ahead() -> None:
    made: list[int] = []
    third = threading.Event()

    def make(step: int) -> int:
        made.append(step)
        if step == 2:
            third.set()
        return step

    with Loader(make, depth=2) as loader:
        assert next(loader) == 0  # one taken, so that there is room for a third
        assert third.wait(30)
    assert made == [0, 1, 2]


def test_an_error_is_raised_in_its_place_and_again() -> None:
    def make(step: int) -> int:
        if step == 3:
            raise OSError("the disk is gone")
        return step

    with Loader(make, depth=10) as loader:
        assert [next(loader) for _ in range(3)] == [0, 1, 2]
        for _ in range(2):
            with pytest.raises(OSError, match="the disk is gone"):
                next(loader)
        assert loader.step == 3


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "trainrig-loader"]


def test_closing_ends_the_thread_while_it_waits_for_room() -> None:
    loader = Loader(lambda step: step, depth=1)
    assert next(loader) == 0
    assert len(threads()) == 1
    loader.close()
    loader.close()
    assert threads() == []
    with pytest.raises(ValueError, match="closed"):
        next(loader)


def test_closing_waits_for_a_batch_that_is_being_made() -> None:
    begun, go = threading.Event(), threading.Event()

    def make(step: int) -> int:
        begun.set()
        assert go.wait(30)
        return step

    loader = Loader(make)
    assert begun.wait(30)
    closer = threading.Thread(target=loader.close)
    closer.start()
    go.set()
    closer.join(30)
    assert not closer.is_alive()
    assert threads() == []


def test_leaving_through_an_error_ends_the_thread() -> None:
    with pytest.raises(KeyboardInterrupt), Loader(lambda step: step) as loader:
        next(loader)
        raise KeyboardInterrupt
    assert threads() == []
