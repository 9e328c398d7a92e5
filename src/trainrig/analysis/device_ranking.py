"""Equal cards beside each other, and runs beside each other: who is behind?

Of each family the one case is shown that most of them have, at its fastest
size.  Among cards of one machine the verdict says which is an outlier; without a
verdict it is one that is SIBLING_MARGIN behind the others' median.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trainrig.analysis.match import SIBLING_MARGIN, Device, Key, Row, name_devices
from trainrig.analysis.run_view import RunView, rows
from trainrig.analysis.waterfall import devices
from trainrig.benchmarks.spec import case_text, kind_text
from trainrig.stats import median

MAX_PEERS = 24
"""Cases shown device beside device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """One device's number beside the others'."""

    label: str
    value: float
    deviation: float
    """From the other cards' median, or from the fastest run."""
    is_outlier: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerGroup:
    """One quantity on several devices."""

    name: str
    unit: str
    peers: tuple[Peer, ...]


def peer_groups(view: RunView, everything: Sequence[Row]) -> tuple[PeerGroup, ...]:
    """The largest case of each family that several GPUs have, device by device."""
    shared: dict[Key, list[Row]] = {}
    for row in everything:
        if row.index is not None and row.count == 1 and row.measured and row.measured.value:
            shared.setdefault(row.key, []).append(row)
    largest: dict[str, list[Row]] = {}
    for members in shared.values():
        best = largest.setdefault(kind_text(members[0].benchmark, members[0].case), [])
        if len(members) > 1 and _rank(members) > _rank(best):
            best[:] = members
    names, named = name_devices(devices(everything)), _named_outliers(view)
    groups = [
        PeerGroup(
            name=case_text(found[0].benchmark, found[0].case),
            unit=found[0].unit,
            peers=_peers(found, names, named),
        )
        for found in largest.values()
        if found
    ]
    # Those with an outlier are never the ones to leave out.
    groups.sort(key=lambda group: not any(peer.is_outlier for peer in group.peers))
    return tuple(groups[:MAX_PEERS])


def _rank(members: Sequence[Row]) -> tuple[int, float]:
    values = [row.value for row in members if row.measured is not None]
    return len(values), max(values, default=0.0)


def _named_outliers(view: RunView) -> set[int | None] | None:
    """The cards that the verdict names; None where nothing was judged."""
    if view.verdict is None:
        return None
    ids = {i for f in view.verdict.findings if f.id.startswith("odd") for i in f.records}
    return {record.device_index for record in view.records if record.id in ids}


def _peers(
    members: Sequence[Row], names: Mapping[Device, str], named: set[int | None] | None
) -> tuple[Peer, ...]:
    values = {row.index: row.measured.value or 0.0 for row in members if row.measured is not None}
    same_model = len({row.device for row in members}) == 1
    found = []
    for row in sorted(members, key=lambda r: r.index or 0):
        usual = median([other for index, other in values.items() if index != row.index])
        deviation = values[row.index] / usual - 1.0
        behind = deviation < -SIBLING_MARGIN
        found.append(
            Peer(
                label=f"GPU {row.index}" if same_model else names[row.device, row.index],
                value=values[row.index],
                deviation=deviation,
                is_outlier=behind and (named is None or row.index in named),
            )
        )
    return tuple(found)


def run_groups(views: Sequence[RunView]) -> tuple[PeerGroup, ...]:
    """The largest case of each family that several runs have, the best device of each run."""
    shared: dict[tuple[object, ...], dict[int, Row]] = {}
    for number, view in enumerate(views):
        for row in rows(view):
            if row.count == 1 and row.is_usable:
                same = (row.benchmark, row.key[1], row.key[2], row.metric, row.unit)
                best = shared.setdefault(same, {})
                if number not in best or row.value > best[number].value:
                    best[number] = row
    largest: dict[str, dict[int, Row]] = {}
    for members in shared.values():
        first = next(iter(members.values()))
        name = kind_text(first.benchmark, first.case)
        if len(members) > 1 and _rank(list(members.values())) > _rank(
            list(largest.get(name, {}).values())
        ):
            largest[name] = members
    return tuple(_run_group(members) for members in list(largest.values())[:MAX_PEERS])


def _run_group(members: Mapping[int, Row]) -> PeerGroup:
    highest = max(row.value for row in members.values())
    first = next(iter(members.values()))
    return PeerGroup(
        name=case_text(first.benchmark, first.case),
        unit=first.unit,
        peers=tuple(
            Peer(
                label=f"{number + 1}. {row.device or 'unknown device'}",
                value=row.value,
                deviation=row.value / highest - 1.0,
            )
            for number, row in sorted(members.items())
        ),
    )
