"""How long devices take to exchange data: α–β by size, kind, ranks and topology.

Answers the time of one collective (all_reduce, all_gather, reduce_scatter, broadcast, all_to_all)
or one send; not what of it hides behind computation (the predictor's step says).  ``num_bytes`` is
the whole buffer, as nccl-tests counts it: an all_gather's is what each rank ends up with, a
reduce_scatter's what each begins with.

Each of n ranks moves w = f·(n−1)/n·bytes (f: 2 for all_reduce, 1 for the others) over its link, and
the ranks of a node together send as much over the node's fabric where there is more than one node
(rings that enter and leave each node once; all_to_all: what its ranks have for those of other
nodes, local·bytes·(n−local)/n).  The slower of the two sets the pace:
    moving = max(w / β_link, sharing · w / β_fabric)
    time = latency + hop·steps + moving · (1 + ramp / (moving + ramp))
A switch that adds up and repeats what passes through it (NVLS) spares an all_reduce inside a node
nearly half of its bytes: a rank sends its buffer once and receives 1/n of it besides, (n+1)/n·bytes
at the rate of such a switch; the quicker of the two ways counts.
The last term of the time is the protocols' way to full rate: a message whose bytes need no longer
than ``ramp`` moves at half of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from trainrig.errors import UsageError
from trainrig.workload.arrays import Number, Real, choose, is_any, larger, log2, smaller

RING_HOP = 4e-6
"""s from node to node of a ring, at least: NCCL's own figure for its LL128 protocol over a network
(src/graph/tuning.cc, hwLat); the ``hop`` of a fabric is a tree's."""
FACTORS = {
    "all_reduce": 2.0,
    "all_gather": 1.0,
    "reduce_scatter": 1.0,
    "broadcast": 1.0,
    "all_to_all": 1.0,
}
"""Times that a rank's link carries the buffer, by collective."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """One level of the topology: what a rank (or a node) sends and receives over."""

    name: str
    """In words: ``NVLink through a switch``."""
    bandwidth: float
    """B/s of one direction that a large message reaches."""
    latency: float
    """s that any collective takes to start."""
    hop: float
    """s that each further step adds."""
    ramp: float
    """s: a message whose bytes take this long moves at half the rate."""
    direct: float = 0.0
    """B/s of one direction between two devices alone; 0: as in a collective."""
    multicast: float = 0.0
    """Rate of a switch's own reduction, of ``bandwidth``; 0: it has none."""
    contention: float = 1.0
    """Share of the usual slowdown of computation: fewer channels take less."""
    unsure: float = 0.0
    """Relative, more than other links: what it goes through is not stated."""
    shares: tuple[float, ...] = (1.0,)
    """Share of ``bandwidth`` that a group of 1, 2, 3, … devices has, where no switch joins them;
    larger groups have the last one's."""
    axes: int = 1
    """Dimensions of a torus, which a collective goes along in turn; 1: a ring of all."""

    def begin(self, ranks: Number) -> Real:
        """s before the bytes of a collective of ``ranks`` move."""
        around = ranks - 1 if self.axes == 1 else self.axes * (ranks ** (1.0 / self.axes) - 1)
        return self.latency + self.hop * around

    def rate(self, ranks: Number) -> Real:
        """B/s of one device in a group of ``ranks``."""
        if len(self.shares) == 1:
            return self.bandwidth * self.shares[0]
        index = smaller(larger(ranks, 1), len(self.shares)) - 1
        if isinstance(index, (int, float)):
            return self.bandwidth * self.shares[int(index)]
        import numpy as np

        return self.bandwidth * np.asarray(self.shares)[index.astype(np.int64)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """Links between a machine's devices, and their collectives."""

    inside: Link
    """Between the devices of one node; ``bandwidth`` of each device."""
    between: Link
    """Between nodes; ``bandwidth`` of a whole node."""
    measured: Mapping[str, Link] = field(default_factory=dict)
    """By kind (`FACTORS`, and ``send``) what was measured inside a node: it takes the place of
    `inside` for that kind."""

    def collective(
        self, kind: str, num_bytes: Number, ranks: Number, per_node: Number, sharing: Number = 1
    ) -> Real:
        """Return seconds of one collective of ``ranks``, ``per_node`` of them in each node.

        ``sharing`` groups like this one use each node's fabric at the same time.
        """
        if kind not in FACTORS:
            raise UsageError(f"unknown collective {kind!r}", "one of: " + ", ".join(FACTORS))
        return self._measured(
            kind,
            FACTORS[kind] * num_bytes * (ranks - 1) / larger(ranks, 1),
            ranks,
            per_node,
            self._modelled(kind, num_bytes, ranks, per_node, sharing),
        )

    def _measured(
        self, kind: str, wire: Number, ranks: Number, per_node: Number, modelled: Real
    ) -> Real:
        """``latency + hop·(ranks − 1) + wire / bandwidth`` inside a node, where it was measured."""
        link = self.measured.get(kind)
        if link is None:
            return modelled
        seconds = link.latency + link.hop * (ranks - 1) + wire / link.bandwidth
        return choose((ranks > 1) & (per_node >= ranks), seconds, modelled)

    def _modelled(
        self, kind: str, num_bytes: Number, ranks: Number, per_node: Number, sharing: Number
    ) -> Real:
        """Return seconds of a collective by what is known of the links."""
        local = larger(smaller(per_node, ranks), 1)
        nodes = larger(ranks / local, 1)
        wire = FACTORS[kind] * num_bytes * (ranks - 1) / larger(ranks, 1)
        near = choose(local > 1, self._near(kind, num_bytes, wire, local, nodes), 0.0)
        begin = choose(local > 1, self.inside.begin(local), 0.0)
        if not is_any(nodes > 1):  # a search's tensor-parallel groups: nothing leaves a node
            return choose(ranks > 1, begin + _moving(near, self.inside.ramp), 0.0)
        if kind == "all_to_all":  # each rank sends to all: what leaves a node is no ring's
            leaving = local * num_bytes * (ranks - local) / larger(ranks, 1)
        else:
            leaving = wire
        far = choose(nodes > 1, sharing * leaving / self.between.bandwidth, 0.0)
        ramp = choose(nodes > 1, self.between.ramp, self.inside.ramp)
        steps = self.between.hop * log2(nodes)
        if kind in ("all_gather", "reduce_scatter"):  # rings alone: trees are for sums
            steps = larger(steps, RING_HOP * (nodes - 1))
        away = choose(nodes > 1, self.between.latency + steps, 0.0)
        return choose(ranks > 1, begin + away + _moving(larger(near, far), ramp), 0.0)

    def _near(
        self, kind: str, num_bytes: Number, wire: Number, local: Number, nodes: Number
    ) -> Real:
        """Return seconds that bytes move inside a node."""
        ring = wire / self.inside.rate(local)
        if kind != "all_reduce" or not self.inside.multicast:
            return ring
        once = num_bytes * (local + 1) / local
        switch = once / (self.inside.bandwidth * self.inside.multicast)
        return choose(nodes > 1, ring, smaller(ring, switch))

    def send(self, num_bytes: Number, across_nodes: Number, sharing: Number = 1) -> Real:
        """Return seconds of one transfer from device to device, inside a node or between two."""
        near = self._measured("send", num_bytes, 2, 2, self._one_way(self.inside, num_bytes))
        far = self._one_way(self.between, num_bytes * sharing)
        return choose(across_nodes > 0, far, near)

    def _one_way(self, link: Link, num_bytes: Number) -> Real:
        between_two = link.rate(2) * max(1.0, link.direct / link.bandwidth)
        return link.latency + _moving(num_bytes / between_two, link.ramp)


def _moving(seconds: Number, ramp: Number) -> Real:
    return seconds * (1.0 + ramp / (seconds + ramp))
