"""Programs whose real ranks go through many cases in one process group, and how they are started.

A layout costs a second this way, not ten, and torch is imported once: the other ranks are forked
from rank 0 before any has computed.  A program of ranks ends in `main`; a test calls `run`, and the
program's own function where one process is what the ranks are compared with.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from trainrig.process.child import run_rank
from trainrig.process.events import Events
from trainrig.process.supervisor import Command, launch
from trainrig.record import Status

Cases = Mapping[str, Mapping[str, Any]]


def main(answer: Callable[[dict[str, Any]], Any]) -> NoReturn:
    """One rank: ``answer(case)`` to each of FOLDER/cases.json, into FOLDER/found-RANK.json."""

    ranks = int(sys.argv[2])
    number = next((number for number in range(1, ranks) if os.fork() == 0), 0)
    os.environ["RANK"] = os.environ["LOCAL_RANK"] = str(number)
    os.environ["WORLD_SIZE"] = os.environ["LOCAL_WORLD_SIZE"] = str(ranks)

    def rank(folder: Path, events: Events) -> None:
        torch.set_num_threads(1)
        store = dist.FileStore(str(folder / "rendezvous"), ranks)
        dist.init_process_group("gloo", store=store, rank=number, world_size=ranks)
        found = {}
        for name, case in json.loads((folder / "cases.json").read_text()).items():
            events.set_position(part=name)
            found[name] = answer(case)
            events.emit("alive")
        (folder / f"found-{dist.get_rank()}.json").write_text(json.dumps(found))

    run_rank(rank)


def run(
    program: str, cases: Cases, folder: Path, *, ranks: int = 2, patience: float = 120.0
) -> list[dict[str, Any]]:
    """What the ranks of ``program`` (its file) answered to ``cases``, by rank and name.

    ``patience``: seconds that a case may take.
    """
    (folder / "cases.json").write_text(json.dumps(cases))
    path = os.pathsep.join(sys.path)
    command = Command(
        argv=(sys.executable, program, str(folder), str(ranks)),
        ranks=1,
        env={"OMP_NUM_THREADS": "1", "PYTHONPATH": path},
    )
    ended = launch(command, folder, stall_timeout=patience)
    assert ended.status is Status.OK, ended.reason
    return [json.loads((folder / f"found-{rank}.json").read_text()) for rank in range(ranks)]
