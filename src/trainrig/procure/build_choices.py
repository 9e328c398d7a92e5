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
    known_value,
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
        """Kind of the part."""
        return kind_of(self.part)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Variable of the search: a count of an offered part, for cards with least lanes."""

    offer: Offer
    count: int = 1
    lanes: int = 0

    @property
    def kind(self) -> str:
        return self.offer.kind

    @property
    def price(self) -> float:
        return self.offer.price * self.count


def undominated_offers(offers: Sequence[Offer]) -> list[Offer]:
    """Return the offers that no cheaper one of their kind replaces.

    As good is what a rule of builds may ask for, so the best build's price is unchanged.
    """
    kept_offers: list[Offer] = []
    for offer in sorted(offers, key=lambda kept_offer: kept_offer.price):
        same = (kept_offer for kept_offer in kept_offers if kept_offer.kind == offer.kind)
        if not any(_replaces(other.part, offer.part) for other in same):
            kept_offers.append(offer)
    return kept_offers


def _replaces(part: Part, other: Part) -> bool:
    """Return whether ``part`` does whatever ``other`` of its kind does in every build."""
    match part, other:
        case GpuCard(), GpuCard():
            is_interchangeable = (part.chip, part.cooling) == (other.chip, other.cooling)
            is_as_good = _none_more(_card_demands(part), _card_demands(other))
        case PowerSupply(), PowerSupply():
            is_interchangeable = known_value(part.atx) >= known_value(other.atx)
            is_as_good = _none_more(_given_by(other), _given_by(part))
        case Processor(), Processor():
            is_interchangeable = (part.socket, part.memory_channels) == (
                other.socket,
                other.memory_channels,
            )
            is_interchangeable = is_interchangeable and set(part.memory_types) >= set(
                other.memory_types
            )
            is_as_good = _none_more(
                (known_value(other.lanes), other.generation or 0, part.watts),
                (known_value(part.lanes), part.generation or 0, other.watts),
            )
        case Cooler(), Cooler():
            is_interchangeable = (part.radiator_mm is None) == (other.radiator_mm is None)
            sockets = {socket.casefold() for socket in known_value(part.sockets)}
            is_interchangeable = is_interchangeable and sockets >= {
                socket.casefold() for socket in known_value(other.sockets)
            }
            is_as_good = _none_more(
                (part.radiator_mm or 0, part.height_mm or 0, *_noise(part), _cooler_watts(other)),
                (other.radiator_mm or 0, other.height_mm or 0, *_noise(other), _cooler_watts(part)),
            )
        case Chassis(), Chassis():
            is_interchangeable = (part.airflow, part.rack_units) == (
                other.airflow,
                other.rack_units,
            )
            is_interchangeable = is_interchangeable and set(known_value(part.form_factors)) >= set(
                known_value(other.form_factors)
            )
            is_as_good = _none_more(_rooms_of(other), _rooms_of(part))
            is_as_good = is_as_good and _none_more(_noise(part), _noise(other))
        case MemoryModule(), MemoryModule():
            is_interchangeable = (
                part.memory_type == other.memory_type and part.registered == other.registered
            )
            is_as_good = part.capacity_gib == other.capacity_gib and part.watts <= other.watts
        case DiskPart(), DiskPart():
            is_interchangeable = part.interface == other.interface
            is_as_good = part.capacity_tb >= other.capacity_tb and part.watts <= other.watts
        case _:
            return False
    return is_interchangeable and is_as_good


def _none_more(first: Sequence[float], second: Sequence[float]) -> bool:
    return all(
        first_value <= second_value for first_value, second_value in zip(first, second, strict=True)
    )


_PLUGS: tuple[Connector, ...] = ("12V-2x6", "8-pin", "6-pin", "eps", "8-pin-eps")


def _card_demands(card: GpuCard) -> list[float]:
    """Return a card's demands: size, watts, plugs and noise."""
    plugs = [float(known_value(card.connectors).get(name, 0)) for name in _PLUGS]
    size = [
        known_value(card.length_mm),
        known_value(card.slots),
        card_watts(card),
        card.radiator_mm or 0.0,
    ]
    return [*size, *_noise(card), *plugs]


def _given_by(supply: PowerSupply) -> list[float]:
    plugs = [float(known_value(supply.connectors).get(name, 0)) for name in _PLUGS]
    return [supply.watts, supply.watts_115v or supply.watts, supply.efficiency, *plugs]


def _rooms_of(case: Chassis) -> list[float]:
    wide = [case.room(name) or 0.0 for name in ("gpu_length_mm", "slots", "cooler_height_mm")]
    wet = [case.radiator_mm or 0, case.radiators or 1]
    return [*wide, case.psu_bays or 1, *wet, case.riser_cards]


