"""Whether a build's load is carried: watts, circuits, heat, noise, RAM and disks.

Power is that of all parts at their limit: cards at their TDP (or the limit that the list states),
the processor's package power, modules, disks, network, and the rest of the board with its fans.
What comes out of the wall is that over the supplies' efficiency, and all of it becomes heat.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from trainrig.errors import UsageError
from trainrig.procure.part_catalog import chip_of
from trainrig.procure.parts import (
    Cooler,
    DiskPart,
    GpuCard,
    MemoryModule,
    NetworkCard,
    PowerSupply,
    Processor,
    known_value,
)
from trainrig.procure.parts_list import Build, Use
from trainrig.procure.rule_book import (
    Check,
    awaits_processor,
    check,
    graded,
    needs,
    not_known,
    rule_book,
)
from trainrig.units import format_count, format_memory
from trainrig.workload.model import parameters
from trainrig.workload.model_lookup import find

_EFFICIENCY = 0.9
"""Presumed efficiency where no supply is named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Power:
    """Watts of a build at full load."""

    gpus: float
    cpu: float
    rest: float
    """Watts of RAM, disks, network, board and fans."""
    efficiency: float

    @property
    def parts(self) -> float:
        """Watts of all parts, behind the supplies."""
        return self.gpus + self.cpu + self.rest

    @property
    def wall(self) -> float:
        """Watts out of the outlet."""
        return self.parts / self.efficiency


def card_watts(card: GpuCard) -> float:
    """Return a card's power limit, or its chip's TDP.  Raises UsageError where neither is known."""
    chip = chip_of(card)
    watts = card.watts or chip.board.tdp
    form = chip.product.form_factor or "PCIe"
    if watts is None and not form.startswith("PCIe"):
        hint = "cards are GPUs for a PCIe slot: RTX 4090, H100 PCIe 80GB"
        raise UsageError(f"{card.name} is not sold as a card: its form is {form}", hint)
    if watts is None:
        raise UsageError(f"{card.name}: how many watts?", "watts = 350 in its entry")
    return watts


def power_of(build: Build) -> Power:
    """Return the watts of a build at full load."""
    rest_watts = rule_book().value("psu-watts", "rest_watts") if build.items else 0.0
    rest_watts += sum(module.watts for module in build.pieces(MemoryModule))
    rest_watts += sum(disk.watts for disk in build.pieces(DiskPart))
    rest_watts += sum(nic.watts for nic in build.pieces(NetworkCard))
    supplies = build.supplies
    return Power(
        gpus=sum(card_watts(card) for card in build.cards),
        cpu=sum(processor.watts for processor in build.pieces(Processor)),
        rest=rest_watts,
        efficiency=min((supply.efficiency for supply in supplies), default=_EFFICIENCY),
    )


def rating(supply: PowerSupply, build: Build) -> float:
    """Return watts that a supply gives at the room's voltage."""
    volts = build.room.volts
    low = rule_book().value("outlet", "low_volts")
    return (
        min(supply.watts, supply.watts_115v or supply.watts)
        if volts and volts < low
        else (supply.watts)
    )


def _sum_text(build: Build) -> str:
    power = power_of(build)
    counts = Counter(card_watts(card) for card in build.cards)
    gpus = " + ".join(f"{n} × {watts:g} W" for watts, n in counts.items())
    parts = [gpus, f"{power.cpu:g} W processor" if power.cpu else "", f"{power.rest:g} W rest"]
    return " + ".join(part for part in parts if part)


@awaits_processor
def psu_watts(build: Build) -> Iterator[Check]:
    """Check that supplies carry the load with room."""
    if not build.supplies:
        return
    book = rule_book()
    most_load, good_load = book.value("psu-watts", "most"), book.value("psu-watts", "good")
    have = sum(rating(supply, build) for supply in build.supplies)
    need = power_of(build).parts
    used = need / (most_load * have)
    sign = "≤" if used <= 1 else ">"
    bound = most_load if used > 1.0 else good_load  # advice by the rule that it answers
    rated = math.ceil(need / bound - 1e-9)
    enough = f"{rated:,} W or more as the supply's rating ({need:,.0f} W / {bound:g}), "
    if not build.pieces(Processor):
        enough = ""  # of a sum that lacks the processor no supply follows
    yield graded(
        "psu-watts",
        used,
        good_load / most_load,
        f"{need / have:.0%} of the supplies' {have:,.0f} W" if used <= 1 else "too few watts",
        f"{_sum_text(build)} = {need:,.0f} W {sign} {most_load:g} × {have:,.0f} W "
        f"= {most_load * have:,.0f} W",
        f"{enough}fewer cards, or a power limit (watts = … of the card)",
    )


