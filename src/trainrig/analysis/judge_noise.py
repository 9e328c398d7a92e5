"""Points that noise left in doubt, and what to do about a number that decides nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from trainrig.record import Finding, Record, Status
from trainrig.units import counted

NOT_RUN = "not run"
"""The reason of a step that was planned and never began."""


def noisy(records: Iterable[Record], again: str, longer: str) -> Iterator[Finding]:
    """Yield the finding about points whose device may do better than its number.

    Args:
        records: What the run has.
        again: The command that goes on with it.
        longer: The command that goes on with more time.
    """
    points = [record for record in records if record.is_point]
    cases = {(r.key[:3], r.device_count, r.device, r.device_index): r for r in points}
    in_doubt = [r for r in cases.values() if r.status is Status.OK and r.disturbed is not None]
    if in_doubt:
        reasons = [r.disturbed or "" for r in in_doubt]
        usual = max(set(reasons), key=reasons.count)
        yield Finding(
            id="noisy",
            severity="warning",
            evidence=f"noisy: {len(in_doubt)} of {counted(len(cases), 'case')}, where the device "
            f"may do better than its number; mostly: {usual}",
            fix=advice(usual, again, longer),
            records=tuple(r.id for r in in_doubt),
        )


_ADVICE = (
    ("quota", "give the container more processors"),
    ("hypervisor", "measure again when its host is less busy, or on another"),
    ("had the GPU", "stop what else uses the GPU (nvidia-smi shows it)"),
    ("of the GPU", "stop what else uses the GPU (nvidia-smi shows it)"),
    (" hot", "look at the processor's cooling"),
    ("waited for a core", "stop what else runs on the machine"),
    ("other processes", "stop what else runs on the machine"),
    ("others moved", "stop what else uses the disk"),
    ("memory", "free memory"),
    ("did not start", "read the worker's log in the run's logs/ folder"),
    ("failed:", "read the worker's log in the run's logs/ folder"),
    (" free in ", "free some of that disk, or name a folder on another"),
    ("interrupted", "let it run to its end"),
)
"""Causes that slow a measurement, by words of its reason, and what to do before it is repeated."""
_NO_TIME = ("budget", "projected to take", NOT_RUN)
"""Words of a reason that is a want of time."""


def advice(reason: str, again: str, longer: str) -> str:
    """Return what to do, with its command, about a reason for which a number decides nothing."""
    for words, first in _ADVICE:
        if words in reason:
            return f"{first}: {again}"
    if any(words in reason for words in _NO_TIME):
        return f"give it more time: {longer}"
    if reason.startswith("skipped: "):
        return f"put right what it names: {again}"
    return f"give it more time, so that more worker processes measure it: {longer}"
