"""The steps of an engine that leaves the loop to its user: DeepSpeed's and Megatron's drivers.

A driver makes an engine (`DrivenEngine`); what is trained with it is the same for all: the timed
steps, a row each; a look at live objects in the first one; where there are several ranks a few
steps under the profiler; then, with a new engine of the same first weights, the five steps that
`parity` compares.  What it writes is what our own rank writes.

Imports the standard library, torch and what needs no more of ours, as the drivers do.
"""

from __future__ import annotations

import gc
import json
import logging
import os
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist

import trainrig.train.native.host_sums as host_sums
from trainrig.process.events import Events
from trainrig.train.drivers import common
from trainrig.train.native.breakdown import phase, profiled, trace_file
from trainrig.train.native.step_timer import Stopwatch, stopwatch_for

PATIENCE = timedelta(hours=2)
"""Timeout of a collective.  The parent's is shorter, and names the missing rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTask:
    """Inputs of a driven engine: folder, request, options, description, device, stopwatch."""

    folder: Path
    request: dict[str, Any]
    """Content of experiment.json."""
    options: dict[str, Any]
    """The experiment's keys."""
    given: dict[str, Any]
    """Content of theirs.json, which our own Python wrote for the driver."""
    device: str
    watch: Stopwatch[Any]
    is_probe: bool = False
    """Plain gradient descent, compared with one process: its rows are told to nobody."""

    @property
    def piped(self) -> bool:
        """True where the training has pipeline stages."""
        return bool(self.options["pp"] > 1)


class DrivenEngine(Protocol):
    """A model in training."""

    data_ranks: int
    """Ranks that read samples of their own."""
    narrowing: float
    """Factor by which backward's first rounding enlarges gradients (`common.narrowing`)."""

    def step(self, number: int, rate: float) -> tuple[torch.Tensor, Any]:
        """Return one step, its parts marked on ``task.watch``.

        This rank's part of the loss, and the norm.

        The parts add up to the mean over all targets of the step.
        """
        ...

    def facts(self) -> common.Facts:
        """Return the layout's facts that live objects showed in the first step."""
        ...


def train(folder: Path, events: Events, make: Callable[[StepTask], DrivenEngine]) -> None:
    """All that a rank does with the engines that ``make`` makes."""
    logging.disable(logging.WARNING)
    request = json.loads((folder / "experiment.json").read_text())
    with common.settings_as_ours(request["experiment"]["device"]):
        _train(folder, events, make, request)


def _train(
    folder: Path,
    events: Events,
    make: Callable[[StepTask], DrivenEngine],
    request: dict[str, Any],
) -> None:
    description = json.loads((folder / "theirs.json").read_text())
    options = request["experiment"]
    if options["nproc"] != common.SIZE:
        raise ValueError(f"{common.SIZE} ranks were started, and nproc is {options['nproc']}")
    device = _device(options)
    if device == "cpu":
        host_sums.install_norms()
    before = common.memory_before(device)
    events.set_position(part="joining the other ranks" if common.SIZE > 1 else "start")
    _join(device)
    watch = stopwatch_for(device)
    watch.entered = lambda part: events.set_position(part=part)
    task = StepTask(
        folder=folder,
        request=request,
        options=options,
        given=description,
        device=device,
        watch=watch,
    )
    engine = make(task)
    _steps(engine, task, description["rates"], events, events.emit)
    events.emit("trained")
    events.emit("memory", **common.memory_of([device], before))
    if request.get("trace") or (request["probe"] and (common.SIZE > 1 or device != "cpu")):
        _profile(engine, task, events)
    del engine
    gc.collect()
    if request["probe"]:
        probe = options | {k: v for k, v in description["probe"].items() if k != "rates"}
        task = replace(task, options=probe, watch=stopwatch_for(device), is_probe=True)
        events.set_position(step=0, part="the comparison's steps")
        rows: list[dict[str, Any]] = []

        def keep(event: str, **row: Any) -> None:
            if event == "row":
                rows.append(row)

        engine = make(task)
        _steps(engine, task, description["probe"]["rates"], events, keep)
        losses, norms = ([row[name] for row in rows] for name in ("loss", "grad_norm"))
        events.emit("parity", losses=losses, grad_norms=norms, narrowing=engine.narrowing)


def _device(options: dict[str, Any]) -> str:
    if not options["device"].startswith("cuda"):
        return "cpu"
    device = f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
    torch.cuda.set_device(device)
    return device


def _join(device: str) -> None:
    """One rank has a group, too: engines ask for its size."""
    backend = "cpu:gloo,cuda:nccl" if device.startswith("cuda") else "gloo"
    if common.SIZE > 1:
        dist.init_process_group(backend, timeout=PATIENCE)
    else:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)


def _marked(
    engine: DrivenEngine, watch: Stopwatch[Any], number: int, rate: float
) -> Callable[[], None]:
    def step() -> None:
        watch.begin()
        engine.step(number, rate)

    return step


def _profile(engine: DrivenEngine, task: StepTask, events: Events) -> None:
    """A few more steps under the profiler, at the last step's learning rate."""
    events.set_position(part="the profiled steps")
    rates = task.given["rates"]
    task.watch.recording = phase
    step = _marked(engine, task.watch, len(rates) - 1, rates[-1])
    is_kept = task.request.get("trace", False)
    keep = trace_file(task.folder, common.RANK, is_kept=is_kept)
    events.emit("breakdown", **profiled(step, piped=task.piped, keep=keep))


def _steps(
    engine: DrivenEngine,
    task: StepTask,
    rates: Sequence[float],
    events: Events,
    emit: Callable[..., None],
) -> None:
    """Train a step for each learning rate; a row is told when its numbers have come."""
    options, watch = task.options, task.watch
    tokens = engine.data_ranks * options["grad_accum"] * options["batch_size"] * options["seq_len"]
    behind = 2 if task.device.startswith("cuda") else 1
    pending: deque[tuple[dict[str, Any], torch.Tensor, Any, Any]] = deque()

    def report() -> None:
        row, loss, norm, marked = pending.popleft()
        times = watch.read(marked)
        emit("row", **row, loss=float(loss), grad_norm=_number(norm), **times)

    for number, rate in enumerate(rates):
        events.set_position(step=number)
        marked = watch.begin()
        loss, norm = engine.step(number, rate)
        pending.append(({"step": number, "lr": rate, "tokens": tokens}, loss, norm, marked))
        if number == 0 and not task.is_probe:
            emit("layout", **engine.facts())
        while len(pending) > behind:
            report()
    watch.end()
    while pending:
        report()


def _number(norm: Any) -> float | None:
    return None if norm is None else float(norm)


def summed(loss: torch.Tensor) -> torch.Tensor:
    """Return a step's loss of the parts that all ranks have of it."""
    if common.SIZE > 1:
        dist.all_reduce(loss)
    return loss
