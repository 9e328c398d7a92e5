"""Links as they are, should be and were measured: the diagram, and heat maps of pairs.

A heat map has the sender in the row; darker is faster (of latencies: slower), over all maps of one
quantity, so that P2P on and off can be compared by eye.  What the topology should give stands
beside them: NVLinks times the data sheet's rate of one, or the slower PCIe link of the two.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from trainrig.analysis.best import best_record, bound_of, valid_value, value_text, with_bound_sign
from trainrig.analysis.numa_advice import advice, numa_points
from trainrig.benchmarks.collective import OPS
from trainrig.benchmarks.numa import ALL, ANY, OWN
from trainrig.benchmarks.spec import Role, number_in, role_of
from trainrig.catalog.host_parts import pcie_bandwidth
from trainrig.catalog.lookup import find_chip
from trainrig.errors import DataError, UsageError
from trainrig.machine import from_dict
from trainrig.machine.snapshot import Gpu, Snapshot, value_or
from trainrig.record import Record, RunView, Status
from trainrig.report import document as doc
from trainrig.report.charts.link_diagram import DrawnGpu, LinkDiagram, is_nvlink
from trainrig.stats import grouped
from trainrig.units import binary, device_text, format_quantity, si_scale

_SHADES = 5
_MOST = 16
"""GPUs or ranks of one map."""
_CELL: Mapping[str, str] = {"B/s": "bandwidth", "s": "latency"}


def link_blocks(view: RunView) -> Iterator[doc.Block]:
    """Yield the links of a run that has more than one device."""
    blocks: list[doc.Block] = []
    gpus = (view.machine or {}).get("gpus")
    if isinstance(gpus, list) and len(gpus) > 1:  # to read the whole description takes its time
        with suppress(DataError):  # a machine.json of another version, or a part of one
            blocks += topology_blocks(from_dict(view.machine))
    maps = list(_maps(view.records))
    if maps:
        blocks.append(doc.Group("beside", tuple(maps)))
    blocks += _exchanges(view.records)
    if blocks:
        note = "The row sends, the column receives; darker is faster, of latencies slower."
        yield doc.Section("Links", tuple(blocks), note if maps else "")
    if points := numa_points(view.records):
        words = [doc.Paragraph(text, "strong") for text in advice(view.records)]
        tables = doc.Group("beside", tuple(_by_node(points)))
        note = "Rows are processors, or the binding; columns memory, or the way of a copy."
        yield doc.Section("NUMA nodes", (*words, tables), note)


def topology_blocks(snapshot: Snapshot) -> list[doc.Block]:
    """Return drawing of a machine's GPUs, and the same as a table; nothing for fewer than two."""
    diagram = diagram_of(snapshot)
    if diagram is None:
        return []
    numbers = [node.number for node in diagram.nodes]
    rates = dict(diagram.rates)
    paths = {frozenset((a, b)): path for a, b, path in diagram.paths}

    def cell(row: DrawnGpu, column: int) -> str:
        path = paths.get(frozenset((row.number, column)), "?")
        if row.number == column:
            return "X"
        return f"{path} {rates[path]}" if path in rates else path

    def to(number: int) -> doc.Shown[DrawnGpu]:
        return doc.column(f"GPU {number}", lambda row: cell(row, number))

    columns = [to(number) for number in numbers]
    table = doc.table(
        diagram.nodes,
        doc.words("", lambda row: f"GPU {row.number}"),
        *columns,
        doc.words("to the host", lambda row: row.pcie),
        title="What the topology should give, each way",
    )
    is_known = diagram.rates or any("," in node.pcie for node in diagram.nodes)
    return [doc.Figure(chart=diagram), *([table] if is_known else [])]


def diagram_of(snapshot: Snapshot) -> LinkDiagram | None:
    """Return the links of a machine with several GPUs whose paths are known."""
    gpus = value_or(snapshot.gpus, ())[:_MOST]
    links = value_or(snapshot.topology.links, ())
    known = {gpu.index for gpu in gpus}
    paths = tuple(
        (link.a, link.b, path)
        for link in links
        if {link.a, link.b} <= known and (path := value_or(link.path, ""))
    )
    if len(gpus) < 2 or not paths:
        return None
    nodes = tuple(
        DrawnGpu(number=gpu.index, name=value_or(gpu.name, "GPU"), pcie=_pcie(gpu)) for gpu in gpus
    )
    rates = {path: rate for *_, path in paths if (rate := _nvlink_rate(path, gpus))}
    return LinkDiagram(
        title="Links between GPUs", nodes=nodes, paths=paths, rates=tuple(rates.items())
    )


