"""Real ranks that train, save and resume under several layouts; rank 0 writes what came out.

FOLDER/plan.json lists what to do, in turn, with the experiment's keys: ``save`` trains so many
steps, saves beside the training and goes on; ``load`` resumes.  Started by
`trainrig.process.supervisor`, as ranks are; a test that is alone calls `act` itself.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import gloo_ranks
from trainrig.process.child import die_with_parent, leave
from trainrig.process.events import Events
from trainrig.train.config import Experiment
from trainrig.train.native import checkpoint
from trainrig.train.native.collectives import Collectives
from trainrig.train.native.step_timer import stopwatch_for
from trainrig.workload import custom

gloo_ranks.SHAPES["deep"] = custom(
    "gpt2", num_layers=4, hidden=32, num_heads=2, vocab=131, max_positions=16
)
gloo_ranks.SHAPES["llama"] = custom(
    "llama", num_layers=4, hidden=32, num_heads=4, vocab=128, max_positions=16
)
gloo_ranks.SHAPES["experts"] = custom(
    "llama", num_layers=2, hidden=32, num_heads=4, vocab=128, max_positions=16, num_experts=4
)
AFTER = 3
"""Steps that are compared."""


def act(action: dict[str, Any], folder: Path, *, alone: bool) -> list[float]:
    """The losses of the three steps behind the checkpoint."""
    own = Experiment.of(**action["experiment"])
    watch = stopwatch_for("cpu")
    rows: list[dict[str, Any]] = []
    engine = gloo_ranks.engine_for(own, None if alone else Collectives(), watch)
    with engine, checkpoint.Saver(engine, folder / action["folder"]) as saver:
        at = action.get("save", 0)
        if at:
            engine.run(lambda _: None, lambda step: step >= at)
            saver.save()
        else:
            checkpoint.load(engine, folder / action["folder"])
        until = engine.next_step + AFTER
        engine.run(rows.append, lambda step: step >= until)
        saver.wait()
    return [row["loss"] for row in rows]


def main() -> None:
    die_with_parent()
    folder, rank = Path(sys.argv[1]), int(os.environ["RANK"])
    events = Events(folder, rank)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    found = []
    for action in json.loads((folder / "plan.json").read_text()):
        events.set_position(part=action["name"])
        found.append(act(action, folder, alone=False))
        events.emit("alive")
    if rank == 0:
        (folder / "found.json").write_text(json.dumps(found))
    dist.barrier()
    events.emit("done")
    leave(0)


if __name__ == "__main__":
    main()
