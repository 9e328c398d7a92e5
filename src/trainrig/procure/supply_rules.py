"""Which card hangs on which power supply, and whether each supply carries what hangs on it.

A supply trips by its own load, whatever the others have left: with several, its watts, its peaks
and its plugs are each held against what hangs on it.  A card has all of its plugs on one supply.
Through its slot it takes between nothing and 75 W (PCI-SIG's CEM) from the board's supply, unless
its riser has a plug of its own; how much is the card's, so that each supply is held against its
worst: all of the card on its plugs, and 75 W on the board's supply as well.  Of all ways to hang
them up the one is taken whose most loaded supply is loaded least, or the list's own
(``gpu_supplies``, ``board_supply`` under [wiring]).  Cards are dealt out one by one, each to where
it loads least, the largest first: for cards of one kind no other way is better.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from trainrig.errors import UsageError
from trainrig.procure.load_rules import card_watts, power_of, rating
from trainrig.procure.part_catalog import chip_of
from trainrig.procure.parts import Connector, GpuCard, PowerSupply, Riser
from trainrig.procure.parts_list import Build
from trainrig.procure.rule_book import Check, awaits_processor, check, needs, rule_book
from trainrig.units import counted


@dataclass(frozen=True, slots=True, kw_only=True)
class SupplyLoad:
    """One power supply with its load."""

    number: int
    """Number of the supply in the list, from 1."""
    supply: PowerSupply
    cards: tuple[int, ...]
    """Numbers of the cards, in the list's order, from 0."""
    is_board: bool
    """True where the supply feeds board, processor and every card's slot."""
    watts: float
    limit: float
    """Watts that it may carry for hours."""
    peak: float
    peak_limit: float
    """Watts that it rides out for milliseconds."""
    text: str
    """Sum of its watts as text: ``307 W + 2 × 350 W + 2 × 75 W``."""
    peak_text: str
    eight_pins: int
    """8-pin plugs that its cards want."""
    eight_pins_available: int


def peak_factor(card: GpuCard) -> float:
    """Return a card's draw for milliseconds, over its watts."""
    values = rule_book().rules["psu-transients"].values
    return values.get(chip_of(card).name, values["factor"])


def eight_pins_needed(
    cards: Sequence[GpuCard], connectors: Mapping[Connector, int]
) -> tuple[int, int, int]:
    """Return the 8-pin plugs that cards want, adapted 12V-2x6 plugs and their 8-pins.

    A 12V-2x6 plug that the supply has goes to the card with most watts.
    """
    eight_pin_watts = rule_book().value("psu-connectors", "eight_pin_watts")
    slot = rule_book().value("psu-rails", "slot_watts")
    need: Counter[Connector] = Counter()
    for card in cards:
        need.update(card.connectors or {})
    adapted = max(0, need["12V-2x6"] - connectors.get("12V-2x6", 0))
    heavy = sorted(
        (card_watts(c) for c in cards if (c.connectors or {}).get("12V-2x6")), reverse=True
    )
    plugs = sum(
        math.ceil((watts - slot) / eight_pin_watts) for watts in heavy[-adapted:] if adapted
    )
    return need["8-pin"] + need["8-pin-eps"] * 2 + need["6-pin"] + plugs, adapted, plugs


@dataclass(frozen=True, slots=True, kw_only=True)
class _Draw:
    """Watts, peak and slot power of one card."""

    card: GpuCard
    watts: float
    peak: float
    slot: float
    """Watts that the card may take through its slot."""


def _draws(build: Build) -> list[_Draw]:
    cards_on_powered_risers = sum(riser.splits for riser in build.pieces(Riser) if riser.powered)
    slot = (
        0.0
        if cards_on_powered_risers >= len(build.cards)
        else rule_book().value("psu-rails", "slot_watts")
    )
    draws = []
    for card in build.cards:
        watts = card_watts(card)
        peak = watts * peak_factor(card)
        draws.append(_Draw(card=card, watts=watts, peak=peak, slot=min(slot, watts)))
    return draws


