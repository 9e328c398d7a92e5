"""Whether a build is legal: every rule applied, the arithmetic shown, and warnings beside it.

Legal means that no rule of catalog/build_rules.toml is broken.  A warning changes nothing: it is a
rule that holds with little room, or what people learned the hard way about such machines.  What the
list does not say (the room's breaker, its cooling) is named as not checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from trainrig.procure import card_rules as cards
from trainrig.procure import cooling_rules as cooling
from trainrig.procure import fit_rules as fit
from trainrig.procure import load_rules as load
from trainrig.procure import memory_rules as memory
from trainrig.procure import supply_rules as supply
from trainrig.procure.load_rules import Power, power_of
from trainrig.procure.part_catalog import chip_of
from trainrig.procure.parts import DiskPart, Riser, unknown_fields
from trainrig.procure.parts_list import Build
from trainrig.procure.placement import Placement
from trainrig.procure.rule_book import BuildWarning, Check, rule_book

RULES: tuple[Callable[[Build], Iterator[Check]], ...] = (
    fit.missing_part,
    fit.socket,
    memory.memory_type,
    memory.memory_slots,
    memory.memory_module,
    memory.memory_capacity,
    memory.memory_channels,
    load.memory_size,
    fit.form_factor,
    cards.card_form,
    fit.card_length,
    cards.slot_ceiling,
    fit.slots,
    fit.passive_cards,
    fit.airflow,
    cards.lane_ceiling,
    fit.lanes,
    fit.bifurcation,
    fit.riser_generation,
    load.psu_rating,
    load.psu_watts,
    supply.psu_transients,
    supply.psu_connectors,
    supply.psu_rails,
    fit.psu_bays,
    cooling.cooler,
    cooling.cooler_watts,
    cooling.cooler_height,
    cooling.radiator,
    load.outlet,
    load.breaker,
    load.heat,
    load.noise,
    fit.rack_units,
    load.disk_capacity,
    fit.disk_ports,
    fit.nvlink_bridge,
)


_ORDER = ("error", "unknown", "warning")


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildReport:
    """Checks, warnings, placement and power of a build."""

    build: Build
    checks: tuple[Check, ...]
    warnings: tuple[BuildWarning, ...]
    placement: Placement | None
    power: Power
    not_checked: tuple[str, ...]
    """Checks that wait for something that the list does not state."""

    @property
    def legal(self) -> bool:
        """Return whether no rule is broken."""
        return all(check.severity != "error" for check in self.checks)

    @property
    def findings(self) -> list[Check]:
        """Checks that do not hold, errors first, then what is not known."""
        findings = [check for check in self.checks if check.severity != "ok"]
        return sorted(findings, key=lambda check: _ORDER.index(check.severity))

    @property
    def not_known(self) -> list[Check]:
        """Rules that wait for a figure that the catalog lacks."""
        return [check for check in self.checks if check.severity == "unknown"]

    @property
    def tightest(self) -> Check | None:
        """Return the bound that is nearest to its limit."""
        bounds = [check for check in self.checks if check.used is not None]
        return max(bounds, key=lambda check: check.used or 0.0, default=None)


def check_build(build: Build) -> BuildReport:
    """Apply every rule to a build.  Raises UsageError where a rule lacks a figure."""
    placement = fit.placement_of(build)
    return BuildReport(
        build=build,
        checks=tuple(check for rule in RULES for check in rule(build)),
        warnings=tuple(
            warning for warning in rule_book().warnings if _holds(warning, build, placement)
        ),
        placement=placement,
        power=power_of(build),
        not_checked=tuple(_not_checked(build)),
    )


def _holds(warning: BuildWarning, build: Build, placement: Placement | None) -> bool:
    """Return whether all conditions of a warning hold."""
    when, board = warning.when, build.board
    seats = placement.gpus() if placement else []
    on_board = any(not seat.on_riser for seat in seats) if seats else not build.pieces(Riser)
    facts = (
        (when.min_gpus, lambda min_count: len(build.cards) >= min_count),
        (when.min_psus, lambda min_count: len(build.supplies) >= min_count),
        (when.chips, lambda chips: any(chip_of(card).name in chips for card in build.cards)),
        (when.connector, lambda plug: any(plug in (card.connectors or ()) for card in build.cards)),
        (when.cooling, lambda kind: any(card.cooling == kind for card in build.cards)),
        (when.wider_than, lambda width: any((card.slots or 0) > width for card in build.cards)),
        (when.on_board, lambda _: on_board),
        (when.registered, lambda yes: board is not None and board.registered is yes),
        (when.risers, lambda yes: bool(build.pieces(Riser)) is yes),
        (when.qlc, lambda yes: any(disk.qlc for disk in build.pieces(DiskPart)) is yes),
        (when.chipset_gpu, lambda yes: any(not seat.slot.from_cpu for seat in seats) is yes),
        (when.management, lambda yes: board is not None and board.management is yes),
    )
    conditions: list[tuple[Any, Callable[[Any], bool]]] = list(facts)
    return all(holds(condition) for condition, holds in conditions if condition is not None)


def _not_checked(build: Build) -> Iterator[str]:
    room, use = build.room, build.use
    if room.volts is None or room.breaker_amps is None:
        yield "breaker: volts and breaker_amps under [room]"
    if room.cooling_btu_per_h is None:
        yield "heat: cooling_btu_per_h under [room]"
    if room.noise_limit_db is None:
        yield "noise: noise_limit_db under [room]"
    if use.model is None or use.tokens is None:
        yield "disks for the training: model and tokens under [use]"


def report_dict(report: BuildReport) -> dict[str, Any]:
    """Return the JSON of ``build check``."""
    build, power, book = report.build, report.power, rule_book()

    def entry(check: Check) -> dict[str, Any]:
        source = book.source_of(check.rule)
        return asdict(check) | {"source": source.title, "url": source.url}

    return {
        "name": build.name,
        "legal": report.legal,
        "total": build.total,
        "priced_total": build.priced_total,
        "currency": build.currency or None,
        "unpriced": build.unpriced,
        "findings": [entry(check) for check in report.findings],
        "checks": [entry(check) for check in report.checks],
        "warnings": [
            {
                "id": warning.id,
                "text": warning.text,
                "fix": warning.fix,
                "source": book.source_of(warning.id).title,
                "url": book.source_of(warning.id).url,
            }
            for warning in report.warnings
        ],
        "not_checked": list(report.not_checked),
        "power_w": {
            "gpus": power.gpus,
            "cpu": power.cpu,
            "rest": power.rest,
            "parts": power.parts,
            "wall": power.wall,
        },
        "heat_btu_per_h": power.wall * book.value("heat", "btu_per_h_and_watt"),
        "supplies": [
            {
                "number": supply_load.number,
                "part": supply_load.supply.name,
                "gpus": list(supply_load.cards),
                "board": supply_load.is_board,
                "watts": supply_load.watts,
                "limit_w": supply_load.limit,
                "peak_w": supply_load.peak,
                "holds_w": supply_load.peak_limit,
            }
            for supply_load in supply.supply_loads(build)
        ],
        "placement": [
            {
                "gpu": seat.card,
                "position": seat.slot.position,
                "lanes": seat.lanes,
                "slot_generation": seat.slot.generation,
                "riser": seat.on_riser,
            }
            for seat in (report.placement.gpus() if report.placement else ())
        ],
        "parts": [
            {
                "kind": item.kind,
                "part": item.part.name,
                "count": item.count,
                "price": item.price,
                "priced": item.priced or None,
                "computed": sorted(
                    name for name, origin in item.part.provenance.items() if not origin.verified
                ),
                "not_known": list(unknown_fields(item.part)),
            }
            for item in build.items
        ],
    }
