"""A pipeline event by event: the closed form where that is exact, and what no step may do."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainrig.catalog import require_chip
from trainrig.errors import UsageError
from trainrig.prediction.rates.from_chip import rates_of_chip
from trainrig.prediction.scenario import space
from trainrig.prediction.search import search
from trainrig.prediction.search.space import layouts
from trainrig.prediction.step import predict_step
from trainrig.prediction.step.simulate import Stages, orders, run_pipeline, simulated
from trainrig.workload.layout import Layout
from trainrig.workload.memory import memory
from trainrig.workload.memory.pipeline_stage import stage_of
from trainrig.workload.presets import named

RATES = rates_of_chip(require_chip("H100 SXM5 80GB"))


def uniform(ranks: int, groups: int = 1, *, weights: float = 0.0, **more: Any) -> Stages:
    """One pipeline whose stages take 1 s forward and 2 s backward, in ``groups``."""
    shape, none = (1, ranks, groups), np.zeros(1)
    found = Stages(
        forward=np.full(shape, 1.0 / groups),
        backward=np.full(shape, (2.0 - weights) / groups),
        weights=np.full(shape, weights / groups),
        send=none,
        blocks=none,
        reduce=np.zeros((1, ranks)),
        after=none,
    )
    return dataclasses.replace(found, **more)


def run(stages: Stages, schedule: str, batches: int) -> float:
    return float(run_pipeline(stages, schedule, batches)[0])


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.parametrize(("ranks", "batches"), [(2, 2), (4, 8), (4, 100), (8, 3), (3, 7)])
def test_uniform_stages_wait_as_the_formula_says(schedule: str, ranks: int, batches: int) -> None:
    found = run(uniform(ranks), schedule, batches)
    assert found == pytest.approx((batches + ranks - 1) * 3.0)


@pytest.mark.parametrize(("ranks", "groups", "batches"), [(4, 2, 8), (2, 3, 4), (4, 4, 64)])
def test_interleaved_stages_wait_less_by_their_groups(
    ranks: int, groups: int, batches: int
) -> None:
    found = run(uniform(ranks, groups), "1f1b", batches)
    assert found == pytest.approx(batches * 3.0 + (ranks - 1) * 3.0 / groups)


def test_gradients_of_weights_fill_what_a_zero_bubble_schedule_leaves() -> None:
    """ZB-H1 of equal thirds: (p - 1)·(F + B - W) is left (Qi et al. 2023, table 2)."""
    found = run(uniform(4, weights=1.0), "zb", 8)
    assert found == pytest.approx(8 * 3.0 + 3 * (1.0 + 1.0 - 1.0))
    assert found < run(uniform(4), "1f1b", 8)


def test_stages_that_come_back_leave_half_of_that() -> None:
    """ZB-V in torch's order; the first rank has both ends of the model."""
    found = run(uniform(4, 2, weights=1.0), "zbv", 8)
    assert found == pytest.approx(8 * 3.0 + 3 * (1.0 + 1.0 - 1.0) / 2)
    shape = named("megatron-18B")
    plain = LAYOUT.replace(framework="native")
    folded = plain.replace(schedule="zbv", interleave=2)
    bubbles = [
        float(predict_step(shape, one, RATES).bubble)
        for one in (plain, plain.replace(schedule="zb"), folded)
    ]
    assert bubbles == sorted(bubbles, reverse=True)
    first, back = stage_of(shape, plain, "first"), stage_of(shape, folded, "last")
    assert back.in_flight == first.in_flight, "as much as 1F1B's first rank, on each"
    assert back.has_embedding and back.has_loss


