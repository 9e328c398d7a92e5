"""A training step as something to measure: which model on which device, on which text.

A qualification trains for seconds, not to an end: a model that is known to learn, on the running
Python's standard library, sized to the device and the budget.  The text is prepared once and kept
in the user's cache, under the hash of what it is; where nothing can be kept there, it lies in a
scratch folder for as long as the run.  That the loss falls is the check of the answer.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from trainrig.analysis.machine_key import machine_key
from trainrig.benchmarks.spec import SMALL_BUDGET, WORKERS, PlannedCase
from trainrig.benchmarks.training import BENCHMARK as TRAINING
from trainrig.benchmarks.training import GPU_SIZES, HOST_SIZES, LAUNCH_TIME
from trainrig.data.manifest import Manifest
from trainrig.errors import TrainrigError
from trainrig.machine import to_dict as machine_dict
from trainrig.record import Record
from trainrig.runner.expectations import Grounds
from trainrig.runner.history import corrections_of
from trainrig.runner.plan import MEMORY_SHARE, Block, Task, is_optional
from trainrig.runner.progress import Progress, Watcher
from trainrig.runner.targets import Target
from trainrig.runner.train import TrainRun
from trainrig.store import read_run
from trainrig.train.config import Experiment, case_of, to_dict

TIME_SHARE = 0.25
"""Largest share of a qualification's time for training."""

_SECONDS = (2.0, 8.0)
# More than a worker comes to within its seconds: the learning rate is the schedule's high part.
_STEPS = 1000
_UNPREPARED = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """Prepared text, or why there is none."""

    folder: Path | None
    corpus_sha256: str = _UNPREPARED
    reason: str | None = None
    left_out: bool = False
    """True if no text was wanted, which is not a fault."""


def with_training(
    blocks: Sequence[Block],
    targets: Sequence[Target],
    budget: float,
    text: Text,
) -> tuple[Block, ...]:
    """Return a qualification's blocks and training steps sized to device and budget.

    They come behind all else that the verdict needs: what they should take is predicted from the
    rates that were measured before.

    On a machine with GPUs the host does not train.  Where the budget is enough for some of
    many GPUs only, the others are recorded as left out: one of each model comes first.
    """
    target_by_name = {target.name: target for target in reversed(targets)}
    devices = trained_on(targets)
    devices.sort(key=lambda target: target_by_name[target.name] is not target)
    count = max(1, int(TIME_SHARE * budget / (WORKERS * (_SECONDS[0] + LAUNCH_TIME))))
    count = min(count, len(devices))
    reason = f"the budget is enough for training on {count} of {len(devices)} GPUs"
    left_out = replace(text, reason=text.reason or reason)
    device_budget = budget / count
    training_blocks = [
        block for target in devices[:count] for block in _blocks(target, device_budget, text)
    ]
    for target in devices[count:]:
        training_blocks += _blocks(target, device_budget, left_out, required=False)
    total_share = sum(block.share for block in training_blocks)
    share = min(TIME_SHARE, total_share / count)
    all_blocks = (
        *(replace(block, share=block.share * (1.0 - share)) for block in blocks),
        *(
            replace(b, share=share * b.share / total_share if total_share else 0.0)
            for b in training_blocks
        ),
    )
    return tuple(sorted(all_blocks, key=is_optional))


def trained_on(targets: Sequence[Target]) -> list[Target]:
    """Return the GPUs of a machine, and its host where there is none."""
    return [target for target in targets if target.is_gpu] or list(targets)


def _blocks(
    target: Target, budget: float, text: Text, *, required: bool = True
) -> tuple[Block, ...]:
    """Plan what is trained on one device: what the verdict needs, and apart from it what else.

    What cannot be trained is one record with its reason.  ``budget``: this device's part of it.
    """
    experiments = _experiments(target, budget)
    seconds = _seconds(budget, len(experiments))
    tasks = tuple(
        Task(
            target=target,
            benchmark=TRAINING.name,
            planned=PlannedCase(
                case=case_of(experiment, text.corpus_sha256),
                step=f"{experiment.precision} training step",
                required=required and number == 0 and not text.left_out,
                seconds=seconds,
                skip=text.reason,
            ),
            extra={"experiment": to_dict(experiment.replace(data=str(text.folder or "")))},
        )
        for number, experiment in enumerate(experiments[: 1 if text.reason else None])
    )
    share = 0.0 if text.reason else WORKERS * (seconds + LAUNCH_TIME) / budget
    named = (("training", True), ("further training", False))
    return tuple(
        Block(name=f"{name} on {target.label}", tasks=chosen, share=share * len(chosen))
        for name, is_required in named
        if (chosen := tuple(task for task in tasks if task.planned.required is is_required))
    )


