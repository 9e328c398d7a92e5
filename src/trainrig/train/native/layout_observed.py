"""The facts of a layout, read from the live objects of a rank in its first step.

Nothing here looks at what was asked for: which class wraps the model, how many elements of the
weights, gradients and optimizer states this rank holds and when, who is in the process group, in
which dtype the states are, how often a block ran forward and on how many tokens.  `layouts` makes
words of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from trainrig.models.layers import attentions_run
from trainrig.train.drivers.common import (
    devices_of,
    elements,
    has_compiled,
    kind,
    names,
    software,
)
from trainrig.train.native.collectives import Collectives
from trainrig.train.native.loop import Engine

Facts = dict[str, Any]


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
    return facts | _objects(engine)


def _watch(block: Any, facts: Facts) -> Callable[[], None]:
    """Count a block's forwards and look at what comes out, until what is returned is called.

    Counted is where one begins: a second forward stops where backward has all that it needs.  A
    compiled block is watched from outside: a hook would be compiled with it, its counting moved
    behind the end of the graph, which a second forward does not reach.
    """

    def began(*_: Any) -> None:
        facts["block_forwards"] += 1

    compiled = block._compiled_call_impl
    if compiled is None:
        matrix = _first_matrix(block)
        before = matrix.register_forward_pre_hook(began)
        after = matrix.register_forward_hook(lambda _, __, out: facts.update(_of_result(out)))

        def leave() -> None:
            before.remove()
            after.remove()

        return leave

    def call(*args: Any, **kwargs: Any) -> Any:
        began()
        out = compiled(*args, **kwargs)
        facts.update(_of_result(out))
        return out

    block._compiled_call_impl = call
    return lambda: setattr(block, "_compiled_call_impl", compiled)


def _objects(engine: Engine) -> Facts:
    """What the objects say between two steps."""
    weights, optimizer = engine.weights, engine.optimizer
    states = [value for state in optimizer.state.values() for value in state.values()]
    moments = [value for value in states if isinstance(value, Tensor) and value.ndim > 0]
    per_weight = max(1, round(len(moments) / max(1, len(optimizer.state))))
    ranked = dist.is_initialized()
    wrapped = getattr(weights, "wrapped", engine.model)
    places = [engine.device]
    if isinstance(wrapped, torch.nn.DataParallel):
        places = [f"cuda:{number}" for number in wrapped.device_ids]
    return {
        "wrapped": type(wrapped).__name__,
        "ranks": dist.get_world_size() if ranked else len(places),
        "transport": dist.get_backend() if ranked else None,
        "masters": elements(weights.master.values()),
        "master_dtype": kind(weights.master.values()),
        "states": elements(moments) // per_weight,
        "moments": per_weight if moments else 0,
        "state_dtype": kind(moments),
        "placements": _placements(engine.model),
        "optimizer": type(optimizer).__name__,
        "attention": " and ".join(sorted(attentions_run)) or None,
        "fused": all(group.get("fused") for group in optimizer.param_groups),
        "compiled": engine.model.blocks[0]._compiled_call_impl is not None and has_compiled(),
        "offloaded": _offloaded(engine.model),
        "device": engine.device,
        "placed": devices_of(places),
        "threads": torch.get_num_threads(),
        "software": software(),
    }


def _of_result(out: Tensor) -> Facts:
    """What a result of (samples, tokens, width) says of the pass that it is part of."""
    return {"weight_dtype": kind([out]), "micro_tokens": out.numel() // out.shape[-1]}


def _first_matrix(block: Any) -> Any:
    """The first product of a block: the dtype of what it gives is what the block computes in."""
    return next(
        part for part in block.modules() if getattr(getattr(part, "weight", None), "ndim", 0) == 2
    )


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
