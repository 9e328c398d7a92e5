"""What the benchmarks share: taking turns, processor time of a child, one line with the ratio."""

from __future__ import annotations

import argparse
import math
import os
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What one child process took."""

    wall_s: float
    cpu_s: float


def options(description: str) -> argparse.ArgumentParser:
    """A parser with the option that every benchmark has."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument(
        "--quick", action="store_true", help="a smoke test: does it run; its figures say nothing"
    )
    return parser


def trained_in() -> tuple[str, ...]:
    """Return what this processor has in hardware of fp32 and bf16, the fastest first."""
    from trainrig.machine import inspect
    from trainrig.runner.targets import host_arithmetic

    return tuple(reversed(host_arithmetic(inspect()).trained_in))


def compiling() -> dict[str, str]:
    """An environment in which Python keeps what it compiled, as after `make setup`."""
    return {name: word for name, word in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def cost_of(command: Sequence[str]) -> Cost:
    """Wall and processor seconds of a command, its children included.

    Raises RuntimeError when it fails: a program that dies early is not a fast one.
    """
    start = time.perf_counter()
    process = subprocess.Popen(
        command,
        env=compiling(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    _, status, used = os.wait4(process.pid, 0)
    wall = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise RuntimeError(f"exit code {process.returncode}: {' '.join(command)}")
    return Cost(wall_s=wall, cpu_s=used.ru_utime + used.ru_stime)


def first_text_cpu_s(command: Sequence[str]) -> float:
    """Processor seconds of a command until it writes its first byte on stdout, then it is ended.

    Raises RuntimeError when it ends without one.
    """
    process = subprocess.Popen(
        command,
        env=compiling(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdout is not None
    with process.stdout as pipe:
        first = os.read(pipe.fileno(), 1)
        process.kill()
        _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if not first:
        raise RuntimeError(f"no text: {' '.join(command)}")
    return used.ru_utime + used.ru_stime


def in_turns(rounds: int, subjects: Mapping[str, Callable[[], _T]]) -> dict[str, list[_T]]:
    """Each subject once a round, so that a change of the machine's mood meets them all."""
    found: dict[str, list[_T]] = {name: [] for name in subjects}
    for _ in range(rounds):
        for name, subject in subjects.items():
            found[name].append(subject())
    return found


def middle(values: Sequence[float]) -> str:
    """Median and range in milliseconds."""
    low, high = min(values), max(values)
    return f"{statistics.median(values) * 1e3:8.1f} ms  ({low * 1e3:.1f} to {high * 1e3:.1f})"


def ratio_of(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float, float]:
    """Theirs over ours, each round with itself: mean of the logarithms and Student's interval."""
    from scipy.stats import t

    logs = [math.log(b / a) for a, b in zip(ours, theirs, strict=True)]
    if len(logs) < 2:
        return math.exp(logs[0]), 0.0, math.inf
    mean, error = statistics.fmean(logs), statistics.stdev(logs) / math.sqrt(len(logs))
    reach = float(t.ppf(0.975, len(logs) - 1)) * error
    return math.exp(mean), math.exp(mean - reach), math.exp(mean + reach)


def verdict(met: bool, *, can_tell: bool = True) -> str:
    """Return whether a target was met, in words that can be searched for."""
    if not can_tell:
        return "cannot tell"
    return "met" if met else "MISSED"


def say_load() -> None:
    """The machine's load, since figures of a busy machine must not be compared with others."""
    print(f"load average {os.getloadavg()[0]:.1f} on {len(os.sched_getaffinity(0))} processors")
