"""What is wrong with trainings, what to do about it, and the verdict on a run of them.

Errors fail the run: it did not train, trained another layout than was asked for, or computes
something else than one process does.  Warnings do not: time in no part, a loss that does not fall
below what token frequencies give, or a rank that others wait for.

What is shown of a training is what rank 0 saw.  A rank that is slower than the others shows there
as communication of rank 0, which waits for it, or, if it is rank 0, as less communication than the
others have.  Samples are shared out evenly: whoever waits least in collectives is the straggler.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from trainrig.analysis.judge import first_fault
from trainrig.analysis.trained import Trained
from trainrig.analysis.training_facts import counted
from trainrig.benchmarks.training import MAX_OTHER
from trainrig.process.events import COMMUNICATION, OTHER, PARTS
from trainrig.record import Finding, Outcome, Record, Severity, Status, Verdict
from trainrig.train.engines import engine_of
from trainrig.train.parity import is_reference
from trainrig.units import counted as plural
from trainrig.units import format_share, format_time

MARGIN_NATS = 1.0
"""A model that learned lies this far below the unigram entropy of the held-out text."""

MAX_UNEVEN = 0.1
"""Of a step: so much longer in collectives than another rank is worth a word."""

STEADY = 0.9
"""In so many of the steps it must be the same rank: what others do on a machine comes and goes."""
_LEAST_STEPS = 4
_LATE = 3

Rows = Sequence[Mapping[str, Any]]


def findings_of(
    trained: Trained, records: Sequence[Record], went_on: int | None = None
) -> Iterator[Finding]:
    """What is wrong with a training, and what to do; ``went_on``: the batch that was tried next."""
    ids, name = (records[0].id,) if records else (), trained.experiment.name

    def finding(id: str, severity: Severity, words: str, fix: str) -> Finding:
        return Finding(id=id, severity=severity, evidence=f"{name}: {words}", fix=fix, records=ids)

    if went_on is not None:
        words = (
            f"a batch of {trained.experiment.batch_size} does not fit: {trained.reason}; "
            f"went on with {went_on}"
        )
        yield finding("batch-too-large", "warning", words, _fix(trained))
    elif trained.status not in (Status.OK, Status.SKIPPED):
        yield finding("training-failed", "error", str(trained.reason), _fix(trained))
    for words in trained.wrong_layout:
        fix = "nothing of this row is what its name says; another framework or another layout"
        yield finding("layout-not-as-asked", "error", words, fix)
    if trained.apart is not None:
        fix = (
            engine_of(trained.experiment.framework).rounding(trained.experiment)
            or "it computes something else than one process does on the same samples"
        )
        yield finding("not-comparable", "error", f"NOT COMPARABLE: {trained.apart}", fix)
    heldout, entropy = trained.result.heldout_loss, trained.entropy
    if heldout is not None and entropy is not None and not has_learned(heldout, entropy):
        words = (
            f"after {trained.experiment.steps} steps the held-out loss is {heldout:.2f} nats, and "
            f"the unigram entropy {entropy:.2f}"
        )
        fix = "another --lr, more steps, or look for labels that do not belong to the inputs"
        yield finding("does-not-learn", "warning", words, fix)
    if straggler := waited_for([counted(rows) for rows in trained.result.rows_of_ranks]):
        fix = "look what else runs on that rank's device or core, and how fast it is alone"
        yield finding("rank-waited-for", "warning", straggler, fix)
    seconds, other = trained.mean("time"), trained.mean(OTHER)
    if seconds and other and abs(other) > MAX_OTHER * seconds:
        where = "none of its parts" if other > 0.0 else "two of its parts at once"
        words = f"{format_share(abs(other) / seconds)} of a step belongs to {where}"
        fix = "profile one step: torch.profiler shows what runs between the parts"
        yield finding("time-in-no-part", "warning", words, fix)


def has_learned(heldout_loss: float, entropy: float) -> bool:
    """Whether a loss lies clearly below that of a model that knows token frequencies only."""
    return heldout_loss <= entropy - MARGIN_NATS


def not_falling(losses: Sequence[float]) -> str | None:
    """Why losses do not show learning: the last ones do not lie below the first; None if they do.

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


def _fix(trained: Trained) -> str:
    if trained.status is Status.OOM:
        return "a smaller batch_size with grad_accum, recompute full, or zero 3"
    if " at step " in (trained.reason or ""):
        return "a lower lr, or fp32; the run's series has the steps before"
    more = "a longer --timeout; " if trained.status is Status.TIMEOUT else ""
    return f"{more}its ranks' logs are in the run's logs folder"


def waited_for(ranks: Sequence[Rows]) -> str | None:
    """Which rank the others wait for, and what it is longer in; None where they are even.

    ``ranks``: the steps that count, of each rank.
    """
    if len(ranks) < 2 or min(map(len, ranks)) < _LEAST_STEPS:
        return None
    waits = [_usual(rows, COMMUNICATION) for rows in ranks]
    step = _usual(ranks[0], "time")
    slow, gap = waits.index(min(waits)), max(waits) - min(waits)
    # The share of steps in which no rank waits less than this one.
    together = [
        [float(row.get(COMMUNICATION) or 0.0) for row in rows] for rows in zip(*ranks, strict=False)
    ]
    steadiness = sum(each[slow] <= min(each) for each in together) / len(together)
    if not gap > MAX_UNEVEN * step or steadiness < STEADY:
        return None
    others = [rows for rows in ranks if rows is not ranks[slow]]
    longer = {
        part: _usual(ranks[slow], part) - median(_usual(rows, part) for rows in others)
        for part in PARTS
    }
    part = max(longer, key=longer.__getitem__)
    return (
        f"of a step of {format_time(step)}, {format_time(gap)} is another rank's waiting for rank "
        f"{slow}, which takes {format_time(longer[part])} longer in {part.replace('_', ' ')}"
    )


def _usual(rows: Rows, name: str) -> float:
    return median(float(row.get(name) or 0.0) for row in rows)


def verdict_of(
    trained: Sequence[Trained], found: Sequence[Finding], interrupted: str | None
) -> Verdict:
    """FAIL with the first fault; INCOMPLETE where something was not trained; else PASS.

    MEASURED where none had anything to be compared with: each is one process of ours.
    """
    needs_gpu = [each.experiment.name for each in trained if each.needs_gpu]
    trained = [each for each in trained if not each.needs_gpu]
    skipped = [each for each in trained if each.status is Status.SKIPPED]
    left = skipped or [each for each in trained if not each.compared]
    if fault := first_fault(found):
        outcome, reason = Outcome.FAIL, fault
    elif interrupted:
        outcome, reason = Outcome.INCOMPLETE, interrupted
    elif left:
        outcome = Outcome.INCOMPLETE
        reason = f"{left[0].experiment.name}: {left[0].reason or 'compared with nothing'}"
    else:
        judged = [each for each in trained if not is_reference(each.experiment, each.experiment)]
        outcome = Outcome.PASS if judged else Outcome.MEASURED
        like_one = "layouts as asked, losses as in one process"
        alone = "trained by one process, which there is nothing to compare with"
        reason = f"{plural(len(trained), 'experiment')}: {like_one if judged else alone}"
        if needs_gpu:
            names = "; ".join(needs_gpu)
            reason += f"; {len(needs_gpu)} of GPUs alone not trained here: {names}"
    return Verdict(outcome=outcome, reason=reason, findings=tuple(found))
