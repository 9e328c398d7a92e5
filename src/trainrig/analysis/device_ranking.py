"""Equal cards beside each other, and runs beside each other: who is behind?

Of each family the one case is shown that most of them have, at its fastest
size.  Among cards of one machine the verdict says which is an outlier; without a
verdict it is one that is SIBLING_MARGIN behind the others' median.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from trainrig.analysis.best import best_row, bound_of, is_headline, is_valid
from trainrig.analysis.rows import SIBLING_MARGIN, Key, Row, is_own_rate, rows
from trainrig.benchmarks.spec import case_text, kind_text
from trainrig.record import RunView
from trainrig.stats import median

MAX_PEERS = 24
"""Cases shown device beside device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """One device's number beside the others'."""

    label: str
    value: float
    deviation: float
    """Relative distance from the other cards' median, or from the fastest run."""
    bound: str = ""
    """``≥`` where noise may have slowed it."""
    is_outlier: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerGroup:
    """One quantity on several devices."""

    name: str
    unit: str
    peers: tuple[Peer, ...]


_Members = Mapping[int, Row]
"""One case on several devices, or in several runs, by the number of each."""


def peer_groups(view: RunView, everything: Sequence[Row]) -> tuple[PeerGroup, ...]:
    """Return the largest case of each family that several GPUs have, device by device."""
    shared: dict[Key, dict[int, Row]] = {}
    for row in everything:
        if row.index is not None and row.count == 1 and row.value and is_headline(row.measured):
            shared.setdefault(row.key, {})[row.index] = row
    named = _named_outliers(view)
    groups = [_group(members, _peers(members, named)) for members in _largest(shared.values())]
    # Those with an outlier are never the ones to leave out.
    groups.sort(key=lambda group: not any(peer.is_outlier for peer in group.peers))
    return tuple(groups[:MAX_PEERS])


def _named_outliers(view: RunView) -> set[int | None] | None:
    """Return the cards that the verdict names; None where nothing was judged."""
    if view.verdict is None:
        return None
    ids = {i for f in view.verdict.findings if f.id.startswith("odd") for i in f.records}
    return {record.device_index for record in view.records if record.id in ids}


def _peers(members: _Members, named: set[int | None] | None) -> Iterator[Peer]:
    for index, row in sorted(members.items()):
        usual = median([other.value for other in members.values() if other is not row])
        deviation = row.value / usual - 1.0
        is_behind = deviation < -SIBLING_MARGIN and is_own_rate(row)
        is_outlier = is_behind and (named is None or index in named)
        yield Peer(
            label=f"GPU {index}",
            value=row.value,
            deviation=deviation,
            bound=_bound(row),
            is_outlier=is_outlier,
        )


def _bound(row: Row) -> str:
    return bound_of(row.measured) if row.measured is not None else ""


def run_groups(views: Sequence[RunView]) -> tuple[PeerGroup, ...]:
    """Return the largest case of each family that several runs have, their best devices."""
    shared: dict[Key, dict[int, Row]] = {}
    for number, view in enumerate(views):
        for row in rows(view):
            if row.count == 1 and is_valid(row.measured) and is_headline(row.measured):
                same = (row.benchmark, row.key[1], row.key[2], row.metric, row.unit)
                best = shared.setdefault(same, {})
                best[number] = best_row([*filter(None, [best.get(number)]), row]) or row
    return tuple(
        _group(members, _runs(members)) for members in _largest(shared.values())[:MAX_PEERS]
    )


def _runs(members: _Members) -> Iterator[Peer]:
    fastest = best_row(members.values())
    for number, row in sorted(members.items()):
        label = f"{number + 1}. {row.device or 'unknown device'}"
        deviation = row.value / fastest.value - 1.0 if fastest is not None else 0.0
        yield Peer(label=label, value=row.value, deviation=deviation, bound=_bound(row))


def _largest(shared: Iterable[_Members]) -> list[_Members]:
    """Return for each family the case that most devices have, at its fastest size."""
    best: dict[str, _Members] = {}
    for members in shared:
        first = next(iter(members.values()))
        family = kind_text(first.benchmark, first.case)
        best_members = best.get(family, {})
        if len(members) > max(1, len(best_members)) or (
            len(members) == len(best_members) and _is_better(members, best_members)
        ):
            best[family] = members
    return list(best.values())


def _is_better(members: _Members, best_members: _Members) -> bool:
    """Return whether a case's fastest device row beats that of the best case so far."""
    best = best_row([*best_members.values(), *members.values()])
    return best is not None and best not in best_members.values()


def _group(members: _Members, peers: Iterable[Peer]) -> PeerGroup:
    first = next(iter(members.values()))
    name = case_text(first.benchmark, first.case)
    return PeerGroup(name=name, unit=first.unit, peers=tuple(peers))
