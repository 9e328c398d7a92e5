"""From the outcome of an experiment to its records, and to a row for each of its steps.

The benchmark is ``training``: whole steps of a model by some framework on some layout.
`analysis.training_results` reads both.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from typing import Any

from trainrig.analysis import training_results
from trainrig.analysis.compare_training import speedups
from trainrig.analysis.trained import Trained, rates_of, shares_of
from trainrig.analysis.training_facts import BREAKDOWN, GONE_ON, flat
from trainrig.benchmarks.training import BENCHMARK as TRAINING
from trainrig.record import Kind, Record, Status
from trainrig.runner import energy
from trainrig.runner.targets import Target
from trainrig.runner.view import RunOutcome, view_of
from trainrig.store import read_run
from trainrig.train.config import case_of
from trainrig.units import ranges


def slug_of(name: str) -> str:
    """A name as part of a file's name."""
    return re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-").lower()[:40] or "experiment"


def step_row(event: Mapping[str, Any], number: int, training_id: str) -> dict[str, Any]:
    """A step as the series ``steps-<slug>`` has it; ``number``: of the round."""
    seconds, tokens = event.get("time"), event.get("tokens")
    return {
        "step": event["step"],
        "round": number,
        "training_id": training_id,
        "loss": event.get("loss"),
        "grad_norm": event.get("grad_norm"),
        "time": seconds,
        "tokens": tokens,
        "tokens_per_s": tokens / seconds if seconds and tokens else None,
        "lr": event.get("lr"),
        "parts": {name: event[name] for name in BREAKDOWN if name in event},
        "overlapped": event.get("overlapped"),
        "at": event.get("at"),
    }


def records_of(
    trained: Trained,
    target: Target,
    data_hash: str,
    environment: str,
    went_on: int | None = None,
) -> list[Record]:
    """A point for each number; one without a value says why there is none.

    The first, of the time, has what else is known.  ``went_on``: the batch that was tried next.
    """
    times = tuple(float(row["time"]) for row in trained.rows)
    base = Record(
        kind=Kind.MEASURED,
        benchmark=TRAINING.name,
        version=TRAINING.version,
        case=case_of(trained.experiment, data_hash),
        metric="time",
        unit="s",
        value=trained.mean("time") if trained.status is Status.OK else None,
        samples=times or None,
        status=trained.status,
        reason=trained.reason,
        device=target.name,
        device_index=target.index,
        device_count=trained.experiment.mesh.ranks,
        environment=environment,
        duration=trained.duration,
        disturbed=trained.disturbed if trained.status is Status.OK else None,
        interval=_interval(trained),
        conditions=flat(_facts(trained) | ({GONE_ON: went_on} if went_on else {})),
    )
    if trained.status is not Status.OK:
        return [base]
    bare = base.replace(samples=None, conditions={})
    values = [(name, unit, value) for name, unit, value in _values(trained) if value is not None]
    more = [
        bare.replace(
            id=f"{base.id[:8]}{number:04x}",
            metric=name,
            unit=unit,
            value=value,
            interval=_ends(trained, value) if name in _RATES or name in _SHARES else None,
            disturbed=None if unit == "nat" else base.disturbed,
            limit=trained.peak if name == "flop_rate" else None,
        )
        for number, (name, unit, value) in enumerate(values)
    ]
    used, steps = trained.energy
    tokens = trained.experiment.global_samples * trained.experiment.seq_len
    return [base, *more, *energy.records_of(bare, used, steps, steps * tokens)]


def _interval(trained: Trained) -> tuple[float, float] | None:
    combined = trained.combined
    if trained.status is not Status.OK or combined is None:
        return None
    value = trained.mean("time") or combined.value
    low, high = combined.interval.low, combined.interval.high
    return min(low, value), max(high, value)


def _ends(trained: Trained, value: float | None) -> tuple[float, float] | None:
    """The interval of a rate: the longest time is the lowest."""
    seconds, interval = trained.mean("time"), _interval(trained)
    if not seconds or interval is None or value is None:
        return None
    return value * seconds / interval[1], value * seconds / interval[0]


def _facts(trained: Trained) -> dict[str, Any]:
    """What its ranks told, how it was judged, and the machine's load when it began."""
    probe = trained.result.probe
    return {
        "row_verdict": trained.word,
        "steps": trained.experiment.steps,
        "layout_asked": trained.requested,
        "layout_found": trained.found,
        "software_found": trained.software,
        "parity": {
            "compared": trained.compared,
            "not_comparable": trained.apart,
            "losses": probe.losses if probe else (),
            "grad_norms": probe.grad_norms if probe else (),
        },
        "rounds": [
            {"training_id": each.training_id, "disturbed": each.disturbed}
            for each in trained.rounds
        ],
        "devices": [
            {**each, "cores": ranges(each["cores"])} if each.get("cores") else each
            for each in trained.devices
        ],
        "memory_by_rank": [
            {
                "rank": each["rank"],
                "device": each["device"],
                "allocated_bytes": each["allocated"],
                "reserved_bytes": each["reserved"],
            }
            for each in trained.result.memories
        ],
        "cuda_visible_devices": trained.result.visible,
        "load_average": trained.load,
    }


_RATES = {
    "sample_rate": "sample/s",
    "token_rate": "token/s",
    "flop_rate": "FLOP/s",
    "hardware_flop_rate": "FLOP/s",
}
_SHARES = ("mfu", "hfu", "mfu_of_matmul")


def _values(trained: Trained) -> Iterator[tuple[str, str, float | None]]:
    for name, value in rates_of(trained).items():
        yield name, _RATES[name], value
    for name, value in shares_of(trained).items():
        yield name, "1", value
    for part in BREAKDOWN:
        yield f"time.{part}", "s", trained.mean(part)
    yield "time.overlapped", "s", trained.mean("overlapped")
    yield "peak_memory", "B", trained.result.memory
    yield "reserved_memory", "B", trained.result.reserved
    yield "heldout_loss", "nat", trained.result.heldout_loss
    for name, row in (("first_loss", 0), ("train_loss", -1)):
        yield name, "nat", trained.result.rows[row]["loss"] if trained.result.rows else None


def summary(outcome: RunOutcome) -> dict[str, Any]:
    """What ``train --json`` prints last: a list, and a single experiment flat beside it."""
    view = view_of(read_run(outcome.run))
    results = training_results.results(view)
    experiments = [training_results.as_json(result) for result in results]
    compared = [dataclasses.asdict(each) for each in speedups(results)]
    head = outcome.to_dict()
    return {
        **(experiments[0] if len(experiments) == 1 else {}),
        "verdict_reason": head.pop("reason"),
        **head,
        "published": [dataclasses.asdict(f) for f in training_results.published_figures(view)],
        "predicted": [dataclasses.asdict(p) for p in training_results.predictions(view)],
        "experiments": experiments,
        **({"comparisons": compared} if len(experiments) != 1 else {}),
    }
