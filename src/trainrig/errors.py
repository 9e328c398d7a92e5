"""Every error that a user can meet, and the exit code each one ends in.

    TrainrigError
    ├── UsageError        2   the command line or an argument is wrong
    ├── DataError         2   a file is unreadable, foreign, truncated, older or newer
    ├── StoreError        3   the run cannot be written: disk full, no permission
    └── UnavailableError  3   a required step cannot run here: no torch, no device
        ├── NeedsGpuError 3   only GPUs have it, and this machine has none
        └── NeedsCompilerError 3   torch.compile, and nothing here compiles

A TrainrigError is one line for the user and, where there is one, a hint that
says what to do next.  Anything else that reaches the command line is our own
mistake and keeps its traceback.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from pathlib import Path

    from pydantic import ValidationError

# Exit codes are an interface (scripts and schedulers read them).
EXIT_OK = 0
EXIT_FINDING = 1
EXIT_USAGE = 2
EXIT_INCOMPLETE = 3
EXIT_CRASH = 70
"""A fault of trainrig's own, as sysexits.h has it (EX_SOFTWARE)."""
EXIT_INTERRUPTED = 130
DAMAGED_RUN = "trainrig report shows what is left of it; copy the run again, or measure again"
"""The hint of an error about a run that cannot be read whole."""


class TrainrigError(Exception):
    """One line for the user, a hint on what to do, and an exit code."""

    exit_code = EXIT_USAGE

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(TrainrigError):
    """The command line or an argument is wrong."""


class DataError(TrainrigError):
    """A file is unreadable, foreign, truncated, older or newer than this program."""


class StoreError(TrainrigError):
    """A run cannot be written: the disk is full, the folder is read-only."""

    exit_code = EXIT_INCOMPLETE


class UnavailableError(TrainrigError):
    """A required step cannot run on this machine."""

    exit_code = EXIT_INCOMPLETE


class NeedsCompilerError(UnavailableError):
    """A compiler is needed, and this machine has none."""


class NeedsGpuError(UnavailableError):
    """Only GPUs have what was asked for: a machine without one has failed nothing."""


@contextmanager
def reading(path: Path, hint: str | None = None) -> Iterator[None]:
    """Turn an OSError into a DataError: ``cannot read PATH: Permission denied``."""
    try:
        yield
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}", hint) from None


KeyPath: TypeAlias = "tuple[int | str, ...]"
"""Place in a file: names of tables and of a key, and numbers in lists."""


def first_problem(
    error: ValidationError, whole: str = "the whole", place: Callable[[KeyPath], KeyPath] = tuple
) -> str:
    """Return what is wrong first in a ValidationError, in one printable line of a file's words.

    Args:
        error: What pydantic found.
        whole: Names what was validated where the problem lies in no field of it.
        place: Where the file has what pydantic found somewhere else (`FlatKeys.flat_place`).
    """
    first = _first_of(error)
    *tables, key = [part for part in place(first["loc"]) if part != _OF_KEY] or (whole,)
    kind, context = str(first["type"]), first.get("ctx", {})
    where = _placed(_key_text(key), tables)
    if kind in _UNKNOWN_KEY or _OF_KEY in first["loc"]:
        name = _placed(f"'{key}'", tables)
        text = f"unknown key {name}"
    elif kind in _MISSING_KEY:
        toml, name = _table_text(tables), _key_text(key)
        text = f"{name} is missing in [{toml}]" if toml else f"{name} is missing"
    elif (wanted := _WANTED.get(kind.replace("_parsing", "_type"))) is not None:
        limit = next(iter(context.values()), "")
        limit = f"{limit:g}" if isinstance(limit, float) else limit
        text = f"{where} is {_shown(first['input'])}, not {wanted.format(limit)}"
    else:
        text = f"{where}: {str(first['msg']).removeprefix('Value error, ')}"
    return "".join(letter if letter.isprintable() else "?" for letter in text[:_LONGEST_PROBLEM])


def invalid(
    error: ValidationError, where: str, kind: Any = None, hint: str | None = None
) -> DataError:
    """Return the error for a file that a user wrote: file, table, key, and which key was meant.

    Args:
        error: What pydantic found.
        where: The file, and the entry in it.
        kind: The model or dataclass that was read, for the names of its keys.
        hint: What to do where no near key is known.
    """
    first = _first_of(error)
    place = [part for part in first["loc"] if part != _OF_KEY]
    kind_of_problem, content = str(first["type"]), first["input"]
    if place and (kind_of_problem in _UNKNOWN_KEY or _OF_KEY in first["loc"]):
        if names := _keys_at(kind, place[:-1]):
            hint = unknown("key", str(place[-1]), names).hint
    elif place and kind_of_problem in _MISSING_KEY and isinstance(content, Mapping):
        # Of a table that may hold other keys, too.
        others = set(map(str, content)) - set(_keys_at(kind, place[:-1]))
        hint = meant_by(str(place[-1]), others) or hint
    return DataError(f"{where}: {first_problem(error, 'the file')}", hint)


def meant_by(key: str, written: Iterable[str]) -> str | None:
    """Return the hint that a key which is missing was misspelt; None where nothing is near it."""
    import difflib

    near = difflib.get_close_matches(key, sorted(written), n=1, cutoff=0.8)
    return f"did you mean {key}? {near[0]} is written there" if near else None


