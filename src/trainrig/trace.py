"""From a profiler's trace to where the time of a step went on one rank.

    communication   exposed: the rank waits for a collective and computes nothing
    bubble          it waits for another stage of the pipeline: for a message, or, where there are
                    stages, for the sum of single numbers (norm, loss) that ends a step
    own             all the rest: operations, samples, the host's time between them
    idle            of `own`: no operation, on a GPU no kernel ran; the residual of what is seen
    overlapped      communication that went on beside `own`; it costs no time by itself

own + communication + bubble is the step.  It is the same for every layout, engine and backend,
since it knows no caller: messages and collectives are those that the profiler saw.

The trace is Kineto's (Chrome's JSON), of a file or of a profiler in this process.  Only what ran on
the device counts as device time: kernels, copies and memsets.  A ``gpu_user_annotation`` is a copy
of a host's annotation and spans the idle time between the kernels that it names.  What a kernel of
NCCL or RCCL was for is told by the operation that launched it: an all-to-all runs as kernels named
SendRecv, and RCCL's kernels are all called Generic.

On the CPU a collective is in flight from its call to its end in a thread of gloo's (events
``gloo:…``); the rank waits where it is in ``Work.wait`` or ``wait_tensor``, or, as DDP does at the
end of backward in C++, runs no operation for longer than `HOST_GAP` while one is in flight.

Device timelines are unverified on hardware.  Needs the standard library alone: drivers of other
engines run it in Pythons that have little more than torch.

Source: pytorch/kineto libkineto output_json.cpp and ActivityType.cpp (categories, ``External id``,
``correlation``); torch/csrc/profiler/util.cpp (``Collective name``, ``Process Group Description``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

Span = tuple[float, float]
"""Begin and end, in seconds."""
Step = dict[str, Any]
"""Seconds of a step by part, and of ``own`` by phase: ``own_in``."""

STEP, WAIT, PHASE = "trainrig:step", "trainrig:wait", "trainrig:phase:"
"""Annotations that a recorder leaves on the host's timeline."""
PIPED = "trainrig_has_stages"
"""Key of a trace's own data: true where the training has pipeline stages."""
HOST_GAP = 2e-4
"""Seconds without an operation that are no more the host's way to the next one."""

_DEVICE_WORK = {"kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset"}
_LAUNCHES = {"cuda_runtime", "cuda_driver", "runtime", "privateuse1_runtime", "xpu_runtime"}
_COMMUNICATION_KERNEL = re.compile(r"nccl|rccl|msccl|nvshmem|deep_ep|multimem_|_shot_all_", re.I)
_COLLECTIVE = re.compile(
    r"all_?to_?all|all_?reduce|all_?gather|reduce_?scatter|broadcast|barrier|gather|scatter|reduce",
    re.I,
)
_MESSAGE = re.compile(r"send|recv", re.I)
_EXCHANGE = re.compile(r"record_param_comms|(_?c10d(_functional)?::|nccl:|rccl:|gloo:)")
"""Beginnings of the names of host operations that exchange something."""
_PIPELINE_GROUP = re.compile(r"(?<![a-z])pp(?![a-z])|pipe", re.I)

