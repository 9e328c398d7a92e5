"""Reading files that strangers may have written: plain files alone, no links, bounded bytes.

A run or a set-up may be a copy of somebody else's folder.  Its files are opened without following a
link in their last part and without waiting for a pipe's writer, and are read up to a size
(`read_plain`).  A file that the user names may be a link, and is no pipe or device either
(`read_settings`).  TOML is looked over first, since its parser takes the square of a dotted key's
length (`parse_toml`).
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
"""Most dots of a key: tables within tables."""
_BYTES_PER_LINE = 50
"""Settings have fewer lines than so many bytes would fill."""
_SEPARATORS = bytes.maketrans(b"\"'{},=[]\t", b" " * 9)


def read_plain(path: Path, most: int = MOST_BYTES) -> bytes | None:
    """Return the bytes of a plain file; None where there is none, or a pipe, device or folder.

    Raises DataError for a link, for more than ``most`` bytes, and when it cannot be read.
    """
    with reading(path, "check its permissions"):
        try:
            handle = os.open(path, _FLAGS | os.O_NOFOLLOW)
        except OSError as error:
            if error.errno == errno.ELOOP:
                words = f"{path} is a link: a run's and a set-up's files are plain files"
                raise DataError(words, "put the file itself there") from None
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ENXIO):
                return None
            raise
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            os.close(handle)
            return None
        return _read_bounded(handle, path, most)


_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC


def read_settings(path: Path, most: int = MOST_SETTINGS) -> bytes:
    """Return the bytes of a file that the user names: settings, a parts list, a table of cases.

    Raises OSError where it cannot be read, DataError for a pipe or device and for more than
    ``most`` bytes.
    """
    handle = os.open(path, _FLAGS)
    mode = os.fstat(handle).st_mode
    if not stat.S_ISREG(mode):
        os.close(handle)
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        raise DataError(f"{path} is a pipe or a device, not a file", "write it to a file first")
    return _read_bounded(handle, path, most)


def _read_bounded(handle: int, path: Path, most: int) -> bytes:
    with os.fdopen(handle, "rb") as file:
        num_bytes = os.fstat(handle).st_size
        if num_bytes > most:
            raise DataError(f"{path} is refused: {num_bytes:,} bytes, at most {most:,}")
        data = file.read(most + 1)
    if len(data) > most:
        raise DataError(f"{path} is refused: more than {most:,} bytes")
    return data


def parse_toml(data: bytes | str, most: int = MOST_SETTINGS) -> dict[str, Any]:
    """Return what at most so many bytes of TOML say.

    Raises ValueError for what is no TOML, for a dotted key of more than 32 dots and for more than
    settings ever are; RecursionError for brackets within brackets.
    """
    data = data.encode() if isinstance(data, str) else data
    lines = data.split(b"\n")
    if len(data) > most or len(lines) > most // _BYTES_PER_LINE:
        raise ValueError("larger than settings ever are")
    for line in lines:
        if line.count(b".") > _MOST_DOTS and _is_deep(line):
            raise ValueError("nested more deeply than settings ever are")
    return tomllib.loads(data.decode("utf-8"))


def _is_deep(line: bytes) -> bool:
    """Return whether a word of a line has more dots than a key may have, with or without spaces."""
    joined = line.translate(_SEPARATORS).replace(b" .", b".").replace(b". ", b".")
    return any(word.count(b".") > _MOST_DOTS for word in joined.split())


def make_private(folder: Path) -> None:
    """Make a folder and the missing ones above it, each for their owner alone, whatever the umask.

    Raises OSError.
    """
    missing = [folder, *folder.parents]
    for path in reversed([path for path in missing if not path.exists()]):
        path.mkdir(mode=0o700, exist_ok=True)
