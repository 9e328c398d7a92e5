"""Columns of a table of cases, and the rows of a CSV or JSON Lines file as values.

Strict: a column that is not known, a value that its option would refuse and a row that is longer
than its head are errors, with the file's line.  A blank cell is an option that was not given.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Container, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainrig.errors import DataError, TrainrigError, UsageError, reading, unknown
from trainrig.safe_read import read_settings


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseColumn:
    """A column: an option of `predict`, or what was measured."""

    name: str
    """Name in the table's head: the option's, with underscores."""
    read: Callable[[str], Any]
    """Turns a cell that is not blank into the option's value; raises UsageError or ValueError."""
    key: str = ""
    """Option that the value is of, where several columns state one (``chip`` states ``on``)."""
    takes: str = ""
    """Kind of value: number, words, file."""
    help: str = ""
    default: str = ""
    aliases: tuple[str, ...] = ()
    """The option's former spellings."""

    @property
    def option(self) -> str:
        """Option that the value is of."""
        return self.key or self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseRow:
    """One row as values: what is asked, and what was measured."""

    line: int
    """Line of the file on which the row ends, from 1."""
    name: str
    """Cell of the ``id`` column; empty where there is none."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Values by option, only those that are given."""
    measured: Mapping[str, float] = field(default_factory=dict)
    """Values of MEASURED's columns, only those that are given."""


