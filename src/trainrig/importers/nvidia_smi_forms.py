"""nvidia-smi's other forms: its default table, --query-gpu as CSV, -q -x as XML.

All are turned into the fields of ``nvidia-smi -q`` (`nvidia_smi`) and read by its reader.  The
table cuts long names off ("NVIDIA GeForce RTX 2080 ..."): such a name is not known, since several
cards begin with it.  Rows of CSV that repeat a GPU are samples: the median counts, and the GPU is
described by its last row.

Source: nvidia-smi(1), nvidia-smi --help-query-gpu; outputs of drivers 440 to 610 (2026-11-28).
"""

from __future__ import annotations

import csv
import dataclasses
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from xml.etree import ElementTree

from trainrig.importers.file import FilePart
from trainrig.importers.importer import Importer, ImportHints, Reading
from trainrig.importers.nvidia_smi import GpuBlock, reading_of
from trainrig.importers.spelling import marks_of
from trainrig.record import Record, read_toml
from trainrig.stats import median

_TITLE = re.compile(r"^\| NVIDIA-SMI (\S+)\s+(?:KMD|Driver) Version: (\S+)")
_FIRST = re.compile(
    r"^\|\s+(?P<index>\d{1,3})\s+(?P<name>\S.*?)\s+(?P<mode>On|Off|N/A|WDDM|TCC|MCDM)\s*\|"
    r"\s*(?P<address>[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])\s+\S+\s*\|"
    r"\s*(?P<ecc>\S+)\s*\|"
)
_SECOND = re.compile(
    r"^\|\s*(?P<fan>\S+)\s+(?P<heat>\S+)\s+(?P<state>P\d+|N/A|ERR!|\?+)\s+(?P<power>[^/|]*?)\s*/"
    r"\s*(?P<limit>[^|]*?)\s*\|\s*(?P<used>\S+)\s*/\s*(?P<total>\S+)\s*\|"
    r"\s*(?P<busy>\S+)\s+(?P<compute>\S.*?)\s*\|"
)
_THIRD = re.compile(r"^\|\s+\|\s+\|\s*(?P<mig>Enabled|Disabled|N/A)\*?\s*\|")
_FRAME = re.compile(r"^[+|][-=+| ]|^\|\s*(?:GPU|Fan|Processes|ID|No running)|^\|\s+\|")
_PROCESS = re.compile(r"^\|\s+\d+\s+(?:N/A|\d+)\s+(?:N/A|\d+)?\s*\d+\s")
_MODES = {"On": "Enabled", "Off": "Disabled"}


def _read_table(file: FilePart, _: ImportHints) -> Reading:
    blocks: list[GpuBlock] = []
    notes: list[str] = []
    version = driver = None
    for number, line in file.lines:
        if _FRAME.match(line) or _PROCESS.match(line):
            file.use(number)
        if title := _TITLE.match(line):
            file.use(number)
            version, driver = title[1], title[2]
        elif first := _FIRST.match(line):
            file.use(number)
            blocks.append(_first_row(number, first, notes))
        elif blocks and (second := _SECOND.match(line)):
            file.use(number)
            _second_row(blocks[-1], second, notes)
        elif blocks and (third := _THIRD.match(line)):
            blocks[-1].fields.setdefault("mig mode/current", third["mig"])
    if not blocks:
        raise file.refuse(file.last, "no row of a GPU in nvidia-smi's table", "was it wrapped?")
    torn = [block for block in blocks if "fb memory usage/total" not in block.fields]
    if torn:
        raise file.refuse(torn[0].line, f"GPU {torn[0].index} has no second row: it is broken off")
    whole = reading_of(file, blocks, version=version, driver=driver, notes=notes)
    return _stated(whole)


def _stated(reading: Reading) -> Reading:
    """Return the reading without records of what this form never has."""
    records = [record for record in reading.records if record.value is not None]
    return dataclasses.replace(reading, records=records)


def _first_row(number: int, row: re.Match[str], notes: list[str]) -> GpuBlock:
    fields: dict[str, str] = {}
    index = int(row["index"])
    if row["name"].endswith("..."):
        cut = row["name"]
        notes.append(f'GPU {index}: the table cuts its name off ("{cut}")')
    else:
        fields["product name"] = row["name"]
    if row["mode"] in _MODES:
        fields["persistence mode"] = _MODES[row["mode"]]
    if row["ecc"].isdecimal():
        fields["ecc errors/volatile/double bit/total"] = row["ecc"]
    return GpuBlock(line=number, index=index, address=row["address"], fields=fields)


