"""A file that another tool wrote: from bytes to lines without colours and prefixes.

Bytes are unpacked (gzip), decoded (UTF-8 or UTF-16, with or without a mark at their beginning) and
cut at line feeds and carriage returns piece by piece, so that a file of any size takes little
memory.  What a launcher or a log collector put before each line is learned from the file and
removed once, here (`prefixes`); the rank, host or pod that it names stays beside the line.
"""

from __future__ import annotations

import codecs
import gzip
import io
import json
import re
import sys
import tempfile
import threading
import weakref
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, Any, cast

from trainrig.errors import DataError
from trainrig.importers.prefixes import Prefixes
from trainrig.language import translate
from trainrig.units import format_memory, one_line

STDIN = Path("-")
"""The name under which standard input is read."""
PIECE_BYTES = 1 << 20
HEAD_BYTES = 1 << 18
"""Size in bytes of the beginning that a file's kind is told from."""
MOST_BYTES = 1 << 26
"""The most text that is held at once: one JSON value, or the runs of one format."""
MOST_PIPED = 1 << 32
"""The most that is taken from a pipe, which may never end; it is held on disk."""
MOST_RANGES = 8
"""Limit of stretches of unread lines that are listed by number."""
_READABLE = "name a file that another tool wrote: docs/import.md says of which"
_UNREADABLE = (OSError, EOFError, zlib.error, ValueError)
"""Errors that reading a file can end in; ValueError: a name with a zero byte."""
_ESCAPES = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[()][0-9A-Za-z]|.)"
)
_CONTROL = re.compile(rb"[\x00-\x06\x0e-\x1a\x1c-\x1f]")
_ENDS_OF_NUMBERS = tuple("0123456789.")
_BINARY_SHARE = 0.02
"""Share of control characters from which on bytes are no text."""


@dataclass(frozen=True, slots=True)
class FileLine:
    """Line of a file, with its number and the label of its prefix."""

    number: int
    """From 1, counted at line feeds; parts that a carriage return divides share it."""
    text: str
    """Text of the line, without its colours and prefix."""
    label: str | None = None
    """The rank, host or pod that the prefix names."""


_IS_LOG = re.compile(
    r"^(?:<\d+>)?\[ *\d+\.\d{3,6}\] |\bkernel: |^kern +:\w+ *: |^NVRM: |\] NVRM: |SXid \(PCI:"
    r"|^\d,\d+,\d+,[-c];",
    re.MULTILINE,
)
"""Lines that the kernel alone writes: dmesg, dmesg -x, journalctl, syslog, /dev/kmsg."""


