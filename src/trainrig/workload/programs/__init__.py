"""Training programs: one entry each of what they do by default, and the engines they train on.

    engine.py      the traits of an engine, which memory and time of a layout follow from
    engines.toml   the engines
    program.py     the traits of a program: what it switches on where nobody says
    usual.py       which program is presumed for a layout
    *.toml         the programs, one entry each, every trait with its source

A `Layout` names an engine (its framework).  Whoever asks by a program's name gets that engine and
the program's defaults.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from trainrig.errors import DataError, unknown
from trainrig.workload.programs.engine import ENGINE_KEYS, EngineTraits
from trainrig.workload.programs.program import PROGRAM_KEYS, Program
from trainrig.workload.programs.usual import LayoutKind, usual_program

_HERE = Path(__file__).parent
_ENGINES = _HERE / "engines.toml"
_OTHER_FILES = ("engines.toml", "software.toml")


def _engines() -> dict[str, EngineTraits]:
    content = tomllib.loads(_ENGINES.read_text(encoding="utf-8"))
    tables = {name: traits for name, traits in content.items() if name != "schema"}
    return {name: ENGINE_KEYS.make(**_frozen(traits)) for name, traits in tables.items()}


def _frozen(table: Mapping[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in table.items()}


FRAMEWORKS = _engines()
"""Engines that a layout may name; `train.engines.register` adds one that trains."""
NATIVE = "native"
LEAST_RESTRICTED = "deepspeed"
"""The engine that runs every layout which any of them runs."""


def program_of_entry(entry: Mapping[str, Any]) -> Program:
    """Return the program that an entry of a file describes.

    Raises:
        TypeError: The entry has a trait that no program has.
    """
    return PROGRAM_KEYS.make(**_frozen(entry))


@cache
def known_programs() -> Mapping[str, Program]:
    """Return all programs, by their keys.

    Raises:
        DataError: Two programs have one key.
    """
    programs: dict[str, Program] = {}
    for path in sorted(_HERE.glob("*.toml")):
        if path.name in _OTHER_FILES:
            continue
        for entry in tomllib.loads(path.read_text(encoding="utf-8"))["program"]:
            program = program_of_entry(entry)
            if program.key in programs:
                raise DataError(f"{path.name}: {program.key} stands twice")
            programs[program.key] = program
    return programs


def find_program(name: str) -> Program:
    """Return the program of that name or alias, however its words are joined.

    Raises:
        UsageError: No program is called so.
    """
    program = _by_name().get(_joined(name))
    if program is None and name in FRAMEWORKS:  # an engine that was registered
        return Program(key=name, name=name, engine=name)
    if program is None:
        raise unknown("framework", name, documented())
    return program


@cache
def _by_name() -> Mapping[str, Program]:
    return {
        _joined(name): program
        for program in known_programs().values()
        for name in (program.key, *program.aliases)
    }


def _joined(name: str) -> str:
    return "".join(letter for letter in name.casefold() if letter.isalnum())


def documented() -> list[str]:
    """Return the keys of the programs whose defaults have a source, in alphabetical order."""
    return sorted(program.key for program in known_programs().values() if program.source)


def usual_framework(spread: LayoutKind) -> str:
    """Return the engine that usually runs such a layout."""
    return known_programs()[usual_program(spread).program].engine
