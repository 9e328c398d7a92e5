"""The worker's side of training: a process that trains and tells of each step.

Started as ``python -m trainrig.train.serve DEVICE``; it speaks what `measure.serve` speaks.  A
request's ``extra`` holds the whole experiment (``experiment``), where to save and to resume
(``checkpoint``, ``resume``), whether its layout is looked at (``look``), and how many steps to
train here (``stop``, for a worker that measures only); without ``stop`` it trains until ``steps``
are done, and with a ``max_time`` in the settings until that time is over.  ``must_learn``: a loss
that does not fall is a wrong answer.

Each step is told at once, so that a crash, a lack of memory or a NaN costs no step that was done.
The reply's samples are the times of the steps behind the first ones, in which memory and kernels
settle.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainrig.benchmarks.training import OTHER, PARTS
from trainrig.measure import noise
from trainrig.measure.worker_main import Parent, serve
from trainrig.process.child import tune_malloc
from trainrig.record import WRONG_ANSWER, Scalar, Status
from trainrig.stats import median
from trainrig.train.config import Experiment, check, from_dict
from trainrig.train.native.peak_memory import memory_before, peak_memory

WARM_UP = 3
"""Steps that are trained and not counted as samples."""
MAX_SAMPLES = 2000
_LATE = 3


def main() -> None:
    """Serve trainings until stdin closes."""
    tune_malloc()
    serve(train_case)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What a request asks for."""

    experiment: Experiment
    stop: int
    """The step that is not trained any more."""
    seconds: float
    """Time after which no step is begun."""
    checkpoint: Path | None
    resume: Path | None
    whole: bool
    """To the end: the held-out loss is taken and checkpoints are written."""
    must_learn: bool = False
    """The experiment is known to learn: where its loss does not fall, something is wrong."""
    look: bool = False
    """The layout is read from the live objects in the first step, and told."""


def job_of(request: Mapping[str, Any]) -> Job:
    """The job in a request.  Raises UsageError for an experiment that is none."""
    extra = request["extra"]
    experiment = from_dict(extra["experiment"])
    stop = extra.get("stop")
    return Job(
        experiment=experiment,
        stop=experiment.steps if stop is None else stop,
        seconds=request["settings"]["max_time"] or math.inf,
        checkpoint=_path(extra.get("checkpoint")),
        resume=_path(extra.get("resume")),
        whole=stop is None,
        must_learn=bool(extra.get("must_learn")),
        look=bool(extra.get("look")),
    )


def _path(name: str | None) -> Path | None:
    return Path(name) if name else None


def train_case(request: dict[str, Any], device: str, parent: Parent) -> dict[str, Any]:
    """Train as the request says; the reply to it."""
    from trainrig.train.native import checkpoint
    from trainrig.train.native.loop import Engine

    gc.enable()  # nothing else is alive in this process: a collection is quick
    job = job_of(request)
    shape = check(job.experiment)
    before = memory_before(device)
    with Engine(job.experiment, shape, device) as engine:
        if job.resume is not None:
            checkpoint.load(engine, job.resume)
        num_parameters = sum(w.numel() for w in engine.weights.master.values())
        parent.emit("model", num_parameters=num_parameters)
        parent.hold()
        with noise.watch(device) as watched:
            rows, wrong = _watch_loss(engine, job, parent)
        if wrong is not None:
            return {"status": Status.FAILED, "reason": f"{WRONG_ANSWER}: {wrong}"}
        heldout = _heldout(engine, job)
        peak = peak_memory(device, before)
    return {
        "status": Status.OK,
        "samples": [row["time"] for row in _counted(rows)][-MAX_SAMPLES:],
        "stop": "samples",
        "disturbed": watched.disturbed,
        "conditions": {
            **watched.conditions,
            **_summary(rows),
            **({} if heldout is None else {"heldout_loss": heldout}),
            "peak_memory": peak,
        },
    }


def _watch_loss(engine: Any, job: Job, parent: Parent) -> tuple[list[dict[str, Any]], str | None]:
    """The steps, and what is wrong with their losses where the experiment must learn."""
    from trainrig.train.native.loop import Diverged

    try:
        rows = _train(engine, job, parent)
    except Diverged as error:
        if not job.must_learn:
            raise
        return [], error.message
    return rows, not_falling([row["loss"] for row in rows]) if job.must_learn else None


def not_falling(losses: Sequence[float]) -> str | None:
    """What is wrong with losses whose last ones do not lie below the first, or None.

    The first is that of fresh weights, about the logarithm of the vocabulary; the last three are
    taken together, since a batch's loss wanders.
    """
    late = losses[1:][-_LATE:]
    if not late or sum(late) / len(late) < losses[0]:
        return None
    return (
        f"the loss does not fall: {losses[0]:.3f} at first, {sum(late) / len(late):.3f} over the "
        f"last {len(late)} of {len(losses)} steps"
    )


def _train(engine: Any, job: Job, parent: Parent) -> list[dict[str, Any]]:
    """Steps until the job is done; checkpoints lie between steps and belong to none."""
    from trainrig.train.native import checkpoint, layout_observed

    rows: list[dict[str, Any]] = []
    until = time.monotonic() + job.seconds

    def emit(row: dict[str, Any]) -> None:
        rows.append(row)
        parent.emit("row", **row)

    def is_over(step: int) -> bool:
        enough = len(rows) > WARM_UP or job.seconds == math.inf
        return step >= job.stop or (enough and time.monotonic() >= until)

    if job.look and job.stop - engine.next_step > 1:  # its row is told with the next step's
        parent.emit("layout", **layout_observed.first_step(engine, None))
    every = job.experiment.checkpoint_every if job.checkpoint and job.whole else 0
    while not is_over(engine.next_step):
        due = (engine.next_step // every + 1) * every if every else job.stop
        engine.run(emit, lambda step, due=due: step >= due or is_over(step))
        if every and (engine.next_step % every == 0 or engine.next_step >= job.stop):
            assert job.checkpoint is not None
            checkpoint.save(engine, job.checkpoint)
            parent.emit("checkpoint", path=str(job.checkpoint), step=engine.next_step)
    return rows


def _heldout(engine: Any, job: Job) -> float | None:
    if not job.whole or not job.experiment.heldout_batches:
        return None
    return float(engine.heldout_loss())


def _counted(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The steps whose times count: all but the first, where there are enough."""
    return rows[min(WARM_UP, len(rows) - 1) :]


def _summary(rows: list[dict[str, Any]]) -> dict[str, Scalar]:
    """Medians of the parts, and what the last step said."""
    counted = _counted(rows)
    parts = {f"time.{name}": median([row[name] for row in counted]) for name in (*PARTS, OTHER)}
    return {
        "clock": "marks around the parts",
        "steps": len(rows),
        "first_step": rows[0]["step"],
        "first_loss": rows[0]["loss"],
        "last_loss": rows[-1]["loss"],
        **parts,
    }


if __name__ == "__main__":
    main()
