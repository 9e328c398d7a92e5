"""burn: heavy work for minutes, every result compared; what is asked is whether all of it is right.

Definition: FLOPs, or bytes written and read, over the wall time of the work with its checks.  Per
device.  ``matmul``: one product (m, k)·(k, n) again and again, each result compared bit for bit
with the first, that one with fp64 (`measure.burn_matmul`).  ``step``: training steps of one block
that must come out the same to the bit (`measure.burn_step`).  ``memory``: patterns over nearly all
free memory (`measure.burn_memory`).  ``cpu``: every processor by itself (`measure.burn_cores`);
``stress-ng``: its verified stressors, where it is installed.

`trainrig burn` runs them for as long as it is told and judges by its own rules
(`analysis.judge_burn`); a qualification runs the products for some seconds as one of its cases.
"""

from __future__ import annotations

from trainrig import workload
from trainrig.benchmarks import spec
from trainrig.record import Case

MATMUL, STEP, MEMORY, CORES, STRESS = "matmul", "step", "memory", "cpu", "stress-ng"
MODES = (MATMUL, STEP, MEMORY, CORES)
"""Modes that ``--mode`` accepts."""
DTYPES = ("bf16", "fp16", "tf32", "fp32", "fp64")
BY_DTYPE = (MATMUL, STEP)
"""Modes that compute in a dtype."""
SHARES = {MATMUL: 0.45, STEP: 0.2, MEMORY: 0.2, CORES: 0.15}
"""Share of the burn's time for each mode when all modes run."""
LEAST_MEMORY = 0.9
"""Share of the memory to be tested that must have been compared.

A bad cell at a random place is missed with one minus this share as the chance.  All of it is asked
of nobody: what is free shrinks between the look and the allocation.
"""
WRITING_SHARE = 0.25
"""Share of the memory part's time in which its first pass writes: reading takes about as long."""
_QUALIFY_BUDGET = 120.0
_SIZE = {False: 2048, True: 8192}


def burn_case(mode: str, dtype: str | None = None) -> Case:
    """Return a burn's case; sizes are tuned to the device and recorded as conditions."""
    return {"mode": mode} if dtype is None else {"mode": mode, "dtype": dtype}


def _work(case: Case) -> workload.Work:
    if not {"m", "k", "n"} <= case.keys():
        return workload.Work(flops=0, num_bytes=0)
    m, k, n = (spec.size_in(case, axis) for axis in "mkn")
    return workload.matmul(m, k, n, str(case["dtype"]))


def metric_of(mode: str) -> tuple[str, str]:
    """Name and unit of a mode's rate."""
    if mode == STRESS:
        return "bogo_op_rate", "bogo-op/s"
    return ("byte_rate", "B/s") if mode == MEMORY else ("flop_rate", "FLOP/s")


def _metrics(case: Case) -> tuple[spec.Metric, ...]:
    name, unit = metric_of(str(case.get("mode")))
    work = _work(case)
    amount = float(work.num_bytes if name == "byte_rate" else work.flops)
    formula = "counted work / wall time, checks included"
    return (
        spec.Metric(
            name=name, unit=unit, amount=amount, formula=formula, is_claimed=_is_peak(case)
        ),
    )


def _is_peak(case: Case) -> bool:
    """Return whether a data sheet's peak bounds the case."""
    return case.get("mode") == MATMUL and "dtype" in case


def _memory(case: Case) -> int:
    """Operands, three results, sums of rows."""
    if not {"m", "k", "n"} <= case.keys():
        return 0
    m, k, n = (spec.size_in(case, axis) for axis in "mkn")
    width = workload.dtype_bytes(str(case["dtype"]))
    return int(width * (m * k + k * n + 3 * m * n)) + 256 * 8 * m


def _qualify(scope: spec.Scope) -> list[spec.PlannedCase]:
    if scope.beside_gpus or scope.unusable or scope.budget < _QUALIFY_BUDGET:
        return []
    size = _SIZE[scope.is_gpu]
    dtype = "bf16" if scope.is_gpu else "fp32"
    case: Case = {**burn_case(MATMUL, dtype), "m": size, "k": size, "n": size}
    seconds = min(10.0, scope.budget / 48.0)
    return [spec.PlannedCase(case=case, step="short burn", required=True, seconds=seconds)]


def _label(case: Case) -> str:
    if "mode" not in case:
        return ""
    words = [str(case["mode"]), *([str(case["dtype"])] if "dtype" in case else [])]
    if "m" in case:
        words.append(" × ".join(str(case[axis]) for axis in "mkn" if axis in case))
    return " ".join(words)


BENCHMARK = spec.Benchmark(
    name="burn",
    version=1,
    title="heavy work whose every result is compared",
    order=15,
    module="trainrig.measure.burn",
    example={**burn_case(MATMUL, "fp32"), "m": 8, "k": 8, "n": 8},
    fields={"mode": (*MODES, STRESS)},
    optional={"dtype": DTYPES, **dict.fromkeys("mkn", 65536)},
    work=_work,
    metrics=_metrics,
    memory=_memory,
    workers=lambda _: 1,
    cost=spec.CaseCost(fixed=0.5, fill=(3e8, 3e10)),
    qualify=_qualify,
    weight=1.0,
    verb="trainrig burn",
    label=_label,
    sizes=frozenset(["m", "k", "n"]),
    claim=lambda case: spec.peak_claim(case) if _is_peak(case) and "m" not in case else None,
    follows_clock=True,
    is_large=lambda _: False,
)
