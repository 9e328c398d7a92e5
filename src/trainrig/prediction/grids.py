"""The tables of notebooks for a machine that nobody has here: products, vectors and layers by size.

Answers predicted records in the benchmarks' own cases, so that they stand in the same tables as
measured and published ones.  A product and a vector take what `Rates` says of one call.  A layer
takes the longer of its device's and its host's time, each direction by itself, of the kernels that
the stack runs (`workload.kernels`), its weights in the type that it computes in; it is timed alone,
so that of a step's constants (`step.calibration`) only the launches of Python and autograd count.
Nothing is fitted to published layers: `layer_error` says how far off they are.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from trainrig.benchmarks.layer import BENCHMARK as LAYER
from trainrig.benchmarks.layer import (
    CODES,
    DTYPES,
    LAYERS,
    PARTS,
    PASSES,
    code_framework,
    layer_case,
    layer_shape,
    layer_tokens,
    layer_work,
    part_case,
)
from trainrig.benchmarks.matmul import BENCHMARK as MATMUL
from trainrig.benchmarks.matmul import matmul_case
from trainrig.benchmarks.spec import Benchmark, Role, role_of
from trainrig.benchmarks.vector import BENCHMARK as VECTOR
from trainrig.benchmarks.vector import OPS, vector_case
from trainrig.catalog.chip import peak
from trainrig.catalog.lookup import find_chip
from trainrig.catalog.published import published_records
from trainrig.errors import UsageError, unknown
from trainrig.prediction.rates import Rates
from trainrig.prediction.rates.from_chip import rates_of_chip
from trainrig.prediction.scenario import has_flash
from trainrig.prediction.step.calibration import fitted
from trainrig.prediction.step.compute import operator_times
from trainrig.record import Case, Kind, Record
from trainrig.stats import median
from trainrig.workload.blocks import block
from trainrig.workload.layout import Layout
from trainrig.workload.layout.groups import KERNELS

MATMUL_SIZES = (128, 512, 1024, 2048, 4096, 8192, 16384, 32768)
VECTOR_SIZES = tuple(1 << power for power in (16, 18, 20, 22, 24, 26))
BATCHES = (2, 4, 8, 16, 32, 64, 128)
SEQUENCES = (128, 512)
_BOTH = "forward+backward"


@dataclass(frozen=True, slots=True, kw_only=True)
class GridError:
    """Errors of predicted layers against published ones."""

    median: float
    """Median of the absolute relative error."""
    inside: float
    """The error that nine in ten stay below."""
    num: int


OF_ONE_CALL = {Role.PRODUCT: 1.1, Role.STREAM: 1.1, Role.BLOCK: 0.3}
"""Standard deviation, as a logarithm, of what a call takes beside its products or its bytes.

That part of the time is launches, ramps and waves: notebooks time it with the host's share or
without, and hosts differ.  A layer has many calls, whose deviations partly cancel.  With these,
about four in five of the published points lie in their intervals (tests/unit/prediction).
"""


def matmul_grid(rates: Rates, sizes: Sequence[int] = MATMUL_SIZES) -> Iterator[Record]:
    """Square products of each data type that the machine has rates of."""
    for dtype in rates.matmuls.sustained:
        for n in sizes:
            seconds = float(rates.matmul(n, n, n, dtype=dtype))
            ideal = 2.0 * n**3 / rates.matmuls.sustained[dtype]
            case = matmul_case(dtype, n)
            yield _predicted(MATMUL, case, seconds, rates, "matmul", ideal / seconds)


def vector_grid(rates: Rates, sizes: Sequence[int] = VECTOR_SIZES) -> Iterator[Record]:
    """Yield each elementwise operation in fp32, hot and cold."""
    cold = rates.replace(streams=dataclasses.replace(rates.streams, cache=0.0))
    for op in OPS:
        for cache_state, there in (("hot", rates), ("cold", cold)):
            for size in sizes:
                case = vector_case(op, size, cache_state)
                num_bytes = VECTOR.work(case).num_bytes
                seconds = float(there.stream(num_bytes))
                streams = there.streams
                best = max(streams.bandwidth, streams.cache_bandwidth * (streams.cache > 0.0))
                ideal = num_bytes / best
                yield _predicted(VECTOR, case, seconds, rates, "stream", ideal / seconds)


def layer_grid(
    rates: Rates,
    precision: str,
    kernels: str,
    batches: Sequence[int] = BATCHES,
    sequences: Sequence[int] = SEQUENCES,
) -> Iterator[Record]:
    """Blocks of BERT, GPT-2, T5 and Llama and the parts of BERT's, forward and with backward."""
    code = CODES[kernels == "eager"]
    for seq in sequences:
        for batch in batches:
            for part in PARTS:
                for how in PASSES:
                    case = {**part_case(part, precision, batch * seq, code), "pass": how}
                    case |= {"seq_len": seq}
                    yield _layer(case, rates, kernels)
            for layer in LAYERS:
                for how in PASSES:
                    yield _layer(
                        layer_case(layer, precision, how, batch, seq, code), rates, kernels
                    )


