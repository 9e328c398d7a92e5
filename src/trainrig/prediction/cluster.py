"""GPUs of one kind in nodes of one kind: what a model would run on, and how fast that is.

Answers which rates hold there, from claims or from measured records, and how chips whose link
reaches beyond one tray (NVL72) come in nodes of several trays.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainrig.catalog.chip import Chip
from trainrig.errors import UsageError
from trainrig.prediction.rates import Rates
from trainrig.prediction.rates.from_chip import (
    in_fp4,
    joined_trays,
    rates_of_chip,
    usual_tray,
    with_flash2,
    with_newest_attention,
    with_plain_attention,
)

if TYPE_CHECKING:
    from trainrig.record import Record

FLASH_VERSIONS: dict[str, Callable[[Rates], Rates]] = {
    "auto": with_flash2,
    "1": lambda rates: rates,
    "2": with_plain_attention,
    "latest": with_newest_attention,
}
"""Rates with a version of FlashAttention; auto: its second with kernels that are flash, and with
flash+fused the one that was written for the chip, which is ``latest`` with either."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """GPUs of one kind in nodes of one kind."""

    chip: Chip | None
    """None where the catalog has no entry: rates are then those that were measured."""
    gpus: int = 1
    gpus_per_node: int = 8
    link: str | None = None
    """Inside a node: nvlink, pcie, …; None: the chip's own."""
    fabric: float | None = None
    """B/s of one node into the network, one direction; None: what such nodes usually have."""
    p2p: bool | None = None
    records: tuple[Record, ...] = ()
    """This machine's measured points, which replace claims."""
    memory: float | None = None
    """B of one device, where the catalog does not know the chip."""
    host_memory: float | None = None
    """B of a node's processors, for what is offloaded; None: not known, and no limit."""
    is_fp4: bool = False
    """Products of fp8 are in fp4 (NVFP4, MXFP4), where the chip claims those."""
    host_bandwidth: float | None = None
    """B/s of the memory of one host: a server's, or a tray's; None: presumed."""
    disk: float | None = None
    """B/s of a node's disks; None: presumed."""
    trays: int = 1
    """Trays, each with a host of its own, that the chips' link joins to one node."""
    unit: int | None = None
    """GPUs that are together before a link joins more of them to a node; None: a node."""
    uncounted: str | None = None
    """The cloud's instance whose GPUs nobody counted; None: so many were asked for."""
    flash_version: str = "auto"
    """One of FLASH_VERSIONS."""
    requested_name: str | None = None
    """The chip as it was called, where the module of servers is presumed."""

    def rates(self) -> Rates:
        """Return the rates of operations on these machines, by today's software."""
        places: dict[str, Any] = {"link": self.link, "fabric": self.fabric, "p2p": self.p2p}
        if self.records:
            from trainrig.prediction.rates.from_records import rates_of_records

            rates = rates_of_records(self.records, self.chip, **places)
            rates = rates.replace(memory_bytes=self.memory) if self.memory else rates
            return FLASH_VERSIONS[self.flash_version](rates)
        assert self.chip is not None
        rates = FLASH_VERSIONS[self.flash_version](rates_of_chip(self.chip, **places))
        rates = in_fp4(rates, self.chip) if self.is_fp4 else rates
        host_rates = {"host_memory": self.host_bandwidth, "disk": self.disk}
        rates = rates.replace(
            **{name: rate for name, rate in host_rates.items() if rate is not None}
        )
        return rates.replace(host_memory=rates.host_memory * self.trays)

    @property
    def tray(self) -> int:
        """GPUs with a host of their own, at most."""
        return -(-self.gpus_per_node // self.trays)

    def on(self, gpus: int) -> Cluster:
        """Return a cluster of so many GPUs of these machines, in nodes that they fill."""
        unit = self.unit or self.gpus_per_node
        if self.chip is None or usual_tray(self.chip) is None:
            unit = min(unit, gpus)
        node, trays = joined_units(self.chip, unit, gpus, self.link)
        more = trays / self.trays
        return self.replace(
            gpus=gpus,
            gpus_per_node=node,
            trays=trays,
            fabric=self.fabric and self.fabric * more,
            host_memory=self.host_memory and self.host_memory * more,
        )

    def replace(self, **changes: Any) -> Cluster:
        """Return a copy with some fields changed."""
        return dataclasses.replace(self, **changes)

    def with_chip(self, **changes: Any) -> Cluster:
        """Return a copy with another memory, power or slot of the chip."""
        assert self.chip is not None
        return self.replace(chip=self.chip.replace(**changes))


USUAL_NODE = 8
"""GPUs of a node where nothing says otherwise."""
JOIN_NO_TRAYS = ("pcie", "none")
"""Links that join no trays."""


def unit_size(chip: Chip | None, per_node: int | None, sold: int | None, gpus: int) -> int:
    """GPUs that are together before a link joins more: as asked for, of a server, or of a tray."""
    if per_node is not None:
        return per_node
    tray = usual_tray(chip) if chip is not None else None
    if sold is None or (chip is not None and tray is not None and sold == chip.link.domain):
        sold = tray or _node(chip, gpus)
    return max(1, min(gpus, sold)) if tray is None else sold


def joined_units(chip: Chip | None, unit: int, gpus: int, link: str | None) -> tuple[int, int]:
    """GPUs of a node, and how many hosts they have: as many units as the chip's link joins."""
    if chip is None or link in JOIN_NO_TRAYS or unit <= 0:
        return unit, 1
    tray = usual_tray(chip)
    if tray is None:
        trays = joined_trays(chip, unit, gpus) if unit <= gpus else 1
        return unit * trays, trays
    if gpus <= (chip.link.domain or 0) and (unit == tray or unit > gpus):
        node = max(1, gpus)
    else:
        node = unit * joined_trays(chip, unit, gpus)
    host = tray if unit % tray == 0 else min(unit, tray)
    return node, -(-node // host)


def check_racks(chip: Chip, unit: int, node: int, gpus: int) -> None:
    """Raise UsageError where GPUs of racks fall into nodes of less than half of what a link joins.

    Nodes are equal: a count with few divisors leaves most of each rack on the network.
    """
    link, domain = chip.link.name, chip.link.domain
    if usual_tray(chip) is None or not domain or not unit <= domain < gpus:
        return
    whole = domain // unit * unit
    if gpus % unit == 0 and 2 * node >= whole:
        return

    def fills(count: int) -> bool:
        return 2 * unit * joined_trays(chip, unit, count) >= whole

    fewer = next(count for count in range((gpus - 1) // unit * unit, 0, -unit) if fills(count))
    above = itertools.count((gpus // unit + 1) * unit, unit)
    more = next(filter(fills, above))
    raise UsageError(
        f"{gpus} GPUs fill no equal parts of racks, of which {link} joins {domain}",
        f"as --gpus {fewer} or {more}",
    )


def _node(chip: Chip | None, gpus: int) -> int:
    """GPUs of a usual node; of those that the chip's link joins all, or a power of two."""
    joined = chip.link.domain if chip is not None else None
    if not joined:
        return USUAL_NODE
    return joined if gpus <= joined or gpus % joined == 0 else 1 << (joined.bit_length() - 1)
