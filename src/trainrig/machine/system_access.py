"""The host: reading files, listing folders and running commands, and nothing else.

Every probe looks at the machine through the `Host` protocol, so that it can be
tested on captured files and outputs.  No method raises: what cannot be read is
`Missing` with the reason.  Nothing here writes.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable, Mapping
from typing import BinaryIO, Protocol, TypeVar

from trainrig.machine.snapshot import Missing, if_known
from trainrig.process.programs import last_line, run_program

COMMAND_TIMEOUT_S = 1.0
T = TypeVar("T")

# /proc/cpuinfo of 512 threads is about 800 kB, pci.ids 1.5 MB.
_MAX_BYTES = 8_000_000
_PIECE_BYTES = 65_536


class Host(Protocol):
    """Interface through which probes look at a machine."""

    @property
    def environment(self) -> Mapping[str, str]:
        """Environment variables of this process."""
        ...

    def read(self, path: str) -> str | Missing:
        """Return the text of a file, stripped of white space at its ends."""
        ...

    def names(self, path: str) -> tuple[str, ...] | Missing:
        """Return names in a folder, sorted."""
        ...

    def resolve(self, path: str) -> str | Missing:
        """Return the path at the end of a symbolic link."""
        ...

    def link_text(self, path: str) -> str | Missing:
        """Return the text of a symbolic link, which may lead nowhere: ``socket:[4242]``."""
        ...

    def mode(self, path: str) -> int | Missing:
        """Return the permission bits of a file."""
        ...

    def capacity_bytes(self, path: str) -> int | Missing:
        """Return size of the file system that a path lies on."""
        ...

    def run(
        self, *command: str, timeout_s: float = COMMAND_TIMEOUT_S, any_exit: bool = False
    ) -> str | Missing:
        """Return a command's output on stdout; of a failed one only with ``any_exit``."""
        ...

    def usable_threads(self) -> int | Missing:
        """Return logical processors that this process may run on."""
        ...


class ThisMachine:
    """The machine the program runs on."""

    @property
    def environment(self) -> Mapping[str, str]:
        return os.environ

    def read(self, path: str) -> str | Missing:
        try:
            # A path may come from another user's command line: a pipe would wait for ever, and
            # a device may act on being opened.
            mode = os.stat(path).st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                return Missing(f"{path}: not a file")
            with open(path, "rb", buffering=0) as file:
                return _content(file).decode("utf-8", "replace").strip()
        except OSError as error:
            return Missing(f"{path}: {_reason(error)}")
        except ValueError:
            return Missing(f"{path!r} is not a path")

    def names(self, path: str) -> tuple[str, ...] | Missing:
        return _answer(path, lambda: tuple(sorted(os.listdir(path))))

    def resolve(self, path: str) -> str | Missing:
        return _answer(path, lambda: os.path.realpath(path, strict=True))

    def link_text(self, path: str) -> str | Missing:
        return _answer(path, lambda: os.readlink(path))

    def mode(self, path: str) -> int | Missing:
        return _answer(path, lambda: stat.S_IMODE(os.stat(path).st_mode))

    def capacity_bytes(self, path: str) -> int | Missing:
        answer = _answer(path, lambda: os.statvfs(path))
        return if_known(lambda status: status.f_frsize * status.f_blocks, answer)

    def run(
        self, *command: str, timeout_s: float = COMMAND_TIMEOUT_S, any_exit: bool = False
    ) -> str | Missing:
        return run_command(command, timeout_s, any_exit=any_exit)

    def usable_threads(self) -> int | Missing:
        if not hasattr(os, "sched_getaffinity"):
            return Missing("this system has no CPU affinity")
        return len(os.sched_getaffinity(0))


def _answer(path: str, ask: Callable[[], T]) -> T | Missing:
    try:
        return ask()
    except OSError as error:
        return Missing(f"{path}: {_reason(error)}")


def _content(file: BinaryIO) -> bytes:
    """Return a file's first `_MAX_BYTES` bytes, piece by piece.

    The kernel sets a buffer aside for a whole read of /proc/sys and refuses a large one.
    """
    pieces, size = [], 0
    while size < _MAX_BYTES and (piece := file.read(_PIECE_BYTES)):
        pieces.append(piece)
        size += len(piece)
    return b"".join(pieces)


def run_command(
    command: tuple[str, ...], timeout_s: float, *, any_exit: bool = False
) -> str | Missing:
    """Return the output of `command` within `timeout_s` seconds, or why there is none.

    ``any_exit``: what it prints counts whatever its exit code is.
    """
    name = os.path.basename(command[0])
    # The folders of system tools stand behind PATH, which often lacks them.
    folders = [os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"]
    program = shutil.which(command[0], path=os.pathsep.join(folders))
    if program is None:
        return Missing(f"{name} is not installed")
    try:
        done = run_program([program, *command[1:]], timeout_s, env={**os.environ, "LC_ALL": "C"})
    except OSError as error:
        return Missing(f"{name}: {_reason(error)}")
    if done.code is None:
        return Missing(f"{name} did not answer in {timeout_s:g} s")
    if done.code != 0 and not (any_exit and done.stdout.strip()):
        ending = f"ended by signal {-done.code}" if done.code < 0 else f"exit code {done.code}"
        return Missing(f"{name}: {last_line(done.stderr or done.stdout, ending)}")
    return done.stdout[:_MAX_BYTES].decode("utf-8", "replace")


def _reason(error: OSError) -> str:
    return (error.strerror or type(error).__name__).lower()
