"""FLOPs and bytes against counts by hand and by loop."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainrig import workload
from trainrig.errors import UsageError

_SIZES = st.integers(1, 12)


@given(_SIZES, _SIZES, _SIZES)
def test_a_matmul_is_one_multiply_and_one_add_for_each_triple(m: int, k: int, n: int) -> None:
    counted = sum(2 for _ in range(m) for _ in range(k) for _ in range(n))
    assert workload.matmul(m, k, n, "fp32").flops == counted


@pytest.mark.parametrize(
    ("dtype", "num_bytes"),
    [
        ("fp64", 8 * (6 + 12 + 8)),
        ("tf32", 4 * (6 + 12 + 8)),
        ("bf16", 2 * (6 + 12 + 8)),
        ("int8", 6 + 12 + 4 * 8),  # accumulates in int32
        ("fp8", 6 + 12 + 2 * 8),  # yields bf16
    ],
)
def test_a_matmul_reads_both_operands_and_writes_the_result_once(
    dtype: str, num_bytes: int
) -> None:
    assert workload.matmul(2, 3, 4, dtype).num_bytes == num_bytes


@pytest.mark.parametrize(
    ("op", "flops", "num_bytes"), [("scale", 100, 400), ("add", 100, 600), ("gelu", 800, 400)]
)
def test_a_vector_operation_counts_its_arrays(op: str, flops: int, num_bytes: int) -> None:
    assert workload.vector(op, 100, "fp16") == workload.Work(flops=flops, num_bytes=num_bytes)


@pytest.mark.parametrize(
    ("direction", "num_bytes"),
    [
        ("h2d", 64),  # what crosses the link, once
        ("d2h", 64),
        ("d2d", 128),
        ("read", 64),
        ("write", 64),
        ("copy", 128),
        ("triad", 192),
    ],
)
def test_a_copy_counts_what_its_rating_counts(direction: str, num_bytes: int) -> None:
    assert workload.copy(direction, 64).num_bytes == num_bytes


def test_triad_multiplies_and_adds_once_for_each_double() -> None:
    assert workload.copy("triad", 80).flops == 20
    assert workload.copy("copy", 80).flops == 0


@pytest.mark.parametrize(
    "ask",
    [
        lambda: workload.dtype_bytes("fp13"),
        lambda: workload.matmul(1, 1, 1, "float32"),
        lambda: workload.vector("sin", 1, "fp32"),
        lambda: workload.copy("sideways", 1),
    ],
)
def test_the_unknown_is_refused_with_what_is_known(ask: object) -> None:
    assert callable(ask)
    with pytest.raises(UsageError, match="unknown") as caught:
        ask()
    assert caught.value.hint is not None
    assert caught.value.hint.startswith("one of: ")