def psu_rating(build: Build) -> Iterator[Check]:
    """Check that no supply is rated above what its inlet carries."""
    values = rule_book().rules["psu-rating"].values
    amperes, volts = values["inlet_amperes"], values["inlet_volts"]
    amperes = min(amperes, build.room.breaker_amps or amperes)
    volts = min(volts, build.room.volts or volts)
    largest = amperes * volts
    for supply, _ in build.part_counts(PowerSupply):
        drawn = supply.watts / supply.efficiency
        fits = drawn <= largest
        yield check(
            "psu-rating",
            fits,
            f"{supply.name} on one inlet" if fits else f"no inlet carries {supply.watts:,.0f} W",
            f"{supply.watts:,.0f} W / {supply.efficiency:g} = {drawn:,.0f} W "
            f"{'≤' if fits else '>'} {amperes:g} A × {volts:g} V = {largest:,.0f} W",
            "several supplies, and psu_sync = true under [wiring]",
            used=drawn / largest,
        )


def outlet(build: Build) -> Iterator[Check]:
    """Check that a supply gives its rating at the room's voltage."""
    volts = build.room.volts
    if volts is None or volts >= rule_book().value("outlet", "low_volts"):
        return
    sure = rule_book().value("outlet", "sure_watts")
    for supply, _ in build.part_counts(PowerSupply):
        if supply.watts_115v is None and supply.watts > sure:
            yield not_known("outlet", supply, "watts_115v")
        if supply.watts_115v is not None and supply.watts_115v < supply.watts:
            yield graded(
                "outlet",
                0.99,
                0.5,
                f"{supply.name} gives less at {volts:g} V",
                f"{supply.watts_115v:g} W < {supply.watts:g} W",
                "an outlet of 200 to 240 V",
            )


def breaker(build: Build) -> Iterator[Check]:
    """Check that the circuit carries it for hours."""
    room = build.room
    if room.volts is None or room.breaker_amps is None:
        return
    most_load = rule_book().value("breaker", "most")
    supplies = max(1, len(build.supplies))
    # A supply hangs on one circuit: three on two circuits load one of them with two thirds.
    circuits = supplies / math.ceil(supplies / room.circuits)
    have = most_load * room.volts * room.breaker_amps * circuits
    power = power_of(build)
    need = power.wall + room.other_watts
    other_text = f" + {room.other_watts:g} W" if room.other_watts else ""
    spread = f" × {circuits:.3g} circuits" if circuits > 1 else ""
    yield check(
        "breaker",
        need <= have,
        "the circuit carries it" if need <= have else "the breaker trips after minutes",
        f"{power.parts:,.0f} W / {power.efficiency:g}{other_text} = {need:,.0f} W "
        f"{'≤' if need <= have else '>'} {most_load:g} × {room.volts:g} V × {room.breaker_amps:g} A"
        f"{spread} = {have:,.0f} W",
        "a circuit of more amperes or 230 V, a second one with a second supply, or a power limit",
        used=need / have,
    )


def heat(build: Build) -> Iterator[Check]:
    """Check that the room takes the heat."""
    factor = rule_book().value("heat", "btu_per_h_and_watt")
    wall = power_of(build).wall
    need = wall * factor
    cooling = build.room.cooling_btu_per_h
    if cooling is None:
        text = f"{wall:,.0f} W × {factor:g} = {need:,.0f} BTU/h"
        yield check("heat", True, "heat into the room", text)
        return
    yield check(
        "heat",
        need <= cooling,
        "the room's cooling takes it" if need <= cooling else "the room heats up",
        f"{wall:,.0f} W × {factor:g} = {need:,.0f} BTU/h {'≤' if need <= cooling else '>'} "
        f"{cooling:,.0f} BTU/h",
        "more cooling, another room, or a power limit",
        used=need / cooling,
    )


