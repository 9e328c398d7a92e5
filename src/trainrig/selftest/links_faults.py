"""What ranks exchange: points of three ranks as a slow link, a lost rank or a wrong sum leave them.

The fault is in what ranks reported of their exchanges; the judge of links is asked.  Real ranks
whose torch.distributed is spoiled (`measure.collective_faults`) run in `make acceptance`: a start
of two costs seconds, and rates of ranks on two cores are none while others compute.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from trainrig.analysis.judge import judge
from trainrig.analysis.judge_links import BEHIND, PathRule, link_rules
from trainrig.benchmarks.collective import BENCHMARK as COLLECTIVE
from trainrig.benchmarks.collective import collective_case
from trainrig.catalog.host_parts import pcie_bandwidth
from trainrig.catalog.lookup import require_chip
from trainrig.record import WRONG_ANSWER, Case, Kind, Record, Status
from trainrig.selftest.judge_faults import healthy_records
from trainrig.selftest.outcome import verdict_lines
from trainrig.selftest.registry import HEALTHY, TENTH, Fault, Scene, threshold_fault
from trainrig.stats import median

_RANKS = 3
_HANGS = "no progress for 60 s: rank 2 waits in all_reduce of 1048576 bytes of step 3"
_DIED = "rank 2 was ended by SIGKILL in all_reduce of 1048576 bytes of step 3"
_WRONG = f"{WRONG_ANSWER}: rank 2: 1 of 262144 elements of all_reduce differ, the first is 131072"


def faults() -> Iterator[Fault]:
    """Yield a slow link, ranks that are lost, a wrong sum; then each rule of links.toml."""
    for name, finds, says, changes in (
        ("a slow link between two of three ranks", "slow-link", "rank 2", {"value": 1e8}),
        ("a rank that hangs in a collective", "rank-lost", "rank 2", _not_done(_HANGS)),
        ("a rank that dies in a collective", "rank-lost", "rank 2", _not_done(_DIED)),
        ("a sum of which one element is wrong", "wrong-answer", "rank 2", _not_done(_WRONG)),
    ):
        yield Fault(
            name=name,
            check=f"links.{finds}",
            finds=finds,
            says=says,
            begins=f"FAIL exit 1 error {finds}:",
            inject=partial(_points, changes),
            observe=_judged,
            twin="points",
        )
    scenes: list[tuple[str, Scene]] = [
        (f"pairs by {rule.path} below what it carries", partial(_below_path, rule))
        for rule in link_rules().path
    ]
    scenes += [
        ("one pair behind others that agree", _behind_siblings),
        ("one pair far behind others that do not agree", _behind_unequal),
        ("an all-reduce of large buffers", partial(_slow_exchange, "all_reduce")),
        ("an all-to-all of large buffers", partial(_slow_exchange, "all_to_all")),
    ]
    for name, scene in scenes:
        says = "FAIL exit 1 error slow-link:"
        yield threshold_fault(name, "links.slow-link", says, scene, _judged, "slow-link")


def _not_done(reason: str) -> dict[str, Any]:
    status = Status.TIMEOUT if reason is _HANGS else Status.FAILED
    return {"value": None, "interval": None, "status": status, "reason": reason}


@contextmanager
def _points(changes: dict[str, Any], folder: Path, variant: Any) -> Iterator[_Linked]:
    """Open a scene of all ordered pairs of ranks; the way from last to first has the fault."""
    records = []
    for sender in range(_RANKS):
        for receiver in range(_RANKS):
            if sender == receiver:
                continue
            fault_changes = (
                changes if variant is not HEALTHY and (sender, receiver) == (2, 0) else {}
            )
            rate = fault_changes.get("value", 1e9 + 5e7 * sender)
            case = collective_case(
                "send", _RANKS, 1 << 20, "gloo", **{"from": sender, "to": receiver}
            )
            usual = {"value": rate, "interval": rate and (0.98 * rate, 1.02 * rate)}
            records.append(
                Record(
                    kind=Kind.MEASURED,
                    benchmark=COLLECTIVE.name,
                    case=case,
                    metric="bus_rate",
                    unit="B/s",
                    device="this machine",
                    device_count=_RANKS,
                    **{**usual, **fault_changes},
                )
            )
    yield _Linked(records=records)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Linked:
    """Records of ranks' exchanges, and the machine that they ran on."""

    records: Sequence[Record]
    machine: Mapping[str, Any] | None = None


