"""Processes that die, hang or answer nonsense: real ones, watched as ranks and workers are.

They are small programs without torch, so that a start costs a tenth of a second; who starts and
watches them is what starts and watches every training and every benchmark.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from trainrig.process.supervisor import Command, launch
from trainrig.process.worker import Request, Worker
from trainrig.record import Status
from trainrig.selftest.registry import HEALTHY, Fault

TAKES_S = 25.0
_STALL_S = 1.5
_ANSWER_S = 1.0

_RANK = """
import os, signal, sys, time
from pathlib import Path
from trainrig.process.events import Events
folder, rank = Path(sys.argv[1]), int(os.environ["RANK"])
events = Events(folder, rank)
events.start()
for step in range(3):
    events.set_position(step=step, part="backward", operation="all_reduce")
    if rank == 1 and step == 2:
        FAULT
    events.emit("row", step=step, loss=1.0)
events.emit("done")
"""
_ENDLESS = "time.sleep(600.0)"
_WORKER = """
import os, sys, time
sys.stdout.write('{"event": "ready"}\\n'); sys.stdout.flush()
for line in sys.stdin:
    FAULT
    number = __import__("json").loads(line)["id"]
    print('{"event": "reply", "id": %d, "status": "ok", "samples": [0.001, 0.001], '
          '"duration": 0.01}' % number, flush=True)
"""


def faults() -> Iterator[Fault]:
    """Yield faults of ranks, then of workers."""
    for name, act, says in (
        ("a hung rank", _ENDLESS, "rank 1"),
        ("a rank that is stopped", f"os.kill(os.getpid(), signal.SIGSTOP); {_ENDLESS}", "rank 1"),
        ("a rank that is killed", "os.kill(os.getpid(), signal.SIGKILL)", "rank 1 was ended by"),
        ("a rank that leaves", "sys.exit(7)", "rank 1 ended with exit code 7"),
    ):
        yield Fault(
            name=name,
            check="process.ranks",
            says=says,
            inject=partial(_program, act, _RANK),
            observe=_launched,
            twin="ranks",
        )
    for name, act, says in (
        ("a worker that hangs in a case", "time.sleep(60.0)", "no answer within"),
        ("a worker that is killed", "os.kill(os.getpid(), 9)", "SIGKILL"),
        ("a worker that answers nonsense", "print('Segmentation fault', flush=True)", "no sense"),
        (
            "an answer to another question",
            'print(\'{"event": "reply", "id": 99, "status": "ok"}\', flush=True)',
            "no reply to request",
        ),
    ):
        yield Fault(
            name=name,
            check="process.worker",
            says=says,
            inject=partial(_program, act, _WORKER),
            observe=_answered,
            twin="worker",
        )


@contextmanager
def _program(act: str, program: str, folder: Path, variant: Any) -> Iterator[Path]:
    path = folder / "program.py"
    path.write_text(program.replace("FAULT", "pass" if variant is HEALTHY else act))
    yield path


def _launched(path: Path) -> Iterable[str]:
    command = Command(argv=(sys.executable, str(path), str(path.parent)), ranks=2)
    ended = launch(command, path.parent, stall_timeout=_STALL_S)
    return [] if ended.status is Status.OK else [f"{ended.status}: {ended.reason}"]


def _answered(path: Path) -> Iterable[str]:
    request = Request(benchmark="", case={}, settings={}, timeout=_ANSWER_S)
    command = (sys.executable, str(path))
    with Worker("cpu", path.parent / "worker.log", command=command) as worker:
        reply = worker.run(request)
    return [] if reply.status is Status.OK else [f"{reply.status}: {reply.reason}"]
