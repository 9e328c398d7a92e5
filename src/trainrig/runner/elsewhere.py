"""A machine as its files describe it: a kernel's log, nvidia-smi -q, lspci, a bug report.

Files may be packed (gzip, tar) or lie in a folder, and one may hold the outputs of many tools.
What they do not hold is missing, so that a check of it says that it could not look.
"""

from __future__ import annotations

import dataclasses
import re
import shlex
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from trainrig.errors import DataError
from trainrig.importers import Reading, read_file
from trainrig.importers.extract import device_name
from trainrig.importers.file import STDIN, ToolFile
from trainrig.machine.captured import CapturedHost, sections
from trainrig.machine.cpu import cpu_info
from trainrig.machine.disks import disks
from trainrig.machine.driver_state import driver_state
from trainrig.machine.health import Health, KernelEvent, Toolchain
from trainrig.machine.host_state import filesystems, settings
from trainrig.machine.kernel_log import events_in
from trainrig.machine.lspci import parse_lspci
from trainrig.machine.memory import memory_info
from trainrig.machine.smart import disk_health
from trainrig.machine.snapshot import Missing, Snapshot, if_known, value_or
from trainrig.runner.imported import blank, machine_of

_MOST_MEMBERS = 4096
_MOST_UNPACKED = 1 << 31
_NO_LOG = Missing("no kernel log in these files")


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherMachine:
    """A machine that only files describe."""

    snapshot: Snapshot
    notes: tuple[str, ...]
    """Files, or parts of them, that no check reads, a sentence each."""
    incomplete: frozenset[str]
    """Facts of which the files hold a part, by path: what is in them is a finding, and what is not
    in them may be elsewhere."""


def snapshot_of(paths: Sequence[Path]) -> OtherMachine:
    """Return the machine that the files describe.

    Raises DataError where no file holds anything that is known here.
    """
    gathered = _Gathered()
    with ExitStack() as stack:
        for path in _files(paths, stack):
            gathered.read(path)
    gathered.check()
    host = gathered.host
    on_bus = parse_lspci(host.run("lspci"))
    gathered.notes += _strangers(gathered.readings)
    if on_bus == ():
        gathered.notes.append("lspci lists no GPU in these files")
    has_log = gathered.has_log or bool(gathered.events)
    health = blank(
        Health,
        driver=driver_state(host),
        bus=if_known(lambda gpus: tuple(state for _, state in gpus), on_bus),
        kernel_log=tuple(gathered.events) if has_log else _NO_LOG,
        disks=disk_health(host, host.disk_names),
        filesystems=filesystems(host),
        toolchain=blank(Toolchain),
        settings=settings(host),
    )
    snapshot = dataclasses.replace(
        machine_of(gathered.readings),
        cpu=cpu_info(host),
        memory=memory_info(host),
        disks=disks(host),
        pci_gpus=if_known(lambda gpus: tuple(gpu for gpu, _ in gpus), on_bus),
        health=health,
    )
    incomplete = frozenset() if gathered.has_log else frozenset(["health.kernel_log"])
    return OtherMachine(snapshot=snapshot, notes=tuple(gathered.notes), incomplete=incomplete)


def _strangers(readings: Sequence[Reading]) -> Iterator[str]:
    """Yield a note where two files describe different GPUs under one number."""
    known: dict[int, tuple[str, str]] = {}
    for reading in readings:
        for gpu in reading.gpus:
            uuid, name = value_or(gpu.uuid, ""), device_name(value_or(gpu.name, "")) or ""
            old_uuid, old_name = known.setdefault(gpu.index, (uuid, name))
            names = (old_name, name) if old_name != name else (old_uuid, uuid)
            if all(names) and names[0] != names[1]:
                yield (
                    f"GPU {gpu.index} is {names[0]} in one file and {names[1]} in another: "
                    "the answers mix machines; give the files of one"
                )
                return


class _Gathered:
    """The facts in the files that were read."""

    def __init__(self) -> None:
        self.readings: list[Reading] = []
        self.events: list[KernelEvent] = []
        self.notes: list[str] = []
        self.results: list[Path] = []
        self.host = CapturedHost()
        self.has_log = self.has_outputs = False

    def read(self, path: Path) -> None:
        """Add the facts in one file."""
        try:
            file = ToolFile(path)
            events = tuple(events_in(line.text for line in file.lines()))
            lines = (line.text for piece in file.pieces() for line in piece)
            outputs = [self.host.add(section) for section in sections(lines)]
        except DataError as error:
            self.notes.append(error.message)
            return
        self.events += events
        self.has_log = self.has_log or file.is_kernel_log
        self.has_outputs = self.has_outputs or any(outputs)
        try:
            for tool, reading in read_file(file):
                if reading.gpus or reading.links:
                    self.readings.append(reading)
                    self.notes += [f"{file.name}: {note}" for note in reading.notes]
                else:
                    self.results.append(path)
                    self.notes.append(f"{file.name}: results of {tool}, which no check reads")
        except DataError as error:
            if not (events or file.is_kernel_log or any(outputs)):
                self.notes.append(error.message)

    def check(self) -> None:
        """Raise DataError where no file holds a fact."""
        if self.events or self.has_log or self.has_outputs or self.readings:
            return
        hint = "give dmesg, journalctl -k, nvidia-smi -q, lspci -vvv or nvidia-bug-report.log.gz"
        if self.results:
            # Files of an archive are gone by now.
            there = [path for path in dict.fromkeys(self.results) if path == STDIN or path.exists()]
            names = " ".join(shlex.quote(str(path)) for path in there) or "FILE"
            hint = f"they are judged by: trainrig import {names}"
        raise DataError(self.notes[0] if self.notes else "no file in it", hint)


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
