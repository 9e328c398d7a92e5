"""One rank of a training: a process that trains its share and emits what came of it.

Started as ``python -m trainrig.train.native.rank_main FOLDER`` with RANK, WORLD_SIZE, MASTER_ADDR
and MASTER_PORT in its environment, by `process.supervisor` or by torchrun (docs/experiments.md
says how).  FOLDER/experiment.json says what to train.  First it trains the steps that are timed,
then, from the same first weights on the same samples, the five steps of plain gradient descent that
`parity` compares.
"""

from __future__ import annotations

import gc
import json
import math
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

from trainrig.benchmarks.training import WARM_UP
from trainrig.machine import inspect, to_dict
from trainrig.process.child import leave, run_rank, tune_malloc
from trainrig.process.events import Events
from trainrig.process.lost_ranks import Lost, lost_before, watch_for_stall
from trainrig.train.checkpoint_folder import newest
from trainrig.train.config import Experiment, check
from trainrig.train.divergence import Diverged
from trainrig.train.drivers.common import memory_before, memory_of
from trainrig.train.engines import Job
from trainrig.train.fewer_ranks import on_ranks
from trainrig.train.native import checkpoint, gpu, layout_observed
from trainrig.train.native.breakdown import phase, profiled, trace_file
from trainrig.train.native.collectives import Collectives
from trainrig.train.native.data_parallel import ManyDevices
from trainrig.train.native.loop import Engine, Row
from trainrig.train.native.parallelize import parallelize
from trainrig.train.native.world import World, join
from trainrig.train.parity import probe_of
from trainrig.workload import ModelShape

Memory = Callable[[], dict[str, Any]]
"""Reader of the process's peak memory, called once, before checkpoints are copied."""


def main() -> None:
    """Train, emit, leave with 0, or with 1 and a reason among the events."""
    tune_malloc()
    run_rank(_train)


def _train(folder: Path, events: Events) -> None:
    size = int(os.environ.get("WORLD_SIZE", "1"))
    request = json.loads((folder / "experiment.json").read_text())
    train(Experiment.of(**request.pop("experiment")), events, size, Job(**request))


@dataclass(frozen=True, slots=True, kw_only=True)
class _RankContext:
    """This process among the ranks."""

    shape: ModelShape
    device: str
    world: World | None
    """The mesh of ranks; None for a single one."""
    events: Events

    def engine(self, experiment: Experiment) -> Engine:
        """Return an engine of first weights."""
        make = partial(Engine, shape=self.shape, device=self.device)
        if experiment.parallel == "dataparallel":  # one process reads for all devices
            devices = list(range(experiment.mesh.ranks))
            whole = experiment.replace(batch_size=experiment.batch_size * len(devices), nproc=1)
            return make(whole, spread=partial(ManyDevices, devices=devices))
        if self.world is None:
            return make(experiment)
        spread = partial(
            parallelize,
            experiment=experiment,
            shape=self.shape,
            world=self.world,
            wire=Collectives(self.events),
        )
        tokens = self.world.tokens(experiment.seq_len)
        return make(experiment, parallel=spread, rank=self.world.data_rank, tokens=tokens)


def train(experiment: Experiment, events: Events, size: int, job: Job | None = None) -> None:
    """The timed training, and the probe behind it."""
    job = job or Job()
    check(experiment)
    experiment = on_ranks(experiment, size)  # whoever starts the ranks may start more or fewer
    shape = check(experiment)
    device = _device(experiment)
    if job.stall_timeout:
        watch_for_stall(events.folder, size, job.stall_timeout, partial(_give_up, events))
    if size > 1:
        events.set_position(part="joining the other ranks")
        join(device)
    if events.rank == 0:
        _describe_machine(events.folder)
    if events.rank == 0 and (lost := lost_before(events.folder)) is not None:
        events.emit("restart", **lost.event(), ranks=size)
        sys.stderr.write(f"restarted with {size} ranks: {lost.cause}\n")
    world = World(experiment.layout, device) if size > 1 else None
    if not job.heldout:
        experiment = experiment.replace(heldout_every=0)
    rank_state = _RankContext(shape=shape, device=device, world=world, events=events)
    devices = [device]
    if experiment.parallel == "dataparallel":
        devices = [f"cuda:{number}" for number in range(experiment.mesh.ranks)]
    before = memory_before(device)
    with gpu.settings(device, experiment.precision, experiment.unfused_parts):
        is_whole = _timed(experiment, rank_state, job, cache(lambda: memory_of(devices, before)))
        gc.collect()
        if job.probe and is_whole:
            _probe(probe_of(experiment), rank_state)


def _describe_machine(folder: Path) -> None:
    """Say of a run whose ranks others start on which machine the first of them is."""
    if (folder / "run.toml").is_file() and not (folder / "machine.json").exists():
        with suppress(OSError):  # a disk that is full costs no training
            text = json.dumps(to_dict(inspect()), indent=1, ensure_ascii=False)
            draft = folder / ".machine.json"
            draft.write_text(text)
            draft.replace(folder / "machine.json")


