"""The moments of a step at which memory may be at its highest, each summed up by part.

Helper of `memory`, which says why these; the sizes are a stage's.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trainrig.workload import ends
from trainrig.workload.stage import Bytes, Stage

Parts = dict[str, Bytes]


def moments(stage: Stage) -> Iterator[Parts]:
    """Bytes by part, moment after moment."""
    yield _at_loss(stage)
    yield _in_backward(stage)
    if stage.shape.num_decoder_layers:
        yield _in_encoder(stage)
    yield _at_end(stage)
    yield _in_update(stage)


def _at_loss(stage: Stage) -> Parts:
    """Every activation waits, and the logits exist."""
    logits = ends.loss_bytes(stage.shape, stage.layout, stage.style, stage.rows)
    return _parts(
        stage,
        passing=stage.grads_add_up * 1.0,
        copies=stage.states.weight_copies,
        activations=stage.waiting + stage.early + stage.late,
        logits=stage.has_loss * (logits + _held(stage)),
        bucket=True,
    )


def _in_backward(stage: Stage) -> Parts:
    """The last block's backward."""
    return _parts(
        stage,
        passing=stage.grads_add_up * 1.0,
        copies=stage.states.weight_copies,
        activations=stage.waiting + stage.early + stage.in_last_block,
        logits=_rests(stage),
        bucket=True,
    )


def _in_encoder(stage: Stage) -> Parts:
    """Backward of the last plain block, when those with cross-attention are done."""
    of_plain = stage.blocks[0] * stage.block_parameters(1) / stage.num_parameters
    return _parts(
        stage,
        passing=1 - of_plain,
        activations=stage.of_one[0] * stage.in_flight + stage.early + stage.in_plain_block,
        logits=_rests(stage),
        bucket=True,
    )


def _at_end(stage: Stage) -> Parts:
    """All gradients exist, and the activations of a pipeline's other micro-batches."""
    others = stage.waiting * (1 - 1 / stage.in_flight)
    return _parts(
        stage,
        passing=1.0,
        activations=others + stage.in_first_block,
        logits=_rests(stage),
        bucket=True,
    )


def _in_update(stage: Stage) -> Parts:
    """The optimizer."""
    update = stage.states.update * stage.num_trained / stage.sharded(1)
    parts = _parts(stage, passing=1.0, activations=0, logits=_rests(stage))
    if stage.layout.offload == "none" and stage.states.update:
        parts["optimizer"] = parts["optimizer"] + update
    return parts


def _parts(
    stage: Stage,
    *,
    passing: Bytes,
    activations: Bytes,
    logits: Bytes,
    copies: float = 0.0,
    bucket: bool = False,
) -> Parts:
    """What stands at any moment, and what this one adds.

    ``passing``: the share of passing gradients that exist; ``copies``: bytes a parameter of narrow
    copies; ``bucket``: gradients are on their way to other ranks.
    """
    states = stage.states
    owned = stage.num_trained / stage.sharded(1) * (stage.layout.offload == "none")
    grads: Any = states.lasting_grad + states.passing_grad * passing
    return {
        "weights": _weights(stage) + (copies * stage.num_parameters if copies else 0.0),
        "gradients": grads * _gradient_numbers(stage),
        "master": states.master * owned,
        "optimizer": states.moments * owned,
        "activations": activations,
        "logits": logits,
        "buffers": stage.buffers + stage.buckets if bucket else stage.buffers,
    }


def _weights(stage: Stage) -> Bytes:
    """Those of FSDP are sharded as soon as gradients are; gathered ones are buffers.

    Offloaded ones of FSDP are on the host with their optimizer (torch's `CPUOffloadPolicy`).
    """
    is_fsdp = stage.layout.engine == "fsdp"
    shards = stage.sharded(2 if is_fsdp else 3)
    weights = stage.states.weight * stage.num_trained
    if stage.layout.lora_rank:
        weights = weights + stage.states.frozen * stage.num_parameters
    if is_fsdp and stage.layout.offload != "none":
        return weights / shards * (shards == 1)
    return weights / shards


def _gradient_numbers(stage: Stage) -> Bytes:
    """Gradients on one rank; sharded ones follow an optimizer to the host."""
    import numpy as np

    shards = stage.sharded(2)
    if stage.layout.offload == "none":
        return stage.num_trained / shards
    return np.where(np.asarray(shards) > 1, 0, stage.num_trained)


def _rests(stage: Stage) -> Bytes:
    """What a chunked loss holds until the step's end."""
    return stage.has_loss * ends.loss_rests(stage.shape, stage.style, stage.rows)


def _held(stage: Stage) -> Bytes:
    """The rests of the micro-batch before, until the loss's name means the new one."""
    import numpy as np

    rests = ends.loss_rests(stage.shape, stage.style, stage.rows)
    return np.where(np.asarray(stage.layout.grad_accum) > 1, rests, 0)
