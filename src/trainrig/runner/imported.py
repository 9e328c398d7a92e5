"""Files of other tools, made into a run: read → expect → written → judged, all of it or nothing.

Every file is read to its end before anything is written, and the run is put together in a hidden
folder that gets its place and name when it is whole: a file that is refused, a full disk or a
signal leaves nothing behind.  As in runs of our own, claims and predictions come before the points
that are held against them.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainrig.analysis.judge_imported import VERB
from trainrig.benchmarks.spec import Role, find, role_of
from trainrig.benchmarks.training import PRECISIONS
from trainrig.catalog.chip import Chip
from trainrig.catalog.lookup import find_chip
from trainrig.catalog.published import published_records
from trainrig.errors import UsageError, unknown
from trainrig.importers import ImportHints, Reading, read_file
from trainrig.importers.extract import device_name
from trainrig.importers.file import STDIN
from trainrig.importers.importer import UNNAMED, UNNAMED_HOST
from trainrig.machine.nvidia import read_device
from trainrig.machine.snapshot import (
    GPU_KEYS,
    NOT_IN_FILE,
    Cpu,
    Gpu,
    GpuLink,
    HostInfo,
    MemoryInfo,
    Missing,
    Snapshot,
    Software,
    Topology,
    to_dict,
)
from trainrig.prediction.expected import ceiling, expect, gpu_claims, link_claims, of_device
from trainrig.record import Kind, Limit, Record, new_id, to_json
from trainrig.runner.view import RunOutcome, close_run
from trainrig.store import create_run, read_run
from trainrig.store.writer import store_errors
from trainrig.workload import find as find_model

_LEAST_BYTES = 1 << 24
"""Smallest copy in bytes of pinned memory that runs at its link's full rate."""


def import_files(
    paths: Sequence[Path], out: Path, tool: str | None = None, hints: ImportHints | None = None
) -> RunOutcome:
    """Make a judged run in ``out`` from other tools' files.

    ``tool`` reads all of them as that tool's.  Raises DataError, with file and line, for what
    cannot be read; StoreError where it cannot be written.
    """
    _check(hints)
    read_files = [
        (path, name, reading) for path in paths for name, reading in read_file(path, tool, hints)
    ]
    cards = _cards([reading for _, _, reading in read_files], hints)
    read = [(path, name, _named(reading, cards)) for path, name, reading in read_files]
    readings = [reading for _, _, reading in read]
    snapshot = machine_of(readings)
    gpus = {gpu.index: gpu for reading in readings for gpu in reading.gpus}
    points = [record for reading in readings for record in reading.records]
    claims, limited, predicted = _expectations(points, gpus)
    lacks = [
        (path, (*reading.notes, *_lacks(reading), *_unused_card(reading, hints)))
        for path, _, reading in read
    ]
    notes = [f"{_name(path)}: {'; '.join(parts)}" for path, parts in lacks if parts]
    config: dict[str, Any] = {
        "imported": [
            {"file": _name(path), "tool": name, **({"version": r.version} if r.version else {})}
            for path, name, r in read
        ],
        "notes": notes,
    }
    with _draft(out) as draft:
        with create_run(draft, VERB, config) as run:
            run.write_machine(to_dict(snapshot))
            for record in (*claims, *predicted, *limited):
                run.append(record)
            for number, (_, name, reading) in enumerate(read, start=1):
                for row in reading.steps:
                    run.append_series(f"steps-{number:02d}-{name}", row)
            done = close_run(run, None)
        with store_errors(out):
            final = done.run.rename(out / done.run.name)
    return dataclasses.replace(done, run=final)


def _name(path: Path) -> str:
    return "stdin" if path == STDIN else path.name


# ---- which card it was


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cards:
    """The cards that the files and the user name."""

    by_index: Mapping[int, str]
    only: str | None
    """Return the model of every GPU, where all that are named are of one model."""


def _cards(readings: Sequence[Reading], hints: ImportHints | None) -> _Cards:
    """Return card names by GPU number; a file's statement comes before the user's."""
    by_index: dict[int, str] = {}
    for reading in readings:
        for gpu in reading.gpus:
            if not isinstance(gpu.name, Missing) and (name := device_name(gpu.name)):
                by_index.setdefault(gpu.index, name)
    added = device_name(hints.device) if hints else None
    names = set(by_index.values())
    return _Cards(by_index=by_index, only=added or (names.pop() if len(names) == 1 else None))


