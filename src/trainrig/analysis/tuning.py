"""Layouts of one training in the order of their measured speed, each beside its prediction.

A place is shared where the measurement cannot tell two layouts apart.  The fastest is compared with
all others at once (`compare_training.against`: interleaved rounds, where there are three); whatever
is not clearly slower shares its place.  The fastest of the rest is then compared with what is left,
and so on.  Layouts that broke, differ from one process or were skipped have no place and say why.
Predictions are those that were written before anything ran; they decide nothing here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from trainrig.analysis.compare_training import Speedup, compare_with
from trainrig.analysis.training_results import TrainingPrediction, TrainingResult
from trainrig.stats import Change


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutRank:
    """Rank of one layout."""

    result: TrainingResult
    place: int | None
    """Place from 1, shared by layouts that cannot be told apart; None: not ranked."""
    speedup: Speedup | None
    """Against the first of its place; None for that one itself, and without a place."""
    predicted: TrainingPrediction | None
    predicted_place: int | None
    """By the predicted time of a sample, among those that have one."""

    @property
    def tied(self) -> bool:
        """True where the layout shares its place with a faster one."""
        return self.speedup is not None

    @property
    def error(self) -> float | None:
        """Predicted over measured time of a step, less 1."""
        step = self.result.timing.step_time_s
        time = self.predicted.step_time_s if self.predicted else None
        return time / step - 1.0 if time and step else None

    def to_dict(self) -> dict[str, Any]:
        """Return the object for ``--json``."""
        result, forecast = self.result, self.predicted
        low, high = None, None
        if forecast is not None and forecast.step_time_interval_s is not None:
            low, high = forecast.step_time_interval_s
        return {
            "place": self.place,
            "name": result.name,
            "framework": result.framework,
            "row_verdict": result.row_verdict,
            "reason": result.problem,
            "step_time_s": result.timing.step_time_s,
            "samples_per_s": result.throughput.samples_per_s,
            "tokens_per_s": result.throughput.tokens_per_s,
            "peak_memory_bytes": result.memory.peak_bytes,
            "against": asdict(self.speedup) if self.speedup else None,
            "predicted_place": self.predicted_place,
            "predicted_step_time_s": forecast.step_time_s if forecast else None,
            "predicted_step_time_interval_s": None if low is None else [low, high],
            "prediction_error": self.error,
        }


def rank_layouts(
    results: Sequence[TrainingResult], predictions: Sequence[TrainingPrediction]
) -> tuple[LayoutRank, ...]:
    """Return all results, the fastest first; those without a place last, in their order."""
    forecasts = {forecast.name: forecast for forecast in predictions if forecast.step_time_s}
    times = {
        result.name: _per_sample(result, forecasts[result.name])
        for result in results
        if result.name in forecasts
    }
    by_time = sorted((name for name in times if times[name]), key=lambda name: times[name] or 0.0)
    ranked = [result for result in results if result.passed and result.throughput.samples_per_s]
    ranked.sort(key=lambda result: -(result.throughput.samples_per_s or 0.0))
    placed: list[LayoutRank] = []

    def stand(result: TrainingResult, place: int | None, speedup: Speedup | None) -> None:
        placed.append(
            LayoutRank(
                result=result,
                place=place,
                speedup=speedup,
                predicted=forecasts.get(result.name),
                predicted_place=by_time.index(result.name) + 1 if result.name in by_time else None,
            )
        )

    unplaced = ranked
    while unplaced:
        first, place = unplaced[0], len(ranked) - len(unplaced) + 1
        compared = compare_with(first, unplaced[1:])
        stand(first, place, None)
        slower = [speedup.change is Change.WORSE for speedup in compared]
        for result, speedup, is_slower in zip(unplaced[1:], compared, slower, strict=True):
            if not is_slower:
                stand(result, place, speedup)
        unplaced = [
            result for result, is_slower in zip(unplaced[1:], slower, strict=True) if is_slower
        ]
    for result in results:
        if result not in ranked:
            stand(result, None, None)
    return tuple(placed)


def _per_sample(result: TrainingResult, forecast: TrainingPrediction) -> float | None:
    """Return the seconds of a sample: layouts may have different batch sizes."""
    if not (result.throughput.samples_per_s and result.timing.step_time_s and forecast.step_time_s):
        return None
    return forecast.step_time_s / (result.throughput.samples_per_s * result.timing.step_time_s)
