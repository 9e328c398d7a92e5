"""Where a key stands in an experiment file, so that what is refused is refused with its line.

tomllib does not say.  Read here are headers of tables and keys at the beginning of a line; a key
inside an inline table has the line on which that begins.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from trainrig.errors import TrainrigError, UsageError

_EXPERIMENT = "experiment"
_HEADER = re.compile(r"""\s*\[+\s*["']?([A-Za-z_-]+)["']?\s*\]""")
_KEY = re.compile(r"""\s*(?:["']?([A-Za-z_-]+)["']?\s*\.\s*)?["']?([^\s=.'"#]+)["']?\s*[=.]""")


class Lines:
    """The lines of keys and tables."""

    def __init__(self, path: Path, text: str) -> None:
        self._path = path
        self._at: dict[tuple[str, object], int] = {}
        self._tables: dict[object, int] = {}
        table: object = None
        experiments = -1
        for number, line in enumerate(text.split("\n"), 1):
            if header := _HEADER.match(line):
                experiments += header[1] == _EXPERIMENT
                table = experiments if header[1] == _EXPERIMENT else header[1]
                self._tables.setdefault(table, number)
            elif key := _KEY.match(line):  # of this table, or of one that is named before a dot
                self._at.setdefault((key[2], table if key[1] is None else key[1]), number)

    def error(self, key: str, table: object, words: str, hint: str | None) -> UsageError:
        """An error with the line of ``key`` in its table, or of the table."""
        line = self._at.get((key, table)) or self._tables.get(key) or self._line_of(table)
        return UsageError(f"{self._path}, line {line}: {words}", hint)

    def _line_of(self, table: object) -> int:
        name = _EXPERIMENT if isinstance(table, int) else table
        return self._tables.get(table) or self._at.get((str(name), None), 1)

    def blaming(self, number: int, fields: Mapping[str, str]) -> _Blame:
        """What is refused inside is refused with a line of experiment ``number``.

        ``fields``: keys of the file that are called otherwise where they are refused.
        """
        return _Blame(self, number, fields)

    def of_words(self, words: str, number: int, fields: Mapping[str, str]) -> str | None:
        """The key among the file's that a refusal speaks of, the experiment's own first."""
        spoken = set(re.findall(r"[a-z_0-9]+", words))
        spoken |= {key for key, field in fields.items() if field in spoken}
        keys = [key for key, table in self._at if table == number]
        keys += [key for key, table in self._at if table in (None, "sweep", "tiny")]
        return next((key for key in keys if key in spoken), None)

    def table_of(self, key: str, number: int) -> object:
        """The table in which a key is set for an experiment."""
        for table in (number, "sweep", "tiny", None):
            if (key, table) in self._at:
                return table
        return number


class _Blame:
    """Adds the line to what is refused."""

    def __init__(self, lines: Lines, number: int, fields: Mapping[str, str]) -> None:
        self._lines, self._number, self._fields = lines, number, fields

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, TrainrigError):
            key = self._lines.of_words(error.message, self._number, self._fields) or ""
            table = self._lines.table_of(key, self._number)
            raise self._lines.error(key, table, error.message, error.hint) from None
