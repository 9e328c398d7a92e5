"""Every error that a user can meet, and the exit code each one ends in.

    TrainrigError
    ├── UsageError        2   the command line or an argument is wrong
    ├── DataError         2   a file is unreadable, foreign, truncated, older or newer
    ├── StoreError        3   the run cannot be written: disk full, no permission
    └── UnavailableError  3   a required step cannot run here: no torch, no device
        ├── NeedsGpuError 3   only GPUs have it, and this machine has none
        └── NeedsCompilerError 3   torch.compile, and nothing here compiles

A TrainrigError is one line for the user and, where there is one, a hint that
says what to do next.  Anything else that reaches the command line is our own
mistake and keeps its traceback.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from pydantic import ValidationError

# Exit codes are an interface (scripts and schedulers read them).
EXIT_OK = 0
EXIT_FINDING = 1
EXIT_USAGE = 2
EXIT_INCOMPLETE = 3
EXIT_INTERRUPTED = 130
DAMAGED_RUN = "trainrig report shows what is left of it; copy the run again, or measure again"
"""The hint of an error about a run that cannot be read whole."""


class TrainrigError(Exception):
    """One line for the user, a hint on what to do, and an exit code."""

    exit_code = EXIT_USAGE

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(TrainrigError):
    """The command line or an argument is wrong."""


class DataError(TrainrigError):
    """A file is unreadable, foreign, truncated, older or newer than this program."""


class StoreError(TrainrigError):
    """A run cannot be written: the disk is full, the folder is read-only."""

    exit_code = EXIT_INCOMPLETE


class UnavailableError(TrainrigError):
    """A required step cannot run on this machine."""

    exit_code = EXIT_INCOMPLETE


class NeedsCompilerError(UnavailableError):
    """What is asked for is compiled, and this machine has no compiler."""


class NeedsGpuError(UnavailableError):
    """Only GPUs have what was asked for: a machine without one has failed nothing."""


@contextmanager
def reading(path: Path, hint: str | None = None) -> Iterator[None]:
    """What the system refuses inside it is a DataError: ``cannot read PATH: Permission denied``."""
    try:
        yield
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}", hint) from None


def first_problem(error: ValidationError, whole: str = "the whole") -> str:
    """``field.subfield: what is wrong``, the first of a ValidationError, in one printable line.

    ``whole`` names what was validated where the problem lies in no field of it.
    """
    first = error.errors(include_url=False, include_input=False)[0]
    place = ".".join(str(part) for part in first["loc"]) or whole
    text = f"{place}: {first['msg']}"[:_LONGEST_PROBLEM]
    return "".join(letter if letter.isprintable() else "?" for letter in text)


_LONGEST_PROBLEM = 200


def unknown(what: str, word: str, known: Iterable[str], more: str = "") -> UsageError:
    """The error for a word that is none of ``known``: near ones, else all, or of many the closest.

    ``more`` is what else may be given, and ends the hint.
    """
    import difflib

    spelled = {name.lower(): name for name in known}
    shown = word if len(word) <= _SHOWN else word[: _SHOWN - 3] + "..."
    near = difflib.get_close_matches(word.lower()[:_SHOWN], spelled, n=3, cutoff=0.6)
    if near:
        hint = f"did you mean {' or '.join(spelled[name] for name in near)}?"
    elif len(spelled) <= _MOST_LISTED:
        hint = "one of: " + ", ".join(spelled.values())
    else:
        some = difflib.get_close_matches(word.lower()[:_SHOWN], spelled, n=3, cutoff=0.0)
        hint = f"one of {len(spelled)}: " + ", ".join(spelled[name] for name in some) + " ..."
    return UsageError(f"unknown {what} {shown!r}", hint + more)


_MOST_LISTED = 20


_SHOWN = 60
