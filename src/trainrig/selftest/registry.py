"""Faults of the self-test: their type, their families, and the planting of each below its check.

A family of faults is one file of this folder that defines ``faults()``; it is found by itself.  A
fault has a scene (files, a program's output, NVML's answers, a tensor, a process) which
``inject`` opens, with the fault in it or, for the twin, without; ``observe`` asks the real check,
which is handed the scene as it would be handed the machine and knows of no fault.  A fault that is
planted in several places (every bit of a number) has a variant for each, and all must be caught.

A false alarm is anything that a check says of a twin.  A fault that this machine cannot have, since
it lacks the part, is neither caught nor missed; the reason is told.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import random
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from trainrig.errors import unknown

CLEAN_RUNS = 5
"""Default number of looks at each healthy twin."""
_BROKE = "the check itself broke:"
HEALTHY = None
"""The variant of a scene without its fault."""


SEED = "TRAINRIG_SELFTEST_SEED"
"""Variable with the seed of the places in which faults are planted."""
TENTH = 0.1
"""Distance of a fault beyond its threshold and of its twin inside it, as a share."""
TRIALS = 3
"""In how many random places a fault at a threshold is planted."""


def plant_seed() -> int:
    """Return the seed of random places: the same in all processes of one self-test."""
    return int(os.environ.get(SEED, "1"))


def places() -> random.Random:
    """Return a source of random places that is the same in all processes of one self-test."""
    return random.Random(plant_seed())


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Fault that can be planted, and the check that must find it."""

    name: str
    """Name of the fault: ``an x8 link in an x16 slot``."""
    check: str
    """Whose fault it is to miss it, ``room.check``: ``doctor.pcie``, ``bundle.hash``."""
    inject: Callable[[Path, Any], AbstractContextManager[Any]]
    """Opens the scene in an empty folder: with the fault's variant, or with `HEALTHY` its twin."""
    observe: Callable[[Any], Iterable[str]]
    """Function that returns the check's lines: ``pcie-link-below-max: GPU 0 has 8 of 16``."""
    says: str = ""
    """Text that a line must hold to count as this fault found."""
    finds: str = ""
    """Id of the finding that it must raise, where the check has findings."""
    begins: str = ""
    """Beginning of such a line: the severity and the finding."""
    needs: Callable[[], str | None] = lambda: None
    """Function that returns why this machine cannot have the fault; None where it can."""
    variants: Sequence[Any] = ("",)
    """In how many places it is planted; each is handed to ``inject``."""
    twin: str = ""
    """Faults with the same word have one healthy scene, which is looked at once for all of them."""


def named_faults(
    family: str,
    rows: Iterable[tuple[str, str, str, Callable[[Path, Any], AbstractContextManager[Any]]]],
    observe: Callable[[Any], Iterable[str]],
    twin: str = "",
) -> Iterator[Fault]:
    """Yield a fault for each row.

    Args:
        family: The family's name, the first part of each check's.
        rows: What is wrong, the outcome that must come (``FAIL exit 1 error``), the finding's id,
            and what opens the scene.
        observe: As a `Fault` has it.
        twin: As a `Fault` has it.
    """
    for name, outcome, finds, inject in rows:
        yield Fault(
            name=name,
            check=f"{family}.{finds}",
            says=f"{outcome} {finds}:",
            finds=finds,
            inject=inject,
            observe=observe,
            twin=twin,
        )


Scene = Callable[[random.Random, float], Any]
"""(places, +1 for a tenth beyond the threshold or -1 for a tenth inside it) → what is looked at."""