def _first_of(error: ValidationError) -> Mapping[str, Any]:
    """The problem to name: an unknown key before all, since what is missing may be that key."""
    problems = error.errors(include_url=False)
    return next((problem for problem in problems if problem["type"] in _UNKNOWN_KEY), problems[0])


_LONGEST_PROBLEM = 200
_OF_KEY = "[key]"
"""Pydantic's last word of the place where a key itself is wrong."""
_UNKNOWN_KEY = ("extra_forbidden", "unexpected_keyword_argument")
_MISSING_KEY = ("missing", "missing_argument", "missing_keyword_only_argument")
_WANTED = {
    **dict.fromkeys(("float_type", "decimal_type"), "a number"),
    **dict.fromkeys(("int_type", "int_from_float"), "a whole number"),
    **dict.fromkeys(("string_type", "string_sub_type"), "text in quotes"),
    **dict.fromkeys(("bool_type",), "true or false"),
    **dict.fromkeys(("list_type", "tuple_type", "set_type"), "a list"),
    **dict.fromkeys(("dict_type", "model_type", "dataclass_type", "mapping_type"), "a table"),
    **dict.fromkeys(("model_attributes_type", "dataclass_exact_type"), "a table"),
    **dict.fromkeys(("date_type", "date_from_datetime_parsing"), "a date like 2026-11-28"),
    **dict.fromkeys(("literal_error", "enum"), "one of {}"),
    "greater_than": "above {}",
    "greater_than_equal": "{} or more",
    "less_than": "below {}",
    "less_than_equal": "{} or less",
    "finite_number": "a finite number",
    "string_too_short": "text of {} or more letters",
}
"""Description of a valid value, by pydantic's type of error."""


def _key_text(key: object) -> str:
    return f"entry {key + 1}" if isinstance(key, int) else str(key)


def _placed(key: str, tables: Iterable[object]) -> str:
    """Return ``watts in [gpu 2]``; the key alone at the top of a file."""
    table = _table_text(tables)
    return f"{key} in [{table}]" if table else key


def _table_text(tables: Iterable[object]) -> str:
    """Return ``memory``, ``gpu 2``; nothing at the top of a file."""
    text = ""
    for part in tables:
        if isinstance(part, int):
            text += f" {part + 1}"
        elif _is_name(str(part)):
            text += f".{part}" if text else str(part)
    return text


def _is_name(part: str) -> bool:
    """Return whether a part of a place is a key of a file, not pydantic's word for a variant."""
    return not set("[(") & set(part) and part not in ("float", "int", "str", "bool")


def _shown(value: object) -> str:
    if isinstance(value, (dict, list)):
        return "a table" if isinstance(value, dict) else "a list"
    text = _AS_WRITTEN.get(str(value)) or repr(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


_AS_WRITTEN = {"None": "null", "True": "true", "False": "false"}
"""Python's words as JSON and TOML have them."""


def _keys_at(kind: Any, place: Iterable[object]) -> list[str]:
    """Return the keys that a table has, found from the type that the whole file is read as."""
    fields = _fields_of(kind)
    for part in place:
        if isinstance(part, str) and part in fields:
            fields = _fields_of(fields[part])
    return list(fields)


def _fields_of(kind: Any) -> dict[str, Any]:
    """Name and type of each key of a model, a dataclass or a table, or of the first in a type."""
    import dataclasses
    from typing import Literal, get_args, get_origin, get_type_hints

    if (model_fields := getattr(kind, "model_fields", None)) is not None:
        return {field.alias or name: field.annotation for name, field in model_fields.items()}
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        return get_type_hints(kind)
    if get_origin(kind) in (dict, Mapping) and get_origin(names := get_args(kind)[0]) is Literal:
        return dict.fromkeys(get_args(names), get_args(kind)[1])
    return next(
        (fields_of_part for part in get_args(kind) if (fields_of_part := _fields_of(part))), {}
    )


def unknown(what: str, word: str, known: Iterable[str], more: str = "") -> UsageError:
    """Return the error for a word that is none of ``known``.

    Near ones, else all, or of many the closest.

    ``more`` is what else may be given, and ends the hint.
    """
    spelled = {name.lower(): name for name in known}
    shown_word = word if len(word) <= _SHOWN else word[: _SHOWN - 3] + "..."
    near = near_words(word.lower(), spelled)
    if near:
        hint = f"did you mean {' or '.join(spelled[name] for name in near)}?"
    elif len(spelled) <= _MOST_LISTED:
        hint = "one of: " + ", ".join(spelled.values())
    else:  # a few of many, none of them near, would mislead
        hint = f"none of {len(spelled)} is spelled like it"
    return UsageError(f"unknown {what} {shown_word!r}", hint + more)


def near_words(word: str, known: Iterable[str], cutoff: float = 0.6) -> list[str]:
    """Return the three words that are most like one, at least ``cutoff`` alike of 1."""
    import difflib

    return difflib.get_close_matches(word[:_SHOWN], known, n=3, cutoff=cutoff)


_MOST_LISTED = 20


_SHOWN = 60
