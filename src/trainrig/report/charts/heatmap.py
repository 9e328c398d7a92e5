"""Layers by batch and sequence: how much of the matmul peak each cell reaches, as a heat map.

One map a layer and pass; in it a grid for each device of the run and, beside them, what others
published of the same layer on an RTX 3090 Ti and an RTX 4090.  A cell's share is of the best matmul
of its dtype that the same device, or the same source, was seen to reach: not of the data sheet.
Where a cell exceeds that matmul no cell has a share: the matmul was not measured well enough.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from trainrig.analysis.best import best_record, bound_of, valid_value, value_text, with_bound_sign
from trainrig.analysis.patterns import Pattern
from trainrig.analysis.rows import Device, Row, is_burst, name_devices
from trainrig.analysis.waterfall import devices
from trainrig.benchmarks.spec import Role, case_text, role_of
from trainrig.record import Record, RunView, Scalar
from trainrig.report.document import Block, Cell, Column, Group, Section, Table
from trainrig.stats import grouped
from trainrig.units import capital, counted, format_quantity, format_share, si_scale

MAX_MAPS = 12
MAX_GRIDS = 4
"""In one map: own devices first, then the published ones."""
MAX_AXIS = 12
"""Rows or columns of one grid."""
BESIDE = ("RTX 3090 Ti", "RTX 4090")
PASSES = ("forward+backward", "forward")
LEVELS = (0.10, 0.25, 0.40, 0.55, 0.70)
"""Shares of the peak at which the next colour begins."""
_ONE_RATE = frozenset(["fp16", "bf16"])


def heat_section(
    view: RunView, everything: Sequence[Row], patterns: Iterable[Pattern]
) -> Iterator[Block]:
    """Return all maps of a run, if it has any.

    Those of the forward pass by itself are folded away.
    """
    maps = heat_maps(view, everything, patterns)
    if not maps:
        return
    forward = tuple(card for is_forward, card in maps if is_forward)
    title = f"{counted(len(forward), 'more map')}: the forward pass by itself"
    fold = Section(title, forward, fold="closed")
    yield Section(
        "Layers by batch and sequence",
        (*(card for is_forward, card in maps if not is_forward), *([fold] if forward else [])),
        "In each cell the rate, and its share of the best matmul that the same device or source "
        "reached; darker is more. *, outlined: launch-bound.  ≥: noisy; the device may do better.",
    )


def heat_maps(
    view: RunView, everything: Sequence[Row], patterns: Iterable[Pattern] = ()
) -> list[tuple[bool, Group]]:
    """Return maps that the run's layers fill, and of each whether it is of the forward pass alone.

    ``patterns`` tell which cells are launch-bound.
    """
    flat = {
        name for pattern in patterns if pattern.id == "launch-bound" for name in pattern.records
    }
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in everything:
        case = {name: str(value) for name, value in row.case.items()}
        if (
            row.role is Role.BLOCK
            and row.metric == "flop_rate"
            and case.get("pass") in PASSES
            and _place(row.case) is not None
            and row.measured is not None
            and row.count == 1
        ):
            other_fields = sorted(f"{k}={v}" for k, v in case.items() if k not in (*_AXES, "pass"))
            groups.setdefault((*other_fields, case["pass"]), []).append(row)
    names = name_devices(devices(everything))
    return [
        (kind[-1] != PASSES[0], _map(view, everything, groups[kind], names, flat))
        for kind in sorted(groups, key=lambda kind: PASSES.index(kind[-1]))
        if len({_place(row.case) for row in groups[kind]}) > 1
    ][:MAX_MAPS]


_AXES = ("batch_size", "seq_len")


def _place(case: Mapping[str, Scalar]) -> tuple[int, int] | None:
    """Batch and sequence, where both are numbers."""
    batch, seq = (case.get(name) for name in _AXES)
    return (batch, seq) if isinstance(batch, int) and isinstance(seq, int) else None


def _map(
    view: RunView,
    everything: Sequence[Row],
    members: Sequence[Row],
    names: Mapping[Device, str],
    flat: set[str],
) -> Group:
    """Return one layer and pass: a table for each device, then for each source."""
    first = members[0]
    measured = (row.measured for row in members if row.measured is not None)
    by_device = grouped(measured, lambda record: (record.device, record.device_index))
    others = _published(view, first)

    def own_peak(where: Device) -> Record | None:
        dtype = first.case.get("dtype")
        return best_record(
            row.measured
            for row in everything
            if (row.device, row.index) == where and is_burst(row) and row.case.get("dtype") == dtype
        )

    host_first = sorted(by_device, key=lambda where: -1 if where[1] is None else where[1])
    grids = [
        _grid(names[where], "", by_device[where], own_peak(where), flat)
        for where in host_first[: MAX_GRIDS - len(others)]
    ]
    grids += [
        _grid(device, source, records, _published_peak(view, records[0]), flat)
        for (device, source), records in others.items()
    ]
    case = {k: v for k, v in first.case.items() if k not in _AXES}
    title = capital(case_text(first.benchmark, case))
    beside = Group("beside", tuple(grids[:MAX_GRIDS]))
    return Group("card", (Section(title, (beside,)),))


def _grid(
    label: str, source: str, records: Sequence[Record], matmul: Record | None, flat: set[str]
) -> Table:
    """Return one device's cells in a unit of their own: a host's beside a GPU's would be zeros."""
    scale, unit = si_scale(max(map(valid_value, records)), records[0].unit)
    at = {place: record for record in records if (place := _place(record.case))}
    batches, seqs = (sorted(set(sizes))[:MAX_AXIS] for sizes in zip(*at, strict=True))
    fastest, peak = max(map(valid_value, records)), valid_value(matmul)
    is_judged = 0.0 < fastest <= peak
    top = max(fastest, peak)

    def cell(record: Record | None) -> Cell:
        if record is None:
            return Cell("")
        value = valid_value(record)
        if not value:
            return Cell(f"{record.status}?", shade=0)
        return Cell(
            with_bound_sign(format_quantity(value / scale, ""), bound_of(record)),
            small=format_share(value / peak) if is_judged else "",
            shade=sum(value / top >= level for level in LEVELS),
            marked=record.id in flat,
        )

    best = f"best matmul {value_text(matmul)}" if matmul is not None else "no matmul measured"
    if matmul is not None and not is_judged and fastest:
        best += ", exceeded by a layer: it was not measured well enough for shares of it"
    return Table(
        (Column("batch"), *(Column(f"seq {seq}") for seq in seqs)),
        tuple((str(batch), *(cell(at.get((batch, seq))) for seq in seqs)) for batch in batches),
        title=f"{label}, {unit}",
        notes=(f"{best}; published by {source}" if source else best,),
    )


