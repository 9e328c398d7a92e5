"""One rank of a training: a process that trains its share and tells what came of it.

Started as ``python -m trainrig.train.native.rank_main FOLDER`` with RANK, WORLD_SIZE, MASTER_ADDR
and MASTER_PORT in its environment, by `launch` or by torchrun (docs/experiments.md says how).
FOLDER/experiment.json says what to train.  First it trains the steps that are timed, then, from the
same first weights on the same samples, the five steps of plain gradient descent that `parity`
compares.

It leaves by barrier, destroy, flush and os._exit: a thread of gloo that frees a tensor while the
interpreter shuts down aborts the process, and a training that went well would count as failed.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import traceback
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from trainrig.errors import TrainrigError, UsageError
from trainrig.train.config import Experiment, check, from_dict, objective_of
from trainrig.train.drivers.parent import die_with_parent
from trainrig.train.native import layout_observed
from trainrig.train.native.collectives import Collectives, barrier
from trainrig.train.native.data_parallel import ManyDevices, Replicated, Sharded, SplitStates
from trainrig.train.native.loop import Engine, Row
from trainrig.train.native.peak_memory import memory_before, peaks
from trainrig.train.native.precision import Weights
from trainrig.train.native.step_timer import Stopwatch, stopwatch_for
from trainrig.train.parity import probe_of
from trainrig.train.serve import keep_memory
from trainrig.train.telling import Teller
from trainrig.workload import ModelShape

PATIENCE = timedelta(hours=2)
"""Of a collective.  The parent's is shorter: it sees all ranks, and says which one did not come."""


def main() -> None:
    """Train; tell; leave with 0, or with 1 and a reason among the events."""
    die_with_parent()
    keep_memory()
    rank, size = (int(os.environ.get(name, default)) for name, default in _RANKS)
    folder = Path(sys.argv[1])
    teller = Teller(folder, rank)
    code = 1
    try:
        request = json.loads((folder / "experiment.json").read_text())
        train(from_dict(request["experiment"]), teller, rank, size, probe=request["probe"])
        gc.collect()
        barrier()
        teller.tell("done")
        code = 0
    except Exception as error:  # noqa: BLE001 - the edge: torch raises nearly everything
        teller.tell("failed", **failure_of(error))
        traceback.print_exc()
    leave(code)


_RANKS = (("RANK", "0"), ("WORLD_SIZE", "1"))


def train(
    experiment: Experiment, teller: Teller, rank: int, size: int, *, probe: bool = True
) -> None:
    """The timed training, and the probe behind it."""
    shape = check(experiment)
    _check_ranks(experiment, size)
    device = _device(experiment)
    if size > 1:
        teller.at(part="joining the other ranks")
        dist.init_process_group("nccl" if device.startswith("cuda") else "gloo", timeout=PATIENCE)
    before = memory_before(device)
    _timed(experiment, shape, device, rank, size, teller)
    teller.tell("memory", **peaks(_devices(experiment, device), before))
    gc.collect()
    if probe:
        _probe(probe_of(experiment), shape, device, rank, size, teller)


def _check_ranks(experiment: Experiment, size: int) -> None:
    """Whoever starts the ranks by hand may start more or fewer than the experiment has."""
    asked = 1 if experiment.backend == "dataparallel" else experiment.nproc
    if size != asked:
        raise UsageError(
            f"{size} ranks were started, and the experiment has nproc = {asked}",
            "torchrun --nnodes N --nproc-per-node M with N · M = nproc",
        )


def _device(experiment: Experiment) -> str:
    if not experiment.device.startswith("cuda"):
        return "cpu"
    device = f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
    torch.cuda.set_device(device)
    return device


def _devices(experiment: Experiment, device: str) -> list[str]:
    """All that this process trains on."""
    if experiment.backend == "dataparallel":
        return [f"cuda:{number}" for number in range(experiment.nproc)]
    return [device]


