"""How long one product of matrices takes: tiles, waves, depth, memory, and the shortest kernel.

A library cuts the result into tiles and gives each to one of the chip's processors (SMs).  Tiles
are whole, so the edges of a matrix waste part of the last ones; processors work in waves, so a few
tiles more than a wave's may cost up to another wave.  Big tiles reuse operands best, small ones
waste less: the library picks by shape, and so does this rule (the quickest of a fixed list).
Filling and draining a tile's pipeline costs some depth of k.  A product never runs faster than its
operands and result can be moved once, nor than the shortest kernel.

Time = latency + max(compute, memory):
    compute = waves · sms · 2·tm·tn·(k + ramp_k) / (rate · tile's share)
    waves = (1 − q) · tiles/sms + q · ⌈tiles/sms⌉
with q the share of a wave's tail that is really lost (libraries split k and keep processors busy).
Total time may therefore fall when a matrix grows past a tile's edge only by choosing another tile;
for one tile it never falls (each factor grows).  The minimum of growing functions grows, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trainrig.predict.rates_math import Number, Real, ceil_div, ceiling, larger, smaller


@dataclass(frozen=True, slots=True, kw_only=True)
class MatmulRates:
    """What a chip's products of matrices run at."""

    sustained: Mapping[str, float]
    """FLOP/s of a very large product by dtype (OP/s for integers)."""
    bandwidth: float
    """B/s that operands stream at."""
    processors: int
    """SMs, compute units, cores: what tiles are dealt to."""
    tiles: tuple[tuple[int, int, float], ...]
    """(rows, columns, rate against the largest tile's), the list that the quickest is taken of."""
    quantised: float
    ramp_k: float
    latency: float

    def time(
        self, m: Number, n: Number, k: Number, batch: Number, dtype: str, output_bytes: float
    ) -> Real:
        """Seconds of one call: ``batch`` products (m, k)·(k, n)."""
        size = DTYPE_BYTES[dtype]
        moved = batch * (size * (m * k + k * n) + output_bytes * m * n)
        compute = self._compute(m, n, k, batch) / self.sustained[dtype]
        return self.latency + larger(compute, moved / self.bandwidth)

    def _compute(self, m: Number, n: Number, k: Number, batch: Number) -> Real:
        """FLOPs that the whole chip has the time for, while this product runs."""
        best: Real = None
        for rows, columns, share in self.tiles:
            tiles = batch * ceil_div(m, rows) * ceil_div(n, columns)
            waves = tiles / self.processors
            full = (1.0 - self.quantised) * waves + self.quantised * ceiling(waves)
            work = full * (self.processors * 2.0 * rows * columns / share) * (k + self.ramp_k)
            best = work if best is None else smaller(best, work)
        return best


DTYPE_BYTES: Mapping[str, float] = {
    "fp64": 8.0,
    "fp32": 4.0,
    "tf32": 4.0,
    "bf16": 2.0,
    "fp16": 2.0,
    "fp8": 1.0,
    "int8": 1.0,
    "fp4": 0.5,
}
