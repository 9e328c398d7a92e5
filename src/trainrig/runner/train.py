"""train: one training as a run: checked, bounded, trained in workers, judged.

Before anything is written, the experiment, the model's shape and the data are checked.  Then the
machine is looked at, the fastest matrix product of the same dtype is measured as the ceiling, the
prediction is written, and two fresh workers train: the first all the steps, whose rows become the
run's series as they come; the second the first few again, so that the step's time rests on two
processes.  A batch that does not fit becomes a record, and half of it is tried.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from trainrig.data.batches import Shard
from trainrig.data.manifest import Manifest, read_manifest
from trainrig.data.open_batches import open_batches
from trainrig.data.prepare import MOST_VERIFIED, verify
from trainrig.errors import DataError, UsageError
from trainrig.record import Finding, Kind, Record, Status
from trainrig.runner.interrupt import interrupted_once
from trainrig.runner.progress import Progress, Watcher, nobody
from trainrig.runner.session import Qualification, close_run
from trainrig.runner.train_session import CHECKPOINT, LAYOUT, Session, Trained
from trainrig.store import RunData, create_run, read_run, resume_run
from trainrig.train.config import (
    Experiment,
    check,
    check_compiler,
    from_dict,
    from_run,
    objective_of,
    to_dict,
)
from trainrig.train.layout_check import Layout, asked_of, differences, found_of
from trainrig.workload import ModelShape

MARGIN_NATS = 1.0
"""A model that learned lies this far below the unigram entropy of the held-out text."""
LEARNING_STEPS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is trained, once it has been checked."""

    experiment: Experiment
    shape: ModelShape
    manifest: Manifest


def plan_for(experiment: Experiment) -> Plan:
    """The plan of an experiment.  Raises UsageError or DataError, with nothing written."""
    shape = check(experiment)
    check_compiler(experiment)
    folder = Path(experiment.data)
    for part in ("train", "heldout"):
        open_batches(
            folder,
            part,
            objective_of(shape),
            seq_len=experiment.seq_len,
            shard=Shard(batch=experiment.samples, seed=experiment.seed),
            vocab_size=shape.vocab,
        )
    manifest = read_manifest(folder)
    if manifest.train.num_tokens <= MOST_VERIFIED:
        verify(folder)
    return Plan(experiment=experiment, shape=shape, manifest=manifest)


def experiment_for(
    asked: Mapping[str, Any], resume: Path | None = None, watch: Watcher = nobody
) -> Experiment:
    """The experiment that a person asked for; what is None is left as it usually is.

    Without data, Python's standard library is prepared.  A run that is resumed keeps its own
    experiment: nothing but ``steps`` may be asked for beside it.
    """
    named = {name: value for name, value in asked.items() if value is not None}
    if resume is not None:
        return _resumed(resume, named)
    if "data" not in named:
        from trainrig.data.prepare import prepare

        watch(Progress(text="no --data: Python's standard library is prepared", level="stage"))
        named["data"] = str(prepare().folder)
    named["data"] = str(Path(named["data"]).absolute())  # a run is resumed from anywhere
    return from_dict(named)


def _resumed(path: Path, named: Mapping[str, Any]) -> Experiment:
    if named.keys() - {"steps"}:
        raise UsageError(
            "a run is resumed with its own experiment", "beside --resume only --steps is taken"
        )
    run = read_run(path)
    config, stored = run.config, run.config.get("experiment")
    if config.get("verb") != "train" or not isinstance(stored, Mapping):
        raise UsageError(f"{path} is no run of trainrig train", "name one, or leave --resume out")
    if not (path / CHECKPOINT).exists():
        raise UsageError(f"{path} has no checkpoint", "train from the start")
    experiment = from_run(stored, str(path)).replace(**_batch_that_fitted(run))
    experiment = from_dict({**to_dict(experiment), **named})
    if len(_rows(run)) >= experiment.steps:
        raise UsageError(
            f"the {experiment.steps} steps of {path} are trained", "more of them: --steps"
        )
    if read_manifest(Path(experiment.data)).corpus_sha256 != config.get("corpus_sha256"):
        raise DataError(
            f"{experiment.data} holds another text than {path} was trained on",
            "prepare that text again, or train from the start",
        )
    return experiment


def _batch_that_fitted(run: RunData) -> dict[str, Any]:
    """The last one that was tried: a run's own experiment has the one that was asked for."""
    tried = [r for r in run.records if r.kind is Kind.PREDICTED and r.benchmark == "step"]
    return {"batch_size": tried[-1].case["batch_size"]} if tried else {}


def train(
    experiment: Experiment,
    *,
    device: str | None = None,
    out: Path = Path("runs"),
    resume: Path | None = None,
    watch: Watcher = nobody,
) -> Qualification:
    """Train, measure and judge ``experiment`` in a new run, or go on with the run ``resume``."""
    plan = plan_for(experiment)
    run = resume_run(resume) if resume else create_run(out, "train", _config(plan))
    with run, interrupted_once():
        watch(Progress(text=f"run {run.path}", level="stage"))
        session = Session(run, plan.manifest, watch, resuming=resume is not None)
        trained, interrupted = None, None
        try:
            trained = session.train(experiment, device)
        except KeyboardInterrupt:
            interrupted = "interrupted; trainrig train --resume goes on from the last checkpoint"
        except UsageError:
            if resume is None:
                run.discard()
            raise
        findings = tuple(_findings(plan, trained)) if trained else ()
        return close_run(run, findings, interrupted)


def _config(plan: Plan) -> dict[str, Any]:
    return {
        "trainrig": version("trainrig"),
        "python": sys.version.split()[0],
        "argv": sys.argv[1:],
        "experiment": to_dict(plan.experiment),
        "corpus_sha256": plan.manifest.corpus_sha256,
    }


