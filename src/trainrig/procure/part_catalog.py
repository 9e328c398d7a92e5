"""The catalog's parts, read from data files and checked; and a part that a user describes himself.

A file under catalog/parts/ holds parts of one kind.  As with chips, a value stands in a table named
after its source, so that none can be written down without one: ``from`` where it was looked up,
``computed`` where it follows by a rule that the source's title states.  What no source has is left
out, and asked for by the rule that compares it.

    kind = "case"

    [sources.buildcores]
    title = "BuildCores OpenDB, 136a77a"
    url = "https://github.com/buildcores/buildcores-open-db"
    date = "2026-11-23"

    [sources.kind]
    title = "Rule: airflow by the kind of case"
    ...

    [[part]]
    name = "Fractal Design Torrent"
    from.buildcores = { gpu_length_mm = 461, slots = 7 }
    computed.kind = { airflow = "tower" }

A part is found by its name alone, case and dashes aside, never by a neighbour's: an unknown one is
asked for, by the fields that the rules need.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, TypeAdapter, ValidationError

import trainrig.catalog
from trainrig.catalog.chip import Chip, Provenance, Source
from trainrig.catalog.lookup import find_chip, normalise, require_chip
from trainrig.errors import DataError, UsageError, invalid, unknown
from trainrig.procure.parts import KINDS, GpuCard, Part, field_names, kind_of, required_fields
from trainrig.record import read_toml

PARTS_DIR = Path(trainrig.catalog.__file__).parent / "parts"
_ADAPTERS = {kind: TypeAdapter(made) for kind, made in KINDS.items()}


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _SourceEntry(_Strict):
    title: Annotated[str, Field(min_length=1)]
    url: Annotated[str, StringConstraints(pattern=r"^https?://")]
    date: Annotated[str, StringConstraints(pattern=r"^\d{4}-\d{2}(-\d{2})?$")]


class _Entry(_Strict):
    name: Annotated[str, Field(min_length=1)]
    from_: dict[str, dict[str, Any]] = Field(default_factory=dict, alias="from")
    computed: dict[str, dict[str, Any]] = Field(default_factory=dict)


class _File(_Strict):
    schema_: Literal[1] = Field(alias="schema")
    kind: str
    sources: dict[str, _SourceEntry]
    part: list[_Entry]


@cache
def load_parts() -> Mapping[str, tuple[Part, ...]]:
    """Return every part of the catalog by its kind.  Raises DataError if a file is broken."""
    parts_by_kind: dict[str, list[Part]] = {kind: [] for kind in KINDS}
    for path in sorted(PARTS_DIR.glob("*.toml")):
        kind, parts = read_parts_file(path)
        parts_by_kind[kind] += parts
    for kind, parts in parts_by_kind.items():
        names = [normalise(part.name) for part in parts]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise DataError(f"parts catalog: two {kind} are called {twice[0]}")
    return {kind: tuple(parts) for kind, parts in parts_by_kind.items()}


def read_parts_file(path: Path) -> tuple[str, list[Part]]:
    """Return the kind and the parts of one data file.  Raises DataError."""
    parsed = read_toml(path, _File, f"parts file {path.name}")
    if parsed.kind not in KINDS:
        raise DataError(f"parts file {path.name}: no kind is called {parsed.kind!r}")
    sources = {key: Source(key=key, **entry.model_dump()) for key, entry in parsed.sources.items()}
    return parsed.kind, [_build(parsed.kind, entry, sources, path) for entry in parsed.part]


def _build(kind: str, entry: _Entry, sources: Mapping[str, Source], path: Path) -> Part:
    values: dict[str, Any] = {}
    origins: dict[str, Provenance] = {}
    where = f"parts file {path.name}: {entry.name}"
    for verified, tables in ((True, entry.from_), (False, entry.computed)):
        for key, source_values in tables.items():
            if key not in sources:
                raise DataError(f"{where}: unknown source {key!r}")
            for name, value in source_values.items():
                if name in values:
                    raise DataError(f"{where}: {name} is given twice")
                values[name] = value
                origins[name] = Provenance(source=sources[key], verified=verified)
    try:
        part: Part = _ADAPTERS[kind].validate_python({"name": entry.name, **values})
    except ValidationError as error:
        raise invalid(error, where, KINDS[kind]) from None
    return dataclasses.replace(part, provenance=origins)


def find_part(kind: str, name: str) -> Part | None:
    """Return the part that ``name`` means, or None."""
    normalised_name = normalise(name)
    return next(
        (part for part in load_parts()[kind] if normalise(part.name) == normalised_name), None
    )


def own_part(
    kind: str, name: str, values: Mapping[str, Any], where: str, *, is_complete: bool = True
) -> Part:
    """Return a part of the catalog with what a user changed, or one that is described in full.

    Args:
        kind: One of `parts.KINDS`.
        name: Of the part.
        values: Fields that the list states.
        where: The list, for messages.
        is_complete: Whether fields that only a rule compares are asked for.

    Raises:
        UsageError: All fields that are missing, or the one that is wrong.
    """
    values = {**values, **_as_called(kind, values)}
    catalog_part = find_part(kind, name)
    if catalog_part is not None and not values:
        return catalog_part
    base = {} if catalog_part is None else _values(catalog_part)
    required = required_fields(kind, by_rules=is_complete)
    missing = [field for field in required if not (catalog_part or field in values)]
    if missing:
        chip = kind == "gpu" and find_chip(name) is not None
        message = f"{name} is a chip, and the card matters" if chip else f"unknown {kind} {name!r}"
        suggestion = _near(kind, name, chip=chip)
        request = f"add to [[{kind}]] {name}: {', '.join(missing)}"
        raise UsageError(f"{where}: {message}", f"{suggestion}{request}")
    if extra := [field for field in values if field not in field_names(kind)]:
        meant = unknown("key", extra[0], (*field_names(kind), "count", "price")).hint
        raise UsageError(f"{where}: a {kind} has no {extra[0]!r}", meant)
    try:
        part: Part = _ADAPTERS[kind].validate_python({"name": name, **base, **values})
    except ValidationError as error:
        invalid_field = invalid(error, f"{where}: {name}", KINDS[kind])
        raise UsageError(invalid_field.message, invalid_field.hint) from None
    if isinstance(part, GpuCard):
        chip_of(part)
    return part


def chip_of(card: GpuCard) -> Chip:
    """Return the chip that a card carries.  Raises UsageError where the catalog has none."""
    return require_chip(card.chip)


def all_names() -> Iterator[tuple[str, str]]:
    """Yield kind and name of each part."""
    for kind, parts in load_parts().items():
        for part in parts:
            yield kind, part.name


def part_dict(part: Part) -> dict[str, Any]:
    """Return a part for JSON: its kind, its known fields, and where each was read."""
    known_values = {name: value for name, value in _values(part).items() if value not in (None, ())}
    return {
        "name": part.name,
        "kind": kind_of(part),
        "fields": known_values,
        "sources": {
            name: {"title": origin.source.title, "url": origin.source.url}
            for name, origin in part.provenance.items()
        },
    }


def _values(part: Part) -> dict[str, Any]:
    return {
        field.name: getattr(part, field.name)
        for field in dataclasses.fields(part)
        if field.name not in ("name", "provenance")
    }


_MEMORY = re.compile(r"(LP)?DDR\d[A-Z]?(?![A-Z0-9])", re.IGNORECASE)


def _as_called(kind: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return memory types as modules call themselves: ``DDR5-5600 UDIMM`` is DDR5."""
    memory_fields: dict[str, Any] = {}
    text = values.get("memory_type")
    if isinstance(text, str) and (match := _MEMORY.search(text)):
        memory_fields["memory_type"] = match[0].upper()
        module = re.search(r"\b(LR|R|SO-?|U)DIMM", text, re.IGNORECASE)
        if module and kind in ("ram", "board") and "registered" not in values:
            memory_fields["registered"] = module[1].upper() in ("R", "LR")
    types = values.get("memory_types")
    if isinstance(types, list | tuple) and all(
        isinstance(memory_type, str) for memory_type in types
    ):
        matches = [_MEMORY.search(memory_type) for memory_type in types]
        memory_fields["memory_types"] = tuple(
            called if match is None else match[0].upper()
            for called, match in zip(types, matches, strict=True)
        )
    return memory_fields


def near_names(kind: str, name: str) -> list[str]:
    """Return names of the catalog's parts that are spelled nearly so, two at most."""
    import difflib

    spelled = {normalise(part.name): part.name for part in load_parts()[kind]}
    close = difflib.get_close_matches(normalise(name)[:200], spelled, n=2, cutoff=0.6)
    return [spelled[close_name] for close_name in close]


def _near(kind: str, name: str, *, chip: bool) -> str:
    parts = load_parts()[kind]
    if chip:
        meant = require_chip(name).name
        names = [part.name for part in parts if isinstance(part, GpuCard) and part.chip == meant][
            :3
        ]
    else:
        names = near_names(kind, name)
    return (
        f"a card of the catalog ({', '.join(names)}), or "
        if chip and names
        else (f"did you mean {' or '.join(names)}? else " if names else "")
    )
