"""From the outcome of an experiment to records, a series of its steps and one JSON object.

The benchmark is ``training``: whole steps of a model by some framework on some layout.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainrig.analysis import training_results
from trainrig.analysis.compare_training import speedups
from trainrig.analysis.trained import Trained, device_words, memory_by_rank, rates_of, shares_of
from trainrig.benchmarks.training import BENCHMARK as TRAINING
from trainrig.process.events import COMMUNICATION, OTHER, PARTS
from trainrig.record import Case, Kind, Record, Status, Verdict
from trainrig.runner import energy
from trainrig.runner.targets import Target
from trainrig.runner.view import view_of
from trainrig.store import read_run
from trainrig.train.config import Experiment, case_of, settings_of

BREAKDOWN = (*PARTS, COMMUNICATION, OTHER)
_PARTS = (*PARTS, COMMUNICATION, OTHER)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcomes:
    """A run of trainings, judged."""

    run: Path
    verdict: Verdict
    trained: tuple[Trained, ...]
    interrupted: bool


def slug_of(name: str) -> str:
    """A name as part of a file's name."""
    return re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-").lower()[:40] or "experiment"


def step_row(event: Mapping[str, Any], number: int) -> dict[str, Any]:
    """A step as the series ``steps-<slug>`` has it; ``number``: of the round."""
    seconds, tokens = event.get("time"), event.get("tokens")
    return {
        "step": event["step"],
        "round": number,
        "loss": event.get("loss"),
        "grad_norm": event.get("grad_norm"),
        "time": seconds,
        "tokens": tokens,
        "tokens_per_s": tokens / seconds if seconds and tokens else None,
        "lr": event.get("lr"),
        "parts": {name: event[name] for name in _PARTS if name in event},
        "overlapped": event.get("overlapped"),
        "at": event.get("at"),
    }


def _why_no_share(trained: Trained) -> str | None:
    if trained.status is not Status.OK:
        return trained.reason
    own = trained.experiment
    where = "CPU" if own.device == "cpu" else "device"
    return None if trained.peak else f"no {own.precision} peak is claimed for this {where}"


def records_of(trained: Trained, target: Target, data_hash: str, environment: str) -> list[Record]:
    """A point for each number; one without a value says why there is none."""
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
        conditions=_conditions(trained),
    )
    if trained.status is not Status.OK:
        return [base]
    values = [(name, unit, value) for name, unit, value in _values(trained) if value is not None]
    more = [
        base.replace(
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
    return [base, *(record.replace(samples=None) for record in more), *_energy(trained, base)]


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


def _energy(trained: Trained, base: Record) -> list[Record]:
    used, steps = trained.energy
    return energy.records_of(base, used, steps, steps * _tokens(trained.experiment))


def _tokens(own: Experiment) -> int:
    """Of one step, on all ranks."""
    return own.global_samples * own.seq_len


def _conditions(trained: Trained) -> Case:
    """Versions and devices as the ranks reported them, and the load when the training began."""
    known = {
        "devices": device_words(trained.devices),
        "cuda_visible_devices": trained.result.visible,
        "load_average": trained.load,
    }
    parts = {f"time.{part}": trained.mean(part) for part in BREAKDOWN} if trained.rows else {}
    known |= parts
    return {**trained.software, **{name: v for name, v in known.items() if v is not None}}


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


def summary_of(trained: Trained) -> dict[str, Any]:
    """One experiment as ``--json`` prints it; others script against it."""
    own, rows = trained.experiment, trained.result.rows
    used, steps = trained.energy
    rates = rates_of(trained)
    probe, shares = trained.result.probe, shares_of(trained)
    return {
        "name": own.name,
        "framework": own.framework,
        "model": own.model,
        "batch_size": own.batch_size,
        "batch_size_asked": "auto" if trained.auto_batch else own.batch_size,
        "settings": settings_of(own),
        "layout_asked": trained.requested,
        "layout_found": trained.found,
        "software_found": trained.software,
        "losses": [row["loss"] for row in rows],
        "grad_norms": [row["grad_norm"] for row in rows],
        "heldout_loss": trained.result.heldout_loss,
        "step_time_s": trained.mean("time"),
        "step_times_s": [row["time"] for row in trained.rows],
        "rounds": [
            {"step_times_s": [row["time"] for row in each.rows], "disturbed": each.disturbed}
            for each in trained.rounds
        ],
        "samples_per_s": rates.get("sample_rate"),
        "tokens_per_s": rates.get("token_rate"),
        "model_flops_per_s_per_device": rates.get("flop_rate"),
        "hardware_flops_per_s_per_device": rates.get("hardware_flop_rate"),
        "mfu": shares.get("mfu"),
        "hfu": shares.get("hfu"),
        "mfu_of_measured_matmul": shares.get("mfu_of_matmul"),
        "peak_flops_per_s_claimed": trained.peak.value if trained.peak else None,
        "peak_source": trained.peak.source if trained.peak else None,
        "no_mfu_reason": _why_no_share(trained),
        "peak_memory_bytes": trained.result.memory,
        "reserved_memory_bytes": trained.result.reserved,
        "memory_by_rank": memory_by_rank(trained.result),
        "devices": [dict(each) for each in trained.devices],
        "cuda_visible_devices": trained.result.visible,
        **energy.summary_of(used, steps * _tokens(own)),
        "breakdown": {part: trained.mean(part) for part in BREAKDOWN} if rows else {},
        "overlapped_communication_s": trained.mean("overlapped") if rows else None,
        "parity": {
            "losses": list(probe.losses) if probe else [],
            "grad_norms": list(probe.grad_norms) if probe else [],
            "compared": trained.compared,
            "not_comparable": trained.apart,
        },
        "load_average": trained.load,
        "disturbed": trained.disturbed,
        "status": trained.status.value,
        "reason": trained.reason,
        "row_verdict": trained.word,
    }


def summary(outcomes: Outcomes) -> dict[str, Any]:
    """What ``train --json`` prints last: a list, and a single experiment flat beside it."""
    view = view_of(read_run(outcomes.run))
    experiments = list(training_results.stored(view.series))
    compared = [dataclasses.asdict(each) for each in speedups(training_results.readable(view))]
    return {
        **(experiments[0] if len(experiments) == 1 else {}),
        "verdict": outcomes.verdict.outcome.value,
        "verdict_reason": outcomes.verdict.reason,
        "run": str(outcomes.run),
        "report": str(outcomes.run / "report.html"),
        "published": [dataclasses.asdict(f) for f in training_results.published_figures(view)],
        "predicted": [dataclasses.asdict(p) for p in training_results.predictions(view)],
        "findings": [
            {"id": f.id, "severity": f.severity, "evidence": f.evidence, "fix": f.fix}
            for f in outcomes.verdict.findings
        ],
        "experiments": experiments,
        **({"comparisons": compared} if len(experiments) != 1 else {}),
    }
