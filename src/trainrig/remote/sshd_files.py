"""sshd's settings from its files, where sshd itself cannot be asked (``sshd -T`` needs root).

As sshd_config(5) has it: the first value of a keyword counts; a keyword and its value are parted by
blanks, tabs or ``=``; what follows ``#`` is a comment; ``Include`` takes several patterns, relative
ones in /etc/ssh; a ``Match`` block ends at the next one or with its file, and ``Match all`` is for
everybody.  Read in November 2026.
"""

from __future__ import annotations

import fnmatch
import re
import shlex
from collections.abc import Iterator

from trainrig.machine.snapshot import value_or
from trainrig.machine.system_access import Host

FOLDER = "/etc/ssh"
_MOST_INCLUDES = 16
"""Files within files, as sshd has it."""


def sshd_keywords(host: Host, text: str, depth: int = 0) -> dict[str, str]:
    """Return keywords in small letters with the value that is for everybody, in small letters.

    Args:
        host: Where included files are read.
        text: A file's text, or what ``sshd -T`` prints.
        depth: In how many files this one is included.
    """
    keywords: dict[str, str] = {}
    is_for_everybody = True
    for line in text.splitlines():
        name, _, value = re.sub(r"[\s=]+", " ", line.strip(), count=1).partition(" ")
        name = name.lower()
        words = _words(value)
        if not name or name.startswith("#"):
            continue
        if name == "match":
            is_for_everybody = [word.lower() for word in words] == ["all"]
        elif name == "include" and is_for_everybody and depth < _MOST_INCLUDES:
            for path in (path for pattern in words for path in _matching_files(host, pattern)):
                included = sshd_keywords(host, value_or(host.read(path), ""), depth + 1)
                keywords = included | keywords
        elif name != "include" and is_for_everybody:
            keywords.setdefault(name, " ".join(words).lower())
    return keywords


def _words(value: str) -> list[str]:
    """Return the words of a value without its comment; quotes keep a word together."""
    try:
        return shlex.split(value, comments=True)
    except ValueError:  # a quote that does not end
        return value.partition("#")[0].split()


def _matching_files(host: Host, pattern: str) -> list[str]:
    """Return the paths that a pattern of ``Include`` fits, in order."""
    path = pattern if pattern.startswith("/") else f"{FOLDER}/{pattern}"
    return sorted(_expanded(host, "", path.strip("/").split("/")))


def _expanded(host: Host, folder: str, parts: list[str]) -> Iterator[str]:
    first, *rest = parts
    names = [first]
    if any(letter in first for letter in "*?["):
        names = fnmatch.filter(value_or(host.names(folder or "/"), ()), first)
        names = [name for name in names if first.startswith(".") or not name.startswith(".")]
    for name in names:
        if rest:
            yield from _expanded(host, f"{folder}/{name}", rest)
        else:
            yield f"{folder}/{name}"
