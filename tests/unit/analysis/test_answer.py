"""Normal, slow, faulty or cannot tell: each row of the table, with a run beside it that differs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest

import report_views as made
from trainrig.analysis import answer
from trainrig.analysis.answer import LEAST_OF_CHANNELS, LEAST_OF_COMPUTED_PEAK, answer_of
from trainrig.analysis.run_summary import summarise
from trainrig.benchmarks.spec import MARGIN
from trainrig.prediction.expected import EARLIER_RUNS, EARLIER_VALUE, NOISY_EARLIER_RUNS
from trainrig.record import Finding, Kind, Outcome, Record, RunView, Severity, Status, Verdict

CASE = made.matmul_case("fp32", 2048, cache="hot")
STREAM = {"direction": "copy", "bytes": 2**28, "memory": "host", "cache": "cold"}


def error(id: str, *records: str, severity: Severity = "error") -> Finding:
    return Finding(id=id, severity=severity, evidence=f"{id} was seen", fix="-", records=records)


def run(outcome: Outcome | None, *records: Record, errors: Sequence[Finding] = (), **more: Any):
    verdict = None
    if outcome is not None:
        verdict = Verdict(outcome=outcome, reason="-", findings=tuple(errors))
    return RunView(**{"name": "run", "records": records, "verdict": verdict, **more})


def host(value: float = 1e11, **more: Any) -> Record:
    return made.point("matmul", CASE, value, device=made.CPU, device_index=None, id="point", **more)


def earlier(value: float, runs: int = 1, of: Record | None = None) -> Record:
    """The expectation of a case without a target that was measured in ``runs`` runs before."""
    return unjudged(of, **{EARLIER_VALUE: value, EARLIER_RUNS: runs})


def unjudged(of: Record | None = None, **conditions: Any) -> Record:
    """The expectation of a case without a target."""
    conditions = {"required": True, "step": "x", **conditions}
    return (of or host()).replace(
        id="plan",
        kind=Kind.PREDICTED,
        value=None,
        interval=None,
        confidence=None,
        status=Status.MISSING,
        reason="no target known",
        conditions=conditions,
    )


def told(view: RunView) -> tuple[str, tuple[str, ...]]:
    found = answer_of(view)
    return str(found.word), found.compared_with


def target(point: Record, low: float, source: str) -> list[Record]:
    """A point that two workers made, and what was expected of it."""
    return [
        made.predicted(point, low, 2.0 * low, source),
        *made.settled(point.replace(reached=point.value, rounds=1), 2.0 * 2048**3),
    ]


# ---- one row each, and its twin


@pytest.mark.parametrize(
    "id", ["wrong-answer", "device-failed", "gpu-gone", "tool-failure", "an error of tomorrow"]
)
def test_an_error_that_is_no_rate_is_a_fault(id: str) -> None:
    assert told(run(Outcome.FAIL, host(), errors=[error(id)])) == ("faulty", ())
    healthy = run(Outcome.PASS, host(), errors=[error(id, severity="warning")])
    assert told(healthy)[0] == "normal", "a warning decides nothing"


@pytest.mark.parametrize(
    "id", ["below-band", "odd-device", "behind-siblings", "slow-link", "throttled"]
)
def test_a_rate_that_is_too_low_is_slow(id: str) -> None:
    assert told(run(Outcome.FAIL, host(), errors=[error(id)]))[0] == "slow"
    both = run(Outcome.FAIL, host(), errors=[error(id), error("wrong-answer")])
    assert told(both)[0] == "faulty", "a wrong answer weighs more than a slow one"


def test_a_number_that_cannot_be_true_says_nothing() -> None:
    assert told(run(Outcome.FAIL, host(), errors=[error("implausible")]))[0] == "cannot tell"
    slow = run(Outcome.FAIL, host(), errors=[error("implausible"), error("below-band")])
    assert told(slow)[0] == "slow"


def test_a_fail_without_an_error_is_not_called_a_number_too_high() -> None:
    """An old run, or one whose findings were lost: nothing says that a number is implausible."""
    view = run(Outcome.FAIL, host())
    assert "no finding says why" in answer_of(view).reason
    assert told(view) == ("cannot tell", ())


def test_what_is_incomplete_or_was_cut_off_cannot_be_told() -> None:
    peak = made.claimed("fp32", 1.2e11, made.CPU)
    for outcome in (Outcome.INCOMPLETE, None):
        assert told(run(outcome, peak, host())) == ("cannot tell", ()), "nothing was decided by it"
    assert told(run(Outcome.MEASURED, peak, host()))[0] == "normal"


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("3 earlier runs on this machine", "3 earlier runs of this machine"),
        ("published for RTX 4090, n = 2", "figures that others published of RTX 4090"),
        ("predicted for RTX 4090", "the data sheet of RTX 4090"),
        ("predicted for RTX 4090, at 300 W", "the data sheet of RTX 4090, at 300 W"),
        ("--min bf16", "your --min bf16"),
        ("the baseline accepted, n = 1", "the baseline accepted"),
    ],
)
def test_what_was_compared_is_what_the_targets_rest_on(source: str, name: str) -> None:
    passed = run(Outcome.PASS, *target(host(1e11), 0.9e11, source))
    assert told(passed) == ("normal", (name,))
    missed = [error("below-band", "point")]
    failed = run(Outcome.FAIL, *target(host(0.5e11), 0.9e11, source), errors=missed)
    assert told(failed) == ("slow", (name,))
    out_of_reach = run(Outcome.PASS, *target(host(0.5e11), 0.9e11, source))
    assert told(out_of_reach) == ("normal", ()), "nothing reached it, so nothing was compared"


@pytest.mark.parametrize("runs", [1, 2])
def test_earlier_runs_that_are_too_few_for_a_target_are_a_reference(runs: int) -> None:
    name = f"{runs} earlier run{'s' * (runs > 1)} of this machine"
    alike = run(Outcome.MEASURED, earlier(1e11, runs), host(1.01e11))
    assert told(alike) == ("normal", (name,))
    within = run(Outcome.MEASURED, earlier(1e11, runs), host(1e11 * (1.0 - 0.9 * MARGIN)))
    assert told(within)[0] == "normal"
    slower = run(Outcome.MEASURED, earlier(1e11, runs), host(1e11 * (1.0 - 1.1 * MARGIN)))
    assert told(slower) == ("cannot tell", (name,))
    assert "slower than before" in answer_of(slower).reason
    noisy = run(Outcome.MEASURED, earlier(1e11, runs), host(0.5e11, disturbed="a neighbour"))
    assert told(noisy) == ("cannot tell", ()), "noise only slows: it says nothing"


def test_an_earlier_run_that_is_noisy_is_not_denied() -> None:
    view = run(Outcome.MEASURED, unjudged(**{NOISY_EARLIER_RUNS: 1}), host())
    assert told(view) == ("cannot tell", ())
    assert "earlier runs of this machine were too noisy" in answer_of(view).reason
    assert "earlier run states these values" in answer_of(run(Outcome.MEASURED, host())).reason


def test_less_time_than_before_is_not_slower() -> None:
    step = host(1.0).replace(metric="time", unit="s")
    for before, word in ((1.3, "normal"), (0.8, "cannot tell")):
        assert told(run(Outcome.MEASURED, earlier(before, 2, step), step))[0] == word


@pytest.mark.parametrize(("share", "word"), [(1.02, "normal"), (0.98, "cannot tell")])
def test_a_processor_is_compared_with_its_computed_peak(share: float, word: str) -> None:
    """The low end of what flags and clock allow: how many units a core has is not known."""
    claim = made.claimed("fp32", 3e11, made.CPU).replace(interval=(1.5e11, 3e11))
    reached = host(1.5e11 * LEAST_OF_COMPUTED_PEAK * share)
    view = run(Outcome.MEASURED, claim, reached)
    assert told(view) == (word, ("the processor's computed peak",))
    noisy = run(Outcome.MEASURED, claim, reached.replace(disturbed="a neighbour"))
    assert told(noisy)[0] == word
    other = reached.replace(case=made.matmul_case("bf16", 2048, cache="hot"))
    assert told(run(Outcome.MEASURED, claim, other)) == ("cannot tell", ())


@pytest.mark.parametrize(("share", "word"), [(1.02, "normal"), (0.98, "cannot tell")])
def test_memory_is_compared_with_its_channels(share: float, word: str) -> None:
    claim = made.claimed_memory(4e10, made.CPU)
    value = 4e10 * LEAST_OF_CHANNELS * share
    stream = made.point("copy", STREAM, value, device=made.CPU, device_index=None)
    assert told(run(Outcome.MEASURED, claim, stream)) == (
        word,
        ("what its memory channels transfer",),
    )


def test_gpus_of_a_model_are_compared_with_each_other() -> None:
    case = made.matmul_case("fp16", 8192, cache="hot")
    cards = [made.point("matmul", case, 1e14, device_index=n, id=f"c{n}") for n in range(4)]
    name = "3 GPUs of its model beside it"
    assert told(run(Outcome.MEASURED, *cards)) == ("normal", (name,))
    assert told(run(Outcome.FAIL, *cards, errors=[error("odd-device")])) == ("slow", (name,))
    assert told(run(Outcome.MEASURED, cards[0])) == ("cannot tell", ())


def test_a_training_is_compared_with_its_prediction() -> None:
    step = made.point("training", {"model": "gpt2"}, 0.2, metric="time", unit="s")
    said = step.replace(id="p", kind=Kind.PREDICTED, interval=(0.1, 0.3), confidence=0.8)
    trained = {"config": {"verb": "train"}}
    assert told(run(Outcome.MEASURED, said, step, **trained))[0] == "normal"
    late = step.replace(value=0.4, interval=(0.39, 0.41))
    assert told(run(Outcome.MEASURED, said, late, **trained))[0] == "cannot tell"


def test_published_figures_are_compared_with_the_data_sheet_alone() -> None:
    case = made.matmul_case("fp16", 8192, cache="hot")
    claim = made.claimed("fp16", 165.2e12)
    for value, word in ((160e12, "normal"), (30e12, "cannot tell")):
        figure = made.point("matmul", case, value, kind=Kind.BASELINE, source="somebody")
        view = run(None, claim, figure, config={"origin": "published figures"})
        assert told(view) == (word, ("the data sheet of RTX 4090",))
    bare = run(None, config={"origin": "published figures"})
    assert told(bare) == ("cannot tell", ())


def test_without_a_reference_nothing_can_be_told() -> None:
    found = answer_of(run(Outcome.MEASURED, host()))
    assert (found.word, found.compared_with) == ("cannot tell", ())
    assert "no data sheet" in found.reason


def test_the_answer_leaves_the_verdict_as_it_is() -> None:
    view = made.cpu_view()
    summary = summarise(view)
    assert summary.verdict == str(view.verdict.outcome)
    assert dataclasses.asdict(summary)["answer"]["word"] == "normal"


def test_earlier_runs_are_named_once_with_the_largest_number() -> None:
    """Points have targets of three runs and references of two: one machine's history."""
    names = ("3 earlier runs of this machine", "2 earlier runs of this machine", "its siblings")
    assert answer._with_runs_once(names) == ("3 earlier runs of this machine", "its siblings")
    assert answer._with_runs_once(("its siblings",)) == ("its siblings",)
