"""A race on common rows: predicted steps beside those of three other predictors.

    python -m validation.peers                     from peers.csv: who is how far off, and where
    python -m validation.peers --write             ask the peers that can be imported; write it
    ... --path FOLDER                              where a peer lies (may be given more than once)
    ... --first-contact FOLDER                     what older trees answered (fc3.json, t3.csv ...)

Each row of seven tables that prints how fast a step was is put to each peer that can express it
(`peer_adapters`, `peer_answers`), with shape and layout as `case_of` reads them: who misreads a
row, misreads it for all.  Blank cells are filled by us, then, and today's reading was mended in
sight of rows that first contacts were read without: that is in the peers' favour.

Ours is what nobody had fitted or mended by these rows: of training.csv and training-2.csv, with the
row's family of software left out of the fit (`protocols`; rules were chosen in sight of these
rows); of the later ones, what the tree of its day said before anybody had seen an error of
them.  A row that it refused then counts as a flat MFU of 40 %, as in `out_of_family`.  A peer may
have seen rows: those of its own validation are its home.  A cell is a source on a chip, each counts
alike; an error is predicted / measured - 1, of its absolute value.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import fmean, median

from validation.normalise.answers import memory_of, time_of
from validation.normalise.case import case_of
from validation.normalise.cells import Row
from validation.normalise.row_errors import measured_time
from validation.out_of_family import Outcome, flat_error
from validation.peer_adapters import PEERS, Peer
from validation.peer_answers import (
    LATER,
    NUMBERS,
    PATH,
    Line,
    Told,
    ask,
    first_contacts,
    held_bytes,
    kept,
    read_lines,
    table_rows,
    write_lines,
)
from validation.protocols import by_parts


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One common row's errors."""

    cell: str
    peer: float
    ours: float
    flat: float | None
    """None: the chip claims no peak."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Of medians of cells."""

    mean: float
    bounded: float
    """Mean where a cell counts 100 % at most."""
    middle: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """One peer beside ours on some common rows."""

    rows: int
    cells: int
    peer: Figures
    ours: Figures
    flat: Figures | None
    """None: of memory."""
    nearer: int
    """Cells in which ours is nearer."""


def standing(entries: Sequence[Entry]) -> Standing | None:
    """Return how a peer and ours did on common rows; None where there are none."""
    cells: dict[str, list[Entry]] = {}
    for entry in entries:
        cells.setdefault(entry.cell, []).append(entry)
    if not cells:
        return None
    peer = [median(abs(entry.peer) for entry in cell_entries) for cell_entries in cells.values()]
    ours = [median(abs(entry.ours) for entry in cell_entries) for cell_entries in cells.values()]
    known = [
        [abs(entry.flat) for entry in cell_entries if entry.flat is not None]
        for cell_entries in cells.values()
    ]
    return Standing(
        rows=len(entries),
        cells=len(cells),
        peer=_figures(peer),
        ours=_figures(ours),
        flat=_figures([median(cell_entries) for cell_entries in known if cell_entries])
        if any(known)
        else None,
        nearer=sum(a < b for a, b in zip(ours, peer, strict=True)),
    )


def _figures(medians: Sequence[float]) -> Figures:
    bounded = fmean(min(1.0, median_error) for median_error in medians)
    return Figures(mean=fmean(medians), bounded=bounded, middle=median(medians))


@cache
def left_out() -> Mapping[tuple[str, ...], Outcome]:
    """Ours with the row's family left out of the fit, by what rows of two tables print."""
    pairs = by_parts(lambda one: one.family)
    return {print_of(one.row): outcome for one, outcome in pairs if one.table < 3}


def print_of(row: Row) -> tuple[str, ...]:
    """A row's cells."""
    return tuple(f"{name} {cell}" for name, cell in sorted(row.items()))


@cache
def today(table: int, number: int) -> tuple[float | None, float, float | None]:
    """Of a row: a flat MFU's error, ours now (these rows in sight), and ours now of its memory."""
    row = table_rows(table)[number]
    case = case_of(row)
    measured, held = measured_time(row, case), held_bytes(row)
    memory = memory_of(case)[1] / held - 1.0 if held else None
    return flat_error(case, measured), time_of(case)[1] / measured - 1.0, memory


def ours_of(line: Line) -> float | None:
    """Our error of a row that nothing was fitted to or mended by; None: there is none."""
    flat = today(*line.key)[0]
    if line.table in LATER:
        if line.is_refused:
            return 1.0 if flat is None else flat
        return None if line.first is None else line.first / line.measured - 1.0
    outcome = left_out().get(print_of(table_rows(line.table)[line.row]))
    return None if outcome is None else outcome.scored


def entries(lines: Iterable[Line], peer: Peer, *, now: bool = False) -> list[Entry]:
    """Common rows of a peer; ``now``: beside ours of today, these rows in sight."""
    common = []
    for line in lines:
        answer = line.answers.get(peer.column)
        if answer is None or (ours := ours_of(line)) is None:
            continue
        flat, today_ours, _ = today(*line.key)
        error = answer / line.measured - 1.0
        common.append(
            Entry(cell=line.cell, peer=error, ours=today_ours if now else ours, flat=flat)
        )
    return common


def memory_entries(lines: Iterable[Line], peer: Peer, *, now: bool = False) -> list[Entry]:
    """Likewise of a GPU's memory: ours at first contact; ``now``: ours of today, on all tables."""
    common = []
    for line in lines:
        need, held = line.needs.get(peer.column), line.held
        if need is None or held is None:
            continue
        then = None if line.first_bytes is None else line.first_bytes / held - 1.0
        ours = today(*line.key)[2] if now else then
        if ours is not None:
            common.append(Entry(cell=line.cell, peer=need / held - 1.0, ours=ours, flat=None))
    return common


