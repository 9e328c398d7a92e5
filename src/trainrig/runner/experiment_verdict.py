"""The verdict on a run of experiments: what came out as asked, and as one process computes it.

What is about GPUs alone has no say on a processor: it is named, and the run is complete without it.
"""

from __future__ import annotations

from collections.abc import Sequence

from trainrig.record import Finding, Outcome, Status, Verdict
from trainrig.runner.experiment_trained import Trained


def verdict_of(
    trained: Sequence[Trained], found: Sequence[Finding], interrupted: str | None
) -> Verdict:
    """FAIL with the first fault; INCOMPLETE where something was not trained; else PASS."""
    findings = tuple(found)
    faults = [finding for finding in findings if finding.severity == "error"]
    moot = [each.experiment.name for each in trained if each.moot]
    trained = [each for each in trained if not each.moot]
    skipped = [each for each in trained if each.status is Status.SKIPPED]
    alone = [each for each in trained if not each.compared]
    if faults:
        more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
        return Verdict(outcome=Outcome.FAIL, reason=faults[0].evidence + more, findings=findings)
    if interrupted:
        return Verdict(outcome=Outcome.INCOMPLETE, reason=interrupted, findings=findings)
    if skipped or alone:
        first = (skipped or alone)[0]
        reason = first.reason or "compared with nothing"
        return Verdict(
            outcome=Outcome.INCOMPLETE,
            reason=f"{first.experiment.name}: {reason}",
            findings=findings,
        )
    count = len(trained)
    what = "1 experiment" if count == 1 else f"{count} experiments"
    return Verdict(
        outcome=Outcome.PASS,
        reason=f"{what}: layouts as asked, losses as in one process{_left_out(moot)}",
        findings=findings,
    )


def _left_out(moot: Sequence[str]) -> str:
    return f"; {len(moot)} of GPUs alone not trained here: {'; '.join(moot)}" if moot else ""
