"""Rules that refuse cards although their width or the board's slots are not known.

`fit_rules.slots` and `fit_rules.lanes` place every card.  Where a figure for that is missing, these
rules compare the least that such cards need with the most that any such board has: they refuse,
and never pass.
"""

from __future__ import annotations

from collections.abc import Iterator

from trainrig.procure.fit_rules import MOST_POSITIONS, POSITIONS, placement_of
from trainrig.procure.part_catalog import chip_of, load_parts
from trainrig.procure.parts import GpuCard, Processor, Riser
from trainrig.procure.parts_list import Build
from trainrig.procure.platforms import platform_of
from trainrig.procure.rule_book import Check, check, not_known, rule_book
from trainrig.units import counted


def card_form(build: Build) -> Iterator[Check]:
    """Check that each card plugs into a PCIe slot, as a server's module does not."""
    for card, _ in build.part_counts(GpuCard):
        form = chip_of(card).product.form_factor
        if form is None:
            yield not_known("card-form", card, "chip")
            continue
        fits = form.startswith("PCIe")
        yield check(
            "card-form",
            fits,
            f"{card.name} is a card for a slot" if fits else f"{card.name} is not sold as a card",
            f"form of {card.chip}: {form}",
            "the PCIe version of it, or a server that is sold with these modules",
        )


def least_width(card: GpuCard) -> float:
    """Return a card's width in slot positions, or that of the narrowest card known of its chip."""
    if card.slots is not None:
        return card.slots
    chip = chip_of(card)
    cards = [part for part in load_parts()["gpu"] if isinstance(part, GpuCard)]
    widths = [card.slots for card in cards if card.chip == chip.name and card.slots is not None]
    if not widths and chip.board.slots is not None:
        widths = [float(chip.board.slots)]
    return min(widths, default=1.0)


def slot_ceiling(build: Build) -> Iterator[Check]:
    """Check that cards without risers are no wider than the largest board has positions."""
    cards, board = build.cards, build.board
    if len(cards) < 2 or build.pieces(Riser) or platform_of(build) is None:
        return
    is_placed = board is not None and board.slots is not None and build.chassis is not None
    if is_placed and all(card.slots is not None for card in cards):
        return  # fit_rules.slots places them
    widths = sorted((int(-(-least_width(card) // 1)) for card in cards), reverse=True)
    last = POSITIONS.get(board.form_factor or "") if board is not None else None
    begin = 1 + sum(widths[1:])  # of the last card, which may reach beyond the board
    most_positions = last or MOST_POSITIONS
    if begin <= most_positions:
        return
    where = board.form_factor if board is not None and last else "the largest board"
    yield check(
        "slots",
        False,
        f"{counted(len(cards), 'card')} cannot all be plugged into one board",
        f"{' + '.join(map(str, widths))} positions: the last card begins at {begin} > "
        f"{most_positions} of {where}",
        "fewer or narrower cards, or risers and a case that holds cards away from the board",
        used=begin / most_positions,
    )


def lane_ceiling(build: Build) -> Iterator[Check]:
    """Check that cards have the least lanes each, one of them through the chipset's link."""
    processors, cards = build.pieces(Processor), build.cards
    if len(cards) < 2 or not processors or placement_of(build) is not None:
        return
    lanes = [processor.lanes for processor in processors if processor.lanes is not None]
    if len(lanes) < len(processors):
        return  # fit_rules.lanes asks for them
    least_lanes = int(rule_book().value("lanes", "least"))
    need, have = (len(cards) - 1) * least_lanes, sum(lanes)
    if need <= have:
        return
    yield check(
        "lanes",
        False,
        f"too few lanes for {counted(len(cards), 'card')}",
        f"{len(cards) - 1} × {least_lanes} lanes, and one card behind the chipset: {need} > {have} "
        f"of the processor",
        "a board and a processor with more lanes, or fewer cards",
        used=need / have,
    )
