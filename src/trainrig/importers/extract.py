"""Numbers and records out of text and JSON, refused with their line where they are broken.

One place makes the records of every importer: values in base SI units, finite, of a size that a
machine can have; names in one printable line.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, TypeVar, cast

from pydantic import ConfigDict, TypeAdapter, ValidationError

from trainrig.catalog.lookup import find_chip
from trainrig.errors import first_problem
from trainrig.importers.file import FilePart
from trainrig.record import Case, Kind, Record, Scalar, Status
from trainrig.units import one_line

GIGA = 1e9
TERA = 1e12
LARGEST = 1e22
"""No machine has a rate, a size or a time beyond it."""
EXTERNAL: ConfigDict = {"extra": "ignore", "allow_inf_nan": False}
"""Pydantic settings for another tool's JSON: fields of newer versions are passed over."""

T = TypeVar("T")
_LONGEST = 200


def fitted(file: FilePart, kind: type[T], value: Any = None) -> T:
    """Return the file's JSON (or ``value`` of it) as ``kind``.

    Raises DataError with the line of the first part that does not fit.
    """
    try:
        model: T = _adapter(cast("Any", kind)).validate_python(
            file.json if value is None else value
        )
    except ValidationError as error:
        place = error.errors(include_url=False, include_input=False)[0]["loc"]
        line = _line_of(file, place) if value is None else None
        problem = re.sub(r" or an instance of _\w+", "", first_problem(error, "the file"))
        hint = "give the JSON as the tool printed it; docs/import.md names the versions"
        raise file.refuse(line, problem, hint) from None
    except RecursionError:
        raise file.refuse(None, "too deeply nested") from None
    return model


@cache
def _adapter(kind: type[Any]) -> TypeAdapter[Any]:
    adapter: TypeAdapter[Any] = TypeAdapter(kind)
    return adapter


def _line_of(file: FilePart, path: tuple[Any, ...]) -> int:
    """Return the line of the value at ``path``, or of the last part of it that is there."""
    text, at = file.text, file.json_start
    decode = json.JSONDecoder().raw_decode

    def skip(place: int) -> int:
        blank = re.compile(r"\s*").match(text, place)
        return blank.end() if blank else place

    for part in path:
        if text[at] not in "{[":
            break
        is_object, place, number, inside = text[at] == "{", skip(at + 1), 0, None
        while text[place] not in "]}":
            key: Any = number
            if is_object:
                key, place = decode(text, place)
                place = skip(skip(place) + 1)
            if key == part:
                inside = place
                break
            _, place = decode(text, place)
            place = skip(place)
            place = skip(place + 1) if text[place] == "," else place
            number += 1
        if inside is None:
            break
        at = inside
    return file.line_at(at)


Rule = tuple[re.Pattern[str], Callable[[int, re.Match[str]], None]]
"""Pattern, and the function that is called with the line number and the match."""


def take_lines(file: FilePart, rules: Sequence[Rule]) -> None:
    """Hand each line to the first of ``rules`` that it fits; others are passed over.

    So is a last line whose last number may be cut off.
    """
    for number, line in file.lines:
        if file.is_cut(number):
            continue
        for pattern, take in rules:
            if match := pattern.search(line):
                file.use(number)
                take(number, match)
                break


def to_number(file: FilePart, line: int | None, text: str, quantity: str) -> float:
    """Return the finite number that ``text`` writes.  Raises DataError with the line."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or abs(value) > LARGEST:
        raise file.refuse(line, f"no {quantity}: {one_line(text)[:40]!r}")
    return value


def to_count(file: FilePart, line: int | None, text: str, quantity: str) -> int:
    """Return the whole number of zero or more that ``text`` writes.  Raises DataError."""
    if not re.fullmatch(r"[0-9]{1,18}", text.strip()):
        raise file.refuse(line, f"no {quantity}: {one_line(text)[:40]!r}")
    return int(text)


def word(text: object) -> str:
    """Return a name from a file in one printable line, not too long."""
    return one_line(" ".join(str(text).split()))[:_LONGEST]


def device_name(printed: str | None) -> str | None:
    """Return the catalog's name of a device where one fits exactly, else the printed one.

    pci.ids puts the product behind the chip's code name: ``Arcturus GL-XL [Instinct MI100]``.
    """
    if not printed or not (name := word(printed)):
        return None
    product = re.search(r"\[([^\]]+)\]$", name)
    chip = find_chip(name) or (find_chip(product[1]) if product else None)
    return chip.name if chip else name


def point(
    file: FilePart,
    line: int | None,
    benchmark: str,
    case: Case,
    metric: tuple[str, str],
    value: float | None,
    *,
    device: str | None = None,
    index: int | None = None,
    count: int | None = 1,
    status: Status = Status.OK,
    reason: str | None = None,
    disturbed: str | None = None,
    samples: tuple[float, ...] | None = None,
    interval: tuple[float, float] | None = None,
    conditions: Mapping[str, Scalar] | None = None,
) -> Record:
    """Return a measured record; ``metric`` is its name and its unit, ``line`` where it stands.

    ``count`` is how many devices worked at the same time; None: the file does not say.

    Raises DataError for a value that no machine has, or without one that is ok.
    """
    name, unit = metric
    if value is not None and (not math.isfinite(value) or abs(value) > LARGEST):
        raise file.refuse(line, f"{name} is no number that a machine can have: {value}")
    if status is Status.OK and value is None:
        status, reason = Status.MISSING, reason or f"{file.name} does not state it"
    stated = {
        key: condition for key, condition in (conditions or {}).items() if condition is not None
    }
    return Record(
        kind=Kind.MEASURED,
        benchmark=benchmark,
        case={key: word(v) if isinstance(v, str) else v for key, v in case.items()},
        metric=name,
        unit=unit,
        value=value if status is Status.OK else None,
        samples=samples,
        interval=interval,
        device=device,
        device_index=index if index is None or 0 <= index < 1 << 20 else None,
        device_count=None if count is None else max(1, count),
        status=status,
        reason=word(reason) if reason else None,
        disturbed=disturbed,
        conditions={
            **({"line": line} if line is not None else {}),
            **{key: word(v) if isinstance(v, str) else v for key, v in stated.items()},
        },
    )
