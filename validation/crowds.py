"""Verdicts on thousands of simulated machines: healthy ones under noise, and ones with one fault.

    python -m validation.crowds               2,000 machines a line; exit 1 where a line is wrong
    python -m validation.crowds --count N     of so many

Each machine has 1 or 8 H100.  Its plan and what is expected of each required case are those of a
whole simulated qualification (`simulated.qualified`); the replies of its workers are drawn anew,
the records are made by `measure.aggregate`, and the real `judge` gives the verdict.  In place of
the executor, which takes seconds a machine: a case is measured again, at most `ROUNDS` times, while
its point is noisy or undecided, and once more where it is behind its siblings (`runner.again`).

Moderate noise: a reply is slowed by 5 to 60 % with probability 0.1, the worker's counters see that
in half of these; workers of one device lie 0.4 % apart.

One fault at a random place: a GPU, and what is wrong with it (`FAULTS`).  A rate is 10 to 60 %
below what is judged: at 1 GPU the least that is expected of the case, at 8 a healthy GPU's rate.
Exchanges between GPUs and what the doctor sees have lines in `validation.verdicts`.
"""

from __future__ import annotations

import argparse
import dataclasses
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache

from trainrig.analysis.judge import behind_siblings, judge
from trainrig.analysis.judge_classes import class_rules
from trainrig.analysis.judge_sentinel import SENTINEL
from trainrig.analysis.rows import join
from trainrig.benchmarks.spec import Ability, Role, ability, benchmark
from trainrig.catalog.lookup import require_chip
from trainrig.measure.aggregate import (
    ScatterClass,
    Subject,
    attempt_record,
    point_records,
    scatters,
)
from trainrig.process.worker import Reply, Request
from trainrig.record import PARENT_CLOCK, WORKER_CLOCK, WRONG_ANSWER, Kind, Outcome, Record, Status
from trainrig.scatter import Scatter
from validation.simulated import Machine, qualified

CHIP = "H100 SXM5 80GB"
MACHINES, PROCESSES, ROUNDS = 2000, 2, 4
NOISY, SEEN, SCATTER = 0.1, 0.5, 0.004
LEAST_PASSED = 0.98
_STEPS = tuple(0.0005 * step for step in range(-5, 6))
"""Deviations of the samples of one worker from their median."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedPoint:
    """One required case of the template machine."""

    planned: Record
    """The prediction, with the band that the case is judged by."""
    call_s: float
    """Median time of a call on a healthy device."""
    attempt: Record

    @property
    def role(self) -> Role | None:
        return benchmark(self.planned.benchmark).role

    @property
    def rate(self) -> float:
        """What a healthy device reaches."""
        return benchmark(self.planned.benchmark).metrics(self.planned.case)[0].of(self.call_s)


def share_of_least(point: PlannedPoint) -> float:
    """Return the least that is judged sound on one GPU, as a share of a healthy device's rate."""
    band = point.planned.interval
    if band is not None:
        return band[0] / point.rate
    if point.role is not Role.BLOCK:
        return 1.0
    products = [other.rate for other in template() if other.role is Role.PRODUCT]
    return class_rules().layers.least_of_products * max(products) / point.rate


