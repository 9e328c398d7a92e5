"""qualify and bench: expect → run → judge, into one run folder.

`qualify` plans for the whole machine; `bench` runs the cases that were asked
for.  Both write the machine, the claims and the expectations first, then
measure, then judge, and leave a valid run whatever ends them.

What a plan may look at before it says what to run: the machine, the claims, the open run.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from trainrig.analysis.run_commands import DEFAULT_BUDGET_S, MAX_BUDGET_S, new_command
from trainrig.benchmarks.spec import SMALL_BUDGET, benchmarks, check_options
from trainrig.benchmarks.training import BENCHMARK as TRAINING
from trainrig.doctor import diagnose
from trainrig.errors import UsageError
from trainrig.machine import Snapshot, environment_digest, inspect, to_dict
from trainrig.machine.environment import changes
from trainrig.prediction.expected import Demands
from trainrig.process.python_env import check_torch
from trainrig.process.worker import Worker
from trainrig.record import Kind, Record, RunView
from trainrig.runner.earlier_runs import with_history
from trainrig.runner.executor import Executor
from trainrig.runner.expectations import claims_for, expectations, history_of
from trainrig.runner.plan import LINKS, Block, is_optional, qualify_plan
from trainrig.runner.progress import (
    Progress,
    Watcher,
    hold_machine_lock,
    interrupted_once,
    null_progress,
)
from trainrig.runner.qualified_training import (
    Trainer,
    text_to_train_on,
    trained_on,
    with_training,
)
from trainrig.runner.ranks import Exchanger
from trainrig.runner.sentinel import Sentinel
from trainrig.runner.targets import HOST, Target, choose_gpus, described, disk_target, find_targets
from trainrig.runner.train import TrainRun
from trainrig.runner.view import RunOutcome, fill_run
from trainrig.store import RunWriter, create_run, read_run, resume_run
from trainrig.units import duration_text


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
    """End of the run, in seconds of time.monotonic."""
    watch: Watcher


Plan = Callable[[Scene], Sequence[Block]]

MIN_BUDGET = 5.0
MAX_BUDGET = MAX_BUDGET_S
DEFAULT_BUDGET = DEFAULT_BUDGET_S

# Seconds kept back for judging and writing the report.
_CLOSING = 1.2


def qualify(
    *,
    budget: float = DEFAULT_BUDGET,
    out: Path = Path("runs"),
    resume: Path | None = None,
    watch: Watcher = null_progress,
    devices: Sequence[str] = (),
    only: Sequence[str] = (),
    demands: Demands | None = None,
) -> RunOutcome:
    """Inspect this machine, measure it within ``budget`` seconds, and judge it.

    A new run is made in ``out``; ``resume`` goes on with an existing one, as it was requested and
    by what it expected.  ``devices``: numbers of GPUs; ``only``: names of benchmarks, or
    ``links``; all without them.  Raises UsageError for a budget out of range and for what is not
    there or judges nothing here, StoreError when the run cannot be written.
    """
    check_budget(budget)
    check_torch()
    names = [spec.name for spec in benchmarks()] + [LINKS]
    check_options("qualify", "--only", only, names)
    if resume:
        if demands or devices or only:
            raise UsageError("a run that is resumed is judged by what it was started with")
        config = read_run(resume).config
        devices, only = config.get("devices", ()), config.get("only", ())

    with ExitStack() as stack:

        def plan(scene: Scene) -> Sequence[Block]:
            targets = choose_gpus(scene.targets, devices)
            disk = disk_target(scene.snapshot, scene.run.path)
            blocks = qualify_plan((*targets, disk), budget, only)
            if not only or TRAINING.name in only:
                text = text_to_train_on(budget, watch, stack)
                blocks = with_training(blocks, targets, budget, text)
                for line in dict.fromkeys(t.arithmetic.line for t in trained_on(targets)):
                    watch(Progress(text=line, level="stage"))
            if not blocks:
                raise UsageError(f"--only: no case of {', '.join(only)} for this machine")
            return blocks

        return carry_out(
            "qualify",
            plan,
            budget=budget,
            out=out,
            resume=resume,
            watch=watch,
            config=_requested(devices, only, demands),
            demands=demands,
        )


def _requested(
    devices: Sequence[str], only: Sequence[str], demands: Demands | None
) -> dict[str, Any]:
    """Return the request as run.toml keeps it: only options that were given.

    It is what the command that makes the run anew is built from.
    """
    demands = demands or Demands()
    requested: dict[str, Any] = {"devices": list(devices), "only": list(only)}
    requested |= {"min": list(demands.requested), "baseline": demands.path}
    return {name: value for name, value in requested.items() if value}


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
    demands: Demands | None = None,
    exchange: Callable[[RunWriter], Exchanger] = Exchanger,
) -> RunOutcome:
    """Run a plan into a run folder: the common part of qualify and bench.

    ``early``: with a small budget, start the host's workers before the plan is made.
    ``exchange`` makes of the run what starts ranks that exchange.
    """
    if resume and (made_by := read_run(resume).config.get("verb")) != verb:
        raise UsageError(  # another verb has another plan
            f"{resume} was made by trainrig {made_by}, not {verb}",
            f"start a new run: trainrig {verb}",
        )
    head = {"trainrig": version("trainrig"), "python": sys.version.split()[0], "budget_s": budget}
    run = resume_run(resume) if resume else create_run(out, verb, {**head, **(config or {})})

    def fill() -> None:
        try:
            with ExitStack() as stack:
                stack.enter_context(hold_machine_lock(watch, budget))
                deadline = time.monotonic() + budget - _CLOSING
                numbers = (1, 2) if early and budget < SMALL_BUDGET else ()
                workers = [Worker(HOST, run.log_path(f"host-{number}")) for number in numbers]
                ready = [stack.enter_context(worker) for worker in workers]
                examine = verb == "qualify"
                _measure(run, plan, deadline, watch, ready, demands, exchange, examine=examine)
        except UsageError:  # of what was asked for: one while the run is closed costs no run
            if resume is None:
                run.discard()
            raise

    with run, interrupted_once():
        words = "interrupted before all required steps had run"
        return fill_run(run, fill, words, refusal=(UsageError,))


def check_budget(budget: float) -> None:
    """Raises UsageError for a budget that no run can keep."""
    if not MIN_BUDGET <= budget <= MAX_BUDGET:
        which = "small" if budget < MIN_BUDGET else "large"
        raise UsageError(
            f"--budget {duration_text(budget)} is too {which}", "from 5s to 7d; 4m is a good one"
        )


def _measure(
    run: RunWriter,
    plan: Plan,
    deadline: float,
    watch: Watcher,
    early: Sequence[Worker],
    demands: Demands | None,
    exchange: Callable[[RunWriter], Exchanger],
    *,
    examine: bool,
) -> None:
    """Look, write down what is claimed and expected, then measure.

    A resumed run keeps the expectations it has; what it plans beyond them is added.
    """
    from trainrig.catalog.published import published_records

    earlier = read_run(run.path).records
    snapshot, environment = _look(run, earlier, examine=examine)
    targets = find_targets(snapshot)
    claims = claims_for(snapshot, targets)
    _append_missing(run, claims, earlier)
    scene = Scene(
        run=run,
        snapshot=snapshot,
        targets=targets,
        environment=environment,
        claims=claims,
        deadline=deadline,
        watch=watch,
    )
    blocks = plan(scene)
    watch(Progress(text=f"run {run.path}", level="stage"))
    if examine:
        _show_findings(snapshot, watch)
    tasks = [task for block in blocks for task in block.tasks]
    machine = to_dict(snapshot)
    history = history_of(run.path.parent, run.name, machine)
    wanted = expectations(tasks, claims, history, published_records(), environment, demands)
    predictions = [record for record in earlier if record.kind is Kind.PREDICTED]
    expected = {
        (record.key, record.device_index): record
        for record in (*predictions, *_append_missing(run, wanted, earlier))
    }
    trainings = TrainRun(
        run=run,
        targets=targets,
        claims=claims,
        snapshot=snapshot,
        watch=watch,
        total=len(tasks),
        expected=expected,
        alone=True,
    )
    executor = Executor(
        run,
        environment=environment,
        deadline=deadline,
        watch=watch,
        claims=claims,
        expected=expected,
        early=early,
        train=Trainer(trainings, history),
        exchange=exchange(run),
        sentinel=Sentinel(run, deadline - time.monotonic()),
    )
    executor.total = len(tasks)
    executor.resume_from(earlier)
    try:
        _run_blocks(blocks, executor, deadline)
    finally:  # whatever ended it, load may have shown what GPUs hide at rest
        if any(target.is_gpu for target in targets):
            run.write_machine(to_dict(replace(snapshot, gpus_after=inspect().gpus)))


def _look(run: RunWriter, earlier: Sequence[Record], *, examine: bool) -> tuple[Snapshot, str]:
    """Return the machine as it is now, written into the run, and the digest of its environment.

    ``examine``: with what a doctor asks about.  Raises UsageError where the run's records were made
    under another environment.
    """
    snapshot = described(inspect(with_health=examine))
    if examine:
        snapshot = with_history(snapshot, run.path.parent, run.path.name)
    environment = environment_digest(snapshot)
    machine = to_dict(snapshot)
    if any(record.attempt is not None for record in earlier):
        _refuse_other_environment(read_run(run.path), machine)
    run.reopen()
    run.write_machine(machine)
    return snapshot, environment


def _refuse_other_environment(run: RunView, machine: Mapping[str, Any]) -> None:
    """Raise UsageError where what a run was measured under is not what ``machine`` has now."""
    lost = ("its machine.json is gone",)
    changed = lost if run.machine is None else changes(run.machine, machine)
    if changed:
        raise UsageError(
            "the run was measured under other software or settings, and cannot be resumed: "
            + "; ".join(changed),
            f"start a new run: {new_command(run.config, run.path.parent)}",
        )


def _show_findings(snapshot: Snapshot, watch: Watcher) -> None:
    """Show the doctor's findings before anything is measured: they explain later results."""
    words = {"error": "fault", "warning": "warning"}
    findings = [finding for finding in diagnose(snapshot) if finding.severity in words]
    for finding in findings:
        watch(Progress(text=f"{words[finding.severity]}: {finding.evidence}; fix: {finding.fix}"))
    if not findings:
        watch(Progress(text="doctor: nothing found", level="stage"))


