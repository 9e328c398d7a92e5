"""What is wrong with links and with what ranks exchange: lost ranks, links that carry too little.

A rank that died or did not come is a fault of the machine or of its network, whatever other cases
reached: the next training will lose it, too.  A link is judged with its whole interval: against
what its path should carry (links.toml, from the chips' claims and the driver's topology), and
against the other pairs of the same path, which differ by less than a tenth.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal

from pydantic import ConfigDict

from trainrig.analysis.evidence import finite_number
from trainrig.benchmarks.spec import Role, case_text, number_in, role_of
from trainrig.catalog.host_parts import pcie_bandwidth
from trainrig.catalog.lookup import find_chip
from trainrig.errors import UsageError
from trainrig.record import Finding, Record, Status, read_by, read_toml
from trainrig.stats import grouped, median
from trainrig.units import counted, device_text, format_quantity, format_share

PATH = Path(__file__).parent / "links.toml"
RANK_LOST, SLOW_LINK = "rank-lost", "slow-link"
BEHIND = 0.5
"""Share of the others' median rate below which a pair is slow, where the others disagree."""
_CONFIG = ConfigDict(extra="forbid")
_FEW = 3
"""Pairs that agree by chance."""


@read_by(_CONFIG)
class PathRule:
    """Least share of its claim that a path between two GPUs carries."""

    path: str
    of: Literal["links", "pcie"]
    least: float
    source: str


@read_by(_CONFIG)
class ExchangeRule:
    """Least share of their claim that all GPUs of a machine exchange at once."""

    least: float
    source: str


@read_by(_CONFIG)
class LinkRules:
    """The whole file."""

    behind_siblings: float
    siblings_agree: float
    large_bytes: int
    exchange_bytes: int
    path: tuple[PathRule, ...]
    exchange: ExchangeRule


@cache
def link_rules() -> LinkRules:
    """Return what links.toml says."""
    return read_toml(PATH, LinkRules, PATH.name)


def findings_of(
    records: Iterable[Record], machine: Mapping[str, Any] | None = None
) -> Iterator[Finding]:
    """Yield the findings about exchanges and copies between GPUs; ``machine`` is machine.json."""
    points = [r for r in records if r.is_point]
    exchanges = [r for r in points if role_of(r.benchmark) is Role.COLLECTIVE]
    yield from _lost(exchanges)
    pairs = [pair for pair in points if _is_large_pair(pair)]
    yield from _slow(pairs, machine or {})
    yield from _slow_exchanges(exchanges)


def is_lost_rank(record: Record) -> bool:
    """Return whether an exchange ended by a rank that died or hung."""
    is_exchange = role_of(record.benchmark) is Role.COLLECTIVE and not record.is_wrong_answer
    return is_exchange and record.status in (Status.FAILED, Status.TIMEOUT)


def _lost(points: Sequence[Record]) -> Iterator[Finding]:
    lost = [record for record in points if is_lost_rank(record)]
    for reason, lost_records in grouped(lost, lambda record: record.reason).items():
        first = lost_records[0]
        more = (
            f" (and {counted(len(lost_records) - 1, 'more case')})" if len(lost_records) > 1 else ""
        )
        yield Finding(
            id=RANK_LOST,
            severity="error",
            evidence=f"{case_text(first.benchmark, first.case)}{more}: {reason}",
            fix="read that rank's log in the run's logs/ranks-… folder; NCCL_DEBUG=INFO shows "
            "which path it took, GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME choose the interface",
            records=tuple(record.id for record in lost_records),
        )


# ---- pairs


def _is_large_pair(point: Record) -> bool:
    """Return whether a point is the rate of one sender and one receiver, of a large size."""
    is_rate = point.metric in ("bus_rate", "byte_rate") and point.case.get("ways", 1) == 1
    size = point.case.get("bytes")
    is_large = size is None or number_in(point.case, "bytes") >= link_rules().large_bytes
    is_pair = point.case.get("from") is not None and point.case.get("to") is not None
    of_links = role_of(point.benchmark) in (Role.COLLECTIVE, Role.LINK)
    return bool(
        is_rate and is_large and is_pair and of_links and point.status is Status.OK and point.value
    )


def _slow(points: Sequence[Record], machine: Mapping[str, Any]) -> Iterator[Finding]:
    """Find pairs behind others of their path, or below what it carries, at the largest size."""
    paths = _paths(machine)

    def kind(pair: Record) -> tuple[object, ...]:
        settings = tuple(pair.case.get(key) for key in ("ranks", "backend", "peer_access", "nodes"))
        return (pair.benchmark, *settings, _path_of(pair, paths))

    for pairs_of_path in grouped(points, kind).values():
        largest = max(number_in(record.case, "bytes") for record in pairs_of_path)
        pairs = [record for record in pairs_of_path if number_in(record.case, "bytes") == largest]
        for pair in pairs:
            least = _least_of_path(pair, _path_of(pair, paths), machine)
            if least is not None and _best(pair) < least[0]:
                yield _finding(pair, f"the least that its path carries is {least[1]}")
                continue
            others = [float(other.value or 0.0) for other in pairs if other is not pair]
            if not others:
                continue
            usual = median(others)
            if _best(pair) < (1.0 - _margin(others)) * usual:
                usual_text = format_quantity(usual, "B/s")
                siblings_text = f"in the median of {counted(len(others), 'other pair')}"
                yield _finding(pair, f"{usual_text} {siblings_text}")


def _margin(others: Sequence[float]) -> float:
    """Return the share by which a pair may be behind: a tenth where the others agree, else half."""
    ordered = sorted(others)
    quarter = len(ordered) // 4
    spread = ordered[-1 - quarter] - ordered[quarter]
    rules = link_rules()
    agree = len(ordered) >= _FEW and spread <= rules.siblings_agree * median(ordered)
    return rules.behind_siblings if agree else 1.0 - BEHIND


