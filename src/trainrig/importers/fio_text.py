"""fio's text, as it prints without ``--output-format=json``: rates of each job and direction.

The rate is the bytes over the run time that stand in parentheses, as in fio's JSON.  Text does not
say whether files were opened with O_DIRECT, so that ``io`` is not part of its case.

Source: fio's stat.c, show_ddir_status; versions 2.1 to 3.41 (read 2026-11-28).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from trainrig.importers.extract import point, take_lines, to_count, to_number, word
from trainrig.importers.file import FilePart
from trainrig.importers.importer import Importer, ImportHints, Reading
from trainrig.importers.spelling import marks_of
from trainrig.record import Case, Record, Status

_VERSION = re.compile(r"^fio-(\d+\.\d+\S*)$")
_OPTIONS = re.compile(r"^(?P<job>.+?): \(g=\d+\): rw=(?P<rw>\w+), (?P<rest>.*)$")
_OPTION = re.compile(r"\b(ioengine|iodepth)=(\w+)")
_BLOCK = re.compile(r"\bbs=(?:\(R\) )?(\d+)([BKMG]?)")
_JOB = re.compile(r"^(?P<job>.+?): \(groupid=\d+, jobs=(?P<jobs>\d{1,6})\): err=\s*(?P<error>\d+)")
_NEW = re.compile(
    r"^\s+(?P<way>read|write|trim)\s*: IOPS=(?P<ops>[\d.]+)(?P<step>[kM]?), BW=.*?"
    r"\((?P<amount>[\d.]+)(?P<unit>[KMGT]?i?B)/(?P<time>\d+)msec\)"
)
_OLD = re.compile(
    r"^\s+(?P<way>read|write|trim)\s*: io=(?P<amount>[\d.]+)(?P<unit>[KMGT]?B), bw=\S+?/s, "
    r"iops=(?P<ops>\d+)(?P<step>), runt=\s*(?P<time>\d+)msec"
)
_ABOUT = re.compile(
    r"^\s+(?:slat|clat|lat|bw|iops|cpu|issued|latency|IO depths|submit|complete|READ|WRITE|\|)|"
    r"^Run status|^Disk stats|^Starting|^Jobs?: |^\s+\S+: ios="
)
_STEPS = {"": 1.0, "k": 1e3, "M": 1e6}
_BLOCK_STEPS = {"": 1, "B": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


class _Lines:
    """The jobs that the lines so far describe."""

    def __init__(self, file: FilePart) -> None:
        self.file = file
        self.version: str | None = None
        self.options: dict[str, Case] = {}
        self.job, self.jobs, self.error = "", 1, 0
        self.records: list[Record] = []

    def set_version(self, _: int, match: re.Match[str]) -> None:
        self.version = word(match[1])

    def set_options(self, number: int, match: re.Match[str]) -> None:
        options = dict(_OPTION.findall(match["rest"]))
        if not options.get("iodepth", "").isdecimal():
            raise self.file.refuse(number, "a job's settings that are broken off")
        block = _BLOCK.search(match["rest"])
        self.options[match["job"]] = {
            "rw": match["rw"],
            **({"block": int(block[1]) * _BLOCK_STEPS[block[2]]} if block else {}),
            "depth": to_count(self.file, number, options["iodepth"], "depth"),
            **({"engine": options["ioengine"]} if "ioengine" in options else {}),
        }

    def begin_job(self, _: int, match: re.Match[str]) -> None:
        self.job, self.jobs = word(match["job"]), int(match["jobs"])
        self.error = int(match["error"])

    def add(self, number: int, match: re.Match[str]) -> None:
        if not self.job:
            raise self.file.refuse(number, "a rate of no job")
        self.records += self._records(number, match)

    def _records(self, number: int, match: re.Match[str]) -> Iterator[Record]:
        options = dict(self.options.get(self.job, {}))
        kind, way = str(options.pop("rw", "")), match["way"]
        case: Case = {
            "op": f"rand{way}" if kind.startswith("rand") else way,
            **({"mixed": True} if kind in ("rw", "readwrite", "randrw") else {}),
            **options,
            "jobs": self.jobs,
            "job": self.job,
            "tool": "fio",
        }
        seconds = to_number(self.file, number, match["time"], "run time") * 1e-3
        if not seconds:
            raise self.file.refuse(number, "bytes were moved in no time")
        unit = match["unit"].replace("i", "")
        amount = to_number(self.file, number, match["amount"], "bytes")
        # fio 2 calls powers of two KB and MB; fio 3 says KiB and MiB, or KB with --kb_base=1000.
        is_binary = "i" in match["unit"] or (self.version or "3").startswith("2")
        num_bytes = amount * (1024.0 if is_binary else 1000.0) ** "BKMGT".index(unit[0])
        ops = to_number(self.file, number, match["ops"], "IOPS") * _STEPS[match["step"]]
        for metric, value in (
            (("byte_rate", "B/s"), num_bytes / seconds),
            (("op_rate", "IO/s"), ops),
        ):
            state = Status.FAILED if self.error else Status.OK
            reason = f"fio failed with error {self.error}" if self.error else None
            yield point(
                self.file, number, "storage", case, metric, value, status=state, reason=reason
            )

    def about(self, _: int, __: re.Match[str]) -> None:
        """Pass over a line that holds none of these numbers."""


def _read(file: FilePart, _: ImportHints) -> Reading:
    lines = _Lines(file)
    rules = (
        (_VERSION, lines.set_version),
        (_OPTIONS, lines.set_options),
        (_JOB, lines.begin_job),
        (_NEW, lines.add),
        (_OLD, lines.add),
        (_ABOUT, lines.about),
    )
    take_lines(file, rules)
    if not lines.records:
        raise file.refuse(file.last, "no rate of a job in it", "was it cut off?")
    return Reading(version=lines.version, records=lines.records)


IMPORTER = Importer(
    name="fio-text",
    title="rates of a disk's jobs (fio's text)",
    order=71,
    marks=marks_of("fio-text"),
    read=_read,
    definition="bytes over the run time of a direction, operations a second as fio rounds them",
    judged_by="nothing is claimed of a disk: an error is a failure",
    source="github.com/axboe/fio stat.c",
    tested_on=("fio-text.txt",),
)
