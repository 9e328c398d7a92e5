"""gpu-fryer: products on every GPU at once, and its own verdict on each.

Rates are FLOP/s of products of 8192 (2·n³ a product) on average over the seconds behind the first
five, all GPUs at once.  What it calls not healthy (a rate below its siblings' best less a
tolerance, thermal slowdown by hardware) is a fault in its own words.

Source: huggingface/gpu-fryer src/main.rs (read 2026-11-22).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from trainrig.importers.extract import GIGA, device_name, point, take_lines, to_number, word
from trainrig.importers.file import FilePart
from trainrig.importers.importer import Importer, ImportHints, Reading
from trainrig.importers.spelling import marks_of
from trainrig.record import Case, Record, Status

_SUMMARY = re.compile(
    r"^GPU #(\d{1,3}):\s+(\S+) Gflops/s \(min: ([^,]+), max: ([^,]+), dev: [^)]+\)"
)
_TEMPERATURE = re.compile(r"Temperature: (\S+?)°C \(min: ([^,]+), max: ([^)]+)\)")
_THROTTLE = re.compile(r"Throttling HW: (\w+), Thermal SW: (\w+), Thermal HW: (\w+)")
_REASON = re.compile(r"^\s*-\s+GPU (\d{1,3}) - (.+)$")
_PRECISION = re.compile(r"Using precision\(s\):\s*(.*\S)")
_BROKEN = re.compile(r"^GPU #(?!\d+: Using )")
_VERDICT = re.compile(r"All GPUs seem healthy|Some GPUs are not healthy")
_ABOUT = re.compile(
    r"^Detected \d+ GPUs|^Creating|^Matrices|^GPU #\d+: Using|^\d+ \(\d+ Gflops/s\)|^Freeing GPUs|"
    r"^Burning|^Starting|^Total time"
)
_KINDS = ("hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown")


@dataclass(slots=True, kw_only=True)
class _Gpu:
    """Rates of one GPU in a run's summary, in FLOP/s, and its verdict."""

    line: int
    rate: float
    lowest: float
    highest: float
    temperature: float | None = None
    throttle: str | None = None
    reasons: list[str] = field(default_factory=list)


class _Lines:
    """Collect the GPUs that the lines so far describe."""

    def __init__(self, file: FilePart) -> None:
        self.file = file
        self.gpus: dict[int, _Gpu] = {}
        self.last: _Gpu | None = None
        self.healthy: bool | None = None
        self.dtypes = ""

    def precision(self, _: int, match: re.Match[str]) -> None:
        self.dtypes = "+".join(match[1].lower().split())

    def summary(self, number: int, match: re.Match[str]) -> None:
        numbers = [to_number(self.file, number, text, "rate") for text in match.groups()[1:]]
        if min(numbers) < 0.0:
            raise self.file.refuse(number, "a rate below zero")
        rate, low, high = (value * GIGA for value in numbers)
        self.last = _Gpu(line=number, rate=rate, lowest=low, highest=high)
        self.gpus[int(match[1])] = self.last

    def broken(self, number: int, _: re.Match[str]) -> None:
        raise self.file.refuse(number, "a line of results that is broken off")

    def temperature(self, number: int, match: re.Match[str]) -> None:
        if self.last is not None:
            self.last.temperature = to_number(self.file, number, match[3], "temperature")

    def throttle(self, _: int, match: re.Match[str]) -> None:
        pairs = zip(_KINDS, match.groups(), strict=True)
        slowed = [kind for kind, is_slowed in pairs if is_slowed == "true"]
        if self.last is not None and slowed:
            self.last.throttle = ",".join(slowed)

    def verdict(self, _: int, match: re.Match[str]) -> None:
        self.healthy = match[0].startswith("All")

    def about(self, _: int, __: re.Match[str]) -> None:
        """Pass over a line that holds no number."""

    def reason(self, _: int, match: re.Match[str]) -> None:
        if self.healthy is False and int(match[1]) in self.gpus:
            self.gpus[int(match[1])].reasons.append(word(match[2]))


def _read(file: FilePart, hints: ImportHints) -> Reading:
    lines = _Lines(file)
    take_lines(
        file,
        (
            (_PRECISION, lines.precision),
            (_SUMMARY, lines.summary),
            (_BROKEN, lines.broken),
            (_TEMPERATURE, lines.temperature),
            (_THROTTLE, lines.throttle),
            (_VERDICT, lines.verdict),
            (_REASON, lines.reason),
            (_ABOUT, lines.about),
        ),
    )
    if not lines.gpus:
        raise file.refuse(file.lines[-1][0], "it ends before its results")
    if lines.healthy is False and not any(gpu.reasons for gpu in lines.gpus.values()):
        for gpu in lines.gpus.values():
            gpu.reasons.append("some GPUs are not healthy, and the file does not say which")
    dtypes: Case = {"dtype": lines.dtypes} if lines.dtypes else {}
    case = {"test": "burn", "tool": IMPORTER.name, **dtypes}
    records = [
        record
        for index, gpu in sorted(lines.gpus.items())
        for record in _records(file, case, index, gpu, lines, device_name(hints.device) or "GPU")
    ]
    return Reading(records=records)


def _records(
    file: FilePart, case: Case, index: int, gpu: _Gpu, lines: _Lines, device: str
) -> Iterator[Record]:
    yield point(
        file,
        gpu.line,
        "burn",
        case,
        ("flop_rate", "FLOP/s"),
        gpu.rate if gpu.rate > 0.0 else None,
        device=device,
        index=index,
        count=len(lines.gpus),
        status=Status.OK if gpu.rate > 0.0 else Status.FAILED,
        reason=None if gpu.rate > 0.0 else "0 FLOP/s: nothing was computed",
        conditions={
            # Before the first product the least is that of an unsigned 64-bit number.
            "lowest": gpu.lowest if gpu.lowest <= gpu.highest else None,
            "highest": gpu.highest,
            "temperature_c": gpu.temperature,
            "throttle_reasons": gpu.throttle,
        },
    )
    status, reason = Status.OK, None
    if gpu.rate <= 0.0:
        status, reason = Status.FAILED, "0 FLOP/s: nothing was computed, whatever the verdict says"
    elif gpu.reasons:
        status, reason = Status.FAILED, f"gpu-fryer: {'; '.join(gpu.reasons)}"
    elif lines.healthy is None:
        status, reason = Status.MISSING, "its verdict is not in the file: it was cut off"
    yield point(
        file,
        None,
        "diagnostic",
        {"test": "burn", "category": IMPORTER.name},
        ("passed", "1"),
        1.0 if status is Status.OK else None,
        device=device,
        index=index,
        status=status,
        reason=reason,
    )


IMPORTER = Importer(
    name="gpu-fryer",
    title="rates and health of each GPU under load (text)",
    order=55,
    marks=marks_of("gpu-fryer"),
    read=_read,
    definition="FLOP/s of products of 8192, mean over the run without its first five seconds, all "
    "GPUs at once",
    judged_by="what it calls not healthy is a fault; without its verdict it is not done",
    source="github.com/huggingface/gpu-fryer src/main.rs",
    tested_on=("gpu-fryer-unhealthy.txt",),
)
