"""What is wrong with an experiment, and what to do.

Errors fail the run: it did not train, trained another layout than was asked for, or computes
something else than one process does.  Warnings do not: time in no part, or a rank that others wait
for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trainrig.benchmarks.training import MAX_OTHER, OTHER
from trainrig.record import Finding, Record, Status
from trainrig.runner.experiment_ranks import uneven
from trainrig.runner.experiment_trained import Trained, counted
from trainrig.train.parity import hint_of
from trainrig.units import format_share


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
            fix="nothing of this row is what its name says; another backend or another layout",
            records=ids,
        )
    if trained.apart is not None:
        yield Finding(
            id="not-comparable",
            severity="error",
            evidence=f"{name}: NOT COMPARABLE: {trained.apart}",
            fix=hint_of(trained.experiment),
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


def _fix(trained: Trained) -> str:
    if trained.status is Status.OOM:
        return "a smaller batch_size with grad_accum, recompute full, or zero 3"
    if " at step " in (trained.reason or ""):
        return "a lower lr, or fp32; the run's series has the steps before"
    more = "a longer --timeout; " if trained.status is Status.TIMEOUT else ""
    return f"{more}its ranks' logs are in the run's logs folder"
