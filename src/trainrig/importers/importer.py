"""What an importer is, the file it is handed, and which importer reads a file.

Every format is one file in this folder that defines ``IMPORTER``; the file is found by itself.
It says what it recognises a file by (its content, never its name), how its numbers are defined,
and makes records of it.  The verb, its help, docs/import.md and the tests ask the specs and know
no format by name.

A file is external: whatever it holds, what comes out is a `Reading` or a DataError that names the
line.  Nothing is written here, so that nothing can be half imported.
"""

from __future__ import annotations

import dataclasses
import gzip
import importlib
import io
import json
import pkgutil
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import IO, Any, cast

from trainrig.errors import DataError, unknown
from trainrig.machine.snapshot import Gpu, GpuLink, Missing
from trainrig.record import Case, Record
from trainrig.units import format_memory, one_line

NOT_IN_FILE = Missing("not in the imported file")
"""Of a machine, what no file states: no check of it says anything."""
UNNAMED, UNNAMED_HOST = "GPU", "host"
"""The devices of records of a GPU, or of a host, whose model no file states."""
HEAD_BYTES = 1 << 18
"""How much of a file is looked at to recognise it."""
MOST_BYTES = 1 << 26
"""Of a file that is read as a whole; a trace is streamed and may be larger."""
MOST_PIPED = 1 << 28
"""Of what is held in memory, since it can be read once alone."""
_UNREADABLE = (OSError, EOFError, zlib.error, ValueError)
"""What reading a file can end in; ValueError: a name with a zero byte."""
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


_FILES = "name a file that another tool wrote: docs/import.md says of which"


class ToolFile:
    """A file that another tool wrote: its beginning, its lines, its JSON."""

    def __init__(self, path: Path) -> None:
        """Raises DataError where it cannot be read, or is empty."""
        self.path = path
        self.name = one_line(path.name)
        try:
            # A pipe (``<(ssh host nvidia-smi -q)``) can be read once alone.
            is_pipe = path.exists() and not path.is_file() and not path.is_dir()
            self._held = _piped(path) if is_pipe else None
            with self.open() as file:
                self._start = file.read(HEAD_BYTES)
        except _UNREADABLE as error:
            why = getattr(error, "strerror", None) or str(error)
            raise DataError(f"cannot read {one_line(str(path))}: {one_line(why)}", _FILES) from None
        if not self.head.strip():
            raise DataError(f"{one_line(str(path))} is empty", _FILES)

    @contextmanager
    def open(self) -> Iterator[IO[bytes]]:
        """The file's bytes, unpacked where it is gzip's."""
        with self.path.open("rb") if self._held is None else io.BytesIO(self._held) as raw:
            is_packed = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            if not is_packed:
                yield raw
                return
            with gzip.open(raw) as unpacked:
                yield cast("IO[bytes]", unpacked)

    @property
    def num_bytes(self) -> int:
        """As it lies on the disk."""
        return self.path.stat().st_size if self._held is None else len(self._held)

    @cached_property
    def head(self) -> str:
        """Its beginning as text, for recognising it."""
        return _plain(self._start)

    def begins(self, *marks: str) -> bool:
        """Whether all of ``marks`` stand in its beginning."""
        return all(mark in self.head for mark in marks)

    def matches(self, pattern: str) -> bool:
        """Whether ``pattern`` is found in its beginning; ^ and $ are a line's ends."""
        return re.search(pattern, self.head, re.MULTILINE) is not None

    @cached_property
    def text(self) -> str:
        """All of it, without a terminal's colours.  Raises DataError where it is too large."""
        try:
            with self.open() as file:
                data = file.read(MOST_BYTES + 1)
        except _UNREADABLE as error:
            raise DataError(f"{self.name}: damaged: {one_line(str(error))}") from None
        if len(data) > MOST_BYTES:
            most = format_memory(MOST_BYTES)
            raise DataError(f"{self.name} is larger than {most}", "import the part with results")
        return _plain(data)

    @cached_property
    def lines(self) -> tuple[tuple[int, str], ...]:
        """Number and text of each line; what a carriage return overwrote is a line of its own."""
        numbered = enumerate(self.text.split("\n"), start=1)
        return tuple((n, part) for n, line in numbered for part in line.split("\r") if part.strip())

    @cached_property
    def json(self) -> Any:
        """The JSON value in it; lines before the first bracket are passed over.

        Raises DataError with the line where it is none.
        """
        text, start = self.text, self.json_start
        try:
            value, end = json.JSONDecoder().raw_decode(text, start)
        except json.JSONDecodeError as error:
            raise self.refuse(error.lineno, f"not JSON: {error.msg}") from None
        except (ValueError, RecursionError) as error:
            raise self.refuse(self.line_at(start), f"not JSON: {type(error).__name__}") from None
        if text[end:].strip():
            raise self.refuse(self.line_at(end), "text behind the end of the JSON")
        return value

    @cached_property
    def json_start(self) -> int:
        """Where the first line begins that begins with a bracket."""
        found = re.search(r"^[ \t\ufeff]*([{\[])", self.text, re.MULTILINE)
        return found.start(1) if found else 0

    @property
    def is_json(self) -> bool:
        """Whether a line of its beginning begins with a bracket, as JSON does."""
        return re.search(r"\A\ufeff?\s*[{\[]|^\{", self.head, re.MULTILINE) is not None

    def line_at(self, place: int) -> int:
        """The number of the line that a place in the text lies in."""
        return self.text.count("\n", 0, place) + 1

    def refuse(self, line: int | None, problem: str, hint: str | None = None) -> DataError:
        """The error for a line that cannot be read."""
        where = self.name if line is None else f"{self.name}:{line}"
        return DataError(f"{where}: {problem}", hint)