def test_dualpipe_holds_two_stages_and_waits_least() -> None:
    """DeepSeek-V3's report, table 2: parameters twice, p + 1 activations, half of the bubble."""
    shape = named("megatron-18B")
    plain = LAYOUT.replace(zero=1, grad_accum=32)
    dual = plain.replace(schedule="dualpipe")
    one, two = (memory(shape, layout) for layout in (plain, dual))
    assert two.weights == pytest.approx(2 * one.weights, rel=0.1)
    assert two.gradients == pytest.approx(2 * one.gradients, rel=0.1)
    assert two.optimizer == pytest.approx(one.optimizer, rel=0.1), "both ranks share its states"
    assert stage_of(shape, dual, "last").in_flight == 5
    step, late = (predict_step(shape, layout, RATES) for layout in (plain, dual))
    assert late.bubble < 0.5 * step.bubble
    assert late.data_comm > step.data_comm
    assert float(simulated(shape, dual, RATES)[0][0]) == float(late.total)


def test_a_plan_takes_the_schedule_that_it_is_told() -> None:
    asked = {"model": "megatron-18B", "on": "H100 SXM5 80GB", "gpus": 64, "global_batch": 64}
    for schedule, framework in (
        ("zbv", "torchtitan"),
        ("dualpipe", "megatron"),
        ("gpipe", "megatron"),
    ):
        found = layouts(space(asked | {"schedule": schedule, "seq_len": 2048})[0])
        piped = [one for one in found if np.any(one.mesh.pp > 1)]
        assert {(one.pipeline.schedule, one.framework) for one in piped} == {(schedule, framework)}
        assert len(piped) < len(found), "and what has no pipeline"
    with pytest.raises(UsageError, match="megatron has no schedule zb"):
        space(asked | {"schedule": "zb", "framework": "megatron"})


def test_a_zero_bubble_layout_waits_less_and_fills_its_last_stage() -> None:
    native = LAYOUT.replace(framework="native")
    shape, late = named("megatron-18B"), native.replace(schedule="zb")
    plain, short = (predict_step(shape, one, RATES) for one in (native, late))
    assert short.bubble < 0.75 * plain.bubble
    assert short.total - short.bubble == pytest.approx(plain.total - plain.bubble)
    first, last = (stage_of(shape, late, place).in_flight for place in ("first", "last"))
    assert first == last == stage_of(shape, native, "first").in_flight
    assert memory(shape, late).total >= memory(shape, native).total
    chosen = search(
        space(
            {"model": "megatron-18B", "on": "H100 SXM5 80GB", "gpus": 64, "global_batch": 64}
            | {"framework": "native", "seq_len": 2048}
        )[0],
        RATES,
        top=10_000,
    )
    assert any(one.layout.pipeline.schedule == "zb" for one in chosen.best)


def test_messages_hold_up_both_ends_or_run_beside() -> None:
    held = run(uniform(4, send=np.full(1, 0.1), blocks=np.ones(1)), "1f1b", 8)
    beside = run(uniform(4, send=np.full(1, 0.1)), "1f1b", 8)
    assert held == pytest.approx((8 + 3) * 3.2)
    assert run(uniform(4), "1f1b", 8) < beside < held


def test_a_long_step_is_its_steady_state_repeated() -> None:
    stages = uniform(4)
    slower = stages.forward.copy()
    slower[:, 2] *= 1.7
    stages = dataclasses.replace(stages, forward=slower)
    whole = [run(stages, "1f1b", n) for n in (12, 16, 400)]
    assert whole[2] == pytest.approx(whole[1] + 96 * (whole[1] - whole[0]))


def test_each_rank_computes_everything_once() -> None:
    for schedule, groups, kinds in (
        ("1f1b", 1, 2),
        ("1f1b", 3, 2),
        ("gpipe", 1, 2),
        ("zb", 1, 3),
        ("zbv", 2, 3),
    ):
        for tasks in orders(schedule, 4, groups, 8):
            assert len(tasks) == len(set(tasks)) == 8 * groups * kinds


