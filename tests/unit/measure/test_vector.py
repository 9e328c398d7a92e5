"""vector: every operation and dtype against fp64, planted faults, hot and cold, counted bytes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from machine_fakes import FakeHost
from trainrig.benchmarks.vector import BENCHMARK, DTYPES, OPS
from trainrig.errors import UsageError
from trainrig.machine.snapshot import Missing
from trainrig.measure import EPS, buffers, torch_dtype, vector
from trainrig.measure.timing import Unsupported
from trainrig.record import Case

SIZES = (1, 2, 63, 1000, 65537)


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """A team of threads waits for its last member, which a busy test machine makes slow."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def case(op: str = "scale", size: int = 1000, cache: str = "hot", dtype: str = "fp32") -> Case:
    return {"op": op, "dtype": dtype, "num_elements": size, "cache": cache}


@pytest.fixture
def small_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """A last-level cache of 64 KiB, so that cold data is small."""
    monkeypatch.setattr(buffers, "last_level_cache_bytes", lambda device: 65536)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("cache", ["hot", "cold"])
@pytest.mark.usefixtures("small_cache")
def test_right_answers_raise_no_alarm(op: str, dtype: str, cache: str) -> None:
    for size in SIZES if cache == "hot" else SIZES[3:]:
        prepared = vector.prepare(case(op, size, cache, dtype), "cpu")
        assert prepared.wrong() is None, size
        for _ in range(5):
            prepared.call()
        assert prepared.wrong() is None, size


@pytest.mark.parametrize("op", OPS)
def test_right_answers_of_thirty_seeds(op: str) -> None:
    for seed in range(30):
        torch.manual_seed(seed)
        for dtype in ("fp64", "fp32", "bf16", "fp16"):
            inputs = [torch.randn(2, 999).to(torch_dtype(dtype)) for _ in range(2)]
            out = torch.empty_like(inputs[0])
            chosen = inputs if op == "add" else inputs[:1]
            vector._operation(torch, op, chosen, out)()
            assert vector.wrong_answer(op, dtype, chosen, out) is None


def test_the_reference_is_the_definition() -> None:
    x = torch.tensor([-2.0, 0.0, 0.5, 3.0], dtype=torch.float64)
    assert vector.reference("scale", [x]).tolist() == [-2.5, 0.0, 0.625, 3.75]
    assert vector.reference("add", [x, x]).tolist() == [-4.0, 0.0, 1.0, 6.0]
    gelu = [
        v / 2 * (1 + math.tanh(math.sqrt(2 / math.pi) * (v + 0.044715 * v**3))) for v in x.tolist()
    ]
    assert vector.reference("gelu", [x]).tolist() == pytest.approx(gelu)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("place", [0, 17, -1])
def test_one_wrong_element_is_seen(op: str, dtype: str, place: int) -> None:
    """By two units of its last place, for the exact ones; gelu by what its rounding exceeds."""
    torch.manual_seed(3)
    inputs = [torch.randn(1, 1000).abs().add(1.0).to(torch_dtype(dtype))] * 2
    chosen = inputs if op == "add" else inputs[:1]
    out = torch.empty_like(inputs[0])
    vector._operation(torch, op, chosen, out)()
    out[0, place] *= 1.0 + (16.0 if op == "gelu" else 2.0) * EPS[dtype]
    words = vector.wrong_answer(op, dtype, chosen, out)
    assert words is not None
    assert words.startswith(f"1 wrong elements; the first one, {place % 1000},")


def test_the_other_gelu_is_seen() -> None:
    """The form with erf differs from the tanh form by up to 5e-4."""
    x = torch.linspace(-4, 4, 1001).reshape(1, -1)
    erf = torch.nn.functional.gelu(x)
    assert vector.wrong_answer("gelu", "fp32", [x], erf) is not None


def test_a_large_array_is_sampled_with_both_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffers, "CHECK_ELEMENTS", 100)
    x = torch.randn(1, 1001)
    for place in (0, 1000, 33):  # every eleventh one, and the last
        out = x * vector.FACTOR
        assert vector.wrong_answer("scale", "fp32", [x], out) is None
        out[0, place] += 1.0
        words = str(vector.wrong_answer("scale", "fp32", [x], out))
        assert f"the first one, {place}," in words


@pytest.mark.parametrize("cache", ["hot", "cold"])
@pytest.mark.usefixtures("small_cache")
def test_a_fault_while_timing_is_seen(monkeypatch: pytest.MonkeyPatch, cache: str) -> None:
    """Right before and after, wrong in between: only what the timed calls left can tell."""
    multiply, spoil = torch.mul, [False]

    def faulty(x: Any, factor: float, out: Any) -> None:
        multiply(x, factor, out=out)
        if spoil[0]:
            out[-1] = 7.0

    monkeypatch.setattr(torch, "mul", faulty)
    prepared = vector.prepare(case(cache=cache), "cpu")
    assert prepared.wrong() is None
    spoil[0] = True
    prepared.call()
    spoil[0] = False
    assert "1 wrong elements; the first one, 999, is 7" in str(prepared.wrong())


