"""The training loop: what must come out equal does, and each part of a step holds its own time."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
import pytest
import torch

from trainrig import models
from trainrig.data.batches import Batch
from trainrig.errors import DataError
from trainrig.models import loss
from trainrig.process.events import OTHER, PARTS
from trainrig.train.config import Experiment
from trainrig.train.divergence import Diverged
from trainrig.train.native.loop import Engine
from trainrig.train.native.precision import Weights
from trainrig.train.native.step_timer import Stopwatch
from trainrig.workload import ModelShape, custom

SHAPE = custom("gpt2", num_layers=2, hidden=32, num_heads=2, vocab=128, max_positions=16)
BERT = custom("bert", num_layers=1, hidden=32, num_heads=2, vocab=128, max_positions=16)
TINY = Experiment.of(
    model="tiny", batch_size=4, seq_len=16, steps=6, precision="fp32", warmup=0, lr=1e-2
)
Row = dict[str, Any]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def batches_of(experiment: Experiment, vocab: int = 128, hidden: float = 0.0) -> Any:
    """Random tokens a step; ``hidden``: the share of positions without a label."""

    def batches(step: int) -> Batch:
        random = np.random.default_rng((7, step))
        tokens = random.integers(0, vocab, (experiment.samples, experiment.seq_len + 1))
        labels = tokens[:, 1:].copy()
        labels[random.random(labels.shape) < hidden] = -100
        labels[:, 0] = tokens[:, 1]
        return Batch(inputs=tokens[:, :-1].copy(), labels=labels)

    return batches


def engine_for(experiment: Experiment, shape: ModelShape = SHAPE, **how: Any) -> Engine:
    return Engine(experiment, shape, batches=how.pop("batches", batches_of(experiment)), **how)


def train(engine: Engine, steps: int) -> list[Row]:
    rows: list[Row] = []
    with engine:
        engine.run(rows.append, lambda step: step >= steps)
    return rows


def weights_of(engine: Engine) -> dict[str, torch.Tensor]:
    return {name: weight.detach().clone() for name, weight in engine.weights.master.items()}


def assert_equal(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> None:
    assert a.keys() == b.keys()
    for name, tensor in a.items():
        assert torch.equal(tensor, b[name]), name


# ---- accumulation, recomputation, clipping


def plain_sgd(experiment: Experiment, **how: Any) -> tuple[list[Row], dict[str, torch.Tensor]]:
    """Three steps without momentum or clipping: a wrong scale of gradients shows in the weights."""
    engine = engine_for(experiment.replace(clip=0.0, steps=3), **how)
    engine.optimizer = torch.optim.SGD(
        engine.weights.groups(0.0),
        lr=experiment.lr.peak,  # type: ignore[arg-type]
    )
    return train(engine, 3), weights_of(engine)


@pytest.mark.parametrize(
    ("shape", "dtype", "tolerance"),
    [(SHAPE, "fp32", 1e-5), (BERT, "fp32", 1e-5), (SHAPE, "bf16", 2e-2)],
)
def test_accumulating_equals_one_large_batch(
    shape: ModelShape, dtype: str, tolerance: float
) -> None:
    """Also where the micro-batches have unlike numbers of targets."""
    large = TINY.replace(precision=dtype, batch_size=8, lr=1e-1)
    small = large.replace(batch_size=2, grad_accum=4)
    batches = batches_of(large, hidden=0.5)
    rows, weights = plain_sgd(large, shape=shape, batches=batches)
    other_rows, other = plain_sgd(small, shape=shape, batches=batches)
    for row, again in zip(rows, other_rows, strict=True):
        assert again["loss"] == pytest.approx(row["loss"], rel=tolerance)
        assert again["grad_norm"] == pytest.approx(row["grad_norm"], rel=tolerance)
    for name, weight in weights.items():
        assert torch.allclose(weight, other[name], atol=tolerance), name


def test_the_loss_and_gradient_are_those_of_the_definition() -> None:
    """A wrong scale that all micro-batches share would not show in the test above."""
    engine = engine_for(TINY.replace(clip=0.0, grad_accum=2))
    batch = batches_of(engine.experiment)(0)
    model = models.build(SHAPE)
    logits = model(torch.from_numpy(batch.inputs))
    loss = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), torch.from_numpy(batch.labels).flatten()
    )
    loss.backward()
    norm = math.sqrt(sum(float(p.grad.square().sum()) for p in model.parameters()))
    (row,) = train(engine, 1)
    assert row["loss"] == pytest.approx(float(loss.detach()), rel=1e-5)
    assert row["grad_norm"] == pytest.approx(norm, rel=1e-4)


@pytest.mark.parametrize("recompute", ["selective", "full"])
def test_recomputation_leaves_gradients_equal(recompute: str) -> None:
    rows, weights = plain_sgd(TINY)
    other_rows, other = plain_sgd(TINY.replace(recompute=recompute))
    assert [row["loss"] for row in rows] == [row["loss"] for row in other_rows]
    assert_equal(weights, other)


def test_clipping_shortens_long_gradients_only() -> None:
    unclipped, _ = plain_sgd(TINY)
    norm = unclipped[0]["grad_norm"]

    def moved(clip: float) -> float:
        engine = engine_for(TINY.replace(clip=clip, steps=1))
        engine.optimizer = torch.optim.SGD(engine.weights.groups(0.0), lr=1.0)  # type: ignore[arg-type]
        before = weights_of(engine)
        (row,) = train(engine, 1)
        assert row["grad_norm"] == pytest.approx(norm)  # as it was before clipping
        after = weights_of(engine)
        return math.sqrt(sum(float((after[n] - before[n]).square().sum()) for n in before))

    assert moved(norm / 2) == pytest.approx(norm / 2 * 1e-2, rel=1e-3)
    assert moved(norm * 2) == pytest.approx(norm * 1e-2, rel=1e-3)
    assert moved(0.0) == pytest.approx(norm * 1e-2, rel=1e-3)


def test_a_fused_optimizer_shortens_gradients_in_its_own_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Clipping in a pass of its own read and wrote every gradient once more."""
    own = TINY.replace(clip=0.1, steps=3, precision="bf16")
    passes: list[float] = []
    clip = Weights.clip

    def counted(weights: Weights, most: float, norm: torch.Tensor) -> None:
        passes.append(most)
        clip(weights, most, norm)

    monkeypatch.setattr(Weights, "clip", counted)
    apart = engine_for(own.replace(optimizer="adamw"))
    rows = train(apart, 3)
    assert len(passes) == 3 and min(row["grad_norm"] for row in rows) > 0.1
    folded = engine_for(own.replace(optimizer="adamw-fused"))
    assert [row["grad_norm"] for row in train(folded, 3)] == pytest.approx(
        [row["grad_norm"] for row in rows], rel=1e-3
    )
    assert len(passes) == 3
    moments = [  # Adam's step hides a gradient's scale; its moments do not
        [state["exp_avg"].norm() for state in engine.optimizer.state.values()]
        for engine in (apart, folded)
    ]
    torch.testing.assert_close(*map(torch.stack, moments), rtol=1e-2, atol=1e-7)


