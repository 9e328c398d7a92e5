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
"""Share of the affordable machines below which no number is tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterPlan:
    """Machines on one network, and what they train."""

    gbps: float
    """Network rate of one machine, in Gb/s."""
    affordable: int
    """Machines that the budget holds."""
    machines: int
    """Machines that the best layout uses."""
    price: float
    rate: TrainingRate
    watts: float
    """Watts of all machines at the wall."""
    tokens: float

    @property
    def days(self) -> tuple[float, float, float]:
        """Days that the tokens take: middle, low and high."""
        return self.rate.days(self.tokens)

    @property
    def kwh(self) -> float:
        """Energy that the tokens take, in kWh."""
        return self.days[0] * 24.0 * self.watts / 1000.0


def plan_cluster(
    report: BuildReport,
    training_options: Mapping[str, Any],
    networks: Sequence[tuple[float, float]],
    *,
    budget: float,
    tokens: float,
) -> tuple[ClusterPlan, ...]:
    """Return a plan for each network, (Gb/s, price for a machine).

    Raises UsageError for a list that is not legal or not priced, and where nothing fits.
    """
    build = report.build
    if not report.legal:
        first, *other_errors = [check for check in report.findings if check.severity == "error"]
        more = f"; and {counted(len(other_errors), 'rule')} more" if other_errors else ""
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
        _plan(report, training_options, gbps, price, budget=budget, tokens=tokens)
        for gbps, price in networks
    )


def _plan(
    report: BuildReport,
    training_options: Mapping[str, Any],
    gbps: float,
    network: float,
    *,
    budget: float,
    tokens: float,
) -> ClusterPlan:
    positive("Gb/s of the network", gbps)
    machine_price = (report.build.total or 0.0) + network
    affordable = int(budget / machine_price) if machine_price else 0
    if affordable < 1:
        raise UsageError(
            f"{budget:,.0f} {report.build.currency} buys no machine of {machine_price:,.0f}",
            "a larger budget, or a cheaper machine",
        )
    chip, per_node = chip_of(report.build.cards[0]), len(report.build.cards)
    layout_space, _ = training_space({**training_options, "on": chip.name})
    best: ClusterPlan | None = None
    for count in _counts(affordable):
        cluster = Cluster(
            chip=chip, gpus=count * per_node, gpus_per_node=per_node, fabric=gbps * GBIT
        )
        rate = rate_at(layout_space, cluster)
        if rate is not None and (best is None or rate.tokens_per_s > best.rate.tokens_per_s):
            best = ClusterPlan(
                gbps=gbps,
                affordable=affordable,
                machines=count,
                price=count * machine_price,
                rate=rate,
                watts=count * report.power.wall,
                tokens=tokens,
            )
    if best is None:
        raise UsageError(
            f"{layout_space.shape.name} fits on no {affordable} machines with {per_node} × "
            f"{chip.name}",
            "GPUs with more memory, --offload host, or a smaller model",
        )
    return best


def _counts(most_machines: int) -> Iterator[int]:
    """Yield the most machines, and rounder numbers: layouts want divisors."""
    fewest_machines = max(1, math.ceil(most_machines * _FEWER))
    counts = {
        most_machines,
        *(n for n in range(fewest_machines, most_machines + 1) if n % 4 == 0 or most_machines <= 8),
    }
    counts |= {1 << bit for bit in range(20) if fewest_machines <= 1 << bit <= most_machines}
    yield from sorted(counts)


def network_of(text: str) -> tuple[float, float]:
    """Return Gb/s and price of a machine from ``100=9000``.  Raises UsageError."""
    rate, _, price = text.partition("=")
    try:
        network = float(rate), float(price)
    except ValueError:
        network = math.nan, math.nan
    if not (0.0 < network[0] <= 1e5 and 0.0 <= network[1] < 1e12):
        raise UsageError(f"not a network: {text!r}", "Gb/s = price a machine, as 100=9000")
    return network


def clusters_dict(plans: Sequence[ClusterPlan], currency: str) -> list[dict[str, Any]]:
    """Return the JSON of ``build cluster``."""
    return [
        {
            "fabric_gbps": plan.gbps,
            "machines": plan.machines,
            "affordable": plan.affordable,
            "gpus": plan.rate.gpus,
            "price": plan.price,
            "currency": currency,
            "layout": layout_dict(plan.rate.prediction.layout) if plan.rate.prediction else None,
            "tokens_per_s": plan.rate.tokens_per_s,
            "interval": {"days": list(plan.days[1:])},
            "tokens": plan.tokens,
            "days": plan.days[0],
            "kwh": plan.kwh,
            "watts": plan.watts,
            "waits_for": plan.rate.limits,
        }
        for plan in plans
    ]
