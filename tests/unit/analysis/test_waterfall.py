"""Drops split into causes: what is injected into a made-up machine comes out of its report."""

from __future__ import annotations

from typing import Any

import pytest

from report_views import claimed, matmul_case, point
from roofline_machine import (
    BANDWIDTH,
    LAYER,
    MODEL,
    PEAK,
    layer_point,
    level_of,
    rate_point,
    run,
    step_records,
    step_run,
)
from trainrig.analysis.time_loss import (
    LAUNCH_GAPS,
    NOT_EXPLAINED,
    PARTS,
    TOO_MUCH,
    Loss,
    Share,
    attribute,
    count_layer,
    count_step,
    memory_seconds,
    model_shape,
)
from trainrig.analysis.waterfall import Gap, build_waterfalls, exceeded_points, largest_gap
from trainrig.benchmarks.spec import Role, benchmarks
from trainrig.record import RunView
from trainrig.workload import Op, total_flops

WITHIN = 0.10


# ---- the pure function


def shares(*losses: Loss, time: float = 2.0) -> dict[str, Share]:
    """Work of 100 TFLOP at 100 TFLOPS: one second is needed, the rest is lost."""
    found = attribute(ceiling_rate=PEAK, work=1e14, time=time, losses=losses)
    return {share.name: share for share in found}


def test_shares_add_up_to_the_drop() -> None:
    found = shares(Loss(name="optimizer", seconds=0.3), Loss(name="data wait", seconds=0.5))
    assert sum(share.amount for share in found.values()) == pytest.approx(PEAK - 1e14 / 2.0)
    assert sum(share.part for share in found.values()) == pytest.approx(1.0)
    assert list(found) == ["data wait", "optimizer", NOT_EXPLAINED]
    assert found["data wait"].amount == pytest.approx(25e12)
    assert found[NOT_EXPLAINED].seconds == pytest.approx(0.2)


def test_what_is_explained_twice_is_said() -> None:
    found = shares(Loss(name="optimizer", seconds=0.8), Loss(name="data wait", seconds=0.5))
    assert found[TOO_MUCH].amount == pytest.approx(-15e12)
    assert NOT_EXPLAINED not in found


def test_what_is_explained_twice_within_the_intervals_is_shared_out() -> None:
    """1.3 s of causes for 1 s lost: no contradiction where the second may be off by as much."""
    losses = (Loss(name="optimizer", seconds=0.8), Loss(name="data wait", seconds=0.5))
    for unsure, last in ((0.35, NOT_EXPLAINED), (0.25, TOO_MUCH)):
        found = attribute(ceiling_rate=PEAK, work=1e14, time=2.0, losses=losses, unsure=unsure)
        assert found[-1].name == last
        assert sum(share.seconds for share in found) == pytest.approx(1.0)
        whole = sum(share.part for share in found[:-1])
        assert whole == pytest.approx(1.0 if last == NOT_EXPLAINED else 1.3)


def test_a_layers_causes_are_held_to_its_interval() -> None:
    fast = layer_point(8, extra=-0.0003)  # faster than its roofline: the causes are too much
    assert fast.value is not None
    sure, wide = (fast.replace(interval=(r * fast.value, fast.value / r)) for r in (0.999, 0.95))
    assert seconds_of(level_of(run(sure), "Best layer")[1], TOO_MUCH) < 0.0
    assert seconds_of(level_of(run(wide), "Best layer")[1], TOO_MUCH) == 0.0


def test_without_a_drop_there_are_no_shares() -> None:
    assert shares(Loss(name="optimizer", seconds=0.1), time=1.0) == {}
    assert shares(Loss(name="optimizer", seconds=0.1), time=0.9) == {}


def test_nothing_measured_leaves_everything_unexplained() -> None:
    assert list(shares(Loss(name="optimizer", seconds=0.0))) == [NOT_EXPLAINED]


def operation(kind: str, flops: int, num_bytes: int) -> Op:
    size = {"read_bytes": num_bytes, "write_bytes": 0}
    return Op(name=kind, kind=kind, phase="forward", flops=flops, count=2, **size)


