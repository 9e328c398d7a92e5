"""Find what is wrong with a machine, and how to put it right.

    check        what a check is; its answer; the texts of findings
    driver       can the GPUs be reached
    fitting      does the software fit the machine
    connections  PCIe, NVLink, topology, network
    gpu_state    memory errors, Xids, power, heat, others' programs
    host         main memory, disks, NUMA, clocks, sensors
    logged       what the kernel logged of buses, disks, processors, switches
    listening    what listens, and with what protection
    crash        what died, and why
    remedy       fixes that need no root and can be undone

`machine` reads, this room judges.  A field that could not be read yields no finding: not knowing is
no fault.  torch is not run: its versions are read from its files.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Set

from trainrig.doctor import connections, crash, driver, fitting, gpu_state, host, listening, logged
from trainrig.doctor.check import Answer, HealthCheck, answer
from trainrig.machine.snapshot import Snapshot
from trainrig.record import Finding, by_severity

CHECKS: tuple[HealthCheck, ...] = (
    *driver.CHECKS,
    *fitting.CHECKS,
    *gpu_state.CHECKS,
    *connections.CHECKS,
    *host.CHECKS,
    *logged.CHECKS,
    *listening.CHECKS,
    *crash.CHECKS,
)
"""Every check, in the order in which they are shown."""


def answers(snapshot: Snapshot) -> tuple[Answer, ...]:
    """Return the answer of each check."""
    return tuple(answer(check, snapshot) for check in CHECKS)


def answers_of_files(snapshot: Snapshot, incomplete: Set[str] = frozenset()) -> tuple[Answer, ...]:
    """Return what came of each check of a machine that only files describe.

    Args:
        snapshot: The machine.
        incomplete: Facts, by path, of which the files hold a part: no healthy answer rests on them.
    """
    return tuple(
        dataclasses.replace(given_answer, state="not checkable", reason="not in these files")
        if given_answer.state in ("not checkable", "not applicable")
        or (given_answer.state == "healthy" and _rests_on(given_answer.check, incomplete))
        else given_answer
        for given_answer in answers(snapshot)
    )


def _rests_on(check: HealthCheck, facts: Set[str]) -> bool:
    return any(not facts.isdisjoint(fact.split("|")) for fact in check.facts)


def diagnose(snapshot: Snapshot) -> tuple[Finding, ...]:
    """Return all findings, the gravest first."""
    return by_severity(finding for answer in answers(snapshot) for finding in answer.findings)


def of_speed(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return the findings as they bear on speed: an open port is a fault and slows nothing."""
    doors = {name for check in listening.CHECKS for name in check.finds}
    return by_severity(
        dataclasses.replace(finding, severity="warning")
        if finding.id in doors and finding.severity == "error"
        else finding
        for finding in findings
    )


def what_root_adds(answers: tuple[Answer, ...]) -> tuple[str, ...]:
    """Return what root would see of the checks that were denied a look, or a part of it."""
    return tuple(
        f"{answer.check.id}: {answer.check.root}"
        for answer in answers
        if answer.check.root
        and (
            _DENIED.search(answer.reason)
            if answer.state == "not checkable"
            else answer.check.looks_without_root and answer.state != "not applicable"
        )
    )


_DENIED = re.compile(r"permi|denied|root|/dev/mem|fopen", re.IGNORECASE)


__all__ = [
    "CHECKS",
    "Answer",
    "HealthCheck",
    "answers",
    "answers_of_files",
    "diagnose",
    "of_speed",
    "what_root_adds",
]
