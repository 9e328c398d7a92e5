"""What other predictors answered, and what ours had: peers.csv, read and written, and the asking.

A line of peers.csv is a row of a table that at least one peer answered: seconds of a step and,
where the row prints some, bytes of a GPU, measured, of ours at first contact and of each peer; a
blank says that there is no answer.  Its heads name each peer's commit and count the rows that it
did not answer, by reason.  Rows are known by table and number: who drops rows of a table writes
the file anew (a test compares their groups).
"""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from trainrig.catalog.published import training
from trainrig.errors import DataError, TrainrigError
from validation.normalise.case import Case, case_of
from validation.normalise.cells import Row
from validation.normalise.row_errors import left_out_by, measured_time, positive
from validation.out_of_family import (
    EIGHTH,
    FIFTH,
    FOURTH,
    SIXTH,
    THIRD,
    cell_of,
    is_asked,
    read,
)
from validation.peer_adapters import PEERS, Answer, commit_of, imported

PATH = Path(__file__).parent / "published" / "peers.csv"
LATER = {3: THIRD, 4: FOURTH, 5: FIFTH, 6: SIXTH, 8: EIGHTH}
"""Tables that have a first contact."""
NUMBERS = (1, 2, *LATER)
"""Of all tables."""
REFUSED = "refused"
"""A cell of a row that ours did not answer at first contact."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One row that at least one peer answered, as peers.csv has it; seconds and bytes of a GPU."""

    table: int
    row: int
    """From 0."""
    group: str
    chip: str
    cell: str
    measured: float
    first: float | None = None
    """What ours said at first contact, of the batch that `measured` is of: a row that prints a rate
    may have been read with another one then."""
    is_refused: bool = False
    """True if it said nothing then."""
    answers: Mapping[str, float] = field(default_factory=dict)
    """Peers' seconds, by the peer's column."""
    held: float | None = None
    """Bytes that the row prints."""
    first_bytes: float | None = None
    needs: Mapping[str, float] = field(default_factory=dict)
    """Peers' bytes, where the row prints some."""

    @property
    def key(self) -> tuple[int, int]:
        """Its table and row."""
        return self.table, self.row


@dataclass(frozen=True, slots=True, kw_only=True)
class First:
    """What ours said of a row at first contact."""

    ratio: float | None = None
    """Predicted over measured seconds, both as the row was read then; None: nothing."""
    is_refused: bool = False
    memory_bytes: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What a peer's head in peers.csv says: its commit, and rows that it did not answer."""

    commit: str
    unanswered: Mapping[str, int]
    """Rows by reason."""


_FIRST = ("table", "row", "group", "chip", "cell", "measured_s", "first_contact_s")
_BYTES = ("measured_bytes", "first_contact_bytes")


def columns() -> list[str]:
    """Columns of peers.csv."""
    seconds = [f"{peer.column}_s" for peer in PEERS]
    return [*_FIRST, *seconds, *_BYTES, *(f"{peer.column}_bytes" for peer in PEERS)]


def read_lines(path: Path = PATH) -> tuple[list[Line], dict[str, Told]]:
    """Return what the peers answered, and of each, by its name, what it was and did not answer.

    DataError where the file is no such file.
    """
    text = path.read_text(encoding="utf-8").splitlines()
    heads = [line for line in text if line.startswith("#")]
    rows = list(csv.DictReader(text[len(heads) :]))
    if rows and list(rows[0]) != columns():
        raise DataError(f"{path.name}: columns are not those of validation.peers")
    return [_line_of(row) for row in rows], dict(map(_told_of, heads))


def _line_of(row: Mapping[str, str]) -> Line:
    def numbers(unit: str) -> dict[str, float]:
        cells = {peer.column: row[f"{peer.column}_{unit}"] for peer in PEERS}
        return {name: float(cell) for name, cell in cells.items() if cell}

    first = row["first_contact_s"]
    return Line(
        table=int(row["table"]),
        row=int(row["row"]),
        group=row["group"],
        chip=row["chip"],
        cell=row["cell"],
        measured=float(row["measured_s"]),
        first=float(first) if first and first != REFUSED else None,
        is_refused=first == REFUSED,
        answers=numbers("s"),
        held=float(row["measured_bytes"]) if row["measured_bytes"] else None,
        first_bytes=float(row["first_contact_bytes"]) if row["first_contact_bytes"] else None,
        needs=numbers("bytes"),
    )


def _told_of(head: str) -> tuple[str, Told]:
    """``# SimuMax 4dcaae513ba7: 12 x chip; 3 x encoder``."""
    name, _, rest = head.removeprefix("# ").partition(" ")
    commit, _, listed = rest.partition(": ")
    unanswered = {}
    for part in filter(None, listed.split("; ")):
        num, _, reason = part.partition(" x ")
        unanswered[reason] = int(num)
    return name, Told(commit=commit, unanswered=unanswered)


def write_lines(lines: Iterable[Line], told: Mapping[str, Told], path: Path = PATH) -> None:
    """Write peers.csv."""
    with path.open("w", encoding="utf-8", newline="") as file:
        for name, its in told.items():
            ordered = sorted(
                its.unanswered.items(), key=lambda reason_count: (-reason_count[1], reason_count[0])
            )
            listed = "; ".join(f"{num} x {reason.replace(';', ',')}" for reason, num in ordered)
            file.write(f"# {name} {its.commit}: {listed}\n")
        out = csv.writer(file, lineterminator="\n")
        out.writerow(columns())
        for line in lines:
            first = REFUSED if line.is_refused else _cell(line.first)
            seconds = [_cell(line.answers.get(peer.column)) for peer in PEERS]
            needs = [_cell(line.needs.get(peer.column)) for peer in PEERS]
            front = [
                line.table,
                line.row,
                line.group,
                line.chip,
                line.cell,
                _cell(line.measured),
                first,
            ]
            out.writerow([*front, *seconds, _cell(line.held), _cell(line.first_bytes), *needs])


