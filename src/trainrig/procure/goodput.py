"""How often to save, and what failures leave of the time: Young, Daly, and a simulation of them.

Failures come at random with a mean time between them (M, exponential); a checkpoint takes δ, is
written every τ of work, and a failure costs the work since the last one and a restart of R, in
which another failure may come.  Goodput is work over wall time.  By Daly (Future Generation
Computer Systems 22, 2006, eq. 20) the expected wall time of work W is

    M exp(R/M) (exp((τ + δ)/M) − 1) W/τ

and his interval that makes it least, to higher order (eq. 37), is
√(2δM) [1 + ⅓ √(δ/2M) + ⅑ δ/2M] − δ where δ < 2M, else M; Young's is √(2δM).
`simulate_goodput` draws failures and follows them one by one, by none of these formulas.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from trainrig.errors import UsageError

FAILURES = 100_000
"""Failures that a simulation draws: 0.5 % of error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """Rate of failures, and the times of a checkpoint and a restart."""

    mtbf_s: float
    """Mean time between failures of the whole machine or cluster."""
    checkpoint_s: float
    """Seconds to write a checkpoint."""
    restart_s: float = 0.0
    """Seconds from a failure to the first step after it."""

    def check(self) -> None:
        """Raise UsageError for what cannot be."""
        is_finite = all(map(math.isfinite, (self.mtbf_s, self.checkpoint_s, self.restart_s)))
        if not is_finite or self.mtbf_s <= 0 or self.checkpoint_s <= 0 or self.restart_s < 0:
            message = "failures need a time between them and a time to save, above 0"
            raise UsageError(message, "as --mtbf-hours 200 --checkpoint-seconds 60")


def young_interval(failures: Failures) -> float:
    """Return the work between checkpoints in s, to first order (Young 1974)."""
    return math.sqrt(2.0 * failures.checkpoint_s * failures.mtbf_s)


def daly_interval(failures: Failures) -> float:
    """Return the work between checkpoints in s, to higher order (Daly 2006, eq. 37)."""
    delta, mtbf = failures.checkpoint_s, failures.mtbf_s
    if delta >= 2.0 * mtbf:
        return mtbf
    share = delta / (2.0 * mtbf)
    return math.sqrt(2.0 * delta * mtbf) * (1.0 + math.sqrt(share) / 3.0 + share / 9.0) - delta


def goodput(failures: Failures, interval: float) -> float:
    """Return work over wall time with a checkpoint after every ``interval`` s of work."""
    mtbf = failures.mtbf_s
    cycle = (interval + failures.checkpoint_s) / mtbf
    if cycle > 700.0 or failures.restart_s / mtbf > 700.0:
        return 0.0
    wall = mtbf * math.exp(failures.restart_s / mtbf) * math.expm1(cycle)
    return interval / wall


def simulate_goodput(failures: Failures, interval: float) -> float:
    """Return work over wall time of FAILURES failures drawn at random.

    After each failure the machine restarts, then works and saves in turn until the next one: what
    it saved counts, what it did since is lost.
    """
    import numpy as np

    until = np.random.default_rng(20_060).exponential(failures.mtbf_s, FAILURES)
    awake = np.maximum(0.0, until - failures.restart_s)
    saved = np.floor(awake / (interval + failures.checkpoint_s))
    return float(saved.sum() * interval / until.sum())
