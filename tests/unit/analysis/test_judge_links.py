"""Links between GPUs: each pair against its path's claim and against its siblings."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest

from trainrig.analysis.judge_links import (
    exchange_target,
    findings_of,
    is_lost_rank,
    link_rules,
)
from trainrig.benchmarks.collective import collective_case
from trainrig.catalog.host_parts import pcie_bandwidth
from trainrig.catalog.lookup import require_chip
from trainrig.record import WRONG_ANSWER, Kind, Record, Status

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


# ---- what is judged at all

SLOW_ENDS = (3, 1)
"""The pair that carries a fifth of what the others do."""


def one_slow_pair(num: int = 4, **changes: Any) -> list[Record]:
    """Sends of which one pair is slow; ``case`` adds to each case, other words change records."""
    case = changes.pop("case", {})
    records = sends(lambda a, b: HEALTHY * (0.2 if (a, b) == SLOW_ENDS else 1.0), num)
    return [
        record.replace(case={**record.case, **case}, **changes)
        if (record.case["from"], record.case["to"]) == SLOW_ENDS
        else record.replace(case={**record.case, **case})
        for record in records
    ]


@pytest.mark.parametrize(
    ("changes", "is_judged"),
    [
        ({}, True),
        ({"case": {"ways": 2}}, False),
        ({"case": {"bytes": link_rules().large_bytes}}, True),
        ({"case": {"bytes": link_rules().large_bytes - 1}}, False),
        ({"metric": "time", "unit": "s"}, False),
        ({"metric": "byte_rate"}, True),
        ({"value": 0.0, "interval": (0.0, 0.0)}, False),
        ({"status": Status.SKIPPED, "reason": "not here"}, False),
        ({"benchmark": "matmul"}, False),
        ({"attempt": 1}, False),
        ({"interval": None}, True),
        ({"interval": (0.1 * HEALTHY, HEALTHY)}, False),  # its upper end is what it can do
    ],
)
def test_a_large_pair_with_a_rate_is_judged(changes: dict[str, Any], is_judged: bool) -> None:
    found = list(findings_of(one_slow_pair(**changes)))
    assert [f.severity for f in found] == ["error"] * is_judged


@pytest.mark.parametrize("end", ["from", "to"])
def test_a_pair_without_an_end_is_none(end: str) -> None:
    records = [
        record.replace(case={key: value for key, value in record.case.items() if key != end})
        for record in one_slow_pair()
    ]
    assert list(findings_of(records)) == []


def test_only_exchanges_and_links_have_pairs() -> None:
    others = [record.replace(benchmark="matmul") for record in one_slow_pair()]
    assert list(findings_of(others)) == []


def test_the_largest_size_alone_decides() -> None:
    small = [
        record.replace(case={**record.case, "bytes": 1 << 20}, id=f"s{n}")
        for n, record in enumerate(one_slow_pair())
    ]
    assert list(findings_of([*small, *sends(lambda a, b: HEALTHY, 4)])) == []


def test_three_others_agree_by_their_middle_and_two_by_chance() -> None:
    def rates(num: int, slow: float) -> list[Record]:
        return sends(lambda a, b: HEALTHY * (slow if (a, b) == (0, 1) else 1.0), num)

    two_others = [r for r in rates(3, 0.7) if r.case["from"] != 2 and r.case["to"] != 2]
    pairs = [*two_others, *rates(3, 0.7)[2:3]]
    assert len(pairs) == 3
    assert list(findings_of(pairs)) == []  # behind two others by half alone
    assert [f.id for f in findings_of(rates(3, 0.7))] == ["slow-link"]
    spread = [1.0, 1.0, 1.0, 1.0, 0.5]  # one of five others is out: their quartiles agree
    records = sends(lambda a, b: HEALTHY, 3)
    shares = dict(zip([r.id for r in records], [0.85, *spread], strict=True))
    uneven = [
        r.replace(value=shares[r.id] * HEALTHY, interval=None)  # 0.85 of the others' median
        for r in records
    ]
    assert len(list(findings_of(uneven))) == 2


def test_a_pair_alone_is_compared_with_nothing() -> None:
    (first, *_) = sends(lambda a, b: 0.01 * HEALTHY, 2)
    assert list(findings_of([first])) == []


@pytest.mark.parametrize(
    ("changes", "is_judged"),
    [
        ({}, True),
        ({"backend": "gloo"}, False),
        ({"nodes": 2}, False),
        ({"peer_access": False}, False),
        ({"peer_access": True}, True),
    ],
)
def test_a_path_is_known_for_nccl_inside_a_machine(
    changes: dict[str, Any], is_judged: bool
) -> None:
    slow = [
        record.replace(case={**record.case, **changes})
        for record in sends(lambda a, b: 0.3 * ONE_WAY, 2)
    ]
    assert bool(list(findings_of(slow, machine(num=2)))) is is_judged


def test_fewer_links_carry_less() -> None:
    def half(share: float) -> list[Record]:
        return list(
            findings_of(sends(lambda a, b: share * ONE_WAY, 2), machine(lambda *_: "NV9", 2))
        )

    least = link_rules().path[0].least
    assert half(0.5 * least * 1.02) == []
    assert len(half(0.5 * least * 0.98)) == 2
    more = machine(lambda *_: "NV99", 2)
    assert list(findings_of(sends(lambda a, b: 1.01 * least * ONE_WAY, 2), more)) == []
    all_of_them = machine(lambda *_: "NV", 2)
    assert len(list(findings_of(sends(lambda a, b: 0.98 * least * ONE_WAY, 2), all_of_them))) == 2


def test_the_slower_of_two_pcie_links_is_the_claim() -> None:
    rule = next(rule for rule in link_rules().path if rule.path == "PIX")
    seen = machine(lambda *_: "PIX", 3)
    seen["gpus"] = [
        {"index": 0, "link": {"max_generation": 4, "max_width": 16}},
        {"index": 1, "link": {"max_generation": 3, "max_width": 16}},
        {"index": 2, "link": {"max_generation": 4, "max_width": 16}},
        {"index": 3, "link": {"max_generation": 1, "max_width": 1}},
        "no table",
    ]
    slower = pcie_bandwidth(3, 16).high
    found = list(findings_of(sends(lambda a, b: 0.98 * rule.least * slower, 3), seen))
    assert len(found) == 6
    found = list(findings_of(sends(lambda a, b: 1.02 * rule.least * slower, 3), seen))
    assert len(found) == 2  # between 0 and 2, whose links are faster
    for link in ({}, {"max_generation": 5}, {"max_width": 16}, None, {"max_generation": 0}):
        seen["gpus"] = [{"index": n, "link": link} for n in range(3)]
        assert list(findings_of(sends(lambda a, b: 1e6, 3), seen)) == []


def test_a_machine_that_is_damaged_has_no_paths() -> None:
    for topology in (None, [], {"links": None}, {"links": ["x", {"a": 0, "b": 1, "path": 3}]}):
        assert list(findings_of(sends(lambda a, b: 1e9, 2), {"topology": topology})) == []


@pytest.mark.parametrize(
    ("changes", "is_lost"),
    [
        ({"status": Status.FAILED, "reason": "rank 1 was ended by SIGKILL"}, True),
        ({"status": Status.TIMEOUT, "reason": "no progress"}, True),
        ({"status": Status.FAILED, "reason": f"{WRONG_ANSWER}: 1 element"}, False),
        ({"status": Status.SKIPPED, "reason": "one GPU"}, False),
        ({"status": Status.FAILED, "reason": "x", "benchmark": "matmul"}, False),
    ],
)
def test_which_rank_is_lost(changes: dict[str, Any], is_lost: bool) -> None:
    (record, *_) = sends(lambda a, b: HEALTHY, 2)
    lost = record.replace(value=None, interval=None, **changes)
    assert is_lost_rank(lost) is is_lost
    found = list(findings_of([lost]))
    assert [(f.id, f.severity) for f in found] == [("rank-lost", "error")] * is_lost


def test_cases_that_were_lost_for_one_reason_are_one_finding() -> None:
    lost = [
        record.replace(value=None, interval=None, status=Status.FAILED, reason=reason)
        for record, reason in zip(sends(lambda a, b: HEALTHY, 3), "aaabbc", strict=True)
    ]
    first, second, third = findings_of(lost)
    assert "(and 2 more cases)" in first.evidence and first.records == tuple(
        record.id for record in lost[:3]
    )
    assert "(and 1 more case)" in second.evidence
    assert "more case" not in third.evidence


@pytest.mark.parametrize(
    ("changes", "case", "has_target"),
    [
        ({}, {}, True),
        ({"metric": "time"}, {}, False),
        ({}, {"backend": "gloo"}, False),
        ({}, {"nodes": 2}, False),
        ({}, {"peer_access": False}, False),
        ({}, {"collective": "broadcast"}, False),
        ({}, {"collective": "all_gather"}, True),
        ({}, {"bytes": link_rules().exchange_bytes}, True),
        ({}, {"bytes": link_rules().exchange_bytes - 1}, False),
        ({}, {"ranks": 1}, False),
        ({}, {"ranks": 2}, True),
        ({"device": "no such chip"}, {}, False),
        ({"device": None}, {}, False),
        ({"device": "RTX 4090"}, {}, False),
    ],
)
def test_which_exchange_has_a_target(
    changes: dict[str, Any], case: dict[str, Any], has_target: bool
) -> None:
    (record, *_) = sends(lambda a, b: HEALTHY)
    whole = {**collective_case("all_reduce", 8, 1 << 28, "nccl"), **case}
    target = exchange_target(record.replace(case=whole, **changes))
    assert (target is not None) is has_target
    if target is not None:
        assert target[0] == pytest.approx(link_rules().exchange.least * ONE_WAY)
    slow = record.replace(case=whole, value=1.0, interval=(1.0, 1.0), **changes)
    assert bool(list(findings_of([slow]))) is has_target
    for nothing in ({"value": None}, {"value": 0.0}, {"status": Status.SKIPPED, "reason": "x"}):
        assert list(findings_of([slow.replace(interval=None, **nothing)])) == []


def test_hosts_are_named_where_there_are_several() -> None:
    def words(hosts: object) -> str:
        records = [
            record.replace(conditions={"hosts": hosts} if hosts else {})
            for record in one_slow_pair(num=4)
        ]
        (found,) = findings_of(records)
        return found.evidence

    assert "from rank 3 (d) to rank 1 (b)" in words("a,b,c,d")
    assert "from rank 3 to rank 1:" in words("a,a,a,a")
    assert "from rank 3 to rank 1 (b)" in words("a,b")
    assert "from rank 3 to rank 1:" in words(None)