class ToolFile:
    """A file that another tool wrote: its lines, and which of them were read."""

    def __init__(self, path: Path) -> None:
        """Open a file; raises DataError where it cannot be read, is empty, or holds no text."""
        self.path = path
        is_stdin = path == STDIN
        self.name = "stdin" if is_stdin else one_line(path.name)
        self._used = bytearray()
        self._seen = bytearray()
        self.cut_line: int | None = None
        """The last line, where it has no line feed and ends in a digit: more may have followed."""
        try:
            # A pipe (``<(ssh host nvidia-smi -q)``) can be read once alone.
            is_pipe = path.exists() and not path.is_file() and not path.is_dir()
            self._pipe_copy = _copy_of_pipe(path) if is_stdin or is_pipe else None
            if self._pipe_copy is not None:
                weakref.finalize(self, self._pipe_copy.close)
            with self.open() as file:
                self._start = file.read(HEAD_BYTES)
        except _UNREADABLE as error:
            why = getattr(error, "strerror", None) or str(error)
            raise DataError(
                f"cannot read {one_line(str(path))}: {one_line(why)}", _READABLE
            ) from None
        self._encoding = _encoding(self._start)
        if self._encoding is None:
            raise self.refuse(1, "binary data, no text", _READABLE)
        if not self._decoded_start.strip():
            raise DataError(f"{self.name} is empty", _READABLE)

    @cached_property
    def is_kernel_log(self) -> bool:
        """True where a line of the file has the form of the kernel's log."""
        pieces = ("\n".join(line.text for line in piece) for piece in self.pieces())
        return _IS_LOG.search(self.head) is not None or any(map(_IS_LOG.search, pieces))

    @contextmanager
    def open(self) -> Iterator[IO[bytes]]:
        """Yield the file's bytes, unpacked where it is gzip's."""
        with self._raw() as raw:
            is_packed = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            if not is_packed:
                yield raw
                return
            with gzip.open(raw) as unpacked:
                yield cast("IO[bytes]", unpacked)

    @contextmanager
    def _raw(self) -> Iterator[IO[bytes]]:
        if self._pipe_copy is None:
            with self.path.open("rb") as file:
                yield file
        else:
            self._pipe_copy.seek(0)
            yield self._pipe_copy

    @property
    def num_bytes(self) -> int:
        """Size of the file on disk, in bytes."""
        if self._pipe_copy is None:
            return self.path.stat().st_size
        return self._pipe_copy.seek(0, io.SEEK_END)

    @cached_property
    def _decoded_start(self) -> str:
        assert self._encoding is not None
        decoder = codecs.getincrementaldecoder(self._encoding)("replace")
        return decoder.decode(self._start).lstrip("\ufeff").replace("\x00", "")

    @cached_property
    def head(self) -> str:
        """Beginning of the file as it stands there, prefixes included."""
        return _ESCAPES.sub("", self._decoded_start).replace("\r\n", "\n")

    # ---- lines

    def pieces(self) -> Iterator[list[FileLine]]:
        """Yield the lines of the whole file, about a mebibyte at a time; blank ones among them.

        Raises DataError where it is damaged, or a line is too long to be one.
        """
        prefixes = Prefixes()
        first = 1
        for text in self._texts():
            lines = text.split("\n")
            if not lines[-1]:
                lines.pop()
            prefixes.learn(lines)
            piece = list(_cut(lines, first, prefixes))
            self._see(piece)
            yield piece
            first += text.count("\n")

    def _see(self, piece: list[FileLine]) -> None:
        """Note which lines are not blank."""
        if not piece or piece[-1].number < len(self._seen):
            return
        self._seen.extend(bytes(piece[-1].number + 1 - len(self._seen)))
        for line in piece:
            if line.text and not line.text.isspace():
                self._seen[line.number] = 1

    def lines(self) -> Iterator[FileLine]:
        """Yield the lines of the whole file, one after the other, without blank ones."""
        for piece in self.pieces():
            for line in piece:
                if line.text and not line.text.isspace():
                    yield line

    def _texts(self) -> Iterator[str]:
        """Yield whole lines as text, about a mebibyte at a time."""
        assert self._encoding is not None
        decoder = codecs.getincrementaldecoder(self._encoding)("replace")
        partial_line, is_first, number = "", True, 1
        self.cut_line = None
        try:
            with self.open() as file:
                while data := file.read(PIECE_BYTES):
                    text = decoder.decode(data)
                    if is_first:
                        text, is_first = text.lstrip("\ufeff"), False
                    text = partial_line + text
                    end = text.rfind("\n") + 1
                    partial_line = text[end:]
                    if len(partial_line) > MOST_BYTES:
                        most = format_memory(MOST_BYTES)
                        raise self.refuse(number, f"a line longer than {most}")
                    if end:
                        number += text.count("\n", 0, end)
                        yield _plain(text[:end])
        except _UNREADABLE as error:
            raise DataError(f"{self.name}:{number}: damaged: {one_line(str(error))}") from None
        if partial_line:
            if partial_line.rstrip("\x00").endswith(_ENDS_OF_NUMBERS):
                self.cut_line = number
            yield _plain(partial_line)

    # ---- what was read of it

    def use(self, number: int) -> None:
        """Note that a line was read."""
        if number >= len(self._used):
            self._used.extend(bytes(number + (1 << 12) - len(self._used)))
        self._used[number] = 1

    def is_used(self, number: int) -> bool:
        """Return whether a reader took the line."""
        return number < len(self._used) and self._used[number] == 1

    def unread(self) -> str | None:
        """Return in words which lines no reader took; None where each was read."""
        skipped = 0
        ranges: list[tuple[int, int]] = []
        is_open = False
        for number, is_text in enumerate(self._seen):
            if not is_text:
                continue
            if number < len(self._used) and self._used[number]:
                is_open = False
                continue
            skipped += 1
            if is_open:
                ranges[-1] = (ranges[-1][0], number)
            elif len(ranges) <= MOST_RANGES:
                ranges.append((number, number))
                is_open = True
        if not skipped:
            return None
        shown = [str(a) if a == b else f"{a}-{b}" for a, b in ranges[:MOST_RANGES]]
        shown += ["…"] if len(ranges) > MOST_RANGES else []
        return f"lines that were not read: {skipped} of {len(self._seen) - 1} ({', '.join(shown)})"

    def refuse(self, line: int | None, problem: str, hint: str | None = None) -> DataError:
        """Return the error for a line that cannot be read."""
        where = self.name if line is None else f"{self.name}:{line}"
        return DataError(f"{where}: {problem}", hint)


