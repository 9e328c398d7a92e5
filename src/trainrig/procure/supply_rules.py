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
    """One power supply, and what hangs on it."""

    number: int
    """As counted in the list, from 1."""
    supply: PowerSupply
    cards: tuple[int, ...]
    """Numbers of the cards, in the list's order, from 0."""
    is_board: bool
    """Whether board, processor and all else hang on it, with every card's slot."""
    watts: float
    limit: float
    """Watts that it may carry for hours."""
    peak: float
    hold: float
    """Watts that it rides out for milliseconds."""
    text: str
    """Of its watts: ``307 W + 2 × 350 W + 2 × 75 W``: the board, its cards, other slots."""
    peak_text: str
    eights: int
    """8-pin plugs that its cards want."""
    eights_there: int


def peak_factor(card: GpuCard) -> float:
    """A card's draw for milliseconds, over its watts."""
    values = rule_book().rules["psu-transients"].values
    return values.get(chip_of(card).name, values["factor"])


def eights_needed(
    cards: Sequence[GpuCard], connectors: Mapping[Connector, int]
) -> tuple[int, int, int]:
    """8-pin plugs that cards want; 12V-2x6 among them that come by adapter, and on how many 8-pins.

    A 12V-2x6 plug that the supply has goes to the card with most watts.
    """
    each = rule_book().value("psu-connectors", "eight_pin_watts")
    slot = rule_book().value("psu-rails", "slot_watts")
    need: Counter[Connector] = Counter()
    for card in cards:
        need.update(card.connectors or {})
    adapted = max(0, need["12V-2x6"] - connectors.get("12V-2x6", 0))
    heavy = sorted(
        (card_watts(c) for c in cards if (c.connectors or {}).get("12V-2x6")), reverse=True
    )
    plugs = sum(math.ceil((watts - slot) / each) for watts in heavy[-adapted:] if adapted)
    return need["8-pin"] + need["8-pin-eps"] * 2 + need["6-pin"] + plugs, adapted, plugs


@dataclass(frozen=True, slots=True, kw_only=True)
class _Draw:
    """A card, as a supply sees it."""

    card: GpuCard
    watts: float
    peak: float
    slot: float
    """Of its watts, those that may come through its slot."""


def _draws(build: Build) -> list[_Draw]:
    apart = sum(one.splits for one in build.each(Riser) if one.powered)
    slot = 0.0 if apart >= len(build.cards) else rule_book().value("psu-rails", "slot_watts")
    found = []
    for card in build.cards:
        watts = card_watts(card)
        peak = watts * peak_factor(card)
        found.append(_Draw(card=card, watts=watts, peak=peak, slot=min(slot, watts)))
    return found


def supply_loads(build: Build) -> tuple[SupplyLoad, ...]:
    """What hangs on each supply, in the list's order.

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
    most = rule_book().value("psu-rails", "most")
    power = power_of(build)
    ratings = [rating(one, build) for one in supplies]
    rack = _Rack(
        supplies=supplies,
        limits=[most * given for given in ratings],
        holds=[
            given * values["atx2" if one.atx in (None, "2") else "atx3"]
            for one, given in zip(supplies, ratings, strict=True)
        ],
        base=power.cpu + power.rest,
    )
    boards = range(count) if wiring.board_supply is None else (wiring.board_supply - 1,)
    tried = []
    for board in boards if count > 1 else (0,):
        if wiring.gpu_supplies is not None:
            hung: list[list[int]] = [[] for _ in supplies]
            for card, number in enumerate(wiring.gpu_supplies):
                hung[number - 1].append(card)
        else:
            hung = rack.dealt(draws, board)
        tried.append((max(rack.worst(draws, hung, board, n) for n in range(count)), board, hung))
    _, board, hung = min(tried)
    return tuple(rack.load(draws, hung, board, place) for place in range(count))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rack:
    """Supplies, and what each carries."""

    supplies: Sequence[PowerSupply]
    limits: Sequence[float]
    holds: Sequence[float]
    base: float
    """Watts of all that is no card."""

    def dealt(self, draws: Sequence[_Draw], board: int) -> list[list[int]]:
        """Cards on supplies: one by one to where the worst of them and the board's is least."""
        hung: list[list[int]] = [[] for _ in self.supplies]
        if len(hung) == 1:
            return [list(range(len(draws)))]
        for card in sorted(range(len(draws)), key=lambda n: -draws[n].watts):
            tried = []
            for place in range(len(hung)):
                hung[place].append(card)
                here = self.worst(draws, hung, board, place)
                tried.append((max(here, self.worst(draws, hung, board, board)), place))
                hung[place].pop()
            hung[min(tried)[1]].append(card)
        return hung

    def carried(
        self, draws: Sequence[_Draw], hung: Sequence[Sequence[int]], board: int, place: int
    ) -> tuple[float, float]:
        """Watts of a supply, and its peak."""
        here = [draws[n] for n in hung[place]]
        if place != board:
            return sum(one.watts for one in here), sum(one.peak for one in here)
        other = sum(draws[n].slot for k, each in enumerate(hung) if k != board for n in each)
        base = self.base + other
        return base + sum(one.watts for one in here), base + sum(one.peak for one in here)

    def worst(
        self, draws: Sequence[_Draw], hung: Sequence[Sequence[int]], board: int, place: int
    ) -> tuple[int, float]:
        """Plugs that a supply lacks, then how near it is to its limits."""
        supply = self.supplies[place]
        eights, _, _ = eights_needed([draws[n].card for n in hung[place]], supply.connectors or {})
        watts, peak = self.carried(draws, hung, board, place)
        lacking = max(0, eights - (supply.connectors or {}).get("8-pin", 0))
        return lacking, max(watts / self.limits[place], peak / self.holds[place])

    def load(
        self, draws: Sequence[_Draw], hung: Sequence[Sequence[int]], board: int, place: int
    ) -> SupplyLoad:
        """All that is said of a supply."""
        supply, is_board = self.supplies[place], place == board
        watts, peak = self.carried(draws, hung, board, place)
        terms: Counter[str] = Counter()
        peaks: Counter[str] = Counter()
        for one in (draws[n] for n in hung[place]):
            terms[f"{one.watts:g} W"] += 1
            peaks[f"{peak_factor(one.card):g} × {one.watts:g} W"] += 1
        base = f"{self.base:,.0f} W" if is_board else ""
        away = [draws[n].slot for k, each in enumerate(hung) if k != board for n in each]
        for slot, number in Counter(away).items() if is_board else ():
            base += f" + {number} × {slot:g} W" if slot else ""
        eights, _, _ = eights_needed([draws[n].card for n in hung[place]], supply.connectors or {})
        return SupplyLoad(
            number=place + 1,
            supply=supply,
            cards=tuple(sorted(hung[place])),
            is_board=is_board,
            watts=watts,
            limit=self.limits[place],
            peak=peak,
            hold=self.holds[place],
            text=_sum(base, terms),
            peak_text=_sum(base, peaks),
            eights=eights,
            eights_there=(supply.connectors or {}).get("8-pin", 0),
        )


