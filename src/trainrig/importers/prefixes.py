"""Prefixes of lines: what launchers and log collectors put before what a program prints.

The forms stand in prefixes.toml.  Which of them a file has is learned from its lines, so that no
importer knows any and a number with a colon behind it is cut off only where most lines have one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from trainrig.record import read_by, read_toml

_SAMPLE = 400
"""Lines of a stretch that are looked at, spread over it."""
_MOST_NESTED = 4


@read_by({"extra": "forbid"})
class _Form:
    name: str
    form: str
    least_share: float
    source: str
    json: str | None = None
    """The key of a JSON object that holds the line, where the prefix is one."""


@dataclass(frozen=True, slots=True)
class _Prefix:
    form: _Form
    pattern: re.Pattern[str]
    has_space: bool = False
    """True where a space stands between each prefix and its line."""


@cache
def _forms() -> tuple[_Prefix, ...]:
    path = Path(__file__).with_name("prefixes.toml")
    forms = read_toml(path, tuple[_Form, ...], "prefixes.toml", "prefix")
    return tuple(_Prefix(form, re.compile(form.form)) for form in forms)


class Prefixes:
    """The prefixes that the lines seen so far have, from the outside in."""

    def __init__(self) -> None:
        self.learned: list[_Prefix] = []
        """From the outside in."""

    def learn(self, lines: Sequence[str]) -> None:
        """Look at a stretch of lines for prefixes that none before it had."""
        step = max(1, len(lines) // _SAMPLE)
        sample = [line for line in lines[::step] if line.strip()]
        for prefix in self.learned:
            sample = [_cut_off(prefix, line)[1] for line in sample]
        while sample and len(self.learned) < _MOST_NESTED:
            form = next((new for new in _forms() if self._has(new, sample)), None)
            if form is None:
                return
            prefix = _spaced(form, sample)
            self.learned.append(prefix)
            sample = [_cut_off(prefix, line)[1] for line in sample]

    def _has(self, prefix: _Prefix, sample: Sequence[str]) -> bool:
        if any(form.form is prefix.form for form in self.learned):
            return False
        num_matching = sum(prefix.pattern.match(line) is not None for line in sample)
        return num_matching > 0 and num_matching >= prefix.form.least_share * len(sample)

    def strip(self, line: str) -> tuple[str, str | None]:
        """Return the line without its prefixes, and the rank, host or pod that they name."""
        label = None
        for prefix in self.learned:
            prefix_label, line = _cut_off(prefix, line)
            label = label or prefix_label
        return line, label


def _cut_off(prefix: _Prefix, line: str) -> tuple[str | None, str]:
    match = prefix.pattern.match(line)
    if match is None:
        return None, line
    if prefix.form.json is not None:
        return None, _unwrapped(line, prefix.form.json)
    text = line[match.end() :]
    if prefix.has_space and text.startswith(" "):
        text = text[1:]
    return match.groupdict().get("label"), text


def _unwrapped(line: str, key: str) -> str:
    try:
        value = json.loads(line).get(key)
    except (ValueError, RecursionError, AttributeError):
        return line
    return value.rstrip("\n") if isinstance(value, str) else line


def _spaced(prefix: _Prefix, sample: Sequence[str]) -> _Prefix:
    rests = [line[match.end() :] for line in sample if (match := prefix.pattern.match(line))]
    with_text = [text for text in rests if text.strip()]
    spaced = sum(text.startswith(" ") for text in with_text)
    # Where each line begins with two spaces the text itself is indented.
    return _Prefix(prefix.form, prefix.pattern, bool(with_text) and spaced == len(with_text))
