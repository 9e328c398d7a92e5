"""Run `benchmarks.storage` by fio, by Python where fio is missing, or by the data loader.

Answers: the file is read back and compared before and after.  Each page that a timed
write should have changed is looked at (evenly spread ones of many), then the file
is written anew and read back.
"""

from __future__ import annotations

import mmap
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any

from trainrig.benchmarks.spec import size_in
from trainrig.benchmarks.storage import PAGE, WRITES
from trainrig.errors import UnavailableError
from trainrig.importers.fio_json import FioStatus
from trainrig.measure import fio
from trainrig.measure.disk_activity import folder_of, is_disk
from trainrig.measure.scratch_file import Scratch, spread, unchanged
from trainrig.measure.timing import (
    Prepared,
    Samples,
    SelfTimed,
    Settings,
    Unsupported,
    from_another_loop,
)
from trainrig.record import Case

if TYPE_CHECKING:
    from trainrig.data.loader import Loader

# A run of fio shorter than this is mostly its start.
_MIN_FIO_S = 0.5
# No run writes more than this: flash wears out.
_MAX_WRITTEN = 8 << 30
_NUM_LOOKED_AT = 256


@dataclass(slots=True, kw_only=True)
class _Session:
    """Scratch file that a worker keeps between cases of one size."""

    scratch: Scratch | None = None
    loader: Loader[Any] | None = None

    def file(self, folder: str, size: int) -> Scratch:
        """Return the file for the next case, after ending what the last case left running."""
        self._end_loader()
        if self.scratch is None or (self.scratch.folder, self.scratch.size) != (folder, size):
            self.close()
            self.scratch = Scratch(folder, size)
        return self.scratch

    def close(self) -> None:
        """Give everything back."""
        self._end_loader()
        if self.scratch is not None:
            self.scratch.close()
            self.scratch = None

    def _end_loader(self) -> None:
        if self.loader is not None:
            self.loader.close()
            self.loader = None


SESSION = _Session()


def prepare(case: Case, device: str) -> Prepared | SelfTimed:
    """Prepare a file of the case's size; return the operation to time and its check."""
    if not is_disk(device):
        raise Unsupported(f"storage is for a folder on a disk, not for {device}")
    tool = str(case["tool"])
    why_not = fio.unusable() if tool == "fio" else None
    if why_not is not None:
        raise Unsupported(why_not)
    scratch = SESSION.file(folder_of(device), size_in(case, "bytes"))
    if tool == "loader":
        return _loader(case, scratch)
    return _by_fio(case, scratch) if tool == "fio" else _by_python(case, scratch)


@dataclass(slots=True, kw_only=True)
class _Written:
    """Pages that the timed calls wrote, and their expected content."""

    pages: set[int] = field(default_factory=set)
    """Offsets of the pages in the file, in bytes."""
    content: bytes | None = None
    """Expected content of each block's first page; None: anything but the original."""


def _checker(scratch: Scratch, written: _Written) -> Callable[[], str | None]:
    """Look at what the timed calls wrote; then the whole file has to hold what is laid down."""

    def wrong() -> str | None:
        error = None
        if written.pages:
            error = wrong_pages(scratch, written)
            written.pages.clear()
            scratch.lay_down()
        return error or scratch.wrong()

    return wrong


def wrong_pages(scratch: Scratch, written: _Written) -> str | None:
    """Return what is wrong with the pages that should have been written, or None."""
    pages = sorted(written.pages)
    looked_at = [pages[index] for index in spread(len(pages), _NUM_LOOKED_AT)]
    if written.content is None:
        bad = unchanged(scratch, looked_at)
    else:
        bad = sum(scratch.read(page) != written.content for page in looked_at)
    return f"{bad} of {len(looked_at)} blocks do not hold what was written" if bad else None


def _by_fio(case: Case, scratch: Scratch) -> SelfTimed:
    op = str(case["op"])
    written = _Written()

    def sample(settings: Settings) -> Samples:
        seconds = max(settings.max_time, _MIN_FIO_S)
        statuses = fio.run(fio_options(case), scratch.file, seconds)
        if op in WRITES:
            total = min(statuses[-1].jobs[0].write.io_bytes, scratch.size)
            written.pages = set(range(0, total, size_in(case, "block")))
        return samples_of(case, statuses, settings)

    return SelfTimed(sample=sample, wrong=_checker(scratch, written))


