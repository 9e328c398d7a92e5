"""The facts of a layout, read from the live objects of a rank in its first step.

Nothing here looks at what was asked for: which class wraps the model, how many elements of the
weights, gradients and optimizer states this rank holds and when, who is in the process group, in
which dtype the states are, how often a block ran forward and on how many tokens.  `layout_check`
makes words of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from trainrig.models.layers import attentions_run
from trainrig.train.drivers.common import (
    Facts,
    elements,
    facts_of,
    has_compiled,
    kind,
    names,
    of_result,
    watch_matrix,
)
from trainrig.train.native.collectives import Collectives
from trainrig.train.native.loop import Engine


def first_step(engine: Engine, wire: Collectives | None) -> Facts:
    """Train one step of ``engine`` and look while it goes on."""
    weights: Any = engine.weights
    module = engine.model
    facts: Facts = {
        "num_parameters": sum(weight.numel() for weight in weights.model.values()),
        "weights": elements(module.parameters()),
        "micro_batches": 0,
        "block_forwards": 0,
    }
    leave = _watch(module.blocks[0], facts)
    original = weights.backward

    def backward(loss: Tensor, *, last: bool) -> None:
        facts["weights_between"] = elements(module.parameters())
        facts["micro_batches"] += 1
        original(loss, last=last)
        if last:
            facts["gradients"] = elements(weights.gradients())
            facts["gradient_dtype"] = kind(weights.gradients())

    weights.backward = backward
    if wire is not None:
        wire.reduced.clear()
    try:
        engine.step()
    finally:
        del weights.backward
        leave()
    if wire is not None:
        facts["gradient_collectives"] = wire.reduced.total()
        facts["reduce_dtype"] = names(wire.reduced)
    wrapped = getattr(weights, "wrapped", module)
    return {
        **facts,
        **facts_of(wrapped, weights.master.values(), engine.optimizer, engine.device),
        "placements": _placements(module),
        "attention": " and ".join(sorted(attentions_run)) or None,
        "compiled": module.blocks[0]._compiled_call_impl is not None and has_compiled(),
        "offloaded": _offloaded(module),
    }


def _watch(block: Any, facts: Facts) -> Callable[[], None]:
    """Count a block's forwards and look at what comes out, until what is returned is called.

    A compiled block is watched from outside: a hook would be compiled with it, its counting moved
    behind the end of the graph, which a second forward does not reach.
    """
    compiled = block._compiled_call_impl
    if compiled is None:
        return watch_matrix(block, facts)

    def call(*args: Any, **kwargs: Any) -> Any:
        facts["block_forwards"] += 1
        out = compiled(*args, **kwargs)
        facts.update(of_result(out))
        return out

    block._compiled_call_impl = call
    return lambda: setattr(block, "_compiled_call_impl", compiled)


def _placements(model: Any) -> str | None:
    """How the blocks' weights are placed on a mesh of ranks, where they are."""
    weight = next(model.blocks[0].parameters())
    if not hasattr(weight, "placements"):
        return None
    return f"{weight.placements} on {tuple(weight.device_mesh.shape)} ranks"


def _offloaded(model: Any) -> bool:
    """Whether sharded weights wait in the host's memory."""
    block = model.blocks[0]
    if not hasattr(block, "_get_fsdp_state"):
        return False
    groups = block._get_fsdp_state()._fsdp_param_groups
    return any(group.offload_policy.__class__.__name__ == "CPUOffloadPolicy" for group in groups)