LAYOUT = Layout.of(
    gpus=64, gpus_per_node=8, tp=2, pp=4, grad_accum=16, framework="megatron", seq_len=2048
)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"recompute": "full"},
        {"schedule": "gpipe"},
        {"interleave": 2},
        {"grad_accum": 64},
        {"zero": 1},
        {"pp": 8, "tp": 1},
        {"kernels": "flash+fused", "sequence_parallel": 1},
        {"schedule": "zb", "framework": "native", "kernels": "flash+fused"},
    ],
)
def test_the_closed_form_is_near_where_a_model_is_even(changes: dict[str, Any]) -> None:
    layout = LAYOUT.replace(**changes)
    seconds, step = simulated(named("megatron-18B"), layout, RATES)
    assert seconds[0] == pytest.approx(step.total, rel=0.02)


def test_without_a_pipeline_it_is_the_closed_form() -> None:
    layout = LAYOUT.replace(pp=1, zero=1)
    seconds, step = simulated(named("gpt3-2.7B"), layout, RATES)
    assert seconds[0] == step.total == predict_step(named("gpt3-2.7B"), layout, RATES).total


times = st.floats(0.01, 10.0)


@given(
    ranks=st.integers(2, 5),
    groups=st.integers(1, 3),
    rounds=st.integers(1, 6),
    data=st.data(),
)
@settings(max_examples=40, deadline=None)
def test_no_step_is_shorter_than_its_busiest_rank_and_none_gains_by_waiting(
    ranks: int, groups: int, rounds: int, data: st.DataObject
) -> None:
    shape, batches = (1, ranks, groups), rounds * ranks
    draw = st.lists(times, min_size=ranks * groups, max_size=ranks * groups)
    forward, backward = (np.array(data.draw(draw)).reshape(shape) for _ in "fb")
    stages = uniform(ranks, groups, forward=forward, backward=backward)
    found = run(stages, "1f1b", batches)
    busiest = batches * (forward + backward).sum(axis=2).max()
    assert found >= busiest * (1 - 1e-9)
    whole = (forward + backward).sum()
    assert found <= batches * whole * (1 + 1e-9)
    more = run(stages, "1f1b", 2 * batches)
    assert found < more and (more - 2 * busiest) / more <= (found - busiest) / found + 1e-9
    slower = dataclasses.replace(stages, send=np.full(1, data.draw(times)))
    assert run(slower, "1f1b", batches) >= found * (1 - 1e-9)
    assert run(dataclasses.replace(slower, blocks=np.ones(1)), "1f1b", batches) >= found * (
        1 - 1e-9
    )


@given(faster=st.floats(1.0, 8.0), pp=st.sampled_from([1, 2, 4, 8]), accum=st.sampled_from([8, 32]))
@settings(max_examples=20, deadline=None)
def test_a_faster_network_or_memory_makes_no_step_longer(
    faster: float, pp: int, accum: int
) -> None:
    layout = LAYOUT.replace(pp=pp, tp=1, grad_accum=accum, zero=1)
    model = named("megatron-18B")
    slow, fast = (
        rates_of_chip(require_chip("H100 SXM5 80GB"), fabric=fabric)
        for fabric in (50e9, 50e9 * faster)
    )
    taken = [simulated(model, layout, rates)[0][0] for rates in (slow, fast)]
    assert taken[1] <= taken[0] * (1 + 1e-9)


def test_a_plan_ranks_by_what_is_simulated() -> None:
    given_ = {"model": "megatron-7.5B", "on": "A100 SXM4 80GB", "gpus": 32, "global_batch": 64}
    every, cluster = space(given_)
    found = search(every, cluster.rates(), top=20, simulate=200)
    taken = [one.simulated for one in found.best]
    assert None not in taken and taken == sorted(taken)  # type: ignore[type-var]
    assert found.simulation_seconds > 0.0
    plain = search(every, cluster.rates(), top=20)
    assert plain.simulation_seconds == 0.0 and plain.best[0].simulated is None
    assert found.best[0].time <= plain.best[0].time * 1.02
