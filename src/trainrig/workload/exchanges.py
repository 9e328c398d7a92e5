"""What a rank of our engine exchanges in one step: each collective and message, to the byte.

Answers how many there are and how large, by operation, mesh axis and dtype; not how long they take
(the predictor's step).  A number of bytes is that of the larger side (`native.traffic` counts the
same way in a live step; both must be equal as whole numbers).

data parallel   a unit is a block, or all that is around the blocks; FSDP2 exchanges a unit at once,
                each tensor's rows padded to a multiple of the ranks.
    zero 0      gradients of a unit are summed over the replicas once a step
    zero 1      weights are gathered once a step; gradients reduced and scattered once a step
    zero 2      weights are gathered, gradients reduced and scattered for each micro-batch
    zero 3      weights of blocks are gathered again in each backward
    hybrid      what a shard group has scattered is summed over the replicas
"""

from __future__ import annotations

from dataclasses import dataclass

Key = tuple[str, str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """All collectives, or messages, of one kind in a step."""

    operation: str
    """all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, send or recv."""
    axis: str
    """pp, dp_replicate, dp_shard, cp or tp."""
    dtype: str
    """torch's name: float32."""
    count: int
    num_bytes: int
    """Of the larger side, of all together."""
