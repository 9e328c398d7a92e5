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
class PresumptionRule:
    """A rule: a layout for which it holds is presumed to run in that program."""

    holds: Callable[[LayoutKind], bool]
    program: str
    reason: str


RULES = (
    PresumptionRule(
        holds=lambda x: x.schedule == "dualpipe",
        program="hai-llm",
        reason="DualPipe is DeepSeek's",
    ),
    PresumptionRule(
        holds=lambda x: x.schedule in ("zb", "zbv"),
        program="torchtitan",
        reason="zero-bubble schedules are torch's",
    ),
    PresumptionRule(
        holds=lambda x: x.split and x.sharded,
        program="torchtitan",
        reason="tensor, pipeline or context parallelism beside sharded weights",
    ),
    PresumptionRule(
        holds=lambda x: x.split,
        program="megatron-lm",
        reason="tensor, pipeline or context parallelism",
    ),
    PresumptionRule(
        holds=lambda x: x.adapted,
        program="huggingface",
        reason="adapters are trained with PEFT",
    ),
    PresumptionRule(
        holds=lambda x: not x.nodes,
        program="huggingface",
        reason="one machine",
    ),
    PresumptionRule(
        holds=lambda x: x.wrapped,
        program="huggingface",
        reason="torch's wrapper is asked for",
    ),
    PresumptionRule(
        holds=lambda x: x.sharded,
        program="torchtitan",
        reason="weights sharded over several machines",
    ),
    PresumptionRule(
        holds=lambda _: True,
        program="megatron-lm",
        reason="several machines",
    ),
)


def usual_program(spread: LayoutKind) -> PresumptionRule:
    """Return the rule that tells who usually runs such a layout."""
    return next(rule for rule in RULES if rule.holds(spread))
