"""What a machine is expected to do: a card a tenth below it fails, whatever its own history says.

The expectation is the real one (catalog, published figures, earlier runs, what the user demands);
the card's points stand a tenth below its lower end, or a tenth above.  What is looked at is the
verdict on them.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from trainrig.analysis.judge import judge
from trainrig.benchmarks.matmul import BENCHMARK as MATMUL
from trainrig.benchmarks.matmul import matmul_case
from trainrig.catalog.chip import Chip
from trainrig.catalog.lookup import require_chip
from trainrig.catalog.published import published_records
from trainrig.measure.aggregate import Subject, attempt_record, point_records
from trainrig.prediction.expected import Demands, ceiling, expect, gpu_claims
from trainrig.process.worker import Reply, Request
from trainrig.record import Case, Kind, Record, Status
from trainrig.selftest.outcome import verdict_lines
from trainrig.selftest.registry import TENTH, Fault, threshold_fault

TAKES_S = 3.0
_CARDS = ("RTX 4090", "A100 SXM4 80GB", "H100 SXM5 80GB")
_CASE: Case = {**matmul_case("bf16", 8192), "sustained": True}
_DEMANDED = {"RTX 4090": 160e12, "A100 SXM4 80GB": 280e12, "H100 SXM5 80GB": 700e12}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Card:
    """A card, what is expected of it, and its rate as a share of the expectation's lower end."""

    expected: Record
    rate: float


Expect = Callable[[Chip, Record, random.Random], Record]


def faults() -> Iterator[Fault]:
    """Grounds of an expectation: the chip, a slow history, a fast one, a demand, a baseline."""
    for name, grounds in (
        ("a card below what its chip leads one to expect", _of_chip),
        ("a card that was slow in every earlier run", _after_slow_runs),
        ("a card that fell behind its own earlier runs", _after_fast_runs),
        ("a card below what is demanded", _demanded),
        ("a card below a baseline run", _below_baseline),
    ):
        yield threshold_fault(
            name,
            "expectations.band",
            "FAIL exit 1 error below-band:",
            _scene(grounds),
            _judged,
            "below-band",
        )


def _scene(grounds: Expect) -> Callable[[random.Random, float], _Card]:
    def scene(places: random.Random, towards: float) -> _Card:
        chip = require_chip(places.choice(_CARDS))
        point = _asked(chip)
        expected = grounds(chip, point, places)
        stated = _of_chip(chip, point, places)
        assert expected.interval is not None and stated.interval is not None
        least = expected.interval[0]
        if grounds is _after_slow_runs:
            least = stated.interval[0]  # history excuses nothing
        if grounds is _demanded:
            least = _DEMANDED[chip.name]
        return _Card(expected=expected, rate=least * (1.0 - towards * TENTH))

    return scene


def _asked(chip: Chip) -> Record:
    return Record(
        kind=Kind.PREDICTED,
        benchmark=MATMUL.name,
        version=MATMUL.version,
        case=_CASE,
        metric="flop_rate",
        unit="FLOP/s",
        device=chip.name,
        device_index=0,
        conditions={"step": "bf16 matmul", "required": True},
    )


def _expected(
    chip: Chip, point: Record, history: Iterable[Record] = (), demands: Demands | None = None
) -> Record:
    limit = ceiling(gpu_claims(chip, 0), MATMUL.name, _CASE)
    return expect(point, limit, history, published_records(), chip, None, demands)


def _of_chip(chip: Chip, point: Record, _: random.Random) -> Record:
    return _expected(chip, point)


def _earlier(chip: Chip, point: Record, share: float) -> list[Record]:
    """Four runs at a share of the lower end of what the chip leads one to expect."""
    stated = _expected(chip, point)
    assert stated.interval is not None
    value = stated.interval[0] * share
    return [
        point.replace(id=f"h{number}", run=f"run {number}", kind=Kind.MEASURED, value=value)
        for number in range(4)
    ]


def _after_slow_runs(chip: Chip, point: Record, places: random.Random) -> Record:
    return _expected(chip, point, _earlier(chip, point, places.uniform(0.5, 0.8)))


def _after_fast_runs(chip: Chip, point: Record, places: random.Random) -> Record:
    return _expected(chip, point, _earlier(chip, point, places.uniform(1.25, 1.4)))


def _demanded(chip: Chip, point: Record, _: random.Random) -> Record:
    demands = Demands(least={"bf16": _DEMANDED[chip.name]}, requested=("bf16",))
    return _expected(chip, point, demands=demands)


def _below_baseline(chip: Chip, point: Record, places: random.Random) -> Record:
    baseline = tuple(_earlier(chip, point, places.uniform(1.05, 1.2))[:1])
    return _expected(chip, point, demands=Demands(baseline=baseline, name="a baseline"))


def _judged(card: _Card) -> Iterable[str]:
    """Four workers that agree: what they reach is what the card does."""
    case = card.expected.case
    request = Request(benchmark=MATMUL.name, case=case, settings={}, timeout=20.0)
    subject = Subject(device=card.expected.device or "", index=0, count=1, environment="self-test")
    work = 2.0 * 8192.0**3
    attempts = []
    for worker in range(4):
        call = work / card.rate * (1.0 + 1e-4 * worker)
        samples = tuple(call * (1.0 + 1e-5 * step) for step in range(12))
        reply = Reply(status=Status.OK, samples=samples, stop="converged", duration=1.0)
        attempts.append(attempt_record(request, reply, subject, worker + 1))
    points = [dataclasses.replace(p, version=MATMUL.version) for p in point_records(attempts)]
    return verdict_lines(judge([card.expected, *attempts, *points]), "warning")
