"""Where a rank is at this moment, in the 256 bytes that `trainrig.train.telling` reads.

They are shared memory: to write them costs no system call, and what was written last can be read
when the rank hangs, or is no more.  Imports the standard library alone.
"""

from __future__ import annotations

import mmap
from pathlib import Path

_SIZE = 256


class Place:
    """Step, part and the collective that is waited in, of one rank."""

    def __init__(self) -> None:
        self._memory: mmap.mmap | None = None
        self._step, self._part, self._operation = 0, "start", ""

    def open(self, folder: Path, rank: int) -> None:
        """From now on it is told in ``folder``."""
        with (folder / f"where-{rank}").open("wb+") as file:
            file.write(bytes(_SIZE))  # a hole would be filled later, and on a full disk kill us
            file.flush()
            self._memory = mmap.mmap(file.fileno(), _SIZE)

    def at(
        self, *, step: int | None = None, part: str | None = None, operation: str | None = ""
    ) -> None:
        """Where the rank is from now on; what is None stays, without an operation it computes."""
        self._step = self._step if step is None else step
        self._part = self._part if part is None else part
        self._operation = self._operation if operation is None else operation
        if self._memory is not None:
            text = f"{self._step}|{self._part}|{self._operation}".encode()[: _SIZE - 1]
            self._memory[: len(text) + 1] = text + b"\0"


PLACE = Place()
"""Of this process: it is one rank."""
