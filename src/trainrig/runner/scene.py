"""What a plan may look at before it says what to run: the machine, the claims, the open run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trainrig.machine import Snapshot
from trainrig.record import Record
from trainrig.runner.plan import Block
from trainrig.runner.progress import Watcher
from trainrig.runner.targets import Target
from trainrig.store import RunWriter


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """A run after the first look, before anything is expected or measured."""

    run: RunWriter
    snapshot: Snapshot
    targets: tuple[Target, ...]
    environment: str
    """Digest of the software and settings."""
    claims: tuple[Record, ...]
    deadline: float
    """On time.monotonic."""
    watch: Watcher


Plan = Callable[[Scene], Sequence[Block]]