SCOPES: Mapping[str, tuple[int, ...]] = {
    **{f"table {n}": (n,) for n in NUMBERS},
    "tables 1 and 2": (1, 2),
    "tables 3 to 8": tuple(LATER),
    "all": NUMBERS,
}


def standings(lines: Sequence[Line], peer: Peer) -> dict[str, Standing]:
    """A peer's standing by table and together, without its home and beside ours of today."""
    standing_by_name = {
        name: standing(entries([one for one in lines if one.table in tables], peer))
        for name, tables in SCOPES.items()
    }
    standing_by_name["all, not at home"] = standing(
        entries([one for one in lines if one.group not in peer.home], peer)
    )
    standing_by_name["all, ours of today"] = standing(entries(lines, peer, now=True))
    standing_by_name["memory, first contact"] = standing(memory_entries(lines, peer))
    standing_by_name["memory, ours of today"] = standing(memory_entries(lines, peer, now=True))
    return {name: one for name, one in standing_by_name.items() if one}


HONEST = ("tables 1 and 2", "table 8", "tables 3 to 8", "all", "all, not at home")
"""Scopes in which ours has not seen the rows."""
SHOWN = (*HONEST, "all, ours of today", "memory, first contact", "memory, ours of today")


def page_table() -> str:
    """Return what docs/accuracy.md says: each peer beside ours, and where it is nearer."""
    lines, told = read_lines()
    rows, better = [], []
    for peer in PEERS:
        each = standings(lines, peer)
        if not peer.home:
            del each["all, not at home"]
        rows += [f"| {peer.name}, {name} {_cells_of(each[name])}" for name in SHOWN if name in each]
        better += [f"- {peer.name}, {words}" for words in nearer_peer(each)]
    head = (
        "| predictor, rows | rows | cells | mean of cells: its, ours, flat 40 % MFU |"
        " a cell at most 100 % | median cell | cells where ours is nearer |\n"
        "|---|---|---|---|---|---|---|\n"
    )
    unanswered = [f"- {words}" for words in reasons(told)]
    return "\n\n".join(
        [
            head + "\n".join(rows),
            "Where a peer is nearer than ours (mean of cells; the same with a cell at most 100 %;"
            " median cell; by table, too):",
            "\n".join(better) or "- nowhere",
            "Rows that were asked and not answered, by reason:",
            "\n".join(unanswered),
        ]
    )


def nearer_peer(standing_by_name: Mapping[str, Standing]) -> list[str]:
    """Return where a peer's figures are smaller than ours, with both."""
    sentences = []
    for name, standing in standing_by_name.items():
        if "today" in name:
            continue
        pairs = {
            "mean": (standing.peer.mean, standing.ours.mean),
            "at most 100 %": (standing.peer.bounded, standing.ours.bounded),
            "median cell": (standing.peer.middle, standing.ours.middle),
        }
        smaller = [
            f"{of} {its:.1%} to ours {our:.1%}" for of, (its, our) in pairs.items() if its < our
        ]
        if smaller:
            sentences.append(f"{name} ({standing.cells} cells): {'; '.join(smaller)}")
    return sentences


def _cells_of(standing: Standing) -> str:
    three = [
        ", ".join(
            f"{getattr(who, figure):.1%}"
            for who in (standing.peer, standing.ours, standing.flat)
            if who is not None
        )
        for figure in ("mean", "bounded", "middle")
    ]
    return f"| {standing.rows} | {standing.cells} | {' | '.join(three)} | {standing.nearer} |"


def reasons(told: Mapping[str, Told], most: int = 12) -> list[str]:
    """Of each peer, what it did not answer and why, the most frequent first."""
    sentences = []
    for name, peer_head in told.items():
        listed = [f"{num} {reason}" for reason, num in peer_head.unanswered.items()][:most]
        rest = sum(peer_head.unanswered.values()) - sum(list(peer_head.unanswered.values())[:most])
        end = f"; {rest} for other reasons" if rest else ""
        sentences.append(f"{name} ({peer_head.commit}): {'; '.join(listed)}{end}")
    return sentences


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, ask, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", action="store_true", help="ask the peers, write peers.csv")
    parser.add_argument("--path", action="append", default=[], help="where a peer lies")
    parser.add_argument("--first-contact", type=Path, help="what older trees answered")
    options = parser.parse_args(argv)
    if options.write:
        sys.path += options.path
        before, told = read_lines() if PATH.exists() else ([], {})
        contacts = options.first_contact
        firsts = first_contacts(contacts) if contacts else kept(before)
        write_lines(*ask(firsts, before, told))
    lines, told = read_lines()
    wide = max(map(len, (*SCOPES, *SHOWN))) + 1
    print(
        f"  {'':{wide}} rows cells   mean: its    ours    flat   at most 100 %: its, ours, flat"
        "   median cell: its, ours, flat   ours nearer"
    )
    for peer in PEERS:
        print(peer.name)
        for name, one in standings(lines, peer).items():
            blocks = []
            for of in ("mean", "bounded", "middle"):
                three = (one.peer, one.ours, one.flat)
                blocks.append(
                    "".join(f"{getattr(who, of):8.1%}" if who else " " * 8 for who in three)
                )
            head = f"  {name:{wide}}{one.rows:5d} {one.cells:5d}"
            print(f"{head}   {'     '.join(blocks)}   {one.nearer}")
    print("\nnot answered:")
    for words in reasons(told):
        print(f"  {words}")


if __name__ == "__main__":
    main()
