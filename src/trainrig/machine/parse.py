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

from trainrig.machine.snapshot import Missing

T = TypeVar("T")

_INTEGER = re.compile(r"[+-]?[0-9]{1,19}")
_NUMBER = re.compile(r"[+-]?[0-9]{1,19}(?:\.[0-9]{0,19})?")
_NO_VALUE = frozenset(
    ["", "-", "n/a", "[n/a]", "unknown", "none", "not specified", "not provided", "null"]
    + ["to be filled by o.e.m.", "default string", "system product name", "<out of spec>"]
)
_SIZE = re.compile(r"([0-9]{1,19}(?:\.[0-9]{1,9})?)\s*([KMGTP]?)(?:i?B)?", re.IGNORECASE)
_SIZE_STEPS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40, "p": 2**50}


def text(value: object, what: str) -> str | Missing:
    """A text that says something."""
    if isinstance(value, Missing):
        return value
    if not isinstance(value, str):
        return Missing(f"no {what}")
    stripped = " ".join(value.split())
    if stripped.lower() in _NO_VALUE:
        return Missing(f"no {what}: {stripped!r}" if stripped else f"no {what}")
    if not stripped.isprintable() or "\ufffd" in stripped:
        return Missing(f"garbled {what}: {_short(stripped)}")
    return stripped[:500]


def integer(value: object, what: str) -> int | Missing:
    """A whole number of zero or more, from a number or its decimal digits."""
    if isinstance(value, Missing):
        return value
    if isinstance(value, str) and _INTEGER.fullmatch(value.strip()):
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**62:
        return value
    return Missing(f"no {what}: {_short(value)}")


def number(value: object, what: str, most: float = 1e18) -> float | Missing:
    """A finite number from 0 to `most`, from a number or the start of a text (``35 W``)."""
    if isinstance(value, Missing):
        return value
    if isinstance(value, str):
        match = _NUMBER.match(value.strip())
        value = float(match[0]) if match else value
    if isinstance(value, int | float) and not isinstance(value, bool):
        found = float(value) if abs(value) < 1e19 else math.inf
        if 0.0 <= found <= most:
            return found
    return Missing(f"no {what}: {_short(value)}")


def scaled(value: object, factor: float, what: str) -> float | Missing:
    """`number` times `factor`."""
    found = number(value, what)
    return found if isinstance(found, Missing) else found * factor


def size_bytes(value: object, what: str) -> int | Missing:
    """A memory size as tools write it: ``32768``, ``64 KiB``, ``8192 MB``; K is 1024."""
    if isinstance(value, int):
        return integer(value, what)
    if isinstance(value, Missing):
        return value
    match = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        return Missing(f"no {what}: {_short(value)}")
    found = float(match[1]) * _SIZE_STEPS[match[2].lower()]
    return int(found) if found < 2**62 else Missing(f"no {what}: {_short(value)}")


def yes_or_no(value: object, what: str) -> bool | Missing:
    """True or false, from a boolean, 0 or 1, or their digits."""
    if isinstance(value, Missing):
        return value
    if value in (True, 1, "1"):
        return True
    if value in (False, 0, "0"):
        return False
    return Missing(f"no {what}: {_short(value)}")


def first(candidates: Iterable[T | Missing], what: str) -> T | Missing:
    """The first value that is known, else why the first one was not."""
    reason: Missing | None = None
    for candidate in candidates:
        if not isinstance(candidate, Missing):
            return candidate
        reason = reason or candidate
    return reason or Missing(f"no {what}")


def json_object(output: str | Missing, tool: str) -> Mapping[str, object] | Missing:
    """The JSON object a tool printed."""
    if isinstance(output, Missing):
        return output
    try:
        value = json.loads(output)
    except (ValueError, RecursionError):
        return Missing(f"{tool} did not print JSON: {_short(output.strip())}")
    return value if isinstance(value, dict) else Missing(f"{tool} printed no JSON object")


def objects(value: object) -> list[Mapping[str, object]]:
    """The JSON objects in a JSON list; what is not an object is left out."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _short(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else shown[:57] + "..."
