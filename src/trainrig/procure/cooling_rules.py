"""Whether processors are cooled, and radiators have a place.

Functions as those of `fit_rules`: a rule of catalog/build_rules.toml each.  Most makers of coolers
state no watts; a cooler of one that does not is asked for, and judged by socket and size alone.
"""

from __future__ import annotations

from collections.abc import Iterator

from trainrig.procure.parts import Cooler, GpuCard, Processor, known_value
from trainrig.procure.parts_list import Build
from trainrig.procure.rule_book import Check, check, needs, not_known
from trainrig.units import counted


@needs("cooler", "cooling.sockets")
def cooler(build: Build) -> Iterator[Check]:
    """Check that the processor is cooled."""
    processors, coolers = build.pieces(Processor), build.pieces(Cooler)
    if not processors or not coolers:
        return
    processor, cooler_part = processors[0], coolers[0]
    sockets = known_value(cooler_part.sockets)
    socket_names = {name.casefold() for name in sockets}
    yield check(
        "cooler",
        processor.socket.casefold() in socket_names,
        f"{cooler_part.name} on {processor.socket}",
        f"{processor.socket} among {', '.join(sockets)}",
        f"a cooler for {processor.socket}",
    )
    yield check(
        "cooler",
        len(coolers) >= len(processors),
        "a cooler for each processor",
        f"{len(coolers)} for {len(processors)}",
        f"count = {len(processors)}",
    )


@needs("cooler", "cooling.watts", "cpu.watts")
def cooler_watts(build: Build) -> Iterator[Check]:
    """Check that the cooler takes away what the processor turns into heat."""
    processors, coolers = build.pieces(Processor), build.pieces(Cooler)
    if not processors or not coolers:
        return
    processor, cooler_part = processors[0], coolers[0]
    takes = known_value(cooler_part.watts)
    fits = processor.watts <= takes
    yield check(
        "cooler",
        fits,
        f"{cooler_part.name} takes away {takes:g} W",
        f"{processor.watts:g} W {'≤' if fits else '>'} {takes:g} W",
        "a larger cooler, or a limit of the processor's power",
        used=processor.watts / takes,
    )


def cooler_height(build: Build) -> Iterator[Check]:
    """Check that the cooler is no higher than the case allows."""
    chassis, coolers = build.chassis, build.pieces(Cooler)
    if chassis is None or not coolers or coolers[0].radiator_mm is not None:
        return
    cooler_part, most_height = coolers[0], chassis.room("cooler_height_mm")
    if cooler_part.height_mm is None:
        yield not_known("cooler", cooler_part, "height_mm")
    if most_height is None:
        yield not_known("cooler", chassis, "cooler_height_mm")
    if cooler_part.height_mm is None or most_height is None:
        return
    low = cooler_part.height_mm <= most_height
    yield check(
        "cooler",
        low,
        f"{cooler_part.name} in {chassis.name}",
        f"{cooler_part.height_mm:g} mm {'≤' if low else '>'} {most_height:g} mm",
        "a lower cooler, or a wider case",
        used=cooler_part.height_mm / most_height,
    )


def radiator(build: Build) -> Iterator[Check]:
    """Check that radiators have a place."""
    chassis = build.chassis
    if chassis is None or chassis.airflow == "open":  # they hang outside
        return
    wet: list[Cooler | GpuCard] = [cooler for cooler in build.pieces(Cooler) if cooler.radiator_mm]
    wet += [card for card in build.cards if card.cooling == "water" or card.radiator_mm]
    most_radiators = max(chassis.radiators or 1, chassis.riser_cards)
    if len(wet) > most_radiators and chassis.radiators is None:
        yield not_known("radiator", chassis, "radiators")
    elif wet:
        yield check(
            "radiator",
            len(wet) <= most_radiators,
            f"{counted(len(wet), 'radiator')} in {chassis.name}",
            f"{len(wet)} {'≤' if len(wet) <= most_radiators else '>'} {most_radiators}",
            "fewer water-cooled parts, one loop for all, or an open frame",
        )
    for part in {part.name: part for part in wet}.values():
        size, most_length = part.radiator_mm, chassis.radiator_mm
        if size is None:
            yield not_known("radiator", part, "radiator_mm")
        elif most_length is None:
            yield not_known("radiator", chassis, "radiator_mm")
        else:
            yield check(
                "radiator",
                size <= most_length,
                f"radiator of {part.name} in {chassis.name}",
                f"{size} mm {'≤' if size <= most_length else '>'} {most_length} mm",
                "a smaller radiator, or a larger case",
            )
