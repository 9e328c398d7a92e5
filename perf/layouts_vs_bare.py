"""Each layout of our engine beside a bare loop of the same torch calls, on the same ranks.

    python perf/layouts_vs_bare.py

Two ranks on gloo, a thread each; GPT-2 of 4 layers, width 256, vocabulary 8192, 4 samples of 256
tokens a rank (a pipeline has two micro-batches), fp32, fused AdamW, clipping at 1.  Bare is what
torch's documentation has: DistributedDataParallel; `fully_shard` on each block and the root;
`parallelize_module`; a stage under `Schedule1F1B`; with context parallelism the gradients' sum by
DDP; then `clip_grad_norm_`, the update, `zero_grad`.  It reads tensors that are there and reports
nothing.  Ours has the loader, the marks, the norm over all axes, the loss of all ranks, the rows
and heartbeats.  In each round each side trains some steps, in turns, after a barrier.

Peer: the bare loop.  Target: no layout over 5 % slower.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import json
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from _shared import middle, options, ratio_of, say_load, verdict

from trainrig.process.supervisor import Command, launch
from trainrig.record import Status
from trainrig.train.config import Experiment
from trainrig.workload import ModelShape

TARGET = 1.05
RANKS, STEPS = 2, 3
MODEL = "gpt2:num_layers=4,hidden=256,vocab=8192,max_positions=256"
TINY = "gpt2:num_layers=2,hidden=64,num_heads=2,vocab=512,max_positions=32"
LAYOUTS: dict[str, dict[str, Any]] = {
    "ddp": {},
    "zero1": {"zero": 1},
    "zero3": {"zero": 3},
    "tp2": {"tp": 2},
    "pp2": {"pp": 2, "batch_size": 2, "grad_accum": 2},
    "cp2": {"cp": 2},
}
Step = Callable[[], None]


def experiment_of(name: str, quick: bool) -> Experiment:
    """One of the layouts."""
    size = {"seq_len": 32} if quick else {"seq_len": 256}
    keys = {"model": TINY if quick else MODEL, "precision": "fp32", "device": "cpu", "threads": 1}
    keys |= {"nproc": RANKS, "batch_size": 4, "steps": 10_000} | size
    return Experiment.of(**keys | LAYOUTS[name])


def samples_of(own: Experiment, shape: ModelShape, rank: int) -> Any:
    """Random tokens, as our loader wants them: the same for each step."""
    import numpy as np

    from trainrig.data.batches import Batch

    random = np.random.default_rng(rank)
    tokens = random.integers(0, shape.vocab, (own.samples, own.seq_len + 1))
    made = Batch(inputs=tokens[:, :-1].copy(), labels=tokens[:, 1:].copy())
    return lambda _: made


def ours(own: Experiment, shape: ModelShape, world: Any, events: Any) -> Callable[[int], None]:
    """Return as many steps of our engine, as a rank of a training runs them."""
    from trainrig.train.native.collectives import Collectives
    from trainrig.train.native.loop import Engine
    from trainrig.train.native.parallelize import parallelize

    how = {"experiment": own, "shape": shape, "world": world, "wire": Collectives(events)}
    engine = Engine(
        own,
        shape,
        parallel=partial(parallelize, **how),
        batches=samples_of(own, shape, world.data_rank),
        rank=world.data_rank,
        tokens=world.tokens(own.seq_len),
    )
    engine.watch.entered = lambda part: events.set_position(part=part)

    def run(steps: int) -> None:
        until = engine.next_step + steps

        def over(step: int) -> bool:
            events.set_position(step=step)
            return step >= until

        engine.run(lambda row: events.emit("row", **row), over)

    return run


def bare(own: Experiment, shape: ModelShape, world: Any) -> Callable[[int], None]:
    """Return as many steps by torch's own calls."""
    import torch
    from torch.nn.utils import clip_grad_norm_

    model, step_of = _spread(own, shape, world)
    weights = list(model.parameters())
    matrices = [weight for weight in weights if weight.ndim > 1]
    groups = [
        {"params": found, "weight_decay": decay}
        for kept, decay in ((matrices, own.update.weight_decay), (_without(weights, matrices), 0.0))
        for sharded in (True, False)
        if (found := [w for w in kept if hasattr(w, "placements") is sharded])
    ]
    how = {"betas": (own.update.beta1, own.update.beta2), "eps": own.update.eps, "fused": True}
    optimizer = torch.optim.AdamW(groups, lr=own.lr.peak, **how)
    made = samples_of(own, shape, world.data_rank)(0)
    here = world.tokens(own.seq_len)
    inputs, labels = (
        torch.from_numpy(each[:, here]).contiguous() for each in (made.inputs, made.labels)
    )

    def run(steps: int) -> None:
        for _ in range(steps):
            step_of(inputs, labels)
            for group in optimizer.param_groups:
                clip_grad_norm_(group["params"], own.update.clip)
            optimizer.step()
            optimizer.zero_grad()

    return run