def _judged(linked: _Linked) -> Iterable[str]:
    return verdict_lines(judge([*healthy_records(), *linked.records], machine=linked.machine))


# ---- the rules of links.toml

_CARD, _GPUS = "H100 SXM5 80GB", 8
_LINK = {"max_generation": 5, "max_width": 16}
Rate = Callable[[int, int], float]


def _machine(path: str) -> dict[str, Any]:
    """Return a machine whose GPUs reach each other by one path."""
    pairs = itertools.combinations(range(_GPUS), 2)
    return {
        "topology": {"links": [{"a": a, "b": b, "path": path} for a, b in pairs]},
        "gpus": [{"index": index, "link": _LINK} for index in range(_GPUS)],
    }


def _point(case: Case, rate: float) -> Record:
    return Record(
        kind=Kind.MEASURED,
        benchmark=COLLECTIVE.name,
        case=case,
        metric="bus_rate",
        unit="B/s",
        device=_CARD,
        device_count=_GPUS,
        value=rate,
        interval=(0.999 * rate, 1.001 * rate),
    )


def _sends(rate: Rate) -> list[Record]:
    return [
        _point(collective_case("send", _GPUS, 1 << 28, "nccl", **{"from": a, "to": b}), rate(a, b))
        for a, b in itertools.permutations(range(_GPUS), 2)
    ]


def _one_way() -> float:
    return (require_chip(_CARD).link.bandwidth or 0.0) / 2.0


def _below_path(rule: PathRule, _: random.Random, towards: float) -> _Linked:
    claim = _one_way() if rule.of == "links" else pcie_bandwidth(5, 16).high
    rate = rule.least * claim * (1.0 - towards * TENTH)
    path = f"{rule.path}18" if rule.of == "links" else rule.path
    return _Linked(records=_sends(lambda *_: rate), machine=_machine(path))


def _behind_siblings(places: random.Random, towards: float) -> _Linked:
    ends = tuple(places.sample(range(_GPUS), k=2))
    share = 1.0 - link_rules().behind_siblings * (1.0 + towards * TENTH)
    healthy = 0.85 * _one_way()
    return _Linked(
        records=_sends(lambda a, b: healthy * (share if (a, b) == ends else 1.0)),
        machine=_machine("NV18"),
    )


def _behind_unequal(places: random.Random, towards: float) -> _Linked:
    """Half of the pairs are at 0.7: a path that is not known joins what differs by nature."""
    ends = tuple(places.sample(range(_GPUS), k=2))
    slower = {pair for pair in itertools.permutations(range(_GPUS), 2) if sum(pair) % 2}
    slower -= {ends}
    healthy = 0.85 * _one_way()
    others = [0.7 if pair in slower else 1.0 for pair in itertools.permutations(range(_GPUS), 2)]
    others.remove(1.0 if ends not in slower else 0.7)
    share = (1.0 - BEHIND * (1.0 + towards * TENTH)) * median(others)
    return _Linked(
        records=_sends(
            lambda a, b: healthy * (share if (a, b) == ends else 0.7 if (a, b) in slower else 1.0)
        )
    )


def _slow_exchange(collective: str, _: random.Random, towards: float) -> _Linked:
    rules = link_rules()
    case = collective_case(collective, _GPUS, rules.exchange_bytes, "nccl")
    rate = rules.exchange.least * _one_way() * (1.0 - towards * TENTH)
    return _Linked(records=[_point(case, rate)], machine=_machine("NV18"))
