"""Where a training would run: so many GPUs of one kind, and what joins them.

Answers which rates hold there.  It is what a prediction is asked for and what an upgrade changes;
nothing of it need exist.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from trainrig.catalog.chip import Chip
from trainrig.predict.rates import Rates
from trainrig.predict.rates_chip import rates_of_chip
from trainrig.predict.rates_records import rates_of_records
from trainrig.record import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
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

    def rates(self) -> Rates:
        """How fast operations go there."""
        places: dict[str, Any] = {"link": self.link, "fabric": self.fabric, "p2p": self.p2p}
        if self.records:
            found = rates_of_records(self.records, self.chip, **places)
            return found.replace(memory_bytes=self.memory) if self.memory else found
        assert self.chip is not None
        return rates_of_chip(self.chip, **places)

    def replace(self, **changes: Any) -> Site:
        """The same with some things changed."""
        return dataclasses.replace(self, **changes)

    def with_chip(self, **changes: Any) -> Site:
        """The same with another memory, power or slot of the chip."""
        assert self.chip is not None
        return self.replace(chip=dataclasses.replace(self.chip, **changes))
