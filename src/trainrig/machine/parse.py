"""Values out of text that tools and kernels print: a number, or why it is none.

Tools print ``N/A``, ``Unknown``, ``-`` and blanks of 2^32 or 2^63 where they
have no value.  All of them end as `Missing`, so that no probe has to remember.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from typing import TypeVar

from trainrig.machine.snapshot import Missing, if_known

T = TypeVar("T")

_INTEGER = re.compile(r"[+-]?[0-9]{1,19}")
_NUMBER = re.compile(r"[+-]?[0-9]{1,19}(?:\.[0-9]{0,19})?")
_NO_VALUE = frozenset(
    ["", "-", "n/a", "[n/a]", "unknown", "none", "not specified", "not provided", "null"]
    + ["to be filled by o.e.m.", "default string", "system product name", "<out of spec>"]
)
_SIZE = re.compile(r"([0-9]{1,19}(?:\.[0-9]{1,9})?)\s*([KMGTP]?)(?:i?B)?", re.IGNORECASE)
_LINK_SPEED = re.compile(r"\d{1,3}(?:\.\d)?(?: GT/s.*)?")
_GENERATIONS = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}
"""Transfers per second and lane, in 10^9."""
_SIZE_STEPS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40, "p": 2**50}


def text(value: object, quantity: str) -> str | Missing:
    """Return a text that is neither blank nor a placeholder such as ``N/A``."""
    if isinstance(value, Missing):
        return value
    if not isinstance(value, str):
        return Missing(f"no {quantity}")
    stripped = " ".join(value.split())
    if stripped.lower() in _NO_VALUE:
        return Missing(f"no {quantity}: {stripped!r}" if stripped else f"no {quantity}")
    if not stripped.isprintable() or "\ufffd" in stripped:
        return Missing(f"garbled {quantity}: {_short(stripped)}")
    return stripped[:500]


def integer(value: object, quantity: str) -> int | Missing:
    """Return a whole number of zero or more, from a number or its decimal digits."""
    if isinstance(value, Missing):
        return value
    if isinstance(value, str) and _INTEGER.fullmatch(value.strip()):
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**62:
        return value
    return Missing(f"no {quantity}: {_short(value)}")


def number(value: object, quantity: str, most: float = 1e18) -> float | Missing:
    """Return a finite number from 0 to `most`, from a number or the start of a text (``35 W``)."""
    if isinstance(value, Missing):
        return value
    if isinstance(value, str):
        match = _NUMBER.match(value.strip())
        value = float(match[0]) if match else value
    if isinstance(value, int | float) and not isinstance(value, bool):
        magnitude = float(value) if abs(value) < 1e19 else math.inf
        if 0.0 <= magnitude <= most:
            return magnitude
    return Missing(f"no {quantity}: {_short(value)}")


def scaled(value: object, factor: float, quantity: str, most: float = 1e18) -> float | Missing:
    """Return `number` times `factor`."""
    return if_known(lambda unscaled: unscaled * factor, number(value, quantity, most))


def percent(value: object, quantity: str) -> float | Missing:
    """Return a share, 0 to 1, of a number from 0 to 100."""
    return if_known(lambda out_of_100: out_of_100 / 100.0, number(value, quantity, most=100.0))


def size_bytes(value: object, quantity: str) -> int | Missing:
    """Return a memory size as tools write it: ``32768``, ``64 KiB``, ``8192 MB``; K is 1024."""
    if isinstance(value, int):
        return integer(value, quantity)
    if isinstance(value, Missing):
        return value
    match = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        return Missing(f"no {quantity}: {_short(value)}")
    num_bytes = float(match[1]) * _SIZE_STEPS[match[2].lower()]
    return int(num_bytes) if num_bytes < 2**62 else Missing(f"no {quantity}: {_short(value)}")


def yes_or_no(value: object, quantity: str) -> bool | Missing:
    """Return true or false, from a boolean, 0 or 1, or their digits."""
    if isinstance(value, Missing):
        return value
    if value in (True, 1, "1"):
        return True
    if value in (False, 0, "0"):
        return False
    return Missing(f"no {quantity}: {_short(value)}")


def first(candidates: Iterable[T | Missing], quantity: str) -> T | Missing:
    """Return the first value that is known, else why the first one was not."""
    reason: Missing | None = None
    for candidate in candidates:
        if not isinstance(candidate, Missing):
            return candidate
        reason = reason or candidate
    return reason or Missing(f"no {quantity}")


def fields_of(block: str) -> dict[str, str]:
    """Name → value of the lines ``name: value``."""
    pairs = (line.partition(":") for line in block.splitlines())
    return {name.strip(): value.strip() for name, mark, value in pairs if mark}


def blocks_of(content: str) -> list[str]:
    """Return the parts of a text between empty lines."""
    return re.split(r"\n\s*\n", content)


def link_generation(speed: object) -> int | Missing:
    """Return a PCIe link's generation by its transfers a lane: ``16.0 GT/s PCIe`` → 4."""
    unknown = Missing(f"not a link speed: {_short(speed)}")
    if isinstance(speed, str) and not _LINK_SPEED.fullmatch(speed):
        return unknown
    return if_known(
        lambda transfers: _GENERATIONS.get(transfers, unknown), number(speed, "link speed")
    )


def json_object(output: str | Missing, tool: str) -> Mapping[str, object] | Missing:
    """Return the JSON object a tool printed."""
    if isinstance(output, Missing):
        return output
    try:
        value = json.loads(output)
    except (ValueError, RecursionError):
        return Missing(f"{tool} did not print JSON: {_short(output.strip())}")
    return value if isinstance(value, dict) else Missing(f"{tool} printed no JSON object")


def cpu_numbers(value: str) -> frozenset[int] | Missing:
    """Return the processors of a list as the kernel writes it: ``0-3,8``."""
    numbers: set[int] = set()
    for part in value.strip().split(","):
        first_cpu, _, last_cpu = part.partition("-")
        if not (first_cpu.isdecimal() and (last_cpu or first_cpu).isdecimal()):
            return Missing(f"no list of processors: {_short(value)}")
        numbers |= set(range(int(first_cpu), int(last_cpu or first_cpu) + 1))
    return frozenset(numbers)


def objects(value: object) -> list[Mapping[str, object]]:
    """Return the JSON objects in a JSON list; what is not an object is left out."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _short(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else shown[:57] + "..."
