"""One function over many items in several processes: in order, with errors, and without end."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest

from trainrig.errors import UnavailableError
from trainrig.process import pool
from trainrig.process.pool import ordered_map


def squared(numbers: list[int]) -> list[tuple[int, int]]:
    if 4321 in numbers:
        raise ValueError("4321")
    return [(number * number, os.getpid()) for number in numbers]


def test_answers_come_in_order_from_as_many_processes_as_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    found = list(ordered_map(squared, range(3000), at_least=1000))
    assert [square for square, _ in found] == [n * n for n in range(3000)]
    assert os.getpid() not in {pid for _, pid in found}
    assert {pid for _, pid in ordered_map(squared, range(99), at_least=100)} == {os.getpid()}
    with pytest.raises(ValueError, match="4321"):
        list(ordered_map(squared, range(9999), at_least=1000))
    endless = ordered_map(squared, itertools.count(5000), at_least=1000)
    assert next(endless)[0] == 5000**2
    endless.close()


def never_from_1024(numbers: list[int]) -> list[int]:
    return numbers if numbers[0] < 1024 else signal.pause() or []


def test_who_stops_listening_waits_for_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupt, of which a second one once left the children waiting for ever."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    answers = ordered_map(never_from_1024, range(3000), at_least=1000)
    assert next(answers) == 0
    with pytest.raises(KeyboardInterrupt):
        answers.throw(KeyboardInterrupt)
    assert not multiprocessing.active_children()


def long_from_1024(numbers: list[int]) -> list[bytes]:
    """Answers that fill a pipe many times over: their child is killed while it writes them."""
    return [bytes(1 << 16 if number >= 1024 else 1) for number in numbers]


def test_who_stops_listening_to_long_answers_waits_for_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    answers = ordered_map(long_from_1024, range(4000), at_least=1000)
    assert next(answers) == bytes(1)
    answers.close()
    assert not multiprocessing.active_children()


def killed_from_1024(numbers: list[int]) -> list[int]:
    if numbers[0] >= 1024:
        os.kill(os.getpid(), signal.SIGKILL)
    return numbers


def test_a_child_that_is_killed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    with pytest.raises(UnavailableError, match="ended before its answer"):
        list(ordered_map(killed_from_1024, range(4000), at_least=1000))

    ours, childs = multiprocessing.Pipe()
    childs.close()  # as of one that was killed while it had nothing to do: no reader of ours left
    with pytest.raises(UnavailableError, match="ended before its answer"):
        list(pool._dealt(iter([[1]]), [ours]))


class Odd(Exception):
    """Cannot be made again from what it is packed as."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(first + second)


def odd_or_a_lock(numbers: list[int]) -> list[object]:
    if numbers[0] < 1024:
        raise Odd("one row", " is odd")
    return [threading.Lock() for _ in numbers]


def test_what_cannot_be_packed_is_said_and_no_memory_blamed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    with pytest.raises(RuntimeError, match="Odd: one row is odd"):
        list(ordered_map(odd_or_a_lock, range(3000), at_least=1000))
    with pytest.raises(TypeError, match="cannot pickle"):
        list(ordered_map(odd_or_a_lock, range(2000, 5000), at_least=1000))


def test_where_none_can_be_forked_all_is_asked_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """A system that allows no more processes; a worker of another pool, which may have none."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    with monkeypatch.context() as limit:
        limit.setattr(os, "fork", lambda: (_ for _ in ()).throw(BlockingIOError(11, "again")))
        found = list(ordered_map(squared, range(3000), at_least=1000))
    assert [square for square, _ in found] == [n * n for n in range(3000)]
    monkeypatch.setattr(multiprocessing, "current_process", lambda: SimpleNamespace(daemon=True))
    found += ordered_map(squared, range(3000), at_least=1000)
    assert {pid for _, pid in found} == {os.getpid()}


def test_a_thread_that_ends_takes_no_child_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    answers = ordered_map(squared, range(20_000, 30_000), at_least=1000)
    found = []
    thread = threading.Thread(target=lambda: found.append(next(answers)))
    thread.start()
    thread.join()
    assert len(found + list(answers)) == 10_000


def test_a_program_that_ends_with_answers_outstanding_ends() -> None:
    program = (
        "import os; os.sched_getaffinity = lambda _: {0, 1}\n"
        "from trainrig.process.pool import ordered_map\n"
        "answers = ordered_map(list, range(9000), at_least=1000)\n"
        "print(next(answers))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, check=False, timeout=120
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"0\n", b"")


def test_one_processor_asks_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    assert {pid for _, pid in ordered_map(squared, range(3000), at_least=1000)} == {os.getpid()}
