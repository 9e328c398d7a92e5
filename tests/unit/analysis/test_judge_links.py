"""Links between GPUs: each pair against its path's claim and against its siblings."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest

from trainrig.analysis.judge_links import findings_of, link_rules
from trainrig.benchmarks.collective import collective_case
from trainrig.catalog.lookup import require_chip
from trainrig.record import Kind, Record

CHIP = "H100 SXM5 80GB"
ONE_WAY = (require_chip(CHIP).link.bandwidth or 0.0) / 2.0
HEALTHY = 0.85 * ONE_WAY
Rate = Callable[[int, int], float]


def machine(path: Callable[[int, int], str] = lambda a, b: "NV18", num: int = 8) -> dict[str, Any]:
    pairs = itertools.combinations(range(num), 2)
    link = {"max_generation": 5, "max_width": 16}
    return {
        "topology": {"links": [{"a": a, "b": b, "path": path(a, b)} for a, b in pairs]},
        "gpus": [{"index": number, "link": link} for number in range(num)],
    }


def sends(rate: Rate, num: int = 8) -> list[Record]:
    return [
        Record(
            kind=Kind.MEASURED,
            benchmark="collective",
            case=collective_case("send", num, 1 << 28, "nccl", **{"from": a, "to": b}),
            metric="bus_rate",
            unit="B/s",
            device=CHIP,
            device_count=num,
            value=rate(a, b),
            interval=(0.99 * rate(a, b), 1.005 * rate(a, b)),
        )
        for a, b in itertools.permutations(range(num), 2)
    ]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("known", [True, False])
def test_one_pair_that_is_a_tenth_behind_is_named(seed: int, known: bool) -> None:
    rng = random.Random(seed)
    ends = tuple(rng.sample(range(8), 2))
    seen = machine() if known else None
    scatter = {pair: rng.uniform(0.98, 1.02) for pair in itertools.permutations(range(8), 2)}

    def slow(share: float) -> list[Record]:
        return sends(lambda a, b: HEALTHY * (share if (a, b) == ends else scatter[a, b]))

    behind = link_rules().behind_siblings
    (found,) = findings_of(slow(1.0 - behind * 1.1 - 0.025), seen)
    assert (found.id, found.severity) == ("slow-link", "error")
    assert f"from rank {ends[0]} to rank {ends[1]}" in found.evidence
    assert list(findings_of(slow(1.0 - behind * 0.9 + 0.02), seen)) == []


def test_all_links_below_what_their_path_carries_are_named() -> None:
    least = link_rules().path[0].least * ONE_WAY
    below = list(findings_of(sends(lambda a, b: 0.9 * least), machine()))
    assert len(below) == 56
    assert "NV18" in below[0].evidence
    assert list(findings_of(sends(lambda a, b: 1.1 * least), machine())) == []


def test_pairs_are_compared_with_others_of_their_path() -> None:
    """Two processors: what goes between them is slower, and no fault."""

    def path(a: int, b: int) -> str:
        return "PIX" if a // 4 == b // 4 else "SYS"

    def rate(a: int, b: int) -> float:
        return 50e9 if a // 4 == b // 4 else 22e9

    assert list(findings_of(sends(rate), machine(path))) == []
    # Nor where the paths are not known: the others do not agree among themselves.
    assert list(findings_of(sends(rate), None)) == []

    def worse(a: int, b: int) -> float:
        return rate(a, b) * (0.85 if (a, b) == (5, 2) else 1.0)

    (found,) = findings_of(sends(worse), machine(path))
    assert "from rank 5 to rank 2" in found.evidence


def test_an_exchange_of_all_has_a_target_where_a_switch_joins_them() -> None:
    def exchange(share: float) -> Record:
        return Record(
            kind=Kind.MEASURED,
            benchmark="collective",
            case=collective_case("all_reduce", 8, 1 << 28, "nccl"),
            metric="bus_rate",
            unit="B/s",
            device=CHIP,
            device_count=8,
            value=share * ONE_WAY,
            interval=(0.99 * share * ONE_WAY, 1.01 * share * ONE_WAY),
        )

    least = link_rules().exchange.least
    (found,) = findings_of([exchange(0.9 * least)])
    assert found.id == "slow-link"
    assert list(findings_of([exchange(1.1 * least)])) == []
    # Cards without links of their own have none.
    assert list(findings_of([exchange(0.1).replace(device="RTX 4090")])) == []