def _pcie(gpu: Gpu) -> str:
    generation = value_or(gpu.link.max_generation, None)
    running = value_or(gpu.link.width, value_or(gpu.link.max_width, None))
    if not generation or not running:
        return "PCIe not known"
    try:
        rate = format_quantity(pcie_bandwidth(generation, running).high, "B/s")
    except UsageError:
        return f"PCIe {generation} x{running}"
    return f"PCIe {generation} x{running}, {rate}"


def _nvlink_rate(path: str, gpus: Sequence[Gpu]) -> str:
    """Return the rate of so many NVLinks each way, by the data sheet; else an empty text."""
    chip = find_chip(value_or(gpus[0].name, "")) if is_nvlink(path) else None
    if chip is None or not chip.link.bandwidth or not chip.link.count:
        return ""
    return format_quantity(int(path[2:]) * chip.link.bandwidth / 2.0 / chip.link.count, "B/s")


# ---- heat maps


def _maps(records: Iterable[Record]) -> Iterator[doc.Table]:
    """Yield one for each quantity, way and state of peer access; of ranks one for each size."""
    points = [record for record in records if record.is_point and _ends(record) is not None]
    usual = [record for record in points if record.metric in ("byte_rate", "bus_rate", "time")]
    pairs = [r for r in usual if role_of(r.benchmark) is Role.LINK]
    sends = [r for r in usual if role_of(r.benchmark) is Role.COLLECTIVE and r.metric == "bus_rate"]
    for name, pair_records in (("GPU", pairs), ("rank", sends)):
        of_unit = grouped(pair_records, lambda r: (r.unit, r.case.get("ways"), r.case.get("bytes")))
        for kind, several in of_unit.items():
            top = max(map(valid_value, several), default=0.0)
            maps = grouped(several, lambda r: (r.case.get("peer_access"), r.case.get("clock")))
            for (access, clock), members in maps.items():
                yield _map(name, kind, (access, clock), members, top)


def _ends(record: Record) -> tuple[int, int] | None:
    first, second = record.case.get("from"), record.case.get("to")
    is_pair = isinstance(first, int) and isinstance(second, int)
    return (first, second) if is_pair else None  # type: ignore[return-value]


def _map(
    name: str, kind: tuple[Any, ...], state: tuple[Any, ...], members: Sequence[Record], top: float
) -> doc.Table:
    (unit, ways, size), (access, clock) = kind, state
    pairs = grouped(members, _ends)
    at = {
        ends: best_record(pair_records) or pair_records[-1] for ends, pair_records in pairs.items()
    }
    numbers = sorted({end for ends in at if ends for end in ends})[:_MOST]
    scale, spelled = si_scale(top, unit) if top else (1.0, unit)

    def cell(row: int, column: int) -> doc.Cell:
        record = at.get((row, column))
        if record is None:
            return doc.Cell("" if row != column else "·")
        value = valid_value(record)
        if not value:
            return doc.Cell(record.status.value)
        text = with_bound_sign(format_quantity(value / scale, ""), bound_of(record))
        return doc.Cell(text, shade=min(int(_SHADES * value / top), _SHADES))

    words = [_CELL.get(unit, unit)]
    words += [{1: "one way", 2: "both ways"}[ways]] if ways in (1, 2) else []
    words += [f"by the {str(clock).upper()}"] if clock else []
    words += [f"{binary(number_in({'n': size}, 'n'))}B"] if size else []
    words += [f"P2P {'on' if access else 'off'}"] if isinstance(access, bool) else []
    devices = sorted({str(record.device) for record in members})
    return doc.Table(
        (doc.Column(""), *(doc.Column(f"{name} {number}") for number in numbers)),
        tuple((f"{name} {row}", *(cell(row, column) for column in numbers)) for row in numbers),
        title=f"{', '.join(words)}, {spelled}",
        notes=(", ".join(devices[:3]),),
    )