def _cell(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"


@cache
def table_rows(table: int) -> tuple[Row, ...]:
    """The rows of a table, by its number."""
    if table == 1:
        return tuple(training.read())
    return tuple(read() if table == 2 else read(LATER[table]))


def asked_rows() -> Iterator[tuple[int, int, Row, Case, float]]:
    """Table, number, row, case and measured seconds of the rows that are put to the peers."""
    for table in NUMBERS:
        for number, row in enumerate(table_rows(table)):
            if not is_asked(row) or (table == 1 and left_out_by(row)):
                continue
            try:
                case = case_of(row)
                yield table, number, row, case, measured_time(row, case)
            except TrainrigError:
                continue


def ask(
    firsts: Mapping[tuple[int, int], First],
    before: Sequence[Line] = (),
    told_before: Mapping[str, Told] | None = None,
) -> tuple[list[Line], dict[str, Told]]:
    """Every row put to every peer that can be imported; who cannot be is named on the way.

    ``firsts``: first contacts, by table and row; ``before``: the file as it was, whose answers stay
    of those who cannot be asked.
    """
    modules: dict[str, Any] = {}
    for peer in PEERS:
        if (found := imported(peer)) is None:
            print(f"{peer.name}: not importable (--path FOLDER), not asked; its answers stay")
        else:
            modules[peer.name] = found
    former = {one.key: one for one in before}
    lines: list[Line] = []
    unanswered = {peer.name: Counter[str]() for peer in PEERS}
    for table, number, row, case, seconds in asked_rows():
        measured = float(
            _cell(seconds)
        )  # as it is written, so that a second writing changes nothing
        said = stayed(former.get((table, number)), row, set(modules))
        for peer in PEERS:
            if peer.name not in modules:
                continue
            answer = peer.answer(modules[peer.name], case)
            if isinstance(answer, Answer):
                said[peer.column] = answer
            else:
                unanswered[peer.name][answer] += 1
        if said:
            held = None if case.mean_seq else held_bytes(row)
            first = firsts.get((table, number), First())
            one = Line(
                table=table,
                row=number,
                group=row["group"],
                chip=case.chip.name,
                cell=cell_of(row),
                measured=measured,
                first=None if first.ratio is None else first.ratio * measured,
                is_refused=first.is_refused,
                answers={name: its.time_s for name, its in said.items()},
                held=held,
                first_bytes=first.memory_bytes,
                needs={
                    name: its.memory_bytes
                    for name, its in said.items()
                    if its.memory_bytes is not None and held
                },
            )
            lines.append(one)
    told = dict(told_before or {}) | {
        name: Told(commit=commit_of(found), unanswered=unanswered[name])
        for name, found in modules.items()
    }
    return lines, {peer.name: told[peer.name] for peer in PEERS if peer.name in told}


def stayed(line: Line | None, row: Row, asked: Container[str]) -> dict[str, Answer]:
    """What peers that are not asked said of a row before, by column; nothing of another's row."""
    if line is None or line.group != row["group"]:
        return {}
    return {
        peer.column: Answer(
            time_s=line.answers[peer.column], memory_bytes=line.needs.get(peer.column)
        )
        for peer in PEERS
        if peer.name not in asked and peer.column in line.answers
    }


def held_bytes(row: Row) -> float | None:
    """Bytes of a GPU that a row prints; None: it prints none."""
    try:
        return positive(row, "memory_bytes_per_gpu")
    except TrainrigError:
        return None


def first_contacts(folder: Path) -> dict[tuple[int, int], First]:
    """What older trees answered, by today's table and row; rows mended since are not among them.

    Of each table ``fcN.json`` (what was said of row ``n``: ``time`` and ``memory`` with their
    intervals, and ``meas``, the measured seconds as they were read) and ``tN.csv``, the table of
    its day.  Rows meet by what is printed in all columns that both have.
    """
    first_by_row: dict[tuple[int, int], First] = {}
    for table in LATER:
        said = json.loads((folder / f"fc{table}.json").read_text(encoding="utf-8"))
        then, now = read(folder / f"t{table}.csv"), table_rows(table)
        first_by_row |= {(table, at): one for at, one in met(then, now, said).items()}
    return first_by_row


def met(
    then: Sequence[Row], now: Sequence[Row], said: Iterable[Mapping[str, Any]]
) -> dict[int, First]:
    """Return what was said of rows of a table of then, by the numbers of the rows of now."""
    names = [name for name in then[0] if name in now[0]] if then and now else []
    places: dict[tuple[str, ...], list[int]] = {}
    for at, row in enumerate(now):
        places.setdefault(tuple(row[name] for name in names), []).append(at)
    first_by_row = {}
    for answer in said:
        if free := places.get(tuple(then[answer["n"]][name] for name in names)):
            time, memory, measured = (answer.get(name) for name in ("time", "memory", "meas"))
            first_by_row[free.pop(0)] = First(
                ratio=time[1] / measured if time and measured else None,
                is_refused=not time,
                memory_bytes=memory[1] if memory else None,
            )
    return first_by_row


def kept(lines: Iterable[Line]) -> dict[tuple[int, int], First]:
    """First contacts as peers.csv has them, where nothing else is at hand."""
    return {
        line.key: First(
            ratio=None if line.first is None else line.first / line.measured,
            is_refused=line.is_refused,
            memory_bytes=line.first_bytes,
        )
        for line in lines
        if line.table in LATER
    }
