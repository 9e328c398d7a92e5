"""Which training program a table's words name, and what it does where a row does not say.

Programs are those of `workload.programs`; `program_words.toml` has the words that name them, and
what is named beside them.  What follows from a trait for a step is answered where it is asked
(`row_layout`, `row_compute`, `row_memory`, `row_lengths`).
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from trainrig.record import read_by, read_toml
from trainrig.workload.programs import known_programs, program_of_entry
from trainrig.workload.programs.program import PROGRAM_KEYS, TRAITS, Program, is_stated

_FILE = Path(__file__).with_name("program_words.toml")
COMPARED = _FILE.with_name("compared.toml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """What a program is found by in text, in the order in which its traits count."""

    pattern: re.Pattern[str]
    """Looked for in small letters."""
    instead_of: tuple[str, ...]
    """Names of programs whose words are part of its own: they are not meant."""
    program: Program


@lru_cache(maxsize=1)
def programs() -> tuple[Words, ...]:
    """All programs that words name, in the file's order.  Raises DataError where the file is none.

    An entry refers to one of `workload.programs`, or has traits of its own: of what is named beside
    a program, and of several programs that are named together.
    """
    return tuple(_words(entry) for entry in _content()["program"])


def _words(entry: Mapping[str, Any]) -> Words:
    traits = {key: value for key, value in entry.items() if key not in _OF_WORDS}
    key = entry.get("program")
    return Words(
        pattern=re.compile(entry["pattern"]),
        instead_of=tuple(entry.get("instead_of", ())),
        program=known_programs()[key] if key else program_of_entry(traits),
    )


_OF_WORDS = ("program", "pattern", "instead_of")


@lru_cache(maxsize=1)
def _content() -> Mapping[str, Any]:
    return tomllib.loads(_FILE.read_text(encoding="utf-8"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Submissions:
    """What submissions to a benchmark do, where who submits is named and what runs may not be."""

    pattern: str
    """Looked for in a row's words for program, machine and model."""
    traits: Program
    """In place of those of the program that runs."""
    runs: str = ""
    """Words for what runs where no program of Megatron's family is named; a row that names another
    way of spreading a model is none of its submissions.  "": whatever is named."""
    unless: str = ""
    """A pattern in the same words of what is none of them."""
    task: str = ""
    """A pattern of the model that one of its tasks tunes with adapters."""
    task_seq: int = 0
    """Tokens that this task's examples are packed to."""

    def laid_over(self, named: Program) -> Program:
        """The program of a row of this benchmark that names that one."""
        ran = program_of(self.runs) if self.runs and named.trains_as != "megatron" else named
        return PROGRAM_KEYS.replace(ran, **_stated(self.traits))


def _stated(program: Program) -> dict[str, Any]:
    values = {trait: PROGRAM_KEYS.get(program, trait) for trait in TRAITS}
    return {trait: value for trait, value in values.items() if is_stated(value)}


@lru_cache(maxsize=1)
def benchmarks() -> tuple[Submissions, ...]:
    """All benchmarks in the file's order.  Raises DataError where the file is none."""
    return tuple(
        Submissions(**entry | {"traits": program_of_entry(entry["traits"])})
        for entry in _content()["benchmark"]
    )


@lru_cache(maxsize=1 << 12)
def affirmed(words: str) -> str:
    """Words in small letters without what they deny: ``no torch.compile``, ``liger: off``."""
    return _DENIED.sub("", words)


_THING = r"[\w./+]{1,32}(?:[ _-](?:att\w*|compil\w*|kernels?|engine|graphs?|checkpoint\w*)\b){0,2}"
_DENIED = re.compile(
    rf"(?:\b(?:no|non|not|without|w/o|disabl\w+)\b[ -]+(?:using |the )?|\bun(?=comp)|无){_THING}"
    rf"|(?<![\w./+]){_THING}(?:\)?[ =:(]{{1,4}}(?:off|false|disabled|no)\b(?!\s*[\w.])|=0\b)"
)


@lru_cache(maxsize=1 << 12)
def program_of(words: str) -> Program:
    """Say what words in small letters name: of each trait what the first entry states that has it.

    What one of them always does it does, since whatever month another one does.  Its name is that
    of the first that spreads a model, if any: what is beside it (kernels, a container, the library
    below) makes no other program of it.
    """
    words = affirmed(words)
    entries = [entry for entry in programs() if entry.pattern.search(words)]
    meant_not = {name for entry in entries for name in entry.instead_of}
    named = [entry.program for entry in entries if entry.program.name not in meant_not]
    traits: dict[str, Any] = {}
    for trait in TRAITS:
        values = (PROGRAM_KEYS.get(program, trait) for program in named)
        if stated := [value for value in values if is_stated(value)]:
            is_always = isinstance(stated[0], str) and True in stated
            traits[trait] = is_always or stated[0]
    trains = (program.name for program in named if program.trains_as)
    name = next(trains, " + ".join(program.name for program in named))
    return PROGRAM_KEYS.make(name=name, **traits)


@read_by({"extra": "forbid"})
class Compared:
    """A program and the chips that it was compared on."""

    program: str
    chips: tuple[str, ...]


@lru_cache(maxsize=1)
def compared() -> frozenset[tuple[str, str]]:
    """Programs, as `program_of` names them, and chips of which published steps were compared.

    Written by `python -m validation.protocols --write` from the rows that constants and intervals
    come from.  Raises DataError where the file is none.
    """
    rows = read_toml(COMPARED, list[Compared], COMPARED.name, "compared")
    return frozenset((row.program, chip) for row in rows for chip in row.chips)


def torch_version(words: str) -> tuple[int, int]:
    """Version of torch that words in small letters name, ``torch 2.1.0``; (0, 0): none.

    A container of NVIDIA's is called by its month: ``pytorch 21.11``.
    """
    match = re.search(r"torch (\d)\.(\d+)", words)
    return (int(match[1]), int(match[2])) if match else (0, 0)
