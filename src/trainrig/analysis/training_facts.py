"""The facts of a training as a run stores them: conditions of its records, rows of its steps.

The facts are its records of benchmark ``training``: a number each, and on the one of metric
``time`` the conditions, flat (``layout_found.zero``).  What it computed in each step is in the
series ``steps-…``, whose rows name their training.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trainrig.benchmarks.training import BENCHMARK as TRAINING
from trainrig.benchmarks.training import WARM_UP
from trainrig.errors import DataError
from trainrig.process.events import OTHER, PARTS
from trainrig.process.lost_ranks import final_rows
from trainrig.record import Kind, Record, RunView, Scalar, Status

Rows = Sequence[Mapping[str, Any]]
BENCHMARK = TRAINING.name
BREAKDOWN = (*PARTS, OTHER)
_OLDER = "communication"
"""A part of earlier versions, whose ranks timed their waits (now: `TrainingResult.profiled`)."""
_VERDICT = "row_verdict"
"""The condition that a training's record has, and one of an older run has not."""
RETRIED_BATCH = "went_on"
"""The condition of one that did not fit: the batch size that was tried next."""
SOFTWARE = "software_found"
TRACES = "traces"
"""The condition with the paths of the traces that ranks kept, in the run's folder."""
FACTS = (
    *("layout_asked", "layout_found", "wrong_layout", "parity", "straggler", "unigram_entropy"),
    *("profiled", "rounds", "devices", "memory_by_rank", "needs_gpu", "restarts"),
)
"""Groups of conditions that the tables and the findings of trainings show."""


def trainings(view: RunView) -> tuple[Mapping[str, Record], ...]:
    """Return the last records of each experiment on its device, by metric."""
    records_by_training: dict[object, dict[str, Record]] = {}
    for record in view.records:
        if record.benchmark != BENCHMARK or record.kind is not Kind.MEASURED:
            continue
        key = record.case.get("experiment"), record.device_index
        if record.metric != "time" and key in records_by_training:
            records_by_training[key][record.metric] = record
        elif _VERDICT in record.conditions and RETRIED_BATCH not in record.conditions:
            records_by_training[key] = {"time": record}
    return tuple(records_by_training.values())


def retried_batches(view: RunView) -> list[Record]:
    """Return trainings whose batch did not fit, and which went on with a smaller one."""
    return [r for r in view.records if r.benchmark == BENCHMARK and RETRIED_BATCH in r.conditions]


_OF_METRIC = {
    "step_time_s": "time",
    "samples_per_s": "sample_rate",
    "tokens_per_s": "token_rate",
    "model_flops_per_s_per_device": "flop_rate",
    "hardware_flops_per_s_per_device": "hardware_flop_rate",
    "mfu": "mfu",
    "hfu": "hfu",
    "mfu_of_measured_matmul": "mfu_of_matmul",
    "peak_memory_bytes": "peak_memory",
    "reserved_memory_bytes": "reserved_memory",
    "heldout_loss": "heldout_loss",
    "energy_j": "energy",
    "energy_per_token_j": "energy_per_token",
    "mean_power_w": "power",
}


def summary_of_records(view: RunView, records: Mapping[str, Record]) -> dict[str, Any]:
    """Return the fields of a result, of its records and the steps that they name."""
    time, energy = records["time"], records.get("energy", records["time"])
    facts = {**nested(time.conditions), **nested(energy.conditions)}
    requested = _requested(view, time.case)
    rounds = _listed(facts.get("rounds"))
    steps = [_steps(view, str(training_round.get("training_id"))) for training_round in rounds]
    first = steps[0] if steps else ()
    trained = list(itertools.takewhile(lambda row: plausible(row.get("loss")) is not None, first))
    values = {metric: record.value for metric, record in records.items()}
    limit = records["flop_rate"].limit if "flop_rate" in records else None
    parity = {**facts.get("parity", {})}
    for name in ("losses", "grad_norms"):
        parity[name] = [plausible(value) for value in _listed(parity.get(name))]
    return {
        **facts,
        **{field: values.get(metric) for field, metric in _OF_METRIC.items()},
        "framework": time.case.get("framework"),
        "model": time.case.get("model"),
        "batch_size": time.case.get("batch_size"),
        "batch_size_asked": "auto" if requested.get("auto_batch") else requested.get("batch_size"),
        "settings": {
            **{name: value for name, value in requested.items() if name not in _NO_SETTING},
            "data": os.path.basename(str(requested.get("data", ""))),
            "batch_size": time.case.get("batch_size"),
            "steps": facts.get("steps"),
        },
        "losses": [row["loss"] for row in trained],
        "grad_norms": [plausible(row.get("grad_norm")) for row in trained],
        "step_times_s": time.samples or (),
        "rounds": [
            {
                "step_times_s": [row.get("time") for row in steps_after_warm_up(rows)],
                "disturbed": training_round.get("disturbed"),
            }
            for training_round, rows in zip(rounds, steps, strict=True)
        ],
        "breakdown": {
            part: values.get(f"time.{part}")
            for part in (*BREAKDOWN, _OLDER)
            if trained and (part in BREAKDOWN or f"time.{part}" in values)
        },
        "parity": parity,
        "record": time.id,
        "peak_flops_per_s_claimed": limit.value if limit else None,
        "peak_source": limit.source if limit else None,
        "no_mfu_reason": None if limit else _why_no_share(time),
        "energy_interval_j": energy.interval if energy is not time else None,
        "no_energy_reason": energy.reason if energy is not time else NOTHING_TRAINED,
        "status": time.status.value,
        "reason": time.reason,
        "disturbed": time.disturbed,
    }


