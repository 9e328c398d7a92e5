"""What an experiment may say, the schedule's values, and what a step's case counts."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from trainrig.benchmarks.spec import benchmark
from trainrig.benchmarks.training import FIELDS, memory
from trainrig.errors import NeedsCompilerError, UnavailableError, UsageError
from trainrig.train import config
from trainrig.train.config import Experiment, case_of, check, check_compiler, to_dict
from trainrig.train.experiment_parts import LR_SCHEDULES
from trainrig.train.fewer_ranks import fewer_ranks, on_ranks
from trainrig.workload import find, model_flops, parameters

STEP = benchmark("training")


def test_an_experiment_is_stored_and_read_back() -> None:
    experiment = Experiment.of(model="gpt2", steps=7, warmup=2, clip=0.0)
    assert Experiment.of(**to_dict(experiment)) == experiment
    assert "warmup" not in to_dict(Experiment.of())


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"modle": "gpt2"}, "modle"),
        ({"batch_size": "8"}, "batch_size"),
        ({"batch_size": 8.5}, "batch_size"),
        ({"lr": "fast"}, "lr = "),
        ({"compile": 1}, "compile"),
    ],
)
def test_what_is_no_experiment_is_refused_by_name(content: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Experiment.of(**content)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"batch_size": 0}, "batch_size = 0"),
        ({"seq_len": -1}, "seq_len = -1"),
        ({"steps": 0}, "steps = 0"),
        ({"grad_accum": 0}, "grad_accum = 0"),
        ({"precision": "int8"}, "unknown precision"),
        ({"recompute": "some"}, "unknown recompute"),
        ({"optimizer": "lion"}, "unknown optimizer"),
        ({"lr": 0.0}, "lr = "),
        ({"lr": math.inf}, "lr = "),
        ({"beta2": 1.0}, "beta2"),
        ({"weight_decay": -0.1}, "weight_decay"),
        ({"clip": math.nan}, "clip"),
        ({"seq_len": 512}, "256 positions"),
        ({"model": "gpt5"}, "unknown model"),
        ({"model": "gpt2:num_layers=0,hidden=8"}, "num_layers"),
    ],
)
def test_what_contradicts_is_refused_before_anything_starts(
    change: dict[str, Any], words: str
) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        check(Experiment.of().replace(**change))
    assert "\n" not in caught.value.message


def test_the_usual_experiment_is_fine() -> None:
    assert check(Experiment.of()).name == "gpt2-small-cpu"
    assert check(Experiment.of(model="llama-1B", seq_len=4096)).family == "llama"


def test_a_schedule_of_two_groups_has_them_unless_another_number_is_given() -> None:
    folded = Experiment.of(schedule="zbv", pp=2, nproc=2)
    assert folded.interleave == 2 and folded.replace(seed=3).interleave == 2
    assert Experiment.of(schedule="zbv", pp=2, nproc=2, interleave=1).interleave == 1


def test_the_schedule_has_its_values() -> None:
    rate = Experiment.of(lr=1.0, steps=110, warmup=10).learning_rate
    assert rate(0) == pytest.approx(0.1)
    assert rate(4) == pytest.approx(0.5)
    assert rate(9) == rate(10) == 1.0
    assert rate(60) == pytest.approx(0.55)  # halfway between the peak and a tenth
    assert rate(109) == pytest.approx(0.1, abs=1e-3)
    assert rate(110) == rate(1000) == pytest.approx(0.1)
    rates = [rate(number) for number in range(10, 111)]
    assert rates == sorted(rates, reverse=True)


def test_a_longer_training_keeps_the_rates_that_were_planned() -> None:
    """A8: resumed with more steps, a step's rate is what it was, and none is warmed up again."""
    short = Experiment.of(lr=1.0, steps=20)
    longer = short.replace(steps=400, decay_steps=short.planned_steps)
    rates = [longer.learning_rate(step) for step in range(400)]
    assert rates[:20] == [short.learning_rate(step) for step in range(20)]
    assert rates[20:] == pytest.approx([0.1] * 380)


@pytest.mark.parametrize(
    ("word", "half", "last"),
    [("cosine", 0.55, 0.1), ("linear", 0.55, 0.1), ("constant", 1.0, 1.0), ("wsd", 1.0, 0.1)],
)
def test_schedules_by_name(word: str, half: float, last: float) -> None:
    rate = Experiment.of(lr=1.0, steps=110, warmup=10, lr_schedule=word).learning_rate
    assert rate(4) == pytest.approx(0.5)
    assert rate(60) == pytest.approx(half)
    assert rate(110) == rate(1000) == pytest.approx(last)


