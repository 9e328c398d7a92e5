"""stress-ng beside our own check of the processors: its stressors verify what they compute.

It reaches units that torch does not: integer and string instructions, branches, atomics.  It runs
for a third of the processors' time where that is 5 s, and a stressor or a verification that fails
is a wrong answer.  Source: stress-ng(1), --verify, --metrics, exit codes (2: a stressor failed).
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from trainrig.errors import UnavailableError
from trainrig.process.supervisor import Child
from trainrig.record import WRONG_ANSWER, Scalar, Status

_SHARE = 1 / 3
_LEAST_S = 5.0
_LATE_S = 60.0
_FAILED = re.compile(r"^stress-ng: (?:fail|error):\s*(.*)$", re.MULTILINE)
_RATE = re.compile(r"^stress-ng: (?:metrc|info):\s*\[\d+\]\s+cpu\s+(\d+)\s+([\d.]+)", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stressed:
    """Result of a stress-ng run."""

    status: Status
    reason: str | None = None
    rate: float | None = None
    """Bogus operations a second of all processors."""
    conditions: Mapping[str, Scalar] = field(default_factory=dict)


def stress_program() -> str | None:
    """Return the path of stress-ng, if it is installed."""
    return shutil.which("stress-ng")


def stress_time(seconds: float) -> float:
    """Return stress-ng's part of the core phase in seconds; 0 if too short to be useful."""
    return seconds * _SHARE if seconds * _SHARE >= _LEAST_S else 0.0


def stress(program: str, wanted: float, log: Path, should_stop: Callable[[], bool]) -> Stressed:
    """Run its verified stressors on all processors; ``over``: whether to give up."""
    words = ["--cpu", "0", "--cpu-method", "all", "--verify", "--metrics"]
    try:
        command = [program, *words, "--timeout", f"{wanted:.0f}s"]
        child = Child(command, log, os.environ)
    except UnavailableError as error:
        return Stressed(status=Status.FAILED, reason=error.message)
    end, code = time.monotonic() + wanted + _LATE_S, None
    try:
        while code is None and time.monotonic() < end and not should_stop():
            code = child.wait(0.5)
    finally:
        child.end()
    return read_stress(code, log.read_text(errors="replace"))


def read_stress(code: int | None, text: str) -> Stressed:
    """Read the result from stress-ng's exit code and output."""
    if code is None:
        return Stressed(status=Status.TIMEOUT, reason="stress-ng did not end in its time")
    failed = _FAILED.search(text)
    if code or failed:
        words = failed[1] if failed else f"exit code {code}"
        wrong = f"{WRONG_ANSWER}: stress-ng: {words}"
        is_wrong = failed is not None or code == 2
        return Stressed(status=Status.FAILED, reason=wrong if is_wrong else f"stress-ng: {words}")
    rate_match = _RATE.search(text)
    if rate_match is None or not int(rate_match[1]):
        return Stressed(status=Status.FAILED, reason="stress-ng did no work")
    count, took = int(rate_match[1]), float(rate_match[2])
    rate = count / took if took else None
    return Stressed(status=Status.OK, rate=rate, conditions={"checked": count, "busy_s": took})
