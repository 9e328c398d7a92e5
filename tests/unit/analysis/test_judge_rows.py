"""How the row of a training ends, and what that does to the verdict of its file."""

from __future__ import annotations

from typing import Any

import pytest

from training_summaries import stored_view
from trainrig.analysis.judge_training import judge_trainings
from trainrig.errors import UsageError
from trainrig.record import Outcome, Status, Verdict
from trainrig.runner.train_records import Trained
from trainrig.train.config import Experiment, check

DECLARED = {"comparable": False, "why": "its dropout has another generator"}


def trained(word: str, **more: Any) -> Trained:
    keys = more.pop("keys", {})
    outcome = Trained(experiment=Experiment.of(name="b", nproc=2, **keys), **more)
    assert outcome.word == word
    return outcome


def verdict_of(outcome: Trained) -> Verdict:
    fine = Trained(experiment=Experiment.of(name="a", nproc=2), compared=True)
    return judge_trainings(stored_view(fine, outcome))


def test_losses_of_their_own_fail_a_file_that_did_not_say_so() -> None:
    differing = {"not_comparable": "loss of step 0: 13.8", "compared": True}
    assert verdict_of(trained("agreed", compared=True)).outcome is Outcome.PASS
    found = verdict_of(trained("DIFFERS", **differing))
    assert found.outcome is Outcome.FAIL and "DIFFERS: loss of step 0" in found.reason
    declared = verdict_of(trained("NOT COMPARABLE", **differing, keys=DECLARED))
    assert declared.outcome is Outcome.PASS
    assert declared.reason.endswith("; 1 declared not comparable: b")
    (finding,) = declared.findings
    assert finding.severity == "warning" and "(its dropout has" in finding.evidence


def test_what_could_not_be_compared_fails_a_file_that_did_not_say_so() -> None:
    lacking = {"no_reference": "out of memory"}
    found = verdict_of(trained("NOT COMPARABLE", **lacking))
    assert found.outcome is Outcome.FAIL and "NOT COMPARABLE: out of memory" in found.reason
    assert verdict_of(trained("NOT COMPARABLE", **lacking, keys=DECLARED)).outcome is Outcome.PASS


def test_what_lacks_hardware_is_counted_and_costs_nothing() -> None:
    skipped = {"status": Status.SKIPPED, "reason": "tf32 is a matter of GPUs"}
    found = verdict_of(trained("skipped", needs_gpu=True, **skipped))
    assert found.outcome is Outcome.PASS
    assert found.reason.endswith("1 skipped for want of a GPU or a compiler: b")
    assert verdict_of(trained("skipped", **skipped)).outcome is Outcome.INCOMPLETE


@pytest.mark.parametrize("keys", [{"comparable": False}, {"why": "it is slower"}])
def test_a_row_that_is_not_comparable_says_why(keys: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="go together"):
        check(Experiment.of(**keys))


@pytest.mark.parametrize(
    ("status", "reason", "what_to_do"),
    [
        ("failed", "rank 0: RuntimeError: Error building extension 'deepspeed_shm_comm'", "g++"),
        ("failed", "rank 0: port 29500 is in use", "unset MASTER_PORT"),
        ("failed", "rank 1 was ended by SIGKILL in step 3", "dmesg"),
        ("oom", "rank 0: out of memory", "smaller batch_size"),
        ("failed", "rank 0: ValueError: other", "logs"),
    ],
)
def test_each_failure_says_what_to_do(status: str, reason: str, what_to_do: str) -> None:
    broken = trained("FAIL", status=Status(status), reason=reason)
    findings = [f for f in verdict_of(broken).findings if f.id == "training-failed"]
    assert [what_to_do in finding.fix for finding in findings] == [True]
