"""Which card goes into which slot, with how many lanes: the best of all ways to plug them in.

A card covers as many positions as it is wide, from its slot's downwards; what it covers cannot be
used.  A card on a riser covers its slot's position alone, and needs a place elsewhere in the case.
Of all ways in which everything fits, the best has its bridges where they reach, then air between
open-air cards, then the most lanes for the GPU that has fewest.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from trainrig.procure.parts import Board, Chassis, GpuCard, NetworkCard, Riser, Slot, known_value

TOLERANCE = 0.15
"""Part of a slot position that a card may exceed: 3.1 slots stand in three."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """Slot, lanes and riser of one card."""

    card: int
    """Number of the GPU; −1 is a network card."""
    slot: Slot
    lanes: int
    on_riser: bool = False

    @property
    def text(self) -> str:
        """Position and lanes as text: ``position 3 x16``."""
        where = "a slot" if self.slot.position is None else f"position {self.slot.position}"
        return f"{where} x{self.lanes}" + (" by riser" if self.on_riser else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """All cards of a build in their places."""

    seats: tuple[Seat, ...]
    gap: float | None
    """Smallest space between two neighbours on the board, in positions; None: no neighbours."""
    crowded: int
    """Most open-air cards that stand in a row without a free position between them."""

    def gpus(self) -> list[Seat]:
        """Return the seats of GPUs, in the board's order."""
        gpu_seats = [seat for seat in self.seats if seat.card >= 0]
        return sorted(gpu_seats, key=lambda seat: seat.slot.position or 0)

    @property
    def fewest_lanes(self) -> int:
        """Fewest lanes of any GPU."""
        return min((seat.lanes for seat in self.gpus()), default=0)

    def distances(self) -> list[int]:
        """Return positions from each GPU on the board to the next one."""
        gpu_positions = [seat.slot.position or 0 for seat in self.gpus() if not seat.on_riser]
        return [later - earlier for earlier, later in itertools.pairwise(gpu_positions)]


def positions(card: GpuCard) -> int:
    """Return how many slot positions wide a card is, rounded up; at least 1."""
    return max(1, math.ceil(known_value(card.slots) - TOLERANCE))


def _divides(slot: Slot, split: int) -> bool:
    """Return whether a slot can feed ``split`` cards; where not known, another rule asks."""
    return slot.splits is None or split in slot.splits


def _positions(board: Board) -> tuple[int, ...]:
    """Return the position of each slot, one after the other where none is known."""
    slots = known_value(board.slots)
    positions_known = tuple(slot.position for slot in slots if slot.position is not None)
    return (
        positions_known if len(positions_known) == len(slots) else tuple(range(1, len(slots) + 1))
    )


def place(
    cards: Sequence[GpuCard],
    board: Board,
    chassis: Chassis,
    risers: Sequence[Riser] = (),
    nics: Sequence[NetworkCard] = (),
    spans: Sequence[int] = (),
) -> Placement | None:
    """Return the best placement, or None where not everything can be plugged in.

    Cards are put on risers, the widest first, where there are risers and places for them.
    ``spans``: distances in positions that bridges need between neighbours.  Widths of cards and
    positions of slots must be known, or not matter.
    """
    wired = known_value(board.slots)
    order = sorted(range(len(cards)), key=lambda number: -known_value(cards[number].slots))
    on_risers = min(sum(riser.splits for riser in risers), chassis.riser_cards, len(cards))
    on_riser = order[:on_risers]
    direct = order[on_risers:]
    widths = tuple(positions(cards[number]) for number in direct)
    feeds = tuple(sorted((riser.splits for riser in risers), reverse=True)) if on_risers else ()
    best = _best(
        widths,
        tuple(cards[number].cooling == "axial" for number in direct),
        tuple(known_value(cards[number].slots) for number in direct),
        board,
        int(known_value(chassis.room("slots"))),
        _used_risers(feeds, on_risers),
        tuple(nic.lanes for nic in nics),
        tuple(spans),
    )
    if best is None:
        return None
    slots, feeding, network, lanes, gap, crowded = best
    seats = [Seat(card=direct[i], slot=wired[n], lanes=lanes[n]) for i, n in enumerate(slots)]
    waiting = list(on_riser)
    for number, split in feeding:
        for _ in range(min(split, len(waiting))):
            share = lanes[number] // split
            seats.append(Seat(card=waiting.pop(0), slot=wired[number], lanes=share, on_riser=True))
    seats += [Seat(card=-1, slot=wired[n], lanes=lanes[n]) for n in network]
    return Placement(seats=tuple(seats), gap=gap, crowded=crowded)


def _used_risers(feeds: tuple[int, ...], on_risers: int) -> tuple[int, ...]:
    """Return risers that are used, those that feed most cards first."""
    used: list[int] = []
    for split in feeds:
        if sum(used) < on_risers:
            used.append(split)
    return tuple(used)


