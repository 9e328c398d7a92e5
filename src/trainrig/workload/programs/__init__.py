"""Training programs: one entry each of what they do by default, and the engines they train on.

    engine.py      the traits of an engine, which memory and time of a layout follow from
    engines.toml   the engines
    program.py     the traits of a program: what it switches on where nobody says
    *.toml         the programs, one entry each, every trait with its source

A `Layout` names an engine (its framework).  Whoever asks by a program's name gets that engine and
the program's defaults.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

from trainrig.errors import DataError
from trainrig.workload.programs.engine import Engine, HostTraits, ModelTraits, RankTraits
from trainrig.workload.programs.program import GROUP_OF, Program

_HERE = Path(__file__).parent
_ENGINES = _HERE / "engines.toml"


def _engine(traits: Mapping[str, Any]) -> Engine:
    groups: dict[str, Any] = {}
    left = dict(traits)
    for group, kind in (("models", ModelTraits), ("ranks", RankTraits), ("host", HostTraits)):
        names = {trait.name for trait in fields(kind)} & left.keys()
        groups[group] = kind(**{name: _frozen(left.pop(name)) for name in names})
    if left:
        raise DataError(f"{_ENGINES.name}: an engine has no trait {next(iter(left))}")
    return Engine(**groups)


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _engines() -> dict[str, Engine]:
    content = tomllib.loads(_ENGINES.read_text(encoding="utf-8"))
    return {name: _engine(traits) for name, traits in content.items() if name != "schema"}


FRAMEWORKS = _engines()
"""Engines that a layout may name; `train.engines.register` adds one that trains."""
NATIVE = "native"
OF_SCHEDULES = {"dualpipe": "megatron"}
"""The engine whose kernels and buffers a schedule of another program is predicted with."""
LEAST_RESTRICTED = "deepspeed"
"""The engine that runs every layout which any of them runs."""


def usual_framework(*, split: bool, sharded: bool, several: bool) -> str:
    """Of a layout with tensor or pipeline parallelism, with sharded weights, of several GPUs."""
    if sharded:
        return "torchtitan" if split else "huggingface"
    if split:
        return "megatron"
    return "huggingface" if several else NATIVE


def program_of_entry(entry: Mapping[str, Any], file: str) -> Program:
    """Return the program that an entry of a file describes.

    Raises:
        DataError: The entry has a trait that no program has.
    """
    traits = {key: _frozen(value) for key, value in entry.items() if key in GROUP_OF}
    about = {key: entry[key] for key in entry.keys() - traits.keys()}
    if unknown := about.keys() - {"key", "name"}:
        raise DataError(f"{file}: {entry.get('name')}: a program has no trait {min(unknown)}")
    return Program(**about).with_traits(traits)


@cache
def known_programs() -> Mapping[str, Program]:
    """Return all programs, by their keys.

    Raises:
        DataError: An entry is none of a program.
    """
    found: dict[str, Program] = {}
    for path in sorted(_HERE.glob("*.toml")):
        if path == _ENGINES:
            continue
        for entry in tomllib.loads(path.read_text(encoding="utf-8"))["program"]:
            program = program_of_entry(entry, path.name)
            if program.key in found:
                raise DataError(f"{path.name}: {program.key} stands twice")
            found[program.key] = program
    return found
