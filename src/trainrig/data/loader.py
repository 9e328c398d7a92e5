"""Batches made ahead of time, so that a training step does not wait for its data.

A thread calls ``make(step)`` for one step after another and stays at most ``depth``
batches ahead; numpy copies without holding the interpreter's lock for long, so that a
process of its own would gain nothing but copies.  The loader's whole state is
``step``, the next step it will yield: to resume, start there.

An error in the thread is raised where the batch would have been, after the batches
that were made before it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Loader(Generic[T]):
    """Iterates over ``make(start), make(start + 1), ...``; close it, or use it with ``with``."""

    def __init__(
        self, make: Callable[[int], T], *, start: int = 0, stop: int | None = None, depth: int = 2
    ) -> None:
        """Begin at once.  Without ``stop`` it never ends; ``depth`` is at least 1."""
        assert depth >= 1
        self._make, self._stop, self._depth = make, stop, depth
        self._ready: deque[T] = deque()
        self._error: BaseException | None = None
        self._closed = False
        self._changed = threading.Condition()
        self.step = start
        """The step that the next batch belongs to."""
        self._thread = threading.Thread(
            target=self._run, args=(start,), name="trainrig-loader", daemon=True
        )
        self._thread.start()

    def __iter__(self) -> Loader[T]:
        return self

    def __next__(self) -> T:
        """The next batch; waits for it.  Raises what ``make`` raised for it."""
        if self._closed:
            raise ValueError("the loader is closed")
        if self.step == self._stop:
            raise StopIteration
        with self._changed:
            self._changed.wait_for(lambda: self._ready or self._error)
            if not self._ready:
                assert self._error is not None
                raise self._error
            batch = self._ready.popleft()
            self.step += 1
            self._changed.notify_all()
        return batch

    def __enter__(self) -> Loader[T]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the thread and wait for its end; the second time there is nothing to do."""
        with self._changed:
            self._closed = True
            self._ready.clear()
            self._changed.notify_all()
        self._thread.join()

    def _run(self, start: int) -> None:
        step = start
        while step != self._stop:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or len(self._ready) < self._depth)
                if self._closed:
                    return
            try:
                batch = self._make(step)
            except BaseException as error:  # noqa: BLE001  it is raised again in __next__
                with self._changed:
                    self._error = error
                    self._changed.notify_all()
                return
            with self._changed:
                if not self._closed:
                    self._ready.append(batch)
                self._changed.notify_all()
            step += 1
