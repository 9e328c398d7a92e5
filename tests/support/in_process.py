"""The launch of a training without a process of its own: the real rank, request and events."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from trainrig.process.child import failure_of
from trainrig.process.events import Events, read_events
from trainrig.process.supervisor import Ended
from trainrig.record import Status
from trainrig.train.config import Experiment
from trainrig.train.engines import Job
from trainrig.train.native import rank_main


def launch_here(command: Any, folder: Path, *, on_event: Any, **_: Any) -> Ended:
    """What `process.supervisor.launch` does for one rank of ours."""
    request = json.loads((folder / "experiment.json").read_text())
    events = Events(folder, 0)
    status, reason = Status.OK, None
    try:
        rank_main.train(Experiment.of(**request.pop("experiment")), events, 1, Job(**request))
    except Exception as error:  # noqa: BLE001 - as the real one
        failure = failure_of(error)
        status = Status.OOM if failure["kind"] == "oom" else Status.FAILED
        reason = failure["reason"]
    for _, event in read_events(folder, 0):
        on_event(0, event)
    return Ended(status=status, reason=reason, duration=0.1)
