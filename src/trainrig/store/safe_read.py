"""Reading files that strangers may have written: plain files alone, no links, bounded bytes.

A run or a set-up may be a copy of somebody else's folder.  Its files are opened without following a
link in their last part and without waiting for a pipe's writer, and are read up to a size; TOML is
looked over first, since its parser takes the square of a dotted key's length.
"""

from __future__ import annotations

import errno
import os
import stat
import tomllib
from pathlib import Path
from typing import Any

from trainrig.errors import DataError, reading

MOST_BYTES = 1 << 30
MOST_SETTINGS = 1 << 20
"""Bytes of a file of settings, and of a run's run.toml."""
_MOST_DOTS = 32
"""Of a dotted key: tables within tables."""
_MOST_LINES = 20_000
_SEPARATORS = bytes.maketrans(b"\"'{},=[]\t", b" " * 9)


def read_plain(path: Path, most: int = MOST_BYTES) -> bytes | None:
    """Return the bytes of a plain file; None where there is none, or a pipe, device or folder.

    Raises DataError for a link, for more than ``most`` bytes, and when it cannot be read.
    """
    with reading(path, "check its permissions"):
        try:
            handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            if error.errno == errno.ELOOP:
                words = f"{path} is a link: a run's and a set-up's files are plain files"
                raise DataError(words, "put the file itself there") from None
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ENXIO):
                return None
            raise
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            os.close(handle)
            return None
        with os.fdopen(handle, "rb") as file:
            if found.st_size > most:
                raise DataError(f"{path} is refused: {found.st_size:,} bytes, at most {most:,}")
            data = file.read(most + 1)
    if len(data) > most:
        raise DataError(f"{path} is refused: more than {most:,} bytes")
    return data


def parse_toml(data: bytes) -> dict[str, Any]:
    """Return what TOML says.

    Raises ValueError for what is no TOML, for a dotted key of more than 32 dots and for more than
    settings ever are; RecursionError for brackets within brackets.
    """
    lines = data.split(b"\n")
    if len(data) > MOST_SETTINGS or len(lines) > _MOST_LINES:
        raise ValueError("larger than settings ever are")
    for line in lines:
        if line.count(b".") > _MOST_DOTS and _is_deep(line):
            raise ValueError("nested more deeply than settings ever are")
    return tomllib.loads(data.decode("utf-8"))


def _is_deep(line: bytes) -> bool:
    """Whether one word of a line has more dots than a key may have, spaces around them or not."""
    joined = line.translate(_SEPARATORS).replace(b" .", b".").replace(b". ", b".")
    return any(word.count(b".") > _MOST_DOTS for word in joined.split())
