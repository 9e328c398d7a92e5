"""Layouts ranked by what was measured: shared places, predictions beside, what has no place."""

from __future__ import annotations

from typing import Any

import pytest

from training_summaries import JITTER, printed, results_of, summary
from trainrig.analysis.training_results import TrainingPrediction
from trainrig.analysis.tuning import LayoutRank, rank_layouts
from trainrig.report.tuning_report import tuning_document

MOODS = (1.0, 0.8, 1.1, 0.9, 1.05)
"""What the machine was like in each round, for all that were trained in it."""


def layout(name: str, rate: float, **more: Any) -> dict[str, Any]:
    """Trained in five interleaved rounds, ``rate`` samples a second in the first."""
    shift = hash_of(name)
    rounds = [
        {"step_times_s": [8 / (rate * mood * JITTER[(n + shift) % len(JITTER)])] * 10}
        for n, mood in enumerate(MOODS)
    ]
    return summary(name, 8 / rate, rounds=rounds, **more)


def hash_of(name: str) -> int:
    return sum(map(ord, name))


def ranked(*rows: dict[str, Any], **predicted: float) -> tuple[LayoutRank, ...]:
    forecasts = [
        TrainingPrediction(name=name, step_time_s=seconds) for name, seconds in predicted.items()
    ]
    return rank_layouts(results_of(*rows), forecasts)


def test_the_fastest_is_first_whatever_was_predicted() -> None:
    found = ranked(layout("a", 80.0), layout("b", 100.0), layout("c", 60.0), a=0.05, b=0.12, c=0.13)
    assert [(one.result.name, one.place) for one in found] == [("b", 1), ("a", 2), ("c", 3)]
    assert [one.predicted_place for one in found] == [2, 1, 3]
    assert found[0].error == pytest.approx(0.12 / 0.08 - 1)


def test_what_cannot_be_told_apart_shares_a_place() -> None:
    """The third is clearly slower than both; of the fourth and it nobody can tell."""
    found = ranked(layout("a", 100.0), layout("b", 100.1), layout("c", 50.0), layout("d", 50.05))
    assert sorted((one.result.name, one.place) for one in found) == [
        ("a", 1),
        ("b", 1),
        ("c", 3),
        ("d", 3),
    ]
    assert [one.tied for one in found] == [False, True, False, True]
    tied = found[1].speedup
    assert tied is not None and tied.low is not None and tied.low < 1.0 < (tied.high or 0.0)
    text = printed(tuning_document(found), 100)
    assert "1=" in text and "cannot tell" in text and "more --rounds" in text


def test_twins_are_told_apart_where_they_differ() -> None:
    """The healthy twin of a tie: five percent, in the same moods."""
    found = ranked(layout("a", 100.0), layout("b", 95.0))
    assert [one.place for one in found] == [1, 2] and not any(one.tied for one in found)


def test_another_batch_is_compared_by_samples() -> None:
    big = layout("big", 100.0) | {"step_time_s": 0.16, "samples_per_s": 100.0}
    found = ranked(big, layout("small", 60.0), big=0.2, small=0.12)
    assert found[0].result.name == "big" and found[0].predicted_place == 1


def test_what_differs_or_broke_has_no_place_and_says_why() -> None:
    broken = layout("fast", 500.0, row_verdict="DIFFERS", parity={"not_comparable": "loss of step"})
    skipped = layout("gpu", 1.0, row_verdict="skipped", reason="needs CUDA")
    found = ranked(broken, skipped, layout("a", 100.0))
    assert [(one.result.name, one.place) for one in found] == [
        ("a", 1),
        ("fast", None),
        ("gpu", None),
    ]
    text = printed(tuning_document(found, ["left"]), 80)
    joined = " ".join(text.split())
    assert "DIFFERS: loss of step" in joined and "needs CUDA" in joined
    assert "not trained: left" in text
    assert found[1].to_dict()["reason"] == "loss of step"


def test_without_any_there_is_nothing() -> None:
    assert ranked() == ()
