"""Fixes that need no root and can be undone: carried out, looked at again, taken back if in vain.

A remedy is known by the finding that it is for.  Whatever else a finding's fix says is left to the
user: it needs root, cannot be undone, or ends a program.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from trainrig.doctor.check import Answer
from trainrig.process.programs import last_line, run_program
from trainrig.record import Finding

_PATIENCE_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """Fix of a finding that needs no root, and its undo."""

    text: str
    carry_out: Callable[[], str]
    """Empty where it went well, else why it did not."""
    undo: Callable[[], str]


def remedies(finding: Finding) -> tuple[Remedy, ...]:
    """Return the fixes of a finding that can be carried out now; mostly none."""
    match finding.id:
        case "ninja-missing":
            # One that is installed and not on PATH: installing does nothing, undoing would harm.
            return () if _is_installed("ninja") else (_install("ninja"),)
        case "secret-readable":
            path = finding.evidence.partition(" ")[0]
            return (_close(Path(path).expanduser()),)
    return ()


def apply_remedies(
    before: Sequence[Answer], look: Callable[[], tuple[Answer, ...]]
) -> tuple[tuple[Answer, ...], tuple[str, ...]]:
    """Carry out what can be done, look again, undo what did not help; answers and what was done.

    Findings count as helped where one with the same id and evidence is no longer there.
    """
    answers, lines = tuple(before), []
    for finding in [unsolved for answer in before for unsolved in answer.findings]:
        for remedy in remedies(finding):
            failed = remedy.carry_out()
            answers = look()
            if _is_gone(finding, answers):
                lines.append(f"{finding.id}: {remedy.text}: done")
                continue
            taken_back = remedy.undo()
            why = failed or "it did not help"
            after = f"could not be undone: {taken_back}" if taken_back else "undone"
            lines.append(f"{finding.id}: {remedy.text}: {why}; {after}")
            answers = look()
    return answers, tuple(lines or ["nothing here can be put right without root and undone"])


def _is_gone(finding: Finding, answers: Sequence[Answer]) -> bool:
    return not any(
        (other.id, other.evidence) == (finding.id, finding.evidence)
        for answer in answers
        for other in answer.findings
    )


def _is_installed(package: str) -> bool:
    try:
        version(package)
    except PackageNotFoundError:
        return False
    return True


def _install(package: str) -> Remedy:
    """Return the fix that installs a package in this program's environment."""
    pip = [sys.executable, "-m", "pip"]
    return Remedy(
        text=f"pip install {package}",
        carry_out=lambda: _run([*pip, "install", "--quiet", package]),
        undo=lambda: _run([*pip, "uninstall", "--yes", "--quiet", package]),
    )


def _close(path: Path) -> Remedy:
    """Return the fix that lets the owner alone read a file."""
    try:
        former = path.stat().st_mode & 0o777
    except OSError:
        former = 0o600

    def change(mode: int) -> str:
        try:
            os.chmod(path, mode)
        except OSError as error:
            return str(error.strerror)
        return ""

    return Remedy(
        text=f"chmod {former & 0o700:o} {path} (was {former:o})",
        carry_out=lambda: change(former & 0o700),
        undo=lambda: change(former),
    )


def _run(command: list[str]) -> str:
    try:
        done = run_program(command, _PATIENCE_S)
    except OSError as error:
        return str(error.strerror)
    if done.code is None:
        return f"it took more than {_PATIENCE_S:g} s"
    return "" if done.code == 0 else last_line(done.stderr or done.stdout)
