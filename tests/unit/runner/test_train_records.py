"""From what became of a training to its rates, shares of the claimed peak and records."""

from __future__ import annotations

import pytest

from training_summaries import findings_of, stored_view, summary_of, trained_once
from trainrig.analysis.judge_training import judge_trainings
from trainrig.analysis.training_facts import flat, nested
from trainrig.analysis.waterfall import build_waterfalls
from trainrig.record import Limit, Outcome, Status
from trainrig.runner.targets import Target
from trainrig.runner.train_records import rates_of, records_of, step_line
from trainrig.train.config import Experiment
from trainrig.train.engines import Result

TARGET = Target(torch_device="cpu", name="CPU", index=None, memory_bytes=0, chip=None)
ROWS = tuple({"step": step, "loss": 9.0, "grad_norm": 1.0} for step in range(8))


def test_mfu_is_of_the_claim_and_absent_without_one() -> None:
    rows = tuple(row | {"time": 0.5} for row in ROWS)
    own = Experiment.of(
        model="gpt2-small-cpu", batch_size=4, recompute="full", device="cpu", name="one"
    )
    found = trained_once(own, Result(rows=rows), peak=Limit(value=1e12, source="s"))
    said, rates = summary_of(found), rates_of(found)
    assert said["mfu"] == pytest.approx(rates["flop_rate"] / 1e12)
    assert said["hfu"] == pytest.approx(rates["hardware_flop_rate"] / 1e12)
    assert said["hfu"] > 1.1 * said["mfu"] and said["no_mfu_reason"] is None
    records = records_of(found, TARGET, "0" * 64, "e")
    assert {r.metric: r.value for r in records}["mfu"] == said["mfu"]
    found.peak = None
    said = summary_of(found)
    assert (said["mfu"], said["hfu"]) == (None, None)
    assert said["no_mfu_reason"] == "no fp32 peak is claimed for this CPU"
    assert not {"mfu", "hfu"} & {r.metric for r in records_of(found, TARGET, "0" * 64, "e")}


@pytest.mark.parametrize(
    ("nproc", "level"), [(1, "Training step"), (2, "Training step, all devices")]
)
def test_what_several_ranks_reach_is_a_level_of_its_own(nproc: int, level: str) -> None:
    rows = tuple(row | {"time": 0.5} for row in ROWS)
    own = Experiment.of(model="gpt2-small-cpu", name="one", nproc=nproc)
    (waterfall,) = build_waterfalls(stored_view(trained_once(own, Result(rows=rows))))
    assert [each.name for each in waterfall.levels] == ["Claim", level]
    assert waterfall.levels[-1].value


def test_a_run_that_was_cut_off_is_judged_by_the_records_that_are_there() -> None:
    rows = tuple(row | {"time": 0.5} for row in ROWS)
    own = Experiment.of(model="gpt2-small-cpu", name="one")
    good = stored_view(trained_once(own, Result(rows=rows), compared=True))
    assert judge_trainings(good).outcome is Outcome.MEASURED
    found = judge_trainings(good, "the run was cut off")
    assert (found.outcome, found.reason) == (Outcome.INCOMPLETE, "the run was cut off")
    failed = trained_once(own, status=Status.FAILED, reason="rank 0 was ended by SIGKILL")
    found = judge_trainings(stored_view(failed), "the run was cut off")
    assert found.outcome is Outcome.FAIL and found.reason == "one: rank 0 was ended by SIGKILL"


def test_a_gradient_beyond_all_bounds_ends_neither_the_verdict_nor_the_summary() -> None:
    rows = tuple(row | {"time": 0.5, "grad_norm": 1e30} for row in ROWS)
    wild = trained_once(Experiment.of(model="gpt2-small-cpu"), Result(rows=rows), compared=True)
    assert findings_of(wild) == ()
    assert summary_of(wild)["grad_norms"] == [None] * len(ROWS)


def test_facts_come_back_from_a_record_as_they_were() -> None:
    facts = {"a": 1, "b": {"c": None, "d": ()}, "e": [{"f": 2.0, "g": []}, {"f": 3.0, "g": ["x"]}]}
    assert flat(facts)["e.1.g.0"] == "x"
    assert nested(flat(facts)) == {**facts, "b": {"c": None, "d": []}}


def test_a_step_says_loss_and_tokens_where_there_are_any() -> None:
    own = Experiment.of(name="one", steps=8)
    row = {"step": 3, "loss": 7.4264, "tokens_per_s": 1427.4}
    assert step_line(own, row) == "one: step 4 of 8: loss 7.426, 1.43k tokens/s"
    lost = row | {"loss": None, "tokens_per_s": None}
    assert step_line(own, lost) == "one: step 4 of 8: loss no number"