def _layer(case: Case, rates: Rates, kernels: str) -> Record:
    seconds = layer_seconds(case, rates, kernels)
    ideal = layer_work(case).flops / rates.matmuls.sustained[str(case["dtype"])]
    return _predicted(LAYER, case, seconds, rates, "matmul", ideal / seconds)


def layer_seconds(case: Case, rates: Rates, kernels: str) -> float:
    """Return seconds of one call of a layer's case.  Raises UsageError for a case that is none."""
    shape, decoder = layer_shape(case)
    batch, seq = layer_tokens(case)
    layout = Layout.of(
        batch_size=batch,
        seq_len=seq,
        precision=str(case["dtype"]),
        kernels=kernels,
        states="pure",  # the layer's weights are in the type that it computes in
        framework=code_framework(case),
    )
    wanted = PARTS.get(str(case["layer"]), ("",))
    parts = [
        part
        for part in block(shape, layout, decoder=decoder)
        if part.name.startswith(tuple(wanted))
    ]
    directions = (False, True) if case["pass"] == _BOTH else (False,)
    times = (operator_times(shape, parts, layout, rates, backward=way) for way in directions)
    return sum(max(device, fitted().launch * host) for device, host in times)


def _predicted(
    spec: Benchmark, case: Case, seconds: float, rates: Rates, spread: str, ideal: float
) -> Record:
    """Return a record.

    ``ideal``: share of the time that products or bytes take at their full rate.
    """
    metric = spec.metrics(case)[0]
    value = metric.of(seconds)
    assert spec.role is not None
    unsure = OF_ONE_CALL[spec.role] * min(1.0, max(0.0, 1.0 - ideal))
    # Four in five lie within 1.28 standard deviations.
    width = math.exp(1.28 * (rates.spread.get(spread, 0.0) + unsure))
    return Record(
        kind=Kind.PREDICTED,
        benchmark=spec.name,
        version=spec.version,
        case=case,
        metric=metric.name,
        unit=metric.unit,
        value=value,
        interval=(value / width, value * width),
        confidence=0.8,
        device=rates.device,
        source=rates.provenance.get(spread),
    )


def usual_layer(
    rates: Rates, precision: str | None = None, kernels: str | None = None
) -> tuple[str, str]:
    """Data type and kernel stack of layers: as asked for, else what suits the machine.

    Raises UsageError for what it cannot do.
    """
    chip = find_chip(rates.device)
    known = [name for name in DTYPES if name in rates.matmuls.sustained]
    if precision is not None and precision not in known:
        raise unknown("precision of a layer", precision, known)
    half = next((n for n in ("bf16", "fp16") if chip is None or peak(chip, n)), "fp32")
    precision = precision or half
    if kernels is not None and kernels not in KERNELS:
        raise unknown("kernels", kernels, KERNELS)
    return precision, kernels or ("flash" if has_flash(chip, precision) else "eager")


def grid_dict(rates: Rates, records: Iterable[Record]) -> dict[str, Any]:
    """Return what ``predict matmul --json`` prints of a machine, in base SI units."""
    return {
        "machine": rates.device,
        "cases": [
            {
                "benchmark": record.benchmark,
                "case": dict(record.case),
                "metric": record.metric,
                "unit": record.unit,
                "value": record.value,
                "interval": record.interval,
                "confidence": record.confidence,
                "source": record.source,
            }
            for record in records
        ],
    }


# ---- how far off


@cache
def layer_error() -> GridError | None:
    """Predicted layers against all published ones that are of a catalog's chip."""
    errors = sorted(abs(error) for _, error in layer_errors())
    if not errors:
        return None
    inside = errors[min(len(errors) - 1, int(0.9 * len(errors)))]
    return GridError(median=median(errors), inside=inside, num=len(errors))


def layer_errors() -> Iterator[tuple[Record, float]]:
    """Yield each published layer in our cases, and its prediction's relative error."""
    for record in _layers(published_records()):
        chip = find_chip(str(record.device))
        if chip is None or not record.value:
            continue
        try:
            seconds = layer_seconds(record.case, rates_of_chip(chip), "eager")
            rate = layer_work(record.case).flops / seconds
        except UsageError:  # a source's own layer, or a data type without a rate
            continue
        yield record, rate / record.value - 1.0


def _layers(records: Iterable[Record]) -> Iterator[Record]:
    for record in records:
        is_layer = role_of(record.benchmark) is Role.BLOCK and record.metric == "flop_rate"
        if is_layer and record.case.get("layer") in (*LAYERS, *PARTS):
            yield record