# ---- what ranks exchange, and memory by node


def _exchanges(records: Iterable[Record]) -> Iterator[doc.Table]:
    """Return a line for each operation and size, as nccl-tests prints them.

    Of pairs there are maps.
    """
    points = [
        record
        for record in records
        if record.is_point
        and role_of(record.benchmark) is Role.COLLECTIVE
        and "backend" in record.case  # others' have a table of their own
        and record.case.get("from") is None
    ]
    kinds = grouped(
        points, lambda r: tuple(r.case.get(name) for name in ("backend", "nodes", "peer_access"))
    )
    for exchange_rows in kinds.values():
        backend, nodes, access = (
            exchange_rows[0].case.get(n) for n in ("backend", "nodes", "peer_access")
        )
        cases = grouped(exchange_rows, lambda record: tuple(sorted(record.case.items())))
        rows: list[Sequence[Record]] = list(cases.values())
        rows.sort(key=_exchange_order)
        ranks = {row[0].case.get("ranks") for row in rows}
        words = [f"What ranks exchange by {backend}"]
        words += [f"{next(iter(ranks))} ranks"] if len(ranks) == 1 else []
        words += [f"{nodes} nodes"] if nodes != 1 else []
        words += ["P2P off"] if access is False else []
        yield doc.table(
            rows,
            doc.words("operation", lambda row: str(row[0].case.get("collective"))),
            *([doc.column("ranks", _ranks)] if len(ranks) > 1 else []),
            doc.column("size", lambda row: f"{binary(number_in(row[0].case, 'bytes'))}B"),
            doc.column("time", lambda row: _of_metric(row, "time")),
            doc.column("algorithm bandwidth", lambda row: _of_metric(row, "alg_rate")),
            doc.column("bus bandwidth", lambda row: _of_metric(row, "bus_rate")),
            doc.words("", _state),
            title=", ".join(words),
        )


def _exchange_order(row: Sequence[Record]) -> tuple[int, float, float]:
    case = row[0].case
    named = str(case.get("collective"))
    place = OPS.index(named) if named in OPS else len(OPS)
    return place, number_in(case, "ranks"), number_in(case, "bytes")


def _ranks(row: Sequence[Record]) -> str:
    return str(row[0].case.get("ranks"))


def _of_metric(row: Sequence[Record], metric: str) -> str | None:
    best = best_record(record for record in row if record.metric == metric)
    return None if best is None else value_text(best)


def _state(row: Sequence[Record]) -> str | doc.Cell:
    if row[0].status is not Status.OK:
        return doc.Cell(row[0].status.value, "warn")
    return doc.Cell("noisy", "dim") if any(record.disturbed for record in row) else ""


_UNBOUND = {ANY: "unbound", ALL: "all nodes at once", OWN: "of its own node"}


def _by_node(points: Iterable[Record]) -> Iterator[doc.Table]:
    """Yield the host's from each node to each; of a GPU both ways by binding."""
    for (device, index), node_points in grouped(
        points, lambda r: (r.device, r.device_index)
    ).items():
        column = "memory" if index is None else "direction"
        heads = list(dict.fromkeys(str(record.case.get(column)) for record in node_points))
        places = list(dict.fromkeys(str(record.case.get("cpus")) for record in node_points))
        record_at = {(str(r.case.get("cpus")), str(r.case.get(column))): r for r in node_points}

        def cell(place: str, head: str, record_at: Mapping[Any, Record] = record_at) -> str | None:
            record = record_at.get((place, head))
            if record is None:
                return ""
            if record.status is not Status.OK or record.value is None:
                return record.status.value
            return value_text(record)

        def to(head: str, cell: Any = cell) -> doc.Shown[str]:
            return doc.column(_UNBOUND.get(head, head), lambda place: cell(place, head))

        copy_words = "copy on the host" if index is None else "copies between host and GPU"
        yield doc.table(
            places,
            doc.words("processors", lambda place: _UNBOUND.get(place, place)),
            *map(to, heads),
            title=f"{copy_words}, {device_text(device, index)}",
            notes=tuple(dict.fromkeys(r.reason for r in node_points if r.reason)),
        )