def _piped(path: Path) -> bytes:
    """What comes out of a pipe; one may never end.  Raises DataError."""
    with path.open("rb") as file:
        data = file.read(MOST_PIPED + 1)
    if len(data) > MOST_PIPED:
        most = format_memory(MOST_PIPED)
        raise DataError(f"{one_line(str(path))}: more than {most}", "write it to a file first")
    return data


def _plain(data: bytes) -> str:
    text = data.decode("utf-8", "replace").replace("\r\n", "\n").replace("\x00", "")
    return _COLOURS.sub("", text)


# ---- what comes out


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What the user adds that a file does not state."""

    device: str | None = None
    """Model of the GPU."""
    model: str | None = None
    """Name of the trained model: ``bert-large``."""
    precision: str | None = None
    seq_len: int | None = None
    batch_size: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What one file holds."""

    version: str | None = None
    """Of the tool, as the file states it."""
    records: Sequence[Record] = ()
    gpus: Sequence[Gpu] = ()
    """As the file describes them."""
    links: Sequence[GpuLink] = ()
    driver: str | None = None
    steps: Sequence[Mapping[str, Any]] = ()
    """Of a training: a row a step."""
    notes: Sequence[str] = ()
    """What the reader should know of the file, a sentence each: what is missing in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Importer:
    """One format: the only place that knows it by name."""

    name: str
    """The tool, as people call it; ``--as`` takes it."""
    title: str
    """What is read of which of its outputs: ``bandwidths by size, text or JSON``."""
    order: int
    """Its place in help and documents; of two that recognise a file the first reads it."""
    recognises: Callable[[ToolFile], bool]
    """By content."""
    read: Callable[[ToolFile, Given], Reading]
    """Raises DataError for what it cannot read."""
    definition: str
    """Of its numbers: what was timed, direction, per GPU or all, unit in the file."""
    judged_by: str
    """The rule that its points are judged by."""
    source: str
    """Where the format is defined."""
    tested_on: Sequence[str]
    """Files in tests/unit/importers/samples that it is tested on."""
    published: str = ""
    """How the software or the kind of published figures begins that this tool measured.

    They stand beside numbers that keep the tool's own definition; empty: none do."""


_registered: dict[str, Importer] = {}


def register(one: Importer) -> None:
    """Make an importer known that lives outside this folder."""
    _registered[one.name] = one


def importers() -> tuple[Importer, ...]:
    """Every importer, in order."""
    return tuple(sorted((_own() | _registered).values(), key=lambda one: (one.order, one.name)))


@cache
def _own() -> dict[str, Importer]:
    package = __name__.rpartition(".")[0]
    files = pkgutil.iter_modules(importlib.import_module(package).__path__, f"{package}.")
    modules = [importlib.import_module(file.name) for file in files if file.name != __name__]
    found = [module.IMPORTER for module in modules if hasattr(module, "IMPORTER")]
    return {one.name: one for one in found}


def importer(name: str) -> Importer:
    """The importer of the tool ``name``.  Raises UsageError if there is none."""
    known = {one.name: one for one in importers()}
    if name not in known:
        raise unknown("format", name, known)
    return known[name]


def recognise(file: ToolFile) -> Importer:
    """The importer whose format the file has.  Raises DataError where none knows it."""
    found = next((one for one in importers() if one.recognises(file)), None)
    if found is None:
        raise DataError(
            f"{file.name}: not a file of a tool that is known here",
            "name its format with --as: " + ", ".join(one.name for one in importers()),
        )
    return found


def read_file(
    path: Path, tool: str | None = None, given: Given | None = None
) -> tuple[str, Reading]:
    """The tool that wrote a file and what it holds; each record names tool, version and file.

    ``tool`` reads it as that tool's, whatever it looks like.  Raises DataError, with the line, for
    what cannot be read, and where it holds nothing.
    """
    file = ToolFile(path)
    one = importer(tool) if tool else recognise(file)
    reading = one.read(file, given or Given())
    if not reading.records and not reading.gpus and not reading.links:
        raise DataError(f"{file.name}: no result of {one.name} in it", "was it cut off?")
    return one.name, dataclasses.replace(
        reading, records=tuple(_marked(one.name, file.name, reading))
    )


def _marked(tool: str, file: str, reading: Reading) -> Iterator[Record]:
    stated = f"{tool} {reading.version}" if reading.version else f"{tool}, version not stated"
    for record in reading.records:
        conditions: Case = {
            "tool": tool,
            **({"tool_version": reading.version} if reading.version else {}),
            "file": file,
            **record.conditions,
        }
        yield record.replace(conditions=conditions, source=f"{stated}; file {file}")