# ---- what others published


def _published(view: RunView, first: Row) -> dict[tuple[str, str], list[Record]]:
    """Return for each device of BESIDE the published grid of the layer with the most cells."""
    own_ids = {record.id for record in view.records}
    by_device: dict[str, dict[str, list[Record]]] = {device: {} for device in BESIDE}
    for record in view.baselines:
        if record.device in BESIDE and record.id not in own_ids and _is_same_layer(record, first):
            by_device[record.device].setdefault(str(record.source), []).append(record)
    best = {
        device: max(sources.items(), key=lambda item: len(item[1]))
        for device, sources in by_device.items()
        if sources
    }
    return {(device, who): cells for device, (who, cells) in best.items() if len(cells) > 1}


def _is_same_layer(record: Record, first: Row) -> bool:
    def plain(layer: object) -> str:
        """Return ``gpt2mediumblock``: without blanks, dashes and capitals."""
        return "".join(letter for letter in str(layer).lower() if letter.isalnum())

    types = {record.case.get("dtype"), first.case.get("dtype")}
    return (
        role_of(record.benchmark) is Role.BLOCK
        and record.metric == "flop_rate"
        and _place(record.case) is not None
        and record.case.get("pass") == first.case.get("pass")
        and plain(record.case.get("layer")) == plain(first.case.get("layer"))
        and (len(types) == 1 or types <= _ONE_RATE)
    )


def _published_peak(view: RunView, record: Record) -> Record | None:
    """Return the best matmul of the same device and dtype that the same person printed."""
    who = str(record.source).split("/", 1)[0]
    return best_record(
        other
        for other in view.baselines
        if role_of(other.benchmark) is Role.PRODUCT
        and other.unit == record.unit
        and other.device == record.device
        and other.case.get("dtype") == record.case.get("dtype")
        and str(other.source).startswith(who)
    )
