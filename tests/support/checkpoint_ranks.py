"""Real ranks that train, save and resume under several layouts, case after case.

A case with ``save`` trains so many steps, saves beside the training and goes on; one without
resumes.  One process calls `act` itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gloo_ranks
import rank_program
from trainrig.train.config import Experiment
from trainrig.train.native import checkpoint
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


def act(case: Mapping[str, Any]) -> list[float]:
    """The losses of the three steps behind the checkpoint."""
    own, folder = Experiment.of(**case["experiment"]), Path(case["folder"])
    rows: list[dict[str, Any]] = []
    engine, _ = gloo_ranks.engine_for(own)
    with engine, checkpoint.Saver(engine, folder) as saver:
        at = case.get("save", 0)
        if at:
            engine.run(lambda _: None, lambda step: step >= at)
            saver.save()
        else:
            checkpoint.load(engine, folder)
        until = engine.next_step + AFTER
        engine.run(rows.append, lambda step: step >= until)
        saver.wait()
    return [row["loss"] for row in rows]


if __name__ == "__main__":
    rank_program.main(act)
