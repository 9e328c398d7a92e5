"""A step as a CUDA graph: what is recorded when, what is copied, and that nothing is marked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

from fake_cuda import FakeCuda
from trainrig.data.batches import Batch
from trainrig.errors import NeedsGpuError, UsageError
from trainrig.train import engines
from trainrig.train.config import Experiment, check
from trainrig.train.native import loop
from trainrig.train.native.cuda_graph import WARM_UP, is_recorded
from trainrig.train.native.loop import Engine
from trainrig.workload import custom

SHAPE = custom("gpt2", num_layers=1, hidden=32, num_heads=2, vocab=64, max_positions=8)
OWN = Experiment.of(
    model="gpt2", batch_size=2, seq_len=8, steps=6, precision="fp32", warmup=0, device="cuda"
)


def batches(step: int) -> Batch:
    tokens = np.random.default_rng(step).integers(0, 64, (2, 9))
    return Batch(inputs=tokens[:, :-1].copy(), labels=tokens[:, 1:].copy())


class Inline:
    """The loader without its thread, in which no fake GPU is seen."""

    def __init__(self, make: Any, start: int) -> None:
        self._make, self._next = make, start

    def __next__(self) -> Any:
        self._next += 1
        return self._make(self._next - 1)

    def close(self) -> None:
        pass


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCuda]:
    monkeypatch.setattr(loop, "Loader", Inline)
    with FakeCuda(1, work=lambda _: 1e-3) as fake:
        yield fake


def test_no_step_waits_for_the_gpu(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither synchronize nor item, nor a blocking copy; the rows' numbers are read steps later."""
    waits: list[float] = []
    until = cuda.wait_until
    monkeypatch.setattr(cuda, "wait_until", lambda moment: (waits.append(moment), until(moment)))
    with Engine(OWN, SHAPE, "cuda:0", batches=batches) as engine:
        engine.step()  # makes the optimizer's states
        waits.clear()
        for _ in range(3):
            engine.step()
        assert waits == []
        torch.ones(1, device="cuda:0").item()
        assert waits  # the test would see one


class Graph:
    """As torch.cuda.CUDAGraph: what runs while it is recorded has not run, and a replay has."""

    recorded = 0

    def __init__(self) -> None:
        self.replays = 0


@pytest.fixture
def played(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What happens, in order; the fake GPU computes as it records, so a first replay is nothing."""
    seen: list[str] = []

    @contextmanager
    def record(graph: Any, *, capture_error_mode: str) -> Iterator[None]:
        assert capture_error_mode == "thread_local"  # the loader's thread goes on
        seen.append("records")
        marks = cuda.calls
        yield
        assert not any(call.name == "record" for call in marks)

    monkeypatch.setattr(Graph, "replay", lambda _: seen.append("replays"), raising=False)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph, raising=False)
    monkeypatch.setattr(torch.cuda, "graph", record, raising=False)
    return seen


def test_a_step_is_recorded_once_and_its_samples_and_rate_are_copied_in(
    played: list[str],
) -> None:
    own = OWN.replace(cuda_graph=True, lr_schedule="linear")
    rates, inputs = [], []
    with Engine(own, SHAPE, "cuda:0", batches=batches) as engine:
        graph: Any = engine._graph
        for step in range(WARM_UP + 3):
            engine.step()
            rates.append(float(engine.optimizer.param_groups[0]["lr"]))
            if graph._micros:
                inputs.append(graph._micros[0].inputs.numpy().copy())
                assert (inputs[-1] == batches(step).inputs).all()
    assert played == ["records", "replays", "replays", "replays"]
    assert rates == pytest.approx([own.learning_rate(step) for step in range(WARM_UP + 3)])
    assert all(group["capturable"] for group in engine.optimizer.param_groups)


def test_warm_up_and_recording_train_as_steps_without_a_graph(played: list[str]) -> None:
    weights = []
    for graph in (False, True):
        own = OWN.replace(cuda_graph=graph, clip=0.0)
        with Engine(own, SHAPE, "cuda:0", batches=batches) as engine:
            for group in engine.optimizer.param_groups:
                group["lr"] = 1e-3  # to the fake GPU a number on it would be NaN on its way
            for _ in range(WARM_UP + 1):
                engine.step()
            weights.append([weight.detach().clone() for weight in engine.weights.model.values()])
            times = engine.watch.read(engine._pending[1].marked) if graph else {}
    for one, other in zip(*weights, strict=True):
        torch.testing.assert_close(one, other)
    assert times["backward"] > 0.0 == times["forward"] == times["optimizer"]


@pytest.mark.parametrize(
    "keys",
    [
        {"nproc": 2},
        {"precision": "fp16"},
        {"optimizer": "adamw-8bit"},
        {"model": "bert-large", "grad_accum": 2},
    ],
)
def test_what_is_not_the_same_work_each_step_is_refused(keys: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="cuda_graph records the same work"):
        check(Experiment.of(cuda_graph=True, device="cuda", **keys))
    check(Experiment.of(cuda_graph=True, device="cuda"))


def test_a_graph_is_a_gpu_s_and_not_of_plain_gradient_descent() -> None:
    own = OWN.replace(cuda_graph=True)
    assert is_recorded(own, "cuda:0")
    assert not is_recorded(own, "cpu")
    assert not is_recorded(own.replace(optimizer="sgd"), "cuda:0")
    with pytest.raises(NeedsGpuError, match="CUDA graphs"):
        engines.check_site(own.replace(device="cpu"), engines.Site(gpus=0, cores=2))
    with pytest.raises(UsageError, match="cuda_graph is the native"):
        engines.engine_of("huggingface").check(own.replace(framework="huggingface"))