def test_matrices_decay_and_vectors_do_not() -> None:
    engine = engine_for(TINY)
    decayed, kept = engine.weights.groups(0.1)
    assert decayed["weight_decay"] == 0.1 and kept["weight_decay"] == 0.0
    assert all(weight.ndim == 2 for weight in decayed["params"])  # type: ignore[attr-defined]
    assert all(weight.ndim == 1 for weight in kept["params"])  # type: ignore[attr-defined]
    names = len(list(engine.model.parameters()))
    assert len(decayed["params"]) + len(kept["params"]) == names  # type: ignore[arg-type]


def test_embeddings_decay_unless_they_are_left_out() -> None:
    engine = engine_for(TINY.replace(decay_embeddings=False))
    master = engine.weights.master
    (decay, kept) = (group["params"] for group in engine.optimizer.param_groups)
    assert {id(master[name]) for name in ("tokens.weight", "positions.weight")} <= set(
        map(id, kept)
    )
    assert sum(weight.ndim == 2 for weight in kept) == 2
    whole = sum(weight.numel() for weight in master.values())
    assert sum(engine.weights.decayed(engine.optimizer.param_groups)) == whole
    assert engine.weights.decayed(engine.optimizer.param_groups)[0] == sum(
        weight.numel() for weight in decay
    )


# ---- precision


