"""mamf-finder: the fastest product of matrices that a search found.

FLOP/s of 2·m·n·k over the mean, the median or the shortest time of a product, with the cache
overwritten before each; newer versions print MAMF (the fastest while the chip still boosts) and
MSMF (what it sustains) instead.  Sizes are printed M × N × K.

Source: stas00/ml-engineering compute/accelerator/benchmarks/mamf-finder.py (read 2026-11-22).
"""

from __future__ import annotations

import re

from trainrig.importers.extract import TERA, device_name, point, to_count, to_number, word
from trainrig.importers.file import FilePart
from trainrig.importers.importer import Importer, ImportHints, Reading
from trainrig.importers.spelling import marks_of
from trainrig.record import Case, Record

_DTYPES = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "float32": "fp32",
    "half": "fp16",
    "float8_e4m3fn": "fp8",
    "float8_e5m2": "fp8",
    "int8": "int8",
    "float64": "fp64",
}
_BEST = re.compile(
    r"^(?P<what>mean|median|max|MAMF|MSMF)\b[^:]*:\s*(?P<rate>\S+)\s*TFLOPS @ "
    r"(?P<m>\d+)x(?P<n>\d+)x(?P<k>\d+)"
)
_OLDEST = re.compile(
    r"best outcome was\s+(?P<rate>[\d.]+)\s*TFLOPS @ (?P<m>\d+)x(?P<n>\d+)x(?P<k>\d+)"
)
_BROKEN = re.compile(r"^(mean|median|max|MAMF|MSMF)\b[^:]*:.*TFLOPS")
_DEVICE = re.compile(r"name='([^']+)'")
_DTYPE = re.compile(r"Dtype:\s*(?:torch\.)?(\w+)|--dtype[ =](?:torch\.)?(\w+)")
_ABOUT = re.compile(
    r"^Benchmark started on|^\*\* |^- |mamf-finder\.py|^-{5,}|\bTried\s+\d+ shapes|^Elapsed time|"
    r"best outcome|^\s*\d+ \||TFLOPS \d"
)
"""Lines of the run's head, and of each shape."""
_VERSION = re.compile(r"benchmark version:\s*(\S+)")
_TRIED = re.compile(r"\bTried\s+(\d{1,12}) shapes")


def _read(file: FilePart, hints: ImportHints) -> Reading:
    dtype = _DTYPE.search(file.head)
    device = _DEVICE.search(file.head)
    name = device_name(device[1]) if device else device_name(hints.device)
    stated = dtype[1] or dtype[2] if dtype else None
    records: list[Record] = []
    tried = _TRIED.search(file.text)
    for number, line in file.lines:
        if _ABOUT.search(line):
            file.use(number)
        match = _BEST.match(line.strip()) or _OLDEST.search(line)
        if match is None:
            if _BROKEN.match(line.strip()):
                raise file.refuse(number, "a line of results that is broken off")
            continue
        file.use(number)
        precision = _DTYPES.get(stated or "", stated) or hints.precision
        case, rate = _product(file, number, match, precision)
        records.append(
            point(
                file,
                number,
                "matmul",
                case,
                ("flop_rate", "OP/s" if precision == "int8" else "FLOP/s"),
                rate * TERA,
                device=name,
                index=0,
                conditions={"shapes": int(tried[1]) if tried else None, "kind": "search"},
            )
        )
    version = _VERSION.search(file.head)
    notes = [] if stated else ["it names no dtype: add --precision"]
    return Reading(version=word(version[1]) if version else None, records=records, notes=notes)


def _product(
    file: FilePart, number: int, match: re.Match[str], precision: str | None
) -> tuple[Case, float]:
    """Return the case of a line of results, and its TFLOPS."""
    statistic = match.groupdict().get("what") or "max"
    rate = to_number(file, number, match["rate"], "rate")
    sizes = {axis: to_count(file, number, match[axis], f"size {axis}") for axis in "mnk"}
    if rate < 0.0 or not all(0 < size < 1 << 32 for size in sizes.values()):
        raise file.refuse(number, "no product of matrices has that rate or size")
    case: Case = {
        **({"dtype": precision} if precision else {}),
        **sizes,
        "cache": "cold",
        "statistic": statistic.lower(),
        **({"sustained": True} if statistic == "MSMF" else {}),
        "tool": IMPORTER.name,
    }
    return case, rate


IMPORTER = Importer(
    name="mamf-finder",
    title="the fastest product of a search (text)",
    order=60,
    marks=marks_of("mamf-finder"),
    read=_read,
    definition="2·m·n·k over the mean, median or shortest time of a product, cold cache; MAMF is "
    "of a boosting chip, MSMF of one under lasting load",
    judged_by="the chip's dense peak of that dtype bounds it",
    source="github.com/stas00/ml-engineering compute/accelerator/benchmarks/mamf-finder.py",
    tested_on=("mamf-finder-h100.txt", "mamf-finder-msmf.txt"),
    published="max achievable",
)
