"""perftest: bandwidth and latency of RDMA by size (ib_write_bw, ib_read_lat and their kin).

Bandwidth is the average over the iterations, not the peak; without ``--report_gbits`` perftest's MB
are 2²⁰ bytes.  A bidirectional test counts both directions.

Source: github.com/linux-rdma/perftest src/perftest_parameters.c, perftest_resources.c
(read 2026-11-28).
"""

from __future__ import annotations

import re

from trainrig.importers.extract import point, take_lines, to_count, to_number, word
from trainrig.importers.file import FilePart
from trainrig.importers.importer import Importer, ImportHints, Reading
from trainrig.importers.spelling import marks_of
from trainrig.record import Case, Record

_TITLE = re.compile(
    r"^\s+(?:(?P<transport>RDMA_|Raw Ethernet )?(?P<operation>Write|Read|Send|Atomic)\w*) "
    r"(?P<both>Bidirectional )?(?P<kind>BW|Latency) Test"
)
_SETTING = re.compile(r"^ ?(?P<name>Device|Number of qps|Link type|Mtu)\s*:\s*(?P<value>\S+)")
_ABOUT = re.compile(r"^ ?[\w *.-]+: |^-{20,}$|^\*|^ ?(?:local|remote) address:|^\s+GID:")
_DEVICE = re.compile(r"\bDevice\s*:\s*(\S+)")
_HEAD = re.compile(r"#bytes\s+#iterations\s+(?P<columns>.*)$")
_ROW = re.compile(
    r"^\s*(?P<bytes>\d{1,18})\s+(?P<iterations>\d{1,18})\s+(?P<cells>[\d.eE+\s-]+?)\s*$"
)
_UNITS = {"MB/sec": 2.0**20, "Gb/sec": 1e9 / 8, "MiB/sec": 2.0**20}


class _Lines:
    """The runs that the lines so far describe."""

    def __init__(self, file: FilePart) -> None:
        self.file = file
        self.case: Case = {}
        self.settings: dict[str, str] = {}
        self.columns: list[str] = []
        self.records: list[Record] = []

    def title(self, _: int, match: re.Match[str]) -> None:
        self.case = {
            "operation": match["operation"].lower(),
            "direction": "both" if match["both"] else "one",
        }
        self.columns = []

    def device(self, _: int, match: re.Match[str]) -> None:
        self.settings["device"] = word(match[1])

    def setting(self, _: int, match: re.Match[str]) -> None:
        self.settings[match["name"].lower().replace(" ", "_")] = word(match["value"])

    def head(self, _: int, match: re.Match[str]) -> None:
        self.columns = re.findall(r"(?:BW )?[\w.%]+(?: percentile)?\[[^\]]+\]", match["columns"])

    def about(self, _: int, __: re.Match[str]) -> None:
        """Pass over a line that holds no number."""

    def row(self, number: int, match: re.Match[str]) -> None:
        cells = match["cells"].split()
        if not self.columns or not self.case:
            return
        if len(cells) < len(self.columns):
            raise self.file.refuse(number, f"{len(cells)} cells below {len(self.columns)} columns")
        row = dict(zip(self.columns, cells, strict=False))
        for column, cell in row.items():
            name, _, unit = column.rstrip("]").partition("[")
            value = to_number(self.file, number, cell, name)
            if name == "BW average" and unit in _UNITS:
                self._add(number, match, ("byte_rate", "B/s"), value * _UNITS[unit])
            elif name == "t_avg" and unit == "usec":
                self._add(number, match, ("latency", "s"), value * 1e-6)

    def _add(
        self, number: int, match: re.Match[str], metric: tuple[str, str], value: float
    ) -> None:
        if value < 0.0:
            raise self.file.refuse(number, f"{metric[0]} is below zero")
        num_bytes = to_count(self.file, number, match["bytes"], "size")
        case = {**self.case, "bytes": num_bytes, "tool": IMPORTER.name}
        more: Case = {**self.settings, "iterations": int(match["iterations"])}
        self.records.append(
            point(self.file, number, "rdma", case, metric, value, count=None, conditions=more)
        )


def _read(file: FilePart, _: ImportHints) -> Reading:
    lines = _Lines(file)
    rules = (
        (_TITLE, lines.title),
        (_HEAD, lines.head),
        (_DEVICE, lines.device),
        (_SETTING, lines.setting),
        (_ROW, lines.row),
        (_ABOUT, lines.about),
    )
    take_lines(file, rules)
    if not lines.records:
        raise file.refuse(file.last, "no row of results below a head", "was it cut off?")
    return Reading(records=lines.records)


IMPORTER = Importer(
    name="perftest",
    title="RDMA bandwidth and latency (ib_write_bw and kin)",
    order=85,
    marks=marks_of("perftest"),
    read=_read,
    definition="average bandwidth of all iterations at a size, both directions together where the "
    "test is bidirectional; latency is the mean of half round trips, of reads of whole ones",
    judged_by="no claim: compared with another run, and with the link's rate that ibstat shows",
    source="github.com/linux-rdma/perftest",
    tested_on=("perftest-write.txt",),
)
