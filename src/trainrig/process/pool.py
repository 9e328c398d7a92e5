"""One function over many items in as many processes as there are processors, answers in order.

For what computes and prints: no state is kept, and nothing but the answers comes back.  Few items
are not worth a process, and where none can be forked all is done here; the answers are the same.
A child leaves the interrupt to its parent, and goes with it: who stops listening, by an interrupt
or else, waits for no answer that is under way.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import chain, islice
from typing import TypeVar

from trainrig.process.child import die_with_parent

Item = TypeVar("Item")
Answer = TypeVar("Answer")

_CHUNK = 256
"""Items that go to a child at once."""
_AHEAD = 4
"""Chunks for each process that are under way: what comes without end is read no further."""


def ordered_map(
    ask: Callable[[Item], Answer], items: Iterable[Item], *, at_least: int = 2000
) -> Iterator[Answer]:
    """``ask`` of each item, in order; fewer than ``at_least`` of them are asked here.

    An exception of a child is raised where its answer would have come.
    """
    items = iter(items)
    few = list(islice(items, at_least))
    num = len(os.sched_getaffinity(0)) if sys.platform == "linux" else 1
    if len(few) < at_least or num < 2:
        yield from map(ask, chain(few, items))
        return
    every = chain(few, items)
    chunks = iter(lambda: list(islice(every, _CHUNK)), [])
    context = multiprocessing.get_context("fork")
    others = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(num, mp_context=context, initializer=_begin)
    try:
        with warnings.catch_warnings():
            # numpy's threads are idle, and children use none of them.
            warnings.filterwarnings("ignore", "This process", DeprecationWarning)
            pending = deque(pool.submit(_ask, ask, c) for c in islice(chunks, num * _AHEAD))
        while pending:
            answers = pending.popleft().result()
            pending.extend(pool.submit(_ask, ask, c) for c in islice(chunks, 1))
            yield from answers
    except BaseException:
        # At once: a second interrupt while they end would leave them waiting, and all behind them.
        for child in set(multiprocessing.active_children()) - others:
            child.kill()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _begin() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent()


def _ask(ask: Callable[[Item], Answer], items: list[Item]) -> list[Answer]:
    return [ask(item) for item in items]
