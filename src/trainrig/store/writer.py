"""Writing a run so that nothing that was measured can be lost.

Each record is one line, written by one call and synced to the disk.  A write
that fails half-way (disk full) is taken back to the last whole line, so that
the run on the disk stays valid and can be resumed.
"""

from __future__ import annotations

import dataclasses
import datetime
import errno
import fcntl
import json
import os
import shutil
import socket
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import tomli_w

from trainrig.errors import StoreError
from trainrig.record import SCHEMA_VERSION, Record, Verdict, to_json, verdict_to_json
from trainrig.store.run_folder import (
    CONFIG,
    LOGS,
    MACHINE,
    RECORDS,
    REPORT,
    SERIES,
    VERDICT,
    host_in_name,
    parse_config,
    read_file,
)


class RunWriter:
    """An open run: the only way that records reach the disk.

    Holds a lock on records.jsonl, so that a run has one writer; use it as a
    context manager.
    """

    def __init__(self, path: Path) -> None:
        """Open the folder of an existing run for appending.

        Raises StoreError when it cannot be written or another process writes it.
        """
        self.path = path
        self.name = path.name
        with store_errors(path):
            (path / SERIES).mkdir(exist_ok=True)
            (path / LOGS).mkdir(exist_ok=True)
            self._records = _LineFile(path / RECORDS)
        self._series: dict[str, _LineFile] = {}

    def __enter__(self) -> RunWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def append(self, record: Record) -> Record:
        """Write one record, synced to the disk, and return it with its run's name.

        Raises StoreError if the disk is full; the records before it stay whole.
        """
        named = record.replace(run=self.name)
        self._records.append(to_json(named), sync=True)
        return named

    def append_series(self, name: str, row: Mapping[str, Any]) -> None:
        """Add one sample to ``series/<name>.jsonl``; flushed, not synced."""
        if name not in self._series:
            with store_errors(self.path):
                self._series[name] = _LineFile(self.path / SERIES / f"{name}.jsonl")
        line = json.dumps(row, ensure_ascii=False, separators=(",", ":"))
        self._series[name].append(line, sync=False)

    def write_machine(self, machine: Mapping[str, Any]) -> None:
        """Store the machine's snapshot."""
        text = json.dumps(machine, indent=1, ensure_ascii=False, allow_nan=False)
        write_atomic(self.path / MACHINE, text)

    def write_verdict(self, verdict: Verdict) -> None:
        """Store the verdict with the number of records that it rests on: the run is complete."""
        with store_errors(self.path):
            num_records = (self.path / RECORDS).read_bytes().count(b"\n")
        counted = dataclasses.replace(verdict, num_records=num_records)
        write_atomic(self.path / VERDICT, verdict_to_json(counted))

    def reopen(self) -> None:
        """Take the verdict back: more is about to be measured."""
        with store_errors(self.path):
            (self.path / VERDICT).unlink(missing_ok=True)

    def discard(self) -> None:
        """Remove the run: what was asked for was refused before anything was measured."""
        self.close()
        shutil.rmtree(self.path, ignore_errors=True)

    def write_report(self, html: str) -> Path:
        """Store the HTML report and return its path."""
        write_atomic(self.path / REPORT, html)
        return self.path / REPORT

    def log_path(self, name: str) -> Path:
        """Return where a worker's stderr goes."""
        return self.path / LOGS / f"{name}.log"

    def close(self) -> None:
        """Release the run."""
        for file in (self._records, *self._series.values()):
            file.close()


def create_run(parent: Path, verb: str, config: Mapping[str, Any]) -> RunWriter:
    """Make a new run folder in ``parent`` and open it.

    The folder gets its name only when its run.toml is inside, so that a run is
    readable from the moment it can be seen.  ``config`` must be TOML-able (no
    None).  Raises StoreError when ``parent`` cannot be made or written.
    """
    now = datetime.datetime.now(datetime.UTC)
    host = host_in_name(socket.gethostname()) or "host"
    with store_errors(parent):
        parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=".run-", dir=parent))
        try:
            name = f"{now:%Y%m%dT%H%M%SZ}-{host}-{verb}-{draft.name[-6:].replace('_', '0')}"
            head = {"schema": SCHEMA_VERSION, "name": name, "verb": verb, "started": now}
            text = tomli_w.dumps({**head, **config, **head})
            # An undecodable byte of an argument is no UTF-8, and must not cost the run.
            (draft / CONFIG).write_text(text, encoding="utf-8", errors="replace")
            (draft / RECORDS).touch()
            draft.chmod(0o755)
            path = draft.rename(parent / name)
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise
    return RunWriter(path)