def _second_row(block: GpuBlock, row: re.Match[str], notes: list[str]) -> None:
    fields = block.fields
    fields["temperature/gpu current temp"] = row["heat"]
    fields["gpu power readings/power draw"] = row["power"]
    fields["gpu power readings/current power limit"] = row["limit"]
    fields["fb memory usage/used"], fields["fb memory usage/total"] = row["used"], row["total"]
    fields["utilization/gpu"] = row["busy"]
    fields["compute mode"] = {"Default": "default", "E. Process": "exclusive_process"}.get(
        row["compute"], row["compute"]
    )
    if "ERR!" in row[0]:
        notes.append(f"GPU {block.index}: nvidia-smi says ERR!: the driver got no answer from it")


# ---- CSV


@cache
def _columns() -> Mapping[str, tuple[str, str]]:
    path = Path(__file__).with_name("nvidia_query.toml")
    return read_toml(path, dict[str, tuple[str, str]], path.name, "columns")


_SAMPLED = ("power", "sm_clock", "temperature", "memory_used")
"""Metrics that change from row to row; counters and limits are the last row's."""


def _read_csv(file: FilePart, _: ImportHints) -> Reading:
    is_head = re.compile(marks_of("nvidia-smi-csv").line).match
    at = next((n for n, (_, line) in enumerate(file.lines) if is_head(line)), None)
    if at is None:
        raise file.refuse(file.last, "no head of columns", "--query-gpu without noheader")
    (head_line, head), *rows = file.lines[at:]
    names = [name.partition(" [")[0].strip() for name in head.split(",")]
    units = {name: name_unit(cell) for name, cell in zip(names, head.split(","), strict=True)}
    file.use(head_line)
    by_gpu: dict[str, list[GpuBlock]] = {}
    driver = None
    for number, line in rows:
        cells = next(csv.reader([line], skipinitialspace=True))
        if len(cells) < len(names) / 2:
            break  # what follows the table
        if len(cells) != len(names):
            if number == file.last:
                continue  # cut off
            raise file.refuse(number, f"{len(cells)} cells in a row that has {len(names)}")
        if file.is_cut(number):
            continue
        file.use(number)
        row = dict(zip(names, cells, strict=True))
        driver = row.get("driver_version", driver)
        block = _row(number, row, units, len(by_gpu))
        by_gpu.setdefault(_identity(row, number), []).append(block)
    if not by_gpu:
        raise file.refuse(head_line, "a head of nvidia-smi's CSV without a row")
    last = [blocks[-1] for blocks in by_gpu.values()]
    whole = reading_of(file, last, version=driver, driver=driver)
    if all(len(blocks) == 1 for blocks in by_gpu.values()):
        return _stated(whole)
    series = [reading_of(file, blocks, version=driver, driver=driver) for blocks in by_gpu.values()]
    records = [record for reading in series for record in _sampled(_stated(reading).records)]
    return Reading(
        version=whole.version,
        records=records,
        gpus=whole.gpus,
        driver=driver,
        notes=[f"{sum(map(len, by_gpu.values()))} rows of {len(by_gpu)} GPUs: medians count"],
    )


def name_unit(cell: str) -> str:
    """Return the unit that a column's head states: ``power.draw [W]``."""
    match = re.search(r"\[([\w%]+)\]", cell)
    return match[1] if match else ""


def _identity(row: Mapping[str, str], number: int) -> str:
    """Return what tells the GPU of a row from others; without such a column its number."""
    keys = ("index", "uuid", "gpu_uuid", "pci.bus_id", "gpu_bus_id")
    return next((row[key] for key in keys if key in row), f"row {number}")


def _row(number: int, row: Mapping[str, str], units: Mapping[str, str], count: int) -> GpuBlock:
    fields: dict[str, str] = {}
    for name, text in row.items():
        path, unit = _columns().get(name, ("", ""))
        if not path or text.startswith("["):
            continue
        bare = re.fullmatch(r"-?\d+(?:\.\d+)?", text)
        # --format=csv,nounits leaves the unit in the head alone.
        fields[path] = f"{text} {units.get(name) or unit}".strip() if bare and unit else text
    index = row.get("index", "")
    address = row.get("pci.bus_id") or row.get("gpu_bus_id") or ""
    place = int(index) if index.isdecimal() and len(index) < 4 else count
    return GpuBlock(line=number, index=place, address=address, fields=fields)


