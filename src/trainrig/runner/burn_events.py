"""A burn's events become what is known of each part: counts, errors, a record, a line to show."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainrig.analysis.burn_facts import WORK
from trainrig.benchmarks.burn import metric_of
from trainrig.process.supervisor import Ended
from trainrig.record import WRONG_ANSWER, Kind, Record, Scalar, Status
from trainrig.runner.burn_plan import BurnPart
from trainrig.runner.targets import Target
from trainrig.units import counted, format_quantity


@dataclass(slots=True, kw_only=True)
class BurnState:
    """Current state of a device in a burn, for display."""

    target: Target
    doing: str = "waiting"
    unit: str = ""
    rate: float | None = None
    checked: int = 0
    errors: int = 0
    temperature_c: float | None = None
    power_w: float | None = None
    left_s: float = 0.0
    ends_at: float = 0.0

    @property
    def label(self) -> str:
        """Return a text such as ``RTX 4090 #0``."""
        return self.target.label


def state_text(state: BurnState) -> str:
    """Return ``RTX 4090 #0: matmul bf16 161 TFLOPS, 0 errors, 66 °C, 412 W, 120 s left``."""
    words = [f"{state.target.label}: {state.doing}"]
    if state.rate is not None:
        words[0] += f" {format_quantity(state.rate, state.unit)}"
    words.append(counted(state.errors, "error"))
    words += [f"{state.temperature_c:.0f} °C"] if state.temperature_c is not None else []
    words += [f"{state.power_w:.0f} W"] if state.power_w is not None else []
    return ", ".join([*words, f"{state.left_s:.0f} s left"])


@dataclass(slots=True)
class SeenPart:
    """Progress of one phase, from its process's events."""

    part: BurnPart
    work: float = 0.0
    busy_s: float = 0.0
    checked: int = 0
    num_errors: int = 0
    errors: list[str] = field(default_factory=list)
    facts: dict[str, Scalar] = field(default_factory=dict)
    digests: dict[str, Any] | None = None
    is_over: bool = False
    failure: tuple[Status, str] | None = None
    stamps: list[tuple[float, float, float]] = field(default_factory=list)
    """Of the first slice and of the last: when it was told of by this process's monotonic clock, by
    the worker's own clock, and the seconds of work until then."""

    def checked_text(self) -> str:
        """Return a text such as ``3,120 results compared``."""
        return f"{self.checked:,} results compared"

    def clocks(self) -> tuple[float, float]:
        """Return seconds between the first slice and the last: the worker's, and this process's."""
        if len(self.stamps) < 2:
            return 0.0, 0.0
        first, last = self.stamps
        return last[1] - first[1], last[0] - first[0]

    def stamp(self, event: Mapping[str, Any]) -> None:
        """Note when a slice was told of, and what the worker's clock said then."""
        worker_clock = event.get("clock")
        if isinstance(worker_clock, int | float) and math.isfinite(self.busy_s):
            self.stamps[1:] = [(time.monotonic(), float(worker_clock), self.busy_s)]

    def record(self, planned: Record, ended: Ended, *, is_last: bool = False) -> Record:
        """Return the phase's record: a rate, or why there is none.

        ``is_last``: of its process, which must have come to a good end, too.
        """
        rate = self.work / self.busy_s if self.busy_s and self.work else None
        rate = rate if rate is not None and math.isfinite(rate) else None
        status, reason = Status.OK, None
        if self.num_errors:
            status = Status.FAILED
            first_errors = "; ".join(self.errors[:2]) or "not described"
            reason = f"{WRONG_ANSWER}: {self.num_errors} in {self.checked_text()}: {first_errors}"
        elif self.failure is not None:
            status, reason = self.failure
        elif not self.is_over or (is_last and ended.status is not Status.OK):
            status = ended.status if ended.status is not Status.OK else Status.FAILED
            reason = ended.reason or "its process ended before it did"
        elif rate is None:
            status, reason = Status.FAILED, "it did no work"
        clock_s, elapsed_s = self.clocks()
        conditions: dict[str, Scalar] = {
            "clock_s": clock_s,
            "elapsed_s": elapsed_s,
            "work": self.work if math.isfinite(self.work) else None,
            "rate": rate,
            "busy_s": self.busy_s if math.isfinite(self.busy_s) else None,
            "planned_s": self.part.seconds,
            "checked": self.checked,
            "errors": self.num_errors,
            **self.facts,
        }
        return planned.replace(
            kind=Kind.MEASURED,
            id=f"{planned.id[:10]}m{planned.id[-1]}",
            value=rate if status is Status.OK else None,
            status=status,
            reason=reason,
            conditions=conditions,
        )


class SeenDevice:
    """The events of one device's process."""

    def __init__(self, parts: Sequence[BurnPart]) -> None:
        self.seen = [SeenPart(part) for part in parts]
        self.ready: dict[str, Any] = {}

    def take(
        self,
        event: Mapping[str, Any],
        state: BurnState,
        write: Callable[[str, Mapping[str, Any]], None],
    ) -> None:
        """Note one event, and what the device does now."""
        kind = event["event"]
        if kind == "ready":
            self.ready = {k: event[k] for k in event if k not in ("event", "at")}
        number = event.get("number")
        if not isinstance(number, int) or not 0 <= number < len(self.seen):
            return
        seen = self.seen[number]
        if kind == "phase":
            state.doing, state.unit = seen.part.name, metric_of(seen.part.mode)[1]
        elif kind == "slice":
            self._slice(seen, event, state, write)
        elif kind == "phase_over":
            seen.is_over = True
            seen.facts = dict(event["facts"])
            if "steps" in event:
                seen.digests = {"names": event["names"], "steps": event["steps"]}
        elif kind == "phase_failed":
            seen.failure = (Status(event["status"]), str(event["reason"]))

    def _slice(
        self,
        seen: SeenPart,
        event: Mapping[str, Any],
        state: BurnState,
        write: Callable[[str, Mapping[str, Any]], None],
    ) -> None:
        # What is no number arrives as null, and leaves no rate.
        work, seconds = (
            math.nan if event[name] is None else float(event[name]) for name in ("work", "seconds")
        )
        seen.work, seen.busy_s = seen.work + work, seen.busy_s + seconds
        seen.stamp(event)
        seen.checked += int(event["num_checked"])
        seen.num_errors += int(event["num_errors"])
        seen.errors += event["errors"]
        state.checked += int(event["num_checked"])
        state.errors += int(event["num_errors"])
        rate = work / seconds if work and seconds and math.isfinite(work / seconds) else None
        state.rate = rate or state.rate
        write(
            WORK,
            {
                "t": time.time(),
                "m": time.monotonic(),
                "device": seen.part.target.label,
                "part": seen.part.name,
                "unit": metric_of(seen.part.mode)[1],
                "rate": rate,
                "errors": int(event["num_errors"]),
                "told": list(event["errors"][:2]),
            },
        )
