"""What a search of builds chooses from: offers, how many of each, and what goes with what.

A choice is so many of one offered part; of cards, with so many lanes for the one that has fewest.
Two choices go together where no rule of builds that speaks of both alone is broken.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from trainrig.procure.load_rules import card_watts
from trainrig.procure.part_catalog import chip_of
from trainrig.procure.parts import (
    Board,
    Chassis,
    Connector,
    Cooler,
    DiskPart,
    GpuCard,
    MemoryModule,
    Part,
    PowerSupply,
    Processor,
    kind_of,
    stated,
)
from trainrig.procure.parts_list import Room
from trainrig.procure.placement import place
from trainrig.procure.rule_book import rule_book

MOST_GPUS = 8
CLASSES = (16, 8, 4)
"""Lanes of the GPU that has fewest, as if all were of the card's own generation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A part that can be had, at a price."""

    part: Part
    price: float
    origin: str

    @property
    def kind(self) -> str:
        """Of the part."""
        return kind_of(self.part)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A variable: so many of an offered part; of cards, with so many lanes at least."""

    offer: Offer
    count: int = 1
    lanes: int = 0

    @property
    def kind(self) -> str:
        return self.offer.kind

    @property
    def price(self) -> float:
        return self.offer.price * self.count


def worth_choosing(offers: Sequence[Offer]) -> list[Offer]:
    """Offers that no other replaces: one of the kind at no more money that is as good in all.

    As good is what a rule of builds may ask for, so the best build's price is unchanged.
    """
    found: list[Offer] = []
    for offer in sorted(offers, key=lambda one: one.price):
        same = (one for one in found if one.kind == offer.kind)
        if not any(_replaces(one.part, offer.part) for one in same):
            found.append(offer)
    return found


def _replaces(part: Part, other: Part) -> bool:
    """Whether ``part`` does in every build whatever ``other`` of its kind does."""
    match part, other:
        case GpuCard(), GpuCard():
            same = (part.chip, part.cooling) == (other.chip, other.cooling)
            good = _none_more(_taken_by(part), _taken_by(other))
        case PowerSupply(), PowerSupply():
            same = stated(part.atx) >= stated(other.atx)
            good = _none_more(_given_by(other), _given_by(part))
        case Processor(), Processor():
            same = (part.socket, part.memory_channels) == (other.socket, other.memory_channels)
            same = same and set(part.memory_types) >= set(other.memory_types)
            good = _none_more(
                (stated(other.lanes), other.generation or 0, part.watts),
                (stated(part.lanes), part.generation or 0, other.watts),
            )
        case Cooler(), Cooler():
            same = (part.radiator_mm is None) == (other.radiator_mm is None)
            sockets = {one.casefold() for one in stated(part.sockets)}
            same = same and sockets >= {one.casefold() for one in stated(other.sockets)}
            good = _none_more(
                (part.radiator_mm or 0, part.height_mm or 0, *_noise(part), _taken(other)),
                (other.radiator_mm or 0, other.height_mm or 0, *_noise(other), _taken(part)),
            )
        case Chassis(), Chassis():
            same = (part.airflow, part.rack_units) == (other.airflow, other.rack_units)
            same = same and set(stated(part.form_factors)) >= set(stated(other.form_factors))
            good = _none_more(_rooms_of(other), _rooms_of(part))
            good = good and _none_more(_noise(part), _noise(other))
        case MemoryModule(), MemoryModule():
            same = part.memory_type == other.memory_type and part.registered == other.registered
            good = part.capacity_gib == other.capacity_gib and part.watts <= other.watts
        case DiskPart(), DiskPart():
            same = part.interface == other.interface
            good = part.capacity_tb >= other.capacity_tb and part.watts <= other.watts
        case _:
            return False
    return same and good


def _none_more(first: Sequence[float], second: Sequence[float]) -> bool:
    return all(one <= other for one, other in zip(first, second, strict=True))


_PLUGS: tuple[Connector, ...] = ("12V-2x6", "8-pin", "6-pin", "eps", "8-pin-eps")


def _taken_by(card: GpuCard) -> list[float]:
    """What a card takes: room, watts, plugs, and what it is heard of."""
    plugs = [float(stated(card.connectors).get(name, 0)) for name in _PLUGS]
    size = [stated(card.length_mm), stated(card.slots), card_watts(card), card.radiator_mm or 0.0]
    return [*size, *_noise(card), *plugs]


def _given_by(supply: PowerSupply) -> list[float]:
    plugs = [float(stated(supply.connectors).get(name, 0)) for name in _PLUGS]
    return [supply.watts, supply.watts_115v or supply.watts, supply.efficiency, *plugs]


def _rooms_of(case: Chassis) -> list[float]:
    wide = [case.room(name) or 0.0 for name in ("gpu_length_mm", "slots", "cooler_height_mm")]
    wet = [case.radiator_mm or 0, case.radiators or 1]
    return [*wide, case.psu_bays or 1, *wet, case.riser_cards]


def _taken(cooler: Cooler) -> float:
    """Watts; without an end where its maker states none, as in what goes with what."""
    return cooler.watts or math.inf


def _noise(part: GpuCard | Cooler | Chassis) -> list[float]:
    """Its level; one that is not stated is as loud as is usual."""
    usual = rule_book().rules["noise"].values
    match part:
        case GpuCard():
            return [part.noise_db or usual[stated(part.cooling)]]
        case Cooler():
            return [part.noise_db or usual["cooler"]]
        case Chassis():
            return [part.noise_db or usual[part.airflow]]


def choices_of(offer: Offer, most: float, boards: Sequence[Board]) -> Iterator[Choice]:
    """The variables of an offer: counts, and of cards the classes of lanes that a board has."""

    def affordable(count: int) -> bool:
        return offer.price * count <= most

    match offer.part:
        case GpuCard() as card:
            for count in filter(affordable, range(1, MOST_GPUS + 1)):
                there = {lanes_class(card, count, board) for board in boards}
                yield from (
                    Choice(offer=offer, count=count, lanes=lanes)
                    for lanes in CLASSES
                    if lanes in there
                )
        case part:  # network, risers and bridges are none: by hand, and build check
            for count in filter(affordable, _COUNTS.get(kind_of(part), ())):
                yield Choice(offer=offer, count=count)


_COUNTS = {
    "ram": (1, 2, 4, 6, 8, 12),
    "disk": (1, 2, 3, 4),
    "psu": (1, 2),
    **dict.fromkeys(("board", "cpu", "case", "cooling"), (1,)),
}


_ROOMY = Chassis(
    name="any case",
    form_factors=(),
    gpu_length_mm=1e3,
    slots=20,
    cooler_height_mm=1e3,
    airflow="open",
)


def lanes_class(card: GpuCard, count: int, board: Board) -> int:
    """The class of lanes that so many cards get on a board; 0 where they cannot stand there."""
    if count > 1 and any(slot.position is None for slot in stated(board.slots)):
        return 0
    found = place([card] * count, board, _ROOMY)
    if found is None:
        return 0
    if card.cooling == "axial" and found.crowded > rule_book().value("airflow", "most_touching"):
        return 0
    own = chip_of(card).pcie.generation or 4
    lanes = min(
        seat.lanes / 2 ** max(0, own - min(own, seat.slot.generation)) for seat in found.gpus()
    )
    if count == 1:
        return 16
    return next((one for one in CLASSES if lanes >= one), 0)


def radiators(choice: Choice) -> float:
    """Places for radiators that a case has, less those that are needed."""
    match choice.offer.part:
        case GpuCard() | Cooler() as part:
            return -float(choice.count) if part.radiator_mm else 0.0
        case Chassis() as case:
            if case.airflow == "open":
                return 99.0
            return float(max(case.radiators or 1, case.riser_cards))
    return 0.0


def rating_at(supply: PowerSupply, room: Room) -> float:
    low = room.volts is not None and room.volts < rule_book().value("outlet", "low_volts")
    return min(supply.watts, supply.watts_115v or supply.watts) if low else supply.watts


def eight_pins(card: GpuCard) -> int:
    """Plugs of 8 pins, and three for a 12V-2x6, as its adapters have."""
    found = stated(card.connectors)
    return (
        found.get("8-pin", 0)
        + found.get("6-pin", 0)
        + 2 * found.get("8-pin-eps", 0)
        + 3 * found.get("12V-2x6", 0)
    )


# ---- what goes with what


def _card_board(first: Choice, second: Choice) -> bool:
    card, board = first.offer.part, second.offer.part
    assert isinstance(card, GpuCard) and isinstance(board, Board)
    return lanes_class(card, first.count, board) >= first.lanes


def _card_case(first: Choice, second: Choice) -> bool:
    card, case = first.offer.part, second.offer.part
    assert isinstance(card, GpuCard) and isinstance(case, Chassis)
    air = card.cooling != "passive" or case.airflow == "front-to-back"
    return stated(card.length_mm) <= stated(case.room("gpu_length_mm")) and air and _wet(card, case)


def _wet(part: GpuCard | Cooler, case: Chassis) -> bool:
    """Whether a case surely has a place for a part's radiator."""
    if part.radiator_mm is None or case.airflow == "open":
        return True
    return case.radiator_mm is not None and part.radiator_mm <= case.radiator_mm


