"""Dataclasses that are made of small ones, and their flat keys in files, options and JSON.

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Mesh:
        gpus: int = 1
        cp_comm: str = "auto"

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Layout:
        framework: str = "native"
        mesh: Mesh = part(Mesh)

    LAYOUT_KEYS = FlatKeys(Layout)
    LAYOUT_KEYS.make(framework="megatron", gpus=8).mesh.gpus

A part's field is known outside by a flat key: its name, or the ``key`` of its metadata.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, field, fields
from operator import attrgetter
from typing import Any, Generic, TypeVar, get_type_hints

from trainrig.errors import KeyPath

T = TypeVar("T")


def part(kind: type[T]) -> T:
    """Declare a dataclass field whose own fields are flat keys of the whole.

    Args:
        kind: The part's dataclass.  Where all its fields have defaults, so has the part.
    """
    has_defaults = all(
        part_field.default is not MISSING or part_field.default_factory is not MISSING
        for part_field in fields(kind)  # type: ignore[arg-type]
    )
    default: Any = {"default": kind()} if has_defaults else {}
    declared: T = field(metadata={"part": kind}, **default)
    return declared


def keyed(key: str) -> Any:
    """Declare a field without a default that is known outside by another key than its name."""
    return field(metadata={"key": key})


def keys_of(kind: type) -> dict[str, str]:
    """Return the flat key of each field of a part, by the field's name."""
    return {field.name: field.metadata.get("key", field.name) for field in fields(kind)}


class FlatKeys(Generic[T]):
    """The flat keys of a dataclass that is made of parts, and its values by them."""

    def __init__(self, whole: type[T], order: Iterable[str] = ()) -> None:
        """Collect the keys of ``whole`` and its parts.

        Args:
            whole: The dataclass that has the parts.
            order: All keys in the order that files have; as they are declared by default.

        Raises:
            TypeError: Two fields have one key, or ``order`` leaves out or invents a key.
        """
        self._whole = whole
        self.parts: Mapping[str, type] = {
            field.name: field.metadata["part"]
            for field in fields(whole)  # type: ignore[arg-type]
            if "part" in field.metadata
        }
        """The dataclass of each part, by the name of its field."""
        placed = [
            (key, (group, name))
            for group, kind in (("", whole), *self.parts.items())
            for name, key in keys_of(kind).items()
            if group or name not in self.parts
        ]
        places, names = dict(placed), tuple(order) or self._declared(placed)
        if len(places) < len(placed) or sorted(places) != sorted(names):
            raise TypeError(f"{whole.__name__}: the flat keys must be unique and all in order")
        self.places: Mapping[str, tuple[str, str]] = {key: places[key] for key in names}
        """The part ("" for the whole itself) and the field of each key."""
        self._keys: dict[KeyPath, str] = {place: key for key, place in self.places.items()}
        self._getters = {key: attrgetter(self.path(key)) for key in self.places}

    def _declared(self, placed: list[tuple[str, tuple[str, str]]]) -> tuple[str, ...]:
        """Return the keys in the order in which whole and parts declare their fields."""
        rank = {field.name: at for at, field in enumerate(fields(self._whole))}  # type: ignore[arg-type]
        return tuple(
            key for key, _ in sorted(placed, key=lambda field: rank[field[1][0] or field[1][1]])
        )

    def path(self, key: str) -> str:
        """Return the attributes that lead to the value of a flat key: ``mesh.gpus``."""
        return ".".join(filter(None, self.places[key]))

    def make(self, **keys: Any) -> T:
        """Return the whole of flat keys; what is not given has its default.

        Raises:
            TypeError: A key is unknown, or one without a default is missing.
        """
        values = self._by_part(keys)
        own_values = values.pop("", {})
        return self._whole(
            **own_values, **{name: self.parts[name](**values[name]) for name in values}
        )

    def replace(self, whole: T, **keys: Any) -> T:
        """Return a copy with the values of some flat keys changed.

        Raises:
            TypeError: A key is unknown.
        """
        values = self._by_part(keys)
        changes = values.pop("", {})
        for name, changed in values.items():
            changes[name] = dataclasses.replace(getattr(whole, name), **changed)
        return dataclasses.replace(whole, **changes)  # type: ignore[type-var]

    def _by_part(self, keys: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        values: dict[str, dict[str, Any]] = {}
        for key, value in keys.items():
            if key not in self.places:
                raise TypeError(f"{self._whole.__name__} has no key {key!r}")
            group, name = self.places[key]
            values.setdefault(group, {})[name] = value
        return values

    def get(self, whole: T, key: str) -> Any:
        """Return the value of a flat key."""
        return self._getters[key](whole)

    def flat(self, whole: T) -> dict[str, Any]:
        """Return all values by their flat keys, in the files' order."""
        return {key: getter(whole) for key, getter in self._getters.items()}

    def nest(self, flat: Mapping[str, Any]) -> dict[str, Any]:
        """Return a table of flat keys with a table for each part, as a validator reads it.

        A key that is unknown stays where it is, or in the part that has its name: the validator
        decides about it.
        """
        unknown = {key: flat[key] for key in flat.keys() - self.places.keys() - self.parts.keys()}
        values = self._by_part({key: flat[key] for key in self.places if key in flat})
        for name in (flat.keys() & self.parts.keys()) - self.places.keys():
            values.setdefault(name, {})[name] = flat[name]
        own_values = values.pop("", {})
        return unknown | own_values | {name: values.get(name, {}) for name in self.parts}

    def flatten(self, nested: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values of a table that has a table for each part, in the files' order."""
        return {
            key: (nested[group] if group else nested)[name]
            for key, (group, name) in self.places.items()
        }

    def flat_place(self, place: KeyPath) -> KeyPath:
        """Return where a flat table has what stands at a place of a nested one."""
        is_part = bool(place) and place[0] in self.parts
        group, names = (place[0], place[1:]) if is_part else ("", place)
        return (self._keys.get((group, names[0]), names[0]), *names[1:]) if names else ()

    def fields(self) -> dict[str, Field[Any]]:
        """Return the dataclass field of each flat key."""
        declared = {
            group: {field.name: field for field in fields(kind)}
            for group, kind in (("", self._whole), *self.parts.items())
        }
        return {key: declared[group][name] for key, (group, name) in self.places.items()}

    def types(self) -> dict[str, Any]:
        """Return the type of each flat key, with what `typing.Annotated` adds to it."""
        hints = {
            group: get_type_hints(kind, include_extras=True)
            for group, kind in (("", self._whole), *self.parts.items())
        }
        return {key: hints[group][name] for key, (group, name) in self.places.items()}