_NO_SETTING = {"name", "auto_batch", "python", "rounds"}
"""Keys that tell one training from another and change nothing in it."""
NOTHING_TRAINED = "nothing was trained"


LARGEST = 1e25
"""Numbers of a training beyond it are none: quotients have ends."""


def plausible(value: float | None) -> float | None:
    """Return a number that a diverging training's quotients can be made of; None for others."""
    return value if value is not None and abs(value) <= LARGEST else None


def _why_no_share(time: Record) -> str | None:
    if time.status is not Status.OK:
        return time.reason
    where = "CPU" if time.conditions.get("layout_asked.device") == "cpu" else "device"
    return f"no {time.case.get('precision')} peak is claimed for this {where}"


def _requested(view: RunView, case: Mapping[str, Scalar]) -> Mapping[str, Any]:
    """Return the experiment as it was resolved; a qualification's says no more than its case."""
    stored = view.config.get("experiments")
    for row in stored if isinstance(stored, list | tuple) else ():
        if isinstance(row, Mapping) and row.get("name") == case.get("experiment"):
            return row
    return {name: value for name, value in case.items() if name != "experiment"}


def _steps(view: RunView, training_id: str) -> Rows:
    """Return the rows of one training, in their order; what was trained again stands once."""
    return final_rows(
        [
            row
            for name, rows in view.series.items()
            if name.startswith(STEPS)
            for row in rows
            if row.get("training_id") == training_id
        ]
    )


STEPS = "steps-"
"""Prefix of the names of series that hold a training step by step."""


def steps_after_warm_up(rows: Rows) -> Rows:
    """Return all but the first steps, where there are enough."""
    return rows[min(WARM_UP, max(0, len(rows) - 1)) :]


def flat(facts: Mapping[str, Any]) -> dict[str, Scalar]:
    """Return conditions of a record, such as ``layout_found.zero``; `nested` undoes it."""
    return dict(_leaves("", facts))


def _leaves(path: str, value: Any) -> Iterator[tuple[str, Scalar]]:
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from _leaves(f"{path}.{name}" if path else name, item)
    elif isinstance(value, list | tuple) and value:
        yield from _leaves(path, {str(number): item for number, item in enumerate(value)})
    else:
        yield path, _EMPTY if value in ((), []) else value


_EMPTY = "[]"
"""A list that has nothing in it."""


def nested(conditions: Mapping[str, Scalar]) -> dict[str, Any]:
    """Return the groups and lists that `flat` made flat."""
    groups_by_name: dict[str, Any] = {}
    for path, value in conditions.items():
        *groups, name = path.split(".")
        group = groups_by_name
        for group_name in groups:
            if not isinstance(group.setdefault(group_name, {}), dict):
                raise DataError(f"the condition {path} is of something that is no group")
            group = group[group_name]
        group[name] = value
    return {name: _with_lists(value) for name, value in groups_by_name.items()}


def _with_lists(value: Any) -> Any:
    """Return groups whose names are places as lists."""
    if not isinstance(value, dict):
        return [] if value == _EMPTY else value
    items = {name: _with_lists(item) for name, item in value.items()}
    return list(items.values()) if all(name.isdecimal() for name in items) else items


def _listed(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