@needs("noise", "gpu.cooling")
def noise(build: Build) -> Iterator[Check]:
    """Check that levels add up to what the room allows."""
    limit, chassis = build.room.noise_limit_db, build.chassis
    if limit is None:
        return
    usual = rule_book().rules["noise"].values
    levels = [card.noise_db or usual[known_value(card.cooling)] for card in build.cards]
    levels += [cooler.noise_db or usual["cooler"] for cooler in build.pieces(Cooler)]
    if chassis is not None:
        levels.append(chassis.noise_db or usual[chassis.airflow])
    levels = [level for level in levels if level > 0]
    if not levels:
        return
    total = 10.0 * math.log10(sum(10.0 ** (level / 10.0) for level in levels))
    listed = ", ".join(
        f"{count} × {level:g} dB" for level, count in sorted(Counter(levels).items(), reverse=True)
    )
    yield check(
        "noise",
        total <= limit,
        f"{total:.0f} dB at a metre",
        f"{listed}: 10 log10 of the sum = {total:.1f} dB {'≤' if total <= limit else '>'} "
        f"{limit:g} dB",
        "water-cooled or larger cards, another room, or a power limit",
    )


def memory_size(build: Build) -> Iterator[Check]:
    """Check that RAM holds what the GPUs hold."""
    if not build.cards:
        return
    book = rule_book()
    least_ratio, good_ratio = book.value("memory-size", "least"), book.value("memory-size", "good")
    gpus = sum(chip_of(card).memory.size or 0.0 for card in build.cards)
    have = sum(module.capacity_gib for module in build.pieces(MemoryModule)) * 2.0**30
    if not have or not gpus:
        return
    times = have / gpus
    advised = least_ratio if times < least_ratio else good_ratio
    yield graded(
        "memory-size",
        least_ratio / times,
        least_ratio / good_ratio,
        f"{times:.2g} × the memory of the GPUs",
        f"{format_memory(have)} {'≥' if times >= least_ratio else '<'} {least_ratio:g} × "
        f"{format_memory(gpus)}",
        f"{format_memory(advised * gpus)} of RAM",
    )


def disk_need(use: Use) -> tuple[float, str]:
    """Return the bytes that a use stores, and their sum as text."""
    values = rule_book().rules["disk-capacity"].values
    need = values["system_tb"] * 1e12
    parts = [f"{values['system_tb']:g} TB system"]
    shape = find(use.model) if use.model is not None else None
    if use.tokens is not None:
        is_wide = shape is not None and shape.vocab > 1 << 16
        bytes_per_token = use.bytes_per_token or (4.0 if is_wide else 2.0)
        need += use.tokens * bytes_per_token
        parts.append(f"{format_count(use.tokens)} tokens × {bytes_per_token:g} B")
    if shape is not None:
        number = parameters(shape).total
        need += number * use.bytes_per_parameter * use.keep_checkpoints
        parts.append(
            f"{use.keep_checkpoints} checkpoints × {format_count(number)} × "
            f"{use.bytes_per_parameter:g} B"
        )
    if use.disk_tb is not None:
        need += use.disk_tb * 1e12
        parts.append(f"{use.disk_tb:g} TB")
    return need, " + ".join(parts)


def disk_capacity(build: Build) -> Iterator[Check]:
    """Check that data and checkpoints fit."""
    have = sum(disk.capacity_tb * count for disk, count in build.part_counts(DiskPart)) * 1e12
    if not have:
        return
    most_full = rule_book().value("disk-capacity", "most")
    need, text = disk_need(build.use)
    fits = need <= most_full * have
    yield check(
        "disk-capacity",
        fits,
        "data and checkpoints fit" if fits else "too little disk for data and checkpoints",
        f"{text} = {need / 1e12:.3g} TB {'≤' if fits else '>'} {most_full:g} × "
        f"{have / 1e12:.3g} TB",
        f"{need / most_full / 1e12:.2g} TB of disks, or fewer checkpoints",
        used=need / (most_full * have),
    )