ID = "id"
MEASURED = {
    "measured_step_s": "Seconds of a step.",
    "measured_tokens_per_s": "Tokens a second, all GPUs together.",
    "measured_tokens_per_s_per_gpu": "Tokens a second of one GPU.",
    "measured_samples_per_s": "Samples a second, all GPUs together.",
    "measured_memory_bytes": "Bytes in use on one GPU, as nvidia-smi shows them.",
}
"""Columns that say what was measured: the prediction's error is printed beside it.  Of several that
say how long a step took the first that is given counts."""
DERIVED = "dp"
"""Column that follows from others, as in JSON's layouts; it is left out where `gpus` is given."""
REFUSED_NAMES = {
    "gpus": ("num_gpus", "nodes", "dp"),
    "on": ("hardware",),
    "seq_len": ("seq", "mean_seq"),
    "interleave": ("vpp",),
    "zero": ("zero_stage",),
    "sequence_parallel": ("seq_parallel",),
    "precision": ("dtype",),
    "kernels": ("kernel_stack",),
    "fabric_gbps": ("fabric_gbps_per_node",),
    "model": ("params_b", "layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "num_experts"),
    "software": ("date",),
    "measured_step_s": ("step_time_s",),
    "measured_tokens_per_s_per_gpu": ("tokens_per_s_per_gpu",),
    "measured_samples_per_s": ("samples_per_s",),
    "measured_memory_bytes": ("memory_bytes_per_gpu",),
}
"""Columns of earlier tables by the column that states the same now; they are refused with it."""
_EXAMPLE = "as model,on,gpus,micro_batch,seq_len; docs/cases.md lists the columns"
_LONGEST_CELL = 1 << 24


def read_cells(cells: Mapping[str, str], columns: Sequence[CaseColumn]) -> CaseRow:
    """Read one row that is in no file.

    Args:
        cells: Text by column; blank cells are options that are not given.
        columns: The options that it may state.

    Raises:
        UsageError: A column is unknown, or a cell is no value of its option.
    """
    known = _by_name(columns)
    for column in cells:
        _check_column(column, _with_derived({*known, ID, *MEASURED}, cells), "row")
    return _row(1, cells, known, "row")


_MOST_BYTES = 1 << 26


def read_rows(path: Path, columns: Sequence[CaseColumn]) -> list[CaseRow]:
    """Read a table of cases.

    Args:
        path: CSV with a head, or JSON Lines with an object in each line.
        columns: The options that a row may state; ``id`` and MEASURED's columns are known besides.

    Raises:
        DataError: The file cannot be read, or is neither.
        UsageError: A column is unknown, or a cell is no value of its option, with the line.
    """
    known = _by_name(columns)
    with reading(path, "name a CSV or JSON Lines file"):
        raw = read_settings(path, _MOST_BYTES)
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise DataError(f"{path.name} is not in UTF-8", "save it as CSV in UTF-8") from None
    lines = list(io.StringIO(text, newline=""))
    is_json = next((line for line in lines if line.strip()), "").lstrip().startswith("{")
    names = {*known, ID, *MEASURED}
    cells = (_of_json if is_json else _of_csv)(lines, path.name, names)
    return [_row(line, row, known, path.name) for line, row in cells]


def _by_name(columns: Sequence[CaseColumn]) -> dict[str, CaseColumn]:
    """Return the columns by their names, today's and former ones."""
    names = {column.name: column for column in columns}
    return names | {alias: column for column in columns for alias in column.aliases}


def _of_csv(
    lines: Sequence[str], name: str, names: Set[str]
) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield each row's cells by column, with its line."""
    head = lines[0] if lines else ""
    between = max(",;\t", key=head.count)
    csv.field_size_limit(_LONGEST_CELL)
    table = csv.reader(lines, delimiter=between, strict=True)
    try:
        columns = [_plain(cell) for cell in next(table, [])]
        names = _with_derived(names, columns)
        if not any(columns):
            raise DataError(f"{name}: its first line names no columns", _EXAMPLE)
        for column in columns:
            _check_column(column, names, f"{name}:1")
            if columns.count(column) > 1:
                raise UsageError(f"{name}:1: two columns {column!r}", "keep one of them")
        for cells in table:
            if len(cells) > len(columns) and any(cells[len(columns) :]):
                surplus = f"{len(cells)} cells under {len(columns)} columns"
                raise UsageError(f"{name}:{table.line_num}: {surplus}", "quote cells with commas")
            if any(cell.strip() for cell in cells):
                yield table.line_num, dict(zip(columns, map(str.strip, cells), strict=False))
    except csv.Error as error:
        raise DataError(f"{name}:{table.line_num}: no CSV: {error}", _EXAMPLE) from None


def _of_json(
    lines: Sequence[str], name: str, names: Set[str]
) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield each object's values by key as a CSV would have them, with its line."""
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            cells = json.loads(line)
        except (ValueError, RecursionError):
            cells = None
        if not isinstance(cells, dict):
            raise DataError(f"{name}:{number}: no JSON object", 'as {"model": "gpt2", "gpus": 8}')
        keys = [_plain(key) for key in cells]
        for key in keys:
            _check_column(key, _with_derived(names, keys), f"{name}:{number}")
        yield number, {_plain(key): _cell(key, value, name, number) for key, value in cells.items()}


def _cell(key: str, value: Any, name: str, line: int) -> str:
    match value:
        case None:
            return ""
        case bool():
            return str(value).lower()
        case int() | float():
            return repr(value)
        case str():
            return value.strip()
    raise UsageError(f"{name}:{line}: {key} is neither text nor a number", "one value for a column")


def _plain(column: str) -> str:
    """Return a column's name as an option's: ``--seq-len`` is ``seq_len``."""
    return column.strip().removeprefix("--").replace("-", "_")


def _row(
    line: int, cells: Mapping[str, str], known: Mapping[str, CaseColumn], name: str
) -> CaseRow:
    """Read one row's cells."""
    options: dict[str, Any] = {}
    stated: dict[str, str] = {}
    measured: dict[str, float] = {}
    for cell, text in cells.items():
        if not text or cell in (ID, DERIVED):
            continue
        with at_place(f"{name}:{line}: {cell}"):
            if cell in MEASURED:
                measured[cell] = _above_zero(text)
                continue
            column = known[cell]
            if (other := stated.setdefault(column.option, cell)) != cell:
                raise UsageError(f"{other} is given, too", "one of them for a row")
            options[column.option] = column.read(text)
    return CaseRow(line=line, name=cells.get(ID, ""), options=options, measured=measured)


def _with_derived(names: Set[str], columns: Container[str]) -> Set[str]:
    return names | {DERIVED} if "gpus" in columns else names


def _check_column(column: str, names: Set[str], place: str) -> None:
    """Raise UsageError for an unknown column, with the nearest one or its new name."""
    if column in names:
        return
    with at_place(place):
        new = next((name for name, former in REFUSED_NAMES.items() if column in former), None)
        if new == "model":
            example = "its numbers are in model, as llama:num_layers=32,hidden=4096"
            raise UsageError(f"unknown column {column!r}", example)
        if new is not None:
            raise UsageError(f"unknown column {column!r}", f"it is called {new} now")
        raise unknown("column", column, sorted(names))


def _above_zero(text: str) -> float:
    value = float(text)
    if not 0.0 < value < 1e18:
        raise UsageError(f"{text} was measured", "a number above 0")
    return value


@contextmanager
def at_place(place: str) -> Iterator[None]:
    """Errors inside it begin with the file's line."""
    try:
        yield
    except TrainrigError as error:
        raise type(error)(f"{place}: {error.message}", error.hint) from None
    except ValueError as error:
        raise UsageError(f"{place}: {error}", "a value as the option takes it") from None
