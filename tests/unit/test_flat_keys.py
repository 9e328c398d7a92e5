"""Dataclasses that are made of small ones, by their flat keys."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

import pytest

from trainrig.flat_keys import FlatKeys, part


@dataclass(frozen=True, slots=True, kw_only=True)
class Wheels:
    count: Annotated[int, "from 1"] = field(default=4, metadata={"key": "wheels"})
    pressure: float = 2.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    power: float
    fuel: str = "diesel"


@dataclass(frozen=True, slots=True, kw_only=True)
class Car:
    name: str
    wheels: Wheels = part(Wheels)
    engine: Engine = part(Engine)
    colour: str = "white"


KEYS = FlatKeys(Car)
CAR = KEYS.make(name="van", power=90.0, wheels=6)
FLAT = {
    "name": "van",
    "wheels": 6,
    "pressure": 2.5,
    "power": 90.0,
    "fuel": "diesel",
    "colour": "white",
}


def test_flat_keys_make_the_parts_and_are_read_back_in_the_order_of_declaration() -> None:
    assert Car(name="van", wheels=Wheels(count=6), engine=Engine(power=90.0)) == CAR
    assert list(KEYS.flat(CAR).items()) == list(FLAT.items())
    assert KEYS.make(**KEYS.flat(CAR)) == CAR
    assert {key: KEYS.get(CAR, key) for key in FLAT} == FLAT


def test_an_order_of_the_files_own_is_kept() -> None:
    order = ("colour", "power", "wheels", "name", "fuel", "pressure")
    keys = FlatKeys(Car, order)
    assert tuple(keys.flat(CAR)) == tuple(keys.types()) == tuple(keys.fields()) == order


@pytest.mark.parametrize("order", [("name",), ("name", "speed", *list(FLAT)[2:])])
def test_an_order_names_every_key(order: tuple[str, ...]) -> None:
    with pytest.raises(TypeError, match="Car: the flat keys"):
        FlatKeys(Car, order)


@pytest.mark.parametrize("key", FLAT)
def test_replace_changes_one_key_and_nothing_else(key: str) -> None:
    changed = KEYS.replace(CAR, **{key: "other"})
    assert KEYS.flat(changed) == FLAT | {key: "other"}
    assert KEYS.flat(CAR) == FLAT


@pytest.mark.parametrize("key", ["count", "engine", "speed"])
def test_only_flat_keys_are_keys(key: str) -> None:
    for change in (KEYS.make, lambda **keys: KEYS.replace(CAR, **keys)):
        with pytest.raises(TypeError, match=f"Car has no key '{key}'"):
            change(**{key: 1})


def test_what_has_no_default_must_be_given() -> None:
    with pytest.raises(TypeError, match="engine"):
        KEYS.make(name="van")
    with pytest.raises(TypeError, match="power"):
        KEYS.make(name="van", fuel="petrol")


def test_two_parts_cannot_share_a_key() -> None:
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Truck:
        wheels: Wheels = part(Wheels)
        pressure: float = 1.0

    with pytest.raises(TypeError, match="unique"):
        FlatKeys(Truck)


def test_types_keep_what_annotated_adds() -> None:
    assert KEYS.types()["wheels"] == Annotated[int, "from 1"]
    assert KEYS.fields()["wheels"].default == 4


def test_a_flat_table_is_nested_for_a_validator_and_flattened_again() -> None:
    nested = KEYS.nest(FLAT | {"speed": 5, "engine": "a key of another version"})
    assert nested == {
        "name": "van",
        "colour": "white",
        "wheels": {"count": 6, "pressure": 2.5},
        "engine": {"power": 90.0, "fuel": "diesel", "engine": "a key of another version"},
        "speed": 5,
    }
    assert list(KEYS.flatten(nested).items()) == list(FLAT.items())
    assert KEYS.nest({"name": "van"})["engine"] == {}  # whose power the validator misses


@pytest.mark.parametrize(
    ("nested", "flat"),
    [
        (("wheels", "count"), ("wheels",)),
        (("engine", "power", 2), ("power", 2)),
        (("colour",), ("colour",)),
        (("engine",), ()),
        ((), ()),
    ],
)
def test_a_place_is_told_by_the_key_that_a_file_has(
    nested: tuple[str | int, ...], flat: tuple[str | int, ...]
) -> None:
    assert KEYS.flat_place(nested) == flat