def _run_blocks(blocks: Sequence[Block], executor: Executor, deadline: float) -> None:
    """Run required blocks for as long as they take, then each other block for its share.

    What the verdict needs may take the time of what it does not, but for the shares of later blocks
    that it needs.
    """
    total_s = max(deadline - time.monotonic(), 0.0)
    is_decided = False
    for number, block in enumerate(blocks):
        if is_optional(block) and not is_decided:
            is_decided = True
            executor.decide()
        left_s = max(deadline - time.monotonic(), 0.0)
        later = sum(
            later_block.share
            for later_block in blocks[number + 1 :]
            if is_optional(later_block) is is_decided
        )
        share = block.share / (block.share + later) if block.share else 0.0
        seconds = left_s * share
        if not is_decided:
            seconds = max(seconds, left_s - later * total_s)
        executor.run_block(block, seconds)
    executor.use_time_left()


def _append_missing(
    run: RunWriter, wanted: Sequence[Record], earlier: Sequence[Record]
) -> tuple[Record, ...]:
    """Append what an earlier sitting of this run has not written yet."""
    present = {(record.kind, record.key, record.device_index) for record in earlier}
    return tuple(
        run.append(record)
        for record in wanted
        if (record.kind, record.key, record.device_index) not in present
    )


def summary(result: RunOutcome) -> dict[str, Any]:
    """Return what ``qualify --json`` prints last."""
    return {**result.to_dict(), "num_records": result.num_records}