@cache
def template() -> tuple[PlannedPoint, ...]:
    """Return the required cases of a qualification of one quiet GPU, with healthy times."""
    records = qualified(Machine(chip=require_chip(CHIP))).records
    first: dict[object, Record] = {}
    for record in records:
        if record.attempt is not None and record.status is Status.OK and record.value:
            first.setdefault((record.key[:3], record.device_index), record)
    found = []
    for record in records:
        place = (record.key[:3], record.device_index)
        if record.kind is Kind.PREDICTED and record.conditions.get("required") and place in first:
            attempt = first[place]
            found.append(PlannedPoint(planned=record, call_s=attempt.value or 0.0, attempt=attempt))
    return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What is wrong with one GPU of a machine."""

    slowed: Callable[[PlannedPoint], bool] = lambda _: False
    reply: Callable[[Reply], Reply] | None = None
    """What the worker says in place of a healthy reply of one case, where it is no slow one."""
    changes_at: float | None = None
    """Share of the run after which the sentinel case is slower."""


_PRODUCTS, _STREAMS = (Role.PRODUCT,), (Role.STREAM,)


def _failed(reason: str) -> Callable[[Reply], Reply]:
    return lambda _: Reply(status=Status.FAILED, reason=reason, duration=1.0)


def _clock(share: float) -> Callable[[Reply], Reply]:
    def told(reply: Reply) -> Reply:
        clocks = {WORKER_CLOCK: 60.0 * share, PARENT_CLOCK: 60.0}
        return dataclasses.replace(reply, conditions={**reply.conditions, **clocks})

    return told


def _is_direction(*names: str) -> Callable[[PlannedPoint], bool]:
    return lambda point: point.planned.case.get("direction") in names


FAULTS: dict[str, Callable[[random.Random], Fault]] = {
    "products": lambda _: Fault(slowed=lambda p: p.role in _PRODUCTS),
    "fp32": lambda _: Fault(
        slowed=lambda p: p.role in _PRODUCTS and p.planned.case["dtype"] == "fp32"
    ),
    "sustained": lambda _: Fault(slowed=lambda p: bool(p.planned.case.get("sustained"))),
    "streams": lambda _: Fault(slowed=lambda p: p.role in _STREAMS or _is_direction("d2d")(p)),
    "to the GPU": lambda _: Fault(slowed=_is_direction("h2d")),
    "from the GPU": lambda _: Fault(slowed=_is_direction("d2h")),
    "layers": lambda _: Fault(slowed=lambda p: p.role is Role.BLOCK),
    "all": lambda _: Fault(slowed=lambda _: True),
    "wrong answer": lambda _: Fault(reply=_failed(f"{WRONG_ANSWER}: 1 of 4096 rows")),
    "device": lambda _: Fault(reply=_failed("died with signal SIGABRT: CUDA error: unspecified")),
    "clock": lambda rng: Fault(reply=_clock(rng.uniform(0.4, 0.9))),
    "machine": lambda rng: Fault(changes_at=rng.uniform(0.2, 0.8)),
}


def outcome_of(seed: int, count: int, *, faulty: bool) -> tuple[str, str]:
    """Return the verdict on one machine and the name of its fault.

    Args:
        seed: of everything that is drawn.
        count: GPUs of the machine.
        faulty: whether one of them has a fault.
    """
    rng = random.Random(f"{seed} {count} {faulty}")
    name, fault, sick = "", Fault(), -1
    if faulty:
        name = rng.choice(sorted(FAULTS))
        fault, sick = FAULTS[name](rng), rng.randrange(count)
    machine = SimulatedMachine(rng, count, fault, sick, rng.uniform(0.1, 0.6))
    return machine.verdict().value, name


class SimulatedMachine:
    """One machine: the attempts of each case on each device so far."""

    def __init__(
        self, rng: random.Random, count: int, fault: Fault, sick: int, lost: float
    ) -> None:
        self._rng, self._fault, self._sick, self._lost = rng, fault, sick, lost
        self._is_alone = count == 1
        gpu_points = [point for point in template() if point.planned.device_index is not None]
        host_points = [point for point in template() if point.planned.device_index is None]
        self._cases = [(point, index) for index in range(count) for point in gpu_points]
        self._cases += [(point, None) for point in host_points]  # type: ignore[misc]
        self._odd_reply = rng.choice(gpu_points)
        self._attempts: dict[int, list[Record]] = {}
        self._sentinel = [*self._looks(count)]

    def verdict(self) -> Outcome:
        """Measure, measure again, and judge."""
        everything = range(len(self._cases))
        for at in everything:
            self._measure(at)
        for _ in range(ROUNDS):
            known = scatters(list(self._attempts.values()))
            for at in [at for at in everything if not self._is_over(at, known)]:
                self._measure(at)
        records = self._records()
        behind = behind_siblings(join(records), records)
        shown = {(row.key[:3], row.index) for own in behind.values() for _, row in own}
        for at, (point, index) in enumerate(self._cases):
            if (point.planned.key[:3], index) in shown:
                self._measure(at)
        return judge(self._records(), sentinel=self._sentinel).outcome

    def _measure(self, at: int) -> None:
        """Append the attempts of one round of fresh workers."""
        point, index = self._cases[at]
        planned, own = point.planned, self._attempts.setdefault(at, [])
        spec = benchmark(planned.benchmark)
        subject = Subject(
            device=planned.device or "", index=index, count=1, environment=planned.environment or ""
        )
        request = Request(benchmark=planned.benchmark, case=planned.case, settings={}, timeout=1.0)
        for _ in range(spec.workers(planned.case)):
            reply = self._reply(point, index)
            own.append(attempt_record(request, reply, subject, len(own) + 1))

    def _reply(self, point: PlannedPoint, index: int | None) -> Reply:
        rng, call, disturbed = self._rng, point.call_s, None
        call *= 1.0 + rng.gauss(0.0, SCATTER)
        is_noisy, is_seen = rng.random() < NOISY, rng.random() < SEEN
        if is_noisy:
            call *= 1.0 + rng.uniform(0.05, 0.6)
            disturbed = "other processes used 60 % of the processors" if is_seen else None
        is_sick = index == self._sick
        if is_sick and self._fault.slowed(point):
            least = share_of_least(point) if self._is_alone else 1.0
            call /= min(least, 1.0) * (1.0 - self._lost)
        reply = Reply(
            status=Status.OK,
            samples=tuple(call * (1.0 + step) for step in _STEPS),
            stop="converged",
            disturbed=disturbed,
            conditions=point.attempt.conditions,
            started=point.attempt.started,
            duration=1.0,
        )
        is_odd = is_sick and point is self._odd_reply and self._fault.reply is not None
        return self._fault.reply(reply) if is_odd and self._fault.reply else reply

    def _is_over(self, at: int, known: Mapping[ScatterClass, Scatter]) -> bool:
        """Return whether no further worker is needed."""
        point = point_records(self._attempts[at], known)[0]
        band = self._cases[at][0].planned.interval
        if point.status is not Status.OK or band is None:
            return point.status is not Status.OK or point.is_usable
        decided = ability(point, band)
        return decided is Ability.NOT_ABLE or (decided is Ability.ABLE and point.is_usable)

    def _records(self) -> list[Record]:
        known = scatters(list(self._attempts.values()))
        found = []
        for at, (point, index) in enumerate(self._cases):
            own = self._attempts[at]
            found += [point.planned.replace(device_index=index), *own, *point_records(own, known)]
        return found

    def _looks(self, count: int) -> Iterator[dict[str, object]]:
        """Yield the sentinel series: five looks at each GPU."""
        for look in range(5):
            for index in range(count):
                time_s = 1e-3 * (1.0 + abs(self._rng.gauss(0.0, 0.01)))
                changed = self._fault.changes_at
                if index == self._sick and changed is not None and look > 4 * changed:
                    time_s /= 1.0 - max(self._lost, 0.2)
                yield {
                    "series": SENTINEL,
                    "device": CHIP,
                    "index": index,
                    "time_s": time_s,
                    "m": 60.0 * look,
                    "t": 1.7e9 + 60.0 * look,
                }


@dataclass(frozen=True, slots=True, kw_only=True)
class CrowdLine:
    """One line of the table."""

    count: int
    faulty: bool

    @property
    def name(self) -> str:
        """``one fault, 8 x H100 SXM5 80GB``."""
        return f"{'one fault' if self.faulty else 'healthy'}, {self.count} x {CHIP}"

    def is_right(self, outcomes: Counter[str]) -> bool:
        """Healthy: 98 % PASS, none FAIL; with a fault: none PASS."""
        if self.faulty:
            return not outcomes[Outcome.PASS]
        passed = outcomes[Outcome.PASS] / outcomes.total()
        return passed >= LEAST_PASSED and not outcomes[Outcome.FAIL]


LINES = tuple(CrowdLine(count=num, faulty=faulty) for num in (1, 8) for faulty in (False, True))


def counted(line: CrowdLine, seeds: Sequence[int]) -> Counter[tuple[str, str]]:
    """Count the machines of one line by verdict and fault."""
    return Counter(outcome_of(seed, line.count, faulty=line.faulty) for seed in seeds)


def main(words: list[str] | None = None) -> int:
    """Print the table; return 1 where a line is wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=MACHINES, help="machines of each line")
    count = parser.parse_args(words).count
    num_wrong = 0
    with ProcessPoolExecutor(PROCESSES) as pool:
        for line in LINES:
            parts = [range(first, count, 8 * PROCESSES) for first in range(8 * PROCESSES)]
            found = Counter[tuple[str, str]]()
            for part in pool.map(counted, [line] * len(parts), parts):
                found += part
            outcomes = Counter[str]()
            for (outcome, _), num in found.items():
                outcomes[outcome] += num
            right = line.is_right(outcomes)
            num_wrong += not right
            shares = ", ".join(f"{num / count:.2%} {name}" for name, num in outcomes.most_common())
            print(f"{'' if right else 'WRONG':6s}{line.name:32s} {shares}", flush=True)
            for (outcome, fault), num in sorted(found.items()):
                if line.faulty and outcome == Outcome.PASS:
                    print(f"       passed with a fault of {fault}: {num}", flush=True)
    return 1 if num_wrong else 0


if __name__ == "__main__":
    sys.exit(main())
