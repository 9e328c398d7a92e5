"""What is wrong with trainings, what to do about it, and the verdict on a run of them.

Errors fail the run: it did not train, trained another layout than was asked for, or computes
something else than one process does (DIFFERS), or could not be compared and had not said so
beforehand.  Warnings do not: time in no part, a loss that does not fall
below what token frequencies give, or a rank that others wait for.

What is shown of a training is what rank 0 saw.  A rank that is slower than the others shows there
as waiting of rank 0.  Samples are shared out evenly: whoever waits least for the others in the
profiled steps is the straggler.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from trainrig.analysis.judge import first_fault, unattributed_step_time
from trainrig.analysis.rows import rows
from trainrig.analysis.training_facts import RETRIED_BATCH, retried_batches
from trainrig.analysis.training_results import TrainingResult, results
from trainrig.errors import DataError
from trainrig.process.lost_ranks import Restart
from trainrig.record import Finding, Outcome, RunView, Severity, Status, Verdict
from trainrig.units import counted as plural
from trainrig.units import format_time

MARGIN_NATS = 1.0
"""A model that learned lies this far below the unigram entropy of the held-out text."""

MAX_UNEVEN = 0.1
"""Share of a step: a rank that spends so much more of it in collectives than another is a finding.
"""

STEADY = 0.9
"""Share of the steps in which it must be the same rank: other processes come and go."""
_LEAST_STEPS = 4
_LATE = 3

Rows = Sequence[Mapping[str, Any]]


def judge_trainings(view: RunView, interrupted: str | None = None) -> Verdict:
    """Return the verdict on a run of trainings; ``interrupted``: why it is not whole.

    FAIL with the first fault; INCOMPLETE where something was not trained; else PASS.  MEASURED
    where none had anything to be compared with: each is one process of ours.
    """
    try:
        trained = results(view)
    except DataError as error:
        return Verdict(outcome=Outcome.INCOMPLETE, reason=interrupted or error.message)
    findings = (
        *_oversized_batches(view),
        *(finding for result in trained for finding in findings_of(result)),
    )
    findings = (*findings, *unattributed_step_time(rows(view)))
    if fault := first_fault(findings):
        outcome, reason = Outcome.FAIL, fault
    elif interrupted:
        outcome, reason = Outcome.INCOMPLETE, interrupted
    else:
        outcome, reason = _outcome_of(trained)
    return Verdict(outcome=outcome, reason=reason, findings=findings)


def _outcome_of(trained: Sequence[TrainingResult]) -> tuple[Outcome, str]:
    """Return the verdict on a whole run without a fault, and why."""
    needs_gpu = [result.name for result in trained if result.needs_gpu]
    judged = [result for result in trained if not result.needs_gpu]
    skipped = [result for result in judged if result.status == Status.SKIPPED]
    declared_names = [result.name for result in judged if result.loss.parity.declared]
    not_compared = skipped or [
        result
        for result in judged
        if not (result.loss.parity.compared or result.loss.parity.declared)
    ]
    if not_compared:
        why = not_compared[0].reason or "compared with nothing"
        return Outcome.INCOMPLETE, f"{not_compared[0].name}: {why}"
    alone = all(result.loss.parity.is_reference for result in judged)
    like_one = "layouts as asked, losses as in one process"
    by_one = "trained by one process, which there is nothing to compare with"
    reason = f"{plural(len(judged), 'experiment')}: {by_one if alone else like_one}"
    if needs_gpu:
        names = "; ".join(needs_gpu)
        reason += f"; {len(needs_gpu)} skipped for want of a GPU or a compiler: {names}"
    if declared_names:
        reason += f"; {len(declared_names)} declared not comparable: {'; '.join(declared_names)}"
    return Outcome.MEASURED if alone else Outcome.PASS, reason


def _oversized_batches(view: RunView) -> Iterator[Finding]:
    """Find the batch sizes that did not fit."""
    for record in retried_batches(view):
        batch, smaller = record.case.get("batch_size"), record.conditions[RETRIED_BATCH]
        yield Finding(
            id="batch-too-large",
            severity="warning",
            evidence=f"{record.case.get('experiment')}: a batch of {batch} does not fit: "
            f"{record.reason}; went on with {smaller}",
            fix=_fix(record.status, ""),
            records=(record.id,),
        )


def findings_of(result: TrainingResult) -> Iterator[Finding]:
    """Yield what is wrong with a training, and what to do."""
    ids, parity = (result.record,) if result.record else (), result.loss.parity

    def finding(id: str, severity: Severity, words: str, fix: str) -> Finding:
        evidence = f"{result.name}: {words}"
        return Finding(id=id, severity=severity, evidence=evidence, fix=fix, records=ids)

    known: Severity = "warning" if parity.declared else "error"
    if parity.no_reference is not None:
        words = f"NOT COMPARABLE: {parity.no_reference}"
        fix = "an experiment of one process on the same samples shows what is wrong"
        yield finding("no-reference", known, words, fix)
    if result.status not in (Status.OK, Status.SKIPPED):
        fix = _fix(result.status, result.reason or "")
        yield finding("training-failed", "error", str(result.reason), fix)
    for words in result.layout.differences:
        fix = "nothing of this row is what its name says; another framework or another layout"
        yield finding("layout-not-as-asked", "error", words, fix)
    if parity.not_comparable is not None:
        fix = "it computes something else than one process does on the same samples"
        words = f"DIFFERS: {parity.not_comparable}"
        if parity.declared:
            words = f"NOT COMPARABLE ({parity.declared}): {parity.not_comparable}"
        yield finding("not-comparable", known, words, fix)
    heldout, entropy = result.loss.heldout_loss, result.loss.unigram_entropy
    if heldout is not None and entropy is not None and not has_learned(heldout, entropy):
        words = (
            f"after {result.settings.get('steps')} steps the held-out loss is {heldout:.2f} nats, "
            f"and the unigram entropy {entropy:.2f}"
        )
        fix = "another --lr, more steps, or look for labels that do not belong to the inputs"
        yield finding("does-not-learn", "warning", words, fix)
    for words in map(_lost_rank_text, result.restarts):
        fix = "look at that host's kernel log, its memory, power and temperature"
        yield finding("rank-lost", "warning", words, fix)
    if result.timing.straggler is not None:
        fix = "look what else runs on that rank's device or core, and how fast it is alone"
        yield finding("rank-waited-for", "warning", result.timing.straggler, fix)


def _lost_rank_text(restart: Restart) -> str:
    """Return which rank was lost, and what that cost."""
    if restart.step is None:
        return restart.cause
    ranks, steps = plural(restart.ranks or 1, "rank"), plural(restart.steps_lost or 0, "step")
    lost = f"{steps} and {format_time(restart.time_lost_s or 0.0)} lost"
    return f"{restart.cause}; went on from step {restart.step} with {ranks}, {lost}"


def has_learned(heldout_loss: float, entropy: float) -> bool:
    """Return whether a loss lies clearly below that of a model of token frequencies only."""
    return heldout_loss <= entropy - MARGIN_NATS


def not_falling(losses: Sequence[float]) -> str | None:
    """Return why losses do not show learning: the last ones are not below the first.

    The first is that of fresh weights, about the logarithm of the vocabulary; the last three are
    taken together, since a batch's loss wanders.
    """
    late = losses[1:][-_LATE:]
    if not late or sum(late) / len(late) < losses[0]:
        return None
    return (
        f"the loss does not fall: {losses[0]:.3f} at first, {sum(late) / len(late):.3f} over the "
        f"last {len(late)} of {len(losses)} steps"
    )


_FIXES = (
    (
        "building extension",
        "apt install g++ and pip install ninja, or CXX=another compiler; an earlier try that broke "
        "off is left in ~/.cache/torch_extensions",
    ),
    ("is in use", "unset MASTER_PORT, and a free port is taken"),
    ("SIGKILL", "dmesg says whether the kernel ended it for memory; else look for who did"),
)
"""Remedies of a failure by words of its reason."""


def _fix(status: str, reason: str) -> str:
    if status == Status.OOM:
        return "a smaller batch_size with grad_accum, recompute full, or zero 3"
    for words, fix in _FIXES:
        if words in reason:
            return fix
    if " at step " in reason:
        return "a lower lr, or fp32; the run's series has the steps before"
    more = "a longer --timeout; " if status == Status.TIMEOUT else ""
    return f"{more}its ranks' logs are in the run's logs folder"


def find_straggler(ranks: Sequence[Rows], hosts: Sequence[str] = ()) -> str | None:
    """Return the rank that the others wait for, and its slowest phase; None where they are even.

    ``ranks``: the profiled steps of each rank; ``hosts``: where each is, as far as it is known.
    """
    if len(ranks) < 2 or min(map(len, ranks)) < _LEAST_STEPS:
        return None
    waits = [
        [float(s["communication_s"]) + float(s["bubble_s"]) for s in rank_steps]
        for rank_steps in ranks
    ]
    usual, step = (
        [median(rank_steps) for rank_steps in waits],
        median(float(s["step_s"]) for s in ranks[0]),
    )
    slow, gap = usual.index(min(usual)), max(usual) - min(usual)
    # The share of steps in which no rank waits less than this one.
    together = list(zip(*waits, strict=False))
    steadiness = sum(waits_of_step[slow] <= min(waits_of_step) for waits_of_step in together) / len(
        together
    )
    if not gap > MAX_UNEVEN * step or steadiness < STEADY:
        return None
    where = f" on {hosts[slow]}" if len(hosts) == len(ranks) and hosts[slow] else ""
    text = (
        f"of a step of {format_time(step)}, {format_time(gap)} is another rank's waiting for rank "
        f"{slow}{where}"
    )
    others = [rank_steps for rank_steps in ranks if rank_steps is not ranks[slow]]
    longer = {
        phase: _median_in_phase(ranks[slow], phase)
        - median(_median_in_phase(rank_steps, phase) for rank_steps in others)
        for phase in ranks[slow][0].get("own_in", {})
    }
    if not longer:
        return text
    phase = max(longer, key=longer.__getitem__)
    return f"{text}, which takes {format_time(longer[phase])} longer in {phase.replace('_', ' ')}"


def _median_in_phase(steps: Rows, phase: str) -> float:
    """Return a rank's own work in a phase."""
    return median(float(step["own_in"].get(phase, 0.0)) for step in steps)
