"""One function over many items in several processes: in order, with errors, and without end."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal

import pytest

from trainrig.errors import UnavailableError
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


def test_one_processor_asks_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    assert {pid for _, pid in ordered_map(squared, range(3000), at_least=1000)} == {os.getpid()}