def test_a_timed_call_that_writes_a_part_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the check left is right: without the poison the other half would pass for written."""
    multiply, lazy = torch.mul, [False]

    def partly(x: Any, factor: float, out: Any) -> None:
        half = len(out) // 2 if lazy[0] else len(out)
        multiply(x[:half], factor, out=out[:half])

    monkeypatch.setattr(torch, "mul", partly)
    prepared = vector.prepare(case(), "cpu")
    assert prepared.wrong() is None
    lazy[0] = True
    prepared.call()
    lazy[0] = False
    assert "500 wrong elements" in str(prepared.wrong())


def test_an_operation_that_writes_nothing_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = vector.prepare(case(), "cpu")
    monkeypatch.setattr(torch, "mul", lambda x, factor, out: out)
    assert "1000 wrong elements" in str(prepared.wrong())


@pytest.mark.usefixtures("small_cache")
def test_cold_calls_rotate_and_hot_ones_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    monkeypatch.setattr(torch, "mul", lambda x, factor, out: seen.append(out.data_ptr()))
    for cache, wanted in (("hot", 1), ("cold", -(-4 * 65536 // 8000))):
        seen.clear()
        prepared = vector.prepare(case(cache=cache), "cpu")
        for _ in range(3 * wanted):
            prepared.call()
        assert len(set(seen)) == wanted
        assert seen[:wanted] == seen[wanted : 2 * wanted]


def test_what_cannot_be_made_cold_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    llc = [1 << 50]
    monkeypatch.setattr(buffers, "last_level_cache_bytes", lambda device: llc[0])
    with pytest.raises(Unsupported, match="half of the free memory"):
        vector.prepare(case(cache="cold"), "cpu")
    llc[0] = 1 << 25
    with pytest.raises(Unsupported, match="their headers would cost more"):
        vector.prepare(case(size=100, cache="cold"), "cpu")
    assert vector.prepare(case(size=100), "cpu").wrong() is None


def test_where_no_cache_is_listed_a_large_one_is_assumed(monkeypatch: pytest.MonkeyPatch) -> None:
    none = Missing("sysfs lists no CPU caches")
    monkeypatch.setattr(buffers, "last_level_cache_bytes", lambda device: none)
    monkeypatch.setattr(buffers, "_free_bytes", lambda device: 1 << 40)
    processors = "processor : 0\nphysical id : 0\nprocessor : 1\nphysical id : 1\n"
    host = FakeHost({"/proc/cpuinfo": processors})
    monkeypatch.setattr(buffers, "ThisMachine", lambda: host)
    assert buffers.num_sets({"cache": "cold"}, 1 << 20, "cpu") == 4 * 128
    assert buffers.conditions({"cache": "cold"}, "cpu") == {"assumed_cache_bytes": 128 << 20}
    assert buffers.conditions({"cache": "hot"}, "cpu") == {}
    assert buffers.num_sets({"cache": "cold"}, 1 << 30, "cuda:0") == 1
    monkeypatch.setattr(buffers, "last_level_cache_bytes", lambda device: 65536)
    assert vector.prepare(case(cache="cold"), "cpu").conditions == {}


def test_a_set_larger_than_the_caches_is_cold_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffers, "last_level_cache_bytes", lambda device: 1000)
    assert buffers.num_sets({"cache": "cold"}, 4000, "cpu") == 1
    assert buffers.num_sets({"cache": "cold"}, 3999, "cpu") == 2


def test_counts() -> None:
    bytes_of = [m.amount for m in BENCHMARK.metrics(case("add", 1000, dtype="bf16"))]
    assert bytes_of == [3 * 1000 * 2, 1000]
    assert [m.name for m in BENCHMARK.metrics(case())] == ["byte_rate", "flop_rate"]
    assert BENCHMARK.work(case("gelu", 10)).flops == 80
    assert BENCHMARK.memory(case(size=10)) == 80 + 320


@pytest.mark.parametrize(
    "wrong",
    [
        {"op": "divide"},
        {"dtype": "int8"},
        {"num_elements": 0},
        {"num_elements": 1.5},
        {"num_elements": 1 << 37},
        {"cache": "warm"},
        {"cache": None},
        {"m": 3},
    ],
)
def test_cases_that_are_none(wrong: dict[str, Any]) -> None:
    BENCHMARK.check(case())
    with pytest.raises(UsageError):
        BENCHMARK.check({**case(), **wrong})