def _findings(plan: Plan, trained: Trained) -> Iterator[Finding]:
    yield from _failed(trained)
    yield from _too_large(trained)
    yield from _other_layout(trained)
    yield from _learning(plan, trained)


def _failed(trained: Trained) -> Iterator[Finding]:
    record = trained.attempts[-1]
    if record.status is Status.FAILED:
        diverged = "training stopped" in (record.reason or "")
        yield Finding(
            id="diverged" if diverged else "training-failed",
            severity="error",
            evidence=record.reason or "no reason given",
            fix="a lower --lr, or fp32; series/train.jsonl has the steps before"
            if diverged
            else "read the worker's log in the run's logs/ folder",
            records=(record.id,),
        )


def _too_large(trained: Trained) -> Iterator[Finding]:
    refused = [record for record in trained.attempts if record.status is Status.OOM]
    if refused:
        sizes = ", ".join(str(record.case["batch_size"]) for record in refused)
        went_on = trained.attempts[-1].status is not Status.OOM
        yield Finding(
            id="batch-too-large",
            severity="warning" if went_on else "error",
            evidence=f"a batch of {sizes} does not fit: {refused[-1].reason}"
            + (f"; went on with {trained.experiment.batch_size}" if went_on else ""),
            fix="a smaller --batch-size with --grad-accum, --recompute full, or a smaller model",
            records=tuple(record.id for record in refused),
        )


def _other_layout(trained: Trained) -> Iterator[Finding]:
    """What was asked for and is not what the live objects say."""
    if trained.facts is None:
        return
    record = trained.attempts[-1]
    for words in differences(_asked(trained.experiment, record), found_of(trained.facts)):
        yield Finding(
            id="layout-not-as-asked",
            severity="error",
            evidence=words,
            fix="nothing of this training is what its case says",
            records=(record.id,),
        )


def _asked(experiment: Experiment, record: Record) -> Layout:
    """The layout that was asked for, on the device that it ran on."""
    return asked_of(experiment.replace(device="cpu" if record.device_index is None else "cuda"))


def _learning(plan: Plan, trained: Trained) -> Iterator[Finding]:
    """Whether a long enough training beat what knows only how often each token occurs."""
    if trained.heldout_loss is None or trained.experiment.steps < LEARNING_STEPS:
        return
    if objective_of(plan.shape) != "causal" or learned(trained.heldout_loss, plan.manifest):
        return
    yield Finding(
        id="does-not-learn",
        severity="warning",
        evidence=f"after {trained.experiment.steps} steps the held-out loss is "
        f"{trained.heldout_loss:.2f} nats, and the unigram entropy "
        f"{plan.manifest.unigram_entropy_nats:.2f}",
        fix="another --lr, more steps, or look for labels that do not belong to the inputs",
    )


def learned(heldout_loss: float, manifest: Manifest) -> bool:
    """Whether a loss lies clearly below that of a model that knows token frequencies only."""
    return heldout_loss <= manifest.unigram_entropy_nats - MARGIN_NATS


def summary(result: Qualification) -> dict[str, Any]:
    """What ``train --json`` prints last; others script against it."""
    run = read_run(result.run)
    rows = _rows(run)
    points = _latest_points(run.records)

    def value(metric: str) -> float | None:
        return points[metric].value if metric in points else None

    headline, used = points.get("flop_rate"), points.get("energy")
    facts = run.series.get(LAYOUT, ())
    asked = from_dict(run.config["experiment"])
    return {
        "verdict": result.verdict.outcome.value,
        "reason": result.verdict.reason,
        "run": str(result.run),
        "report": str(result.run / "report.html"),
        "findings": [
            {"id": f.id, "severity": f.severity, "evidence": f.evidence, "fix": f.fix}
            for f in result.verdict.findings
        ],
        "backend": asked.backend,
        "case": dict(headline.case) if headline else None,
        "status": headline.status.value if headline else None,
        "disturbed": headline.disturbed if headline else None,
        "layout_asked": _asked(asked, headline) if headline else None,
        "layout_found": found_of(facts[-1]) if facts else None,
        "losses": [row["loss"] for row in rows],
        "grad_norms": [row["grad_norm"] for row in rows],
        "heldout_loss": value("heldout_loss"),
        "step_time_s": value("time"),
        "samples_per_s": value("sample_rate"),
        "tokens_per_s": value("token_rate"),
        "model_flops_per_s_per_device": value("flop_rate"),
        "mfu_of_claim": value("mfu"),
        "mfu_of_measured_matmul": value("mfu_of_matmul"),
        "peak_memory_bytes": value("peak_memory"),
        "devices": list(facts[-1].get("placed", {}).get("devices", ())) if facts else [],
        "energy_j": value("energy"),
        "energy_per_token_j": value("energy_per_token"),
        "mean_power_w": value("power"),
        "energy_source": used.conditions.get("energy_source") if used else None,
        "no_energy_reason": used.reason if used else "nothing was trained",
        "breakdown": {
            name.removeprefix("time."): point.value
            for name, point in points.items()
            if name.startswith("time.")
        },
    }


def _rows(run: RunData) -> list[Mapping[str, Any]]:
    """A row a step; a step that was trained again after a resume counts as it was then."""
    rows = {row["step"]: row for row in run.series.get("train", ())}
    return [rows[step] for step in sorted(rows)]


def _latest_points(records: tuple[Record, ...]) -> dict[str, Record]:
    """The step's points by metric; of several the last."""
    return {
        record.metric: record
        for record in records
        if record.benchmark == "step" and record.is_point and record.kind is Kind.MEASURED
    }