def test_bf16_is_the_rounding_of_weights_that_are_updated_in_fp32() -> None:
    """Updates below bf16's step would be lost without masters."""
    experiment = TINY.replace(precision="bf16", lr=1e-5, weight_decay=0.0)
    engine = engine_for(experiment)
    before = weights_of(engine)
    train(engine, 3)
    name = "blocks.0.ffn.up.weight"
    master, narrow = engine.weights.master[name], engine.weights.model[name]
    assert master.dtype == torch.float32 and narrow.dtype == torch.bfloat16
    assert torch.equal(narrow, master.to(torch.bfloat16))
    moved = (master - before[name]).abs()
    # Three steps of at most 1e-5 each; the rounding of a weight of 0.02 is 8e-5 wide.
    assert 1e-5 < float(moved.mean()) < 3e-5


def test_bf16_follows_fp32() -> None:
    wide = train(engine_for(TINY), 6)
    narrow = train(engine_for(TINY.replace(precision="bf16")), 6)
    for a, b in zip(wide, narrow, strict=True):
        assert b["loss"] == pytest.approx(a["loss"], rel=5e-3)


def test_fp16_scales_its_loss_and_reports_it_unscaled() -> None:
    engine = engine_for(TINY.replace(precision="fp16"))
    rows = train(engine, 6)
    wide = train(engine_for(TINY), 1)
    assert float(engine.scaler.factor) > 1.0
    assert rows[0]["loss"] == pytest.approx(wide[0]["loss"], rel=5e-3)
    assert rows[0]["grad_norm"] == pytest.approx(wide[0]["grad_norm"], rel=2e-2)


def test_fp16_leaves_out_an_update_that_overflowed() -> None:
    engine = engine_for(TINY.replace(precision="fp16"))
    weight = next(iter(engine.model.parameters()))
    weight.register_hook(lambda grad: grad * math.inf)
    before, scale = weights_of(engine), float(engine.scaler.factor)
    (row,) = train(engine, 1)
    assert row["grad_norm"] is None
    assert_equal(weights_of(engine), before)
    assert float(engine.scaler.factor) == scale / 2


# ---- what is compiled, what is held out


