"""Where the time of a step goes on one rank, from a few steps under torch's profiler.

    communication   exposed: the rank waits for a collective and computes nothing
    bubble          it waits for another stage of the pipeline: for a message, or, where there are
                    stages, for the sum of single numbers (norm, loss) that ends a step
    own             all the rest: products, kernels, the host's time between them, samples
    overlapped      communication that went on beside `own`; it costs no time by itself

own + communication + bubble is the step.  It is the same for every layout, engine and backend,
since it knows no caller: messages and collectives are those that the profiler saw.

On the CPU a collective is in flight from its call to its end in a thread of gloo's (events
``gloo:…``); the rank waits where it is in ``Work.wait`` or ``wait_tensor``, or, as DDP does at the
end of backward in C++, runs no operation for longer than GAP while one is in flight.  On a GPU
kernels of NCCL's streams communicate, all others compute; unverified on hardware.

Profiled steps are slower than others by what each recorded operation costs (about 2 µs), so the
parts are told for a step of their own length, ``step_s``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile, record_function

Span = tuple[float, float]
"""Begin and end, in seconds."""
STEPS = 3
GAP = 2e-4
"""Seconds without an operation that are no more the host's way to the next one."""
_STEP, _WAIT = "trainrig:step", "trainrig:wait"
_MESSAGES = ("send", "recv", "Send", "Recv")


def profiled(step: Callable[[], None], *, piped: bool, steps: int = STEPS) -> dict[str, float]:
    """Seconds by part of the median of ``steps`` calls; ``piped``: a pipeline has stages."""
    on_gpu = torch.cuda.is_available()
    kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    step()  # as many steps are under way then as later
    with profile(activities=kinds, record_shapes=True) as seen, _waits_recorded():
        for _ in range(steps):
            with record_function(_STEP):
                step()
                if on_gpu:
                    torch.cuda.synchronize()
    events = list(seen.events() or ())
    found = [_parts(events, span, piped=piped) for span in _spans(events, _STEP)]
    return sorted(found, key=lambda parts: parts["step_s"])[len(found) // 2]


@contextlib.contextmanager
def _waits_recorded() -> Iterator[None]:
    """In the body, the profiler sees where Python waits for a collective or a message."""
    original = dist.Work.wait

    def wait(work: Any, *args: Any, **how: Any) -> Any:
        with record_function(_WAIT):
            return original(work, *args, **how)

    dist.Work.wait = wait
    try:
        yield
    finally:
        dist.Work.wait = original


def _parts(events: Sequence[Any], step: Span, *, piped: bool) -> dict[str, float]:
    here = [event for event in events if _begins_in(event, step)]
    kernels = [event for event in here if event.device_type != torch.autograd.DeviceType.CPU]
    waits = _waits_of_streams(kernels) if kernels else _waits_of_host(here, step, piped=piped)
    bubble, exposed, in_flight = waits
    exposed = without(exposed, bubble)
    taken = length(bubble) + length(exposed)
    whole = step[1] - step[0]
    beside = length(without(in_flight, [*bubble, *exposed]))
    return {
        "step_s": whole,
        "own_s": whole - taken,
        "communication_s": length(exposed),
        "bubble_s": length(bubble),
        "overlapped_s": beside,
    }


Waits = tuple[list[Span], list[Span], list[Span]]
"""For other stages, for collectives; and while anything was in flight."""


def _waits_of_host(events: Sequence[Any], step: Span, *, piped: bool) -> Waits:
    gloo = [event for event in events if event.name.startswith("gloo:")]
    flights = [(event, clipped(_span(event), step)) for event in gloo]
    messages = [span for event, span in flights if _is_message(event)]
    sums = [span for event, span in flights if not _is_message(event) and _is_single(event)]
    collectives = [
        span for event, span in flights if not _is_message(event) and not _is_single(event)
    ]
    waited = [_span(e) for e in events if e.name == _WAIT or e.name.endswith("::wait_tensor")]
    leaves = [
        _span(e) for e in events if not e.cpu_children and e.name.startswith(("aten::", "mkl"))
    ]
    idle = [(a, b) for a, b in without([step], leaves) if b - a > GAP]
    for_collectives = [*both(waited, collectives), *both(idle, collectives)]
    others = [*messages, *sums] if piped else messages
    bubble = without(both(waited, others), both(waited, collectives))
    if not piped:
        for_collectives += both(waited, sums)
    return bubble, merged(for_collectives), [*messages, *sums, *collectives]


def _waits_of_streams(kernels: Sequence[Any]) -> Waits:
    """A receiving kernel of NCCL runs from its launch on, and so waits for who sends."""
    nccl = [event for event in kernels if "nccl" in event.name.lower()]
    computing = [_span(event) for event in kernels if "nccl" not in event.name.lower()]
    messages = [_span(event) for event in nccl if _is_message(event)]
    collectives = [_span(event) for event in nccl if not _is_message(event)]
    return (
        without(messages, [*computing, *collectives]),
        without(collectives, computing),
        [*messages, *collectives],
    )


def _is_message(event: Any) -> bool:
    return any(word in event.name for word in _MESSAGES)


def _is_single(event: Any) -> bool:
    """One number is summed: a norm, a loss."""
    shapes = [shape for shape in event.input_shapes or () if isinstance(shape, list)]
    return bool(shapes) and all(torch.Size(shape).numel() == 1 for shape in shapes)


def _span(event: Any) -> Span:
    return event.time_range.start * 1e-6, event.time_range.end * 1e-6


def _spans(events: Iterable[Any], name: str) -> list[Span]:
    cpu = torch.autograd.DeviceType.CPU
    return sorted(
        _span(event) for event in events if event.name == name and event.device_type == cpu
    )


def _begins_in(event: Any, step: Span) -> bool:
    return step[0] <= event.time_range.start * 1e-6 < step[1]


# ---- intervals


def merged(spans: Iterable[Span]) -> list[Span]:
    """Spans that touch become one."""
    found: list[Span] = []
    for start, end in sorted(spans):
        if end <= start:
            continue
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((start, end))
    return found


def length(spans: Iterable[Span]) -> float:
    """Seconds that lie in one span at least."""
    return sum(end - start for start, end in merged(spans))


def both(some: Iterable[Span], others: Iterable[Span]) -> list[Span]:
    """What lies in one of each."""
    found, rest = [], merged(others)
    at = 0
    for start, end in merged(some):
        while at < len(rest) and rest[at][1] <= start:
            at += 1
        for low, high in rest[at:]:
            if low >= end:
                break
            found.append((max(start, low), min(end, high)))
    return found


def without(some: Iterable[Span], others: Iterable[Span]) -> list[Span]:
    """What lies in one of the first and in none of the others."""
    found = []
    some = merged(some)
    cuts = merged(both(some, others))
    at = 0
    for start, end in some:
        left = start
        while at < len(cuts) and cuts[at][0] < end:
            found.append((left, cuts[at][0]))
            left = cuts[at][1]
            at += 1
        found.append((left, end))
    return merged(found)


def clipped(span: Span, step: Span) -> Span:
    """The part of a span that lies in a step."""
    return max(span[0], step[0]), min(span[1], step[1])