def _timed(
    experiment: Experiment, shape: ModelShape, device: str, rank: int, size: int, teller: Teller
) -> None:
    """The experiment's steps, each told as a row; the layout is looked at in the first one."""
    watch = stopwatch_for(device)
    wire = _wire(device, size, watch, teller)
    overlapped: dict[int, float | None] = {}
    with _engine(experiment, shape, device, rank, wire, watch) as engine:
        watch.entered = lambda part: teller.at(part=part)
        teller.at(step=0, part="first step")
        facts = layout_observed.first_step(engine, wire)
        teller.tell("layout", **facts)

        def over(step: int) -> bool:
            if wire is not None:
                overlapped[step - 1] = wire.take_overlapped()
            teller.at(step=step)
            return step >= experiment.steps

        def tell(row: Row) -> None:
            beside = 0.0 if wire is None else overlapped.get(row["step"])
            teller.tell("row", **row, overlapped=beside)

        engine.run(tell, over)
        teller.tell("trained")  # energy is counted up to here


def _probe(
    experiment: Experiment, shape: ModelShape, device: str, rank: int, size: int, teller: Teller
) -> None:
    """Five steps of plain gradient descent: losses and gradient norms."""
    watch = stopwatch_for(device)
    wire = _wire(device, size, watch, teller)
    rows: list[Row] = []
    with _engine(experiment, shape, device, rank, wire, watch) as engine:
        teller.at(step=0, part="the comparison's steps")
        engine.run(rows.append, lambda step: step >= experiment.steps)
    losses, norms = ([row[name] for row in rows] for name in ("loss", "grad_norm"))
    teller.tell("parity", losses=losses, grad_norms=norms)


def _wire(device: str, size: int, watch: Stopwatch[Any], teller: Teller) -> Collectives | None:
    on_host = not device.startswith("cuda")
    return Collectives(watch, teller, on_host=on_host) if size > 1 else None


def _engine(
    experiment: Experiment,
    shape: ModelShape,
    device: str,
    rank: int,
    wire: Collectives | None,
    watch: Stopwatch[Any],
) -> Engine:
    spread = partial(spread_of, experiment=experiment, shape=shape, wire=wire)
    if experiment.backend == "dataparallel":  # one process reads for all devices
        experiment = experiment.replace(batch=experiment.batch * experiment.nproc, nproc=1)
    return Engine(experiment, shape, device, watch=watch, spread=spread, rank=rank)


def spread_of(
    model: nn.Module,
    dtype: str,
    *,
    experiment: Experiment,
    shape: ModelShape,
    wire: Collectives | None,
) -> Any:
    """The model's weights on the ranks, as the experiment asks."""
    if experiment.backend == "dataparallel":
        return ManyDevices(Weights(model, dtype), list(range(experiment.nproc)))
    if wire is None:
        return Weights(model, dtype)
    even = objective_of(shape) != "masked"
    if experiment.zero >= 2:
        return Sharded(
            model,
            dtype,
            wire,
            even=even,
            reshard=experiment.zero == 3,
            shard_size=experiment.shard_size,
            offload=experiment.offload == "host",
        )
    kept = SplitStates(model, dtype, wire) if experiment.zero == 1 else Weights(model, dtype)
    return Replicated(kept, wire, even=even)


def failure_of(error: BaseException) -> dict[str, str]:
    """Why a rank failed: in one line, and whether another rank may be to blame."""
    text = (str(error).strip().splitlines() or ["no message"])[0][:300]
    if isinstance(error, TrainrigError):
        return {"reason": error.message, "kind": type(error).__name__}
    if "EADDRINUSE" in str(error):
        port = os.environ.get("MASTER_PORT", "?")
        return {"reason": f"port {port} is in use", "kind": "port"}
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or "allocate memory" in text:
        return {"reason": f"out of memory: {text}", "kind": "oom"}
    lost = isinstance(error, dist.DistError) or "gloo" in text or "peer" in text
    return {"reason": f"{type(error).__name__}: {text}", "kind": "peer" if lost else "error"}


def leave(code: int) -> None:
    """End this process at once, with what it said written down."""
    if code == 0 and dist.is_initialized():  # else its other end may be gone, and it would wait
        dist.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
