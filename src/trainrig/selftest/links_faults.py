"""What ranks exchange: points of three ranks as a slow link, a lost rank or a wrong sum leave them.

The fault is in what ranks reported of their exchanges; the judge of links is asked.  Real ranks
whose torch.distributed is spoiled (`measure.collective_faults`) run in `make acceptance`: a start
of two costs seconds, and rates of ranks on two cores are none while others compute.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from trainrig.analysis.judge import judge
from trainrig.benchmarks.collective import BENCHMARK as COLLECTIVE
from trainrig.benchmarks.collective import collective_case
from trainrig.record import WRONG_ANSWER, Kind, Record, Status
from trainrig.selftest.registry import HEALTHY, Fault

_RANKS = 3
_HANGS = "no progress for 60 s: rank 2 waits in all_reduce of 1048576 bytes of step 3"
_DIED = "rank 2 was ended by SIGKILL in all_reduce of 1048576 bytes of step 3"
_WRONG = f"{WRONG_ANSWER}: rank 2: 1 of 262144 elements of all_reduce differ, the first is 131072"


def faults() -> Iterator[Fault]:
    """A slow link, ranks that are lost, a wrong sum."""
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
            inject=partial(_points, changes),
            observe=_judged,
            twin="points",
        )


def _not_done(reason: str) -> dict[str, Any]:
    status = Status.TIMEOUT if reason is _HANGS else Status.FAILED
    return {"value": None, "interval": None, "status": status, "reason": reason}


@contextmanager
def _points(changes: dict[str, Any], folder: Path, variant: Any) -> Iterator[Sequence[Record]]:
    """Every ordered pair of ranks; the fault is in what the last rank sends the first."""
    records = []
    for sender in range(_RANKS):
        for receiver in range(_RANKS):
            if sender == receiver:
                continue
            own = changes if variant is not HEALTHY and (sender, receiver) == (2, 0) else {}
            rate = own.get("value", 1e9 + 5e7 * sender)
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
                    **{**usual, **own},
                )
            )
    yield records


def _judged(records: Sequence[Record]) -> Iterable[str]:
    findings = judge(records).findings
    return [f"{one.id}: {one.evidence}" for one in findings if one.severity == "error"]
