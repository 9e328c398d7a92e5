"""torch profiler's traces (Kineto, Chrome's JSON): where a GPU's time went, streamed.

Of each GPU, over the span from its first event to its last: the share in which a compute kernel
ran, in which a collective did (NCCL, RCCL), in which memory was copied or set, and in which nothing
did (idle).  Intervals of several streams are united before they are summed, so that no share
exceeds 1; compute and communication may overlap, which ``overlap_share`` states, of the
communication.  A profiler adds time to every launch: idle is an upper bound.

The events are read one by one and only starts and ends are held: a trace of 200 MB needs no
200 MB of memory.

Source: pytorch/kineto libkineto output_json.cpp; Chrome's trace event format (read 2026-11-22).
"""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from typing import IO, TYPE_CHECKING, Any, TypeGuard

import ijson

from trainrig.importers.extract import device_name, point, word
from trainrig.importers.file import MOST_BYTES, FilePart
from trainrig.importers.importer import Importer, ImportHints, Reading
from trainrig.importers.runs import Marks
from trainrig.record import Case, Record
from trainrig.stats import median
from trainrig.trace import (
    PIPED,
    STEP,
    MissingActivityError,
    TraceEvent,
    break_down,
    is_complete,
    read_event,
    step_spans,
)
from trainrig.units import format_memory

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_CATEGORIES = {"kernel": "compute", "gpu_memcpy": "copy", "gpu_memset": "copy"}
_COLLECTIVE = re.compile(r"^(?:nccl|rccl)|ncclDevKernel|ncclKernel", re.IGNORECASE)
_STEP = re.compile(r"^ProfilerStep#\d+$")
_LARGEST_US = 1e18
_MOST_WITHOUT_EVENT = 1 << 28
_MOST_BEFORE_STEP = 1_000_000
"""Events that are held while no step of ours has been seen."""
_TOP = 3


class _Lines:
    """Binary file that counts the lines which were read from it."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.line = 1
        self.since_event = 0
        """Bytes: a parser holds a value until its end."""

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self.line += data.count(b"\n")
        self.since_event += len(data)
        if self.since_event > _MOST_WITHOUT_EVENT:
            raise ValueError(f"{format_memory(_MOST_WITHOUT_EVENT)} without an event of the trace")
        return data


class _Gpu:
    """Starts and ends of what ran on one GPU, in microseconds, by kind."""

    def __init__(self) -> None:
        self.starts = {kind: array("d") for kind in ("compute", "communication", "copy")}
        self.ends = {kind: array("d") for kind in ("compute", "communication", "copy")}
        self.by_name: Counter[str] = Counter()
        """Nanoseconds."""


class _OwnSteps:
    """Steps that `trainrig train --trace` recorded: the events that their breakdown is made of."""

    def __init__(self) -> None:
        self._events: list[TraceEvent] = []
        self._num_steps = 0

    def take(self, event: Any) -> None:
        """Keep an event from the first step on; of other programs' traces none is kept."""
        if not isinstance(event, dict) or not is_complete(event):
            return
        is_step = event.get("name") == STEP and event.get("cat") == "user_annotation"
        self._num_steps += is_step
        if is_step or event.get("cat") != "python_function":
            self._events.append(read_event(event))
        if not self._num_steps and len(self._events) > _MOST_BEFORE_STEP:
            self._events.clear()

    def records(self, file: FilePart, hints: ImportHints, *, on_device: bool) -> Iterator[Record]:
        """Yield the parts of the step of median length, as the run that it is of has them."""
        if not self._num_steps:
            return
        piped = re.search(rf'"{PIPED}"\s*:\s*true', file.file.head) is not None
        try:
            steps = [
                break_down(self._events, span, piped=piped, on_device=on_device)
                for span in step_spans(self._events)
            ]
        except MissingActivityError as error:
            raise file.refuse(None, str(error)) from None
        middle = sorted(steps, key=lambda step: step["step_s"])[len(steps) // 2]
        case: Case = {"trace": file.name, "tool": IMPORTER.name}
        for part, seconds in middle.items():
            if part.endswith("_s"):
                metric = (f"profiled_{part.removesuffix('_s')}", "s")
                yield point(
                    file, None, "trace", case, metric, seconds, device=hints.device or "rank"
                )


def _read(file: FilePart, hints: ImportHints) -> Reading:
    gpus: dict[int, _Gpu] = {}
    steps: list[float] = []
    own_steps = _OwnSteps()
    with file.file.open() as raw:
        lines = _Lines(raw)
        try:
            for number, event in enumerate(ijson.items(lines, "traceEvents.item", use_float=True)):
                lines.since_event = 0
                _take(file, number, event, gpus, steps)
                own_steps.take(event)
        except (ijson.JSONError, EOFError, OSError, ValueError) as error:
            raise _refused(file, lines.line, error) from None
    breakdown = list(own_steps.records(file, hints, on_device=bool(gpus)))
    if not gpus and not breakdown:
        raise file.refuse(
            None,
            "no GPU kernel in it",
            "record it with ProfilerActivity.CUDA on a machine with one",
        )
    name = re.search(
        r'"deviceProperties".{0,200}?"name"\s*:\s*"([^"]+)"', file.file.head, re.DOTALL
    )
    device = device_name(name[1]) if name else None
    version = re.search(r'"(?:torch|pytorch)_?version"\s*:\s*"([^"]+)"', file.file.head)
    records = [
        record
        for index, gpu in sorted(gpus.items())
        for record in _records(file, index, gpu, steps, device or hints.device)
    ]
    records += breakdown
    return Reading(version=word(version[1]) if version else None, records=records)


def _refused(file: FilePart, line: int, error: Exception) -> Exception:
    """Refuse a trace, with the exact line where the file is small enough to be read again."""
    if file.file.num_bytes <= MOST_BYTES:
        _ = FilePart(file.file, [line for piece in file.file.pieces() for line in piece]).json
    why = word(str(error)).partition(" (right here)")[0][:100]
    return file.refuse(line, f"not JSON, at or before this line: {why}")


def _take(
    file: FilePart, number: int, event: Any, gpus: dict[int, _Gpu], steps: list[float]
) -> None:
    if not isinstance(event, dict) or event.get("ph") != "X":
        return
    category, name = str(event.get("cat", "")).lower(), str(event.get("name", ""))
    kind = _CATEGORIES.get(category)
    is_step = category == "user_annotation" and _STEP.match(name) is not None
    if kind is None and not is_step:
        return
    start, duration = event.get("ts"), event.get("dur")
    if not _is_time(start) or not _is_time(duration) or duration < 0:
        raise file.refuse(None, f"event {number} ({word(name)[:60]}) has no time: ts, dur")
    if is_step:
        steps.append(float(duration) * 1e-6)
        return
    assert kind is not None
    if kind == "compute" and _COLLECTIVE.search(name):
        kind = "communication"
    gpu = gpus.setdefault(_index(event), _Gpu())
    gpu.starts[kind].append(start)
    gpu.ends[kind].append(start + duration)
    gpu.by_name[name[:100]] += round(duration * 1e3)


def _is_time(value: object) -> TypeGuard[float]:
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and abs(value) < _LARGEST_US
        and value == value
    )


