"""matmul: its cases, its counts, and a check that sees planted faults and raises no false alarm."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from runner_fakes import EMULATED, HOST, NATIVE, gpu
from trainrig.benchmarks.matmul import BENCHMARK
from trainrig.benchmarks.spec import Scope, benchmark
from trainrig.errors import UsageError
from trainrig.measure import matmul
from trainrig.measure.timing import Unsupported
from trainrig.record import Case
from trainrig.runner.plan import tasks_of

SHAPES = [(1, 1, 1), (1, 1, 7), (1, 257, 1), (257, 1, 257), (2, 2, 2), (33, 65, 129), (127, 3, 63)]
CPU_DTYPES = ("fp64", "fp32", "bf16", "fp16", "int8", "fp8")


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """A team of threads waits for its last member, which a busy test machine makes slow."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def case(dtype: str = "fp32", m: int = 33, k: int = 65, n: int = 129, **more: Any) -> Case:
    return {"dtype": dtype, "m": m, "k": k, "n": n, "cache": "hot", **more}


def product(dtype: str, shape: tuple[int, int, int], seed: int) -> tuple[Any, Any, Any, Any]:
    """Operands, their product and the generator, or a skip where this CPU lacks the operation."""
    generator = torch.Generator().manual_seed(seed)
    left, right = matmul._operands(torch, dtype, shape, "cpu", generator)
    return left, right, matmul._multiplier(torch, dtype, left, right)(), generator


@pytest.mark.parametrize("dtype", CPU_DTYPES)
def test_right_products_raise_no_alarm(dtype: str) -> None:
    seen = 0
    for shape in SHAPES:
        for seed in range(30):
            try:
                left, right, found, generator = product(dtype, shape, seed)
            except (RuntimeError, NotImplementedError):
                break  # int8 and fp8 want certain shapes
            assert matmul.wrong_answer(left, right, found, dtype, generator) is None, (shape, seed)
            seen += 1
    if seen == 0:
        pytest.skip(f"this CPU has no {dtype} matmul")


def zero_row(found: Any) -> None:
    found[5].zero_()


def zero_column(found: Any) -> None:
    found[:, 7].zero_()


def zero_tile(found: Any) -> None:
    found[:16, :16].zero_()


def swap_rows(found: Any) -> None:
    found[:2] = found[[1, 0]].clone()


def spoil_last_element(found: Any) -> None:
    """By twice the magnitude of an element, which is what a flipped exponent bit does."""
    found[-1, -1] += (2.0 * found.double().square().mean().sqrt()).to(found.dtype)


def plant_nan(found: Any) -> None:
    if found.dtype.is_floating_point:
        found[3, 4] = math.nan
    else:
        found[3, 4] += 1  # an integer is wrong by one


@pytest.mark.parametrize(
    "spoil", [zero_row, zero_column, zero_tile, swap_rows, spoil_last_element, plant_nan]
)
@pytest.mark.parametrize("dtype", ["fp64", "fp32", "bf16", "fp16", "int8"])
def test_planted_faults_are_seen(dtype: str, spoil: Any) -> None:
    for seed in range(5):
        try:
            left, right, found, generator = product(dtype, (33, 65, 129), seed)
        except (RuntimeError, NotImplementedError):
            pytest.skip(f"this CPU has no {dtype} matmul of that shape")
        spoil(found)
        assert matmul.wrong_answer(left, right, found, dtype, generator) is not None


def test_the_words_name_the_row() -> None:
    left, right, found, generator = product("fp32", (33, 65, 129), 0)
    found[21] += 1.0
    words = str(matmul.wrong_answer(left, right, found, "fp32", generator))
    assert "1 of 33 rows" in words
    assert "row 21" in words


def test_a_case_prepares_checks_and_runs() -> None:
    prepared = matmul.prepare(case(), "cpu")
    assert prepared.wrong() is None
    prepared.call()
    assert prepared.wrong() is None


def test_a_multiplication_that_goes_wrong_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a device would: the library's result, with one tile left out."""
    multiply = torch.matmul

    def faulty(left: Any, right: Any, out: Any) -> Any:
        multiply(left, right, out=out)
        out[:8, :8] = 0.0
        return out

    monkeypatch.setattr(torch, "matmul", faulty)
    assert "wrong" in str(matmul.prepare(case(), "cpu").wrong())


def test_tf32_is_not_for_a_cpu() -> None:
    with pytest.raises(Unsupported, match="tensor cores"):
        matmul.prepare(case("tf32"), "cpu")


