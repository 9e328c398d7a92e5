"""What other tools measured, as a reader of their output expects it: pairs of GPUs as one table.

All imported points stand among the others (`report.run_report`); here are which files they come
from, and the bandwidths and latencies of each pair of GPUs side by side.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from trainrig.analysis.judge_imported import PAIR, TRACE, is_imported, without_peer_access
from trainrig.analysis.rows import at_path
from trainrig.record import Record, RunView
from trainrig.report import document as doc
from trainrig.units import format_quantity, format_share, plain_name


def files_text(view: RunView) -> str:
    """``all_reduce.txt (nccl-tests 2.13), diag.json (dcgm 4.2)``; empty for runs of our own."""
    listed = view.config.get("imported")
    if not is_imported(view.config) or not isinstance(listed, list | tuple):
        return ""
    files = [each for each in listed if isinstance(each, Mapping)]
    return ", ".join(
        f"{each.get('file')} ({' '.join(str(each[k]) for k in ('tool', 'version') if k in each)})"
        for each in files
    )


def imported_blocks(view: RunView) -> Iterator[doc.Block]:
    """The tables that imported points have of their own."""
    points = [record for record in view.records if record.is_point and record.value is not None]
    if paths := _paths(view):
        yield doc.Section("Paths between GPUs", (_path_table(paths),), _LEGEND)
    if pairs := _pairs(points):
        note = without_peer_access(points) or "P2P: GPUs reach each other's memory directly"
        yield doc.Section("Pairs of GPUs", (_pair_table(pairs), doc.Paragraph(note, "strong")))
    if shares := _shares(points):
        yield doc.Section("Where the GPU's time went", (_share_table(shares),))


_LEGEND = (
    "NV# is that many NVLinks; PIX and PXB cross PCIe bridges, PHB the processor's PCIe, NODE and "
    "SYS the links within and between sockets."
)


def _paths(view: RunView) -> list[_Cells]:
    """The matrix that the machine's topology was read from."""
    topology = (view.machine or {}).get("topology")
    listed = topology.get("links") if isinstance(topology, Mapping) else None
    rows: dict[int, _Cells] = {}
    for link in listed if isinstance(listed, list | tuple) and is_imported(view.config) else ():
        path = str(at_path(link, "path") or "not known")
        for a, b in ((link["a"], link["b"]), (link["b"], link["a"])):
            rows.setdefault(a, _Cells(f"GPU {a}")).values[f"GPU {b}"] = path
    return [row for _, row in sorted(rows.items())]


def _path_table(rows: list[_Cells]) -> doc.Table:
    return doc.table(
        rows, doc.words("", lambda row: row.name), *(_column(row.name) for row in rows)
    )


@dataclass(slots=True)
class _Cells:
    """A row: its name, and what stands in its columns."""

    name: str
    values: dict[str, str] = field(default_factory=dict)


_COLUMNS: Mapping[tuple[object, ...], str] = {
    ("byte_rate", 1, None): "one way",
    ("byte_rate", 2, None): "both ways",
    ("time", None, "gpu"): "latency",
    ("time", None, "cpu"): "latency, CPU",
}
_PEER = {False: "P2P off", True: "P2P on"}


def _pairs(points: list[Record]) -> list[_Cells]:
    rows: dict[tuple[object, object], _Cells] = {}
    for record in points:
        case = record.case
        if record.benchmark != PAIR or case.get("direction") != "p2p":
            continue
        column = _COLUMNS.get((record.metric, case.get("ways"), case.get("clock")))
        place = case.get("from"), case.get("to")
        row = rows.setdefault(place, _Cells(f"GPU {place[0]} → {place[1]}"))
        head = f"{column}, {_PEER[bool(case.get('peer_access'))]}"
        row.values[head] = format_quantity(record.value or 0.0, record.unit)
    return list(rows.values())


def _pair_table(rows: list[_Cells]) -> doc.Table:
    heads = [
        f"{column}, {peer}"
        for column in _COLUMNS.values()
        for peer in _PEER.values()
        if any(f"{column}, {peer}" in row.values for row in rows)
    ]
    return doc.table(rows, doc.words("pair", lambda row: row.name), *map(_column, heads))


def _column(head: str) -> doc.Shown[_Cells]:
    return doc.column(head, lambda row: row.values.get(head, ""))


def _shares(points: list[Record]) -> list[_Cells]:
    rows: dict[tuple[object, ...], _Cells] = {}
    for record in points:
        if record.benchmark == TRACE and record.metric.endswith("_share"):
            place = record.case.get("trace"), record.device, record.device_index
            row = rows.setdefault(place, _Cells(f"{place[0]}, {place[1]} #{place[2]}"))
            name = plain_name(record.metric.removesuffix("_share"))
            row.values[name] = format_share(record.value or 0.0)
    return list(rows.values())


def _share_table(rows: list[_Cells]) -> doc.Table:
    heads = dict.fromkeys(head for row in rows for head in row.values)
    return doc.table(rows, doc.words("trace", lambda row: row.name), *map(_column, heads))