def test_compile_compiles_every_block(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[torch.nn.Module] = []
    monkeypatch.setattr(torch.nn.Module, "compile", lambda self, **_: compiled.append(self))
    engine_for(TINY)
    assert compiled == []
    engine = engine_for(TINY.replace(compile=True))
    assert compiled == list(engine.model.get_submodule("blocks").children())
    assert len(compiled) == 2


def test_the_held_out_loss_is_of_the_held_out_part(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def batches(_: Engine, part: str) -> Any:
        asked.append(part)
        return batches_of(TINY)

    monkeypatch.setattr(Engine, "_batches", batches)
    with Engine(TINY.replace(heldout_batches=2), SHAPE) as engine:
        assert asked == ["train"]
        found = engine.heldout_loss()
        losses = []
        for step in range(2):
            batch = batches_of(TINY)(step)
            read, labels = (torch.from_numpy(a) for a in (batch.inputs, batch.labels))
            losses.append(float(engine.model.loss(read, labels).detach()))
    assert asked == ["train", "heldout"]
    assert found == pytest.approx(sum(losses) / 2)


# ---- where the time goes


class FakeClock:
    """Time that only passes when something is done."""

    def __init__(self) -> None:
        self.now = 0.0

    def mark(self) -> float:
        return self.now

    def watch(self) -> Stopwatch[float]:
        return Stopwatch(self.mark, lambda start, end: end - start)


class SlowedEngine(Engine):
    """One part of each step takes longer."""

    clock: FakeClock
    slow: str | None = None

    def part(self, name: str) -> AbstractContextManager[None]:
        return self._slowed(name)

    @contextmanager
    def _slowed(self, name: str) -> Iterator[None]:
        with super().part(name):
            self.clock.now += 0.001
            if name == self.slow:
                self.clock.now += 0.020
            yield
        if self.slow == OTHER and name == "optimizer":
            self.clock.now += 0.020


@pytest.mark.parametrize("slow", [None, *PARTS, OTHER])
def test_a_sleep_of_20_ms_appears_in_its_own_part(slow: str | None) -> None:
    clock = FakeClock()
    engine = SlowedEngine(TINY, SHAPE, batches=batches_of(TINY), watch=clock.watch())
    engine.clock, engine.slow = clock, slow
    rows = train(engine, 4)
    assert len(rows) == 4
    for row in rows:
        expected = dict.fromkeys(PARTS, 0.001) | {OTHER: 0.0}
        if slow is not None:
            expected[slow] += 0.020
        assert {name: row[name] for name in expected} == pytest.approx(expected, abs=1e-9)
        assert row["time"] == pytest.approx(sum(expected.values()))


def test_the_heads_gradients_are_backwards_wherever_they_are_computed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The loss computes them in the forward pass; another engine's autograd does not."""
    clock, add = FakeClock(), loss._GradientSums.add

    def slow(*given: Any) -> None:
        clock.now += 0.005
        add(*given)

    monkeypatch.setattr(loss._GradientSums, "add", slow)
    experiment = TINY.replace(batch_size=2, grad_accum=3)
    batches = batches_of(experiment)
    row = train(Engine(experiment, SHAPE, batches=batches, watch=clock.watch()), 1)[0]
    assert row["backward"] == pytest.approx(0.015) == row["time"]
    assert row["forward"] == pytest.approx(0.0)


def test_parts_of_all_micro_batches_are_added() -> None:
    clock = FakeClock()
    experiment = TINY.replace(batch_size=2, grad_accum=3)
    engine = SlowedEngine(experiment, SHAPE, batches=batches_of(experiment), watch=clock.watch())
    engine.clock = clock
    row = train(engine, 1)[0]
    assert row["forward"] == pytest.approx(0.003) and row["backward"] == pytest.approx(0.003)
    assert row["data_wait"] == pytest.approx(0.001) and row["optimizer"] == pytest.approx(0.001)


def test_the_real_clock_adds_up_too() -> None:
    for row in train(engine_for(TINY), 3):
        parts = sum(row[name] for name in (*PARTS, OTHER))
        assert parts == pytest.approx(row["time"])
        assert all(row[name] > 0 for name in PARTS)
        assert row[OTHER] >= 0


def test_what_lies_between_steps_belongs_to_none() -> None:
    clock = FakeClock()
    watch = clock.watch()
    first = watch.begin()
    clock.now += 1.0
    watch.end()
    clock.now += 5.0  # a checkpoint
    second = watch.begin()
    clock.now += 2.0
    watch.begin()
    assert watch.read(first)["time"] == 1.0
    assert watch.read(second)["time"] == 2.0


# ---- what goes wrong


def test_a_loss_that_is_no_number_stops_and_keeps_what_was_done() -> None:
    engine = engine_for(TINY)
    rows: list[Row] = []

    def tell(row: Row) -> None:
        rows.append(row)
        if row["step"] == 1:  # while step 2 is under way
            with torch.no_grad():
                next(iter(engine.model.parameters())).fill_(math.nan)

    with engine, pytest.raises(Diverged, match="loss is nan at step 3: training stopped"):
        engine.run(tell, lambda step: step >= 6)
    assert [row["step"] for row in rows] == [0, 1, 2]
    assert all(math.isfinite(row["loss"]) for row in rows)


def test_an_infinite_gradient_stops_too() -> None:
    engine = engine_for(TINY)
    weight = next(iter(engine.model.parameters()))
    weight.register_hook(lambda grad: grad * math.inf)
    with engine, pytest.raises(Diverged, match=r"gradient norm is (inf|nan) at step 0"):
        engine.run(lambda _: None, lambda step: step >= 2)


def test_a_failing_loader_is_raised_and_its_thread_ends() -> None:
    def batches(step: int) -> Batch:
        if step == 1:
            raise DataError("the disk is gone")
        return batches_of(TINY)(step)

    engine = engine_for(TINY, batches=batches)
    with engine, pytest.raises(DataError, match="the disk is gone"):
        engine.run(lambda _: None, lambda step: step >= 3)


def test_tensors_that_are_copied_one_by_one_hold_the_same_numbers() -> None:
    found: dict[str, tuple[list[float], set[str]]] = {}
    for unfused in ("", "foreach"):
        own = TINY.replace(precision="bf16", batch_size=2, grad_accum=2, unfused=unfused)
        rows: list[Row] = []
        cpu = [torch.profiler.ProfilerActivity.CPU]
        with (
            Engine(own, SHAPE, batches=batches_of(own)) as engine,
            torch.profiler.profile(activities=cpu, acc_events=True) as seen,
        ):
            engine.run(rows.append, lambda step: step >= 3)
        operations = {event.key for event in seen.key_averages() if "_foreach_" in event.key}
        found[unfused] = [row["loss"] for row in rows], operations
    assert found[""][0] == found["foreach"][0]
    copies = "aten::_foreach_copy_"  # AdamW counts its steps by another of them
    assert copies in found[""][1] and copies not in found["foreach"][1]
