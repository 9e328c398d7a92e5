"""Thresholds, stated a second time: one that was moved is named, and so is a swapped severity.

Faults elsewhere stand a tenth beyond the thresholds of the rule tables, and move with them.
thresholds.toml states every number of those tables, and every constant of the modules that judge; a
rule whose number differs from it is found here.  ``tools/selftest_table.py --thresholds`` writes
the file anew where a threshold was moved on purpose.
"""

from __future__ import annotations

import importlib
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

from trainrig.selftest.registry import HEALTHY, TENTH, Fault

TABLES = ("watched", "links", "run_to_run", "classes")
"""Rule tables of `analysis`."""
MODULES = (
    *(f"analysis.{name}" for name in ("burn_watch", "compare", "judge", "judge_burn")),
    *(f"analysis.{name}" for name in ("judge_classes", "judge_imported", "judge_links")),
    *(f"analysis.{name}" for name in ("judge_sentinel", "judge_training", "rows", "run_to_run")),
    *("analysis.watched", "benchmarks.burn", "benchmarks.spec", "benchmarks.training"),
    *("measure.noise", "measure.timing", "measure.waits", "prediction.expected"),
    *("scatter", "stats"),
)
"""Modules that judge, and whose constants decide."""
PATH = Path(__file__).parent / "thresholds.toml"
_WORDS = ("source", "fix", "label", "unit", "finding", "otherwise")
"""Keys of a rule that do not tell it from others."""
Numbers = Mapping[str, float]


@cache
def actual_numbers() -> Mapping[str, Numbers]:
    """Return the numbers of every table and module as they are, by the name of the place."""
    numbers_by_place: dict[str, Numbers] = {}
    folder = Path(__file__).parents[1] / "analysis"
    for name in TABLES:
        table = tomllib.loads((folder / f"{name}.toml").read_text(encoding="utf-8"))
        numbers_by_place[f"{name}.toml"] = dict(_flat(table))
    for name in MODULES:
        module = importlib.import_module(f"trainrig.{name}")
        numbers_by_place[name] = dict(_constants(module))
    return {place: numbers for place, numbers in numbers_by_place.items() if numbers}


@cache
def stated_numbers() -> Mapping[str, Numbers]:
    """Return what thresholds.toml states."""
    return tomllib.loads(PATH.read_text(encoding="utf-8"))


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, float]]:
    """Yield each number of a table under a path that names its rule by what it says."""
    if isinstance(value, dict):
        for key, part in value.items():
            yield from _flat(part, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for row in value:
            if isinstance(row, dict):
                identifying_words = (
                    ",".join(word) if isinstance(word, list) else str(word)
                    for key, word in row.items()
                    if key not in _WORDS and isinstance(word, str | list)
                )
                yield from _flat(row, f"{path}[{' '.join(identifying_words)}]")
    elif isinstance(value, int | float):
        yield path, float(value)


def _constants(module: Any) -> Iterator[tuple[str, float]]:
    """Yield the numbers that a module itself names in capitals."""
    text = Path(module.__file__).read_text(encoding="utf-8")
    for name, value in vars(module).items():
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if is_number and name.isupper() and f"\n{name}" in text:
            yield name, float(value)


def faults() -> Iterator[Fault]:
    """Yield a fault for each table and module: each of its numbers moved by a tenth."""
    for place, numbers in stated_numbers().items():
        yield Fault(
            name=f"a threshold of {place} that was moved",
            check="thresholds.stated",
            says=f"moved: {place}",
            inject=partial(_moved, place),
            observe=_compared,
            variants=tuple(numbers),
        )


@contextmanager
def _moved(place: str, _: Path, variant: Any) -> Iterator[tuple[str, Numbers]]:
    numbers = dict(actual_numbers().get(place, {}))
    if variant is not HEALTHY and variant in numbers:
        numbers[variant] = numbers[variant] * (1.0 + TENTH) + TENTH * (not numbers[variant])
    yield place, numbers


def _compared(seen: tuple[str, Numbers]) -> Iterable[str]:
    place, numbers = seen
    stated = stated_numbers()[place]
    for name in {**stated, **numbers}:
        if name not in numbers or name not in stated or numbers[name] != stated[name]:
            yield (
                f"moved: {place}: {name} is {numbers.get(name, 'gone')}, "
                f"stated is {stated.get(name, 'nothing')}"
            )
