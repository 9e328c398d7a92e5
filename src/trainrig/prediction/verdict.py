"""Whether a training fits in memory, in three words: the one rule that every verb answers by.

*fits*: the upper end of the interval of what it needs is no more than what there is.
*does not fit*: the lower end is more.  *borderline*: what there is lies in the interval.

What one GPU needs is the least memory in which a step ends (`Memory.needed_interval`), without the
blocks that an allocator holds and gives back where it is short; what it offers is what its driver
leaves of the nominal size (`catalog.offered_memory`).  What is offloaded needs a node's memory by
the same rule; the worse of both words is the answer.
"""

from __future__ import annotations

from trainrig.workload.layout import Layout
from trainrig.workload.memory import host_interval, memory
from trainrig.workload.model import ModelShape

FITS = "fits"
BORDERLINE = "borderline"
DOES_NOT_FIT = "does not fit"
VERDICTS = (FITS, BORDERLINE, DOES_NOT_FIT)


def verdict_of(interval: tuple[float, float], offered: float, *, host: str = FITS) -> str:
    """Return one of VERDICTS.

    Args:
        interval: Lower and upper end of what one GPU needs, in bytes.
        offered: Bytes that one GPU offers.
        host: The verdict of a node's own memory, for what is offloaded.
    """
    low, high = interval
    on_gpu = DOES_NOT_FIT if low > offered else FITS if high <= offered else BORDERLINE
    return max(on_gpu, host, key=VERDICTS.index)


def host_verdict(shape: ModelShape, layout: Layout, host_memory: float | None) -> str:
    """Return one of VERDICTS for what a node's own memory must hold.

    Args:
        shape: The model.
        layout: One layout, in plain whole numbers.
        host_memory: Bytes of a node's own memory; None: no limit is known.
    """
    if host_memory is None:
        return FITS
    low, high = host_interval(shape, layout)
    return verdict_of((float(low), float(high)), host_memory)


def verdict_of_layout(
    shape: ModelShape, layout: Layout, offered: float, host_memory: float | None = None
) -> str:
    """Return one of VERDICTS for one layout of a model.

    Args:
        shape: The model.
        layout: One layout, in plain whole numbers.
        offered: Bytes that one GPU offers.
        host_memory: Bytes of a node's own memory; None: no limit is known.
    """
    low, high = memory(shape, layout).needed_interval
    host = host_verdict(shape, layout, host_memory)
    return verdict_of((float(low), float(high)), offered, host=host)
