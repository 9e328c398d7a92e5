"""Ctrl-C and SIGTERM: the first ends the measuring, later ones leave the closing in peace."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_ENDING = (signal.SIGINT, signal.SIGTERM)


class Interrupted(KeyboardInterrupt):
    """Ctrl-C or SIGTERM: the run is closed and stays valid."""


@contextmanager
def interrupted_once() -> Iterator[None]:
    """The first SIGINT or SIGTERM ends the measuring; the closing of the run is not disturbed.

    SIGTERM is what a scheduler or a shutdown sends.  Whoever is in more of a hurry
    has SIGKILL, and the run is valid after that too.
    """
    seen: list[int] = []

    def interrupt(number: int, _: FrameType | None) -> None:
        seen.append(number)
        if len(seen) == 1:
            raise Interrupted

    try:
        before = {number: signal.signal(number, interrupt) for number in _ENDING}
    except ValueError:  # not in the main thread: signals are the embedding program's business
        yield
        return
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