def test_memory_bound_seconds_are_what_bytes_take_longer_than_flops() -> None:
    """By hand at 100 FLOP/s and 10 B/s: 1 s of bytes under 2 s of FLOPs is hidden behind them."""
    hidden, bound = operation("matmul", 200, 10), operation("matmul", 50, 10)
    norm, update = operation("norm", 0, 30), operation("optimizer", 0, 70)
    assert memory_seconds([hidden], 100.0, 10.0) == 0.0
    assert memory_seconds([bound], 100.0, 10.0) == pytest.approx(2 * 0.5)
    assert memory_seconds([hidden, norm, update], 100.0, 10.0) == pytest.approx(2 * 3.0)


def test_plain_attention_moves_its_scores() -> None:
    """4 · 16 heads · 1024² scores in bf16: written, read and written by softmax, read."""

    def num_bytes(**changes: Any) -> int:
        counted = count_layer(rate_point("layer", {**LAYER, "pass": "forward", **changes}, 1.0))
        assert counted is not None
        return sum(op.num_bytes for op in counted.ops)

    scores = 2 * 4 * 16 * 1024**2
    plain, fused = (num_bytes(batch_size=4, attention=how) for how in ("plain", "fused"))
    assert plain - fused == pytest.approx(4 * scores, rel=0.01)
    assert num_bytes(batch_size=4) == fused
    eager = rate_point("layer", {**LAYER, "pass": "forward", "batch_size": 4}, 1.0)
    counted = count_layer(eager.replace(conditions={"software": "transformers, eager"}))
    assert counted is not None
    assert sum(op.num_bytes for op in counted.ops) == plain


def seconds_of(gap: Gap, name: str) -> float:
    return sum(share.seconds for share in gap.shares if share.name.startswith(name))


@pytest.mark.parametrize("part", ["data_wait", "optimizer", "other", "communication", "launch_gap"])
def test_an_injected_part_is_attributed(part: str) -> None:
    name, injected = PARTS[part][0], 0.08
    _, before = level_of(step_run(), "Training step")
    level, after = level_of(step_run(**{part: injected}), "Training step")
    grown = seconds_of(after, name) - seconds_of(before, name)
    assert grown == pytest.approx(injected, rel=WITHIN)
    others = {s.name: s.seconds for s in before.shares if s.name not in (name, NOT_EXPLAINED)}
    same = {s.name: s.seconds for s in after.shares if s.name in others}
    assert same == pytest.approx(others)
    assert sum(share.amount for share in after.shares) == pytest.approx(-after.amount)
    assert abs(seconds_of(after, NOT_EXPLAINED)) < WITHIN * injected
    assert level.record is not None


def test_the_share_of_the_drop_is_the_injected_one() -> None:
    """Half of what was lost is data wait: half of the TFLOPS are."""
    _, bare = level_of(step_run(), "Training step")
    lost = sum(share.seconds for share in bare.shares)
    _, gap = level_of(step_run(data_wait=lost), "Training step")
    (share,) = (share for share in gap.shares if share.name == PARTS["data_wait"][0])
    assert share.part == pytest.approx(0.5, rel=WITHIN)
    assert share.amount == pytest.approx(-gap.amount / 2.0, rel=WITHIN)
    assert gap.cause.startswith("data wait: ")
    assert gap.next == PARTS["data_wait"][1]


@pytest.mark.parametrize("how", ["selective", "full"])
def test_recomputation_is_attributed(how: str) -> None:
    _, gap = level_of(step_run(how), "Training step")
    with_it = count_step(rate_point("training", {**MODEL, "recompute": how}, 1.0))
    without = count_step(rate_point("training", dict(MODEL), 1.0))
    assert with_it is not None
    assert without is not None
    layer = layer_point(4).value
    assert layer is not None
    more = total_flops(with_it.ops) - total_flops(without.ops)
    found = seconds_of(gap, "activations computed again")
    assert found == pytest.approx(more / layer, rel=WITHIN)


def test_a_slow_step_that_no_part_shows_stays_unexplained() -> None:
    """The same seconds in forward, which nothing accounts for: the residual, not a guess."""
    layer = layer_point(4).value
    assert layer is not None
    rate, time, *parts = step_records(layer, layer)
    assert rate.value is not None
    assert time.value is not None
    slow = time.value + 0.08
    records = [rate.replace(value=rate.value * time.value / slow), time.replace(value=slow), *parts]
    _, gap = level_of(run(layer_point(4), *records), "Training step")
    assert seconds_of(gap, NOT_EXPLAINED) == pytest.approx(0.08, rel=WITHIN)


