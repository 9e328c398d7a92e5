"""Whether the ranks of a training did alike, and for which of them the others waited.

What is shown of a training is what rank 0 saw.  A rank that is slower than the others shows there
as communication of rank 0, which waits for it, or, if it is rank 0, as less communication than the
others have.  Samples are shared out evenly: whoever waits least in collectives is waited for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from trainrig.benchmarks.training import COMMUNICATION, PARTS
from trainrig.record import Finding
from trainrig.train.engines import Result
from trainrig.train.layout_check import Layout, differences, found_of
from trainrig.units import format_time

MAX_UNEVEN = 0.1
"""Of a step: so much longer in collectives than another rank is worth a word."""

STEADY = 0.9
"""In so many of the steps it must be the same rank: what others do on a machine comes and goes."""
_LEAST_STEPS = 4

Rows = Sequence[Mapping[str, Any]]


def waited_for(ranks: Sequence[Rows]) -> str | None:
    """Which rank the others wait for, and what it is longer in; None where they are even.

    ``ranks``: the steps that count, of each rank.
    """
    if len(ranks) < 2 or min(map(len, ranks)) < _LEAST_STEPS:
        return None
    waits = [_usual(rows, COMMUNICATION) for rows in ranks]
    step = _usual(ranks[0], "time")
    slow, gap = waits.index(min(waits)), max(waits) - min(waits)
    if not gap > MAX_UNEVEN * step or _steadiness(ranks, slow) < STEADY:
        return None
    longer = {part: _longer(ranks, slow, part) for part in PARTS}
    part = max(longer, key=longer.__getitem__)
    return (
        f"of a step of {format_time(step)}, {format_time(gap)} is another rank's waiting for rank "
        f"{slow}, which takes {format_time(longer[part])} longer in {part.replace('_', ' ')}"
    )


def uneven(name: str, ranks: Sequence[Rows], records: tuple[str, ...]) -> Iterator[Finding]:
    """The finding that says so."""
    words = waited_for(ranks)
    if words is not None:
        yield Finding(
            id="rank-waited-for",
            severity="warning",
            evidence=f"{name}: {words}",
            fix="look what else runs on that rank's device or core, and how fast it is alone",
            records=records,
        )


def wrong_on_ranks(asked: Layout, result: Result) -> list[str]:
    """What was asked for and not found, by each rank; what all of them lack is said once."""
    everywhere: dict[str, list[int]] = {}
    facts = [(0, result.facts), *((peer.rank, peer.facts) for peer in result.peers)]
    known = [(rank, found_of(each)) for rank, each in facts if each is not None]
    for rank, found in known:
        for words in differences(asked, found):
            everywhere.setdefault(words, []).append(rank)
    return [
        words if len(ranks) == len(known) else f"{words} on rank {', '.join(map(str, ranks))}"
        for words, ranks in everywhere.items()
    ]


def _steadiness(ranks: Sequence[Rows], slow: int) -> float:
    """The share of steps in which no rank waits less than ``slow``."""
    steps = [
        [float(row.get(COMMUNICATION) or 0.0) for row in together]
        for together in zip(*ranks, strict=False)
    ]
    return sum(waits[slow] <= min(waits) for waits in steps) / len(steps)


def _usual(rows: Rows, name: str) -> float:
    return median(float(row.get(name) or 0.0) for row in rows)


def _longer(ranks: Sequence[Rows], slow: int, part: str) -> float:
    others = [_usual(rows, part) for rank, rows in enumerate(ranks) if rank != slow]
    return _usual(ranks[slow], part) - median(others)
