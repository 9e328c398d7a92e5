"""Find the collective that ranks hang in, by the flight recorder of torch's process groups.

On a GPU the host runs ahead of what it has launched and waits nowhere that could be named; what
was enqueued, and what of it is over, is what NCCL's own record knows.  Each rank keeps its last
collectives in a ring and writes them, when its pipe is written to, as a pickle of plain values:
docs.pytorch.org/tutorials/prototype/flight_recorder_tutorial.html says what is in it.

Answers who has not called the collective that others wait in; not why.  On NCCL unverified on
hardware; the record itself is the same for gloo, which tests read.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickletools
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Dump = Mapping[str, Any]
_COLLECTIVES = 2000
"""Collectives that a rank's flight recorder keeps: more than a step has."""
_WAIT = 10.0
"""Seconds for a rank to write what it remembers; its watchdog looks at the pipe once a second."""


def settings(folder: Path) -> dict[str, str]:
    """Environment of ranks that remember; torch has both names of what was renamed in 2.9."""
    size, dumps = str(_COLLECTIVES), str(folder / "collectives-")
    return {
        "TORCH_NCCL_TRACE_BUFFER_SIZE": size,
        "TORCH_FR_BUFFER_SIZE": size,
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": dumps,
        "TORCH_FR_DUMP_TEMP_FILE": dumps,
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": dumps,
    }


def ask(folder: Path) -> dict[int, Dump]:
    """Return the flight recorder's dump of each rank that has a pipe and answers."""
    requested: list[Path] = []
    for pipe in sorted(folder.glob("collectives-*.pipe")):
        with contextlib.suppress(OSError):  # ENXIO: nobody reads it, its rank is gone
            file = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
            try:
                os.write(file, b"1\0")
            finally:
                os.close(file)
            requested.append(pipe.with_suffix(""))
    until = time.monotonic() + _WAIT
    dumps: dict[int, Dump] = {}
    while requested and time.monotonic() < until:
        dumps = read(folder)
        if len(dumps) >= len(requested):
            break
        time.sleep(0.1)
    return dumps


def read(folder: Path) -> dict[int, Dump]:
    """Return records in a folder by rank; one that is not whole yet, or damaged, is left out."""
    dumps: dict[int, Dump] = {}
    for path in folder.glob("collectives-*"):
        number = path.name.removeprefix("collectives-")
        if number.isdecimal():
            # What is torn or foreign may take a value where there is none.
            with contextlib.suppress(OSError, ValueError, LookupError, TypeError, AttributeError):
                dump = _plain_values(path.read_bytes())
                if isinstance(dump, dict) and isinstance(dump.get("entries"), list):
                    dumps[int(number)] = dump
    return dumps


_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_EMPTY = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple}
_VALUES = frozenset(
    {"BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE"}
)
_FIRST = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3, "APPEND": 1, "SETITEM": 2}
"""Operations that take so many values; their plural takes those behind a mark."""


def _plain_values(content: bytes) -> Any:
    """Return the dicts, lists, tuples, numbers and text of a pickle, of which nothing is executed.

    ValueError for one that is torn, or has anything else: a class, a call.
    """
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[Any, Any] = {}
    for operation, argument, _ in pickletools.genops(content):
        name = operation.name
        if name in _VALUES:
            stack.append(argument)
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in _EMPTY:
            stack.append(_EMPTY[name]())
        elif name == "MARK":
            marks.append(len(stack))
        elif name in ("BINPUT", "LONG_BINPUT", "MEMOIZE"):
            memo[len(memo) if name == "MEMOIZE" else argument] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(memo[argument])
        elif name in ("PROTO", "FRAME"):
            continue
        elif name == "STOP":
            return stack[-1]
        else:
            _collect(name, stack, marks)
    raise ValueError("no end")


def _collect(name: str, stack: list[Any], marks: list[int]) -> None:
    """Put the last values into a tuple, or into the list or dict before them."""
    if name not in _FIRST and name not in ("TUPLE", "APPENDS", "SETITEMS"):
        raise ValueError(f"{name} in a record of collectives")
    start = len(stack) - _FIRST[name] if name in _FIRST else marks.pop()
    values = stack[start:]
    del stack[start:]
    if name.startswith("TUPLE"):
        stack.append(tuple(values))
    elif name.startswith("APPEND"):
        stack[-1].extend(values)
    else:
        stack[-1].update(zip(values[::2], values[1::2], strict=True))


def explain(dumps: Mapping[int, Dump]) -> str | None:
    """Name the pending collective, who waits and who is missing; None: nothing is pending."""
    pending = [
        (entry["time_created_ns"], rank, entry)
        for rank, dump in dumps.items()
        for entry in dump["entries"]
        if not (entry["retired"] or entry["state"] == "completed")
    ]
    if not pending:
        return None
    _, first, waited = min(pending, key=lambda wait: wait[:2])
    group, number = waited["process_group"][0], _number(waited)
    members = _members(dumps[first], group) or sorted(dumps)
    called = {
        rank: entry
        for rank in members
        for entry in dumps.get(rank, {"entries": []})["entries"]
        if entry["process_group"][0] == group and _number(entry) == number
    }
    waiting = ", ".join(map(str, sorted(called)))
    words = f"{'ranks' if len(called) > 1 else 'rank'} {waiting} in {_words(waited)}"
    if absent := [rank for rank in members if rank not in called]:
        return f"{words}; {'; '.join(_where(rank, dumps, group) for rank in absent)}"
    others = [rank for rank, entry in called.items() if _work(entry) != _work(waited)]
    if others:
        return f"{words}; rank {others[0]} called {_words(called[others[0]])} in its place"
    return f"{words}, which all have called"


def _number(entry: Mapping[str, Any]) -> tuple[bool, int]:
    """Return the number of a collective or message within its group."""
    is_message = bool(entry["is_p2p"])
    return is_message, entry["p2p_seq_id" if is_message else "collective_seq_id"]


def _work(entry: Mapping[str, Any]) -> tuple[Any, ...]:
    return entry["profiling_name"].partition(" ")[0], entry["input_dtypes"]


def _words(entry: Mapping[str, Any]) -> str:
    name = entry["profiling_name"].partition(":")[2] or entry["profiling_name"]
    sizes = ", ".join("×".join(map(str, size)) for size in entry["input_sizes"])
    kinds = ", ".join(dict.fromkeys(map(str, entry["input_dtypes"])))
    group = entry["process_group"][1] or entry["process_group"][0]
    return f"{name} {_number(entry)[1]} of group {group} ({sizes} {kinds})"


def _members(dump: Dump, group: str) -> list[int]:
    """Return the ranks of a group, where the record says them."""
    ranks = dump.get("pg_config", {}).get(group, {}).get("ranks", "[]")
    with contextlib.suppress(ValueError, TypeError):
        return [int(rank) for rank in json.loads(ranks)]
    return []


def _where(rank: int, dumps: Mapping[int, Dump], group: str) -> str:
    """Return the last call of a rank that has not called the collective that others wait in."""
    if rank not in dumps:
        return f"rank {rank} does not answer"
    entries = [entry for entry in dumps[rank]["entries"] if entry["process_group"][0] == group]
    last = f": its last there is {_words(entries[-1])}" if entries else ""
    return f"rank {rank} has not called it{last}"