def test_a_layers_memory_bound_work_is_its_roofline() -> None:
    _, gap = level_of(run(layer_point(8)), "Best layer")
    counted = count_layer(layer_point(8))
    assert counted is not None
    expected = memory_seconds(counted.ops, PEAK, BANDWIDTH)
    assert seconds_of(gap, "memory-bound") == pytest.approx(expected)
    assert abs(seconds_of(gap, NOT_EXPLAINED)) < 0.01 * expected
    assert gap.known


def test_a_layer_slower_than_its_roofline_keeps_a_residual() -> None:
    _, gap = level_of(run(layer_point(8, extra=0.01)), "Best layer")
    assert seconds_of(gap, NOT_EXPLAINED) == pytest.approx(0.01, rel=WITHIN)
    assert gap.shares[-1].name == NOT_EXPLAINED
    assert "not explained: " in gap.cause


def test_an_injected_launch_gap_of_a_layer() -> None:
    """Every batch takes as long as 20 ms of launches: what the GPU did not do is the gap."""
    floor, batches = 0.02, (1, 2, 4)
    layers = [layer_point(batch, floor=floor) for batch in batches]
    _, gap = level_of(run(*layers), "Best layer")
    busy = layer_point(4)
    counted = count_layer(busy)
    assert counted is not None
    assert busy.value is not None
    injected = floor - counted.work / busy.value
    assert seconds_of(gap, LAUNCH_GAPS) == pytest.approx(injected, rel=WITHIN)
    assert seconds_of(gap, NOT_EXPLAINED) == pytest.approx(0.0, abs=1e-9)
    assert seconds_of(gap, TOO_MUCH) == 0.0
    _, without = level_of(run(*(layer_point(batch) for batch in batches)), "Best layer")
    assert seconds_of(without, LAUNCH_GAPS) == 0.0


def test_a_launch_gap_of_the_steps_layer() -> None:
    """The step's own batch lies in the flat row; the best layer, at a larger batch, does not."""
    floor = 0.02
    layers = [layer_point(batch, floor=floor) for batch in (1, 2, 4)] + [layer_point(32)]
    own, busy = layers[2].value, layer_point(4).value
    assert own is not None
    assert busy is not None
    counted = count_layer(layers[2])
    assert counted is not None
    view = run(*layers, *step_records(own, own))
    level, gap = level_of(view, "Layer of this step")
    assert (level.value, level.ceiling) == (own, "Best matmul")
    assert seconds_of(gap, LAUNCH_GAPS) == pytest.approx(floor - counted.work / busy, rel=WITHIN)
    level, gap = level_of(view, "Training step")
    assert level.ceiling == "Layer of this step"
    assert seconds_of(gap, LAUNCH_GAPS) == 0.0


OTHER_SHAPES = {
    "its own": ({}, "Best layer"),
    "another width": ({"hidden": 2048}, "Best matmul"),
    "another FFN": ({"ffn": 1024}, "Best matmul"),
    "another sequence": ({"seq_len": 128}, "Best matmul"),
    "another batch": ({"batch_size": 64}, "Best matmul"),
    "another model": ({"layer": "BERT-large layer"}, "Best matmul"),
    "forward alone": ({"pass": "forward"}, "Best matmul"),
}


@pytest.mark.parametrize("name", OTHER_SHAPES)
def test_a_layer_is_the_ceiling_of_a_step_of_its_own_shape_alone(name: str) -> None:
    changes, ceiling = OTHER_SHAPES[name]
    layer = rate_point("layer", {**LAYER, "batch_size": 4, **changes}, 60e12)
    level, gap = level_of(run(layer, *step_records(50e12, 50e12)), "Training step")
    assert level.ceiling == ceiling
    assert level.value is not None
    assert gap.amount == pytest.approx(level.value - (60e12 if ceiling == "Best layer" else PEAK))