def _sum(base: str, terms: Counter[str]) -> str:
    return " + ".join([*([base] if base else []), *(f"{n} × {t}" for t, n in terms.items())]) or "0"


# ---- the rules


@awaits_processor
@needs("psu-transients", "psu.atx")
def psu_transients(build: Build) -> Iterator[Check]:
    """Supplies ride out what cards draw for milliseconds, each by itself."""
    if not build.supplies or not build.cards:
        return
    for one in supply_loads(build):
        several = len(build.supplies) > 1
        fits = one.peak <= one.hold
        yield check(
            "psu-transients",
            fits,
            f"peaks of all cards on supply {one.number}" if several else "peaks of all cards",
            f"{one.peak_text} = {one.peak:,.0f} W {'≤' if fits else '>'} {one.hold:,.0f} W that "
            f"ATX {one.supply.atx} of {rating(one.supply, build):,.0f} W holds",
            "a supply of ATX 3, or more watts"
            + (", or another card on another supply" if several else ""),
            used=one.peak / one.hold,
        )


@needs("psu-connectors", "psu.connectors", "gpu.connectors")
def psu_connectors(build: Build) -> Iterator[Check]:
    """Each card and the board have their cables, from one supply."""
    if not build.supplies or not build.cards:
        return
    for one in supply_loads(build):
        own = [build.cards[number] for number in one.cards]
        if not own:
            continue
        need: Counter[Connector] = Counter()
        for card in own:
            need.update(card.connectors or {})
        eights, adapted, plugs = eights_needed(own, one.supply.connectors or {})
        fits = eights <= one.eights_there
        listed = [_plugs_text(need) or "none"]
        if adapted:
            listed.append(f"{adapted} by adapter on {plugs} × 8-pin")
        sign, have = "≤" if fits else ">", _plugs_text(one.supply.connectors or {})
        listed.append(f"{eights} × 8-pin {sign} {one.eights_there} in the supply ({have})")
        several = len(build.supplies) > 1
        message = "cables of the cards" if fits else "too few cables for the cards"
        if several:
            message = (
                f"cables of the cards on supply {one.number}"
                if fits
                else f"too few cables for the cards on supply {one.number}"
            )
        yield check(
            "psu-connectors",
            fits,
            message,
            "; ".join(listed),
            "a supply with more cables; never two plugs of a card on one cable",
            used=eights / one.eights_there if one.eights_there else None,
        )
    board = build.board
    if board is not None:
        wanted = 1 if board.sockets == 1 else board.sockets
        there = sum((one.connectors or {}).get("eps", 0) for one in build.supplies)
        yield check(
            "psu-connectors",
            there >= wanted,
            "cables of the processor",
            f"{wanted} of {board.eps_connectors or '?'} EPS plugs, {there} there",
            "a supply with EPS cables",
        )


def _plugs_text(plugs: Mapping[Connector, int]) -> str:
    """``2 × EPS, 8 × 8-pin``."""
    return ", ".join(f"{count} × {name.replace('eps', 'EPS')}" for name, count in plugs.items())


@awaits_processor
def psu_rails(build: Build) -> Iterator[Check]:
    """Of several supplies each carries what hangs on it, and they start together."""
    if len(build.supplies) < 2:
        return
    most = rule_book().value("psu-rails", "most")
    for one in supply_loads(build):
        fits = one.watts <= one.limit
        what = counted(len(one.cards), "card")
        message = f"supply {one.number} carries {what}"
        if one.is_board:
            message = f"supply {one.number} carries the board, all slots and {what}"
        yield check(
            "psu-rails",
            fits,
            message,
            f"{one.text} = {one.watts:,.0f} W {'≤' if fits else '>'} {most:g} × "
            f"{rating(one.supply, build):,.0f} W = {one.limit:,.0f} W",
            "supplies that hold whole cards each, one for all, or risers with plugs of their own",
            used=one.watts / one.limit,
        )
    count, together = len(build.supplies), build.wiring.psu_sync
    yield check(
        "psu-rails",
        together,
        "supplies start together" if together else "nothing starts the second supply",
        f"{count} supplies, psu_sync = {str(together).lower()}",
        "an adapter that starts them together, and psu_sync = true under [wiring]",
    )
