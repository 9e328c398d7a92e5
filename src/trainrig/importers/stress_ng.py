"""stress-ng's YAML (--yaml with --metrics): bogus operations a second of each stressor.

A bogo-op is a turn of that stressor's own loop: it compares a machine with itself under the same
version and stressor, and nothing else, so that both are in the case.  Read line by line, since
what stress-ng writes is not always YAML (a version that begins with #).

Source: stress-ng(1), --yaml; ColinIanKing/stress-ng core-metrics (read 2026-11-22).
"""

from __future__ import annotations

import re

from trainrig.importers.extract import point, take_lines, to_number, word
from trainrig.importers.file import FilePart
from trainrig.importers.importer import Importer, ImportHints, Reading
from trainrig.importers.spelling import marks_of
from trainrig.record import Case, Record

_FIELD = re.compile(r"^(\s*)(-\s+)?([a-z][a-z0-9-]*):(?:\s+(.*))?$")
_MARK = re.compile(r"^\s*(?:#|---\s*$|\.\.\.\s*$)")
_RATES = {
    "bogo-ops-per-second-real-time": ("bogo_op_rate", "bogo-op/s"),
    "bogo-ops-per-second-usr-sys-time": ("bogo_op_rate_cpu", "bogo-op/s"),
    "wall-clock-time": ("time", "s"),
}


class _Lines:
    """Collect the stressors that the lines so far describe."""

    def __init__(self, file: FilePart) -> None:
        self.file = file
        self.section = ""
        self.stressor: str | None = None
        self.version: str | None = None
        self.processors = 1
        self.records: list[Record] = []

    def passed(self, _: int, __: re.Match[str]) -> None:
        """Pass over a comment, or a document's mark."""

    def field(self, number: int, match: re.Match[str]) -> None:
        is_top = not match[1] and not match[2]
        name, value = match[3], (match[4] or "").strip()
        if is_top:
            self.section, self.stressor = name, None
        elif name == "stress-ng-version":
            self.version = word(value)
        elif name == "cpus-online" and value.isdecimal():
            self.processors = min(int(value), 1 << 20)
        elif self.section == "metrics":
            self._metric(number, name, value)

    def _metric(self, number: int, name: str, value: str) -> None:
        if name == "stressor":
            self.stressor = word(value)
        if name not in _RATES:
            return
        if not self.stressor:
            raise self.file.refuse(number, f"{name} of no stressor")
        rate = to_number(self.file, number, value, name)
        if rate < 0.0:
            raise self.file.refuse(number, f"{name} is below zero")
        case: Case = {"stressor": self.stressor, "version": self.version, "tool": IMPORTER.name}
        more: Case = {"processors": self.processors}
        self.records.append(
            point(self.file, number, "stress", case, _RATES[name], rate, conditions=more)
        )

    def broken(self, number: int, _: re.Match[str]) -> None:
        if self.section == "metrics":
            raise self.file.refuse(number, "not a field of YAML")


def _read(file: FilePart, _: ImportHints) -> Reading:
    end = next((n for n, line in enumerate(file.all) if line.text.strip() == "..."), len(file.all))
    file = FilePart(file.file, file.all[: end + 1])
    lines = _Lines(file)
    take_lines(file, ((_MARK, lines.passed), (_FIELD, lines.field), (re.compile(""), lines.broken)))
    if not lines.records:
        raise file.refuse(1, "no metrics in it", "stress-ng writes them with --metrics --yaml FILE")
    return Reading(version=lines.version, records=lines.records)


IMPORTER = Importer(
    name="stress-ng",
    title="bogus operations a second of each stressor (YAML)",
    order=75,
    marks=marks_of("stress-ng"),
    read=_read,
    definition="turns of a stressor's own loop over real time, and over the processors' time",
    judged_by="no claim: compared with another run of the same version and stressor",
    source="stress-ng(1) --yaml",
    tested_on=("stress-ng-cpu-vm.yaml",),
)