def _without(some: list[Any], others: list[Any]) -> list[Any]:
    return [each for each in some if not any(each is other for other in others)]


def _spread(own: Experiment, shape: ModelShape, world: Any) -> tuple[Any, Callable[..., None]]:
    """A model over the ranks by torch's calls, and its forward and backward of a batch."""
    import torch
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
    from torch.nn.parallel import DistributedDataParallel

    from trainrig import models
    from trainrig.train.native import context_parallel, pipeline, tensor_parallel
    from trainrig.train.native.data_parallel import LossOf

    layout = own.layout
    if layout.mesh.pp > 1:
        (stage,) = pipeline.split(
            models.build(shape, device="meta"), shape, layout, world.view("pp")
        )
        stage.module.to_empty(device="cpu")
        models.fill_weights(stage.module, own.seed)
        line = pipeline.Pipeline([stage], layout, world.view("pp"), torch.device("cpu"))

        def piped(inputs: Any, labels: Any) -> None:
            line.run(inputs, labels, 1.0 / labels.numel())
            line.add_tied()

        return stage.module, piped
    model: Any = models.build(shape, seed=own.seed)
    call = model.loss
    if layout.mesh.tp > 1:
        tensor_parallel.apply(model, shape, world.view("tp"), sequence_parallel=False)
    elif layout.sharding.zero > 0:
        for unit in (*model.blocks, model):
            fully_shard(unit, reshard_after_forward=layout.sharding.zero == 3 and unit is not model)
        register_fsdp_forward_method(model, "loss")
        call = model.loss
    else:
        if layout.mesh.cp > 1:
            context_parallel.apply(model, world.view("cp"))
        call = DistributedDataParallel(LossOf(model))

    def plain(inputs: Any, labels: Any) -> None:
        call(inputs, labels).backward()
        if layout.mesh.tp > 1:
            tensor_parallel.place_gradients(model.parameters())

    return model, plain


def rank_main(folder: Path, rounds: int, quick: bool) -> None:
    """One of the ranks: each layout's two sides in turns."""
    import torch
    import torch.distributed as dist

    from trainrig.process.child import die_with_parent, leave
    from trainrig.process.events import Events
    from trainrig.train.native.world import World
    from trainrig.workload import find

    die_with_parent()
    torch.set_num_threads(1)
    events = Events(folder, int(os.environ["RANK"]))
    dist.init_process_group("gloo")
    found: dict[str, dict[str, list[float]]] = {}
    for name in LAYOUTS:
        own = experiment_of(name, quick)
        shape, world = find(own.model), World(own.layout, "cpu")
        sides = {"ours": ours(own, shape, world, events), "bare": bare(own, shape, world)}
        for run in sides.values():
            run(2)
        times = found[name] = {side: [] for side in sides}
        for number in range(rounds):
            events.emit("alive")
            turn = list(sides)[:: 1 if number % 2 else -1]
            for side in turn:
                dist.barrier()
                start = time.perf_counter()
                sides[side](STEPS)
                dist.barrier()
                times[side].append((time.perf_counter() - start) / STEPS)
    if dist.get_rank() == 0:
        (folder / "found.json").write_text(json.dumps(found))
    dist.barrier()
    events.emit("done")
    leave(0)


def main() -> None:
    """Start the ranks, and print each layout's ratio."""
    if "RANK" in os.environ:
        rank_main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "quick")
        return
    parser = options(str(__doc__))
    parser.add_argument("--rounds", type=int, default=20)
    arguments = parser.parse_args()
    rounds, size = (2, "quick") if arguments.quick else (arguments.rounds, "full")
    say_load()
    with tempfile.TemporaryDirectory() as name:
        argv = (sys.executable, __file__, name, str(rounds), size)
        path = {"PYTHONPATH": str(Path(__file__).parent)}
        ended = launch(Command(argv=argv, ranks=RANKS, env=path), Path(name), stall_timeout=120.0)
        if ended.status is not Status.OK:
            raise RuntimeError(ended.reason)
        found = json.loads((Path(name) / "found.json").read_text())
    for name, times in found.items():
        ratio, low, high = ratio_of(times["bare"], times["ours"])
        can_tell = not arguments.quick and (high <= TARGET or low > TARGET)
        met = verdict(ratio <= TARGET, can_tell=can_tell)
        print(f"{name}\n  ours {middle(times['ours'])}\n  bare {middle(times['bare'])}")
        print(
            f"ratio {ratio:.3f} of a bare loop's step in {name}, 95 % interval {low:.3f} to "
            f"{high:.3f} (target at most {TARGET}: {met})"
        )


if __name__ == "__main__":
    main()
