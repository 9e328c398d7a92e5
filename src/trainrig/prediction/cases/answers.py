"""The prediction of a case, how far off it is from what was measured, and its JSON.

Second of the two stages of a case, and pure.  An error is predicted / measured - 1.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from trainrig.errors import TrainrigError
from trainrig.prediction.as_json import layout_dict, verdict_dict
from trainrig.prediction.cases.columns import CaseRow
from trainrig.prediction.cases.complete import Case, complete
from trainrig.prediction.prediction import Prediction, predict
from trainrig.prediction.verdict import DOES_NOT_FIT, FITS


def answer(case: Case) -> Prediction:
    """Return the prediction of a case: that of the same flags."""
    return predict(case.question)


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseErrors:
    """Errors of a prediction against what was measured; None where nothing was."""

    measured_step_s: float | None
    time: float | None
    """Predicted seconds of a step over measured ones, less one."""
    is_inside: bool | None
    """True if the measured time lies in the 80 % interval."""
    memory: float | None


def errors_of(prediction: Prediction, measured: Mapping[str, float]) -> CaseErrors:
    """Compare a prediction with what was measured, by MEASURED's columns."""
    gpus, samples = int(prediction.layout.mesh.gpus), int(prediction.layout.global_batch)
    times: tuple[tuple[str, Callable[[float], float]], ...] = (
        ("measured_step_s", lambda value: value),
        ("measured_tokens_per_s", lambda value: prediction.tokens / value),
        ("measured_tokens_per_s_per_gpu", lambda value: prediction.tokens / (value * gpus)),
        ("measured_samples_per_s", lambda value: samples / value),
    )
    seconds = next((read(measured[name]) for name, read in times if name in measured), None)
    low, high = prediction.interval
    used = measured.get("measured_memory_bytes")
    return CaseErrors(
        measured_step_s=seconds,
        time=None if seconds is None else prediction.time / seconds - 1.0,
        is_inside=None if seconds is None else low <= seconds <= high,
        memory=None if used is None else float(prediction.memory.total) / used - 1.0,
    )


def predict_rows(rows: Sequence[CaseRow], *, simulate: bool = False) -> Iterator[dict[str, Any]]:
    """Yield what ``predict --cases --json`` prints of each row, in order.

    A row whose layout cannot be run has a ``reason`` instead of an answer.
    ``simulate``: with ``simulated_step_time_s``, which a pipeline's ``step_time_s`` is anyway.
    """
    from trainrig.process.pool import ordered_map  # one answer needs no processes, and no numpy

    answers = ordered_map(partial(_answers, simulate=simulate), rows)
    for number, (row, answered) in enumerate(zip(rows, answers, strict=True)):
        yield {"row": number, "id": row.name or None} | answered


def _answers(rows: Sequence[CaseRow], *, simulate: bool) -> list[dict[str, Any]]:
    answered = [_answer(row) for row in rows]
    if simulate:
        return [values | {"simulated_step_time_s": values["step_time_s"]} for values in answered]
    return answered


def _answer(row: CaseRow) -> dict[str, Any]:
    """Return a row's JSON."""
    try:
        case = complete(row)
        return _values(case, answer(case))
    except (TrainrigError, OverflowError) as error:
        return _NOTHING | {"reason": str(error)}
    except Exception as error:  # noqa: BLE001 - whatever one row hits, the others are answered
        return _NOTHING | {"reason": _own_fault(error)}


def _values(case: Case, prediction: Prediction) -> dict[str, Any]:
    errors = errors_of(prediction, case.measured)
    memory = prediction.memory.needed_interval
    return {
        "model": case.question.shape.name,
        "on": prediction.rates.device,
        "layout": layout_dict(prediction.layout),
        "step_time_s": prediction.time,
        "memory_bytes_per_gpu": int(prediction.memory.total),
        **verdict_dict(prediction.verdict),
        "tokens_per_s": prediction.tokens_per_s,
        "tokens_per_s_per_gpu": prediction.tokens_per_s / int(prediction.layout.mesh.gpus),
        "mfu": prediction.mfu,
        "interval": {
            "step_time_s": list(prediction.interval),
            "memory_bytes_per_gpu": [float(end) for end in memory],
        },
        "measured_step_s": errors.measured_step_s,
        "error": errors.time,
        "inside": errors.is_inside,
        "memory_error": errors.memory,
        "presumed": list(case.presumed),
        "remark": _remark(prediction),
        "warnings": list(prediction.warnings),
        "reason": None,
    }


_NOTHING: dict[str, Any] = {
    **dict.fromkeys(("model", "on", "layout", "step_time_s", "memory_bytes_per_gpu")),
    **dict.fromkeys(("verdict", "fits", "close", "tokens_per_s", "tokens_per_s_per_gpu", "mfu")),
    "interval": {"step_time_s": None, "memory_bytes_per_gpu": None},
    **dict.fromkeys(("measured_step_s", "error", "inside", "memory_error")),
    "presumed": [],
    "remark": None,
    "warnings": [],
}


def _remark(prediction: Prediction) -> str | None:
    """Return that the layout needs more than there is, where it does."""
    if prediction.verdict == FITS:
        return None
    if prediction.question.host_verdict == DOES_NOT_FIT:
        return "more than a node's host memory"
    share = float(prediction.memory.total / prediction.rates.memory_bytes)
    return f"{share:.2g} times the memory of {prediction.rates.device}"


def _own_fault(error: Exception) -> str:
    """Return the reason why there is no answer where the fault is ours: what was raised, where."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{Path(place.filename).stem}.{place.name}, line {place.lineno}"
    return f"an error of trainrig itself: {type(error).__name__} in {where} ({str(error)[:80]})"
