"""Whether a training fits in memory, in three words: the one rule that every verb answers by.

*fits*: the upper end of the interval of what it needs is no more than the card offers.
*does not fit*: the lower end is more than that, or the host's memory is too small for what is
offloaded.  *borderline*: the interval has the card's memory in it.  What a card offers is what its
driver leaves of the nominal size (`catalog.offered_memory`).
"""

from __future__ import annotations

from trainrig.workload.layout import Layout
from trainrig.workload.memory import host_bytes, memory
from trainrig.workload.model import ModelShape

FITS = "fits"
BORDERLINE = "borderline"
DOES_NOT_FIT = "does not fit"
VERDICTS = (FITS, BORDERLINE, DOES_NOT_FIT)


def verdict_of(interval: tuple[float, float], offered: float, *, fits_host: bool = True) -> str:
    """Return one of VERDICTS.

    Args:
        interval: Lower and upper end of what one GPU needs, in bytes.
        offered: Bytes that one GPU offers.
        fits_host: Whether the host's memory is enough for what is offloaded.
    """
    low, high = interval
    if low > offered or not fits_host:
        return DOES_NOT_FIT
    return FITS if high <= offered else BORDERLINE


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
    low, high = memory(shape, layout).interval("device")
    fits_host = host_memory is None or float(host_bytes(shape, layout)) <= host_memory
    return verdict_of((float(low), float(high)), offered, fits_host=fits_host)