def test_a_step_is_the_ceiling_of_its_own_model_alone() -> None:
    one = rate_point("training", MODEL, 60e12)
    two = one.replace(id="two", device_count=2, value=50e12, case={**MODEL, "nproc": 2})
    other = two.replace(case={**two.case, "model": "gpt2"})
    for last, ceiling in ((two, "Training step"), (other, "Best matmul")):
        assert level_of(run(one, last), "Training step, all devices")[0].ceiling == ceiling


def with_intervals(ceiling: tuple[float, float], value: tuple[float, float]) -> RunView:
    """A sustained matmul under the best one, each in the middle of its interval."""
    best = rate_point("matmul", matmul_case("bf16", 4096), sum(ceiling) / 2, interval=ceiling)
    case = {**matmul_case("bf16", 8192), "sustained": True}
    sustained = rate_point("matmul", case, sum(value) / 2, interval=value)
    return RunView(name="two", records=(claimed("bf16", 1.01 * sum(ceiling) / 2), best, sustained))


def test_where_intervals_overlap_no_difference_is_seen() -> None:
    """Of 60 to 101 GFLOPS under 100 to 140 neither is known to be the faster one."""
    view = with_intervals((100e9, 140e9), (60e9, 101e9))
    _, gap = level_of(view, "Sustained matmul")
    assert gap.cause.startswith("no difference seen: ")
    assert not gap.is_certain
    assert largest_gap(build_waterfalls(view)) is None
    apart = with_intervals((100e9, 140e9), (60e9, 99e9))
    _, gap = level_of(apart, "Sustained matmul")
    assert gap.is_certain
    found = largest_gap(build_waterfalls(apart))
    assert found is not None
    assert found.level.name == "Sustained matmul"


@pytest.mark.parametrize("ends", [(120e9, 144e9), (150e9, 160e9)])
def test_what_exceeds_its_ceiling_is_held_against_the_next_one(ends: tuple[float, float]) -> None:
    """A step of 120 to 144 GFLOPS above a layer of 117 to 139 says that the layer was noise."""
    view = with_intervals((117e9, 139e9), ends)
    level, gap = level_of(view, "Sustained matmul")
    assert (level.doubted, level.ceiling) == ("Best matmul", "Claim")
    assert gap.amount == pytest.approx(sum(ends) / 2 - 1.01 * 128e9)
    best = next(record for record in view.records if record.value == 128e9)
    assert exceeded_points(view.records) == (best,)


def test_below_an_uncertain_claim_nothing_is_lost_for_certain() -> None:
    """A claim of 83 to 166 GFLOPS, 95 reached: the headline does not rest on it."""
    claim = claimed("bf16", 166e9).replace(interval=(83e9, 166e9))
    sure = claimed("bf16", 166e9)
    point_ = rate_point("matmul", matmul_case("bf16", 4096), 95e9)
    view = RunView(name="host", records=(claim, point_))
    assert level_of(view, "Best matmul")[1].cause.startswith("the claim itself is uncertain")
    assert largest_gap(build_waterfalls(view)) is None
    assert largest_gap(build_waterfalls(RunView(name="host", records=(sure, point_)))) is not None


def test_a_dense_layer_speaks_for_layers_of_its_tokens_alone() -> None:
    """A product of 256 rows is slower than one of 8192: it explains nothing of the larger."""
    layer = layer_point(8)
    dense = {"layer": "dense h->4h", "dtype": "bf16", "pass": "forward", "k": 1024, "n": 4096}
    for rows, explains in ((8 * 1024, True), (256, False)):
        part = rate_point("layer", {**dense, "m": rows}, 0.5 * PEAK)
        _, gap = level_of(run(layer, part), "Best layer")
        assert (seconds_of(gap, "matmuls of this shape") > 0.0) is explains


def test_a_lower_clock_is_one_of_the_shares() -> None:
    cool = rate_point("matmul", matmul_case("bf16", 4096), PEAK * 1.01)
    cool = cool.replace(conditions={"sm_clock_hz": 2.5e9})
    hot = layer_point(8, extra=0.01).replace(
        conditions={"sm_clock_hz": 2.0e9, "throttle_reasons": "sw_power_cap"}
    )
    _, gap = level_of(run(cool, hot), "Best layer")
    (share,) = (share for share in gap.shares if share.name.startswith("power cap"))
    assert share.name == "power cap: 2.00 GHz against 2.50 GHz"
    counted = count_layer(hot)
    assert counted is not None
    assert share.seconds == pytest.approx(counted.work / (PEAK * 1.01) * 0.25)


