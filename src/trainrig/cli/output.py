"""Writing to a terminal, a pipe or a full disk: what is not ours must not cost the result."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.console import Console


def prepare_streams() -> None:
    """Let every text be printed: by its nearest characters, and to nowhere if stdout is closed."""
    for name in ("stdout", "stderr"):
        stream: TextIO | None = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - open until the end
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


def console() -> Console:
    """A rich console on stdout that leaves a broken pipe to the caller.

    rich's own ends the process with exit code 1, which here means a finding.
    """
    from rich.console import Console

    class _Console(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    return _Console(highlight=False, emoji=False)


def is_ascii() -> bool:
    """Whether stdout has no letters but the plain ones."""
    return not (sys.stdout.encoding or "").lower().startswith("utf")


def is_of_a_stream(error: OSError) -> bool:
    """Whether it comes from writing to an open stream; an error about a file names the file."""
    return error.filename is None


def forget_stdout() -> None:
    """Nobody reads it, or it cannot be written: let the interpreter's last flush not fail too."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


@contextmanager
def unread() -> Iterator[None]:
    """Print inside it what is kept in files as well: if it cannot be written, so be it.

    The exit code stays the verdict's.
    """
    try:
        yield
        sys.stdout.flush()
    except OSError as error:
        if not is_of_a_stream(error):
            raise
        forget_stdout()
        if not isinstance(error, BrokenPipeError):
            print(f"trainrig: cannot write the output: {error.strerror}", file=sys.stderr)