def _seconds(budget: float, count: int) -> float:
    """Return the seconds that each worker may train each of ``count`` experiments."""
    min_seconds, max_seconds = _SECONDS
    return min(max(TIME_SHARE * budget / count / WORKERS - LAUNCH_TIME, min_seconds), max_seconds)


def _experiments(target: Target, budget: float) -> list[Experiment]:
    """Return the experiments to train on a device: the required one first, then optional ones."""
    if target.is_gpu:
        return [_sized(target, target.arithmetic.fastest, GPU_SIZES + HOST_SIZES)]
    dtypes = list(reversed(target.arithmetic.trained_in))
    if _seconds(budget, len(dtypes)) < _SECONDS[1] / 2:
        del dtypes[1:]
    return [_sized(target, dtype, HOST_SIZES) for dtype in dtypes]


def _sized(target: Target, dtype: str, sizes: Sequence[tuple[str, int, int]]) -> Experiment:
    """Return the largest experiment that fits in memory; the smallest if none does."""
    sized = [
        Experiment.of(
            model=model,
            batch_size=batch,
            seq_len=seq,
            precision=dtype,
            steps=_STEPS,
            warmup=2,
            lr=1e-3 if model == HOST_SIZES[0][0] else 3e-4,
            heldout_batches=0,
            checkpoint_every=0,
            name=f"{dtype} {model}",
            device="cuda" if target.is_gpu else "cpu",
            devices="" if target.index is None else str(target.index),
        )
        for model, batch, seq in sizes
    ]
    room = MEMORY_SHARE * target.memory_bytes
    fitting = (e for e in sized if TRAINING.memory(case_of(e, _UNPREPARED)) <= room)
    return next(fitting, sized[-1])


class Trainer:
    """Trains the steps of a qualification in an open run."""

    def __init__(self, session: TrainRun, history: Sequence[Record]) -> None:
        """``history``: points of earlier runs, which predictions may rest on."""
        self._session = session
        self._history = tuple(point for point in history if point.disturbed is None)
        self._machine = machine_key(machine_dict(session.snapshot))

    def __call__(self, task: Task, end: float, done: int) -> Record:
        """The record of a task that has until ``end``; ``done`` cases are over before it."""
        session, experiment = self._session, Experiment.of(**task.extra["experiment"])
        folder = session.run.path
        session.texts = {experiment.data: str(task.case["data"])}
        session.deadline, session.done = end, done
        points = [record for record in read_run(folder).records if record.is_point]
        corrections = corrections_of(folder.parent, self._machine)
        session.grounds = Grounds(points=(*self._history, *points), corrections=corrections)
        return session.measure_step(experiment, task.planned.seconds)


def text_to_train_on(
    budget: float, watch: Watcher, stack: ExitStack, environ: Mapping[str, str] = os.environ
) -> Text:
    """Return the standard library, prepared now or before; not where ``budget`` is too small.

    ``stack``: a scratch folder goes with it.
    """
    if budget < SMALL_BUDGET:
        reason = "left out of budgets below one minute"
        return Text(folder=None, reason=reason, left_out=True)
    watch(Progress(text="preparing the text to train on", level="running"))
    reason = "there is no text to train on"

    def cache() -> Path:
        base = environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
        return Path(base, "trainrig")

    def scratch() -> Path:
        folder = tempfile.TemporaryDirectory(prefix="trainrig-", ignore_cleanup_errors=True)
        return Path(stack.enter_context(folder))

    for folder in (cache, scratch):
        try:
            return _prepared(folder())
        except TrainrigError as error:
            reason = f"there is no text to train on: {error.message}"
        except OSError as error:
            reason = f"there is no text to train on: {error.strerror}"
        except RuntimeError:  # there is no home: no HOME, and no entry in passwd
            continue
    return Text(folder=None, reason=reason)


def _prepared(parent: Path) -> Text:
    from trainrig.data.prepare import prepare

    prepared = prepare(parent=parent)
    manifest: Manifest = prepared.manifest
    return Text(folder=prepared.folder.absolute(), corpus_sha256=manifest.corpus_sha256)
