"""A burn's checks on the processor: the time they keep, what is given back, what is rounding."""

from __future__ import annotations

import itertools
import weakref
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from trainrig.errors import UnavailableError
from trainrig.measure import burn, burn_matmul, burn_memory
from trainrig.measure.burn_matmul import Products
from trainrig.measure.burn_memory import MemoryPatterns
from trainrig.process.events import Events, read_events


def test_memory_is_as_large_as_its_time_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look at the clock is 10 ms later; a block of 8 KiB is two looks."""
    clock = itertools.count()
    late = SimpleNamespace(perf_counter=lambda: 0.01 * next(clock))
    monkeypatch.setattr(burn_memory, "time", late)
    check = MemoryPatterns("cpu", (1 << 20) + 24, chunk=1 << 16)
    assert check.held == (1 << 20) + 24
    check.seconds = 1.0
    slices = [check.run(0.5), check.run(0.5)]
    assert 8 << 13 < check.held < 16 << 13
    assert check.num_passes >= 1
    assert sum(found.num_errors for found in slices) == 0
    assert check.finish().work == 0.0
    facts = check.facts()
    assert facts["memory_bytes"] < facts["memory_wanted_bytes"] == (1 << 20) + 24
    check._chunks[-1][-1] ^= 1  # the last word that is kept, while one pass is compared
    found = [error for _ in range(3) for error in check.run(0.5).errors]
    assert found or check.num_passes > 1


def test_memory_of_which_a_fifth_is_not_given_is_not_tested(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = iter(range(8))
    empty = torch.empty

    def grudging(*sizes: int, **kind: object) -> torch.Tensor:
        if next(given, None) is None:
            raise MemoryError
        return empty(*sizes, **kind)  # type: ignore[call-overload, no-any-return]

    monkeypatch.setattr(torch, "empty", grudging)
    with pytest.raises(UnavailableError, match="could be allocated"):
        MemoryPatterns("cpu", 10 << 10, chunk=1 << 10)


def test_what_a_phase_held_is_free_before_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver counts what torch keeps for itself as taken: the next phase would test less."""
    held: list[weakref.ref[object]] = []
    there: list[bool] = []

    def make(*_: object) -> Products:
        check = Products("fp32", "cpu", (8, 8, 8))
        held.append(weakref.ref(check))
        return check

    monkeypatch.setattr(burn, "make_check", make)
    monkeypatch.setattr(burn, "reset_torch", lambda: there.append(held[-1]() is not None))
    events = Events(tmp_path, 0)
    events.start()
    phase = {"mode": "matmul", "dtype": "fp32", "seconds": 0.0}
    burn._run_phase(0, phase, "cpu", 0.0, events)
    assert there == [False]
    kinds = [event["event"] for _, event in read_events(tmp_path, 0)]
    assert kinds[-1] == "phase_over"


def test_what_tensor_cores_cut_off_is_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums in fp32 that are cut off at every fourth product, as V100 and A100 (tf32) do."""
    size, k = 16, 1 << 14
    products = Products("fp32", "cpu", (size, k, size))
    left, right = products._left.double(), products._right.double()
    sums = torch.zeros(size, size, dtype=torch.float64)
    for start in range(0, k, 4):
        sums += left[:, start : start + 4] @ right[start : start + 4]
        sums.view(torch.int64).bitwise_and_(-(1 << 29))
    products.dtype, products._first = "tf32", sums.float()
    assert products._against_fp64() == []
    products._first[3, 4] += 1.0
    assert "element [3, 4]" in products._against_fp64()[0]
    products._first[3, 4] -= 1.0
    monkeypatch.setattr(burn_matmul, "_CUT_OFF", ())
    assert products._against_fp64(), "rounding to nearest does not explain it"
