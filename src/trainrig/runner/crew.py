"""The workers of a block: how many a device needs, started side by side and waited for.

A device that does not come up is tried once more, then given up for the run.  One that is merely
not ready when the block's time ends is no fault: its tasks are skipped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from trainrig.errors import UnavailableError
from trainrig.process.worker import Worker
from trainrig.runner.targets import HOST, Target

# A device that has said nothing for so long, and for half of the time that is left, hangs.
_PATIENCE = 20.0

Teams = dict[str, tuple[Worker, ...]]
"""Device → its workers."""
MakeWorker = Callable[[str, Path], Worker]
"""(device, log) → a worker that has been started."""


class Crew:
    """Starts the workers of one block after the other, and knows which devices are down."""

    def __init__(
        self, make_worker: MakeWorker, log_path: Callable[[str], Path], early: Sequence[Worker] = ()
    ) -> None:
        """``early``: workers for the host that are loading already; its first team."""
        self._make_worker = make_worker
        self._log_path = log_path
        self._early = tuple(early)
        self.dead: dict[str, str] = {}
        """Device → why it did not come up."""
        self.load_time = 0.0
        """Seconds until workers are ready, as of the slowest; 0 before the first."""

    def assemble(
        self, name: str, targets: Sequence[Target], number: int, end: float, stack: ExitStack
    ) -> Teams:
        """Start ``number`` workers on each device that is up before ``end``; ``stack`` ends them.

        Where one is ready when the time is over, it is all of its team.
        """
        start = time.monotonic()
        labels = {t: name if len(targets) == 1 else f"{name} {t.torch_device}" for t in targets}
        started = {target: self._start(labels[target], target, number, stack) for target in targets}
        teams: Teams = {}
        for target, first in started.items():
            team = first
            last = min(time.monotonic() + _PATIENCE, end)
            ready, error = _wait_for(target, team, end)
            if error is not None and time.monotonic() < last:
                team = self._start(labels[target], target, number, stack)
                ready, error = _wait_for(target, team, end)
            if error is not None and time.monotonic() < end:
                self.dead[target.torch_device] = error
            elif ready:
                teams[target.torch_device] = ready
        if len(teams) == len(targets):
            self.load_time = max(self.load_time, time.monotonic() - start)
        return teams

    def _start(
        self, label: str, target: Target, number: int, stack: ExitStack
    ) -> tuple[Worker, ...]:
        team = self._early if target.torch_device == HOST and len(self._early) >= number else ()
        if team:
            self._early = ()
        stem = "".join(c if c.isalnum() else "-" for c in label.lower())
        logs = [self._log_path(f"{stem}-{ordinal}") for ordinal in range(1, number + 1)]
        team = team or tuple(self._make_worker(target.torch_device, log) for log in logs)
        for worker in team:
            stack.enter_context(worker)
        return team


def _wait_for(
    target: Target, team: Sequence[Worker], end: float
) -> tuple[tuple[Worker, ...], str | None]:
    """Return the workers of a team that are ready, and why the next one is not.

    Also where torch has another device there.
    """
    for number, worker in enumerate(team):
        left_s = max(end - time.monotonic(), 0.0)
        try:
            uuid = worker.wait_ready(min(left_s, max(left_s / 2.0, _PATIENCE))).get("uuid")
        except UnavailableError as error:
            return tuple(team[:number]), error.message
        if target.uuid is not None and uuid not in (None, target.uuid):
            device = target.torch_device
            return (), f"torch's {device} is {uuid}, and {target.label} is {target.uuid}"
    return tuple(team), None
