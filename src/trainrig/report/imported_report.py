"""Results of other tools, as a reader of their output expects them.

Every number that was read stands in a table, beside what others published of the same operation on
the same card (`analysis.published_place`); the bandwidths and latencies of pairs of GPUs are one
table, and the paths between them another one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from trainrig.analysis.imported_facts import (
    ReadGroup,
    ReadNumber,
    is_pair,
    is_unnamed,
    metric_words,
    number_text,
    place_text,
    read_groups,
)
from trainrig.analysis.judge_imported import is_imported, without_peer_access
from trainrig.analysis.published_place import PublishedPlace
from trainrig.analysis.rows import at_path
from trainrig.record import RunView
from trainrig.report import document as doc
from trainrig.report.published_report import RULE
from trainrig.units import capital, counted, device_text

MAX_ROWS = 400
"""Most rows of a table; those left out are counted below it."""


def files_text(view: RunView) -> str:
    """Return ``all_reduce.txt (nccl-tests 2.13), diag.json (dcgm 4.2)``.

    Empty for runs of our own.
    """
    listed = view.config.get("imported")
    if not is_imported(view.config) or not isinstance(listed, list | tuple):
        return ""
    files = [file for file in listed if isinstance(file, Mapping)]
    return ", ".join(
        f"{file.get('file')} ({' '.join(str(file[k]) for k in ('tool', 'version') if k in file)})"
        for file in files
    )


def imported_blocks(view: RunView) -> Iterator[doc.Block]:
    """Return the tables of an imported run.

    Every number, pairs of GPUs, and the paths between them.
    """
    if not is_imported(view.config):
        return
    groups = read_groups(view)
    pairs = [number for group in groups for number in group.numbers if is_pair(number.record)]
    several = len({group.file for group in groups}) > 1
    devices = {(r.device, r.device_index) for r in view.records if r.is_point}
    tables = [
        table
        for group in groups
        for table in _tables(group, several=several, num_devices=len(devices))
    ]
    if tables:
        has_others = any(number.place for group in groups for number in group.numbers)
        yield doc.Section("What was read", tuple(tables), RULE * has_others)
    if paths := _paths(view):
        yield doc.Section("Paths between GPUs", (_path_table(paths),), _LEGEND)
    if pairs:
        records = [number.record for number in pairs]
        note = without_peer_access(records) or "P2P: GPUs reach each other's memory directly"
        yield doc.Section("Pairs of GPUs", (_pair_table(pairs), doc.Paragraph(note, "strong")))


# ---- every number


_Place = tuple[object, ...]
_Cell = Callable[[Sequence[ReadNumber]], str | doc.Cell]
_Name = Callable[[ReadNumber], str]
_MOST_COLUMNS = 8
"""Most metrics of a table, side by side."""


def _tables(group: ReadGroup, *, several: bool, num_devices: int) -> Iterator[doc.Table]:
    """Yield the numbers of a file and benchmark, those of pairs left out."""
    numbers = [number for number in group.numbers if not is_pair(number.record)]
    if not numbers:
        return
    rows = _rows(numbers)
    metrics = list(dict.fromkeys(number.record.metric for number in numbers))
    title = f"Printed by {group.tool}" + (f", {group.file}" if several else "")
    device = _device_of if num_devices > 1 else _no_device
    is_tall = len(rows) == 1 or (len(metrics) > _MOST_COLUMNS and len(rows) <= len(metrics))
    yield (
        _long_table(title, numbers, device)
        if is_tall
        else _wide_table(title, rows, metrics, device)
    )


def _rows(numbers: Sequence[ReadNumber]) -> list[list[ReadNumber]]:
    """Return numbers by case and device; one that a file has twice has a row of its own."""
    times: Counter[_Place] = Counter()
    rows: dict[tuple[_Place, int], list[ReadNumber]] = {}
    for number in numbers:
        place = _row_of(number)
        rows.setdefault((place, times[*place, number.record.metric]), []).append(number)
        times[*place, number.record.metric] += 1
    return list(rows.values())


def _row_of(number: ReadNumber) -> _Place:
    record = number.record
    case = tuple(sorted((name, str(value)) for name, value in record.case.items()))
    return case, record.device, record.device_index, record.device_count


def _long_table(title: str, numbers: Sequence[ReadNumber], device: _Name) -> doc.Table:
    """Return a line a number: many metrics of few cases."""
    cases = dict.fromkeys(number.what for number in numbers)
    if len(cases) == 1:
        title = ": ".join(filter(None, (title, *cases)))
    shown_numbers = numbers[:MAX_ROWS]
    return doc.table(
        shown_numbers,
        doc.words("number", lambda number: capital(metric_words(number.record.metric))),
        doc.words("case", lambda number: number.what if len(cases) > 1 else ""),
        doc.words("device", device),
        doc.column("value", lambda number: number.text),
        doc.column("published (n)", lambda number: _place_cell(number) or ""),
        title=title,
        notes=_notes(numbers, len(numbers) - len(shown_numbers)),
    )


def _wide_table(
    title: str, rows: Sequence[Sequence[ReadNumber]], metrics: Sequence[str], device: _Name
) -> doc.Table:
    """Return a line a case, a column a metric."""
    everything = [number for row in rows for number in row]
    shown_rows = rows[:MAX_ROWS]
    columns: list[doc.Shown[Sequence[ReadNumber]]] = [
        doc.words("case", lambda row: row[0].what),
        doc.words("device", lambda row: device(row[0])),
    ]
    for metric in metrics:
        columns.append(doc.column(metric_words(metric), _cell_of(metric)))
        if any(number.place for number in everything if number.record.metric == metric):
            columns.append(doc.column("published (n)", _others_of(metric)))
    num_hidden = len(rows) - len(shown_rows)
    return doc.table(shown_rows, *columns, title=title, notes=_notes(everything, num_hidden))


def _cell_of(metric: str) -> _Cell:
    def cell(row: Sequence[ReadNumber]) -> str:
        return next((number.text for number in row if number.record.metric == metric), "")

    return cell


def _others_of(metric: str) -> _Cell:
    def cell(row: Sequence[ReadNumber]) -> str | doc.Cell:
        number = next((one for one in row if one.record.metric == metric), None)
        return (_place_cell(number) if number else "") or ""

    return cell


def _place_cell(number: ReadNumber) -> doc.Cell | None:
    """Return the cell of published figures, marked where the number is worse than all of them."""
    place = number.place
    if place is None:
        return None
    tone: doc.Tone = "warn" if place.is_worse(number.value) else ""
    return doc.Cell(f"{place_text(place)} ({place.num})", tone)


def _device_of(number: ReadNumber) -> str:
    """Return the device of a number; nothing where it is neither named nor numbered."""
    device, index = number.record.device, number.record.device_index
    if is_unnamed(device):
        return "" if index is None else f"GPU {index}"
    return device_text(device, index)


def _no_device(_: ReadNumber) -> str:
    return ""


def _notes(numbers: Sequence[ReadNumber], num_hidden: int) -> list[str]:
    """Whose figures stand beside the numbers, and how many rows are left out."""
    places = dict.fromkeys(_place_text(number.place) for number in numbers if number.place)
    more = [f"{counted(num_hidden, 'more row')} in the run's records.jsonl."] if num_hidden else []
    return [*places, *more]


def _place_text(place: PublishedPlace) -> str:
    return f"Published: {place.card}; {place.kind}."


# ---- pairs and paths of GPUs

_LEGEND = (
    "NV# is that many NVLinks; PIX and PXB cross PCIe bridges, PHB the processor's PCIe, NODE and "
    "SYS the links within and between sockets."
)


@dataclass(slots=True)
class _Cells:
    """A row: its name, and what stands in its columns."""

    name: str
    values: dict[str, str] = field(default_factory=dict)


def _paths(view: RunView) -> list[_Cells]:
    """Return the matrix that the machine's topology was read from."""
    topology = (view.machine or {}).get("topology")
    listed = topology.get("links") if isinstance(topology, Mapping) else None
    rows: dict[int, _Cells] = {}
    for link in listed if isinstance(listed, list | tuple) else ():
        path = str(at_path(link, "path") or "not stated")
        for a, b in ((link["a"], link["b"]), (link["b"], link["a"])):
            rows.setdefault(a, _Cells(f"GPU {a}")).values[f"GPU {b}"] = path
    return [row for _, row in sorted(rows.items())]


