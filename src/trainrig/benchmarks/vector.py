"""vector: elementwise operations, rated by the bytes they must move.

Definition: one torch operation from preallocated inputs into a preallocated
output, all of ``num_elements`` contiguous elements of one dtype: scale is
y = 1.25·x, add is z = x + y, gelu is the tanh form.  Byte rate: counted bytes
(each input read once, the output written once; what a cache reads before it
writes is not counted) over the median time of a call.  FLOP rate: 1, 1 and (by
convention) 8 FLOPs an element over the same time.  Per device.

``cache: hot`` uses the same buffers in every call, so that what fits in a cache
stays there; ``cold`` rotates through sets of them (`measure.buffers`).
"""

from __future__ import annotations

from trainrig import workload
from trainrig.benchmarks.spec import (
    CHECK_ELEMENTS,
    MEMORY,
    MEMORY_CLAIM,
    Benchmark,
    Claim,
    LevelRule,
    Metric,
    PlannedCase,
    Role,
    Scope,
    Selection,
    check_choice,
    check_fields,
    check_options,
    count_of,
)
from trainrig.record import Case
from trainrig.units import binary, parse_count

DTYPES = ("fp64", "fp32", "bf16", "fp16")
OPS = tuple(workload.VECTOR_OPS)
CACHES = ("hot", "cold")
MAX_ELEMENTS = 1 << 36
FIELDS = frozenset(["op", "dtype", "num_elements", "cache"])

_SIZES = (1 << 24, 1 << 22, 1 << 20, 1 << 18, 1 << 16, 1 << 14)
_MOST_SELECTED = 1 << 33


def vector_case(op: str, num_elements: int, cache: str, dtype: str = "fp32") -> Case:
    """A vector case."""
    return {"op": op, "dtype": dtype, "num_elements": num_elements, "cache": cache}


def _check(case: Case) -> None:
    check_choice("vector", case, "op", OPS)
    check_choice("vector", case, "dtype", DTYPES)
    count_of("vector", case, "num_elements", MAX_ELEMENTS)
    check_choice("vector", case, "cache", CACHES)
    check_fields("vector", case, FIELDS)


def num_elements(case: Case) -> int:
    """Elements of a checked case."""
    return int(str(case["num_elements"]))


def _work(case: Case) -> workload.Work:
    return workload.vector(str(case["op"]), num_elements(case), str(case["dtype"]))


def _metrics(case: Case) -> tuple[Metric, ...]:
    work = _work(case)
    return (
        Metric(
            name="byte_rate",
            unit="B/s",
            amount=work.num_bytes,
            formula="counted bytes / time",
            is_claimed=True,
        ),
        Metric(name="flop_rate", unit="FLOP/s", amount=work.flops, formula="counted FLOPs / time"),
    )


def _memory(case: Case) -> int:
    """One set and the check's fp64 copies; a cold case takes more where there is room."""
    return _work(case).num_bytes + 4 * 8 * min(num_elements(case), CHECK_ELEMENTS)


def _planned(case: Case) -> PlannedCase:
    required = case["op"] == "scale" and case["cache"] == "cold"
    return PlannedCase(case=case, step=f"{case['op']} vector", required=required)


def _qualify(scope: Scope) -> list[PlannedCase]:
    """Cold at the largest size (memory), then hot over all sizes (the caches' curve)."""
    if scope.beside_gpus:
        return []
    cases = [vector_case(op, _SIZES[0], "cold") for op in ("scale", "add", "gelu")]
    cases += [vector_case(op, size, "hot") for size in _SIZES for op in ("scale", "gelu")]
    return [_planned(case) for case in cases]


def _select(selection: Selection) -> list[PlannedCase]:
    if not (selection.dtypes or selection.sizes or selection.ops):
        return []
    check_options("vector", "--op", selection.ops, OPS)
    sizes = [parse_count(size, _MOST_SELECTED) for size in selection.sizes or ("65536", "16777216")]
    return [
        PlannedCase(
            case=vector_case(op, size, cache, dtype), step=f"{dtype} {op} vector", required=True
        )
        for op in selection.ops or ("scale",)
        for dtype in selection.dtypes or ("fp32",)
        for size in sizes
        for cache in CACHES
    ]


def _label(case: Case) -> str:
    if not isinstance(elements := case.get("num_elements"), int):
        return ""
    return f"{case.get('op')} {case.get('dtype')}, {binary(elements)} elements, {case.get('cache')}"


def _claim(case: Case) -> Claim | None:
    return (MEMORY_CLAIM, {}) if is_cold(case) else None


def is_cold(case: Case) -> bool:
    """Whether the data has to come from the device's own memory."""
    return case.get("cache") == "cold"


BENCHMARK = Benchmark(
    name="vector",
    version=1,
    title="elementwise operations, by the bytes they move",
    order=20,
    module="trainrig.measure.vector",
    role=Role.STREAM,
    example=vector_case("add", 8, "hot"),
    check=_check,
    work=_work,
    metrics=_metrics,
    memory=_memory,
    qualify=_qualify,
    weight=3.0,
    options={
        "dtype": " ".join(DTYPES),
        "size": "elements: 65536, 16Mi",
        "op": ", ".join(OPS),
        "device": "",
    },
    select=_select,
    label=_label,
    sizes=frozenset(["num_elements"]),
    levels=(
        LevelRule(
            quantity=MEMORY,
            name="Best cold stream",
            order=10,
            fits=lambda case, count: count == 1 and is_cold(case),
        ),
        LevelRule(
            quantity=MEMORY,
            name="Best elementwise operation",
            order=20,
            fits=lambda case, count: count == 1 and is_cold(case),
        ),
    ),
    claim=_claim,
    is_large=is_cold,
)
