"""Whether an experiment's numbers are true: FLOPs by hand, every rank looked at, lies found out."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gloo_ranks
from training_summaries import findings_of, summary_of, trained_once
from trainrig.analysis.judge_training import find_straggler
from trainrig.data.batches import CausalBatches, MaskedBatches, Shard, SpanBatches
from trainrig.data.open_batches import OBJECTIVES
from trainrig.process.lost_ranks import Restart
from trainrig.runner.train_records import rates_of, wrong_on_ranks
from trainrig.selftest.train_faults import RANK_FACTS
from trainrig.train.config import Experiment
from trainrig.train.drivers.common import has_compiled
from trainrig.train.engines import ENGINES, OtherRank, Result
from trainrig.train.layout_check import differences, observed_layout, requested_layout
from trainrig.train.native import loop
from trainrig.train.native.layout_observed import first_step
from trainrig.train.native.loop import Engine, split
from trainrig.train.native.precision import Weights

PARTS = ("data_wait", "forward", "backward", "optimizer", "other")


def rows(number: int = 8, **parts: float) -> tuple[dict[str, Any], ...]:
    """Steps whose parts are as said."""
    each = dict.fromkeys(PARTS, 0.0) | parts
    step = {"loss": 9.0, "grad_norm": 1.0, "time": sum(each.values()), **each}
    return tuple({"step": n, **step} for n in range(number))


# ---- FLOPs, by hand

# b samples of s tokens, width h, vocabulary V.  A block's products are 24bsh² + 4bs²h, the head's
# 2bshV; backward is twice forward.
_SMALL = "num_layers=2,hidden=32,num_heads=2,vocab=128,max_positions=16"
_LLAMA = "num_layers=1,hidden=32,num_heads=4,num_kv_heads=2,ffn=64,vocab=128,max_positions=16"
_T5 = "num_layers=1,num_decoder_layers=1,hidden=32,num_heads=2,ffn=128,vocab=128"


@pytest.mark.parametrize(
    ("model", "batch", "seq", "flops"),
    [
        # 2 blocks of 1,572,864 + 131,072, and a head of 524,288
        (f"gpt2:{_SMALL}", 4, 16, 3 * 3_932_160),
        # and before BERT's head another product of 2bsh² = 131,072
        (f"bert:{_SMALL}", 4, 16, 3 * (3_932_160 + 131_072)),
        # q and out 131,072 each, k and v as much together, scores as much, 3 gated products
        (f"llama:{_LLAMA}", 4, 16, 3 * (4 * 131_072 + 3 * 262_144 + 524_288)),
        # 96 tokens are read and 22 are written.  Encoder: 1,572,864 + 2,359,296 + 3,145,728
        (f"t5:{_T5}", 2, 96, 3 * (7_077_888 + 3_073_024)),
    ],
    ids=["gpt2", "bert", "llama", "t5"],
)
def test_model_flops_are_those_of_one_devices_samples(
    model: str, batch: int, seq: int, flops: int
) -> None:
    """Accumulation multiplies them; other ranks and what is computed again do not."""
    for accum, ranks, recompute in ((1, 1, "none"), (3, 1, "none"), (3, 2, "full")):
        own = Experiment.of(
            model=model,
            batch_size=batch,
            seq_len=seq,
            grad_accum=accum,
            nproc=ranks,
            recompute=recompute,
        )
        rates = rates_of(trained_once(own, Result(rows=rows(forward=0.5))))
        assert rates["flop_rate"] == accum * flops / 0.5
        assert rates["sample_rate"] == batch * accum * ranks / 0.5
        assert rates["token_rate"] == batch * accum * ranks * seq / 0.5


@pytest.mark.parametrize(
    ("recompute", "again"),
    [
        # A fused attention's backward computes the scores again: 2bs²h = 65,536 in each block.
        ("none", 2 * 65_536),
        ("selective", 2 * 65_536),
        # The whole block but its last product, whose result backward does not need.
        ("full", 2 * (65_536 + 16 * 65_536 + 131_072)),
    ],
)
def test_hardware_flops_add_what_is_computed_again(recompute: str, again: int) -> None:
    own = Experiment.of(
        model=f"gpt2:{_SMALL}", batch_size=4, seq_len=16, grad_accum=3, recompute=recompute
    )
    rates = rates_of(trained_once(own, Result(rows=rows(forward=0.5))))
    assert rates["hardware_flop_rate"] == 3 * (3 * 3_932_160 + again) / 0.5


# ---- the samples

TOKENS = np.arange(1000, 1481, dtype=np.uint16)


def batches(objective: str, shard: Shard) -> Any:
    common: dict[str, Any] = {"tokens": TOKENS, "seq_len": 20, "shard": shard}
    if objective == "causal":
        return CausalBatches(**common)
    if objective == "masked":
        return MaskedBatches(**common, mask=4, vocab_size=2000, around=(2, 3))
    return SpanBatches(**common, sentinels=tuple(range(50, 90)), end=1, pad=0)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_ranks_and_micro_batches_read_what_one_large_batch_holds(objective: str) -> None:
    """Masks and spans too belong to a sample, not to the rank or the micro-batch."""
    for seed in (0, 1):
        whole = batches(objective, Shard(batch=8, seed=seed))(3)
        shards = [Shard(batch=4, rank=rank, num_ranks=2, seed=seed) for rank in range(2)]
        ranks = [batches(objective, shard)(3) for shard in shards]
        for name in ("inputs", "labels"):
            expected = getattr(whole, name)
            assert (np.concatenate([getattr(rank, name) for rank in ranks]) == expected).all()
            micros = [getattr(micro, name).numpy() for micro in split(whole, 4, pinned=False)]
            assert (np.concatenate(micros) == expected).all()
    assert (whole.inputs != batches(objective, Shard(batch=8, seed=0))(3).inputs).any()


# ---- what counts of the steps


def test_a_step_is_the_mean_of_the_middle_half_of_what_counts() -> None:
    """The first three settle; of 1, 2, …, 8 then 3 to 6 are left."""
    times = [50.0, 60.0, 70.0, *(float(n) for n in (8, 1, 7, 2, 6, 3, 5, 4))]
    steps = tuple(
        row | {"time": time, "forward": time}
        for row, time in zip(rows(len(times)), times, strict=True)
    )
    found = trained_once(Experiment.of(), Result(rows=steps))
    assert found.mean("time") == found.mean("forward") == 4.5


def test_what_is_unknown_in_one_step_is_unknown() -> None:
    steps = tuple(row | {"other": None} for row in rows(forward=1.0))
    assert trained_once(Experiment.of(), Result(rows=steps)).mean("other") is None
    mixed = tuple(row | {"other": 1.0 if row["step"] % 2 else None} for row in steps)
    assert trained_once(Experiment.of(), Result(rows=mixed)).mean("other") is None


@pytest.mark.parametrize(("other", "ids"), [(0.04, []), (0.06, ["time-in-no-part"])])
@pytest.mark.parametrize("sign", [1, -1])
def test_time_in_no_part_or_in_two_is_a_finding(other: float, ids: list[str], sign: int) -> None:
    steps = rows(forward=1.0 - sign * other, other=sign * other)
    found = trained_once(Experiment.of(), Result(rows=steps))
    said = findings_of(found)
    assert [finding.id for finding in said] == ids
    where = "none of its parts" if sign > 0 else "two of its parts at once"
    assert all(
        finding.evidence.endswith(f"of a step (60.0 ms) belongs to {where}") for finding in said
    )


# ---- the other ranks


def profiled(number: int = 5, waits: float = 0.0, **own_in: float) -> tuple[dict[str, Any], ...]:
    """Steps under the profiler: what a rank did itself, and its waits."""
    own = sum(own_in.values())
    step = {"step_s": own + waits, "own_s": own, "communication_s": waits, "bubble_s": 0.0}
    step |= {"idle_s": 0.0, "overlapped_s": 0.0, "own_in": own_in}
    return (step,) * number


QUICK = profiled(forward=0.100, backward=0.200, waits=0.080)
SLOW = profiled(forward=0.170, backward=0.200, waits=0.010)


def test_the_rank_that_others_wait_for_is_named_with_what_it_is_longer_in() -> None:
    """Rank 0 alone would show communication, as if a link were slow."""
    said = find_straggler([QUICK, SLOW])
    assert said is not None
    assert "70.0 ms is another rank's waiting for rank 1" in said
    assert said.endswith("takes 70.0 ms longer in forward")
    said = find_straggler([profiled(data_wait=0.37, waits=0.01), QUICK, QUICK])
    assert said is not None and "waiting for rank 0" in said and "longer in data wait" in said
    unknown = [tuple(step | {"own_in": {}} for step in own) for own in (QUICK, SLOW)]
    assert (find_straggler(unknown) or "").endswith("waiting for rank 1")  # no driver's phases
    placed = find_straggler([QUICK, SLOW], ["node6", "node7"])
    assert placed is not None and "waiting for rank 1 on node7, which takes" in placed


def test_even_ranks_and_a_single_one_wait_for_nobody() -> None:
    near = profiled(forward=0.110, backward=0.200, waits=0.070)
    assert find_straggler([QUICK, near]) is None
    assert find_straggler([QUICK]) is None
    assert find_straggler([QUICK, ()]) is None
    assert find_straggler([QUICK[:3], SLOW[:3]]) is None
    # In one of five steps it was the other one: what others did on the machine.
    assert find_straggler([(*QUICK[:4], *SLOW[4:]), (*SLOW[:4], *QUICK[4:])]) is None


def test_a_rank_that_is_waited_for_is_a_warning() -> None:
    peer = OtherRank(rank=1, facts=FACTS)
    own = Experiment.of(name="two", nproc=2)
    result = Result(rows=rows(forward=0.38), peers=(peer,), profiles=(QUICK, SLOW))
    found = trained_once(own, result)
    (finding,) = findings_of(found)
    assert (finding.id, finding.severity) == ("rank-waited-for", "warning")
    assert finding.evidence.startswith("two: of a step of 380 ms, 70.0 ms")
    shown = summary_of(found)["profiled"]
    assert (shown["step_s"], shown["own_s"]) == pytest.approx((0.38, 0.335))  # the ranks' mean
    assert shown["communication_s"] == pytest.approx(0.045)


def test_a_rank_that_was_lost_is_a_warning_with_what_it_cost() -> None:
    restart = Restart(
        cause="rank 1 was ended by SIGKILL in forward of step 5 (process 7 on node7)",
        rank=1,
        ranks=1,
        step=4,
        steps_lost=1,
        time_lost_s=6.5,
    )
    own = Experiment.of(name="two", nproc=2, min_nproc=1, max_restarts=1)
    found = trained_once(own, Result(rows=rows(forward=0.3), restarts=(restart,)))
    (finding,) = findings_of(found)
    assert (finding.id, finding.severity) == ("rank-lost", "warning")
    assert finding.evidence == (
        "two: rank 1 was ended by SIGKILL in forward of step 5 (process 7 on node7); "
        "went on from step 4 with 1 rank, 1 step and 6.50 s lost"
    )
    (shown,) = summary_of(found)["restarts"]
    assert (shown["rank"], shown["step"], shown["time_lost_s"]) == (1, 4, 6.5)


FACTS = RANK_FACTS | {"weight_dtype": "bfloat16", "micro_tokens": 2048}


def test_a_rank_with_a_layout_of_its_own_is_found() -> None:
    own = Experiment.of(nproc=2, precision="bf16")
    assert wrong_on_ranks(own, Result(facts=FACTS, peers=(OtherRank(rank=1, facts=FACTS),))) == []
    other = OtherRank(rank=1, facts=FACTS | {"micro_tokens": 1024})
    assert wrong_on_ranks(own, Result(facts=FACTS, peers=(other,))) == [
        "micro_tokens: asked 2048, found 1024 (DistributedDataParallel) on rank 1"
    ]
    everywhere = Result(facts=other.facts, peers=(other,))
    assert wrong_on_ranks(own, everywhere) == [
        "micro_tokens: asked 2048, found 1024 (DistributedDataParallel)"
    ]
    wrong = trained_once(own, Result(facts=FACTS, peers=(other,)))
    assert wrong.word == "DIFFERS" == summary_of(wrong)["row_verdict"]


def test_the_ranks_that_share_one_copy_are_counted_by_what_each_holds() -> None:
    hybrid = FACTS | {"ranks": 8, "states": 250, "gradients": 250}
    assert observed_layout(hybrid).sharding.shard_ranks == 4
    assert observed_layout(FACTS).sharding.shard_ranks == 1


@pytest.mark.parametrize(
    ("facts", "ranks"),
    [
        ({"gradient_collectives": 0}, 1),
        ({"gradient_collectives": 3}, 2),
        ({"gradient_collectives": 0, "states": 500}, 2),  # shards: something sums them
        ({"gradient_collectives": 0, "transport": None}, 2),  # one process on two devices
        ({}, 2),
    ],
)
def test_ranks_that_sum_no_gradients_train_alone(facts: dict[str, Any], ranks: int) -> None:
    assert observed_layout(FACTS | facts).mesh.ranks == ranks


# ---- lies to one process


def found_in(own: Experiment, **lie: Any) -> list[str]:
    """What the first step of an engine that was lied to shows, against what was asked for."""
    shape = gloo_ranks.SHAPES["gpt2"]
    batches = gloo_ranks.batches_for(lie.pop("fed", own), shape, 0)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with Engine(lie.pop("built", own), shape, batches=batches, **lie) as trained:
        trained.experiment = own  # whoever repeats the request believes the lie
        facts = first_step(trained)
    torch.set_num_threads(before)
    return [
        said.rpartition(" (")[0]
        for said in differences(requested_layout(own), observed_layout(facts))
    ]


OWN = Experiment.of(
    model="gpt2",
    batch_size=2,
    grad_accum=2,
    seq_len=16,
    warmup=0,
    precision="bf16",
    device="cpu",
)
LIES: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    (
        {"recompute": "full"},
        {"built": OWN.replace(recompute="none")},
        "recompute: asked full, found none",
    ),
    (
        {"recompute": "selective"},
        {"built": OWN.replace(recompute="none")},
        "recompute: asked selective, found none",
    ),
    (
        {},
        {"built": OWN.replace(optimizer="adamw")},
        "fused_optimizer: asked True, found False",
    ),
    ({}, {"fed": OWN.replace(batch_size=1)}, "micro_tokens: asked 32, found 16"),
    ({}, {"fed": OWN.replace(seq_len=8)}, "micro_tokens: asked 32, found 16"),
    (
        {},
        {"spread": lambda model, _: Weights(model, "fp32")},
        "precision: asked bf16, found fp32",
    ),
    (
        {"precision": "fp32"},
        {"spread": lambda model, _: Weights(model, "bf16")},
        "precision: asked fp32, found bf16",
    ),
]


@pytest.mark.parametrize(("asked", "lie", "said"), LIES)
def test_what_an_engine_does_not_do_is_found(
    asked: dict[str, Any], lie: dict[str, Any], said: str
) -> None:
    assert found_in(OWN) == []
    own = OWN.replace(**asked)
    assert said in found_in(own, **lie)


def test_micro_batches_that_are_one_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "split", lambda batch, _, **how: split(batch, 1, **how))
    said = found_in(OWN)
    assert said == ["grad_accum: asked 2, found 1", "micro_tokens: asked 32, found 64"]


def test_an_optimizer_that_is_another_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        loop, "make_optimizer", lambda _, groups, **__: torch.optim.SGD(groups, lr=0.1)
    )
    assert "optimizer: asked AdamW, found SGD" in found_in(OWN)


def test_weights_without_masters_are_found() -> None:
    class Narrow(Weights):
        def __init__(self, model: torch.nn.Module, _: str) -> None:
            super().__init__(model.bfloat16(), "bf16")
            self.narrow, self.master = False, self.model

    said = found_in(OWN, spread=Narrow)
    assert "master_precision: asked fp32, found bf16" in said
    assert "gradient_precision: asked fp32, found bf16" in said


@pytest.mark.parametrize("compiles", [True, False])
def test_a_wrapper_that_compiled_nothing_is_not_compiled(
    compiles: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with TORCHDYNAMO_DISABLE=1, or after a compiler whose errors are suppressed."""

    def wrap(block: Any, **_: Any) -> None:
        block._compiled_call_impl = block._call_impl

    monkeypatch.setattr(torch.nn.Module, "compile", wrap)
    counted = types.SimpleNamespace(counters={"frames": {"total": 1, "ok": int(compiles)}})
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", counted)
    said = found_in(OWN.replace(compile=True))
    assert said == ([] if compiles else ["compile: asked True, found False"])
    monkeypatch.delitem(sys.modules, "torch._dynamo.utils")
    assert not has_compiled()


def test_what_every_rank_told_is_collected(tmp_path: Path) -> None:
    for rank, peak in enumerate((1.0, 3.0, 2.0)):
        events = [
            {"event": "layout", "wrapped": f"of {rank}"},
            *({"event": "row", **row, "rank": rank} for row in rows(2)),
            {"event": "memory", "peak": peak, "reserved": None},
        ]
        path = tmp_path / f"events-{rank}.jsonl"
        path.write_text("".join(json.dumps(event) + "\n" for event in events))
    found = ENGINES["native"].collect(tmp_path)
    assert found.memory == 3.0
    assert [row["rank"] for row in found.rows] == [0, 0]
    assert [(p.rank, (p.facts or {})["wrapped"]) for p in found.peers] == [
        (1, "of 1"),
        (2, "of 2"),
    ]
    assert found.profiles == ((), (), ()) and found.profiled is None