def _board_case(first: Choice, second: Choice) -> bool:
    board, case = first.offer.part, second.offer.part
    assert isinstance(board, Board) and isinstance(case, Chassis)
    return board.form_factor in stated(case.form_factors)


def _cpu_board(first: Choice, second: Choice) -> bool:
    processor, board = first.offer.part, second.offer.part
    assert isinstance(processor, Processor) and isinstance(board, Board)
    same = processor.socket.casefold() == board.socket.casefold()
    return same and board.memory_type in processor.memory_types


def _ram_board(first: Choice, second: Choice) -> bool:
    module, board = first.offer.part, second.offer.part
    assert isinstance(module, MemoryModule) and isinstance(board, Board)
    same = module.memory_type == board.memory_type
    same = same and board.registered in (None, module.registered)
    total = module.capacity_gib * first.count
    even = first.count % board.memory_channels == 0
    fits = first.count <= stated(board.memory_slots) and total <= (board.memory_max_gib or math.inf)
    return same and even and fits


def _cooler_cpu(first: Choice, second: Choice) -> bool:
    cooler, processor = first.offer.part, second.offer.part
    assert isinstance(cooler, Cooler) and isinstance(processor, Processor)
    known = {name.casefold() for name in stated(cooler.sockets)}
    return processor.socket.casefold() in known and processor.watts <= _taken(cooler)