def threshold_fault(
    name: str,
    check: str,
    says: str,
    scene: Scene,
    observe: Callable[[Any], Iterable[str]],
    finds: str = "",
) -> Fault:
    """Return a fault a tenth beyond a threshold, at random places; its twin is a tenth inside."""

    @contextmanager
    def inject(_: Path, variant: Any) -> Iterator[Any]:
        seed, towards = (plant_seed(), -1.0) if variant is HEALTHY else (variant, 1.0)
        yield scene(random.Random(seed), towards)

    first = plant_seed()
    return Fault(
        name=name,
        check=check,
        says=says,
        finds=finds,
        inject=inject,
        observe=observe,
        variants=range(first, first + TRIALS),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultResult:
    """Result of planting a fault."""

    fault: str
    check: str
    caught: bool | None
    """None: this machine lacks the part, as ``reason`` says."""
    seconds: float | None
    """From the planted fault to the check's word; of several variants the median."""
    reason: str | None
    """Reason for a miss, or the check's line."""
    trials: int = 1
    caught_trials: int = 0
    finds: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """False alarm: a check's line about a healthy twin."""

    check: str
    fault: str
    run: int
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfTest:
    """Results of a self-test."""

    results: tuple[FaultResult, ...]
    alarms: tuple[Alarm, ...]
    clean_runs: int
    seconds: float
    seed: int = 1

    @property
    def missed(self) -> tuple[FaultResult, ...]:
        """Faults that were planted and not found."""
        return tuple(result for result in self.results if result.caught is False)

    @property
    def is_sound(self) -> bool:
        """True where every fault that this machine can have was found, and nothing else."""
        return not self.missed and not self.alarms

    def to_dict(self) -> dict[str, Any]:
        """Return the object that ``--json`` prints."""
        return {
            "faults": [asdict(result) for result in self.results],
            "caught": sum(result.caught is True for result in self.results),
            "missed": len(self.missed),
            "not_here": sum(result.caught is None for result in self.results),
            "clean_runs": self.clean_runs,
            "false_alarms": len(self.alarms),
            "alarms": [asdict(alarm) for alarm in self.alarms],
            "seconds": round(self.seconds, 1),
            "seed": self.seed,
        }


Event = FaultResult | Alarm
Watch = Callable[[Event], None]


@cache
def families() -> dict[str, Any]:
    """Name of a family → its module."""
    package = __name__.rpartition(".")[0]
    files = pkgutil.iter_modules(importlib.import_module(package).__path__)
    named = {file.name for file in files if file.name.endswith("_faults")}
    return {
        name.removesuffix("_faults"): importlib.import_module(f"{package}.{name}")
        for name in sorted(named)
    }


def all_faults(only: Sequence[str] = ()) -> dict[str, tuple[Fault, ...]]:
    """Family → its faults; of ``only`` those whose family, check or name begins with a word.

    Raises UsageError for a word that fits none.
    """
    faults_by_family = {name: tuple(module.faults()) for name, module in families().items()}
    for word in only:
        if not any(
            _fits(word, name, fault)
            for name, family_faults in faults_by_family.items()
            for fault in family_faults
        ):
            checks = sorted(
                {
                    fault.check
                    for family_faults in faults_by_family.values()
                    for fault in family_faults
                }
            )
            raise unknown("check", word, [*faults_by_family, *checks])
    if not only:
        return faults_by_family
    selected = {
        name: tuple(
            fault for fault in family_faults if any(_fits(word, name, fault) for word in only)
        )
        for name, family_faults in faults_by_family.items()
    }
    return {name: family_faults for name, family_faults in selected.items() if family_faults}


def _fits(word: str, family: str, fault: Fault) -> bool:
    room = fault.check.partition(".")[0]
    return word in (family, room, fault.finds, fault.check) or (
        " " in word and fault.name.startswith(word)
    )


def prove(faults: Iterable[Fault], watch: Watch, clean_runs: int = CLEAN_RUNS) -> None:
    """Plant each fault, then look at the healthy twins; ``watch`` is told what comes."""
    faults = tuple(faults)
    here = []
    for fault in faults:
        lacking = fault.needs()
        if lacking is not None:
            watch(_result(fault, caught=None, reason=lacking, trials=0))
            continue
        here.append(fault)
        watch(_plant(fault))
    twins = {fault.twin or f"{fault.check} {fault.name}": fault for fault in here}
    for run in range(clean_runs):
        for fault in twins.values():
            for message in _look(fault, HEALTHY)[0]:
                watch(Alarm(check=fault.check, fault=fault.name, run=run + 1, message=message))


def _plant(fault: Fault) -> FaultResult:
    times, lines, missed = [], [], []
    for variant in fault.variants:
        said_lines, seconds = _look(fault, variant)
        matching_lines = [line for line in said_lines if _is_of(fault, line)]
        if matching_lines:
            times.append(seconds)
            lines.append(matching_lines[0])
        else:
            missed.append(
                f"{variant}: " * (variant != "")
                + (said_lines[0] if said_lines else "nothing found")
            )
    return _result(
        fault,
        caught=not missed,
        seconds=round(sorted(times)[len(times) // 2], 7) if times else None,
        reason=missed[0] if missed else lines[0],
        trials=len(fault.variants),
        caught_trials=len(times),
    )


def _is_of(fault: Fault, line: str) -> bool:
    """Return whether a check's line is about this fault."""
    is_whole = fault.says in line and fault.finds in line and line.startswith(fault.begins)
    return is_whole and not line.startswith(_BROKE)


def _result(fault: Fault, **fields: Any) -> FaultResult:
    return FaultResult(
        fault=fault.name, check=fault.check, finds=fault.finds, **{"seconds": None, **fields}
    )


def _look(fault: Fault, variant: Any) -> tuple[list[str], float]:
    """Return the check's lines about a scene, and the seconds that it took."""
    start = time.perf_counter()
    try:
        with (
            tempfile.TemporaryDirectory(prefix="trainrig-selftest-") as folder,
            fault.inject(Path(folder), variant) as scene,
        ):
            start = time.perf_counter()
            lines = list(fault.observe(scene))
            return lines, time.perf_counter() - start
    except Exception as error:  # noqa: BLE001 - a check that breaks costs its own fault alone
        return [f"{_BROKE} {type(error).__name__}: {error}"], time.perf_counter() - start