_Found = tuple[
    tuple[int, ...],
    tuple[tuple[int, int], ...],
    tuple[int, ...],
    tuple[int, ...],
    float | None,
    int,
]


@lru_cache(maxsize=4096)
def _best(
    widths: tuple[int, ...],
    axial: tuple[bool, ...],
    slots_wide: tuple[float, ...],
    board: Board,
    openings: int,
    feeds: tuple[int, ...],
    nics: tuple[int, ...],
    spans: tuple[int, ...],
) -> _Found | None:
    """Return slots of the cards on the board, of risers and network cards; lanes of all slots."""
    best: tuple[tuple[float, ...], _Found] | None = None
    wired, at = known_value(board.slots), _positions(board)
    modes = board.lane_modes or (tuple(slot.lanes for slot in wired),)
    for slots in _card_slots(widths, at, openings):
        covered = {
            at[n] + step for n, width in zip(slots, widths, strict=True) for step in range(width)
        }
        free = [n for n, place in enumerate(at) if place not in covered]
        gap, crowded = _air_gaps(slots, widths, slots_wide, axial, at)
        reached = _bridge_count(slots, at, spans)
        for lanes in modes:
            if any(lanes[n] == 0 for n in slots):
                continue
            other_slots = _riser_and_nic_slots(free, board, lanes, feeds, nics)
            if other_slots is None:
                continue
            feeding, network = other_slots
            shares = [lanes[n] for n in slots] + [lanes[n] // split for n, split in feeding]
            direct_cpu = sum(wired[n].from_cpu for n in slots)
            score = (
                reached,
                -max(0, crowded - 1),
                min(shares, default=0),
                direct_cpu,
                sum(shares),
                gap if gap is not None else 99.0,
                -sum(at[n] for n in slots),
            )
            if best is None or score > best[0]:
                best = score, (slots, feeding, network, lanes, gap, crowded)
    return best[1] if best else None


def _card_slots(
    widths: tuple[int, ...], at: tuple[int, ...], openings: int
) -> Iterator[tuple[int, ...]]:
    """Yield ways to plug cards into the board, none over another."""

    def further(card: int, begin: int) -> Iterator[tuple[int, ...]]:
        if card == len(widths):
            yield ()
            return
        for n, place in enumerate(at):
            end = place + widths[card] - 1
            if place >= begin and end <= openings:
                for later_slots in further(card + 1, end + 1):
                    yield (n, *later_slots)

    yield from further(0, 1)


def _riser_and_nic_slots(
    free: list[int],
    board: Board,
    lanes: tuple[int, ...],
    feeds: tuple[int, ...],
    nics: tuple[int, ...],
) -> tuple[tuple[tuple[int, int], ...], tuple[int, ...]] | None:
    """Return slots of risers, the widest first, and of network cards, the narrowest that do."""
    free_slots = sorted((n for n in free if lanes[n] > 0), key=lambda n: (-lanes[n], n))
    feeding = []
    for split in feeds:
        able = [n for n in free_slots if split == 1 or _divides(known_value(board.slots)[n], split)]
        fitting = [n for n in able if lanes[n] >= split]
        if not fitting:
            return None
        feeding.append((fitting[0], split))
        free_slots.remove(fitting[0])
    network = []
    for nic in nics:
        fitting = [n for n in reversed(free_slots) if lanes[n] >= nic] or free_slots[:1]
        if not fitting:
            return None
        network.append(fitting[0])
        free_slots.remove(fitting[0])
    return tuple(feeding), tuple(network)


def _air_gaps(
    slots: tuple[int, ...],
    widths: tuple[int, ...],
    slots_wide: tuple[float, ...],
    axial: tuple[bool, ...],
    at: tuple[int, ...],
) -> tuple[float | None, int]:
    """Return the smallest gap between neighbours, and the longest row without a gap."""
    if not slots:
        return None, 0
    gaps: list[float] = []
    row, longest = int(axial[0]), int(axial[0])
    for i in range(1, len(slots)):
        distance = at[slots[i]] - at[slots[i - 1]]
        gaps.append(distance - slots_wide[i - 1])
        touching = distance - widths[i - 1] < 1
        row = row + 1 if touching and axial[i] and row else int(axial[i])
        longest = max(longest, row)
    return min(gaps, default=None), longest


def _bridge_count(slots: tuple[int, ...], at: tuple[int, ...], spans: tuple[int, ...]) -> int:
    """Return the number of bridges that reach from a card to its neighbour."""
    card_positions = [at[n] for n in slots]
    distances = [later - earlier for earlier, later in itertools.pairwise(card_positions)]
    bridged, number = 0, 0
    free_spans = list(spans)
    while number < len(distances):
        if distances[number] in free_spans:
            free_spans.remove(distances[number])
            bridged += 1
            number += 1  # a card has one bridge
        number += 1
    return bridged
