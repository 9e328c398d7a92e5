"""matmul: how fast (m,k)·(k,n) goes, by dtype and shape.

Definition: `torch.matmul` of two dense random matrices into a fresh or reused
output, both operands row-major in the dtype of the case (on a GPU the second one
of fp8 and int8 column-major), the same operands in every call (``cache: hot``);
2mkn FLOPs over the median time of a call.  Per device.  tf32 is fp32 storage
with the tensor cores' 10-bit mantissa allowed; fp32 forbids it.  int8 accumulates
in int32 (`torch._int_mm`), fp8 is e4m3 with unit scales into bf16
(`torch._scaled_mm`).  ``sustained``: a long run, what remains when the chip is warm.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from trainrig import workload
from trainrig.benchmarks import spec
from trainrig.catalog.arithmetic import HALF
from trainrig.record import Case

DTYPES = ("fp64", "fp32", "tf32", "bf16", "fp16", "int8", "fp8")
MAX_SIZE = 65536
LARGE = 8192
"""Smallest m, k and n of a product that is judged."""
FILLING = 2048
"""Smallest m, k and n of a published product that counts: it filled the chip of its time."""
UNVERIFIED = "unverified on hardware"
"""Said of what no machine of several GPUs has shown to work yet."""

_CPU_SIZES = (2048, 512, 1024, 256, 128, 4096)
_SMALL_CPU_SIZES = (512, 1024, 2048)
_EMULATED_SIZE = 256
_GPU_SIZES = (8192, 4096, 2048, 1024, 512, 128, 16384)
_LARGEST = (32768, ("bf16", "fp16", "tf32"))
"""Last on a GPU, in types whose products of that size take about a second."""
_GPU_DTYPES = ("bf16", "fp16", "tf32", "fp32", "fp8", "int8", "fp64")
# Sizes that load a device: what runs there speaks for the device, smaller ones for launches.
_LOADING = {False: frozenset([512, 1024, 2048, 4096]), True: frozenset([8192, 16384])}
SUSTAINED_BUDGET = 60.0
"""Smallest budget in seconds with which a qualification includes a sustained run."""
_WARM = 0.1
"""Largest share of a short run's rate that is lost to heat and leakage."""


def matmul_case(dtype: str, m: int, k: int | None = None, n: int | None = None) -> Case:
    """Return a matmul case; square unless all three sizes are given."""
    return {"dtype": dtype, "m": m, "k": k or m, "n": n or m, "cache": "hot"}


def shape(case: Case) -> tuple[int, int, int]:
    """Return (m, k, n) of a checked case."""
    return spec.size_in(case, "m"), spec.size_in(case, "k"), spec.size_in(case, "n")


def square_size(case: Case) -> int | None:
    """n of an n×n×n matmul; None for other shapes."""
    m, k, n = case.get("m"), case.get("k"), case.get("n")
    return m if isinstance(m, int) and m == k == n else None


def _work(case: Case) -> workload.Work:
    return workload.matmul(*shape(case), str(case["dtype"]))


def _metrics(case: Case) -> tuple[spec.Metric, ...]:
    unit = "OP/s" if case["dtype"] == "int8" else "FLOP/s"
    return (spec.flop_rate(_work(case), "2·m·k·n / time", unit),)


def _memory(case: Case) -> int:
    """Operands, result, and the fp64 copies that the check makes one at a time."""
    m, k, n = shape(case)
    return _work(case).num_bytes + 8 * max(m * k, k * n, m * n)


# ---- what is run


def _qualify(scope: spec.Scope) -> list[spec.PlannedCase]:
    if scope.beside_gpus:
        return []
    emulated: list[spec.PlannedCase] = []
    if scope.is_gpu:
        cases = _at_sizes(scope, _GPU_DTYPES, _GPU_SIZES, {"fp16", "fp32"})
        if not scope.is_small:
            cases += _at_sizes(scope, _LARGEST[1], _LARGEST[:1], set())
    else:
        native = scope.arithmetic.trained_in
        sizes = _SMALL_CPU_SIZES if scope.is_small else _CPU_SIZES
        # How fast a CPU is at the others is anyone's guess, so that the small sizes come first
        # and tell what the large ones would cost.
        cases = _at_sizes(scope, native, sizes, set(native))
        cases += _at_sizes(scope, ("int8", "fp64"), sorted(sizes), set())
        # A hundred times slower than fp32, and the slower the larger: one size, after all else.
        emulated = [
            _planned(dtype, _EMULATED_SIZE, required=False) for dtype in HALF if dtype not in native
        ]
    if not scope.is_gpu or scope.budget < SUSTAINED_BUDGET:
        return [*cases, *emulated]
    required = [planned for planned in cases if planned.required]
    claimed = [planned for planned in required if planned.case["dtype"] in scope.claimed_dtypes]
    first_required = (claimed or required)[0]  # only what the data sheet states can be judged
    sustained = spec.PlannedCase(
        case={**first_required.case, "sustained": True},
        step="sustained matmul",
        required=True,
        seconds=min(60.0, scope.budget / 12.0),
    )
    return [*cases, sustained, *emulated]


