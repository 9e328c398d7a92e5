"""A training on fewer ranks than it was made for, where its layout allows it: the same steps.

What is lost is data parallelism: each rank that is left trains on the samples of several, in more
micro-batches, so that a step has the same samples.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from trainrig.errors import UsageError
from trainrig.train.config import Experiment, check


def on_ranks(experiment: Experiment, ranks: int) -> Experiment:
    """Return the experiment on fewer ranks than it was made for: on other ranks, the same training.

    Each data-parallel rank trains on the samples of several, in more micro-batches; tensor,
    pipeline and context parallelism stay.  Raises UsageError where the layout does not allow it.
    """
    own = experiment
    if ranks == own.processes:
        return own
    if not own.recovery.min_nproc <= ranks < own.processes or not own.recovery.min_nproc:
        raise UsageError(
            f"{ranks} ranks were started, and the experiment has nproc = {own.processes}"
            + (f" and min_nproc = {own.recovery.min_nproc}" if own.recovery.min_nproc else ""),
            "torchrun --nnodes N --nproc-per-node M with N · M = nproc; min_nproc allows fewer",
        )
    inner = own.tp * own.pp * own.cp
    if ranks % inner or own.mesh.dp % (ranks // inner):
        raise UsageError(
            f"{ranks} ranks cannot share the samples of {own.mesh.dp} data-parallel ranks evenly",
            f"a divisor of {own.mesh.dp}"
            + (f", times the {inner} ranks that share samples" if inner > 1 else ""),
        )
    num_data = ranks // inner
    keys: dict[str, Any] = {"nproc": ranks, "grad_accum": own.grad_accum * own.mesh.dp // num_data}
    if own.shard_size and num_data % own.shard_size:
        keys["shard_size"] = 0
    if num_data * own.cp == 1 and own.offload != "none":
        raise UsageError("one data-parallel rank has no shards to offload", "min_nproc of two")
    if num_data * own.cp == 1:  # nothing to shard over, nobody to wrap for
        keys |= {"zero": 0, "shard_size": 0, "parallel": "auto"}
    if own.device_numbers:
        keys["devices"] = ",".join(map(str, own.device_numbers[:ranks]))
    fewer = own.replace(**keys)
    check(fewer)
    return fewer


def fewer_ranks(experiment: Experiment) -> tuple[int, ...]:
    """Return numbers of ranks that it may go on with where one stays lost, the largest first."""
    rank_counts: list[int] = []
    least = experiment.recovery.min_nproc or experiment.processes
    for ranks in range(experiment.processes - 1, least - 1, -1):
        with suppress(UsageError):
            on_ranks(experiment, ranks)
            rank_counts.append(ranks)
    return tuple(rank_counts)
