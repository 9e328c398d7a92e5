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

from trainrig.analysis.trained import Trained, counted
from trainrig.benchmarks.training import COMMUNICATION, MAX_OTHER, OTHER, PARTS
from trainrig.record import Finding, Outcome, Record, Status, Verdict
from trainrig.train.engines import engine_of
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
    if went_on is not None:
        yield Finding(
            id="batch-too-large",
            severity="warning",
            evidence=f"{name}: a batch of {trained.experiment.batch_size} does not fit: "
            f"{trained.reason}; went on with {went_on}",
            fix=_fix(trained),
            records=ids,
        )
    elif trained.status not in (Status.OK, Status.SKIPPED):
        yield Finding(
            id="training-failed",
            severity="error",
            evidence=f"{name}: {trained.reason}",
            fix=_fix(trained),
            records=ids,
        )
    for words in trained.wrong_layout:
        yield Finding(
            id="layout-not-as-asked",
            severity="error",
            evidence=f"{name}: {words}",
            fix="nothing of this row is what its name says; another framework or another layout",
            records=ids,
        )
    if trained.apart is not None:
        yield Finding(
            id="not-comparable",
            severity="error",
            evidence=f"{name}: NOT COMPARABLE: {trained.apart}",
            fix=engine_of(trained.experiment.framework).rounding(trained.experiment)
            or "it computes something else than one process does on the same samples",
            records=ids,
        )
    heldout, entropy = trained.result.heldout_loss, trained.entropy
    if heldout is not None and entropy is not None and not has_learned(heldout, entropy):
        yield Finding(
            id="does-not-learn",
            severity="warning",
            evidence=f"{name}: after {trained.experiment.steps} steps the held-out loss is "
            f"{heldout:.2f} nats, and the unigram entropy {entropy:.2f}",
            fix="another --lr, more steps, or look for labels that do not belong to the inputs",
            records=ids,
        )
    yield from uneven(name, [counted(rows) for rows in trained.result.rows_of_ranks], ids)
    seconds, other = trained.mean("time"), trained.mean(OTHER)
    if seconds and other and abs(other) > MAX_OTHER * seconds:
        where = "none of its parts" if other > 0.0 else "two of its parts at once"
        yield Finding(
            id="time-in-no-part",
            severity="warning",
            evidence=f"{name}: {format_share(abs(other) / seconds)} of a step belongs to {where}",
            fix="profile one step: torch.profiler shows what runs between the parts",
            records=ids,
        )


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
    if not gap > MAX_UNEVEN * step or _steadiness(ranks, slow) < STEADY:
        return None
    longer = {part: _longer(ranks, slow, part) for part in PARTS}
    part = max(longer, key=longer.__getitem__)
    return (
        f"of a step of {format_time(step)}, {format_time(gap)} is another rank's waiting for rank "
        f"{slow}, which takes {format_time(longer[part])} longer in {part.replace('_', ' ')}"
    )


def uneven(name: str, ranks: Sequence[Rows], records: tuple[str, ...]) -> Iterator[Finding]:
    """The finding that says so."""
    words = waited_for(ranks)
    if words is not None:
        yield Finding(
            id="rank-waited-for",
            severity="warning",
            evidence=f"{name}: {words}",
            fix="look what else runs on that rank's device or core, and how fast it is alone",
            records=records,
        )


def _steadiness(ranks: Sequence[Rows], slow: int) -> float:
    """The share of steps in which no rank waits less than ``slow``."""
    steps = [
        [float(row.get(COMMUNICATION) or 0.0) for row in together]
        for together in zip(*ranks, strict=False)
    ]
    return sum(waits[slow] <= min(waits) for waits in steps) / len(steps)


def _usual(rows: Rows, name: str) -> float:
    return median(float(row.get(name) or 0.0) for row in rows)


def _longer(ranks: Sequence[Rows], slow: int, part: str) -> float:
    others = [_usual(rows, part) for rank, rows in enumerate(ranks) if rank != slow]
    return _usual(ranks[slow], part) - median(others)


def verdict_of(
    trained: Sequence[Trained], found: Sequence[Finding], interrupted: str | None
) -> Verdict:
    """FAIL with the first fault; INCOMPLETE where something was not trained; else PASS."""
    findings = tuple(found)
    faults = [finding for finding in findings if finding.severity == "error"]
    needs_gpu = [each.experiment.name for each in trained if each.needs_gpu]
    trained = [each for each in trained if not each.needs_gpu]
    skipped = [each for each in trained if each.status is Status.SKIPPED]
    alone = [each for each in trained if not each.compared]
    if faults:
        more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
        return Verdict(outcome=Outcome.FAIL, reason=faults[0].evidence + more, findings=findings)
    if interrupted:
        return Verdict(outcome=Outcome.INCOMPLETE, reason=interrupted, findings=findings)
    if skipped or alone:
        first = (skipped or alone)[0]
        reason = first.reason or "compared with nothing"
        return Verdict(
            outcome=Outcome.INCOMPLETE,
            reason=f"{first.experiment.name}: {reason}",
            findings=findings,
        )
    count = len(trained)
    what = "1 experiment" if count == 1 else f"{count} experiments"
    return Verdict(
        outcome=Outcome.PASS,
        reason=f"{what}: layouts as asked, losses as in one process{_left_out(needs_gpu)}",
        findings=findings,
    )


def _left_out(needs_gpu: Sequence[str]) -> str:
    return (
        f"; {len(needs_gpu)} of GPUs alone not trained here: {'; '.join(needs_gpu)}"
        if needs_gpu
        else ""
    )
