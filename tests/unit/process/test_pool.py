"""One function over many items in several processes: in order, with errors, and without end."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal

import pytest

from trainrig.process.pool import ordered_map


def squared(number: int) -> tuple[int, int]:
    if number == 4321:
        raise ValueError("4321")
    return number * number, os.getpid()


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


def never_from_512(number: int) -> int:
    return number if number < 512 else signal.pause() or 0


def test_who_stops_listening_waits_for_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupt, of which a second one once left the children waiting for ever."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    answers = ordered_map(never_from_512, range(3000), at_least=1000)
    assert next(answers) == 0
    with pytest.raises(KeyboardInterrupt):
        answers.throw(KeyboardInterrupt)
    assert not multiprocessing.active_children()


def test_one_processor_asks_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    assert {pid for _, pid in ordered_map(squared, range(3000), at_least=1000)} == {os.getpid()}
