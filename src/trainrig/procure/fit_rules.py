"""Whether the parts of a build fit together: sockets, slots, lengths, lanes, air, bridges.

Each function is a rule of catalog/build_rules.toml and yields a check for each thing that it looks
at; it yields nothing where a part is missing, which is a rule of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from trainrig.procure.part_catalog import chip_of
from trainrig.procure.parts import (
    NEEDED,
    Board,
    Bridge,
    Chassis,
    DiskPart,
    GpuCard,
    NetworkCard,
    Processor,
    Riser,
    Slot,
    known_value,
)
from trainrig.procure.parts_list import Build
from trainrig.procure.placement import Placement, place, positions
from trainrig.procure.rule_book import Check, check, graded, needs, not_known, rule_book
from trainrig.units import counted

_ABOVE_ATX = frozenset(("SSI CEB", "E-ATX", "SSI EEB", "XL-ATX"))


def placement_of(build: Build) -> Placement | None:
    """Return all cards in their places; None where that cannot be, or is not known."""
    board, chassis = build.board, build.chassis
    if board is None or chassis is None or board.slots is None or chassis.room("slots") is None:
        return None
    if any(card.slots is None for card in build.cards) or _unknown_positions(build):
        return None
    return place(
        build.cards,
        board,
        chassis,
        build.pieces(Riser),
        build.pieces(NetworkCard),
        [bridge.span for bridge in build.pieces(Bridge)],
    )


def _unknown_positions(build: Build) -> bool:
    """Return whether slot positions matter and are not known.

    A card by itself fits wherever its slot is; so do cards on risers.
    """
    board, chassis, cards = build.board, build.chassis, len(build.cards)
    if board is None or chassis is None or board.slots is None:
        return False
    risers = build.pieces(Riser)
    direct = cards - min(sum(riser.splits for riser in risers), chassis.riser_cards, cards)
    other_cards = len(risers) + len(build.pieces(NetworkCard))
    return (direct > 1 or (direct == 1 and other_cards > 0)) and any(
        slot.position is None for slot in board.slots
    )


POSITIONS = {"Mini-ITX": 1, "mATX": 4, "ATX": 7, "SSI CEB": 7, "E-ATX": 8, "SSI EEB": 8}
"""Last slot position of a board of a format, at most."""
MOST_POSITIONS = 9
"""Last slot position of the largest format, XL-ATX."""


def _too_wide(build: Build) -> bool:
    """Return whether cards cannot all stand on a board, wherever its slots are.

    The last of them may reach beyond the board's last position, the others may not.
    """
    board, chassis = build.board, build.chassis
    if board is None or chassis is None or (build.pieces(Riser) and chassis.riser_cards):
        return False
    widths = [positions(card) for card in build.cards]
    before = sum(widths) - max(widths, default=0)
    last = POSITIONS.get(board.form_factor or "", 20)
    return before >= last or sum(widths) > (chassis.room("slots") or 1e3)


def _slot_entry(slot: Slot) -> str:
    """Return a slot as a list states it, without the position that is not known."""
    place = "…" if slot.position is None else slot.position
    text = f"position = {place}, lanes = {slot.lanes}, generation = {slot.generation}"
    text += "" if slot.from_cpu else ", from_cpu = false"
    return f"{{ {text}{'' if slot.splits is None else f', splits = {list(slot.splits)}'} }}"


def _ask_positions(build: Build, rule: str) -> Iterator[Check]:
    """Yield the request for slot positions that a rule on neighbours needs."""
    if build.board is not None and _unknown_positions(build):
        slots = ", ".join(_slot_entry(slot) for slot in build.board.slots or ())
        table, toml = "[[board]]", f"slots = [{slots}]"
        fix = f"add {toml} to {table}, with positions from the board's manual"
        asks = not_known(rule, build.board, "slots")
        yield replace(asks, arithmetic="board.slots.position", fix=fix)


_SEATS = ("board.slots", "gpu.slots")


def missing_part(build: Build) -> Iterator[Check]:
    """Check that all kinds of part are there."""
    kinds = {item.kind for item in build.items}
    absent = [kind for kind in NEEDED if kind not in kinds]
    if absent and not build.is_complete:
        yield Check(
            rule="missing-part",
            severity="unknown",
            message="not stated",
            arithmetic=", ".join(f"[[{kind}]]" for kind in absent),
            fix=", ".join(f"--{kind}" for kind in absent),
            not_known=tuple(absent),
        )
        return
    several = [kind for kind in ("board", "case") if len(_of_kind(build, kind)) > 1]
    yield check(
        "missing-part",
        not absent and not several,
        f"no {', '.join(absent)}" if absent else f"more than one {several[0]}" if several else "",
        f"{len(NEEDED) - len(absent)} of {len(NEEDED)} kinds: {', '.join(NEEDED)}",
        f"add [[{absent[0] if absent else ''}]]" if absent else "one list a machine",
    )


def _of_kind(build: Build, kind: str) -> list[str]:
    return [item.part.name for item in build.items if item.kind == kind for _ in range(item.count)]


def socket(build: Build) -> Iterator[Check]:
    """Check that the processor fits the board."""
    board = build.board
    processors = build.pieces(Processor)
    if board is None or not processors:
        return
    for name, sock in {(processor.name, processor.socket) for processor in processors}:
        same = sock.casefold() == board.socket.casefold()
        yield check(
            "socket",
            same,
            f"{name} does not fit {board.name}" if not same else f"{name} fits its socket",
            f"{sock} {'=' if same else '≠'} {board.socket}",
            f"a processor of {board.socket}, or a board of {sock}",
        )
    if len(processors) > board.sockets:
        yield check(
            "socket",
            False,
            "more processors than sockets",
            f"{len(processors)} > {board.sockets}",
            "count = 1",
        )


@needs("form-factor", "board.form_factor", "case.form_factors")
def form_factor(build: Build) -> Iterator[Check]:
    """Check that the case takes the board."""
    board, chassis = build.board, build.chassis
    if board is None or chassis is None:
        return
    case_formats, board_format = known_value(chassis.form_factors), known_value(board.form_factor)
    fits = board_format in case_formats
    if (
        not fits
        and board_format in _ABOVE_ATX
        and "ATX" in case_formats
        and not _ABOVE_ATX & set(case_formats)
    ):
        yield not_known("form-factor", chassis, "form_factors")  # shops' lists end at ATX
        return
    yield check(
        "form-factor",
        fits,
        f"{chassis.name} {'takes' if fits else 'does not take'} {board_format}",
        f"{board_format} {'among' if fits else 'not among'} {', '.join(case_formats)}",
        f"a case for {board.form_factor}, or a board that fits",
    )


@needs("card-length", "gpu.length_mm")
def card_length(build: Build) -> Iterator[Check]:
    """Check that cards are shorter than the case allows."""
    if build.chassis is None:
        return
    free = build.chassis.room("gpu_length_mm")
    if free is None:
        yield not_known("card-length", build.chassis, "gpu_length_mm")
        return
    most_length = free - rule_book().value("card-length", "room_mm")
    for card, _ in build.part_counts(GpuCard):
        length = known_value(card.length_mm)
        fits = length <= most_length
        yield check(
            "card-length",
            fits,
            f"{card.name} in {build.chassis.name}",
            f"{length:g} mm {'≤' if fits else '>'} {most_length:g} mm",
            "a shorter card, or a longer case",
            used=length / most_length,
        )


@needs("slots", *_SEATS)
def slots(build: Build) -> Iterator[Check]:
    """Check that each card can be plugged in, and the case has an opening where it ends."""
    board, chassis, cards = build.board, build.chassis, build.cards
    if board is None or chassis is None or not cards or next(_unfed_risers(build), None):
        return
    if _unknown_positions(build) and not _too_wide(build):
        yield from _ask_positions(build, "slots")
        return
    placement = placement_of(build)
    if chassis.room("slots") is None:
        yield not_known("slots", chassis, "slots")
        return
    openings = int(known_value(chassis.room("slots")))
    on_risers = min(
        sum(riser.splits for riser in build.pieces(Riser)), chassis.riser_cards, len(cards)
    )
    wide = sorted((positions(card) for card in cards), reverse=True)[on_risers:]
    at = [slot.position for slot in known_value(board.slots) if slot.position is not None]
    most_positions = min(openings, (max(at) if at else 20) + (max(wide, default=1)) - 1)
    has = "open" if chassis.slots is None else openings
    text = (
        f"{' + '.join(map(str, wide)) or '0'} = {sum(wide)} positions of cards on the board, "
        f"{most_positions} between the first slot and the last opening "
        f"({', '.join(map(str, at)) or 'wherever it is'}; case {has})"
    )
    if on_risers:
        text += f"; {counted(on_risers, 'card')} on risers"
    if cards_of_network := build.pieces(NetworkCard):
        text += f"; {counted(len(cards_of_network), 'network card')} beside them"
    used = sum(wide) / most_positions if most_positions else None
    if placement is None:
        short = f"{counted(len(cards), 'card')} cannot all be plugged into {board.name}"
        fix = "fewer or narrower cards, or risers and a case that holds cards away from the board"
        yield check("slots", False, short, text, fix, used=used)
        return
    seats = ", ".join(seat.text for seat in placement.gpus())
    yield check("slots", True, f"GPUs at {seats}", text, used=used)


@needs("airflow", "gpu.cooling")
def passive_cards(build: Build) -> Iterator[Check]:
    """Check that cards without a fan stand in a case that blows through them."""
    chassis, cards = build.chassis, build.cards
    passive = [card.name for card in cards if card.cooling == "passive"]
    if passive and chassis is not None:
        through = chassis.airflow == "front-to-back"
        yield check(
            "airflow",
            through,
            f"{passive[0]} has no fan",
            f"{counted(len(passive), 'passive card')}, airflow of the case: {chassis.airflow}",
            "a server's case, or cards with fans",
        )


def airflow(build: Build) -> Iterator[Check]:
    """Check that open-air cards have space between them."""
    if build.chassis is not None and len(_open_air_cards(build)) > 1:
        yield from _open_air_gaps(build)


def _open_air_cards(build: Build) -> list[GpuCard]:
    return [card for card in build.cards if card.cooling == "axial"]


@needs("airflow", *_SEATS)
def _open_air_gaps(build: Build) -> Iterator[Check]:
    axial = _open_air_cards(build)
    if _unknown_positions(build) and not _too_wide(build):
        yield from _ask_positions(build, "airflow")
        return
    most_touching = int(rule_book().value("airflow", "most_touching"))
    placement = placement_of(build)
    if placement is None:  # as they would stand without a gap
        crowded, gap = len(axial), 0.0
    else:
        crowded, gap = placement.crowded, placement.gap if placement.gap is not None else 99.0
    message = (
        "open-air cards touch, the upper ones breathe what the lower ones heated"
        if crowded > 1
        else "open-air cards have a free position between them"
    )
    widths = " + ".join(f"{known_value(card.slots):g}" for card in axial)
    gap_text = "" if gap > 50 else f", smallest space {max(0.0, gap) * 20.32:.0f} mm"
    arithmetic = f"{widths} slots with {crowded} side by side, at most {most_touching}{gap_text}"
    fix = "blower or water-cooled cards, fewer cards, or risers in an open frame"
    used = crowded / most_touching if crowded > 1 else 0.0
    yield graded("airflow", used, 0.5, message, arithmetic, fix)


@needs("lanes", *_SEATS)
def lanes(build: Build) -> Iterator[Check]:
    """Check that each GPU has lanes, and the processor has as many as are used."""
    placement, processors = placement_of(build), build.pieces(Processor)
    if not build.cards or not processors:
        return
    if placement is None:
        yield from _ask_positions(build, "lanes")
        return
    book = rule_book()
    least_lanes, good_lanes = book.value("lanes", "least"), book.value("lanes", "good")
    fewest = placement.fewest_lanes
    several = len(build.cards) > 1
    listed = ", ".join(f"x{seat.lanes}" for seat in placement.gpus())
    severity = fewest < least_lanes and several
    if severity or (several and fewest < good_lanes):
        message = f"a GPU has {counted(fewest, 'lane')}: exchange of gradients waits for it"
    else:
        message = f"lanes of the GPUs: {listed}"
    yield graded(
        "lanes",
        least_lanes / fewest if severity else 0.99 if several and fewest < good_lanes else 0.0,
        0.9,
        message,
        f"{listed}; least {least_lanes:g}, good {good_lanes:g}",
        "a board and a processor with more lanes, or fewer cards",
    )
    direct = sum(seat.lanes for seat in placement.seats if seat.slot.from_cpu)
    disks = sum(4 * count for disk, count in build.part_counts(DiskPart) if disk.interface == "u2")
    need = direct + disks
    unknown = [processor for processor in processors if processor.lanes is None]
    if unknown:
        yield not_known("lanes", unknown[0], "lanes")
        return
    have = sum(known_value(processor.lanes) for processor in processors)
    yield check(
        "lanes",
        need <= have,
        f"the processor has {have} lanes",
        f"{direct} of cards" + (f" + {disks} of disks" if disks else "") + f" = {need}"
        f" {'≤' if need <= have else '>'} {have}",
        "a processor with more lanes, or fewer cards",
        used=need / have,
    )


def _unfed_risers(build: Build) -> Iterator[Riser]:
    """Return risers for several cards that no slot of the board can feed."""
    board = build.board
    for riser in build.pieces(Riser):
        if riser.splits > 1 and board is not None:
            able = [s for s in board.slots or () if s.splits is None or riser.splits in s.splits]
            if not able and board.slots is not None:
                yield riser


@needs("bifurcation", "board.slots", "riser.splits")
def bifurcation(build: Build) -> Iterator[Check]:
    """Check that a riser for several cards hangs on a slot that divides."""
    board = build.board
    if board is None:
        return
    refused = {riser.name for riser in _unfed_risers(build)}
    several = any(riser.splits > 1 for riser in build.pieces(Riser))
    if several and all(slot.splits is None for slot in known_value(board.slots)):
        yield replace(not_known("bifurcation", board, "slots"), arithmetic="board.slots.splits")
        return
    for riser, _ in build.part_counts(Riser):
        if riser.splits == 1:
            continue
        able = [
            f"x{slot.lanes}" if slot.position is None else str(slot.position)
            for slot in known_value(board.slots)
            if riser.splits in (slot.splits or ())
        ]
        yield check(
            "bifurcation",
            riser.name not in refused,
            f"{riser.name} on {board.name}",
            f"slots that divide into {riser.splits}: {', '.join(able) or 'none'}",
            "a riser for each card, or a board that divides its slots",
        )


@needs("riser-generation", "board.slots", "riser.generation")
def riser_generation(build: Build) -> Iterator[Check]:
    """Check that a link runs no faster than its riser."""
    board = build.board
    if board is None or not build.cards or not build.pieces(Riser):
        return
    card = max(chip_of(card).pcie.generation or 1 for card in build.cards)
    slot = max(one.generation for one in board.slots or ())
    link = min(card, slot, build.wiring.link_generation or 99)
    longest = rule_book().value("riser-generation", "longest_mm")
    for riser, _ in build.part_counts(Riser):
        fits = known_value(riser.generation) >= link
        yield check(
            "riser-generation",
            fits,
            f"{riser.name} carries generation {riser.generation}",
            f"link min(card {card}, slot {slot}"
            + (f", firmware {build.wiring.link_generation}" if build.wiring.link_generation else "")
            + f") = {link} {'≤' if fits else '>'} {riser.generation}",
            f"link_generation = {riser.generation} under [wiring], and in the firmware",
        )
        if link < 4 or riser.retimer:
            continue
        if riser.length_mm is None:
            yield not_known("riser-generation", riser, "length_mm")
        elif riser.length_mm > longest:
            arithmetic = f"{riser.length_mm:g} mm > {longest:g} mm at generation {link}"
            message = f"{riser.name} is long for generation {link}"
            fix = "a shorter riser, one with a retimer, or generation 3"
            yield graded("riser-generation", 0.99, 0.5, message, arithmetic, fix)


def nvlink_bridge(build: Build) -> Iterator[Check]:
    """Check that bridges reach from a card to its neighbour."""
    bridges = build.pieces(Bridge)
    if not bridges:
        return
    chips = {chip_of(card).name for card in build.cards}
    for bridge in {bridge.name: bridge for bridge in bridges}.values():
        fits = bool(chips) and chips <= set(bridge.chips)
        yield check(
            "nvlink-bridge",
            fits,
            f"{bridge.name} joins {' or '.join(bridge.chips)}",
            f"{', '.join(sorted(chips)) or 'no GPU'} {'of' if fits else 'not of'} "
            f"{', '.join(bridge.chips)}",
            "a bridge for these cards, or none",
        )
    placement = placement_of(build)
    if placement is None:
        return
    have, need = Counter(placement.distances()), Counter(bridge.span for bridge in bridges)
    reach = all(have[span] >= count for span, count in need.items())
    reach = reach and len(bridges) <= len(build.cards) // 2
    yield check(
        "nvlink-bridge",
        reach,
        "bridges reach from card to card" if reach else "a bridge does not reach",
        f"bridges of {', '.join(str(one.span) for one in bridges)} positions; cards are "
        f"{', '.join(map(str, placement.distances())) or 'nowhere side by side, 0'} apart, "
        f"{counted(len(build.cards) // 2, 'pair')}",
        "a bridge of the slots' distance, or other slots",
    )


def rack_units(build: Build) -> Iterator[Check]:
    """Check that the case goes into the rack."""
    chassis, rack_room = build.chassis, build.room.rack_units
    if chassis is None or rack_room is None:
        return
    height = chassis.rack_units
    if height is None and chassis.airflow == "front-to-back":
        yield not_known("rack-units", chassis, "rack_units")
        return
    fits = height is not None and height <= rack_room
    yield check(
        "rack-units",
        fits,
        f"{chassis.name} in {counted(rack_room, 'unit')} of a rack",
        f"{f'{height} U' if height else 'not made for a rack'} {'≤' if fits else '>'} "
        f"{rack_room} U",
        "a case for racks of that height",
    )


@needs("disk-ports", "disk.interface")
def disk_ports(build: Build) -> Iterator[Check]:
    """Check that each disk has a port."""
    board = build.board
    if board is None:
        return
    free = _free_slots(build, board)
    for kind in ("m2", "sata", "u2"):
        need = sum(count for disk, count in build.part_counts(DiskPart) if disk.interface == kind)
        if not need:
            continue
        name = f"{kind}_slots" if kind == "m2" else f"{kind}_ports"
        ports: int | None = getattr(board, name)
        adapters = free if kind in ("m2", "u2") else 0
        fits = need <= (ports or 0) + adapters
        if ports is None and not fits:
            yield not_known("disk-ports", board, name)
            continue
        more = (
            f" + {adapters} by adapters in free slots" if adapters and need > (ports or 0) else ""
        )
        yield check(
            "disk-ports",
            fits,
            f"ports for {kind} disks",
            f"{need} {'≤' if fits else '>'} {'?' if ports is None else ports}{more}",
            "fewer and larger disks",
        )


def _free_slots(build: Build, board: Board) -> int:
    placement = placement_of(build)
    if placement is None:
        return 0
    covered = {
        (seat.slot.position or 0) + step
        for seat in placement.seats
        for step in range(
            1 if seat.on_riser or seat.card < 0 else positions(build.cards[seat.card])
        )
    }
    return sum(
        slot.position not in covered and slot.lanes >= 4
        for slot in board.slots or ()
        if slot.position is not None
    )


def psu_bays(build: Build) -> Iterator[Check]:
    """Check that the case has a place for each supply."""
    chassis: Chassis | None = build.chassis
    if chassis is None or not build.supplies:
        return
    count = len(build.supplies)
    bays = chassis.psu_bays or 1
    fits = count <= bays
    if not fits and chassis.psu_bays is None:
        yield not_known("psu-bays", chassis, "psu_bays")
        return
    yield check(
        "psu-bays",
        fits,
        f"{counted(count, 'supply').replace('supplys', 'supplies')} in {chassis.name}",
        f"{count} {'≤' if fits else '>'} {bays}",
        "one larger supply, or a case for several",
    )
