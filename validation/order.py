"""In which order a run should spend its time, and whether optional cases should leave some.

    python -m validation.order RUN [RUN ...] [--brief 0.02] [--without 60]

The real plan and executor of a qualification of a host, with workers that answer as recorded
ones did: for each case one of its recorded attempts is drawn (its time, whether it was disturbed,
what it took), or of a case that was not recorded one of its benchmark's.  Noise that comes and goes
over minutes is not in it: draws are independent.

Counted, of required and of all points: how many end quiet, how many have a bound (two workers
reached it), how many were skipped.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from unittest import mock

from trainrig.benchmarks.spec import Role, role_of
from trainrig.process.worker import Reply
from trainrig.record import Kind, Record, Status
from trainrig.runner import again, executor
from trainrig.runner.plan import Block, is_optional
from trainrig.stats import grouped
from trainrig.store import read_run
from validation import simulated
from validation.simulated import BUDGET, Asked, Machine, Result, qualified

RESERVES = (0.0, 0.1, 0.2, 0.3)
RUNS = 4
_SCATTER = 2e-3
_LOAD_S = 1.4
"""s until workers were ready in the recorded runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """One way to spend the time."""

    name: str
    reserve: float = 0.0
    rules: Sequence[again.RepeatRule] = again.RULES
    whole_rounds: bool = False


def policies() -> Iterator[Policy]:
    """As it was: breadth first, and two more workers for each noisy point; then what is tried."""
    skipped = [rule for rule in again.RULES if rule.why == "what there was no time for"]
    breadth = (*again.VERDICT, *skipped, *(r for r in again.RULES[3:] if r not in skipped))
    yield Policy(name="breadth, whole rounds", rules=breadth, whole_rounds=True)
    yield Policy(name="breadth, worker by worker", rules=breadth)
    for reserve in RESERVES:
        yield Policy(name=f"certainty, {reserve:.0%} kept back", reserve=reserve)


class Recorded:
    """Recorded attempts, from which replies are drawn."""

    def __init__(self, runs: Sequence[Path], brief: float) -> None:
        """``brief``: of calls below so many seconds the quiet stretches are found."""
        records = [record for run in runs for record in read_run(run).records]
        successes = [
            r for r in records if r.attempt is not None and r.status is Status.OK and r.value
        ]
        self._brief = brief
        self._of_case = grouped(successes, _case)
        self._of_benchmark = grouped(successes, lambda record: record.benchmark)

    def __call__(self, asked: Asked, reply: Reply) -> Reply:
        """One of the recorded attempts in place of a healthy worker's reply."""
        request, rng = asked.request, asked.rng
        key = (request.benchmark, tuple(sorted(request.case.items())))
        recorded = self._of_case.get(key) or self._of_benchmark.get(request.benchmark)
        if not recorded or reply.status is not Status.OK:
            return reply
        drawn = rng.choice(recorded)
        value, disturbed = drawn.value or 1.0, drawn.disturbed
        if disturbed and value < self._brief:
            quiet = [record for record in recorded if record.disturbed is None]
            value = rng.choice(quiet).value or value if quiet else value
            disturbed = None
        samples = tuple(value * (1.0 + rng.gauss(0.0, _SCATTER)) for _ in range(12))
        return replace(reply, samples=samples, disturbed=disturbed, duration=drawn.duration)


def _case(record: Record) -> tuple[object, ...]:
    return record.benchmark, tuple(sorted(record.case.items()))


def run(policy: Policy, noise: Recorded, budget: float, seed: int) -> Result:
    """One qualification by a policy."""
    enough, run_block = executor.Executor._is_enough, executor.Executor.run_block

    def cut(self: executor.Executor, block: Block, seconds: float) -> None:
        """A block's time less what an optional one leaves."""
        kept = policy.reserve * budget if is_optional(block) and self._round is None else 0.0
        run_block(self, block, max(seconds - kept, 0.0))

    with (
        mock.patch.object(executor, "RULES", tuple(policy.rules)),
        mock.patch.object(executor.Executor, "run_block", cut),
        mock.patch.object(simulated, "LOAD_S", _LOAD_S),
        mock.patch.object(
            executor.Executor,
            "_is_enough",
            (lambda *_: False) if policy.whole_rounds else enough,
        ),
    ):
        return qualified(Machine(chip=None, faults=(noise,), budget=budget, seed=seed))


def counts(result: Result) -> dict[str, float]:
    """Required and all: quiet, with a bound, skipped, noisy."""
    plan = {r.key: r for r in result.records if r.kind is Kind.PREDICTED}
    points = {
        _case(r): r
        for r in result.records
        if r.is_point and r.key in plan and role_of(r.benchmark) not in (Role.STEP, Role.DISK)
    }
    needed = [p for p in points.values() if plan[p.key].conditions.get("required")]
    valued = [p for p in points.values() if p.value is not None]
    return {
        "required": len(needed),
        "quiet": sum(p.is_usable for p in needed),
        "bound": sum(p.reached is not None for p in needed),
        "points": len(valued),
        "noisy": sum(p.disturbed is not None for p in valued) / max(len(valued), 1),
        "skipped": len(points) - len(valued),
    }


def main(words: list[str] | None = None) -> int:
    """Print a line a policy."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--brief", type=float, default=0.0, help="seconds of a call")
    parser.add_argument("--without", type=float, default=60.0, help="s of training and disk")
    options = parser.parse_args(words)
    noise = Recorded(options.runs, options.brief)
    for policy in policies():
        budget = BUDGET - options.without
        counted = [counts(run(policy, noise, budget, seed)) for seed in range(RUNS)]
        means = {
            name: statistics.fmean(counts_of_run[name] for counts_of_run in counted)
            for name in counted[0]
        }
        worst = max(counts_of_run["noisy"] for counts_of_run in counted)
        print(
            f"{policy.name:32s} required {means['required']:.0f}: quiet {means['quiet']:.1f}, "
            f"bound {means['bound']:.1f}; all {means['points']:.1f}: noisy {means['noisy']:.1%} "
            f"(worst {worst:.1%}), skipped {means['skipped']:.1f}",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