def supply_loads(build: Build) -> tuple[SupplyLoad, ...]:
    """Return what hangs on each supply, in the list's order.

    Raises UsageError for wiring that names a supply or a card that is not there.
    """
    supplies, wiring = build.supplies, build.wiring
    if not supplies:
        return ()
    draws, count = _draws(build), len(supplies)
    for number in (wiring.board_supply or 1, *(wiring.gpu_supplies or ())):
        if number > count:
            raise UsageError(f"supply {number} of {count}", "numbers of supplies start at 1")
    if wiring.gpu_supplies is not None and len(wiring.gpu_supplies) != len(draws):
        raise UsageError(
            f"gpu_supplies names {len(wiring.gpu_supplies)} of {len(draws)} cards",
            "the number of a supply for each card, as gpu_supplies = [1, 1, 2, 2]",
        )
    values = rule_book().rules["psu-transients"].values
    most_load = rule_book().value("psu-rails", "most")
    power = power_of(build)
    ratings = [rating(supply, build) for supply in supplies]
    rack = _Rack(
        supplies=supplies,
        limits=[most_load * rated_watts for rated_watts in ratings],
        holds=[
            rated_watts * values["atx2" if supply.atx in (None, "2") else "atx3"]
            for supply, rated_watts in zip(supplies, ratings, strict=True)
        ],
        base=power.cpu + power.rest,
    )
    boards = range(count) if wiring.board_supply is None else (wiring.board_supply - 1,)
    wirings = []
    for board in boards if count > 1 else (0,):
        if wiring.gpu_supplies is not None:
            cards_by_supply: list[list[int]] = [[] for _ in supplies]
            for card, number in enumerate(wiring.gpu_supplies):
                cards_by_supply[number - 1].append(card)
        else:
            cards_by_supply = rack.deal_cards(draws, board)
        wirings.append(
            (
                max(rack.worst(draws, cards_by_supply, board, n) for n in range(count)),
                board,
                cards_by_supply,
            )
        )
    _, board, cards_by_supply = min(wirings)
    return tuple(rack.load(draws, cards_by_supply, board, place) for place in range(count))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rack:
    """Supplies with their limits, and the base load."""

    supplies: Sequence[PowerSupply]
    limits: Sequence[float]
    holds: Sequence[float]
    base: float
    """Watts of everything but the cards."""

    def deal_cards(self, draws: Sequence[_Draw], board: int) -> list[list[int]]:
        """Deal cards to supplies, each to the one whose load rises least."""
        cards_by_supply: list[list[int]] = [[] for _ in self.supplies]
        if len(cards_by_supply) == 1:
            return [list(range(len(draws)))]
        for card in sorted(range(len(draws)), key=lambda n: -draws[n].watts):
            candidates = []
            for place in range(len(cards_by_supply)):
                cards_by_supply[place].append(card)
                worst_here = self.worst(draws, cards_by_supply, board, place)
                candidates.append(
                    (max(worst_here, self.worst(draws, cards_by_supply, board, board)), place)
                )
                cards_by_supply[place].pop()
            cards_by_supply[min(candidates)[1]].append(card)
        return cards_by_supply

    def carried(
        self,
        draws: Sequence[_Draw],
        cards_by_supply: Sequence[Sequence[int]],
        board: int,
        place: int,
    ) -> tuple[float, float]:
        """Return the watts of a supply, and its peak."""
        supply_draws = [draws[n] for n in cards_by_supply[place]]
        if place != board:
            return sum(draw.watts for draw in supply_draws), sum(draw.peak for draw in supply_draws)
        slot_watts = sum(
            draws[n].slot for k, cards in enumerate(cards_by_supply) if k != board for n in cards
        )
        base = self.base + slot_watts
        return base + sum(draw.watts for draw in supply_draws), base + sum(
            draw.peak for draw in supply_draws
        )

    def worst(
        self,
        draws: Sequence[_Draw],
        cards_by_supply: Sequence[Sequence[int]],
        board: int,
        place: int,
    ) -> tuple[int, float]:
        """Return the plugs that a supply lacks, and how near it is to its limits."""
        supply = self.supplies[place]
        eight_pins, _, _ = eight_pins_needed(
            [draws[n].card for n in cards_by_supply[place]], supply.connectors or {}
        )
        watts, peak = self.carried(draws, cards_by_supply, board, place)
        lacking = max(0, eight_pins - (supply.connectors or {}).get("8-pin", 0))
        return lacking, max(watts / self.limits[place], peak / self.holds[place])

    def load(
        self,
        draws: Sequence[_Draw],
        cards_by_supply: Sequence[Sequence[int]],
        board: int,
        place: int,
    ) -> SupplyLoad:
        """Return the load of a supply."""
        supply, is_board = self.supplies[place], place == board
        watts, peak = self.carried(draws, cards_by_supply, board, place)
        terms: Counter[str] = Counter()
        peaks: Counter[str] = Counter()
        for draw in (draws[n] for n in cards_by_supply[place]):
            terms[f"{draw.watts:g} W"] += 1
            peaks[f"{peak_factor(draw.card):g} × {draw.watts:g} W"] += 1
        base = f"{self.base:,.0f} W" if is_board else ""
        away = [
            draws[n].slot for k, cards in enumerate(cards_by_supply) if k != board for n in cards
        ]
        for slot, number in Counter(away).items() if is_board else ():
            base += f" + {number} × {slot:g} W" if slot else ""
        eight_pins, _, _ = eight_pins_needed(
            [draws[n].card for n in cards_by_supply[place]], supply.connectors or {}
        )
        return SupplyLoad(
            number=place + 1,
            supply=supply,
            cards=tuple(sorted(cards_by_supply[place])),
            is_board=is_board,
            watts=watts,
            limit=self.limits[place],
            peak=peak,
            peak_limit=self.holds[place],
            text=_sum(base, terms),
            peak_text=_sum(base, peaks),
            eight_pins=eight_pins,
            eight_pins_available=(supply.connectors or {}).get("8-pin", 0),
        )


