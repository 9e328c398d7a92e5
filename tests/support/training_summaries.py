"""Summaries of trainings as ``train --json`` prints them, and runs that hold them."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console

from trainrig.analysis.judge_training import judge_trainings
from trainrig.analysis.training_results import TrainingResult, as_json, results
from trainrig.record import Finding, RunView
from trainrig.report.document import Document
from trainrig.report.render.terminal import print_document
from trainrig.runner.targets import Target
from trainrig.runner.train_records import Launch, Trained, records_of, step_row
from trainrig.train.config import Experiment, to_dict
from trainrig.train.engines import Result

JITTER = (1.0, 1.004, 0.997, 1.002, 0.999, 1.001, 0.998, 1.003)


def summary(name: str, seconds: float, **changes: Any) -> dict[str, Any]:
    """As ``train --json`` prints one: 8 samples a step."""
    return {
        "name": name,
        "framework": "native",
        "model": "gpt2",
        "batch_size": 4,
        "layout_asked": {"ranks": 2, "zero": 0},
        "layout_found": None,
        "losses": [9.0, 8.0],
        "grad_norms": [1.0, 1.0],
        "step_time_s": seconds,
        "step_times_s": [seconds * factor for factor in JITTER],
        "samples_per_s": 8 / seconds,
        "peak_memory_bytes": 1e6,
        "breakdown": {},
        "disturbed": None,
        "reason": None,
        "parity": {"not_comparable": None},
        "row_verdict": "agreed",
    } | changes


def training_view(*rows: dict[str, Any], **fields: Any) -> RunView:
    """A run of these experiments."""
    fields = {
        "name": "run",
        "config": {"experiments": [{"name": r["name"]} for r in rows]},
    } | fields
    return RunView(series={"experiments": rows}, **fields)


def results_of(*rows: dict[str, Any]) -> tuple[TrainingResult, ...]:
    """Summaries as they are read from a run."""
    return results(training_view(*rows))


def trained_once(experiment: Experiment, result: Result | None = None, **more: Any) -> Trained:
    """An experiment that was trained once, with that result; ``more`` of its one launch."""
    known = {name: more.pop(name) for name in ("used", "devices") if name in more}
    launch = Launch(result=result or Result(), **known)
    return Trained(experiment=experiment, rounds=[launch], **more)


def stored_view(*trained: Trained) -> RunView:
    """A run of these, as its records and the steps of each have it."""
    target = Target(torch_device="cpu", name="a CPU", index=None, memory_bytes=0, chip=None)
    records = [record for each in trained for record in records_of(each, target, "0" * 64, "")]
    series = {
        f"steps-{number}": tuple(
            step_row(row, 1, launch.training_id)
            for launch in each.rounds
            for row in launch.result.rows
        )
        for number, each in enumerate(trained)
    }
    experiments = [to_dict(each.experiment) for each in trained]
    return RunView(
        name="run", config={"experiments": experiments}, records=tuple(records), series=series
    )


def summary_of(trained: Trained) -> dict[str, Any]:
    """As ``train --json`` prints what its records and steps say."""
    return as_json(results(stored_view(trained))[0])


def findings_of(*trained: Trained) -> tuple[Finding, ...]:
    """What is wrong with these, by their records."""
    return judge_trainings(stored_view(*trained)).findings


def printed(document: Document, width: int = 120, encoding: str = "utf-8") -> str:
    """A document as the terminal shows it, without the blanks at the ends of lines."""
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="strict")
    print_document(document, Console(file=stream, width=width))
    stream.seek(0)
    return "\n".join(line.rstrip() for line in stream.read().splitlines())
