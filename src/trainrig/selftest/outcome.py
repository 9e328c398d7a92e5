"""What a verdict says to whoever asked: outcome, exit code, severity and id of each finding.

A check that finds a fault and calls it a warning has not found it.  So the lines that a self-test
reads begin with what a script or a scheduler would see: ``FAIL exit 1 error below-band: ...``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from trainrig.record import Outcome, Severity, Verdict
from trainrig.runner.view import RunOutcome

_GRAVER: dict[Severity, tuple[Severity, ...]] = {
    "info": ("info", "warning", "error"),
    "warning": ("warning", "error"),
    "error": ("error",),
}


def exit_code(verdict: Verdict) -> int:
    """Return the exit code of a verb that ends with a verdict."""
    answer = cast(Any, None)  # the exit code rests on the verdict alone
    outcome = RunOutcome(
        run=Path(), verdict=verdict, interrupted=False, num_records=0, answer=answer
    )
    return outcome.exit_code()


def verdict_lines(verdict: Verdict, least: Severity = "info") -> list[str]:
    """Return a line for each finding that is at least so grave; none where nothing is wrong.

    An outcome other than PASS or MEASURED without such a finding is a line, too.
    """
    head = f"{verdict.outcome} exit {exit_code(verdict)}"
    lines = [
        f"{head} {finding.severity} {finding.id}: {finding.evidence}"
        for finding in verdict.findings
        if finding.severity in _GRAVER[least]
    ]
    if not lines and verdict.outcome not in (Outcome.PASS, Outcome.MEASURED):
        lines.append(f"{head}: {verdict.reason}")
    return lines