_PATIENCE_S = 1.0
"""Seconds without data after which a pipe is said to be waited for."""


def _say_waiting(path: Path) -> None:
    """Say on stderr why nothing happens: nobody has written to the pipe yet."""
    name = "stdin" if path == STDIN else one_line(str(path))
    sys.stderr.write(translate(f"waiting for data from {name}") + "\n")


def _copy_of_pipe(path: Path) -> IO[bytes]:
    """Copy what comes out of a pipe to disk; it may never end.  Raises DataError."""
    with ExitStack() as stack:
        copy = stack.enter_context(tempfile.TemporaryFile())
        notice = threading.Timer(_PATIENCE_S, _say_waiting, [path])
        notice.daemon = True
        notice.start()
        stack.callback(notice.cancel)
        source = sys.stdin.buffer if path == STDIN else stack.enter_context(path.open("rb"))
        size = 0
        while data := source.read(PIECE_BYTES):
            notice.cancel()
            size += len(data)
            if size > MOST_PIPED:
                most = format_memory(MOST_PIPED)
                hint = "write it to a file first"
                raise DataError(f"{one_line(str(path))}: more than {most}", hint)
            copy.write(data)
        notice.cancel()
        stack.pop_all()
        if source is not sys.stdin.buffer:
            source.close()
        return copy


_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


def _encoding(start: bytes) -> str | None:
    """Return the encoding of the text in these bytes; None where they hold no text."""
    for mark, name in _MARKS:
        if start.startswith(mark):
            return name
    sample = start[: 1 << 14]
    # Text of one byte in two: each other byte is zero.
    for offset, name in ((1, "utf-16-le"), (0, "utf-16-be")):
        half = len(sample) // 2
        zeros, others = sample[offset::2].count(0), sample[1 - offset :: 2].count(0)
        if half >= 4 and zeros > 0.8 * half and others < 0.1 * half:
            return name
    # A file that a full disk or a crash padded with zeros is text still.
    bare = start.replace(b"\x00", b"") if start.count(0) < len(start) else b""
    is_binary = len(_CONTROL.findall(start)) > _BINARY_SHARE * len(start)
    if is_binary and len(_CONTROL.findall(bare)) <= _BINARY_SHARE * len(bare):
        is_binary = start.rstrip(b"\x00").count(0) > _BINARY_SHARE * len(start)
    return None if is_binary and bare else "utf-8"


def _plain(text: str) -> str:
    if "\x00" in text:
        text = text.replace("\x00", "")
    if "\r\n" in text:
        text = text.replace("\r\n", "\n")
    return _ESCAPES.sub("", text) if "\x1b" in text else text


def _cut(lines: Sequence[str], first: int, prefixes: Prefixes) -> Iterator[FileLine]:
    """Yield the lines without prefixes; text that a carriage return overwrote is its own line."""
    if not prefixes.learned and not any("\r" in line for line in lines):
        yield from map(FileLine, range(first, first + len(lines)), lines)
        return
    for number, whole in enumerate(lines, start=first):
        line, label = prefixes.strip(whole)
        for part in line.split("\r"):
            yield FileLine(number, part, label)


# ---- the lines of one run