NO_DEVICE_ACTIVITY = (
    "the profiler recorded launches and no kernel: CUPTI (on AMD roctracer) is missing, or reading "
    "its counters is not permitted (NVreg_RestrictProfilingToAdminUsers)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceEvent:
    """One complete event of a trace."""

    name: str
    category: str
    """Kineto's activity type in lower case: ``cpu_op``, ``kernel``, ``user_annotation``."""
    start: float
    """Seconds, on the trace's clock."""
    end: float
    thread: object = None
    """The thread of a host event, the stream of a device event."""
    external_id: int | None = None
    """Joins a device event and the host operation that launched it."""
    correlation: int | None = None
    """Joins a device event and the call of the runtime that launched it."""
    collective: str = ""
    """The collective that the process group recorded, such as ``alltoall_base``."""
    group: str = ""
    """The description of its process group, such as ``mesh_pp``."""
    shapes: tuple[tuple[int, ...], ...] = ()
    """Sizes of the input tensors of a host operation."""

    @property
    def span(self) -> Span:
        """Begin and end, in seconds."""
        return self.start, self.end

    @property
    def is_device_work(self) -> bool:
        """Return whether the device was busy with an event."""
        return self.category in _DEVICE_WORK


class MissingActivityError(ValueError):
    """A device ran the steps and the trace has nothing of it."""


def read_events(trace: Mapping[str, Any]) -> list[TraceEvent]:
    """Return the complete events (``"ph": "X"``) of a trace in Chrome's JSON, in its order.

    Args:
        trace: The parsed file; ``traceEvents`` holds the events, times in microseconds.
    """
    events = (event for event in trace.get("traceEvents", ()) if isinstance(event, Mapping))
    return [read_event(event) for event in events if is_complete(event)]


def is_complete(event: Mapping[str, Any]) -> bool:
    """Return whether an event of Chrome's JSON has a begin and a length."""
    times = (event.get("ts"), event.get("dur"))
    return event.get("ph") == "X" and all(
        isinstance(time, int | float) and not isinstance(time, bool) for time in times
    )


def read_event(event: Mapping[str, Any]) -> TraceEvent:
    """Return one complete event of Chrome's JSON."""
    arguments = event.get("args")
    more: Mapping[str, Any] = arguments if isinstance(arguments, Mapping) else {}
    start = float(event["ts"]) * 1e-6
    return TraceEvent(
        name=str(event.get("name", "")),
        category=str(event.get("cat", "")).lower(),
        start=start,
        end=start + float(event["dur"]) * 1e-6,
        thread=more.get("stream", event.get("tid")),
        external_id=_whole(more.get("External id", more.get("external id"))),
        correlation=_whole(more.get("correlation")),
        collective=str(more.get("Collective name", "")),
        group=str(more.get("Process Group Description", "")),
        shapes=_shapes(more.get("Input Dims", more.get("Input dims"))),
    )


def _whole(value: object) -> int | None:
    if isinstance(value, str) and value.isdigit():  # older versions of Kineto write strings
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _shapes(value: object) -> tuple[tuple[int, ...], ...]:
    tensors = value if isinstance(value, list) else ()
    return tuple(
        tuple(size for size in tensor if isinstance(size, int))
        for tensor in tensors
        if isinstance(tensor, list)
    )


def step_spans(events: Iterable[TraceEvent], name: str = STEP) -> list[Span]:
    """Return the spans of the host's annotation ``name``, in order."""
    return sorted(e.span for e in events if e.name == name and e.category == "user_annotation")


def break_down(events: Sequence[TraceEvent], step: Span, *, piped: bool, on_device: bool) -> Step:
    """Return where the time of one step went, in seconds.

    Args:
        events: All events of one rank.
        step: Begin and end of the step, on the host.
        piped: The training has pipeline stages: messages are between them.
        on_device: The step was computed by a device that has kernels, not by the host.

    Raises:
        MissingActivityError: Of a step on a device nothing of the device was recorded.
    """
    here = [event for event in events if step[0] <= event.start < step[1]]
    device = [event for event in here if event.is_device_work]
    if on_device and not device:
        raise MissingActivityError(NO_DEVICE_ACTIVITY)
    if device:
        work = [event.span for event in device if not _communicates(event)]
        bubble, exposed, in_flight = _device_waits(device, here, piped=piped)
    else:
        work = _host_operations(here)
        bubble, exposed, in_flight = _host_waits(here, step, piped=piped)
    exposed = without(exposed, bubble)
    waits = merged([*bubble, *exposed])
    step_alone = without([step], waits)
    own_in: dict[str, float] = {}
    for event in here if not device else ():
        if event.name.startswith(PHASE):
            name = event.name.removeprefix(PHASE)
            own_in[name] = own_in.get(name, 0.0) + length(both(step_alone, [event.span]))
    return {
        "step_s": step[1] - step[0],
        "own_s": length(step_alone),
        "idle_s": length(without(step_alone, work)),
        "communication_s": length(exposed),
        "bubble_s": length(bubble),
        "overlapped_s": length(without(in_flight, waits)),
        "own_in": own_in,
    }


# ---- on a device

_Waits = tuple[list[Span], list[Span], list[Span]]
"""For other stages, for collectives; and while anything was in flight."""


def _device_waits(
    device: Sequence[TraceEvent], events: Sequence[TraceEvent], *, piped: bool
) -> _Waits:
    """A kernel that receives runs from its launch on, and so waits for the one that sends."""
    computing = [event.span for event in device if not _communicates(event)]
    launchers = _Launchers(events)
    messages: list[Span] = []
    collectives: list[Span] = []
    for event in device:
        if _communicates(event):
            is_message = piped and launchers.is_pipeline_message(event)
            (messages if is_message else collectives).append(event.span)
    return (
        without(messages, [*computing, *collectives]),
        without(collectives, computing),
        [*messages, *collectives],
    )


def _communicates(event: TraceEvent) -> bool:
    return event.category == "kernel" and (
        bool(event.collective) or _COMMUNICATION_KERNEL.search(event.name) is not None
    )


class _Launchers:
    """The host operations that launched kernels which communicate."""

    def __init__(self, events: Iterable[TraceEvent]) -> None:
        self._operations: dict[int, TraceEvent] = {}
        self._calls: dict[int, TraceEvent] = {}
        self._around: list[TraceEvent] = []
        """Operations whose name is an exchange's; outer ones of a launch are sought among them."""
        for event in events:
            if event.category in _LAUNCHES and event.correlation is not None:
                self._calls[event.correlation] = event
            elif event.category in ("cpu_op", "user_annotation"):
                if event.external_id is not None:
                    self._operations[event.external_id] = event
                if _purpose(event) is not None:
                    self._around.append(event)

    def is_pipeline_message(self, kernel: TraceEvent) -> bool:
        """Return whether a kernel carries a message between stages, in a run that has some.

        Without an operation that launched it (in a CUDA graph) the kernel's own name decides.
        """
        described = [kernel] if kernel.collective else []
        for event in (*described, *self._operations_of(kernel), kernel):
            purpose = _purpose(event)
            if purpose is not None:
                return purpose == "message" and not _is_of_another_group(event.group)
        return False

    def _operations_of(self, kernel: TraceEvent) -> list[TraceEvent]:
        """Return the operation that launched a kernel, then those around it, innermost first."""
        call = self._calls.get(kernel.correlation) if kernel.correlation is not None else None
        identity = kernel.external_id
        if identity is None and call is not None:
            identity = call.external_id
        operation = self._operations.get(identity) if identity is not None else None
        launched = call or operation
        if launched is None:
            return []
        around = [
            event
            for event in self._around
            if event.thread == launched.thread
            and event.start <= launched.start
            and launched.end <= event.end
        ]
        around.sort(key=lambda event: event.end - event.start)
        return [*([operation] if operation is not None else []), *around]


def _is_of_another_group(group: str) -> bool:
    """Return whether a process group belongs to another dimension than the pipeline's."""
    is_described = group.startswith("mesh_") or "PARALLEL" in group
    return is_described and _PIPELINE_GROUP.search(group) is None


def _purpose(event: TraceEvent) -> str | None:
    """Return ``message``, ``collective``, or None where name and metadata do not tell."""
    named = event.is_device_work or _EXCHANGE.match(event.name) is not None
    for text in (event.collective, event.name if named else ""):
        if _COLLECTIVE.search(text):
            return "collective"
        if _MESSAGE.search(text):
            return "message"
    return None


# ---- on the host


def _host_operations(events: Sequence[TraceEvent]) -> list[Span]:
    """Return the host's operations; waits within those that move tensors are removed later."""
    return [event.span for event in events if event.name.startswith(("aten::", "mkl"))]


def _host_waits(events: Sequence[TraceEvent], step: Span, *, piped: bool) -> _Waits:
    flights = [event for event in events if event.name.startswith("gloo:")]

    def spans(*, message: bool, single: bool | None = None) -> list[Span]:
        return [
            clipped(event.span, step)
            for event in flights
            if (_purpose(event) == "message") is message
            and (single is None or _is_single_number(event) is single)
        ]

    messages, sums = spans(message=True), spans(message=False, single=True)
    collectives = spans(message=False, single=False)
    # Without stages messages are a collective's own (ring attention), and sums are like others.
    between_stages, between_ranks = (
        ([*messages, *sums], collectives) if piped else ([], [*messages, *sums, *collectives])
    )
    waited = [e.span for e in events if e.name == WAIT or e.name.endswith("::wait_tensor")]
    idle = [(a, b) for a, b in without([step], _host_operations(events)) if b - a > HOST_GAP]
    bubble = without(both(waited, between_stages), both(waited, between_ranks))
    # A sum of one number is waited for where it is asked for; a gap beside it is the host's own.
    in_gaps = collectives if piped else [*messages, *collectives]
    exposed = [*both(waited, between_ranks), *both(idle, in_gaps)]
    return bubble, merged(exposed), [*messages, *sums, *collectives]


def _is_single_number(event: TraceEvent) -> bool:
    """Return one number is summed: a norm, a loss."""
    return bool(event.shapes) and all(prod(shape) == 1 for shape in event.shapes)


# ---- intervals


def merged(spans: Iterable[Span]) -> list[Span]:
    """Return the union of spans as spans that do not touch, in order."""
    union: list[Span] = []
    for start, end in sorted(spans):
        if end <= start:
            continue
        if union and start <= union[-1][1]:
            union[-1] = union[-1][0], max(end, union[-1][1])
        else:
            union.append((start, end))
    return union


def length(spans: Iterable[Span]) -> float:
    """Return the seconds that lie in one span at least."""
    return sum(end - start for start, end in merged(spans))


def both(some: Iterable[Span], others: Iterable[Span]) -> list[Span]:
    """Return what lies in a span of each."""
    shared, others_merged = [], merged(others)
    at = 0
    for start, end in merged(some):
        while at < len(others_merged) and others_merged[at][1] <= start:
            at += 1
        for low, high in others_merged[at:]:
            if low >= end:
                break
            shared.append((max(start, low), min(end, high)))
    return shared


def without(some: Iterable[Span], others: Iterable[Span]) -> list[Span]:
    """Return what lies in a span of the first and in none of the others."""
    pieces = []
    some = merged(some)
    cuts = merged(both(some, others))
    at = 0
    for start, end in some:
        begin = start
        while at < len(cuts) and cuts[at][0] < end:
            pieces.append((begin, cuts[at][0]))
            begin = cuts[at][1]
            at += 1
        pieces.append((begin, end))
    return merged(pieces)


def clipped(span: Span, step: Span) -> Span:
    """Return the part of a span that lies in a step."""
    return max(span[0], step[0]), min(span[1], step[1])