def _best(pair: Record) -> float:
    """Return the upper end of what was measured: noise only slows."""
    return (pair.interval or (0.0, pair.value or 0.0))[1]


def _finding(pair: Record, comparison: str) -> Finding:
    first, second = pair.case.get("from"), pair.case.get("to")
    hosts = str(pair.conditions.get("hosts") or "").split(",")
    end_name = "GPU" if role_of(pair.benchmark) is Role.LINK else "rank"

    def named(rank: object) -> str:
        at = rank if isinstance(rank, int) and len(set(hosts)) > 1 else len(hosts)
        return f"{end_name} {rank} ({hosts[at]})" if at < len(hosts) else f"{end_name} {rank}"

    reached = format_quantity(pair.value or 0.0, "B/s")
    return Finding(
        id=SLOW_LINK,
        severity="error",
        evidence=f"from {named(first)} to {named(second)}: {reached}, {comparison}",
        fix=f"look at what {named(first)} sends over: ethtool IFACE (speed, errors), "
        "ip -s link, tc qdisc show; of GPUs: trainrig doctor, nvidia-smi topo -m, "
        "nvidia-smi nvlink -s",
        records=(pair.id,),
    )


# ---- what a path should carry


def _paths(machine: Mapping[str, Any]) -> dict[frozenset[object], str]:
    """Return pairs of GPUs → how they reach each other, as the driver says."""
    topology = machine.get("topology")
    links = topology.get("links") if isinstance(topology, Mapping) else None
    return {
        frozenset((link.get("a"), link.get("b"))): link["path"]
        for link in (links if isinstance(links, list | tuple) else ())
        if isinstance(link, Mapping) and isinstance(link.get("path"), str)
    }


def _path_of(pair: Record, paths: Mapping[frozenset[object], str]) -> str | None:
    """Return the path of a pair of GPUs of one machine; None where it is not known."""
    is_nccl = pair.case.get("backend", "nccl") == "nccl" and pair.case.get("nodes", 1) == 1
    if not is_nccl or pair.case.get("peer_access") is False:
        return None
    return paths.get(frozenset((pair.case.get("from"), pair.case.get("to"))))


def _least_of_path(
    pair: Record, path: str | None, machine: Mapping[str, Any]
) -> tuple[float, str] | None:
    rule = next((r for r in link_rules().path if path and path.startswith(r.path)), None)
    if rule is None or path is None:
        return None
    chip = find_chip(pair.device or "")
    claim = None
    if rule.of == "pcie":
        claim = _pcie_of(machine, (pair.case.get("from"), pair.case.get("to")))
    elif chip is not None and chip.link.bandwidth and chip.link.count:
        num = int(path[2:]) if path[2:].isdigit() else chip.link.count
        claim = chip.link.bandwidth / 2.0 * min(1.0, num / chip.link.count)
    if not claim:
        return None
    least = rule.least * claim
    claimed = format_quantity(claim, "B/s")
    return least, f"{format_quantity(least, 'B/s')} ({path}: {rule.least:g} of {claimed})"


def _pcie_of(machine: Mapping[str, Any], ends: tuple[object, object]) -> float | None:
    """Return the slower of the two PCIe links, at their greatest generation and width."""
    gpus = machine.get("gpus")
    rates = []
    for gpu in gpus if isinstance(gpus, list | tuple) else ():
        if not isinstance(gpu, Mapping) or gpu.get("index") not in ends:
            continue
        link = gpu.get("link")
        link = link if isinstance(link, Mapping) else {}
        generation, lanes = (
            finite_number(link.get(name)) for name in ("max_generation", "max_width")
        )
        if generation and lanes:
            try:
                rates.append(pcie_bandwidth(int(generation), int(lanes)).high)
            except UsageError:  # a driver that reports generation 0 or 255 lanes claims nothing
                return None
    return min(rates, default=None)


# ---- what all exchange


def exchange_target(point: Record) -> tuple[float, str] | None:
    """Return the least bus bandwidth of a large exchange inside a machine, and in words why.

    Known for chips that a switch of NVLinks joins: there every GPU has all of its links to others.
    """
    chip = find_chip(point.device or "")
    rules = link_rules()
    is_judged = (
        point.metric == "bus_rate"
        and point.case.get("backend") == "nccl"
        and point.case.get("nodes", 1) == 1
        and point.case.get("peer_access") is not False
        and point.case.get("collective") in ("all_reduce", "all_gather", "all_to_all")
        and number_in(point.case, "bytes") >= rules.exchange_bytes
        and number_in(point.case, "ranks") > 1
    )
    if not is_judged or chip is None or chip.link.name != "NVLink" or not chip.link.bandwidth:
        return None
    claim = chip.link.bandwidth / 2.0
    least = rules.exchange.least * claim
    claimed = format_quantity(claim, "B/s")
    return least, f"{format_share(rules.exchange.least)} of {claimed}, one direction of its links"


def _slow_exchanges(points: Sequence[Record]) -> Iterator[Finding]:
    for point in points:
        target = exchange_target(point)
        if target is None or point.status is not Status.OK or not point.value:
            continue
        if _best(point) < target[0]:
            where = device_text(point.device, point.device_index)
            yield Finding(
                id=SLOW_LINK,
                severity="error",
                evidence=f"{case_text(point.benchmark, point.case)} on {where}: "
                f"{format_quantity(point.value, 'B/s')}, less than {target[1]}",
                fix="look at the links: nvidia-smi nvlink -s, nvidia-smi topo -m, "
                "NCCL_DEBUG=INFO (which path was taken); trainrig doctor",
                records=(point.id,),
            )
