"""Which program usually runs a layout: one table, the first rule that holds, with its reason.

The number of GPUs decides nothing by itself: what is split or sharded does, and whether one machine
or several train.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutKind:
    """Facts about a layout that tell which program runs it."""

    schedule: str = "1f1b"
    split: bool = False
    """Tensor, pipeline or context parallelism."""
    sharded: bool = False
    """Gradients or weights are sharded over data parallel."""
    adapted: bool = False
    """Adapters alone are trained."""
    wrapped: bool = False
    """torch's DDP or DataParallel is asked for by name."""
    nodes: bool = False
    """Several machines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UsualProgram:
    """A rule: where it holds, that program is presumed."""

    holds: Callable[[LayoutKind], bool]
    program: str
    reason: str


RULES = (
    UsualProgram(
        holds=lambda x: x.schedule == "dualpipe",
        program="hai-llm",
        reason="DualPipe is DeepSeek's",
    ),
    UsualProgram(
        holds=lambda x: x.schedule in ("zb", "zbv"),
        program="torchtitan",
        reason="zero-bubble schedules are torch's",
    ),
    UsualProgram(
        holds=lambda x: x.split and x.sharded,
        program="torchtitan",
        reason="tensor, pipeline or context parallelism beside sharded weights",
    ),
    UsualProgram(
        holds=lambda x: x.split,
        program="megatron-lm",
        reason="tensor, pipeline or context parallelism",
    ),
    UsualProgram(
        holds=lambda x: x.adapted,
        program="huggingface",
        reason="adapters are trained with PEFT",
    ),
    UsualProgram(
        holds=lambda x: not x.nodes,
        program="huggingface",
        reason="one machine",
    ),
    UsualProgram(
        holds=lambda x: x.wrapped,
        program="huggingface",
        reason="torch's wrapper is asked for",
    ),
    UsualProgram(
        holds=lambda x: x.sharded,
        program="torchtitan",
        reason="weights sharded over several machines",
    ),
    UsualProgram(
        holds=lambda _: True,
        program="megatron-lm",
        reason="several machines",
    ),
)


def usual_program(spread: LayoutKind) -> UsualProgram:
    """Return the rule that tells who usually runs such a layout."""
    return next(rule for rule in RULES if rule.holds(spread))
