"""Read a snapshot of another machine from files: kernel log, nvidia-smi -q, bug report.

Files may be packed (gzip, tar) or lie in a folder.  What they do not hold is missing, so that a
check of it says that it could not look.
"""

from __future__ import annotations

import dataclasses
import re
import shlex
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from trainrig.errors import DataError
from trainrig.importers import Reading, read_file
from trainrig.importers.file import STDIN, ToolFile
from trainrig.machine.health import DriverState, Health, HostSettings, KernelEvent, Toolchain
from trainrig.machine.kernel_log import events_in
from trainrig.machine.snapshot import Missing, Snapshot
from trainrig.runner.imported import blank, machine_of

_MOST_MEMBERS = 4096
_MOST_UNPACKED = 1 << 31
_NO_LOG = Missing("no kernel log in these files")


def snapshot_of(paths: Sequence[Path]) -> tuple[Snapshot, tuple[str, ...]]:
    """Return the snapshot in the files, and notes on files without one.

    Raises DataError where no file holds anything that is known here.
    """
    readings: list[Reading] = []
    events: list[KernelEvent] = []
    notes: list[str] = []
    results: list[Path] = []
    has_log = False
    with ExitStack() as stack:
        for path in _files(paths, stack):
            try:
                file = ToolFile(path)
                log_events = tuple(events_in(_log_lines(file)))
                is_log = bool(log_events) or file.is_kernel_log
            except DataError as error:
                notes.append(error.message)
                continue
            has_log = has_log or is_log
            events += log_events
            try:
                for tool, reading in read_file(path):
                    if reading.gpus or reading.links:
                        readings.append(reading)
                    else:
                        results.append(path)
                        notes.append(f"{file.name}: results of {tool}, which no check reads")
            except DataError as error:
                if not is_log:
                    notes.append(error.message)
    if not has_log and not readings:
        hint = "give a kernel log (dmesg, journalctl -k), nvidia-smi -q or nvidia-bug-report.log.gz"
        if results:
            names = " ".join(shlex.quote(str(path)) for path in dict.fromkeys(results))
            hint = f"they are judged by: trainrig import {names}"
        raise DataError(notes[0] if notes else "no file in it", hint)
    health = blank(
        Health,
        driver=blank(DriverState),
        toolchain=blank(Toolchain),
        settings=blank(HostSettings),
        kernel_log=tuple(events) if has_log else _NO_LOG,
    )
    return dataclasses.replace(machine_of(readings), health=health), tuple(notes)


def _log_lines(file: ToolFile) -> Iterator[str]:
    for line in file.lines():
        yield line.text


def _files(paths: Sequence[Path], stack: ExitStack) -> Iterator[Path]:
    """Yield the files named, and those in folders and archives.  Raises DataError."""
    for path in paths:
        if path != STDIN and path.is_dir():
            yield from sorted(file for file in path.rglob("*") if file.is_file())
        elif path != STDIN and path.is_file() and tarfile.is_tarfile(path):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            yield from _unpacked(path, folder)
        else:
            yield path


def _unpacked(path: Path, folder: Path) -> Iterator[Path]:
    """Yield the files of an archive, under names of our own.  Raises DataError."""
    size = 0
    try:
        with tarfile.open(path) as archive:
            for number, member in enumerate(archive):
                size += member.size
                if number >= _MOST_MEMBERS or size > _MOST_UNPACKED:
                    raise DataError(f"{path.name}: more than can be unpacked", "unpack it first")
                content = archive.extractfile(member) if member.isfile() else None
                if content is None:
                    continue
                name = re.sub(r"[^\w.-]", "_", Path(member.name).name)[-80:]
                target = folder / f"{number:04d}-{name}"
                with content, target.open("wb") as file:
                    while data := content.read(1 << 20):
                        file.write(data)
                yield target
    except (tarfile.TarError, OSError, EOFError) as error:
        raise DataError(f"{path.name}: damaged: {error}") from None