def _cooler_watts(cooler: Cooler) -> float:
    """Return the watts that a cooler takes away; infinite where its maker states none."""
    return cooler.watts or math.inf


def _noise(part: GpuCard | Cooler | Chassis) -> list[float]:
    """Return a part's noise level in dB, the usual one where none is stated."""
    usual = rule_book().rules["noise"].values
    match part:
        case GpuCard():
            return [part.noise_db or usual[known_value(part.cooling)]]
        case Cooler():
            return [part.noise_db or usual["cooler"]]
        case Chassis():
            return [part.noise_db or usual[part.airflow]]


def choices_of(offer: Offer, most_pieces: float, boards: Sequence[Board]) -> Iterator[Choice]:
    """Yield the variables of an offer: counts, and for cards the classes of lanes."""

    def affordable(count: int) -> bool:
        return offer.price * count <= most_pieces

    match offer.part:
        case GpuCard() as card:
            for count in filter(affordable, range(1, MOST_GPUS + 1)):
                lane_classes = {lanes_class(card, count, board) for board in boards}
                yield from (
                    Choice(offer=offer, count=count, lanes=lanes)
                    for lanes in CLASSES
                    if lanes in lane_classes
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


_UNLIMITED_CASE = Chassis(
    name="any case",
    form_factors=(),
    gpu_length_mm=1e3,
    slots=20,
    cooler_height_mm=1e3,
    airflow="open",
)


def lanes_class(card: GpuCard, count: int, board: Board) -> int:
    """Return the class of lanes that ``count`` cards get on a board; 0 where they do not fit."""
    if count > 1 and any(slot.position is None for slot in known_value(board.slots)):
        return 0
    placement = place([card] * count, board, _UNLIMITED_CASE)
    if placement is None:
        return 0
    if card.cooling == "axial" and placement.crowded > rule_book().value(
        "airflow", "most_touching"
    ):
        return 0
    card_generation = chip_of(card).pcie.generation or 4
    lanes = min(
        seat.lanes / 2 ** max(0, card_generation - min(card_generation, seat.slot.generation))
        for seat in placement.gpus()
    )
    if count == 1:
        return 16
    return next((lanes_in_class for lanes_in_class in CLASSES if lanes >= lanes_in_class), 0)


def radiators(choice: Choice) -> float:
    """Return the free radiator places of a case, or minus those that a part needs."""
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
    """Return the 8-pin plugs of a card; a 12V-2x6 counts as three."""
    connectors = known_value(card.connectors)
    return (
        connectors.get("8-pin", 0)
        + connectors.get("6-pin", 0)
        + 2 * connectors.get("8-pin-eps", 0)
        + 3 * connectors.get("12V-2x6", 0)
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
    return (
        known_value(card.length_mm) <= known_value(case.room("gpu_length_mm"))
        and air
        and _has_radiator_place(card, case)
    )


def _has_radiator_place(part: GpuCard | Cooler, case: Chassis) -> bool:
    """Return whether a case surely has a place for a part's radiator."""
    if part.radiator_mm is None or case.airflow == "open":
        return True
    return case.radiator_mm is not None and part.radiator_mm <= case.radiator_mm


def _board_case(first: Choice, second: Choice) -> bool:
    board, case = first.offer.part, second.offer.part
    assert isinstance(board, Board) and isinstance(case, Chassis)
    return board.form_factor in known_value(case.form_factors)


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
    fits = first.count <= known_value(board.memory_slots) and total <= (
        board.memory_max_gib or math.inf
    )
    return same and even and fits


def _cooler_cpu(first: Choice, second: Choice) -> bool:
    cooler, processor = first.offer.part, second.offer.part
    assert isinstance(cooler, Cooler) and isinstance(processor, Processor)
    sockets = {name.casefold() for name in known_value(cooler.sockets)}
    return processor.socket.casefold() in sockets and processor.watts <= _cooler_watts(cooler)


def _cooler_case(first: Choice, second: Choice) -> bool:
    cooler, case = first.offer.part, second.offer.part
    assert isinstance(cooler, Cooler) and isinstance(case, Chassis)
    if cooler.radiator_mm is not None:
        return _has_radiator_place(cooler, case)
    return (cooler.height_mm or 0.0) <= known_value(case.room("cooler_height_mm"))


def _supply_case(first: Choice, second: Choice) -> bool:
    case = second.offer.part
    assert isinstance(case, Chassis)
    return first.count <= (case.psu_bays or 1)


def _disk_board(first: Choice, second: Choice) -> bool:
    disk, board = first.offer.part, second.offer.part
    assert isinstance(disk, DiskPart) and isinstance(board, Board)
    ports = {"m2": board.m2_slots, "sata": board.sata_ports, "u2": board.u2_ports}
    return first.count <= (ports[known_value(disk.interface)] or 0)


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