def _give_up(events: Events, lost: Lost) -> None:
    """End this process, from a thread of it, so that its starter starts all of them again."""
    events.emit("failed", reason=lost.cause, kind="stall", lost=asdict(lost))
    sys.stderr.write(f"{lost.cause}\n")
    leave(1)


def _device(experiment: Experiment) -> str:
    if not experiment.device.startswith("cuda"):
        return "cpu"
    device = f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
    torch.cuda.set_device(device)
    if "numa" not in experiment.unfused_parts:
        gpu.bind_to_node(device)
    return device


def _timed(experiment: Experiment, rank_state: _RankContext, job: Job, memory: Memory) -> bool:
    """Return the experiment's steps, and what is known at their end; the first one is looked at.

    False where a signal ended them: they go on another time, from the checkpoint that was saved.
    """
    events = rank_state.events
    engine = rank_state.engine(experiment)
    folder = Path(job.checkpoint) if job.checkpoint else None
    with engine, checkpoint.Saver(engine, folder) as saver:
        engine.watch.entered = lambda part: events.set_position(part=part)
        engine.on_heldout = lambda step, loss: events.emit("heldout", step=step, loss=loss)
        may_be_first = job.resume == job.checkpoint
        if job.resume and not (may_be_first and newest(Path(job.resume)) is None):
            saved = checkpoint.load(engine, Path(job.resume))
            saver.saved_step = saved.next_step
            since = {"step": saved.next_step, "ranks": saved.ranks}
            events.emit("resumed", **since, broken_off=saver.broken_off)
        try:
            _steps(engine, saver, rank_state, job, memory)
        except Diverged as error:
            raise error.naming(saver.saved_step) from None
        events.emit("trained")  # energy is counted up to here
        saver.wait()
        if saver.ended is not None:
            events.emit("memory", **memory())
            events.emit("stopped", step=engine.next_step, signal=saver.ended)
            return False
        if job.heldout and experiment.heldout.batches:
            events.set_position(part="the held-out loss")
            engine.on_heldout(engine.next_step, engine.heldout_loss())
        events.emit("memory", **memory())
        if job.trace or (
            job.probe and (rank_state.world is not None or rank_state.device != "cpu")
        ):
            _profile(engine, rank_state, is_kept=job.trace)
    return True


def _steps(
    engine: Engine,
    saver: checkpoint.Saver,
    rank_state: _RankContext,
    job: Job,
    memory: Memory,
) -> None:
    """Train, each step told as a row, and save when it is due."""
    events, total = rank_state.events, engine.experiment.steps
    first = engine.next_step
    events.set_position(step=first, part="first step")
    until = math.inf if job.seconds is None else time.monotonic() + job.seconds
    stop = total if job.stop is None else min(job.stop, total)
    _observe_first_step(engine, rank_state)

    def over(step: int) -> bool:
        events.set_position(step=step)
        enough = step - first > WARM_UP
        late = enough and time.monotonic() >= until
        return step >= stop or late or saver.ended is not None

    def emit(row: Row) -> None:
        events.emit("row", **row)

    is_over = False
    while not is_over:
        engine.run(emit, lambda step: saver.is_due(step) or over(step))
        is_over = over(engine.next_step)
        if saver.is_due(engine.next_step) or (is_over and saver.saves_last):
            memory()
            events.set_position(part="saving a checkpoint")
            saver.save(last=is_over)
            events.emit("checkpoint", step=saver.saved_step, blocked_s=saver.blocked)
    engine.drain(emit)


def _observe_first_step(engine: Engine, rank_state: _RankContext) -> None:
    """Train the first step, and tell what it was trained on and with."""
    facts = layout_observed.first_step(engine, rank_state.world.axes if rank_state.world else None)
    rank_state.events.emit("layout", **facts)
    decayed, spared = engine.weights.decayed(engine.optimizer.param_groups)
    rank_state.events.emit("weight_decay", decayed=decayed, not_decayed=spared)


def _profile(engine: Engine, rank_state: _RankContext, *, is_kept: bool) -> None:
    """Profile a few further steps, which belong to no training any more."""
    rank_state.events.set_position(part="the profiled steps")
    piped = engine.experiment.mesh.pp > 1
    engine.watch.recording = phase
    keep = trace_file(rank_state.events.folder, rank_state.events.rank, is_kept=is_kept)
    rank_state.events.emit("breakdown", **profiled(engine.step, piped=piped, keep=keep))
    engine.watch.end()


def _probe(experiment: Experiment, rank_state: _RankContext) -> None:
    """Five steps of plain gradient descent: losses and gradient norms."""
    rows: list[Row] = []
    with rank_state.engine(experiment) as engine:
        rank_state.events.set_position(step=0, part="the comparison's steps")
        engine.run(rows.append, lambda step: step >= experiment.steps)
    losses, norms = ([row[name] for row in rows] for name in ("loss", "grad_norm"))
    rank_state.events.emit("parity", losses=losses, grad_norms=norms)


if __name__ == "__main__":
    main()
