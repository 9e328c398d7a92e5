"""fio's JSON: the one reader of it, for runs of our own (`measure.fio`) and for files of others.

Rates are bytes and operations over the run time of a direction, all of its jobs together where
fio grouped them.  A job of a file is a point a direction; what it was asked for (block size, depth,
engine, direct) is its case, so that unlike jobs never meet, nor our own, whose case has ``bytes``.

Source: fio's HOWTO (https://fio.readthedocs.io/en/latest/fio_doc.html), JSON output.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import field
from functools import cache
from typing import Annotated

from pydantic import Field, TypeAdapter

from trainrig.errors import DataError
from trainrig.importers.extract import EXTERNAL, fitted, point, word
from trainrig.importers.file import FilePart
from trainrig.importers.importer import Importer, ImportHints, Reading
from trainrig.importers.spelling import marks_of
from trainrig.record import Case, Record, Status, read_by

_Count = Annotated[int, Field(ge=0, lt=2**63)]
_Nanoseconds = Annotated[float, Field(ge=0.0, lt=1e18)]


@read_by(EXTERNAL)
class FioLatency:
    """Latencies of the operations since the start, nanoseconds."""

    N: _Count = 0
    mean: _Nanoseconds = 0.0
    percentile: dict[str, _Nanoseconds] = field(default_factory=dict)


@read_by(EXTERNAL)
class FioDirection:
    """Reads, writes or syncs since the start."""

    io_bytes: _Count = 0
    """Bytes; before version 3, KiB."""
    io_kbytes: _Count | None = None
    """KiB; None before version 3."""
    iops: Annotated[float, Field(ge=0.0, lt=1e12)] = 0.0
    total_ios: _Count = 0
    runtime: _Count = 0
    """Milliseconds."""
    short_ios: _Count = 0
    lat_ns: FioLatency = field(default_factory=FioLatency)
    clat_ns: FioLatency = field(default_factory=FioLatency)

    @property
    def num_bytes(self) -> int:
        """Return bytes that were moved."""
        return self.io_bytes if self.io_kbytes is not None else self.io_bytes << 10


@read_by(EXTERNAL)
class FioJob:
    """The counters of a job, or of a group of them, since its start."""

    error: int = 0
    jobname: str = ""
    hostname: str = ""
    """Name of the machine, where a client of ``fio --client`` ran the job."""
    options: Annotated[Mapping[str, str], Field(alias="job options")] = field(default_factory=dict)
    read: FioDirection = field(default_factory=FioDirection)
    write: FioDirection = field(default_factory=FioDirection)
    sync: FioDirection | None = None


@read_by(EXTERNAL)
class FioStatus:
    """State of all jobs, as fio prints it once or at each ``--status-interval``."""

    version: Annotated[str, Field(alias="fio version", max_length=80)]
    timestamp: _Count | None = None
    shared: Annotated[Mapping[str, str], Field(alias="global options")] = field(
        default_factory=dict
    )
    jobs: Annotated[tuple[FioJob, ...], Field(max_length=4096)] = ()
    clients: Annotated[tuple[FioJob, ...], Field(alias="client_stats", max_length=4096)] = ()
    """Jobs of the clients of ``fio --client``, and their sum."""


def statuses_in(output: str) -> tuple[FioStatus, ...]:
    """Return the JSON objects that fio printed, in order; lines between them are skipped.

    Raises ValueError (pydantic's ValidationError among them) or RecursionError for what is not
    fio's JSON.
    """
    statuses = []
    decoder, place = json.JSONDecoder(), output.find("{")
    while place >= 0:
        _, end = decoder.raw_decode(output, place)
        statuses.append(_adapter().validate_json(output[place:end]))
        place = output.find("{", end)
    return tuple(statuses)


def latencies(job: FioJob, way: str) -> dict[str, float]:
    """Return median and 99th percentile of ``read``, ``write`` or ``sync`` in seconds."""
    if way == "sync":
        choices = [job.sync.lat_ns] if job.sync is not None else []
    else:
        direction = job.read if way == "read" else job.write
        choices = [direction.clat_ns, direction.lat_ns]
    table = next((percentiles.percentile for percentiles in choices if percentiles.percentile), {})
    wanted = {"latency_p50_s": "50.000000", "latency_p99_s": "99.000000"}
    return {name: table[key] * 1e-9 for name, key in wanted.items() if key in table}


@cache
def _adapter() -> TypeAdapter[FioStatus]:
    return TypeAdapter(FioStatus)


# ---- a file of another's run


def _read(file: FilePart, _: ImportHints) -> Reading:
    file.use_all()
    status = fitted(file, FioStatus)
    line = file.lines[0][0]
    if not status.jobs and not status.clients:
        raise file.refuse(line, "fio's JSON without a job in it")
    records = [record for job in status.jobs for record in _records(file, status, job, {})]
    for number, job in enumerate(status.clients, start=1):
        client: Case = {"client": number} if job.hostname else {"clients": len(status.clients) - 1}
        records += _records(file, status, job, client)
    return Reading(version=word(status.version).removeprefix("fio-"), records=records)


def _continues(earlier: FilePart, later: FilePart) -> bool:
    """Return whether the later value is a newer state of the same jobs (--status-interval)."""
    try:
        first, last = (fitted(part, FioStatus) for part in (earlier, later))
    except DataError:
        return False
    return (
        len(first.jobs) == len(last.jobs) > 0
        and all(
            (a.jobname, a.options) == (b.jobname, b.options)
            and all(
                0 < x.runtime <= y.runtime and x.io_bytes <= y.io_bytes
                for x, y in ((a.read, b.read), (a.write, b.write))
                if x.io_bytes
            )
            and any(
                x.io_bytes and x.runtime < y.runtime
                for x, y in ((a.read, b.read), (a.write, b.write))
            )
            for a, b in zip(first.jobs, last.jobs, strict=True)
        )
        and (first.timestamp is None or first.timestamp <= (last.timestamp or 0))
    )


def _records(file: FilePart, status: FioStatus, job: FioJob, more: Case) -> Iterator[Record]:
    options = {**status.shared, **job.options}
    line = file.lines[0][0]
    if job.error:
        case = {**_case(options, job, "read" if job.read.io_bytes else "write"), **more}
        reason = f"fio failed with error {job.error}"
        yield _point(file, case, options, None, None, Status.FAILED, reason)
    for way, counted in (("read", job.read), ("write", job.write)):
        if job.error or not counted.io_bytes:
            continue
        if not counted.runtime:
            raise file.refuse(line, f"job {word(job.jobname)}: bytes were moved in no time")
        case, seconds = {**_case(options, job, way), **more}, counted.runtime * 1e-3
        ops = counted.total_ios or counted.iops * seconds
        for metric, amount in (
            (("byte_rate", "B/s"), counted.num_bytes),
            (("op_rate", "IO/s"), ops),
        ):
            short = f"{counted.short_ios} reads or writes were short" if counted.short_ios else None
            yield _point(
                file,
                case,
                options,
                metric,
                amount / seconds,
                Status.FAILED if short else Status.OK,
                short,
                latencies(job, way),
            )


def _point(
    file: FilePart,
    case: Case,
    options: Mapping[str, str],
    metric: tuple[str, str] | None,
    value: float | None,
    status: Status,
    reason: str | None,
    more: Mapping[str, float] | None = None,
) -> Record:
    where = options.get("filename") or options.get("directory")
    return point(
        file,
        None,
        "storage",
        case,
        metric or ("byte_rate", "B/s"),
        value,
        status=status,
        reason=reason,
        conditions={"where": where, **(more or {})},
    )


def _case(options: Mapping[str, str], job: FioJob, way: str) -> Case:
    kind = options.get("rw") or options.get("readwrite") or "read"
    is_random = kind.startswith("rand")
    op = f"rand{way}" if is_random else way
    mixed = kind in ("rw", "readwrite", "randrw", "trimwrite")
    if not options:  # before version 2.7 the options are not printed: they are not known
        return {"op": way, "job": job.jobname, "tool": "fio"}
    size = _bytes_of(options.get("bs") or options.get("blocksize") or "4k")
    depth, jobs = (_small(options.get(name)) for name in ("iodepth", "numjobs"))
    return {
        "op": op,
        **({"mixed": True} if mixed else {}),
        **({"block": size} if size else {}),
        "depth": depth,
        "jobs": jobs,
        "io": "direct" if options.get("direct") == "1" else "buffered",
        "engine": options.get("ioengine", "psync"),
        "job": job.jobname,
        "tool": "fio",
    }


def _small(text: str | None) -> int:
    return int(text) if text and re.fullmatch(r"[0-9]{1,9}", text) else 1


_STEPS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "b": 1}


def _bytes_of(text: str) -> int | None:
    match = re.fullmatch(r"([0-9]{1,9})([kmgb]?)(?:i?b)?", text.strip().lower())
    return int(match[1]) * _STEPS[match[2]] if match else None


IMPORTER = Importer(
    name="fio",
    title="rates and latencies of a disk's jobs (JSON)",
    order=70,
    marks=marks_of("fio"),
    read=_read,
    continues=_continues,
    definition="bytes and operations over the run time of a direction; median and 99th percentile "
    "of completion latency beside them",
    judged_by="nothing is claimed of a disk: an error or short operations are a failure",
    source="fio.readthedocs.io fio_doc.html",
    tested_on=("fio-randrw.json", "fio-signal.txt"),
)
