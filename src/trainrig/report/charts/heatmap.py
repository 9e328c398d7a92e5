"""Layers by batch and sequence: how much of the matmul peak each cell reaches, as a heat map.

One map a layer and pass; in it a grid for each device of the run and, beside them, what others
published of the same layer on an RTX 3090 Ti and an RTX 4090.  A cell's share is of the best matmul
of its dtype that the same device, or the same source, was seen to reach: not of the data sheet.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from trainrig.analysis.match import Device, Row, is_burst, name_devices
from trainrig.analysis.patterns import Pattern
from trainrig.analysis.run_view import RunView
from trainrig.analysis.waterfall import devices
from trainrig.benchmarks.spec import Role, case_text, role_of
from trainrig.record import Record, Status
from trainrig.report.document import Beside, Block, Card, Cell, Column, Fold, Section, Table
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


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatMap:
    """One layer and pass: a table for each device or source."""

    title: str
    tables: tuple[Table, ...]
    is_forward: bool
    """The forward pass by itself, shown only when asked for."""


def heat_section(
    view: RunView, everything: Sequence[Row], patterns: Iterable[Pattern]
) -> Iterator[Block]:
    """All maps of a run, if it has any."""
    maps = heat_maps(view, everything, patterns)
    if not maps:
        return
    cards = {
        found: Card((Section(capital(found.title), (Beside(found.tables),)),)) for found in maps
    }
    forward = tuple(card for found, card in cards.items() if found.is_forward)
    fold = Fold(f"{counted(len(forward), 'more map')}: the forward pass by itself", forward)
    yield Section(
        "Layers by batch and sequence",
        (*(c for m, c in cards.items() if not m.is_forward), *([fold] if forward else [])),
        "In each cell the rate, and its share of the best matmul that the same device or source "
        "reached; darker is more. *, outlined: launch-bound.  ?: noisy or no value.",
    )


def heat_maps(
    view: RunView, everything: Sequence[Row], patterns: Iterable[Pattern] = ()
) -> tuple[HeatMap, ...]:
    """The maps that the run's layers fill; ``patterns`` tell which cells are launch-bound."""
    flat = {name for one in patterns if one.id == "launch-bound" for name in one.records}
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in everything:
        if _is_cell(row) and row.count == 1:
            groups.setdefault(_kind(row), []).append(row)
    names = name_devices(devices(everything))
    found = []
    for kind in sorted(groups, key=lambda kind: PASSES.index(kind[-1])):
        members = groups[kind]
        if len({_place(row.case) for row in members}) > 1:
            found.append(_map(view, everything, members, names, flat))
    return tuple(found[:MAX_MAPS])


def _is_cell(row: Row) -> bool:
    sizes = (row.case.get("batch_size"), row.case.get("seq_len"))
    return (
        row.role is Role.BLOCK
        and row.metric == "flop_rate"
        and row.case.get("pass") in PASSES
        and all(isinstance(size, int) for size in sizes)
        and row.measured is not None
    )


def _kind(row: Row) -> tuple[str, ...]:
    """Everything of a case but its place in the grid; the pass last."""
    rest = {k: str(v) for k, v in row.case.items() if k not in ("batch_size", "seq_len", "pass")}
    return (*(f"{name}={rest[name]}" for name in sorted(rest)), str(row.case["pass"]))


def _place(case: object) -> tuple[int, int]:
    assert hasattr(case, "get")
    return int(str(case.get("batch_size"))), int(str(case.get("seq_len")))


def _map(
    view: RunView,
    everything: Sequence[Row],
    members: Sequence[Row],
    names: dict[Device, str],
    flat: set[str],
) -> HeatMap:
    first = members[0]
    own: dict[Device, list[Record]] = {}
    for row in members:
        if row.measured is not None:
            own.setdefault((row.device, row.index), []).append(row.measured)
    others = _published(view, first)
    top = max(r.value or 0.0 for records in (*own.values(), *others.values()) for r in records)
    scale, unit = si_scale(top, first.unit)

    def by_index(item: tuple[Device, object]) -> tuple[int, str]:
        (device, index), _ = item
        return (-1 if index is None else index, device or "")

    grids = [
        _grid(names[where], "", records, _own_peak(everything, where, first), scale, flat)
        for where, records in sorted(own.items(), key=by_index)[: MAX_GRIDS - len(others)]
    ]
    grids += [
        _grid(device, source, records, _their_peak(view, records[0]), scale, flat)
        for (device, source), records in others.items()
    ]
    case = {k: v for k, v in first.case.items() if k not in ("batch_size", "seq_len")}
    return HeatMap(
        title=f"{case_text(first.benchmark, case)}, {unit}",
        tables=tuple(grids[:MAX_GRIDS]),
        is_forward=first.case.get("pass") != PASSES[0],
    )


