"""What the first GPU would have met: sums of numbers on the device, ranks that hold their part."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from trainrig.process.supervisor import Command, launch
from trainrig.record import Status
from trainrig.train.native import data_parallel
from trainrig.train.native.collectives import Collectives

RANK = """
import json, os, sys
from pathlib import Path
import torch
from trainrig import models
from trainrig.process.child import leave
from trainrig.process.events import Events
from trainrig.train.config import Experiment
from trainrig.train.native.collectives import Collectives
from trainrig.train.native.parallelize import parallelize
from trainrig.train.native.step_timer import stopwatch_for
from trainrig.train.native.world import World, join
from trainrig.workload import custom

def status(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(name)).split()[1])

folder = Path(sys.argv[1])
torch.set_num_threads(1)
join("cpu")
shape = custom("llama", num_layers=8, hidden=512, num_heads=8, vocab=16384, max_positions=64)
own = Experiment.of(nproc=4, zero=3, precision="fp32", seq_len=64)
world, wire = World(own.layout, "cpu"), Collectives()
small = custom("llama", num_layers=1, hidden=64, num_heads=1, vocab=64, max_positions=64)
parallelize(models.build(small, device="meta"), own, small, world, wire)  # imports and threads
Path("/proc/self/clear_refs").write_text("5")
before = status("VmRSS")
weights = parallelize(models.build(shape, device="meta"), own, shape, world, wire)
whole = 4 * sum(weight.numel() for weight in weights.model.values())
grown = status("VmHWM") - before
(folder / f"{world.data_rank}.json").write_text(json.dumps([grown, whole]))
Events(folder, world.data_rank).emit("done")
torch.distributed.barrier()
leave(0)
"""


@pytest.mark.acceptance
def test_a_rank_of_zero_3_never_holds_the_whole_first_weights(tmp_path: Path) -> None:
    """A3: four ranks keep a quarter each; making it may take what the weights' chunks take."""
    command = Command(
        argv=(sys.executable, "-c", RANK, str(tmp_path)), ranks=4, env={"OMP_NUM_THREADS": "1"}
    )
    ended = launch(command, tmp_path, stall_timeout=120.0)
    assert ended.status is Status.OK, ended.reason
    for rank in range(4):
        grown, whole = json.loads((tmp_path / f"{rank}.json").read_text())
        print(grown / whole)
        assert grown <= 0.65 * whole, (rank, grown / whole)


def test_the_number_of_targets_is_summed_where_it_is_computed() -> None:
    """A2: NCCL sums nothing that lies on the host, and BERT's ranks have other numbers of them."""
    summed: list[Any] = []

    class World:
        device, dp = "meta", 2

        def sum(self, number: torch.Tensor, *axes: str) -> torch.Tensor:
            summed.append((number.device.type, axes))
            return number

    own = object.__new__(data_parallel.Spread)
    own.world, own.wire, own.even = World(), Collectives(), False  # type: ignore[assignment]
    own.weight_of(3)
    assert summed == [("meta", ("dp_replicate", "dp_shard"))]
