"""Bytes that a rank of our engine holds of weights, gradients and states, to the byte.

Answers what ZeRO shares out (Rajbhandari et al. 2020, table 1), tensor by tensor as FSDP2 rounds
it, on the first rank, which has the most; not activations and buffers (`memory`, which has the peak
of a step by part, and estimates).  Equal to what ranks hold is tested on 64 of them (gpt2-xl and
llama-7B, tests/e2e/test_held.py).

Plain data parallelism has narrow weights and fp32 masters beside them.  What FSDP2 shards is in
fp32, weights and masters in one; whole weights in the narrow type exist while it computes: from the
first forward to the last backward under stages 0 to 2, a block at a time under stage 3.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainrig.workload.layout import Layout
from trainrig.workload.model import ModelShape
from trainrig.workload.numerics import MOMENTS
from trainrig.workload.operators import dtype_bytes
from trainrig.workload.tensors import model_tensors

_WIDE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Bytes of one rank."""

    weights: int
    """Between two steps."""
    weights_in_backward: int
    """When backward begins; what is gathered later is not there yet."""
    gradients: int
    """When the optimizer begins."""
    states: int
    """Moments, and masters where they are no weights of the model."""


def held(shape: ModelShape, layout: Layout) -> Held | None:
    """Return the bytes of the first rank.

    The answer is None where our engine does not train such a layout, or by other rules.
    """
    others = (
        shape.moe.num_experts
        or layout.mesh.pp > 1
        or layout.mesh.cp > 1
        or layout.lora.rank
        or layout.memory.offload != "none"
    )
    if (
        not layout.traits.models.own_models
        or others
        or layout.memory.optimizer not in ("adamw", "adamw-fused")
    ):
        return None
    tp, compute = int(layout.mesh.tp), max(2, dtype_bytes(layout.precision.compute))
    shards = int(layout.shards) if layout.sharding.zero else 1
    tensors = model_tensors(shape)
    whole = sum(weight.share(1, tp=tp) for weight in tensors)
    sharded = sum(weight.share(shards, tp=tp) for weight in tensors)
    moments = int(MOMENTS[layout.memory.optimizer]) * _WIDE * sharded
    if not layout.sharding.zero and (tp == 1 or layout.mesh.dp == 1):  # no FSDP2
        masters = _WIDE * whole if compute < _WIDE else 0
        return Held(
            weights=compute * whole,
            weights_in_backward=compute * whole,
            gradients=_WIDE * whole,
            states=moments + masters,
        )
    in_backward = compute * whole
    if layout.sharding.zero == 3:
        blocks = [weight for weight in tensors if "blocks." in weight.name]
        around = [weight for weight in tensors if "blocks." not in weight.name]
        in_backward = compute * sum(weight.share(1, tp=tp) for weight in around)
        in_backward += _WIDE * sum(weight.share(shards, tp=tp) for weight in blocks)
    return Held(
        weights=_WIDE * sharded,
        weights_in_backward=in_backward,
        gradients=_WIDE * sharded,
        states=moments,
    )
