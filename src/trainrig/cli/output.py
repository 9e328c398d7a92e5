"""Writing to a terminal, a pipe or a full disk: a reader that leaves must not cost the result."""

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


def is_stream_error(error: OSError) -> bool:
    """Whether writing to an open stream failed; an error about a file names the file."""
    return error.filename is None


def discard_stdout() -> None:
    """Send stdout to /dev/null, so that the interpreter's last flush cannot fail as well."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


@contextmanager
def best_effort() -> Iterator[None]:
    """Print results that are stored in files as well: a failure to print changes no exit code."""
    try:
        yield
        sys.stdout.flush()
    except OSError as error:
        if not is_stream_error(error):
            raise
        discard_stdout()
        if not isinstance(error, BrokenPipeError):
            print(f"trainrig: cannot write the output: {error.strerror}", file=sys.stderr)