def fio_options(case: Case) -> list[str]:
    """Return fio's options besides the file and the time."""
    op = str(case["op"])
    direct = ["--ioengine=libaio", "--direct=1", f"--iodepth={case['depth']}"]
    pattern_options = {
        "fsync": ["--rw=write", "--ioengine=psync", "--fsync=1"],
        "flushed-write": ["--rw=write", *direct, "--fdatasync=1"],
    }.get(op, [f"--rw={op}", *direct])
    max_bytes = _MAX_WRITTEN if op in WRITES else 1 << 50
    return [
        *pattern_options,
        f"--bs={case['block']}",
        f"--size={case['bytes']}",
        f"--io_size={max_bytes}",
    ]


def samples_of(case: Case, statuses: Sequence[FioStatus], settings: Settings) -> Samples:
    """Return samples from fio's counters, without the warm-up.  UnavailableError if none."""
    op = str(case["op"])
    way = {"randread": "read", "fsync": "sync", "flushed-write": "write"}.get(op, op)
    if op == "fsync":
        windows = fio.sync_windows(statuses)
    else:
        windows = fio.io_windows(statuses, way, size_in(case, "block"))
    warm = settings.max_time / 10.0 if settings.warmup_time is None else settings.warmup_time
    remaining = [window for window in windows if window.end > warm] or list(windows)
    if not remaining:
        raise UnavailableError("fio ended before anything could be counted")
    calls = round(sum(window.num_calls for window in remaining) / len(remaining))
    facts: Case = {"clock": statuses[-1].version, **fio.latencies(statuses[-1], way)}
    return from_another_loop([window.call for window in remaining], calls, settings.target, facts)


def _by_python(case: Case, scratch: Scratch) -> Prepared:
    """Read or write one block at a time with `os` calls, under the timing loop."""
    op, block = str(case["op"]), size_in(case, "block")
    places = range(0, scratch.size, block)
    order = list(places)
    if op == "randread":
        random.Random(scratch.size).shuffle(order)
    written, turn = _Written(), count()
    buffer = mmap.mmap(-1, block)

    def next_place() -> int:
        return order[next(turn) % len(order)]

    def read() -> None:
        if os.preadv(scratch.direct, [buffer], next_place()) != block:
            raise UnavailableError("a block was read in part")

    def write() -> None:
        place = next_place()
        written.pages.add(place)
        if os.pwrite(scratch.direct, buffer, place) != block:
            raise UnavailableError("a block was written in part")

    def write_and_flush() -> None:
        write()
        os.fdatasync(scratch.direct)

    def write_and_sync() -> None:
        place = next_place()
        written.pages.add(place)
        os.pwrite(scratch.file, buffer, place)
        os.fsync(scratch.file)

    if op in WRITES:
        buffer[:] = random.Random(block).randbytes(block)
        written.content = buffer[:PAGE]
    writes = {"write": write, "flushed-write": write_and_flush, "fsync": write_and_sync}
    call = writes.get(op, read)
    return Prepared(call=call, wrong=_checker(scratch, written))


def _loader(case: Case, scratch: Scratch) -> Prepared:
    """Run the training data loader over the file's bytes as token ids."""
    import numpy as np

    from trainrig.data.batches import CausalBatches, Shard
    from trainrig.data.loader import Loader

    tokens = np.memmap(scratch.path, dtype="<u2", mode="r")
    int(tokens.sum(dtype=np.uint64))  # into the page cache
    batches = CausalBatches(
        tokens=tokens,
        seq_len=size_in(case, "seq_len"),
        shard=Shard(batch=size_in(case, "batch_size")),
    )
    loader = SESSION.loader = Loader(batches)

    def wrong() -> str | None:
        step = loader.step
        batch = next(loader)
        shape = (size_in(case, "batch_size"), size_in(case, "seq_len"))
        if batch.inputs.shape != shape or not np.array_equal(
            batch.inputs[:, 1:], batch.labels[:, :-1]
        ):
            return "a batch's labels are not its next tokens"
        repeated = batches(step)
        if not np.array_equal(batch.inputs, repeated.inputs):
            return f"the loader's batch {step} is not that of its step"
        return scratch.wrong()

    return Prepared(call=lambda: next(loader), wrong=wrong)
