"""Measured collectives as rates: the line behind the points is found, and stands for its kind."""

from __future__ import annotations

import numpy as np
import pytest

from trainrig.benchmarks.collective import collective_case
from trainrig.catalog.lookup import find_chip
from trainrig.prediction.rates import Rates
from trainrig.prediction.rates.from_records import rates_of_records
from trainrig.prediction.rates.links import FACTORS
from trainrig.record import Kind, Record

HOP, BANDWIDTH = 2e-5, 5e9


def point(kind: str, ranks: int, size: int, **more: object) -> Record:
    case = {**collective_case(kind, ranks, size, "nccl"), **more}
    wire = FACTORS.get(kind, 1.0) * size * (ranks - 1) / ranks
    return Record(
        kind=Kind.MEASURED,
        benchmark="collective",
        case=case,
        metric="time",
        unit="s",
        value=HOP * (ranks - 1) + wire / BANDWIDTH * (3.0 if "peer_access" in more else 1.0),
        device="RTX 4090",
        device_index=0,
        device_count=ranks,
    )


def rates(*points: Record, **places: object) -> Rates:
    chip = find_chip("RTX 4090")
    assert chip is not None
    return rates_of_records(points, chip, **places)


SIZES = (1 << 12, 1 << 18, 1 << 24, 1 << 28)


@pytest.mark.parametrize("ranks", [(2,), (2, 4)])
def test_the_line_that_made_the_points_is_found(ranks: tuple[int, ...]) -> None:
    found = rates(*(point("all_reduce", n, size) for n in ranks for size in SIZES))
    line = found.links.measured["all_reduce"]
    assert (line.hop, line.bandwidth) == (pytest.approx(HOP), pytest.approx(BANDWIDTH))
    # Worked by hand: 4 ranks move 2 · 3/4 of 64 MiB and go three steps.
    seconds = found.links.collective("all_reduce", 1 << 26, 4, 8)
    assert seconds == pytest.approx(3 * HOP + 1.5 * (1 << 26) / BANDWIDTH)
    assert "all_reduce, α–β inside a node" in found.provenance["collective"]


def test_other_kinds_and_what_leaves_a_node_stay_with_the_rule() -> None:
    bare, found = rates(), rates(*(point("all_reduce", 2, size) for size in SIZES))
    for kind, ranks, per_node in (("all_gather", 2, 8), ("all_reduce", 16, 8)):
        given = kind, 1 << 26, ranks, per_node
        assert found.links.collective(*given) == pytest.approx(bare.links.collective(*given))
    both = found.links.collective("all_reduce", 1 << 26, np.array([2, 16]), np.array([8, 8]))
    each = [found.links.collective("all_reduce", 1 << 26, n, 8) for n in (2, 16)]
    assert both == pytest.approx(each)


def test_peer_access_is_what_is_asked_for() -> None:
    points = [point("all_reduce", 2, size) for size in SIZES]
    points += [point("all_reduce", 2, size, peer_access=False) for size in SIZES]
    on, off = rates(*points), rates(*points, p2p=False)
    assert on.links.measured["all_reduce"].bandwidth == pytest.approx(BANDWIDTH)
    assert off.links.measured["all_reduce"].bandwidth == pytest.approx(BANDWIDTH / 3)


def test_one_size_is_no_line() -> None:
    assert rates(point("all_reduce", 2, 1 << 20)).links.measured == {}
