"""What a budget for several machines trains: how many, the best layout on each network, days, kWh.

A machine is a parts list with prices; a network has a price for each machine (its card, its cables
and its share of the switch).  As many machines are bought as the budget holds; fewer are tried
where no layout makes the batch on all of them.  Energy is that of the machines at the wall, at full
load.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainrig.errors import UsageError
from trainrig.prediction.as_json import layout_dict
from trainrig.prediction.cluster import Cluster
from trainrig.prediction.scenario import GBIT, positive
from trainrig.procure.build_rules import BuildReport
from trainrig.procure.part_catalog import chip_of
from trainrig.procure.training_rate import TrainingRate, rate_at, training_space
from trainrig.units import counted

_FEWER = 0.5
"""Of the machines that the budget holds: with fewer, nothing is tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterPlan:
    """Machines on one network, and what they train."""

    gbps: float
    """Of a machine into the network."""
    affordable: int
    """Machines that the budget holds."""
    machines: int
    """That the best layout uses."""
    price: float
    rate: TrainingRate
    watts: float
    """Of all machines at the wall."""
    tokens: float

    @property
    def days(self) -> tuple[float, float, float]:
        """For the tokens: middle, low and high."""
        return self.rate.days(self.tokens)

    @property
    def kwh(self) -> float:
        """For the tokens."""
        return self.days[0] * 24.0 * self.watts / 1000.0


def plan_cluster(
    report: BuildReport,
    given: Mapping[str, Any],
    networks: Sequence[tuple[float, float]],
    *,
    budget: float,
    tokens: float,
) -> tuple[ClusterPlan, ...]:
    """A plan for each network, (Gb/s, price for a machine).

    Raises UsageError for a list that is not legal or not priced, and where nothing fits.
    """
    build = report.build
    if not report.legal:
        first, *others = [one for one in report.findings if one.severity == "error"]
        more = f"; and {counted(len(others), 'rule')} more" if others else ""
        raise UsageError(
            f"{build.name} is not legal: {first.rule}: {first.message}: {first.arithmetic}{more}",
            first.fix or "trainrig build check has all of its arithmetic",
        )
    if build.total is None:
        raise UsageError(f"{build.name} has no total", f"a price of {build.unpriced[0]}")
    chips = {chip_of(card).name for card in build.cards}
    if len(chips) != 1:
        raise UsageError("a cluster has GPUs of one kind", f"here: {', '.join(sorted(chips))}")
    positive("budget", budget)
    positive("tokens", tokens)
    return tuple(
        _plan(report, given, gbps, price, budget=budget, tokens=tokens) for gbps, price in networks
    )


def _plan(
    report: BuildReport,
    given: Mapping[str, Any],
    gbps: float,
    network: float,
    *,
    budget: float,
    tokens: float,
) -> ClusterPlan:
    positive("Gb/s of the network", gbps)
    each = (report.build.total or 0.0) + network
    affordable = int(budget / each) if each else 0
    if affordable < 1:
        raise UsageError(
            f"{budget:,.0f} {report.build.currency} buys no machine of {each:,.0f}",
            "a larger budget, or a cheaper machine",
        )
    chip, per_node = chip_of(report.build.cards[0]), len(report.build.cards)
    every, _ = training_space({**given, "on": chip.name})
    best: ClusterPlan | None = None
    for count in _counts(affordable):
        there = Cluster(
            chip=chip, gpus=count * per_node, gpus_per_node=per_node, fabric=gbps * GBIT
        )
        rate = rate_at(every, there)
        if rate is not None and (best is None or rate.tokens_per_s > best.rate.tokens_per_s):
            best = ClusterPlan(
                gbps=gbps,
                affordable=affordable,
                machines=count,
                price=count * each,
                rate=rate,
                watts=count * report.power.wall,
                tokens=tokens,
            )
    if best is None:
        raise UsageError(
            f"{every.shape.name} fits on no {affordable} machines with {per_node} × {chip.name}",
            "GPUs with more memory, --offload host, or a smaller model",
        )
    return best


def _counts(most: int) -> Iterator[int]:
    """All that the budget holds, and rounder numbers of them: layouts want divisors."""
    least = max(1, math.ceil(most * _FEWER))
    wanted = {most, *(n for n in range(least, most + 1) if n % 4 == 0 or most <= 8)}
    wanted |= {1 << bit for bit in range(20) if least <= 1 << bit <= most}
    yield from sorted(wanted)


def network_of(text: str) -> tuple[float, float]:
    """``100=9000``: Gb/s of a machine, and what it costs for each.  Raises UsageError."""
    rate, _, price = text.partition("=")
    try:
        found = float(rate), float(price)
    except ValueError:
        found = math.nan, math.nan
    if not (0.0 < found[0] <= 1e5 and 0.0 <= found[1] < 1e12):
        raise UsageError(f"not a network: {text!r}", "Gb/s = price a machine, as 100=9000")
    return found


def clusters_dict(plans: Sequence[ClusterPlan], currency: str) -> list[dict[str, Any]]:
    """What ``build cluster --json`` prints; others script against it."""
    return [
        {
            "fabric_gbps": one.gbps,
            "machines": one.machines,
            "affordable": one.affordable,
            "gpus": one.rate.gpus,
            "price": one.price,
            "currency": currency,
            "layout": layout_dict(one.rate.prediction.layout) if one.rate.prediction else None,
            "tokens_per_s": one.rate.tokens_per_s,
            "interval": {"days": list(one.days[1:])},
            "tokens": one.tokens,
            "days": one.days[0],
            "kwh": one.kwh,
            "watts": one.watts,
            "waits_for": one.rate.limits,
        }
        for one in plans
    ]
