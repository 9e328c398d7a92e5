"""The order in which a machine is put together, and what is measured when, for one parts list.

The order saves taking apart: what cannot be reached later comes first, what is dear comes late, and
each stage is measured before the next one hides its fault.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from trainrig.procure.build_rules import BuildReport
from trainrig.procure.parts import (
    Bridge,
    Cooler,
    DiskPart,
    MemoryModule,
    NetworkCard,
    PowerSupply,
    Processor,
    Riser,
)
from trainrig.procure.supply_rules import supply_loads
from trainrig.units import capital, counted


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkStep:
    """One stage of the assembly, with its items to tick."""

    title: str
    items: tuple[str, ...]


def steps_of(report: BuildReport) -> list[WorkStep]:
    """Return the stages of this build."""
    stages = (
        ("Before you order", _before(report)),
        ("When parts arrive", _arrive(report)),
        ("On the table, outside of the case", _table(report)),
        ("Into the case", _case(report)),
        ("The first GPU", _first_gpu(report)),
        ("All GPUs", _all_gpus(report)),
        ("Load, for a night", _load(report)),
        ("Before it works unwatched", _unwatched(report)),
    )
    return [WorkStep(title=title, items=tuple(items)) for title, items in stages]


def as_markdown(report: BuildReport, translate: Callable[[str], str] = str) -> str:
    """Return the checklist, in the language of ``translate``."""
    lines = [f"# {translate('Assembly')}: {report.build.name}", ""]
    errors = [check for check in report.findings if check.severity == "error"]
    if errors:
        lines += [f"**{translate('This list is not legal.  Mend it before you order:')}**", ""]
        lines += [
            f"- {error.rule}: {translate(error.arithmetic)}.  {translate(capital(error.fix))}."
            for error in errors
        ]
        lines.append("")
    for number, stage in enumerate(steps_of(report), 1):
        lines += [f"## {number}. {translate(stage.title)}", ""]
        lines += [*(f"- [ ] {translate(item)}" for item in stage.items), ""]
    if report.warnings:
        lines += [f"## {translate('What people learned the hard way')}", ""]
        lines += [
            f"- {translate(warning.text)}  {capital(translate(warning.fix))}."
            for warning in report.warnings
        ]
        lines.append("")
    return "\n".join(lines)


def _listed(report: BuildReport, *kinds: str) -> list[str]:
    return [f"{item.count} × {item.part.name}" for item in report.build.items if item.kind in kinds]


def _before(report: BuildReport) -> Iterator[str]:
    for check in report.not_known:
        yield f"Find out, {check.message}: {check.arithmetic} ({check.rule})"
    if report.not_checked:
        yield "Find out what the list does not state: " + "; ".join(report.not_checked)
    yield f"An outlet for {report.power.wall:,.0f} W, by itself on its circuit"
    yield "The board's list of memory that was tested; its manual, for the order of slots"


def _arrive(report: BuildReport) -> Iterator[str]:
    for text in _listed(report, *(item.kind for item in report.build.items)):
        yield f"{text}: what is in the box is what was ordered; note its serial number"
    yield "Photographs of the socket's pins before the processor goes in"


def _table(report: BuildReport) -> Iterator[str]:
    build, board = report.build, report.build.board
    yield "Static electricity: touch bare metal that is earthed, or wear a wrist strap; no carpet"
    yield f"{', '.join(_listed(report, 'cpu')) or 'Processor'} into " + (
        board.name if board else "the board"
    )
    if modules := build.pieces(MemoryModule):
        channels = f", {board.memory_channels} channels" if board else ""
        yield f"{counted(len(modules), 'module')} in the slots that the manual names{channels}"
    if build.pieces(DiskPart):
        yield f"{', '.join(_listed(report, 'disk'))}: M.2 under its heat sink, film off"
    if build.pieces(Cooler):
        yield f"{', '.join(_listed(report, 'cooling'))}: paste, screws crosswise, fan plugged in"
    if build.pieces(PowerSupply):
        yield "Supply, 24-pin and both EPS plugs; no GPU yet"
    yield "Start it: firmware shows all memory, at its speed, and all disks"
    yield "Firmware: newest version, memory profile"
    yield "Firmware: Above 4G Decoding and Resizable BAR on, CSM off"
    if any(riser.splits > 1 for riser in build.pieces(Riser)):
        yield "Firmware: bifurcation of the slots with divided risers"
    if build.wiring.link_generation:
        yield f"Firmware: PCIe generation {build.wiring.link_generation} for slots with risers"
    yield "memtest86+, one pass"


def _case(checked: BuildReport) -> Iterator[str]:
    build = checked.build
    yield f"{', '.join(_listed(checked, 'case')) or 'Case'}: stand-offs where the board has holes"
    yield "Fans: in at the front and below, out at the back and above"
    if len(build.supplies) > 1:
        yield "Supplies: adapter that starts them together; ground shared"
        for load in supply_loads(build):
            card_list = ", ".join(f"card {number + 1}" for number in load.cards)
            base = "board, processor and slots" if load.is_board else ""
            load_text = "; ".join(text for text in (base, card_list) if text) or "nothing"
            name = f"Supply {load.number} ({load.supply.name})"
            yield f"{name}: {load_text}; {load.watts:,.0f} W in all"
    yield "Cables of each card from its supply, one for each plug; none doubled"
    if build.pieces(NetworkCard):
        yield f"{', '.join(_listed(checked, 'nic'))} into its slot"
    yield "Install Linux and trainrig; then `trainrig inspect`: processor, memory, disks are there"
    yield "`trainrig bench storage --path DIR` on each disk"


def _first_gpu(report: BuildReport) -> Iterator[str]:
    seats = report.placement.gpus() if report.placement else []
    if not seats:
        yield "A GPU into the first slot of the processor"
        return
    seat = seats[0]
    yield f"One card alone, at {seat.text}"
    plugs = report.build.cards[seat.card].connectors or {}
    listed = ", ".join(f"{count} × {name}" for name, count in plugs.items()) or "see its sheet"
    yield f"Its plugs ({listed}): pushed in until they click, no bend near them"
    yield "Driver; `nvidia-smi` or `amd-smi` shows it"
    yield f"`trainrig inspect`: its link is x{seat.lanes}, at full generation under load"
    yield "`trainrig qualify --budget 4m`: keep the run, as this card's own baseline"
    if len(seats) > 1:
        yield "The same with each other card alone, in the same slot: a bad card is found now"


def _all_gpus(report: BuildReport) -> Iterator[str]:
    build = report.build
    seats = report.placement.gpus() if report.placement else []
    for seat in seats[1:]:
        yield f"A card at {seat.text}; start, look, go on"
    if build.pieces(Bridge):
        yield f"{', '.join(_listed(report, 'bridge'))}; `nvidia-smi nvlink --status`"
    if any((card.slots or 0) > 2.5 for card in build.cards):
        yield "A support under the far end of each wide card"
    yield f"`trainrig inspect`: {counted(len(build.cards), 'GPU')}, each link as wide as planned"
    yield "The kernel's log has no AER, no Xid: `dmesg`"


def _load(report: BuildReport) -> Iterator[str]:
    power = report.power
    yield "`trainrig qualify`: all GPUs at once; a PASS or a MEASURED without findings"
    yield "A burn for an hour: `trainrig burn --budget 1h`; every result is compared"
    yield f"A meter at the outlet: near {power.wall:,.0f} W, and steady"
    yield "Touch the power plugs after the hour: warm is fine, hot is not"
    yield "`trainrig train` of a small model over night; its steps' times stay level"
    yield "`trainrig compare` of the first qualify and the last: nothing is worse"


def _unwatched(report: BuildReport) -> Iterator[str]:
    processors = (
        ", ".join(processor.name for processor in report.build.pieces(Processor)) or "the processor"
    )
    yield f"A power limit of the cards and of {processors}, where the circuit is close"
    yield "Starts by itself after power is lost (firmware), and ssh by keys alone"
    yield "Checkpoints go to a disk with room: `trainrig build check` says how much"
    yield "`trainrig bundle` of the qualifying run: evidence for the warranty"
    yield "`trainrig cost --measured RUN`: what its watts and tokens/s make of the price"
