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
from trainrig.benchmarks import spec
from trainrig.record import Case
from trainrig.units import binary, parse_count

DTYPES = ("fp64", "fp32", "bf16", "fp16")
OPS = tuple(workload.VECTOR_OPS)
CACHES = ("hot", "cold")
MAX_ELEMENTS = 1 << 36

_SIZES = (1 << 24, 1 << 22, 1 << 20, 1 << 18, 1 << 16, 1 << 14)
_MOST_SELECTED = 1 << 33


def vector_case(op: str, num_elements: int, cache: str, dtype: str = "fp32") -> Case:
    """Return a vector case."""
    return {"op": op, "dtype": dtype, "num_elements": num_elements, "cache": cache}


def sentinel_case() -> Case:
    """Return the case measured repeatedly to see whether a machine changes; beyond caches."""
    return vector_case("scale", _SIZES[0], "hot")


def _work(case: Case) -> workload.Work:
    num_elements = spec.size_in(case, "num_elements")
    return workload.vector(str(case["op"]), num_elements, str(case["dtype"]))


def _metrics(case: Case) -> tuple[spec.Metric, ...]:
    work = _work(case)
    flops = spec.Metric(
        name="flop_rate", unit="FLOP/s", amount=work.flops, formula="counted FLOPs / time"
    )
    return spec.byte_rate(work), flops


def _memory(case: Case) -> int:
    """Return the bytes of one buffer set and the check's fp64 copies; cold cases may use more."""
    checked = min(spec.size_in(case, "num_elements"), spec.CHECK_ELEMENTS)
    return _work(case).num_bytes + 4 * 8 * checked


def _qualify(scope: spec.Scope) -> list[spec.PlannedCase]:
    """Cold at the largest size (memory), then hot over all sizes (the caches' curve)."""
    if scope.beside_gpus:
        return []
    cases = [vector_case(op, _SIZES[0], "cold") for op in ("scale", "add", "gelu")]
    cases += [vector_case(op, size, "hot") for size in _SIZES for op in ("scale", "gelu")]
    return [
        spec.PlannedCase(
            case=case,
            step=f"{case['op']} vector",
            required=case["op"] == "scale" and is_cold(case),
        )
        for case in cases
    ]


def _select(selection: spec.Selection) -> list[spec.PlannedCase]:
    spec.check_options("vector", "--op", selection.ops, OPS)
    sizes = [parse_count(size, _MOST_SELECTED) for size in selection.sizes or ("65536", "16777216")]
    cases = [
        vector_case(op, size, cache, dtype)
        for op in selection.ops or ("scale",)
        for dtype in selection.dtypes or ("fp32",)
        for size in sizes
        for cache in CACHES
    ]
    return [
        spec.PlannedCase(case=case, step=f"{case['dtype']} {case['op']} vector", required=True)
        for case in cases
    ]


def _label(case: Case) -> str:
    if not isinstance(elements := case.get("num_elements"), int):
        return ""
    kernel = " ".join(str(case[name]) for name in ("op", "dtype") if name in case)
    words = [kernel, f"{binary(elements)} elements", str(case.get("cache", ""))]
    return ", ".join(filter(None, words))


def is_cold(case: Case) -> bool:
    """Return whether the data has to come from the device's own memory."""
    return case.get("cache") == "cold"


def _is_large(case: Case) -> bool:
    """Cold, and long against a launch; published rates are often without their size."""
    elements = spec.number_in(case, "num_elements")
    return is_cold(case) and ("num_elements" not in case or elements >= _SIZES[0])


BENCHMARK = spec.Benchmark(
    name="vector",
    version=1,
    title="elementwise operations, by the bytes they move",
    order=20,
    module="trainrig.measure.vector",
    role=spec.Role.STREAM,
    example=vector_case("add", 8, "hot"),
    fields={"op": OPS, "dtype": DTYPES, "num_elements": MAX_ELEMENTS, "cache": CACHES},
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
    levels=tuple(
        spec.LevelRule(
            quantity=spec.MEMORY,
            name=name,
            order=order,
            fits=lambda case, count: count == 1 and is_cold(case),
        )
        for order, name in ((10, "Best cold stream"), (20, "Best elementwise operation"))
    ),
    claim=lambda case: (spec.MEMORY_CLAIM, {}) if is_cold(case) else None,
    is_large=_is_large,
)