def _index(event: Mapping[str, Any]) -> int:
    arguments = event.get("args")
    device = arguments.get("device") if isinstance(arguments, dict) else None
    device_id = event.get("pid") if device is None else device
    return device_id if type(device_id) is int and 0 <= device_id < 4096 else 0


def _records(
    file: FilePart, index: int, gpu: _Gpu, steps: list[float], device: str | None
) -> Iterator[Record]:
    import numpy as np

    kinds = {
        kind: _united(
            np.frombuffer(gpu.starts[kind], dtype=np.float64),
            np.frombuffer(gpu.ends[kind], dtype=np.float64),
        )
        for kind in gpu.starts
    }
    everything = _united(
        *(np.concatenate([kernel[end] for kernel in kinds.values()]) for end in (0, 1))
    )
    span = float(everything[1][-1] - everything[0][0])
    if span <= 0.0:
        raise file.refuse(None, f"the events of GPU {index} take no time")
    total = {kind: _length(kernel) for kind, kernel in kinds.items()}
    both = _united(
        *(np.concatenate([kinds[k][end] for k in ("compute", "communication")]) for end in (0, 1))
    )
    overlap = total["compute"] + total["communication"] - _length(both)
    busiest = dict(gpu.by_name.most_common(_TOP))
    conditions: Case = {
        "num_events": sum(map(len, gpu.starts.values())),
        "num_steps": len(steps) or None,
        **{f"top_{n}": name for n, name in enumerate(busiest, start=1)},
        **{
            f"top_{n}_share": kernel * 1e-3 / span
            for n, kernel in enumerate(busiest.values(), start=1)
        },
    }
    shares = {
        "kernel_share": total["compute"] / span,
        "communication_share": total["communication"] / span,
        "exposed_communication_share": max(0.0, total["communication"] - overlap) / span,
        "copy_share": total["copy"] / span,
        "idle_share": max(0.0, 1.0 - _length(everything) / span),
    }
    if total["communication"] > 0.0:
        shares["overlap_share"] = max(0.0, overlap) / total["communication"]
    case: Case = {"trace": file.name, "tool": IMPORTER.name}
    number = partial(point, file, None, "trace", case, device=device or "GPU", index=index)
    for name, share in shares.items():
        yield number((name, "1"), min(1.0, share), conditions=conditions)
    yield number(("time", "s"), span * 1e-6)
    if steps:
        samples = tuple(steps) if len(steps) > 1 else None
        yield number(("step_time", "s"), median(steps), samples=samples)


_Spans = tuple["NDArray[np.float64]", "NDArray[np.float64]"]


def _united(starts: NDArray[np.float64], ends: NDArray[np.float64]) -> _Spans:
    """Return the intervals without their overlaps, in order."""
    import numpy as np

    if not len(starts):
        return starts, ends
    order = np.argsort(starts, kind="stable")
    starts, reached = starts[order], np.maximum.accumulate(ends[order])
    is_new = np.concatenate([[True], starts[1:] > reached[:-1]])
    places = np.flatnonzero(is_new)
    return starts[places], np.concatenate([reached[places[1:] - 1], reached[-1:]])


def _length(spans: _Spans) -> float:
    return float((spans[1] - spans[0]).sum())


IMPORTER = Importer(
    name="torch-profiler",
    title="kernel, communication, idle shares (JSON, gzip)",
    order=80,
    marks=Marks(
        whole=lambda file: (
            '"traceEvents"' in file.head
            or re.search(r'"schemaVersion": *\d', file.head) is not None
        )
    ),
    read=_read,
    definition="shares of each GPU's span from first to last event, streams united; overlap: the "
    "part of the communication under which a kernel computed",
    judged_by="idle and exposed communication beyond a third of the span are findings",
    source="github.com/pytorch/kineto libkineto output_json.cpp",
    tested_on=("torch-trace.json",),
)
