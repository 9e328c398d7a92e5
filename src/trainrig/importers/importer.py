"""Importers of other tools' files: the spec of a format, and the choice of those that read a file.

Every format is one file in this folder that defines ``IMPORTER`` (of a training's log a TOML file
alone, `training_lines`); the file is found by itself.  It says what it recognises a line or a JSON
value by (content, never a file's name), how its numbers are defined, and makes records of one run.
The verb, its help, docs/import.md and the tests ask the specs and know no format by name.

A file may hold several runs of several tools.  `read_file` looks for all formats in all of it,
cuts it into runs (`runs`), has each read, and counts the lines that nobody read.

A file is external: whatever it holds, what comes out are `Reading`s or a DataError that names the
line.  Nothing is written here, so that nothing can be half imported.
"""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainrig import plugins
from trainrig.errors import DataError, unknown
from trainrig.importers.file import FileLine, FilePart, ToolFile
from trainrig.importers.runs import Marks, find_formats, find_runs
from trainrig.machine.captured import names_of_outputs
from trainrig.record import UNNAMED as UNNAMED
from trainrig.record import UNNAMED_HOST as UNNAMED_HOST
from trainrig.record import Case, Record
from trainrig.units import one_line

if TYPE_CHECKING:
    from trainrig.machine.snapshot import Gpu, GpuLink


# ---- what comes out


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportHints:
    """Facts that the user adds because the file does not state them."""

    device: str | None = None
    """Model of the GPU."""
    model: str | None = None
    """Name of the trained model: ``bert-large``."""
    precision: str | None = None
    seq_len: int | None = None
    batch_size: int | None = None
    num_gpus: int | None = None
    """GPUs that took part in a training."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Records and notes of one run, or of all runs of one tool in a file."""

    version: str | None = None
    """Version of the tool, as the file states it."""
    records: Sequence[Record] = ()
    gpus: Sequence[Gpu] = ()
    """GPUs that the file describes."""
    links: Sequence[GpuLink] = ()
    driver: str | None = None
    steps: Iterable[Mapping[str, Any]] = ()
    """Rows of a training, one for each step."""
    notes: Sequence[str] = ()
    """Sentences on what is missing in the file or may mislead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Importer:
    """Spec of one format of one tool."""

    name: str
    """The tool, as people call it; ``--as`` takes it."""
    title: str
    """Contents and form that are read: ``bandwidths by size, text or JSON``."""
    order: int
    """Rank in help and documents; of two that recognise a file the lower one reads it."""
    marks: Marks
    """Marks that its lines and JSON values are recognised by."""
    read: Callable[[FilePart, ImportHints], Reading]
    """Reads one run.  Raises DataError for what it cannot read."""
    definition: str
    """Definition of the numbers: what was timed, direction, per GPU or all, unit in the file."""
    judged_by: str
    """The rule that its points are judged by."""
    source: str
    """Document or source file that defines the format."""
    tested_on: Sequence[str]
    """Files in tests/unit/importers/samples that it is tested on."""
    published: str = ""
    """Beginning of the software's name of comparable published figures.

    They stand beside numbers that keep the tool's own definition; empty: none do."""
    continues: Callable[[FilePart, FilePart], bool] | None = None
    """Function that returns whether the second part is a later state of the first one's run."""
    stream: (
        Callable[[ToolFile, Sequence[str], ImportHints], Iterable[tuple[str, Reading]]] | None
    ) = None
    """Reads the lines of all formats in a file that share this function, by name, in one pass."""


_registered: dict[str, Importer] = {}


def register(importer: Importer) -> None:
    """Make an importer known that lives outside this folder."""
    _registered[importer.name] = importer


def importers() -> tuple[Importer, ...]:
    """Return every importer, in order; those of installed packages, too."""
    every = _builtin_importers() | _plugin_importers()[0] | _registered
    return tuple(sorted(every.values(), key=lambda importer: (importer.order, importer.name)))


