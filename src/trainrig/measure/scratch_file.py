"""A file on a disk to measure it with: without a name, of known content, and checked.

The file has no name from the moment it exists (O_TMPFILE, or unlinked at once where
the file system has no such thing), so that nothing is left behind however the
program ends; other programs open it as /proc/self/fd/N.  It is written past the
page cache (O_DIRECT) with bytes that no compression shrinks and no two blocks of
which are equal, and read back before anything is timed.

A disk is never filled: one file takes at most MAX_BYTES and MAX_SHARE_OF_FREE of
what is free, and there are two workers.
"""

from __future__ import annotations

import mmap
import os
import random
import tempfile
import time
from collections.abc import Iterable
from contextlib import suppress

from trainrig.benchmarks.storage import BLOCK, PAGE, allowed_bytes
from trainrig.errors import UnavailableError
from trainrig.measure.timing import Unsupported
from trainrig.units import format_memory, format_time

# A disk that takes longer than this is shown with a smaller file.
_MAX_LAYOUT_S = 10.0
_NUM_SAMPLED = 32
# An odd step modulo BLOCK: as many different blocks as it has bytes.
_STEP = 2039
_GENERATION_STEP = 524_309


def free_bytes(folder: str) -> int:
    """Return the free bytes for an ordinary user in a folder.  Raises UnavailableError."""
    try:
        status = os.statvfs(folder)
    except OSError as error:
        raise UnavailableError(f"{folder}: {_words(error)}") from None
    return status.f_bavail * status.f_frsize


def probe(folder: str) -> None:
    """Make a file without a name and open it for direct I/O; nothing is written.

    Raises Unsupported where there is no direct I/O, UnavailableError where no file can be made.
    """
    file = _nameless(folder)
    try:
        os.close(_open_direct(file, folder))
    finally:
        os.close(file)


class Scratch:
    """The file.  ``close`` it, or let the process end."""

    def __init__(self, folder: str, size: int) -> None:
        """Lay down ``size`` bytes, a multiple of BLOCK, in ``folder``.

        Raises Unsupported and UnavailableError.
        """
        assert size % BLOCK == 0 and size > 0
        free = free_bytes(folder)
        if size > allowed_bytes(free):
            raise Unsupported(
                f"{format_memory(size)} is more than a fortieth of the {format_memory(free)} "
                f"that are free in {folder}"
            )
        self.folder, self.size = folder, size
        self.file = _nameless(folder)
        """Descriptor through the page cache."""
        self.direct = _open_direct(self.file, folder)
        """Descriptor past it."""
        self._buffer = mmap.mmap(-1, BLOCK)  # aligned to a page, as direct I/O wants
        self._base = random.Random(size).randbytes(2 * BLOCK)
        self._generation = 0
        self._seen_whole = False
        try:
            self.lay_down()
        except UnavailableError:
            self.close()
            raise

    @property
    def path(self) -> str:
        """Path by which this process, and a child that inherits ``file``, can open it."""
        return f"/proc/self/fd/{self.file}"

    def close(self) -> None:
        """Give the space back."""
        for descriptor in (self.direct, self.file):
            with suppress(OSError):
                os.close(descriptor)

    def content(self, block: int) -> bytes:
        """Return the content that block number ``block`` was written with."""
        start = (block * _STEP + self._generation * _GENERATION_STEP) % BLOCK
        return self._base[start : start + BLOCK]

    def lay_down(self) -> None:
        """Write the whole file anew, with other content than before."""
        self._generation += 1
        start = time.monotonic()
        for block in range(self.size // BLOCK):
            self._buffer[:] = self.content(block)
            try:
                count = os.pwrite(self.direct, self._buffer, block * BLOCK)
            except OSError as error:
                raise UnavailableError(f"{self.folder}: {_words(error)}") from None
            if count != BLOCK:
                raise UnavailableError(f"{self.folder}: a block was written in part")
            if time.monotonic() - start > _MAX_LAYOUT_S:
                raise UnavailableError(
                    f"{self.folder}: only {format_memory((block + 1) * BLOCK)} written in "
                    f"{format_time(_MAX_LAYOUT_S)}",
                    "measure with a smaller file: trainrig bench storage --size 16MiB",
                )

    def read(self, start: int, count: int = PAGE) -> bytes:
        """Read bytes past the page cache; both numbers are multiples of PAGE."""
        read = os.preadv(self.direct, [memoryview(self._buffer)[:count]], start)
        return self._buffer[:read]

    def wrong(self) -> str | None:
        """Read back and compare: every block the first time, some of them later."""
        count = self.size // BLOCK
        blocks = range(count) if not self._seen_whole else spread(count, _NUM_SAMPLED)
        bad = [block for block in blocks if self.read(block * BLOCK, BLOCK) != self.content(block)]
        self._seen_whole = True
        if not bad:
            return None
        return f"{len(bad)} of {len(blocks)} blocks read back are not what was written"


def spread(count: int, wanted: int) -> list[int]:
    """At most ``wanted`` of the numbers below ``count``, evenly spread, both ends included."""
    if count <= wanted:
        return list(range(count))
    return [round(step * (count - 1) / (wanted - 1)) for step in range(wanted)]


def unchanged(scratch: Scratch, starts: Iterable[int]) -> int:
    """Count the pages at ``starts`` that still hold their original content."""
    num_unchanged = 0
    for start in starts:
        block, offset = divmod(start, BLOCK)
        num_unchanged += scratch.read(start) == scratch.content(block)[offset : offset + PAGE]
    return num_unchanged


def _nameless(folder: str) -> int:
    """Return a descriptor of a new file that has no name."""
    try:
        with suppress(OSError):  # not every file system has it
            return os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o600)
        file, name = tempfile.mkstemp(prefix=".trainrig-", dir=folder)
        os.unlink(name)
    except OSError as error:
        raise UnavailableError(f"{folder}: {_words(error)}") from None
    return file


def _open_direct(file: int, folder: str) -> int:
    try:
        return os.open(f"/proc/self/fd/{file}", os.O_RDWR | os.O_DIRECT)
    except OSError as error:
        raise Unsupported(
            f"{folder} has no direct I/O ({_words(error)}): its page cache would be measured"
        ) from None


def _words(error: OSError) -> str:
    return (error.strerror or type(error).__name__).lower()