@pytest.mark.parametrize(
    "message",
    ["'addmm' not implemented for this", "could not create a primitive descriptor for the matmul"],
)
def test_an_operation_that_torch_lacks_is_unsupported(
    monkeypatch: pytest.MonkeyPatch, message: str
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise RuntimeError(f"{message}\nand more")

    monkeypatch.setattr(torch, "matmul", refuse)
    with pytest.raises(Unsupported, match=f"{message}$"):
        matmul.prepare(case(), "cpu")


def test_no_memory_is_not_taken_for_no_support(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr(torch, "matmul", refuse)
    with pytest.raises(RuntimeError, match="allocate"):
        matmul.prepare(case(), "cpu")


def test_counts() -> None:
    assert BENCHMARK.work(case("bf16", 2, 3, 5)).flops == 60
    assert BENCHMARK.work(case("bf16", 2, 3, 5)).num_bytes == 2 * (6 + 15 + 10)
    assert BENCHMARK.work(case("int8", 2, 3, 5)).num_bytes == 6 + 15 + 4 * 10
    assert [m.unit for m in BENCHMARK.metrics(case("int8"))] == ["OP/s"]
    assert [m.name for m in BENCHMARK.metrics(case())] == ["flop_rate"]
    assert BENCHMARK.memory(case("fp16", 8, 8, 8)) == 3 * 64 * 2 + 64 * 8


@pytest.mark.parametrize(
    "wrong",
    [
        {"dtype": "fp4"},
        {"dtype": None},
        {"m": 0},
        {"k": -1},
        {"n": 2.0},
        {"m": True},
        {"m": 65537},
        {"colour": "red"},
    ],
)
def test_cases_that_are_none(wrong: dict[str, Any]) -> None:
    BENCHMARK.check(case(sustained=True))
    with pytest.raises(UsageError):
        BENCHMARK.check({**case(), **wrong})


def test_families_are_found_by_name() -> None:
    assert benchmark("matmul") is BENCHMARK
    assert {benchmark(name).name for name in ("matmul", "vector", "copy")} == {
        "matmul",
        "vector",
        "copy",
    }
    with pytest.raises(UsageError, match="unknown benchmark 'matmull'"):
        benchmark("matmull")


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_timed_calls_that_write_nothing_are_seen(
    dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = matmul.prepare(case(dtype), "cpu")
    assert prepared.wrong() is None
    monkeypatch.setattr(torch, "matmul", lambda left, right, out: out)
    prepared.call()
    assert "NaN" in (prepared.wrong() or "")


def test_garbage_that_the_last_timed_call_left_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = matmul.prepare(case("fp32"), "cpu")
    assert prepared.wrong() is None
    monkeypatch.setattr(torch, "matmul", lambda left, right, out: out.fill_(1.0))
    prepared.call()
    assert "rows of the product are wrong" in (prepared.wrong() or "")


def test_an_integer_product_that_is_not_written_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = torch._int_mm(torch.ones(32, 64, dtype=torch.int8), torch.ones(64, 32, dtype=torch.int8))
    monkeypatch.setattr(torch, "_int_mm", lambda left, right: kept)
    prepared = matmul.prepare(case("int8", 32, 64, 32), "cpu")
    prepared.wrong()
    prepared.call()
    assert prepared.wrong() is not None


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("budget", [30.0, 240.0])
def test_what_a_processor_emulates_is_one_size_after_all_else(native: bool, budget: float) -> None:
    has = NATIVE if native else EMULATED
    planned = tasks_of(
        BENCHMARK,
        replace(HOST, arithmetic=has),
        BENCHMARK.qualify(Scope(is_gpu=False, budget=budget, arithmetic=has)),
    )
    emulated = [task for task in planned if "emulated" in task.planned.notes]
    assert [task.case["dtype"] for task in emulated] == (["fp16"] if native else ["bf16", "fp16"])
    assert planned[-len(emulated) :] == tuple(emulated)
    assert not any(task.planned.required for task in emulated)
    assert all(task.spec.work(task.case).flops <= 2 * 256**3 for task in emulated)
    card = tasks_of(BENCHMARK, gpu(0), BENCHMARK.qualify(Scope(is_gpu=True, budget=budget)))
    assert sum(task.case["dtype"] == "fp16" for task in card) > 3
    assert not any("emulated" in task.planned.notes for task in card)
