"""Requests for a burn, and its plan: parts of the time for each device."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainrig.analysis.burn_facts import part_name
from trainrig.benchmarks.burn import BY_DTYPE, CORES, DTYPES, MEMORY, MODES, SHARES, burn_case
from trainrig.errors import UsageError, unknown
from trainrig.record import Case
from trainrig.runner.burn_stress import stress_time
from trainrig.runner.targets import HOST, Target, choose_gpus
from trainrig.units import DAY, duration_text, parse_count

ALL = "all"
MIN_SECONDS, MAX_SECONDS = 1.0, 7 * DAY
_PROGRAM = (sys.executable, "-m", "trainrig.measure.burn")


@dataclass(frozen=True, slots=True, kw_only=True)
class BurnRequest:
    """Request of ``trainrig burn``; empty fields mean the defaults."""

    seconds: float = 1200.0
    devices: tuple[str, ...] = ()
    """The driver's numbers of GPUs, or ``cpu``."""
    mode: str = ALL
    dtypes: tuple[str, ...] = ()
    memory_bytes: int | None = None
    """To test of each device's memory; nearly all that is free without it."""
    golden: Path | None = None
    phase_settings: Mapping[str, Any] = field(default_factory=dict)
    """Further settings of each phase: small sizes, for tests."""
    program: tuple[str, ...] = _PROGRAM
    """Module that burns, given its plan's folder; tests name one that plants faults."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BurnPart:
    """One phase of one device."""

    target: Target
    mode: str
    dtype: str | None
    seconds: float
    stress_s: float = 0.0
    """After it, for stress-ng."""

    @property
    def case(self) -> Case:
        """Case of its record."""
        return burn_case(self.mode, self.dtype)

    @property
    def name(self) -> str:
        """Return a text such as ``matmul bf16``."""
        return part_name(self.case)


def check_request(request: BurnRequest) -> None:
    """Raise UsageError for a time, a mode or a dtype that cannot be."""
    if not MIN_SECONDS <= request.seconds <= MAX_SECONDS:
        direction = "short" if request.seconds < MIN_SECONDS else "long"
        raise UsageError(
            f"--budget {duration_text(request.seconds)} is too {direction}",
            "from 1s to 7d; 20m is a good one",
        )
    if request.mode not in (*MODES, ALL):
        raise unknown("mode", request.mode, (*MODES, ALL))
    for dtype in request.dtypes:
        if dtype not in DTYPES:
            raise unknown("dtype", dtype, DTYPES)
    if request.dtypes and request.mode not in (*BY_DTYPE, ALL):
        raise UsageError(f"--dtype chooses nothing in mode {request.mode}", "--mode matmul or step")
    if request.memory_bytes is not None and request.memory_bytes < 1 << 20:
        raise UsageError(f"--memory {request.memory_bytes} B is too little", "from 1MiB")
    if request.memory_bytes is not None and request.mode not in (MEMORY, ALL):
        raise UsageError(f"--memory chooses nothing in mode {request.mode}", "--mode memory or all")


def plan_parts(
    request: BurnRequest,
    targets: Sequence[Target],
    *,
    stress: bool = False,
) -> tuple[tuple[BurnPart, ...], ...]:
    """Lanes that run one after the other; in each, all parts of its devices.

    ``stress``: stress-ng is there, and has a part of the processors' time.
    UsageError where no device can do what was asked for.
    """
    chosen = choose_gpus(targets, request.devices)
    gpus = tuple(target for target in chosen if target.is_gpu)
    if request.devices:
        chosen = chosen if HOST in request.devices else gpus
    elif gpus and request.mode not in (CORES, ALL):
        chosen = gpus  # what heats GPUs is meant for them
    planned = {
        target: [
            (mode, dtype)
            for mode in _modes_of(request, target, has_gpus=bool(gpus))
            for dtype in _dtypes_of(request, target, mode)
        ]
        for target in chosen
    }
    wanted = {target: modes for target, modes in planned.items() if modes}
    if not wanted:
        raise UsageError(f"no device here for mode {request.mode}", "cpu is for the processors")
    lanes = [[t for t in wanted if t.is_gpu], [t for t in wanted if not t.is_gpu]]
    weights = [sum(_weights(wanted[lane[0]])) if lane else 0.0 for lane in lanes]
    planned_lanes = []
    for lane, weight in zip(lanes, weights, strict=True):
        time_s = request.seconds * weight / sum(weights)
        planned_lanes.append(
            tuple(p for t in lane for p in _parts(t, wanted[t], time_s, stress=stress))
        )
    return tuple(filter(None, planned_lanes))


def _modes_of(request: BurnRequest, target: Target, *, has_gpus: bool) -> tuple[str, ...]:
    """Return a device's modes; beside GPUs the host is burnt by its processors alone."""
    modes: tuple[str, ...] = MODES if request.mode == ALL else (request.mode,)
    if target.is_gpu:
        return tuple(mode for mode in modes if mode != CORES)
    is_beside = has_gpus and request.mode == ALL and HOST not in request.devices
    return (CORES,) if is_beside else modes


def _dtypes_of(request: BurnRequest, target: Target, mode: str) -> Sequence[str | None]:
    if mode not in BY_DTYPE:
        return (None,)
    return request.dtypes or _usual_dtypes(target)


def _parts(
    target: Target, modes: Sequence[tuple[str, str | None]], time_s: float, *, stress: bool
) -> Iterator[BurnPart]:
    """Return the phases of one device, which share the time of its lane."""
    weights = _weights(modes)
    for (mode, dtype), weight in zip(modes, weights, strict=True):
        seconds = time_s * weight / sum(weights)
        stress_seconds = stress_time(seconds) if stress and mode == CORES else 0.0
        yield BurnPart(
            target=target,
            mode=mode,
            dtype=dtype,
            seconds=seconds - stress_seconds,
            stress_s=stress_seconds,
        )


def _weights(modes: Sequence[tuple[str, str | None]]) -> list[float]:
    names = [mode for mode, _ in modes]
    return [SHARES[mode] / names.count(mode) for mode in names]


def _usual_dtypes(target: Target) -> tuple[str, ...]:
    """Return the data types of training; on a processor all that it has instructions for."""
    if target.is_gpu:
        return (target.arithmetic.fastest,)
    return tuple(reversed(target.arithmetic.trained_in))


def memory_of(text: str) -> int:
    """Return bytes of ``4GiB``.  UsageError for what is no size."""
    try:
        return parse_count(text.strip().removesuffix("B"), 1 << 50)
    except UsageError:
        raise UsageError(f"--memory {text}: not a size", "write it like 4GiB or 800MB") from None
