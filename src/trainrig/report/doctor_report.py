"""The doctor's findings as a Document, then each check.

Handed the answers; looks nothing up.  A finding says what was seen, why, what it risks, the exact
fix, whether that needs a reboot, and how to take it back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from trainrig.doctor import Answer
from trainrig.record import Finding, by_severity
from trainrig.report import document as doc
from trainrig.units import counted

_TONES: dict[str, doc.Tone] = {"error": "bad", "warning": "warn", "info": ""}
_LABELS = {"error": "fault", "warning": "warning", "info": "note"}
_STATE_TONES: dict[str, doc.Tone] = {
    "healthy": "good",
    "note": "",
    "warning": "warn",
    "fault": "bad",
}


def doctor_document(
    answers: Sequence[Answer], missed: Sequence[str], changes: Sequence[str] = ()
) -> doc.Document:
    """Findings, the gravest first; what was changed; checks; what root would add (``missed``)."""
    findings = doctor_findings(answers)
    blocks: list[doc.Block] = [doc.Paragraph(_summary(answers))]
    if findings:
        blocks.append(doc.Section("Findings", tuple(_block(finding) for finding in findings)))
    if changes:
        lines = tuple(doc.Paragraph(line) for line in changes)
        blocks.append(doc.Section("Changes", lines))
    blocks.append(doc.Section("Checks", (_table(answers),)))
    for state, title in _WITHOUT_ANSWER.items():
        if rows := tuple(_by_reason(answers, state)):
            blocks.append(doc.Section(title, rows))
    if missed:
        lines = tuple(doc.Paragraph(line) for line in missed)
        blocks.append(doc.Section("What root would add", lines, "run: sudo trainrig doctor"))
    return doc.Document(title="doctor", blocks=tuple(blocks))


def doctor_findings(answers: Sequence[Answer]) -> tuple[Finding, ...]:
    """Return all findings, the gravest first."""
    return by_severity(finding for answer in answers for finding in answer.findings)


def to_dict(
    answers: Sequence[Answer], missed: Sequence[str], changes: Sequence[str] = ()
) -> dict[str, Any]:
    """Return what ``doctor --json`` prints; others script against it."""
    return {
        "findings": [
            {
                "id": finding.id,
                "severity": finding.severity,
                "evidence": finding.evidence,
                "cause": finding.cause,
                "risk": finding.risk,
                "fix": finding.fix,
                "reboot": finding.reboot,
                "undo": finding.undo,
            }
            for finding in doctor_findings(answers)
        ],
        "checks": [
            {
                "id": answer.check.id,
                "title": answer.check.title,
                "reads": answer.check.reads,
                "state": answer.state,
                "reason": answer.reason,
                "findings": [finding.id for finding in answer.findings],
            }
            for answer in answers
        ],
        "needs_root": list(missed),
        "changes": list(changes),
    }


def _summary(answers: Sequence[Answer]) -> str:
    """Count the findings that stand below, then the checks without one, by state."""
    severities = [finding.severity for finding in doctor_findings(answers)]
    states = [answer.state for answer in answers]
    parts = [
        counted(severities.count(severity), label)
        for severity, label in _LABELS.items()
        if severity in severities
    ]
    healthy, unneeded = states.count("healthy"), states.count("not applicable")
    parts.append("1 check healthy" if healthy == 1 else f"{healthy} checks healthy")
    if unneeded == 1:
        parts.append("1 check does not apply here")
    elif unneeded:
        parts.append(f"{unneeded} checks do not apply here")
    if "not checkable" in states:
        parts.append(f"{states.count('not checkable')} not checkable here")
    return ", ".join(parts)


def _block(finding: Finding) -> doc.Block:
    lines = {
        "fix": finding.fix,
        "why": finding.cause,
        "risk": finding.risk,
        "reboot": "needed" if finding.reboot else "",
        "undo": finding.undo,
    }
    blocks = [doc.Paragraph(finding.evidence, tone=_TONES[finding.severity])]
    blocks += [doc.Paragraph(text, label=name) for name, text in lines.items() if text]
    return doc.Section(f"{_LABELS[finding.severity]}: {finding.id}", tuple(blocks))


def _table(answers: Sequence[Answer]) -> doc.Table:
    looked = [answer for answer in answers if answer.state not in _WITHOUT_ANSWER]
    return doc.table(
        looked,
        doc.column("check", lambda answer: doc.Cell(answer.check.id, is_name=True), kind="code"),
        doc.column(
            "state", lambda answer: doc.Cell(answer.state, _STATE_TONES[answer.state]), kind="code"
        ),
        doc.words("what", _words),
    )


def _words(answer: Answer) -> str:
    """Say what a check saw; of a healthy one what holds, never the name of a fault."""
    if answer.state == "healthy":
        return answer.reason or answer.check.title
    return ", ".join(dict.fromkeys(finding.id for finding in answer.findings))


_WITHOUT_ANSWER = {
    "not applicable": "Not applicable here",
    "not checkable": "Not checkable here",
}


def _by_reason(answers: Sequence[Answer], state: str) -> Iterator[doc.Block]:
    """Yield the checks of a state without an answer, by why they have none."""
    reasons: dict[str, list[str]] = {}
    for answer in answers:
        if answer.state == state:
            reasons.setdefault(answer.reason, []).append(answer.check.id)
    if reasons:
        yield doc.table(
            list(reasons.items()),
            doc.words("why", lambda pair: pair[0]),
            doc.words("checks", lambda pair: doc.Cell(", ".join(pair[1]), is_name=True)),
        )