def resume_run(path: Path) -> RunWriter:
    """Open an existing run to go on; a torn last line is cut off first.

    Raises DataError for what is not a run of this schema, StoreError when it
    cannot be written.
    """
    parse_config(read_file(path / CONFIG), path)
    return RunWriter(path)


def write_atomic(path: Path, content: str | bytes) -> None:
    """Write a whole file or leave the old one; never half of it.

    A device or a pipe (/dev/stdout) is written into: renaming would put a file in its
    place.  Raises StoreError when it cannot be written.
    """
    data = content if isinstance(content, bytes) else content.encode("utf-8", "replace")
    with store_errors(path):
        if path.exists() and not path.is_file():
            path.write_bytes(data)
            return
        handle, draft = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(draft, 0o644)
            os.replace(draft, path)
        except BaseException:
            Path(draft).unlink(missing_ok=True)
            raise


def log_in(folder: Path, name: str) -> Path:
    """Return the path of a new, empty file ``name`` in ``folder``, which is made if need be.

    Raises StoreError when it cannot be written.
    """
    with store_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    return folder / name


class _LineFile:
    """A file of lines that is only ever extended by whole lines, by one writer."""

    def __init__(self, path: Path) -> None:
        self._path = path
        # A link would let a stranger's run cut the last line of a file that is none of its own.
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        try:
            if not stat.S_ISREG(os.fstat(self._fd).st_mode):
                raise OSError(errno.EINVAL, "not a plain file")
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._end = _end_of_whole_lines(self._fd)
            os.ftruncate(self._fd, self._end)
        except BlockingIOError:
            self.close()
            raise StoreError(
                f"another process is writing {path.parent}", "wait for it, or start a new run"
            ) from None
        except OSError:
            self.close()
            raise

    def append(self, line: str, *, sync: bool) -> None:
        data = line.encode("utf-8", "replace") + b"\n"
        try:
            written = 0
            while written < len(data):
                written += os.pwrite(self._fd, data[written:], self._end + written)
            if sync:
                os.fsync(self._fd)
        except OSError as error:
            with suppress(OSError):  # a disk that is gone: the reader drops the torn line
                os.ftruncate(self._fd, self._end)
            raise _store_error(error, self._path) from None
        self._end += len(data)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _end_of_whole_lines(fd: int) -> int:
    """Return the offset behind the last newline, found from the end of the file."""
    end = os.fstat(fd).st_size
    while end > 0:
        start = max(0, end - 65536)
        newline = os.pread(fd, end - start, start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0


@contextmanager
def draft_folder(out: Path) -> Iterator[Path]:
    """A folder beside ``out`` that becomes it when all went well, and is gone otherwise.

    ``out`` is not there, or is empty.  Raises StoreError.
    """
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=f".draft-{out.name}-", dir=out.parent))
        try:
            yield draft
            draft.chmod(0o755)
            draft.rename(out)
        except BaseException:  # Ctrl-C too leaves nothing behind
            shutil.rmtree(draft, ignore_errors=True)
            raise
    except OSError as error:
        words = f"cannot write {out}: {error.strerror}"
        raise StoreError(words, "name another folder with --out") from None


@contextmanager
def store_errors(path: Path) -> Iterator[None]:
    """Turn an OSError of writing into a StoreError."""
    try:
        yield
    except OSError as error:
        raise _store_error(error, path) from None


def _store_error(error: OSError, path: Path) -> StoreError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        hint = "free some space, then go on with --resume; what was written is whole"
        if not any((folder / CONFIG).is_file() for folder in (path, *path.parents)[:3]):
            hint = "free some space, or name another folder"  # no run goes on here
        return StoreError(f"the disk is full: cannot write {path}", hint)
    reason = error.strerror or str(error)
    return StoreError(
        f"cannot write {path}: {reason}", "name another folder, which can be written to"
    )
