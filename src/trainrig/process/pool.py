"""One function over lists of items in as many processes as there are processors, answers in order.

For what computes and prints: no state is kept, and nothing but the answers comes back.  Few items
are not worth a process, and where none can be forked all is done here; the answers are the same.
A child leaves the interrupt to its parent, and goes with it: who stops listening, by an interrupt
or else, waits for no answer that is under way.  Each child has a pipe of its own, and no thread
stands between: one that is killed while it writes leaves nobody reading.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, count, islice
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from typing import Any, TypeVar

from trainrig.errors import UnavailableError
from trainrig.process.child import die_with_parent

Item = TypeVar("Item")
Answer = TypeVar("Answer")

_CHUNK = 1024
"""Items that are asked together."""
_AHEAD = 4
"""Chunks for each process that are under way: what comes without end is read no further."""


def ordered_map(
    ask: Callable[[list[Item]], list[Answer]], items: Iterable[Item], *, at_least: int = 2000
) -> Iterator[Answer]:
    """An answer for each item, in order, of ``ask``, which answers some of them together.

    Fewer than ``at_least`` items are asked here.
    An exception of a child is raised where its answer would have come.
    """
    items = iter(items)
    few = list(islice(items, at_least))
    num = len(os.sched_getaffinity(0)) if sys.platform == "linux" else 1
    every = chain(few, items)
    chunks = iter(lambda: list(islice(every, _CHUNK)), [])
    if len(few) < at_least or num < 2:
        for chunk in chunks:
            yield from ask(chunk)
        return
    children: dict[Connection, ForkProcess] = {}
    try:
        for _ in range(num):
            connection, child = _started(ask)
            children[connection] = child
        yield from _dealt(chunks, list(children))
    finally:
        for child in children.values():
            child.kill()
        for connection, child in children.items():
            child.join()
            connection.close()


def _dealt(chunks: Iterator[list[Any]], idle: list[Connection]) -> Iterator[Any]:
    """Each chunk to the child that is free next, its answers in the chunks' order."""
    busy: dict[Connection, int] = {}
    known: dict[int, list[Any] | Exception] = {}
    most, turns = _AHEAD * len(idle), count()

    def deal() -> None:
        while idle and len(busy) + len(known) < most and (chunk := next(chunks, None)):
            idle[-1].send(chunk)
            busy[idle.pop()] = next(turns)

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
        for at in range(0, len(answers), _CHUNK // 8):
            _listen(busy, idle, known, 0.0)  # who is done gets the next ones meanwhile
            deal()
            yield from answers[at : at + _CHUNK // 8]


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


_ENDED = "a process ended before its answer", "its memory may have run out: ask for fewer at a time"


def _started(ask: Callable[[list[Item]], list[Answer]]) -> tuple[Connection, ForkProcess]:
    parent, other = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=_answer, args=(other, ask))
    with warnings.catch_warnings():
        # numpy's threads are idle, and children use none of them.
        warnings.filterwarnings("ignore", "This process", DeprecationWarning)
        child.start()
    other.close()
    return parent, child


def _answer(parent: Connection, ask: Callable[[list[Item]], list[Answer]]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent()
    while True:
        chunk = parent.recv()
        try:
            answers: list[Answer] | Exception = ask(chunk)
        except Exception as error:  # noqa: BLE001 - raised by who asked, where its answer would come
            answers = error
        parent.send(answers)