def _sum(base: str, terms: Counter[str]) -> str:
    return " + ".join([*([base] if base else []), *(f"{n} × {t}" for t, n in terms.items())]) or "0"


# ---- the rules


@awaits_processor
@needs("psu-transients", "psu.atx")
def psu_transients(build: Build) -> Iterator[Check]:
    """Check that supplies ride out what cards draw for milliseconds, each by itself."""
    if not build.supplies or not build.cards:
        return
    for load in supply_loads(build):
        several = len(build.supplies) > 1
        fits = load.peak <= load.peak_limit
        yield check(
            "psu-transients",
            fits,
            f"peaks of all cards on supply {load.number}" if several else "peaks of all cards",
            f"{load.peak_text} = {load.peak:,.0f} W {'≤' if fits else '>'} "
            f"{load.peak_limit:,.0f} W that "
            f"ATX {load.supply.atx} of {rating(load.supply, build):,.0f} W holds",
            "a supply of ATX 3, or more watts"
            + (", or another card on another supply" if several else ""),
            used=load.peak / load.peak_limit,
        )


@needs("psu-connectors", "psu.connectors", "gpu.connectors")
def psu_connectors(build: Build) -> Iterator[Check]:
    """Check that each card and the board have their cables, from one supply."""
    if not build.supplies or not build.cards:
        return
    for load in supply_loads(build):
        supply_cards = [build.cards[number] for number in load.cards]
        if not supply_cards:
            continue
        need: Counter[Connector] = Counter()
        for card in supply_cards:
            need.update(card.connectors or {})
        eight_pins, adapted, plugs = eight_pins_needed(supply_cards, load.supply.connectors or {})
        fits = eight_pins <= load.eight_pins_available
        listed = [_plugs_text(need) or "none"]
        if adapted:
            listed.append(f"{adapted} by adapter on {plugs} × 8-pin")
        sign, have = "≤" if fits else ">", _plugs_text(load.supply.connectors or {})
        listed.append(
            f"{eight_pins} × 8-pin {sign} {load.eight_pins_available} in the supply ({have})"
        )
        several = len(build.supplies) > 1
        message = "cables of the cards" if fits else "too few cables for the cards"
        if several:
            message = (
                f"cables of the cards on supply {load.number}"
                if fits
                else f"too few cables for the cards on supply {load.number}"
            )
        yield check(
            "psu-connectors",
            fits,
            message,
            "; ".join(listed),
            "a supply with more cables; never two plugs of a card on one cable",
            used=eight_pins / load.eight_pins_available if load.eight_pins_available else None,
        )
    board = build.board
    if board is not None:
        needed_plugs = 1 if board.sockets == 1 else board.sockets
        eps_plugs = sum((supply.connectors or {}).get("eps", 0) for supply in build.supplies)
        yield check(
            "psu-connectors",
            eps_plugs >= needed_plugs,
            "cables of the processor",
            f"{needed_plugs} of {board.eps_connectors or '?'} EPS plugs, {eps_plugs} there",
            "a supply with EPS cables",
        )


def _plugs_text(plugs: Mapping[Connector, int]) -> str:
    """Return plugs as text: ``2 × EPS, 8 × 8-pin``."""
    return ", ".join(f"{count} × {name.replace('eps', 'EPS')}" for name, count in plugs.items())


@awaits_processor
def psu_rails(build: Build) -> Iterator[Check]:
    """Check that each of several supplies carries its load, and that they start together."""
    if len(build.supplies) < 2:
        return
    most_load = rule_book().value("psu-rails", "most")
    for load in supply_loads(build):
        fits = load.watts <= load.limit
        card_count = counted(len(load.cards), "card")
        message = f"supply {load.number} carries {card_count}"
        if load.is_board:
            message = f"supply {load.number} carries the board, all slots and {card_count}"
        yield check(
            "psu-rails",
            fits,
            message,
            f"{load.text} = {load.watts:,.0f} W {'≤' if fits else '>'} {most_load:g} × "
            f"{rating(load.supply, build):,.0f} W = {load.limit:,.0f} W",
            "supplies that hold whole cards each, one for all, or risers with plugs of their own",
            used=load.watts / load.limit,
        )
    count, together = len(build.supplies), build.wiring.psu_sync
    yield check(
        "psu-rails",
        together,
        "supplies start together" if together else "nothing starts the second supply",
        f"{count} supplies, psu_sync = {str(together).lower()}",
        "an adapter that starts them together, and psu_sync = true under [wiring]",
    )
