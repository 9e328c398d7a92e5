"""What is wrong with this machine, before anything is measured.

`diagnose` compares what the machine is with what the catalog and the machine
itself say it can be.  Every finding names what was seen and the next thing to
do; the ids below are the whole list, and stable.  A field that could not be read
yields no finding: not knowing is no fault.

Severity.  error: the machine cannot train as it is, or its memory is damaged.
warning: it can, but slower or less surely than it should.  info: worth knowing,
no fault.  What measurements reveal (a slow card among fast ones, a number below
its band) is not judged here.
"""

from collections.abc import Callable, Iterable

from trainrig.doctor import gpu_access, gpu_speed, memory_health
from trainrig.doctor.finding_ids import device_name, is_training_device
from trainrig.machine.snapshot import Snapshot
from trainrig.record import Finding

__all__ = ["device_name", "diagnose", "is_training_device"]

Check = Callable[[Snapshot], Iterable[Finding]]

_CHECKS: tuple[Check, ...] = (*gpu_access.CHECKS, *memory_health.CHECKS, *gpu_speed.CHECKS)


def diagnose(snapshot: Snapshot) -> tuple[Finding, ...]:
    """All findings, the gravest first."""
    found = [finding for check in _CHECKS for finding in check(snapshot)]
    order = {"error": 0, "warning": 1, "info": 2}
    return tuple(sorted(found, key=lambda finding: order[finding.severity]))
