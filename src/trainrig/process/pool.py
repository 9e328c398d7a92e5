"""One function over lists of items in as many processes as there are processors, answers in order.

For what computes and prints: no state is kept, and nothing but the answers comes back.  Few items
are not worth a process, and where none can be forked all is done here; the answers are the same.
A child leaves the interrupt to its parent, and goes with it: who stops listening, by an interrupt
or else, waits for no answer that is under way.  Each child has a pipe of its own, and no thread
stands between: one that is killed while it writes leaves nobody reading.

Why no pool of the standard library: ``multiprocessing.Pool.imap`` reads all items at once, however
slowly its answers are taken, and waits for ever for a child that was killed; an executor of
``concurrent.futures`` reads all at once before Python 3.14, its ``shutdown`` waits for what is
under way, and who drops its answers half-way was seen to hang.  Forked and not spawned, so that
what is imported and cached is there; `ask` must start no threads of OpenMP, which do not outlive a
fork.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import chain, count, islice
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from multiprocessing.reduction import ForkingPickler
from typing import Any, TypeVar

from trainrig.errors import UnavailableError
from trainrig.process.child import die_with_parent

Item = TypeVar("Item")
Answer = TypeVar("Answer")

_AHEAD = 4
"""Chunks for each process that are under way: what comes without end is read no further."""
_AT_ONCE = 128
"""Answers that are handed on before who is done is looked for."""


def ordered_map(
    ask: Callable[[list[Item]], list[Answer]],
    items: Iterable[Item],
    *,
    at_least: int = 2000,
    together: int = 1024,
) -> Iterator[Answer]:
    """An answer for each item, in order, of ``ask``, which answers so many of them ``together``.

    Fewer than ``at_least`` items are asked here.
    An exception of a child is raised where its answer would have come.
    """
    items = iter(items)
    few = list(islice(items, at_least))
    num = 1 if len(few) < at_least else _most_children()
    every = chain(few, items)
    chunks = iter(lambda: list(islice(every, together)), [])
    first = list(islice(chunks, num))
    chunks = chain(first, chunks)
    children: dict[Connection, ForkProcess] = {}
    try:
        for _ in first if len(first) > 1 else ():
            try:
                connection, child = _started(ask)
            except OSError:  # no more processes are allowed: those that there are answer all
                break
            children[connection] = child
        if children:
            yield from _dealt(chunks, list(children))
        else:
            for chunk in chunks:
                yield from ask(chunk)
    finally:
        # An interpreter that ends has ended its daemons, and has no modules left to kill by.
        alive = [child for child in children.values() if child.exitcode is None]
        for child in alive:
            child.kill()
        for child in alive:
            child.join()
        for connection in children:
            connection.close()


def _most_children() -> int:
    """Processors of ours; 1 where nothing is forked, as in a child that may have none itself."""
    if sys.platform != "linux" or multiprocessing.current_process().daemon:
        return 1
    return len(os.sched_getaffinity(0))


def _dealt(chunks: Iterator[list[Any]], idle: list[Connection]) -> Iterator[Any]:
    """Yield each chunk to the child that is free next, its answers in the chunks' order."""
    busy: dict[Connection, int] = {}
    known: dict[int, list[Any] | Exception] = {}
    most, turns = _AHEAD * len(idle), count()

    def deal() -> None:
        while idle and len(busy) + len(known) < most and (chunk := next(chunks, None)):
            turn, free = next(turns), idle.pop()
            try:
                free.send(chunk)
            except OSError:  # it was killed while it had nothing to do
                known[turn] = UnavailableError(*_ENDED)
            else:
                busy[free] = turn

    deal()
    for turn in count():
        while turn not in known:
            if not busy:
                return
            _listen(busy, idle, known, None)
            deal()
        answers = known.pop(turn)
        if isinstance(answers, Exception):
            raise answers
        for at in range(0, len(answers), _AT_ONCE):
            _listen(busy, idle, known, 0.0)  # who is done gets the next ones meanwhile
            deal()
            yield from answers[at : at + _AT_ONCE]


def _listen(
    busy: dict[Connection, int],
    idle: list[Connection],
    known: dict[int, list[Any] | Exception],
    timeout: float | None,
) -> None:
    """Take the answers that are there, or wait for the first; who gave them is idle then."""
    for ready in wait(busy, timeout):
        assert isinstance(ready, Connection)
        number = busy.pop(ready)
        try:
            known[number] = ready.recv()
        except (EOFError, OSError):
            known[number] = UnavailableError(*_ENDED)
        else:
            idle.append(ready)


_ENDED = (
    "a process ended before its answer",
    "its memory may have run out: free some, or ask for less at a time",
)


def _started(ask: Callable[[list[Item]], list[Answer]]) -> tuple[Connection, ForkProcess]:
    parent, other = multiprocessing.Pipe()
    # The kernel ends a child with the thread that forked it: one of main's alone lasts long enough.
    alone = threading.current_thread() is threading.main_thread()
    # A daemon: an interpreter that ends with answers outstanding waits for no child.
    child = multiprocessing.get_context("fork").Process(
        target=_answer, args=(other, ask, alone), daemon=True
    )
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        with warnings.catch_warnings():
            # numpy's threads are idle, and children use none of them.
            warnings.filterwarnings("ignore", "This process", DeprecationWarning)
            child.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    other.close()
    return parent, child


def _answer(
    parent: Connection, ask: Callable[[list[Item]], list[Answer]], dies_with_parent: bool
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if dies_with_parent:
        die_with_parent()
    with suppress(EOFError, OSError):  # nobody is left to answer
        while True:
            chunk = parent.recv()
            try:
                packed = ForkingPickler.dumps(ask(chunk))
            except Exception as error:  # noqa: BLE001 - raised by who asked, in its answer's place
                packed = _packed(error)
            parent.send_bytes(packed)


def _packed(error: Exception) -> memoryview:
    """Return an exception as its parent can raise it, where it was raised as a note.

    Else its words.
    """
    error.add_note("".join(traceback.format_exception(error)))
    try:
        packed = ForkingPickler.dumps(error)
        ForkingPickler.loads(packed)  # of what was packed just now, as its parent will
    except Exception:  # noqa: BLE001 - whatever it refuses to be packed by
        return ForkingPickler.dumps(RuntimeError(f"{type(error).__name__}: {error}"))
    return packed
