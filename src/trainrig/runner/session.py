"""qualify and bench: expect → run → judge, into one run folder.

`qualify` plans for the whole machine; `bench` runs the cases that were asked
for.  Both write the machine, the claims and the expectations first, then
measure, then judge, and leave a valid run whatever ends them.

What a plan may look at before it says what to run: the machine, the claims, the open run.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from trainrig.analysis.judge import judge, resume_command
from trainrig.benchmarks.spec import SMALL_BUDGET, Role
from trainrig.doctor import diagnose
from trainrig.errors import UsageError
from trainrig.machine import Snapshot, environment_digest, inspect, to_dict, value_or
from trainrig.process.worker import Worker
from trainrig.record import Finding, Kind, Outcome, Record, Verdict
from trainrig.runner.executor import Executor
from trainrig.runner.expectations import (
    Grounds,
    claims_for,
    expectations,
    history_of,
    limit_of_point,
)
from trainrig.runner.history import corrections_of
from trainrig.runner.plan import Block, Task, qualify_plan
from trainrig.runner.progress import Progress, Watcher, describe, interrupted_once, null_progress
from trainrig.runner.targets import HOST, Target, disk_target, find_targets
from trainrig.runner.train import TrainRun
from trainrig.runner.training import TextShelf, measure_block, with_training
from trainrig.runner.view import view_of
from trainrig.store import RunWriter, create_run, read_run, resume_run


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """A run after the first look, before anything is expected or measured."""

    run: RunWriter
    snapshot: Snapshot
    targets: tuple[Target, ...]
    environment: str
    """Digest of the software and settings."""
    claims: tuple[Record, ...]
    deadline: float
    """On time.monotonic."""
    watch: Watcher


Plan = Callable[[Scene], Sequence[Block]]


MIN_BUDGET = 5.0
MAX_BUDGET = 7 * 86400.0
DEFAULT_BUDGET = 240.0

# Seconds kept back for judging and writing the report.
_CLOSING = 1.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Qualification:
    """What came of a run."""

    run: Path
    verdict: Verdict
    num_records: int
    interrupted: bool


def qualify(
    *,
    budget: float = DEFAULT_BUDGET,
    out: Path = Path("runs"),
    resume: Path | None = None,
    watch: Watcher = null_progress,
) -> Qualification:
    """Inspect this machine, measure it within ``budget`` seconds, and judge it.

    A new run is made in ``out``; ``resume`` goes on with an existing one.
    Raises UsageError for a budget out of range, StoreError when the run cannot
    be written.
    """
    check_budget(budget)

    with TextShelf() as shelf:

        def plan(scene: Scene) -> Sequence[Block]:
            native = _native_bf16(scene.snapshot)
            disk = disk_target(scene.snapshot, scene.run.path)
            blocks = qualify_plan((*scene.targets, disk), budget, native)
            return with_training(blocks, scene.targets, budget, native, shelf.text(budget, watch))

        return carry_out("qualify", plan, budget=budget, out=out, resume=resume, watch=watch)


def carry_out(
    verb: str,
    plan: Plan,
    *,
    budget: float,
    out: Path,
    resume: Path | None = None,
    watch: Watcher = null_progress,
    config: Mapping[str, Any] | None = None,
    early: bool = True,
) -> Qualification:
    """Run a plan into a run folder: the common part of qualify and bench.

    ``early``: with a small budget, start the host's workers before the plan is made.
    """
    start = time.monotonic()
    if resume:
        _check_verb(resume, verb)
    run = resume_run(resume) if resume else create_run(out, verb, _config(budget, config))
    with run, interrupted_once():
        session = _Session(run, start + budget - _CLOSING, watch)
        interrupted = None
        try:
            session.measure(plan, early=early and budget < SMALL_BUDGET)
        except KeyboardInterrupt:
            interrupted = "interrupted before all required steps had run"
        except UsageError:
            if resume is None:
                run.discard()
            raise
        return session.close(interrupted)


def close_run(
    run: RunWriter, findings: Iterable[Finding], interrupted: str | None
) -> Qualification:
    """Judge what is there and write the report."""
    from trainrig.report.run_report import render_html

    stored = read_run(run.path)
    records = stored.records
    again = resume_command(stored.config, str(run.path))
    verdict = judge(records, findings, interrupted, again)
    run.write_verdict(verdict)
    run.write_report(render_html([view_of(read_run(run.path))]))
    return Qualification(
        run=run.path,
        verdict=verdict,
        num_records=len(records),
        interrupted=interrupted is not None,
    )


def check_budget(budget: float) -> None:
    """Raises UsageError for a budget that no run can keep."""
    if not MIN_BUDGET <= budget <= MAX_BUDGET:
        which = "small" if budget < MIN_BUDGET else "large"
        raise UsageError(
            f"a budget of {budget:g} s is too {which}", "from 5s to 7d; 4m is a good one"
        )


class _Session:
    """One open run from its first look to its report."""

    def __init__(self, run: RunWriter, deadline: float, watch: Watcher) -> None:
        self._run = run
        self._deadline = deadline
        self._watch = watch
        self._snapshot: Snapshot | None = None
        self._hostname = ""
        self._history: Sequence[Record] = ()
        self._predicted: dict[tuple[object, int | None], Record] = {}

    def measure(self, plan: Plan, *, early: bool) -> None:
        """Look, expect, measure; ``early`` loads torch for the host while looking."""
        with ExitStack() as stack:
            logs = [self._run.log_path(f"host-{number}") for number in (1, 2)] if early else []
            self._measure(plan, [stack.enter_context(Worker(HOST, log)) for log in logs])

    def _measure(self, plan: Plan, early: Sequence[Worker]) -> None:
        earlier = read_run(self._run.path).records
        self._snapshot = snapshot = inspect()
        environment = environment_digest(snapshot)
        _check_same_software(earlier, environment)
        self._run.reopen()
        self._watch(Progress(text=f"run {self._run.path}", level="stage"))
        self._run.write_machine(to_dict(snapshot))
        scene = self._scene(snapshot, environment, earlier)
        blocks = plan(scene)
        tasks = [task for block in blocks for task in block.tasks]
        expected = self._expect(tasks, scene, earlier)
        executor = self._executor(environment, scene.claims, expected, early)
        executor.total = len(tasks)
        executor.resume_from(earlier)
        self._trainings = TrainRun(
            run=self._run,
            targets=scene.targets,
            claims=scene.claims,
            snapshot=snapshot,
            watch=self._watch,
            texts={},
            total=len(tasks),
            expected=self._predicted,
            alone=True,
            deadline=self._deadline,
        )
        self._run_blocks(executor, blocks)
        executor.repeat_noisy([task for task in tasks if task.spec.role is not Role.STEP])

    def _scene(self, snapshot: Snapshot, environment: str, earlier: Sequence[Record]) -> Scene:
        """What is there to measure and what is claimed of it, written down first."""
        targets = find_targets(snapshot)
        claims = claims_for(snapshot, targets)
        self._append_missing(claims, earlier)
        return Scene(
            run=self._run,
            snapshot=snapshot,
            targets=targets,
            environment=environment,
            claims=claims,
            deadline=self._deadline,
            watch=self._watch,
        )

    def _expect(
        self, tasks: Sequence[Task], scene: Scene, earlier: Sequence[Record]
    ) -> tuple[Record, ...]:
        """The predictions, written before anything is measured.

        A resumed run keeps the ones it has; what it plans beyond them is added.
        """
        from trainrig.catalog.published import published_records

        self._hostname = value_or(scene.snapshot.host.hostname, "")
        parent, environment = self._run.path.parent, scene.environment
        self._history = history_of(parent, self._run.name, self._hostname, environment)
        wanted = expectations(tasks, scene.claims, self._history, published_records(), environment)
        known = [record for record in earlier if record.kind is Kind.PREDICTED]
        return (*known, *self._append_missing(wanted, earlier))

    def _append_missing(
        self, wanted: Sequence[Record], earlier: Sequence[Record]
    ) -> tuple[Record, ...]:
        """Append what an earlier sitting of this run has not written yet."""
        there = {(record.kind, record.key, record.device_index) for record in earlier}
        return tuple(
            self._run.append(record)
            for record in wanted
            if (record.kind, record.key, record.device_index) not in there
        )

    def _executor(
        self,
        environment: str,
        claims: Sequence[Record],
        expected: Sequence[Record],
        early: Sequence[Worker],
    ) -> Executor:
        self._predicted = {(record.key, record.device_index): record for record in expected}

        def complete(point: Record) -> Record:
            return point.replace(limit=limit_of_point(point, claims))

        return Executor(
            self._run,
            environment=environment,
            deadline=self._deadline,
            watch=self._watch,
            describe=lambda point: describe(
                point, self._predicted.get((point.key, point.device_index))
            ),
            complete=complete,
            early=early,
        )

    def _run_blocks(self, executor: Executor, blocks: Sequence[Block]) -> None:
        left_shares = sum(block.share for block in blocks)
        for block in blocks:
            left = max(self._deadline - time.monotonic(), 0.0)
            seconds = left * block.share / max(left_shares, block.share, 1e-9)
            if block.tasks[0].spec.role is Role.STEP:
                self._measure_trainings(block, executor, seconds)
            else:
                executor.run_block(block, seconds)
            left_shares -= block.share

    def _measure_trainings(self, block: Block, executor: Executor, seconds: float) -> None:
        """On the road of `trainrig train`, with all rates that were measured so far."""
        points = [r for r in read_run(self._run.path).records if r.is_point and r.is_usable]
        self._trainings.grounds = Grounds(
            points=(*self._history, *points),
            corrections=corrections_of(self._run.path.parent, self._hostname),
        )
        self._trainings.texts = {
            task.extra["experiment"]["data"]: str(task.case["data"]) for task in block.tasks
        }
        measure_block(block, self._trainings, executor, seconds)

    def close(self, interrupted: str | None) -> Qualification:
        """Judge what is there and write the report."""
        findings = diagnose(self._snapshot) if self._snapshot else ()
        return close_run(self._run, findings, interrupted)


def _check_same_software(earlier: Sequence[Record], environment: str) -> None:
    before = {record.environment for record in earlier if record.attempt is not None}
    if before - {environment, None}:
        raise UsageError(
            "the run was made under other software or settings", "start a new run: trainrig qualify"
        )


def _check_verb(path: Path, verb: str) -> None:
    """A run is gone on with by the verb that made it: another one has another plan."""
    made_by = read_run(path).config.get("verb")
    if made_by != verb:
        raise UsageError(
            f"{path} was made by trainrig {made_by}, not {verb}",
            f"start a new run: trainrig {verb}",
        )


def _config(budget: float, config: Mapping[str, Any] | None) -> dict[str, Any]:
    return {
        "trainrig": version("trainrig"),
        "python": sys.version.split()[0],
        "budget_s": budget,
        **(config or {}),
    }


def _native_bf16(snapshot: Snapshot) -> bool:
    flags = value_or(snapshot.cpu.flags, ())
    return bool({"avx512_bf16", "amx_bf16", "bf16"} & set(flags))


def summary(result: Qualification) -> dict[str, Any]:
    """What ``qualify --json`` prints last; others script against it."""
    return {
        "verdict": result.verdict.outcome.value,
        "reason": result.verdict.reason,
        "run": str(result.run),
        "report": str(result.run / "report.html"),
        "findings": [
            {"id": f.id, "severity": f.severity, "evidence": f.evidence, "fix": f.fix}
            for f in result.verdict.findings
        ],
        "num_records": result.num_records,
    }


def exit_code(outcome: Outcome, interrupted: bool) -> int:
    """What a verdict ends the process with."""
    from trainrig import errors

    if interrupted:
        return errors.EXIT_INTERRUPTED
    return {
        Outcome.PASS: errors.EXIT_OK,
        Outcome.FAIL: errors.EXIT_FINDING,
        Outcome.INCOMPLETE: errors.EXIT_INCOMPLETE,
    }[outcome]
