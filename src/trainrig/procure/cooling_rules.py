"""Whether processors are cooled, and radiators have a place.

Functions as those of `fit_rules`: a rule of catalog/build_rules.toml each.  Most makers of coolers
state no watts; a cooler of one that does not is asked for, and judged by socket and size alone.
"""

from __future__ import annotations

from collections.abc import Iterator

from trainrig.procure.parts import Cooler, GpuCard, Processor, stated
from trainrig.procure.parts_list import Build
from trainrig.procure.rule_book import Check, check, needs, not_known
from trainrig.units import counted


@needs("cooler", "cooling.sockets")
def cooler(build: Build) -> Iterator[Check]:
    """The processor is cooled."""
    processors, coolers = build.each(Processor), build.each(Cooler)
    if not processors or not coolers:
        return
    processor, one = processors[0], coolers[0]
    sockets = stated(one.sockets)
    known = {name.casefold() for name in sockets}
    yield check(
        "cooler",
        processor.socket.casefold() in known,
        f"{one.name} on {processor.socket}",
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
    """The cooler takes away what the processor turns into heat."""
    processors, coolers = build.each(Processor), build.each(Cooler)
    if not processors or not coolers:
        return
    processor, one = processors[0], coolers[0]
    takes = stated(one.watts)
    fits = processor.watts <= takes
    yield check(
        "cooler",
        fits,
        f"{one.name} takes away {takes:g} W",
        f"{processor.watts:g} W {'≤' if fits else '>'} {takes:g} W",
        "a larger cooler, or a limit of the processor's power",
        used=processor.watts / takes,
    )


def cooler_height(build: Build) -> Iterator[Check]:
    """The cooler is no higher than the case allows."""
    chassis, coolers = build.chassis, build.each(Cooler)
    if chassis is None or not coolers or coolers[0].radiator_mm is not None:
        return
    one, room = coolers[0], chassis.room("cooler_height_mm")
    if one.height_mm is None:
        yield not_known("cooler", one, "height_mm")
    if room is None:
        yield not_known("cooler", chassis, "cooler_height_mm")
    if one.height_mm is None or room is None:
        return
    low = one.height_mm <= room
    yield check(
        "cooler",
        low,
        f"{one.name} in {chassis.name}",
        f"{one.height_mm:g} mm {'≤' if low else '>'} {room:g} mm",
        "a lower cooler, or a wider case",
        used=one.height_mm / room,
    )


def radiator(build: Build) -> Iterator[Check]:
    """Radiators have a place."""
    chassis = build.chassis
    if chassis is None or chassis.airflow == "open":  # they hang outside
        return
    wet: list[Cooler | GpuCard] = [one for one in build.each(Cooler) if one.radiator_mm]
    wet += [one for one in build.cards if one.cooling == "water" or one.radiator_mm]
    most = max(chassis.radiators or 1, chassis.riser_cards)
    if len(wet) > most and chassis.radiators is None:
        yield not_known("radiator", chassis, "radiators")
    elif wet:
        yield check(
            "radiator",
            len(wet) <= most,
            f"{counted(len(wet), 'radiator')} in {chassis.name}",
            f"{len(wet)} {'≤' if len(wet) <= most else '>'} {most}",
            "fewer water-cooled parts, one loop for all, or an open frame",
        )
    for one in {part.name: part for part in wet}.values():
        size, room = one.radiator_mm, chassis.radiator_mm
        if size is None:
            yield not_known("radiator", one, "radiator_mm")
        elif room is None:
            yield not_known("radiator", chassis, "radiator_mm")
        else:
            yield check(
                "radiator",
                size <= room,
                f"radiator of {one.name} in {chassis.name}",
                f"{size} mm {'≤' if size <= room else '>'} {room} mm",
                "a smaller radiator, or a larger case",
            )