def _path_table(rows: list[_Cells]) -> doc.Table:
    return doc.table(
        rows, doc.words("", lambda row: row.name), *(_column(row.name) for row in rows)
    )


_COLUMNS: Mapping[tuple[object, ...], str] = {
    ("byte_rate", 1, None): "one way",
    ("byte_rate", 2, None): "both ways",
    ("time", None, "gpu"): "latency",
    ("time", None, "cpu"): "latency, CPU",
}
_PAIR_FIELDS = frozenset(["direction", "from", "to", "ways", "clock", "peer_access"])
_PEER = {False: "P2P off", True: "P2P on"}


def _pair_table(pairs: Sequence[ReadNumber]) -> doc.Table:
    """Return a line a pair.

    The last one is what others published, whichever pair of theirs it was.
    """
    rows: dict[object, _Cells] = {}
    heads: dict[str, tuple[int, bool, str]] = {}
    others = _Cells("published (n)")
    for pair in pairs:
        record, case = pair.record, pair.record.case
        key = (record.metric, case.get("ways"), case.get("clock"))
        column, has_peer = _COLUMNS.get(key, record.metric), bool(case.get("peer_access"))
        more = [str(value) for name, value in case.items() if name not in _PAIR_FIELDS]
        head = ", ".join([column, _PEER[has_peer], *more])
        order = list(_COLUMNS).index(key) if key in _COLUMNS else len(_COLUMNS)
        heads.setdefault(head, (order, has_peer, head))
        place = (case.get("from"), case.get("to"))
        row = rows.setdefault(place, _Cells(f"GPU {place[0]} → {place[1]}"))
        text = number_text(pair.value, record.unit)
        row.values[head] = "; ".join(filter(None, (row.values.get(head), text)))
        if pair.place is not None:
            others.values[head] = f"{place_text(pair.place)} ({pair.place.num})"
    shown_rows = [*rows.values(), *([others] if others.values else [])]
    columns = map(_column, sorted(heads, key=lambda head: heads[head]))
    return doc.table(
        shown_rows, doc.words("pair", lambda row: row.name), *columns, notes=_notes(pairs, 0)
    )


def _column(head: str) -> doc.Shown[_Cells]:
    return doc.column(head, lambda row: row.values.get(head, ""))
