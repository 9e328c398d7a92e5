"""The spec of the benchmark ``sort``: how many random fp32 numbers are sorted a second.

Definition: one `torch.sort` of ``num_elements`` fp32 numbers that lie contiguous in the device's
memory, drawn from a normal distribution with a fixed seed; rate = elements / median time of a call.
"""

from trainrig.benchmarks.spec import Benchmark, Metric, PlannedCase, Selection, size_in
from trainrig.record import Case
from trainrig.units import binary, parse_count
from trainrig.workload import Work

MOST_ELEMENTS = 1 << 28


def select(selection: Selection) -> list[PlannedCase]:
    """Return a case for each ``--size``."""
    sizes = [parse_count(size, MOST_ELEMENTS) for size in selection.sizes or ("1Mi",)]
    return [
        PlannedCase(case={"num_elements": size}, step="fp32 sort", required=True) for size in sizes
    ]


def metrics(case: Case) -> tuple[Metric, ...]:
    """Return the rate of sorted elements."""
    num_elements = float(size_in(case, "num_elements"))
    return (
        Metric(
            name="element_rate", unit="element/s", amount=num_elements, formula="elements / time"
        ),
    )


BENCHMARK = Benchmark(
    name="sort",
    version=1,
    title="sorting fp32 numbers",
    order=200,
    module="trainrig_example.sort_half",
    example={"num_elements": 8},
    fields={"num_elements": MOST_ELEMENTS},
    work=lambda case: Work(flops=0, num_bytes=8 * size_in(case, "num_elements")),
    metrics=metrics,
    memory=lambda case: 24 * size_in(case, "num_elements"),
    options={"size": "elements: 65536, 1Mi", "device": ""},
    select=select,
    label=lambda case: f"{binary(size_in(case, 'num_elements'))} elements",
    sizes=frozenset(["num_elements"]),
)