def _cooler_case(first: Choice, second: Choice) -> bool:
    cooler, case = first.offer.part, second.offer.part
    assert isinstance(cooler, Cooler) and isinstance(case, Chassis)
    if cooler.radiator_mm is not None:
        return _wet(cooler, case)
    return (cooler.height_mm or 0.0) <= stated(case.room("cooler_height_mm"))


def _supply_case(first: Choice, second: Choice) -> bool:
    case = second.offer.part
    assert isinstance(case, Chassis)
    return first.count <= (case.psu_bays or 1)


def _disk_board(first: Choice, second: Choice) -> bool:
    disk, board = first.offer.part, second.offer.part
    assert isinstance(disk, DiskPart) and isinstance(board, Board)
    ports = {"m2": board.m2_slots, "sata": board.sata_ports, "u2": board.u2_ports}
    return first.count <= (ports[stated(disk.interface)] or 0)


PAIRS = (
    ("gpu", "board", _card_board),
    ("gpu", "case", _card_case),
    ("board", "case", _board_case),
    ("cpu", "board", _cpu_board),
    ("ram", "board", _ram_board),
    ("cooling", "cpu", _cooler_cpu),
    ("cooling", "case", _cooler_case),
    ("psu", "case", _supply_case),
    ("disk", "board", _disk_board),
)