def _at_sizes(
    scope: spec.Scope, dtypes: Sequence[str], sizes: Sequence[int], required: set[str]
) -> list[spec.PlannedCase]:
    """Plan all dtypes at the first size, then at the second, and so on.

    Of a required dtype the sizes that load the device are required.
    """
    loading = _LOADING[scope.is_gpu]
    return [
        _planned(dtype, size, required=dtype in required and size in loading)
        for size in sizes
        for dtype in dtypes
    ]


def _planned(dtype: str, *sizes: int, required: bool = True) -> spec.PlannedCase:
    case = matmul_case(dtype, *sizes)
    return spec.PlannedCase(case=case, step=f"{dtype} matmul", required=required)


def _together() -> list[spec.PlannedCase]:
    """Plan the largest product on all GPUs at once: they share power, air and PCIe."""
    return [replace(_planned("fp16", _GPU_SIZES[0]), notes={"caveat": UNVERIFIED})]


def _select(selection: spec.Selection) -> list[spec.PlannedCase]:
    spec.check_options("matmul", "--dtype", selection.dtypes, DTYPES)
    hint = "4096, or m,k,n as 4096x1024x8192"
    sizes = selection.sizes or ("1024", "2048", "4096")
    shapes = [spec.sizes_of(size, (1, 3), MAX_SIZE, hint) for size in sizes]
    return [
        _planned(dtype, *sizes)
        for sizes in shapes
        for dtype in selection.dtypes or selection.arithmetic.trained_in
    ]


# ---- what is shown


def _label(case: Case) -> str:
    if not {"m", "k", "n"} <= case.keys():
        words = [str(case["dtype"])] if "dtype" in case else []
        words += [f"{case['accumulate']} accumulation"] if "accumulate" in case else []
        return ", ".join(words)
    sizes = " × ".join(str(case[axis]) for axis in ("m", "k", "n"))
    description = " ".join([str(case["dtype"]), sizes] if "dtype" in case else [sizes])
    return f"{description}{', sustained' if case.get('sustained') else ''}"


def _is_of_size(least_size: int, case: Case) -> bool:
    return all(spec.number_in(case, axis) >= least_size for axis in ("m", "k", "n"))


BENCHMARK = spec.Benchmark(
    name="matmul",
    version=1,
    title="products of two matrices, by dtype and shape",
    order=10,
    module="trainrig.measure.matmul",
    role=spec.Role.PRODUCT,
    example={**matmul_case("fp32", 8), "sustained": True},
    fields={"dtype": DTYPES, **dict.fromkeys("mkn", MAX_SIZE)},
    optional={"cache": ("hot",), "sustained": (True, False)},
    work=_work,
    metrics=_metrics,
    memory=_memory,
    workers=lambda case: 1 if case.get("sustained") else spec.WORKERS,
    cost=spec.CaseCost(fill=(3e8, 3e10)),  # normal values are drawn, and the check computes in fp64
    qualify=_qualify,
    qualify_together=_together,
    weight=5.0,
    options={
        "dtype": " ".join(DTYPES),
        "size": "4096, or 4096x1024x8192 (m,k,n)",
        "peak": "search for the shape with the highest rate",
        "device": "",
    },
    select=_select,
    search="trainrig.runner.matmul_search",
    remeasure_options=lambda case: (
        f"--dtype {case['dtype']}" if case.get("dtype") in DTYPES else ""
    ),
    label=_label,
    sizes=frozenset(["m", "k", "n"]),
    levels=(
        spec.LevelRule(
            quantity=spec.COMPUTE,
            name="Best matmul",
            order=10,
            as_ceiling="what its matmuls reach",
            fits=lambda case, count: count == 1 and not case.get("sustained"),
        ),
        spec.LevelRule(
            quantity=spec.COMPUTE,
            name="Sustained matmul",
            order=20,
            fits=lambda case, _: bool(case.get("sustained")),
        ),
        spec.LevelRule(
            quantity=spec.COMPUTE,
            name="Matmul, all GPUs at once",
            order=30,
            fits=lambda _, count: count > 1,
        ),
    ),
    claim=spec.peak_claim,
    follows_clock=True,
    is_large=lambda case: _is_of_size(LARGE, case),
    fills_chip=lambda case: _is_of_size(FILLING, case),
    slower=lambda case: _WARM if case.get("sustained") else 0.0,
)
