"""A burn's checks on GPUs that a virtual clock stands in for: right device, right streams."""

from __future__ import annotations

from collections import deque

import pytest
import torch

from fake_cuda import FakeCuda
from trainrig.measure.burn import make_check, reset_torch
from trainrig.measure.burn_matmul import Products
from trainrig.measure.burn_memory import MemoryPatterns, usual_bytes

SHAPE = (32, 64, 32)


@pytest.mark.parametrize("dtype", ["bf16", "tf32", "fp64"])
def test_products_and_their_sums_work_on_their_own_gpu(dtype: str) -> None:
    with FakeCuda(2) as cuda:
        products = Products(dtype, "cuda:1", SHAPE)
        cuda.calls.clear()
        done = products.run(0.0)
        assert (done.num_checked, done.num_errors) == (1, 0)
        again = products.run(0.05)
        assert again.num_errors == 0
        assert again.num_checked >= 1
        assert {call.device for call in cuda.calls} == {1}
        assert not cuda.busy(1), "a slice ends when its work is done"
        names = [call.name for call in cuda.calls]
        assert names.count("matmul") >= 2
        assert names.count("sum") >= names.count("matmul")


def test_sums_run_beside_the_next_product() -> None:
    """In a stream of their own: the next product does not wait for them."""
    with FakeCuda(1, work=lambda call: 1.0 if call.name in ("matmul", "sum") else 0.0) as cuda:
        products = Products("bf16", "cuda:0", SHAPE)
        products._unit_time.unit_s = 1.0
        start = cuda.now
        products.run(8.0)
        took = cuda.now - start
    # Eight products of 1 s, the last one's sum, two operands' sums; one after the other 16 s.
    assert took < 8.0 + 1.0 + 2.0 + 2.0


def test_a_result_that_changes_on_a_gpu_is_named() -> None:
    with FakeCuda(1):
        products = Products("bf16", "cuda:0", SHAPE)
        products.run(0.0)
        products._right.view(torch.int16)[3, 4] ^= 1
        done = products.run(0.0)
    assert done.num_errors >= 1
    assert "operand B changed in memory: row 3, bit 0 (the lowest)" in done.errors[0]


def test_tf32_is_allowed_for_its_own_products_alone() -> None:
    with FakeCuda(1) as cuda:
        Products("tf32", "cuda:0", SHAPE)
        Products("fp32", "cuda:0", SHAPE)
        rounded = [call.tf32 for call in cuda.calls if call.name == "matmul"]
    assert True in rounded
    assert rounded[-1] is False


def test_memory_takes_nearly_all_that_is_free() -> None:
    assert 0.94 < usual_bytes("cuda:0", 24 << 30) / (24 << 30) < 0.96
    assert 1 << 29 <= usual_bytes("cuda:0", 1 << 30) < (1 << 30) - (1 << 27)


def test_memory_leaves_room_for_comparing(monkeypatch: pytest.MonkeyPatch) -> None:
    phase = {"mode": "memory", "dtype": None, "seconds": 0.0, "chunk": 1 << 16}
    with FakeCuda(1, memory_bytes=1 << 20) as cuda:
        check = make_check(phase, "cuda:0")
        assert isinstance(check, MemoryPatterns)
        assert check.held == 1 << 19
        # A list of all calls would hold what they made.
        monkeypatch.setattr(cuda, "calls", deque(maxlen=1))
        for _ in range(8):
            assert check.run(0.0).num_errors == 0
        assert check.finish().num_errors == 0
        assert {call.device for call in cuda.calls} == {0}
    reset_torch()
