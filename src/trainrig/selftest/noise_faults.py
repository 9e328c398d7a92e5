"""What disturbs a measurement: each reading of the machine a tenth beyond what is allowed.

The readings are those that `measure.noise` takes around a case; the twin's are a tenth inside.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from trainrig.machine import inspect
from trainrig.machine.counters import HostConditions
from trainrig.machine.snapshot import Gpu
from trainrig.measure.noise import (
    MAX_GPU_THREAD_WAIT,
    MAX_OTHER,
    MAX_QUOTA,
    MAX_STEAL,
    TICK_S,
    judge_gpu,
    judge_host,
)
from trainrig.measure.waits import (
    MANY_THREADS,
    MAX_THREAD_WAIT,
    MIN_MAIN_THREAD,
    OwnThreads,
    compare_waits,
)
from trainrig.selftest.doctor_faults import build
from trainrig.selftest.registry import TENTH, Fault, threshold_fault

_HOST = HostConditions(
    wall_s=1.0,
    busy_other_fraction=0.0,
    steal_fraction=0.0,
    own_cpus=2.0,
    throttled_fraction=0.0,
    thermal_events=0,
    load_1m=2.0,
    clock_hz=3e9,
)
_THREADS = OwnThreads(main_ran=1.0, worst_wait=0.0)
Seen = tuple[Any, OwnThreads]


def faults() -> Iterator[Fault]:
    """Yield faults of the host's counters, of its threads and of a GPU."""
    grain = TICK_S / _HOST.wall_s
    for name, says, scene in (
        (
            "a neighbour on other processors",
            "other processes",
            _share_scene("busy_other", MAX_OTHER, grain),
        ),
        ("time that a hypervisor took", "hypervisor", _share_scene("steal", MAX_STEAL, grain)),
        (
            "a container's quota that was used up",
            "quota",
            _share_scene("throttled", MAX_QUOTA, 0.0),
        ),
        ("a processor that was hot", "it was hot", _heat),
        ("a thread that waited for a core", "a thread waited", partial(_waited, MAX_THREAD_WAIT)),
        ("a measuring thread that slept", "the measuring thread ran only", _slept),
        ("one thread of four that waited", "a thread waited", _one_of_four),
        ("a tenth of many threads that waited", "a thread waited", _of_many),
    ):
        yield threshold_fault(
            name, "noise.host", says, scene, lambda seen: _said(judge_host(*seen))
        )
    for name, says, scene in (
        ("others that use the GPU", "of the GPU", _others_on_gpu),
        (
            "the thread that feeds a GPU, waiting",
            "feeds the GPU",
            partial(_waited, MAX_GPU_THREAD_WAIT, others=0.0),
        ),
    ):
        yield threshold_fault(name, "noise.gpu", says, scene, lambda seen: _said(judge_gpu(*seen)))


def _said(disturbed: str | None) -> Iterable[str]:
    return [] if disturbed is None else [disturbed]


def _share_scene(name: str, most: float, grain: float) -> Callable[[random.Random, float], Seen]:
    """Return a scene just beyond or inside a limit of a share of time.

    Shares are known to one tick of the window (``grain``).
    """

    def scene(places: random.Random, towards: float) -> Seen:
        share = (most + grain) * (1.0 + towards * TENTH)
        changes: dict[str, Any] = {f"{name}_fraction": share}
        return dataclasses.replace(_HOST, **changes), _THREADS

    return scene


def _heat(places: random.Random, towards: float) -> Seen:
    events = places.randrange(1, 5) if towards > 0.0 else 0
    return dataclasses.replace(_HOST, thermal_events=events), _THREADS


def _waited(most: float, _: random.Random, towards: float, others: float | None = None) -> Seen:
    """Return a thread of a measurement on the host.

    ``others``: on a GPU that others use so much.
    """
    seen = _HOST if others is None else _gpu(others)
    return seen, OwnThreads(main_ran=1.0, worst_wait=most * (1.0 + towards * TENTH))


def _slept(_: random.Random, towards: float) -> Seen:
    slept = (1.0 - MIN_MAIN_THREAD) * (1.0 + towards * TENTH)
    return _HOST, OwnThreads(main_ran=1.0 - slept, worst_wait=0.0)


def _threads_of(num: int, num_waiting: int, places: random.Random, towards: float) -> Seen:
    """Threads of which some waited, at random."""
    before = {thread: places.uniform(0.0, 9.0) for thread in range(num)}
    wait = MAX_THREAD_WAIT * (1.0 + towards * TENTH)
    waiting = set(places.sample(range(num), k=num_waiting))
    after = {thread: at + wait * (thread in waiting) for thread, at in before.items()}
    return _HOST, compare_waits(before, after, main_ran=1.0, wall=1.0)


def _one_of_four(places: random.Random, towards: float) -> Seen:
    return _threads_of(4, 1, places, towards)


def _of_many(places: random.Random, towards: float) -> Seen:
    num = 10 * MANY_THREADS
    return _threads_of(num, round(0.11 * num), places, towards)


def _others_on_gpu(_: random.Random, towards: float) -> Seen:
    return _gpu(MAX_OTHER * (1.0 + towards * TENTH)), _THREADS


def _gpu(others: float) -> Gpu:
    """Return a GPU of a sound machine that others use for a share of the time."""
    listed = inspect(build("desktop")).gpus
    assert isinstance(listed, tuple)
    activity = dataclasses.replace(listed[0].activity, others_utilization=others)
    return dataclasses.replace(listed[0], activity=activity)