@cache
def _plugin_importers() -> tuple[dict[str, Importer], tuple[str, ...]]:
    return plugins.find_all(plugins.IMPORTERS, Importer)


@cache
def _builtin_importers() -> dict[str, Importer]:
    package = __name__.rpartition(".")[0]
    files = pkgutil.iter_modules(importlib.import_module(package).__path__, f"{package}.")
    modules = [importlib.import_module(file.name) for file in files if file.name != __name__]
    specs = [module.IMPORTER for module in modules if hasattr(module, "IMPORTER")]
    specs += [spec for module in modules for spec in getattr(module, "IMPORTERS", ())]
    return {spec.name: spec for spec in specs}


def importer(name: str) -> Importer:
    """Return the importer of the tool ``name``.  Raises UsageError if there is none."""
    builtin = _builtin_importers() | _registered
    spec: Importer | None = builtin.get(name) or plugins.find(plugins.IMPORTERS, name, Importer)
    if spec is None:
        raise unknown("format", name, [known.name for known in importers()])
    return spec


def read_file(
    source: Path | ToolFile, tool: str | None = None, hints: ImportHints | None = None
) -> tuple[tuple[str, Reading], ...]:
    """Return the tools that wrote a file, each with its reading; records name tool, file and line.

    ``tool`` reads it as that tool's, whatever it looks like.  Raises DataError, with the line, for
    what cannot be read, and where it holds nothing.  A `ToolFile` may be of a pipe, which can be
    read once alone.
    """
    file = source if isinstance(source, ToolFile) else ToolFile(source)
    hints = hints or ImportHints()
    wanted = (importer(tool),) if tool else importers()
    whole = next((spec for spec in wanted if spec.marks.whole and spec.marks.whole(file)), None)
    if whole is not None:
        return (
            (whole.name, _with_source(whole.name, file, whole.read(FilePart(file, ()), hints))),
        )
    candidates = wanted if tool else find_formats(file, {spec: spec.marks for spec in wanted})
    by_tool: dict[str, list[Reading]] = {}
    for spec, parts in find_runs(file, {spec: spec.marks for spec in candidates}).items():
        for part in _without_superseded(spec, parts):
            by_tool.setdefault(spec.name, []).append(spec.read(part, hints))
    streams: dict[Any, list[str]] = {}
    for spec in candidates:
        if spec.stream is not None:
            streams.setdefault(spec.stream, []).append(spec.name)
    for stream, names in streams.items():
        for name, reading in stream(file, names, hints):
            by_tool.setdefault(name, []).append(reading)
    readings = {name: _joined_runs(name, file, runs) for name, runs in by_tool.items()}
    with_content = {
        name: reading
        for name, reading in readings.items()
        if reading.records or reading.gpus or reading.links
    }
    if not with_content:
        raise _nothing(file, [spec.name for spec in candidates])
    notes = [f"no result of {name} in it" for name in readings if name not in with_content]
    if unread := file.unread():
        notes.append(unread)
    first, *others = with_content.items()
    noted = dataclasses.replace(first[1], notes=(*first[1].notes, *notes))
    return ((first[0], noted), *others)


def _without_superseded(importer: Importer, parts: Sequence[FilePart]) -> Iterator[FilePart]:
    """Yield the parts without those that a later one continues."""
    for part, following in zip(parts, [*parts[1:], None], strict=False):
        if importer.continues and following is not None and importer.continues(part, following):
            part.use_all()
        else:
            yield part


