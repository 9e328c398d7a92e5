"""What is stored: bundles whose bytes were changed, run folders that were, a disk that is full.

The full disk is one whose kernel says so: `os.pwrite` takes what still fits and then fails as a
full file system makes it fail.  The writer above it is the real one, on real files.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

from trainrig.benchmarks.matmul import BENCHMARK as MATMUL
from trainrig.errors import TrainrigError
from trainrig.record import Kind, Outcome, Record, Verdict
from trainrig.selftest.registry import HEALTHY, Fault
from trainrig.store import create_run, pack, read_run
from trainrig.store.bundle import open_bundle

_FULL_AT = 4096
"""Bytes that still fit on the disk."""
_RECORDS = 16


def faults() -> Iterator[Fault]:
    """Bits of a bundle, its length, a run's lines, a full disk."""
    places = [f"{share} % of the way, bit {bit}" for share in range(0, 100, 4) for bit in (0, 3, 7)]
    yield Fault(
        name="a flipped bit in a bundle",
        check="bundle.hash",
        inject=_bundle,
        observe=_opened,
        says="hash",
        variants=places,
        twin="bundle",
    )
    yield Fault(
        name="a bundle that was cut off",
        check="bundle.hash",
        inject=_bundle,
        observe=_opened,
        says="hash",
        variants=("cut 1", "cut 100"),
        twin="bundle",
    )
    yield Fault(
        name="a full disk",
        check="store.write",
        inject=_disk,
        observe=_written,
        says="full",
    )
    yield Fault(
        name="a line of records.jsonl that was changed",
        check="store.read",
        inject=_run_folder,
        observe=_read,
        says="records",
    )


def _write_run(parent: Path) -> Path:
    with create_run(parent, "bench", {"verb": "bench"}) as run:
        for number in range(_RECORDS):
            run.append(
                Record(
                    kind=Kind.MEASURED,
                    benchmark=MATMUL.name,
                    case={"dtype": "fp32", "m": number, "k": 64, "n": 64},
                    metric="flop_rate",
                    unit="FLOP/s",
                    value=1e12 + number,
                    device="Test CPU",
                )
            )
        run.write_verdict(Verdict(outcome=Outcome.MEASURED, reason="self-test"))
        return run.path


@contextmanager
def _bundle(folder: Path, variant: Any) -> Iterator[Path]:
    target, data = folder / "evidence.bundle", bytearray(_packed())
    start = data.index(b"\n") + 1
    match variant.split() if variant is not HEALTHY else ():
        case ["cut", count]:
            del data[-int(count) :]
        case [share, *_, bit]:
            data[start + (len(data) - start) * int(share) // 100] ^= 1 << int(bit)
    target.write_bytes(data)
    yield target


@cache
def _packed() -> bytes:
    """Return a bundle as `pack` makes it."""
    with TemporaryDirectory(prefix="trainrig-selftest-") as folder:
        target = Path(folder) / "whole.bundle"
        pack(_write_run(Path(folder)), target)
        return target.read_bytes()


def _opened(path: Path) -> Iterable[str]:
    return _refused(lambda: open_bundle(path))


@contextmanager
def _run_folder(folder: Path, variant: Any) -> Iterator[Path]:
    run = _write_run(folder)
    if variant is not HEALTHY:
        records = run / "records.jsonl"
        lines = records.read_bytes().splitlines(keepends=True)
        lines[3] = lines[3].replace(b'"', b"'", 1)
        records.write_bytes(b"".join(lines))
    yield run


def _read(path: Path) -> Iterable[str]:
    return _refused(lambda: read_run(path))


@contextmanager
def _disk(folder: Path, variant: Any) -> Iterator[Path]:
    if variant is HEALTHY:
        yield folder
        return
    bytes_left, write = _FULL_AT, os.pwrite

    def full(fd: int, data: bytes, place: int) -> int:
        nonlocal bytes_left
        if not bytes_left:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        done = write(fd, data[:bytes_left], place)
        bytes_left -= done
        return done

    with mock.patch("os.pwrite", full):
        yield folder


def _written(folder: Path) -> Iterable[str]:
    return _refused(lambda: _write_run(folder))


def _refused(work: Any) -> Iterable[str]:
    try:
        work()
    except TrainrigError as error:
        return [f"{error.message}; {error.hint}"]
    return []