def _grid(
    label: str,
    source: str,
    records: Sequence[Record],
    peak: float | None,
    scale: float,
    flat: set[str],
) -> Table:
    at = {_place(record.case): record for record in records}
    batches = sorted({batch for batch, _ in at})[:MAX_AXIS]
    seqs = sorted({seq for _, seq in at})[:MAX_AXIS]
    best = f"best matmul {format_quantity(peak, records[0].unit)}" if peak else "no matmul measured"
    return Table(
        (Column("batch"), *(Column(f"seq {seq}") for seq in seqs)),
        tuple(
            (str(batch), *(_cell(at.get((batch, seq)), peak, scale, flat) for seq in seqs))
            for batch in batches
        ),
        title=label,
        notes=(f"{best}; published by {source}" if source else best,),
    )


def _cell(record: Record | None, peak: float | None, scale: float, flat: set[str]) -> Cell:
    if record is None:
        return Cell("")
    if record.status is not Status.OK or not record.value:
        return Cell(f"{record.status}?", shade=0)
    share = record.value / peak if peak else None
    return Cell(
        f"{record.value / scale:#.3g}".rstrip(".") + ("?" if record.disturbed else ""),
        small=format_share(share) if share is not None else "",
        shade=sum(share >= level for level in LEVELS) if share is not None else 0,
        marked=record.id in flat,
    )


def _own_peak(everything: Sequence[Row], where: Device, first: Row) -> float | None:
    found = [
        row.measured.value or 0.0
        for row in everything
        if (row.device, row.index) == where
        and is_burst(row)
        and row.case.get("dtype") == first.case.get("dtype")
        and row.measured is not None
        and row.measured.disturbed is None
    ]
    return max(found, default=0.0) or None


# ---- what others published


def _published(view: RunView, first: Row) -> dict[tuple[str, str], list[Record]]:
    """Of each device of BESIDE the published grid of the same layer with the most cells."""
    own = {record.id for record in view.records}
    found: dict[tuple[str, str], list[Record]] = {}
    for record in view.baselines:
        if record.device in BESIDE and record.id not in own and _is_comparable(record, first):
            found.setdefault((str(record.device), str(record.source)), []).append(record)
    best: dict[str, tuple[str, str]] = {}
    for key, records in found.items():
        if len(records) > 1 and len(records) > len(found.get(best.get(key[0], ("", "")), [])):
            best[key[0]] = key
    return {best[device]: found[best[device]] for device in BESIDE if device in best}


def _is_comparable(record: Record, first: Row) -> bool:
    if (
        role_of(record.benchmark) is not Role.BLOCK
        or record.metric != "flop_rate"
        or "batch_size" not in record.case
    ):
        return False
    types = {record.case.get("dtype"), first.case.get("dtype")}
    return (
        record.case.get("pass") == first.case.get("pass")
        and _plain_name(record.case.get("layer")) == _plain_name(first.case.get("layer"))
        and (len(types) == 1 or types <= _ONE_RATE)
        and "seq_len" in record.case
    )


def _plain_name(layer: object) -> str:
    """``gpt2mediumblock``: a layer's name without blanks, dashes and capitals."""
    return "".join(letter for letter in str(layer).lower() if letter.isalnum())


def _their_peak(view: RunView, record: Record) -> float | None:
    """The best matmul of the same device and dtype that the same person printed."""
    who = str(record.source).split("/", 1)[0]
    found = [
        other.value or 0.0
        for other in view.baselines
        if role_of(other.benchmark) is Role.PRODUCT
        and other.device == record.device
        and other.case.get("dtype") == record.case.get("dtype")
        and str(other.source).startswith(who)
    ]
    return max(found, default=0.0) or None