def test_wsd_decays_over_its_last_share() -> None:
    own = Experiment.of(lr=1.0, steps=100, warmup=10, lr_schedule="wsd", decay_ratio=0.2)
    rates = [own.replace(min_lr_factor=0.0).learning_rate(step) for step in range(101)]
    assert rates[10:81] == [1.0] * 71
    assert rates[80:101:5] == pytest.approx([1.0, 0.75, 0.5, 0.25, 0.0])


@pytest.mark.parametrize("word", LR_SCHEDULES)
def test_a_schedule_by_tokens_is_that_of_their_steps(word: str) -> None:
    """Whatever a step's tokens are made of, and in whichever unit each length is given."""
    usual = {"lr": 1.0, "lr_schedule": word, "batch_size": 2, "seq_len": 8, "steps": 50}
    by_steps = Experiment.of(**usual, warmup=5, decay_steps=40)
    expected = [by_steps.learning_rate(step) for step in range(50)]
    for keys in (
        {"warmup_tokens": 80, "decay_tokens": 640},
        {"warmup_tokens": 80, "decay_steps": 40},
        {"warmup": 5, "decay_tokens": 640},
    ):
        own = Experiment.of(**usual, **keys)
        assert [own.learning_rate(step) for step in range(50)] == pytest.approx(expected)
    twice = {**usual, "batch_size": 1, "nproc": 4}  # twice the tokens a step: half the steps
    own = Experiment.of(**twice, warmup_tokens=80, decay_tokens=640)
    assert (own.warmup_steps, own.planned_steps) == (3, 20)
    assert own.learning_rate(2) == 1.0 and own.learning_rate(20) == pytest.approx(
        expected[40], abs=1e-9
    )


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"warmup": 1, "warmup_tokens": 5}, "warmup and warmup_tokens"),
        ({"decay_steps": 1, "decay_tokens": 5}, "decay_steps and decay_tokens"),
        ({"heldout_every": 5, "heldout_batches": 0}, "heldout_every"),
        ({"lr_schedule": "cosinus"}, "lr_schedule"),
    ],
)
def test_what_contradicts_itself_is_refused(keys: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        check(Experiment.of(**keys))


def test_a_schedule_of_one_step_is_one() -> None:
    assert Experiment.of(lr=2.0, steps=1).learning_rate(0) == 2.0


def test_the_warm_up_is_a_tenth_at_most_100() -> None:
    assert Experiment.of(steps=50).warmup_steps == 5
    assert Experiment.of(steps=100_000).warmup_steps == 100
    assert Experiment.of(steps=50, warmup=0).warmup_steps == 0


# ---- the case


def case(**changes: Any) -> dict[str, Any]:
    return {**case_of(Experiment.of(precision="bf16"), "0123456789abcdef"), **changes}


def test_the_case_has_the_family_fields_and_the_hash() -> None:
    assert set(case()) == set(FIELDS)
    assert case()["data"] == "01234567"
    STEP.check(case())


@pytest.mark.parametrize(
    "change",
    [{"batch_size": 0}, {"seq_len": True}, {"precision": "int8"}, {"model": "none"}, {"odd": 1}],
)
def test_odd_cases_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        STEP.check(case(**change))


def test_flops_are_the_workloads_and_grow_with_accumulation() -> None:
    flops = model_flops(find("gpt2-small-cpu"), 8, 256)
    assert STEP.work(case()).flops == flops
    assert STEP.work(case(grad_accum=3)).flops == 3 * flops
    assert STEP.work(case(recompute="full")).flops == flops


def test_a_t5_step_counts_what_its_decoder_writes() -> None:
    """torch's count for the very samples that it trains on: 96 tokens read, 22 written."""
    import numpy as np
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from trainrig import models
    from trainrig.analysis.time_loss import count_step
    from trainrig.data.batches import Shard, SpanBatches
    from trainrig.record import Kind, Record

    t5 = "t5:num_layers=1,num_decoder_layers=2,hidden=64,num_heads=2,vocab=128"
    tokens = np.zeros(1000, np.uint16)
    make = SpanBatches(
        tokens=tokens, seq_len=96, shard=Shard(batch=2), sentinels=tuple(range(50)), end=1, pad=0
    )
    batch, model = make(0), models.build(find(t5), device="meta")
    read, labels = (torch.from_numpy(a).to("meta") for a in (batch.inputs, batch.labels))
    with FlopCounterMode(display=False) as counter:
        model.loss(read, labels).backward()
    asked = case(model=t5, batch_size=2, seq_len=96)
    assert labels.shape == (2, 22)
    assert STEP.work(asked).flops == counter.get_total_flops()
    record = Record(
        kind=Kind.MEASURED, benchmark="step", case=asked, metric="flop_rate", unit="FLOP/s"
    )
    counted = count_step(record)
    assert counted is not None
    assert counted.work == counter.get_total_flops()


def test_rates_follow_from_the_time() -> None:
    metrics = {metric.name: metric for metric in STEP.metrics(case(grad_accum=2))}
    assert metrics["sample_rate"].of(2.0) == 8.0
    assert metrics["token_rate"].of(2.0) == 8.0 * 256
    assert metrics["time"].of(2.0) == 2.0
    assert next(iter(metrics)) == "flop_rate"


def test_memory_grows_with_the_batch_and_shrinks_with_recomputation() -> None:
    weights = 16 * parameters(find("gpt2-small-cpu")).total
    none, selective, full = (memory(case(recompute=how)) for how in ("none", "selective", "full"))
    assert weights < full < selective < none
    twice = memory(case(batch_size=16))
    assert twice - none == memory(case(batch_size=24)) - twice > 0
    assert 1.0 < memory(case(batch_size=16, grad_accum=4)) / twice < 1.05


def test_compile_without_a_compiler_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("CXX", raising=False)
    check_compiler(Experiment.of())
    with pytest.raises(UnavailableError, match="needs a compiler") as caught:
        check_compiler(Experiment.of(compile=True))
    assert caught.value.exit_code == 3
    assert caught.value.hint is not None


# ---- fewer ranks than it was made for

LAST = {"zero": 0, "shard_size": 0, "parallel": "auto"}


@pytest.mark.parametrize(
    ("layout", "ranks", "changes"),
    [
        ({"nproc": 4}, 2, {"grad_accum": 2}),
        ({"nproc": 4, "grad_accum": 3}, 1, {"grad_accum": 12, **LAST}),
        ({"nproc": 4, "zero": 3}, 2, {"grad_accum": 2, "zero": 3}),
        ({"nproc": 2, "zero": 3, "parallel": "fsdp"}, 1, {"grad_accum": 2, **LAST}),
        ({"nproc": 8, "zero": 3, "shard_size": 4}, 2, {"grad_accum": 4, "shard_size": 0}),
        ({"nproc": 8, "zero": 3, "shard_size": 2}, 4, {"grad_accum": 2, "shard_size": 2}),
        ({"nproc": 4, "tp": 2}, 2, {"grad_accum": 2, "tp": 2, **LAST}),
        ({"nproc": 4, "devices": "4,5,6,7"}, 2, {"grad_accum": 2, "devices": "4,5"}),
    ],
)
def test_fewer_ranks_train_on_the_same_samples(
    layout: dict[str, Any], ranks: int, changes: dict[str, Any]
) -> None:
    own = Experiment.of(model="gpt2-small-cpu", min_nproc=1, **layout)
    fewer = on_ranks(own, ranks)
    assert fewer == own.replace(nproc=ranks, **changes)
    assert fewer.global_samples == own.global_samples
    assert on_ranks(own, own.nproc) is own


@pytest.mark.parametrize(
    ("layout", "ranks", "words"),
    [
        ({"nproc": 4}, 2, "2 ranks were started, and the experiment has nproc = 4"),
        ({"nproc": 4, "min_nproc": 2}, 1, "and min_nproc = 2"),
        ({"nproc": 4, "min_nproc": 2}, 8, "8 ranks were started"),
        ({"nproc": 4, "min_nproc": 1}, 3, "cannot share the samples of 4 data-parallel ranks"),
        ({"nproc": 4, "min_nproc": 1, "tp": 2}, 1, "cannot share the samples of 2"),
        ({"nproc": 2, "min_nproc": 1, "zero": 3, "offload": "host"}, 1, "no shards to offload"),
    ],
)
def test_a_number_of_ranks_that_the_layout_does_not_allow_is_one_line(
    layout: dict[str, Any], ranks: int, words: str
) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        on_ranks(Experiment.of(model="gpt2-small-cpu", **layout), ranks)
    assert caught.value.hint


def test_the_numbers_of_ranks_to_go_on_with() -> None:
    own = Experiment.of(model="gpt2-small-cpu", nproc=8, tp=2, min_nproc=2)
    assert fewer_ranks(own) == (4, 2)
    assert fewer_ranks(own.replace(min_nproc=3)) == (4,)
    assert fewer_ranks(own.replace(min_nproc=0)) == ()
    with pytest.raises(UsageError, match="min_nproc = 9 of nproc = 8"):
        check(own.replace(min_nproc=9))


def test_compiling_for_a_gpu_without_python_s_header_is_skipped_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """triton's launcher includes Python.h, which many machines lack; a host's code does not."""
    monkeypatch.setattr(config.sysconfig, "get_path", lambda _: str(tmp_path))
    monkeypatch.setattr(config.shutil, "which", lambda name: f"/usr/bin/{name}")
    compiled = Experiment.of(compile=True, device="cuda")
    with pytest.raises(NeedsCompilerError, match=r"no .*Python\.h"):
        check_compiler(compiled)
    check_compiler(Experiment.of(compile=True, device="cpu"))
    (tmp_path / "Python.h").touch()
    check_compiler(compiled)
