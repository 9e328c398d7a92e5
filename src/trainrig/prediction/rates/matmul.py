"""How long one product of matrices takes: tiles, waves, depth, memory, and the shortest kernel.

A library cuts the result into tiles and gives each to one of the chip's processors (SMs).  Tiles
are whole, so the edges of a matrix waste part of the last ones; processors work in waves, so a few
tiles more than a wave's cost up to another wave, unless the product is deep: then the library cuts
k as well and keeps all processors busy.  Big tiles reuse operands best, small ones waste less: the
library picks by shape, and so does this rule (the quickest of a fixed list).  Each tile's pipeline
takes time to fill and to drain.  Operands and result move meanwhile; the two overlap but for what
collides.

    time = latency + (compute^p + moving^p)^(1/p)
    compute = (w·(k + ramp) + (⌈w⌉ − w)·(k' + ramp)) · sms · 2·tm·tn / (rate · tile's share)
    w = tiles / sms        k' = k / √(1 + (k/split_k)²)
    ramp = drain · rate / (sms · 2·256·128), the depth that a large tile could do meanwhile

For one tile each term grows with each size, and so does the least over tiles: a larger product is
never predicted to be quicker.  (A curve of this machine's own measurements may bend that a little.)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from trainrig.workload.arrays import Number, Real, ceil_div, ceiling, interpolate, log2, smaller
from trainrig.workload.operators import dtype_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class MatmulRates:
    """Rates of a chip's matrix products, by number format."""

    sustained: Mapping[str, float]
    """FLOP/s of a very large product by dtype (OP/s for integers)."""
    bandwidth: float
    """B/s that operands stream at."""
    processors: int
    """SMs, compute units, cores: what tiles are dealt to."""
    tiles: tuple[tuple[int, int, float], ...]
    """(rows, columns, rate against the largest tile's), the list that the quickest is taken of."""
    split_k: float
    """Depth of k that a wave's last, idle processors wait for at most."""
    drain: float
    """s to fill and drain the pipeline of a large tile."""
    latency: float
    overlap: float
    """p: 1 adds up what is computed and what is moved; infinity takes the longer of the two."""
    measured: Mapping[str, tuple[tuple[float, float], ...]] = field(default_factory=dict)
    """(log2 of a call's FLOPs, measured rate over this rule's) by dtype, where there are any."""

    def time(
        self, m: Number, n: Number, k: Number, batch: Number, dtype: str, output_bytes: float
    ) -> Real:
        """Return seconds of one call: ``batch`` products (m, k)·(k, n)."""
        size = dtype_bytes(dtype)
        moved = batch * (size * (m * k + k * n) + output_bytes * m * n)
        rate = self.sustained[dtype]
        ramp = self.drain * rate / (self.processors * _LARGE_TILE)
        compute = self._work(m, n, k, batch, ramp) / rate
        p = self.overlap
        time = self.latency + (compute**p + (moved / self.bandwidth) ** p) ** (1.0 / p)
        curve = self.measured.get(dtype)
        return time / interpolate(log2(2.0 * batch * m * n * k), curve) if curve else time

    def _work(self, m: Number, n: Number, k: Number, batch: Number, ramp: float) -> Real:
        """FLOPs that the whole chip has the time for while this product runs."""
        best: Real = None
        deep = k + ramp
        last = k / (1.0 + (k / self.split_k) ** 2) ** 0.5 + ramp
        for rows, columns, share in self.tiles:
            waves = batch * ceil_div(m, rows) * ceil_div(n, columns) / self.processors
            depth = waves * deep + (ceiling(waves) - waves) * last
            work = depth * (self.processors * 2.0 * rows * columns / share)
            best = work if best is None else smaller(best, work)
        return best


_LARGE_TILE = 2.0 * 256 * 128
"""FLOPs of one large tile for each step of k."""