def test_a_part_of_a_disturbed_point_is_not_used() -> None:
    view = step_run()
    records = tuple(
        r.replace(disturbed="busy") if r.metric == "time.optimizer" else r for r in view.records
    )
    _, gap = level_of(RunView(name="busy", records=records), "Training step")
    assert not [share for share in gap.shares if share.name == "optimizer"]
    assert seconds_of(gap, "optimizer, by its counted bytes") > 0.0


def test_parts_may_stand_in_the_attempts_conditions() -> None:
    layer = layer_point(4).value
    assert layer is not None
    rate, time, *parts = step_records(layer, layer, data_wait=0.08)
    timed = {part.metric: part.value for part in parts}
    tries = [time.replace(id=f"try-{n}", attempt=n, conditions=timed) for n in (1, 2)]
    from trainrig.record import Derivation

    made = rate.replace(derived=Derivation(ids=("try-1", "try-2"), formula="FLOPs / time"))
    _, gap = level_of(run(layer_point(4), *tries, made), "Training step")
    assert seconds_of(gap, "data wait") == pytest.approx(0.081)


def test_accumulation_repeats_all_but_the_optimizer() -> None:
    once = count_step(rate_point("training", dict(MODEL), 1.0))
    four = count_step(rate_point("training", {**MODEL, "grad_accum": 4}, 1.0))
    assert once is not None
    assert four is not None
    assert four.work == 4 * once.work
    optimizer = [[op.count for op in c.ops if op.kind == "optimizer"] for c in (once, four)]
    assert optimizer[0] == optimizer[1]


def test_a_model_by_numbers_is_known_and_no_file_is_read() -> None:
    numbers = {**MODEL, "model": "gpt2:num_layers=4,hidden=256,vocab=8192,max_positions=1024"}
    counted = count_step(rate_point("training", numbers, 1.0))
    assert counted is not None
    assert len({op.name for op in counted.ops}) > 4
    shape = model_shape(numbers)
    assert shape is not None
    assert shape.num_layers == 4
    for name in ("gpt2:hidden=-1", "gpt2:nonsense=3", "gpt2:.json", "/tmp/x.json", "gpt2:"):
        assert count_step(rate_point("training", {**MODEL, "model": name}, 1.0)) is None, name


def test_an_unknown_model_has_no_operations() -> None:
    assert count_step(rate_point("training", {**MODEL, "model": "../../etc/passwd"}, 1.0)) is None
    assert count_step(rate_point("training", {**MODEL, "batch_size": -1}, 1.0)) is None
    assert count_layer(rate_point("layer", {**LAYER, "batch_size": 4, "layer": "x"}, 1.0)) is None
    for wrong in (
        {"batch_size": 10**18},
        {"batch_size": 4, "heads": 0},
        {"batch_size": 4, "pass": "backward"},
    ):
        assert count_layer(rate_point("layer", {**LAYER, **wrong}, 1.0)) is None, wrong
    assert count_step(rate_point("training", {**MODEL, "grad_accum": 0}, 1.0)) is None


def test_a_training_on_several_gpus_is_the_last_level() -> None:
    """Its rate is per device, on the first GPU's waterfall."""
    name = next(spec.name for spec in benchmarks() if spec.role is Role.STEP)
    one = point(name, MODEL, 60e12, metric="flop_rate", unit="FLOP/s")
    two = one.replace(id="two", device_count=2, value=50e12, case={**MODEL, "nproc": 2})
    best = point("matmul", matmul_case("bf16", 8192), 90e12)
    view = RunView(name="run", records=(claimed("bf16", PEAK), best, one, two))
    (found,) = build_waterfalls(view)
    last, before = found.levels[-1], found.levels[-2]
    assert (before.name, last.name) == ("Training step", "Training step, all devices")
    assert last.gap is not None
    assert last.gap.amount == pytest.approx(-10e12)
