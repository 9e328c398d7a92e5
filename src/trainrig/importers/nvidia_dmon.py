"""nvidia-smi dmon: power, heat, load and clocks of each GPU, a row a second.

Columns are read by their names in the head, which differ with the driver and with ``-s``.  Medians
over the rows of a GPU are records; the rows are the samples.

Source: nvidia-smi(1), dmon; outputs of drivers 440 to 610 (read 2026-11-28).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from statistics import median

from trainrig.importers.extract import device_name, point, to_number
from trainrig.importers.file import FilePart
from trainrig.importers.importer import Importer, ImportHints, Reading
from trainrig.importers.spelling import marks_of

_HEAD = re.compile(r"^#.*\bgpu\s+\S")
_UNITS = re.compile(r"^#.*\bIdx\b")
_ROW = re.compile(r"^[\s\d:/-]*\d[\s\d.:/-]*$")
_COLUMNS = {
    "pwr": ("power", "W", 1.0),
    "gtemp": ("temperature", "°C", 1.0),
    "temp": ("temperature", "°C", 1.0),
    "mtemp": ("memory_temperature", "°C", 1.0),
    "sm": ("utilization", "1", 0.01),
    "pclk": ("sm_clock", "Hz", 1e6),
    "mclk": ("memory_clock", "Hz", 1e6),
    "fb": ("memory_used", "B", 2.0**20),
}
"""Column of dmon: metric, unit, value of one in that unit."""


def _rows(file: FilePart) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the number of each row's line, and its cells by their column."""
    columns: list[str] = []
    for number, line in file.lines:
        cells = line.split()
        if _HEAD.match(line):
            columns = line.lstrip("#").split()
        elif _UNITS.match(line):
            if len(cells) != len(columns) + 1:
                raise file.refuse(number, f"{len(cells) - 1} units below {len(columns)} columns")
        elif columns and _ROW.match(line):
            if file.is_cut(number) or (number == file.last and len(cells) < len(columns)):
                continue
            if len(cells) != len(columns):
                raise file.refuse(number, f"{len(cells)} cells below {len(columns)} columns")
            yield number, dict(zip(columns, cells, strict=True))
        else:
            continue
        file.use(number)


def _read(file: FilePart, hints: ImportHints) -> Reading:
    values: dict[tuple[int, str], list[float]] = {}
    lines: dict[int, int] = {}
    for number, row in _rows(file):
        index = int(to_number(file, number, row["gpu"], "number of a GPU"))
        lines.setdefault(index, number)
        for column in row.keys() & _COLUMNS.keys():
            if row[column] != "-":
                value = to_number(file, number, row[column], column)
                values.setdefault((index, column), []).append(value)
    if not values:
        raise file.refuse(file.last, "a head of nvidia-smi dmon without a row")
    records = []
    for (index, column), samples in sorted(values.items()):
        metric, unit, factor = _COLUMNS[column]
        scaled = tuple(sample * factor for sample in samples)
        records.append(
            point(
                file,
                lines[index],
                "gpu-state",
                {"tool": "nvidia-smi-dmon"},
                (metric, unit),
                median(scaled),
                device=device_name(hints.device) or "GPU",
                index=index,
                samples=scaled[-10_000:] if len(scaled) > 1 else None,
            )
        )
    return Reading(records=records)


IMPORTER = Importer(
    name="nvidia-smi-dmon",
    title="power, heat, load and clocks over time (dmon)",
    order=138,
    marks=marks_of("nvidia-smi-dmon"),
    read=_read,
    definition="medians of a GPU's rows, one a second unless -d says otherwise; sm is the share of "
    "the time in which a kernel ran, not how much of the GPU it used",
    judged_by="nothing is claimed of them: they stand beside what was measured at that time",
    source="nvidia-smi(1), dmon",
    tested_on=("dmon-2x.txt",),
)
