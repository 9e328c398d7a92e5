"""gpu-burn: products on every GPU at once for a while, compared with the first result.

Rates are FLOP/s of products of 8192, all GPUs at once, as its progress line prints them; the last
line that has one for the GPU counts, and all of them are samples.  The precision is what the end of
a whole output says ("using FLOATS", "DOUBLES", "Tensor Cores"); tensor cores round FLOATS to fp16
(CUBLAS_TENSOR_OP_MATH).  Where that is cut off, a rate above the card's fp32 and fp64 peaks is of
tensor cores, and any other rate has no precision.  A GPU with errors, with FAULTY,
or that died is a fault: the program exits with 0 even then.  A GPU that the output names and that
has no verdict (OK, FAULTY) was not tested to the end.

Source: wilicc/gpu-burn gpu_burn-drv.cpp (read 2026-11-22).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

from trainrig.catalog.chip import Chip, peak
from trainrig.catalog.lookup import candidates, find_chip
from trainrig.importers.extract import GIGA, device_name, point, to_number
from trainrig.importers.file import FilePart
from trainrig.importers.importer import UNNAMED, Importer, ImportHints, Reading
from trainrig.importers.spelling import marks_of
from trainrig.record import WRONG_ANSWER, Case, Record, Status
from trainrig.stats import median

_DEVICE = re.compile(r"^\s*GPU (\d{1,3}): (.+?) \(UUID: ")
_PROGRESS = re.compile(r"(-?[\d.]+)%\s+proc'd:\s*(.*?)\s+errors:\s*(.*?)(?:\s+temps:\s*(.*?))?\s*$")
_RATE = re.compile(r"(-?\d+|-)\s*\(\s*([^()]*?)\s*[Gg]flop/s\)|DIED!")
_ERRORS = re.compile(
    r"(?<!\S)(?P<count>-?\d+)(?!\S)(?:\s*\([^)]*\))?|(?P<died>DIED!?)(?:\s*\([^)]*\))?|"
    r"(?P<other>\S+)"
)
_VERDICT = re.compile(r"^\s*GPU (\d{1,3}): (OK|FAULTY)\s*$")
_PRECISION = re.compile(r"using (FLOATS|DOUBLES)(, using Tensor Cores)?")
_DTYPES = {("FLOATS", False): "fp32", ("FLOATS", True): "fp16"}
"""Data type by the operands and the use of tensor cores; DOUBLES are fp64 either way."""
_BOOST = 1.15
"""A card boosts above its data sheet's clock by less."""
_ABOUT = re.compile(
    r"^Using compare file|^Burning for|^Run length|^Initialized device|^Killing processes|^Freed|"
    r"^Uninitted|^done|^Tested \d+ GPUs|gpu_burn|^Results are|^Clock|^Sigterm|"
    r"^Hard killing|using (?:FLOATS|DOUBLES)"
)
"""Lines that state what is done."""


@dataclass(slots=True)
class _Gpu:
    """Progress, errors and verdict of one GPU in a run."""

    line: int = 0
    rates: list[float] = field(default_factory=list)
    errors: int = 0
    overflowed: bool = False
    """True where a count of errors was printed below zero: a signed counter ran over."""
    temperature: float | None = None
    verdict: str | None = None
    died: bool = False


def _read(file: FilePart, hints: ImportHints) -> Reading:
    names: dict[int, str | None] = {}
    gpus: dict[int, _Gpu] = {}
    share = 0.0
    for number, line in file.lines:
        if file.is_cut(number):
            continue
        if _ABOUT.search(line):
            file.use(number)
        if match := _DEVICE.match(line):
            file.use(number)
            names[int(match[1])] = device_name(match[2])
            gpus.setdefault(int(match[1]), _Gpu())
        elif match := _VERDICT.match(line):
            file.use(number)
            gpus.setdefault(int(match[1]), _Gpu()).verdict = match[2]
        elif "proc'd:" in line:
            file.use(number)
            for part in _updates(line):
                share = _update(file, number, part, gpus) or share
    if not gpus:
        raise file.refuse(1, "no GPU in it", "import the whole output of gpu-burn")
    devices = {index: names.get(index) or device_name(hints.device) for index in gpus}
    dtype = _stated(file) or hints.precision or _only_possible(gpus, devices)
    case: Case = {"mode": "matmul", **({"dtype": dtype} if dtype else {}), "tool": IMPORTER.name}
    records = [
        record
        for index, gpu in sorted(gpus.items())
        for record in _records(file, case, index, gpu, devices[index], len(gpus))
    ]
    notes = [] if share >= 99.0 else [f"its last progress is {share:g} %: the run was cut off"]
    if dtype is None and any(gpu.rates for gpu in gpus.values()):
        notes.append("it does not state the precision (FLOATS, DOUBLES, Tensor Cores): --precision")
    return Reading(records=records, notes=notes)


def _stated(file: FilePart) -> str | None:
    """Return the precision that the end of the output states."""
    match = _PRECISION.search(file.text)
    if match is None:
        return None
    return _DTYPES.get((match[1], match[2] is not None), "fp64")


def _only_possible(gpus: dict[int, _Gpu], devices: dict[int, str | None]) -> str | None:
    """Return fp16 where every GPU is faster than it can be without rounding to it."""
    rates = [(devices[index], max(gpu.rates, default=0.0)) for index, gpu in gpus.items()]
    is_beyond = all(rate > _BOOST * _unrounded_peak(device) for device, rate in rates)
    return "fp16" if is_beyond else None


