"""Runs whose points are known, to be compared with each other."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterable, Sequence
from typing import Any

from training_summaries import printed
from trainrig.analysis.compare import RunComparison, to_dict
from trainrig.record import Case, Derivation, Kind, Record, RunView
from trainrig.report.compare_report import comparison_document
from trainrig.report.render.markdown import to_markdown
from trainrig.stats import Change

AMOUNT = 1e12


def matmul(size: int, dtype: str = "bf16") -> Case:
    return {"dtype": dtype, "m": size, "k": size, "n": size, "cache": "hot"}


def point(
    case: Case, rates: Sequence[float], *, metrics: Iterable[str] = ("flop_rate",), **fields: Any
) -> list[Record]:
    """Attempts with these rates, and the points they settle on."""
    common: dict[str, Any] = {"kind": Kind.MEASURED, "benchmark": "matmul", "case": case}
    common |= {"device": "RTX 4090", "device_index": 0}
    disturbed = fields.pop("disturbed", None)
    common |= fields
    attempts = [
        Record(**common, metric="time", unit="s", value=AMOUNT / rate, attempt=number)
        for number, rate in enumerate(rates, start=1)
    ]
    derived = Derivation(ids=tuple(attempt.id for attempt in attempts), formula="f")
    units = {"flop_rate": "FLOP/s", "byte_rate": "B/s", "time": "s"}
    value = sum(rates) / max(len(rates), 1)
    return attempts + [
        Record(
            **common,
            metric=metric,
            unit=units[metric],
            value=AMOUNT / value if metric == "time" else value,
            derived=derived,
            disturbed=disturbed,
        )
        for metric in metrics
    ]


def run(*points: list[Record], name: str = "run", **fields: Any) -> RunView:
    return RunView(name=name, records=tuple(record for each in points for record in each), **fields)


def near(rate: float, seed: int, scatter: float = 0.002) -> tuple[float, float]:
    rng = random.Random(seed)
    return rate * math.exp(rng.gauss(0, scatter)), rate * math.exp(rng.gauss(0, scatter))


def changes(comparison: RunComparison) -> dict[object, Change]:
    return {
        (each.pair.record.case.get("m"), each.pair.record.device_index): each.change
        for each in comparison.judged
    }


def reasons(comparison: RunComparison) -> list[str]:
    return [each.reason for each in comparison.unjudged]


def show(comparison: RunComparison, width: int = 80) -> str:
    document = comparison_document(comparison)
    to_markdown(document)
    json.dumps(to_dict(comparison), allow_nan=False)
    return printed(document, width)
