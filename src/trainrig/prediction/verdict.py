"""Whether a training fits in memory, in three words: the one rule that every verb answers by.

*fits*: the upper end of the interval of what it needs is no more than the card offers.
*does not fit*: the lower end is more than that, or the host's memory is too small for what is
offloaded.  *borderline*: the interval has the card's memory in it.  What a card offers is what its
driver leaves of the nominal size (`catalog.offered_memory`).
"""

from __future__ import annotations

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