def _named(reading: Reading, cards: _Cards) -> Reading:
    """Return the reading with the card of every GPU, where another file or the user names it."""
    records = [_of_card(record, cards) for record in reading.records]
    gpus = [
        dataclasses.replace(gpu, name=name)
        if isinstance(gpu.name, Missing) and (name := cards.by_index.get(gpu.index, cards.only))
        else gpu
        for gpu in reading.gpus
    ]
    return dataclasses.replace(reading, records=records, gpus=gpus)


_OF_GPUS = (Role.STEP, Role.COLLECTIVE, Role.LINK, Role.PRODUCT, Role.BLOCK)
"""Roles of benchmarks that run on GPUs, whether their records have a GPU's number or not."""


def _of_card(record: Record, cards: _Cards) -> Record:
    if record.device not in (None, UNNAMED):
        return record
    role, index = role_of(record.benchmark), record.device_index
    if index is None and role not in _OF_GPUS:
        return record.replace(device=record.device or UNNAMED_HOST)
    name = cards.only if index is None else cards.by_index.get(index, cards.only)
    # A training is of one device each; what ranks exchange is of none of them.
    card_number = 0 if name and index is None and role is Role.STEP else index
    return record.replace(device=name or UNNAMED, device_index=card_number)


def _lacks(reading: Reading) -> Iterator[str]:
    """Return a note where no file names the card that numbers belong to."""
    if any(r.device == UNNAMED and r.unit not in ("", "1") for r in reading.records) or any(
        isinstance(gpu.name, Missing) for gpu in reading.gpus
    ):
        yield 'it does not name the card: add --on, as in --on "RTX 4090"'


def _unused_card(reading: Reading, hints: ImportHints | None) -> Iterator[str]:
    """Return a note where the user names another card than every GPU of a file has."""
    stated = device_name(hints.device) if hints else None
    names = {str(gpu.name) for gpu in reading.gpus if not isinstance(gpu.name, Missing)}
    names |= {
        str(record.device)
        for record in reading.records
        if record.device_index is not None or role_of(record.benchmark) in _OF_GPUS
    }
    cards = sorted({device_name(name) or name for name in names} - {UNNAMED, "None"})
    if stated is not None and cards and stated not in cards:
        yield f"--on {stated} is not used: the file names {', '.join(cards)}"


@contextmanager
def _draft(out: Path) -> Iterator[Path]:
    """Make a temporary folder beside the runs, so that a run appears whole or not at all."""
    with store_errors(out):
        out.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=".import-", dir=out))
    try:
        yield draft
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def summary(done: RunOutcome) -> dict[str, Any]:
    """Return what ``import --json`` prints."""
    run = read_run(done.run)
    files = [dict(entry) for entry in run.config.get("imported", ())]
    points = [record for record in run.records if record.is_point]
    return {
        **done.to_dict(),
        "tool": files[0]["tool"] if len(files) == 1 else None,
        "version": files[0].get("version") if len(files) == 1 else None,
        "files": files,
        "num_records": len(points),
        "records": [json.loads(to_json(record)) for record in points],
    }


def _check(hints: ImportHints | None) -> None:
    """Raise UsageError for a word of the user's that names nothing."""
    if hints is None:
        return
    if hints.model is not None:
        find_model(hints.model)
    if hints.precision is not None and hints.precision not in PRECISIONS:
        raise unknown("precision", hints.precision, PRECISIONS)
    for name, size in (
        ("--seq-len", hints.seq_len),
        ("--batch-size", hints.batch_size),
        ("--gpus", hints.num_gpus),
    ):
        if size is not None and not 0 < size <= _MOST:
            raise UsageError(f"{name} {size}", f"a whole number from 1 to {_MOST}")


_MOST = 1 << 24


def _expectations(
    points: Sequence[Record], gpus: Mapping[int, Gpu]
) -> tuple[list[Record], list[Record], list[Record]]:
    """Claims of the devices, the points with their ceilings, and what was to be expected."""
    claims: list[Record] = []
    for device, index in dict.fromkeys((p.device, p.device_index) for p in points):
        chip = find_chip(device) if device else None
        if chip is not None and index is not None:
            gpu = gpus.get(index) or read_device(index, {})
            claims += [*gpu_claims(chip, index), *link_claims(gpu, chip.name, None, chip)]
    limited, predicted = [], []
    for point in points:
        bounded = point.replace(limit=_limit(point, claims))
        limited.append(bounded)
        predicted += list(_prediction(bounded))
    return claims, limited, predicted


