"""Ranks that exchange: started for the cases of a run, watched, and blamed by name where they hang.

One start of ranks serves all cases of one number of ranks, of one backend, with peer access or
without, the smallest sizes first; each number has its own, for a group's size is part of the case.
A rank that dies or hangs costs the case that it was in: its record says which rank, in which
operation, and the cases behind it go on in new ranks, twice at most.

Where RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are set (torchrun does, on each node) this
process stands for one rank among others that are started elsewhere: the first one keeps the run,
the others follow it, and what is measured is one start of all of them.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainrig.benchmarks.collective import START_TIME
from trainrig.errors import UsageError
from trainrig.measure.collective import CASES, settings_of
from trainrig.process.supervisor import Command, Ended, follow, launch
from trainrig.process.worker import Reply
from trainrig.record import Status
from trainrig.runner.plan import Task
from trainrig.stats import grouped
from trainrig.store import RunWriter

HANG_TIMEOUT = 60.0
"""Seconds without a sign of any rank: loading torch from a cold disk takes tens."""
PROGRAM = (sys.executable, "-m", "trainrig.measure.collective")
_STARTS = 3
_SECONDS = (0.05, 0.4)
_PATIENCE = 5.0
"""Beyond the end of the time: what does not fit is left out by the ranks themselves."""
_JOINED_BY = 30.0
"""Seconds that ranks have at least to load torch and join each other on a busy machine: a case that
was asked for is begun whatever the budget, once."""
_OUT_OF_TIME = "the budget ended"

Deliver = Callable[[Task, Reply], None]
_PLACE = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_MORE = ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "TORCHELASTIC_USE_AGENT_STORE")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlace:
    """This process among ranks that others start."""

    rank: int
    ranks: int
    nodes: int
    env: Mapping[str, str]
    """The variables that say so."""


def place(environ: Mapping[str, str] = os.environ) -> RankPlace | None:
    """Read this process's rank from torchrun's environment; None if it starts ranks itself.

    UsageError for numbers that are none.
    """
    if any(name not in environ for name in _PLACE) or environ["WORLD_SIZE"] == "1":
        return None
    rank, ranks = environ["RANK"], environ["WORLD_SIZE"]
    local = environ.get("LOCAL_WORLD_SIZE", "1")
    are_numbers = all(word.isdecimal() and len(word) < 7 for word in (rank, ranks, local))
    if not (are_numbers and int(rank) < int(ranks) and 0 < int(local) <= int(ranks)):
        raise UsageError(
            f"RANK={rank}, WORLD_SIZE={ranks}, LOCAL_WORLD_SIZE={local} are no place of a rank",
            "torchrun sets them; unset RANK, and the ranks are started here",
        )
    env = {name: environ[name] for name in (*_PLACE, *_MORE) if name in environ}
    nodes = -(-int(ranks) // int(local))
    return RankPlace(rank=int(rank), ranks=int(ranks), nodes=nodes, env=env)


def follow_first(rank_place: RankPlace, backend: str) -> int:
    """Be a rank that the first one, elsewhere, leads: its exit code."""
    with tempfile.TemporaryDirectory(prefix="trainrig-") as folder:
        env = {**rank_place.env, "TRAINRIG_BACKEND": backend, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
        return follow(Command(argv=(*PROGRAM, folder), env=env), Path(folder))


class Exchanger:
    """Measures the exchanges of a run."""

    def __init__(
        self,
        run: RunWriter,
        *,
        timeout: float = HANG_TIMEOUT,
        program: Sequence[str] = PROGRAM,
        tick: Callable[[], None] = lambda: None,
    ) -> None:
        """``timeout``: seconds without a sign of any rank.

        ``program`` is started as each rank, with a folder; another one than ours is for those who
        plant faults below the check.
        """
        self._run, self._timeout = run, timeout
        self._program, self._tick = tuple(program), tick
        self._place: RankPlace | None = None
        self._number = 0

    def __call__(self, tasks: Sequence[Task], end: float, deliver: Deliver) -> None:
        """Exchange all of ``tasks`` by ``end``, on time.monotonic; each reply is delivered once.

        UsageError for a port that is taken, UnavailableError where ranks cannot be started.
        """
        self._place = place()
        groups = grouped(tasks, _start_of)
        for number, group in enumerate(groups.values()):
            left_s = max(end - time.monotonic(), 0.0)
            if number == 0 or left_s > 0.0:
                self._exchange(group, left_s / (len(groups) - number), deliver)
            else:
                _leave_out(group, _OUT_OF_TIME, deliver)

    def _exchange(self, tasks: Sequence[Task], seconds: float, deliver: Deliver) -> None:
        """Run the cases of one number of ranks in ``seconds``."""
        end = time.monotonic() + seconds
        waiting = sorted(tasks, key=lambda task: int(str(task.case["bytes"])))
        reason = ""
        for _ in range(_STARTS):
            replies: list[Reply] = []
            ended = self._start(waiting, end, replies, deliver)
            waiting, reason = waiting[len(replies) :], ended.reason or "the ranks left it out"
            if not waiting or ended.status is Status.OK:
                break
            replies = replies if self._place is None else []  # the others are gone with it
            is_over = time.monotonic() >= end
            status = Status.SKIPPED if is_over else ended.status
            reason = "the budget ended while it ran" if is_over else reason
            deliver(waiting[0], Reply(status=status, reason=reason, duration=ended.duration))
            waiting, reason = waiting[1:], _OUT_OF_TIME if is_over else reason
            if not waiting or is_over or not replies:  # nor would others come up
                break
        _leave_out(waiting, reason, deliver)

    def _start(
        self, tasks: Sequence[Task], end: float, replies: list[Reply], deliver: Deliver
    ) -> Ended:
        """Start ranks for ``tasks``, wait, and return their replies, also delivered at once."""
        self._number += 1
        folder = self._run.path / "logs" / f"ranks-{self._number}"
        folder.mkdir(parents=True)
        left_s = end - time.monotonic()
        room = max(left_s - START_TIME, 0.0)
        case_seconds = tasks[0].planned.seconds
        seconds_per_case = room / 2.0 / len(tasks)
        seconds = case_seconds or min(max(seconds_per_case, _SECONDS[0]), _SECONDS[1])
        settings = settings_of([task.case for task in tasks], seconds, room)
        (folder / CASES).write_text(json.dumps(settings))

        def on_event(rank: int, event: Mapping[str, Any]) -> None:
            if rank == 0 and event["event"] == "row" and len(replies) < len(tasks):
                replies.append(_reply(event))
                deliver(tasks[len(replies) - 1], replies[-1])

        env, ranks = environment(tasks[0]), tasks[0].count
        if self._place is not None:
            env, ranks = {**env, **self._place.env}, 1
        command = Command(argv=(*self._program, str(folder)), ranks=ranks, env=env)
        limit = max(left_s, _JOINED_BY) + _PATIENCE
        return launch(
            command,
            folder,
            stall_timeout=self._timeout,
            limit=limit,
            on_event=on_event,
            tick=self._tick,
        )


def _leave_out(tasks: Sequence[Task], reason: str, deliver: Deliver) -> None:
    for task in tasks:
        deliver(task, Reply(status=Status.SKIPPED, reason=f"not begun: {reason}"))


def _start_of(task: Task) -> tuple[object, ...]:
    return (task.count, task.case["backend"], task.case.get("peer_access", True))


def environment(task: Task) -> dict[str, str]:
    """Return environment variables of a case's ranks besides those of torchrun."""
    variables = {"TRAINRIG_BACKEND": str(task.case["backend"]), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    if task.case.get("peer_access", True) is False:
        variables["NCCL_P2P_DISABLE"] = "1"
    return variables


def _reply(event: Mapping[str, Any]) -> Reply:
    return Reply(
        status=Status(event["status"]),
        reason=event.get("reason"),
        samples=tuple(event.get("samples") or ()),
        stop=event.get("stop"),
        conditions=event.get("conditions") or {},
        started=event.get("started"),
        duration=event.get("duration"),
    )
