"""What is wrong with links and with what ranks exchange: lost ranks, one link behind the others.

A rank that died or did not come is a fault of the machine or of its network, whatever other cases
reached: the next training will lose it, too.  A link is behind when what one rank sends another
needs, with its whole interval, more than twice the time of the best other pair of the same size:
links of one kind differ by less.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from trainrig.benchmarks.spec import Role, case_text, number_in, role_of
from trainrig.record import Finding, Record, Status
from trainrig.stats import grouped, median
from trainrig.units import counted, format_quantity

RANK_LOST, SLOW_LINK = "rank-lost", "slow-link"
BEHIND = 0.5
"""Of what the other pairs reach in the median."""
_LARGE = 1 << 18
"""Bytes: below, latency decides."""


def findings_of(records: Iterable[Record]) -> Iterator[Finding]:
    """What the points of exchanges show."""
    points = [r for r in records if r.is_point and role_of(r.benchmark) is Role.COLLECTIVE]
    yield from _lost(points)
    yield from _slow(points)


def is_lost_rank(record: Record) -> bool:
    """Whether an exchange ended by a rank that died or hung."""
    is_exchange = role_of(record.benchmark) is Role.COLLECTIVE and not record.is_wrong_answer
    return is_exchange and record.status in (Status.FAILED, Status.TIMEOUT)


def _lost(points: Sequence[Record]) -> Iterator[Finding]:
    lost = [record for record in points if is_lost_rank(record)]
    for reason, own in grouped(lost, lambda record: record.reason).items():
        more = f" (and {counted(len(own) - 1, 'more case')})" if len(own) > 1 else ""
        yield Finding(
            id=RANK_LOST,
            severity="error",
            evidence=f"{case_text(own[0].benchmark, own[0].case)}{more}: {reason}",
            fix="read that rank's log in the run's logs/ranks-… folder; NCCL_DEBUG=INFO shows "
            "which path it took, GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME choose the interface",
            records=tuple(record.id for record in own),
        )


def _slow(points: Sequence[Record]) -> Iterator[Finding]:
    """Pairs of ranks that are behind: at the largest size, named once."""
    sends = [
        record
        for record in points
        if record.metric == "bus_rate"
        and record.case.get("from") is not None
        and number_in(record.case, "bytes") >= _LARGE
        and record.status is Status.OK
        and record.value
    ]
    kinds = grouped(
        sends, lambda r: tuple(r.case.get(key) for key in ("ranks", "backend", "peer_access"))
    )
    for own in kinds.values():
        largest = max(number_in(record.case, "bytes") for record in own)
        pairs = [record for record in own if number_in(record.case, "bytes") == largest]
        for pair in pairs:
            others = [float(each.value or 0.0) for each in pairs if each is not pair]
            if not others:
                continue
            usual, best = median(others), (pair.interval or (0.0, pair.value or 0.0))[1]
            if best < BEHIND * usual:
                yield _behind(pair, usual, len(others))


def _behind(pair: Record, usual: float, num_others: int) -> Finding:
    first, second = pair.case.get("from"), pair.case.get("to")
    hosts = str(pair.conditions.get("hosts") or "").split(",")

    def named(rank: object) -> str:
        at = rank if isinstance(rank, int) and len(set(hosts)) > 1 else len(hosts)
        return f"rank {rank} ({hosts[at]})" if at < len(hosts) else f"rank {rank}"

    reached = format_quantity(pair.value or 0.0, "B/s")
    return Finding(
        id=SLOW_LINK,
        severity="error",
        evidence=f"from {named(first)} to {named(second)}: {reached}, "
        f"{format_quantity(usual, 'B/s')} in the median of {counted(num_others, 'other pair')}",
        fix=f"look at what {named(first)} sends over: ethtool IFACE (speed, errors), "
        "ip -s link, tc qdisc show; of GPUs: trainrig doctor, nvidia-smi topo -m",
        records=(pair.id,),
    )