def _sampled(records: Sequence[Record]) -> list[Record]:
    """Return one record a metric: the median of what changes, the last of what counts up."""
    by_metric: dict[str, list[Record]] = {}
    for record in records:
        by_metric.setdefault(record.metric, []).append(record)
    kept_records = []
    for metric, of_metric in by_metric.items():
        values = tuple(record.value for record in of_metric if record.value is not None)
        if metric in _SAMPLED and len(values) > 1:
            kept_records.append(
                of_metric[-1].replace(value=median(values), samples=values[-10_000:])
            )
        else:
            kept_records.append(of_metric[-1])
    return kept_records


# ---- XML


@cache
def _paths() -> Mapping[str, str]:
    path = Path(__file__).with_name("nvidia_query.toml")
    return read_toml(path, dict[str, str], path.name, "xml")


_REASON = re.compile(r"^clocks (?:event|throttle) reason ")


def _read_xml(file: FilePart, _: ImportHints) -> Reading:
    text = file.text
    begin, end = text.find("<nvidia_smi_log"), text.find("</nvidia_smi_log>")
    if end < 0:
        raise file.refuse(file.last, "the XML ends before </nvidia_smi_log>", "was it cut off?")
    file.use_all()
    try:
        # From the root on: no declaration of entities comes before it.
        root = ElementTree.fromstring(text[begin : end + len("</nvidia_smi_log>")])
    except ElementTree.ParseError as error:
        line = file.line_at(begin) + error.position[0] - 1
        raise file.refuse(line, f"not XML: {error.msg}") from None
    lines = [number for number, line in file.lines if "<gpu id=" in line]
    blocks = []
    for index, (gpu, number) in enumerate(zip(root.findall("gpu"), lines, strict=False)):
        fields: dict[str, str] = {}
        _flatten(gpu, "", fields)
        address = gpu.get("id", "")
        blocks.append(GpuBlock(line=number, index=index, address=address, fields=fields))
    if not blocks:
        raise file.refuse(file.last, "it describes no GPU", "import the output of nvidia-smi -q -x")
    driver = (root.findtext("driver_version") or "").split()
    version = driver[0] if driver else None
    return reading_of(file, blocks, version=version, driver=version)


def _flatten(element: ElementTree.Element, path: str, fields: dict[str, str]) -> None:
    """Add the texts below an element by their paths, in the words of ``nvidia-smi -q``."""
    for child in element:
        name = _REASON.sub("", child.tag.replace("_", " ").lower())
        place = f"{path}{name}"
        if len(child):
            _flatten(child, f"{place}/", fields)
        elif child.text and "mig devices" not in place:
            fields.setdefault(_paths().get(place, place), child.text.strip())


_JUDGED = "the doctor's checks of a GPU"

IMPORTERS = (
    Importer(
        name="nvidia-smi-table",
        title="state of each GPU (nvidia-smi's default table)",
        order=131,
        marks=marks_of("nvidia-smi-table"),
        read=_read_table,
        definition="what the driver said at one moment, rounded to whole watts, MiB and percent; a "
        "name that the table cuts off is not known",
        judged_by=_JUDGED,
        source="nvidia-smi(1)",
        tested_on=("nvidia-smi-table.txt",),
    ),
    Importer(
        name="nvidia-smi-csv",
        title="state of each GPU over time (query-gpu, CSV)",
        order=132,
        marks=marks_of("nvidia-smi-csv"),
        read=_read_csv,
        definition="medians of power, clock, temperature and used memory over the rows of a GPU; "
        "limits and counters as its last row says",
        judged_by=_JUDGED,
        source="nvidia-smi(1) --help-query-gpu",
        tested_on=("nvidia-smi-query.csv",),
    ),
    Importer(
        name="nvidia-smi-xml",
        title="state of each GPU (nvidia-smi -q -x, XML)",
        order=133,
        marks=marks_of("nvidia-smi-xml"),
        read=_read_xml,
        definition="as nvidia-smi -q: what the driver said at one moment",
        judged_by=_JUDGED,
        source="nvsmi_device DTD, versions 10 to 13",
        tested_on=("nvidia-smi-q.xml",),
    ),
)