def _limit(point: Record, claims: Sequence[Record]) -> Limit | None:
    spec = find(point.benchmark)
    device_claims = of_device(claims, point.device, point.device_index)
    if spec is not None:
        is_rate = point.metric in ("flop_rate", "byte_rate")
        return ceiling(device_claims, point.benchmark, point.case) if is_rate else None
    chip = find_chip(point.device) if point.device else None
    if point.metric == "bus_rate" and chip is not None and point.case.get("nodes") == 1:
        return _of_links(chip)
    return None


def _of_links(chip: Chip) -> Limit | None:
    link, bandwidth = chip.link.name, chip.link.bandwidth
    if bandwidth is None or link is None:
        return None
    source = f"{chip.name} data sheet, {link}, one direction (a switch that adds may exceed it)"
    return Limit(value=bandwidth / 2.0, source=source)


def _prediction(point: Record) -> Iterator[Record]:
    """Predict a point, by a rule that fits its tool's definition."""
    spec, limit = find(point.benchmark), point.limit
    if spec is None or limit is None or point.value is None:
        return
    tool = {
        key: point.conditions[key] for key in ("tool", "tool_version") if key in point.conditions
    }
    bare = point.replace(
        id=new_id(), kind=Kind.PREDICTED, samples=None, interval=None, conditions=tool
    )
    share = spec.least_share(point.case)
    size = point.case.get("bytes")
    if spec.role is Role.TRANSFER and share is not None and point.device_count == 1:
        if isinstance(size, int) and size >= _LEAST_BYTES:
            low = share * limit.value
            yield bare.replace(
                value=(low + limit.value) / 2.0,
                interval=(low, limit.value),
                source=f"{share:g} and more of {limit.source}",
            )
    elif spec.role is Role.PRODUCT and spec.is_large(point.case):
        chip = find_chip(point.device) if point.device else None
        expected = expect(bare, limit, (), published_records(), chip)
        if expected.interval is not None:
            yield expected.replace(conditions=tool)


def _completed(gpu: Gpu, other: Gpu) -> Gpu:
    """Return a GPU whose unknown values are those that another file states of it."""
    values = {key: (GPU_KEYS.get(gpu, key), GPU_KEYS.get(other, key)) for key in GPU_KEYS.places}
    added = {key: new for key, (old, new) in values.items() if isinstance(old, Missing)}
    if isinstance(gpu.link.width, Missing):
        added["link"] = other.link
    return gpu.replace(**added)


def _completed_link(link: GpuLink, other: GpuLink) -> GpuLink:
    """Return a link whose unknown values are those that another file states of it."""
    added = {
        name: getattr(other, name)
        for name in ("path", "p2p_read", "p2p_write")
        if isinstance(getattr(link, name), Missing)
    }
    return dataclasses.replace(link, **added)


def machine_of(readings: Sequence[Reading]) -> Snapshot:
    """Return the machine as the files state it: GPUs, their links, its driver."""
    gpus: dict[int, Gpu] = {}
    links: dict[tuple[int, int], GpuLink] = {}
    for reading in readings:
        for gpu in reading.gpus:
            gpus[gpu.index] = _completed(gpus[gpu.index], gpu) if gpu.index in gpus else gpu
        for link in reading.links:
            pair = (link.a, link.b)
            links[pair] = _completed_link(links[pair], link) if pair in links else link
    driver = next((reading.driver for reading in readings if reading.driver), None)
    return Snapshot(
        taken=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        host=blank(HostInfo),
        cpu=blank(Cpu),
        memory=blank(MemoryInfo),
        disks=NOT_IN_FILE,
        pci_gpus=NOT_IN_FILE,
        gpus=tuple(gpu for _, gpu in sorted(gpus.items())) or NOT_IN_FILE,
        topology=Topology(links=tuple(links.values()) or NOT_IN_FILE),
        software=blank(
            Software, python="", nvidia_driver=driver or NOT_IN_FILE, packages={}, environment={}
        ),
    )


def blank(kind: type[Any], **values: Any) -> Any:
    """Return a part of the machine that the files do not describe."""
    return kind(
        **dict.fromkeys((field.name for field in dataclasses.fields(kind)), NOT_IN_FILE) | values
    )