def _nothing(file: ToolFile, tool_names: Sequence[str]) -> DataError:
    if tool_names:
        names = ", ".join(tool_names)
        return DataError(f"{file.name}: no result of {names} in it", "was it cut off?")
    described = ["a kernel's log"] if file.is_kernel_log else names_of_outputs(file.head)
    is_training = _LAUNCHED.search(file.head) is not None
    failure = _failure_line(file) if is_training or not described else None
    if failure is not None:
        return DataError(
            f"{file.name}: the log of a program that failed, without results: "
            f"line {failure.number}: {one_line(failure.text)[:_MOST_SHOWN]}",
            "read what it says there, put it right, start again, and import the log of steps that "
            "ran",
        )
    if described and is_training:
        return DataError(
            f"{file.name}: the log of a training, in no format whose results are known here",
            "docs/import.md lists the formats; what it says of the machine: trainrig doctor "
            f"{shlex.quote(str(file.path))}",
        )
    if described:
        return DataError(
            f"{file.name}: {', '.join(described)}, which holds no results",
            f"what it says of the machine: trainrig doctor {shlex.quote(str(file.path))}",
        )
    names = ", ".join(spec.name for spec in importers())
    broken = "".join(f"; {line}" for line in _plugin_importers()[1])
    return DataError(
        f"{file.name}: not a file of a tool that is known here",
        f"name its format with --as: {names}{broken}",
    )


_LAUNCHED = re.compile(r"torch\.distributed|torchrun|deepspeed\.launcher")
"""Lines of programs that train."""
_TRACEBACK = re.compile(r"Traceback \(most recent call last\):\s*$")
_RAISED = re.compile(
    r"(?:\[[^\]]*\]:?\s*)?(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt)\b.*"
)
"""The line that ends a traceback, behind a launcher's prefix."""
_MOST_SHOWN = 160
"""Characters of a line that an error quotes."""


def _failure_line(file: ToolFile) -> FileLine | None:
    """Return the line that ends the first traceback of a program; None without one."""
    is_inside = False
    for line in file.lines():
        if _TRACEBACK.search(line.text):
            is_inside = True
        elif is_inside and _RAISED.fullmatch(line.text.strip()):
            return line
    return None


def _joined_runs(tool: str, file: ToolFile, runs: Sequence[Reading]) -> Reading:
    """Join all runs of a tool; equal cases of two runs are told apart by their number."""
    if len(runs) == 1:
        return _with_source(tool, file, runs[0])
    records: list[Record] = []
    notes: list[str] = [f"{len(runs)} runs of {tool} in it"]
    gpus: dict[int, Gpu] = {}
    seen: set[tuple[object, ...]] = set()
    for number, run in enumerate(runs, start=1):
        records_of_run = [
            record.replace(
                case={**record.case, "run": number} if _case_key(record) in seen else record.case,
                conditions={"run_in_file": number, **record.conditions},
            )
            for record in _with_source(tool, file, run).records
        ]
        seen.update(_case_key(record) for record in records_of_run)
        records += records_of_run
        notes += [f"run {number}: {note}" for note in run.notes]
        again = [gpu.index for gpu in run.gpus if gpu.index in gpus]
        gpus |= {gpu.index: gpu for gpu in run.gpus if gpu.index not in gpus}
        if again:
            notes.append(f"run {number}: GPUs are described again; the first description counts")
    return Reading(
        version=next((run.version for run in runs if run.version), None),
        records=records,
        gpus=tuple(gpus.values()),
        links=next((run.links for run in runs if run.links), ()),
        driver=next((run.driver for run in runs if run.driver), None),
        steps=_Rows(runs),
        notes=notes,
    )


@dataclass(frozen=True, slots=True)
class _Rows:
    """The steps of several runs, one after the other."""

    runs: Sequence[Reading]

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        for number, run in enumerate(self.runs, start=1):
            for row in run.steps:
                yield row if number == 1 else {**row, "run": number}


def _case_key(record: Record) -> tuple[object, ...]:
    return (*record.key, record.device_index)


def _with_source(tool: str, file: ToolFile, reading: Reading) -> Reading:
    """Return a reading whose records name the tool, its version and the file."""
    stated = f"{tool} {reading.version}" if reading.version else f"{tool}, version not stated"
    about: Case = {"tool": tool, "file": file.name}
    if reading.version:
        about = {**about, "tool_version": reading.version}
    records = tuple(
        record.replace(
            conditions={**about, **record.conditions}, source=f"{stated}; file {file.name}"
        )
        for record in reading.records
    )
    return dataclasses.replace(reading, records=records)