class FilePart:
    """The lines of one run of a tool, or of one JSON value, in a file."""

    def __init__(self, file: ToolFile, lines: Sequence[FileLine], *, is_json: bool = False) -> None:
        self.file = file
        self.all = lines
        self.is_json = is_json
        self.is_only = False
        """Whether the file holds no other run of its format."""

    @property
    def name(self) -> str:
        """Name of the file that the part is of."""
        return self.file.name

    @property
    def label(self) -> str | None:
        """Return the rank, host or pod that wrote all of it."""
        labels = {line.label for line in self.all}
        return labels.pop() if len(labels) == 1 else None

    @cached_property
    def lines(self) -> tuple[tuple[int, str], ...]:
        """Number and text of each line of the part that is not blank."""
        return tuple((line.number, line.text) for line in self.all if line.text.strip())

    @cached_property
    def text(self) -> str:
        """Return all of it."""
        return "\n".join(line.text for line in self.all)

    @property
    def head(self) -> str:
        """Beginning of the part's text, where a run states its settings."""
        return self.text[:HEAD_BYTES]

    @property
    def last(self) -> int:
        """Return the number of the last line that is not blank."""
        return self.lines[-1][0] if self.lines else 1

    def is_cut(self, number: int) -> bool:
        """Return whether a line's last number may lack digits, since the file ends in it."""
        return number == self.file.cut_line

    def use(self, number: int) -> None:
        """Note that a line was read."""
        self.file.use(number)

    def use_all(self) -> None:
        """Note that every line was read."""
        for line in self.all:
            self.file.use(line.number)

    @cached_property
    def json(self) -> Any:
        """JSON value of the part; raises DataError with the line where it is none."""
        text, start = self.text, self.json_start
        try:
            value, _ = json.JSONDecoder().raw_decode(text, start)
        except json.JSONDecodeError as error:
            raise self.refuse(self.line_at(error.pos), f"not JSON: {error.msg}") from None
        except (ValueError, RecursionError) as error:
            raise self.refuse(self.line_at(start), f"not JSON: {type(error).__name__}") from None
        return value

    @cached_property
    def json_start(self) -> int:
        """Offset in the text of the first line that begins with a bracket."""
        match = re.search(r"^[ \t]*([{\[])", self.text, re.MULTILINE)
        return match.start(1) if match else 0

    def line_at(self, place: int) -> int:
        """Return the number of the line that a place in the text lies in."""
        index = self.text.count("\n", 0, place)
        return self.all[min(index, len(self.all) - 1)].number if self.all else 1

    def refuse(self, line: int | None, problem: str, hint: str | None = None) -> DataError:
        """Return the error for a line that cannot be read."""
        return self.file.refuse(line, problem, hint)


_JSON_BEGINS = re.compile(r"[ \t]*(?:\{[ \t]*(?:[\"}]|$)|\[[ \t]*(?:[{\[\"\]]|$))")
_MOST_VALUES = 1 << 12


def json_parts(file: ToolFile, lines: Sequence[FileLine]) -> Iterator[FilePart]:
    """Yield each JSON value that begins at the beginning of a line; a broken one to the file's end.

    Values of one line are left out: they are lines of a log, which readers of lines take.
    """
    place = count = 0
    while place < len(lines) and count < _MOST_VALUES:
        if not _JSON_BEGINS.match(lines[place].text):
            place += 1
            continue
        end = _end_of_json(lines, place)
        count += 1
        yield FilePart(file, lines[place : end or len(lines)], is_json=True)
        place = end or len(lines)


def _end_of_json(lines: Sequence[FileLine], first: int) -> int | None:
    """Return the index behind the last line of the value that begins at ``first``; None: broken.

    Brackets outside of strings are counted, so that the lines of a value are looked at once.
    """
    depth, in_string = 0, False
    for place in range(first, len(lines)):
        text = lines[place].text
        at, size = 0, len(text)
        while at < size:
            char = text[at]
            if in_string:
                if char == "\\":
                    at += 1
                elif char == '"':
                    in_string = False
            elif char == '"':
                in_string = True
            elif char in "{[":
                depth += 1
            elif char in "}]":
                depth -= 1
                if depth <= 0:
                    return place + 1
            at += 1
        in_string = False  # a string of JSON ends in its line
    return None