def _unrounded_peak(device: str | None) -> float:
    """Return the data sheet's FLOP/s in fp32 or fp64; infinite where the card is not known."""
    chip = find_chip(device or "")
    chips: tuple[Chip, ...] = (chip,) if chip else candidates(device or "")
    peaks = [peak(rate, dtype) for rate in chips for dtype in ("fp32", "fp64")]
    known = [rate.rate for rate in peaks if rate is not None]
    has_fp32 = bool(chips) and all(peak(rate, "fp32") for rate in chips)
    return max(known) if has_fp32 else float("inf")


def _updates(line: str) -> list[str]:
    """Return the updates in a line; several stand there where a log lost its carriage returns."""
    return re.split(r"(?<=\S)\s*(?=\b\d{1,3}\.\d%\s+proc'd:)", line.strip())


def _update(file: FilePart, number: int, text: str, gpus: dict[int, _Gpu]) -> float:
    match = _PROGRESS.search(text)
    if match is None:
        return 0.0  # the last one is torn where the run was stopped
    share = to_number(file, number, match[1], "share that is done")
    for index, rate in enumerate(_RATE.finditer(match[2])):
        gpu = gpus.setdefault(index, _Gpu())
        gpu.line = number
        if rate[0].startswith("DIED") or rate[1] == "-1":
            gpu.died = True
        elif (value := to_number(file, number, rate[2], "rate")) > 0.0:
            gpu.rates.append(value * GIGA)
    for index, found_errors in enumerate(_ERRORS.finditer(re.sub(r"\s-\s", " ", match[3]))):
        gpu = gpus.setdefault(index, _Gpu())
        if found_errors["died"]:
            gpu.died = True
            continue
        # A progress line counts what is new since the one before, the warning stays in words.
        text = found_errors["count"] or found_errors["other"]
        count = to_number(file, number, text, "count of errors")
        gpu.overflowed = gpu.overflowed or count < 0.0
        gpu.errors += int(max(0.0, count))
    for index, degrees in enumerate(re.findall(r"(\d+) C|--", match[4] or "")):
        if index in gpus and degrees:
            gpus[index].temperature = to_number(file, number, degrees, "temperature")
    return share


def _records(
    file: FilePart, case: Case, index: int, gpu: _Gpu, device: str | None, count: int
) -> Iterator[Record]:
    status, reason = _state(gpu)
    rate = gpu.rates[-1] if gpu.rates else None
    yield point(
        file,
        gpu.line or None,
        "burn",
        case,
        ("flop_rate", "FLOP/s"),
        rate if status is Status.OK else None,
        device=device or UNNAMED,
        index=index,
        count=count,
        status=status if rate is not None or status is not Status.OK else Status.MISSING,
        reason=reason or (None if rate is not None else "no progress line has a rate of it"),
        samples=tuple(gpu.rates) if status is Status.OK and len(gpu.rates) > 1 else None,
        conditions={
            "median": median(gpu.rates) if gpu.rates else None,
            "errors": gpu.errors,
            "temperature_c": gpu.temperature,
            "verdict": gpu.verdict,
        },
    )
    if status is not Status.OK:
        return
    test: Case = {"test": "burn", "category": IMPORTER.name}
    metric = ("passed", "1")
    passed = partial(
        point, file, None, "diagnostic", test, metric, device=device or UNNAMED, index=index
    )
    if gpu.verdict is None:
        why = "no OK and no FAULTY of it: the run was cut off before its end"
        yield passed(None, status=Status.MISSING, reason=why)
    elif gpu.verdict == "OK":
        yield passed(1.0)


def _state(gpu: _Gpu) -> tuple[Status, str | None]:
    if gpu.died:
        return Status.FAILED, "the GPU died under load (gpu-burn: DIED!)"
    if gpu.verdict == "FAULTY" or gpu.errors or gpu.overflowed:
        verdict = ", FAULTY" if gpu.verdict == "FAULTY" else ""
        counted = f"{gpu.errors} errors in its progress lines"
        if gpu.overflowed:
            counted = "error counter overflowed (a count below zero)"
        return Status.FAILED, f"{WRONG_ANSWER}: {counted}{verdict}"
    if gpu.line and not gpu.rates:
        return Status.FAILED, "0 FLOP/s in each progress line: nothing was computed"
    return Status.OK, None


IMPORTER = Importer(
    name="gpu-burn",
    title="rates, errors and verdicts under load (text)",
    order=50,
    marks=marks_of("gpu-burn"),
    read=_read,
    definition="FLOP/s of products of 8192 on each GPU, all GPUs at once; fp32 (FLOATS), fp64 "
    "(DOUBLES) or fp16 (Tensor Cores), as the end of the output says",
    judged_by="errors, FAULTY or a GPU that died are a fault (exit code 0 is no pass); no verdict "
    "is not done; equal cards are compared with each other",
    source="github.com/wilicc/gpu-burn gpu_burn-drv.cpp",
    tested_on=(
        "gpu-burn-2x-ok.txt",
        "gpu-burn-faulty.txt",
        "gpu-burn-cut-off.txt",
        "gpu-burn-tensor-cores.txt",
    ),
    published="gpu-burn",
)
